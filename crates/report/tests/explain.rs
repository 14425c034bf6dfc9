//! Text and JSON of hand-made explanations of late packets.

mod story;

use latpath_analysis::{explain::RankedCause, Explanation};
use latpath_cause::{Baseline, Cause, Ranking};
use latpath_model::{Ns, HOST};
use latpath_report::{explanation_document, packet_text, ExplanationDocument, WIDTH};
use latpath_stats::units::CharacterSet;
use latpath_vms::Vm;
use story::*;
use unicode_width::UnicodeWidthStr;

#[test]
fn the_sums_and_the_culprit_stand_in_the_first_lines() {
    let (explanation, context) = story();
    let text = shown(&explanation, &context, CharacterSet::Unicode);
    let first: Vec<&str> = text.lines().take(4).collect();
    assert!(first[0].starts_with("Waiting for its CPU: 90.01 % of the delay of 14 late packets"), "{first:?}");
    assert!(first.iter().any(|line| line.starts_with("By culprit: vCPU 0 of guest7 90.01 %")), "{first:?}");
    let culprit = "vhost of guest7 (5620, CPU 4, SCHED_OTHER) ready but not running behind";
    assert!(first.iter().any(|line| line.starts_with(culprit)), "{first:?}");
    insta::assert_snapshot!(text);
}

/// Row numbers of the ranking.
fn numbers(text: &str) -> Vec<usize> {
    let rows = text.split("Causes, by the delay beyond the baseline").nth(1).expect("a ranking");
    let section = rows.split("\n\n").find(|part| part.contains("packets")).expect("a table");
    let causes = section.lines().filter(|line| !line.contains(" others"));
    causes.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

#[test]
fn rows_are_numbered_without_holes_where_some_between_them_are_not_shown() {
    let (mut explanation, context) = story();
    let is_unexplained = |ranked: &RankedCause| ranked.row.cause == Cause::Unexplained;
    let unexplained: Vec<RankedCause> = explanation.ranking.iter().filter(|r| is_unexplained(r)).cloned().collect();
    let row = |first, excess_ns| {
        let mut ranked = explanation.ranking[0].clone();
        (ranked.row.first, ranked.row.share.excess_ns) = (first, excess_ns);
        ranked
    };
    // Rows without packets and with a negligible delay are left out, wherever they are in the ranking.
    let rows = [(5, 100), (4, 90), (3, 80), (2, 70), (0, 0), (1, 0), (0, 0), (0, 0), (1, 0), (1, 0)];
    explanation.ranking = rows.map(|(first, ms)| row(first, ms * MS)).into_iter().chain(unexplained).collect();
    explanation.excess_ns = explanation.ranking.iter().map(|ranked| ranked.row.excess_ns).sum();
    let text = shown(&explanation, &context, CharacterSet::Ascii);
    assert_eq!(numbers(&text), [1, 2, 3, 4, 5, 6, 7], "{text}");
}

#[test]
fn it_is_reported_that_latpath_itself_makes_packets_late() {
    let (mut explanation, context) = story();
    let warning = |explanation: &Explanation| {
        let text = shown(explanation, &context, CharacterSet::Ascii);
        text.split_whitespace().collect::<Vec<_>>().join(" ").contains("! latpath itself took 90.01 % of the delay")
    };
    assert!(!warning(&explanation));
    for ranked in explanation.ranking.iter_mut().filter(|ranked| ranked.row.cause == Cause::WaitingForCpu) {
        ranked.row.share.by.iter_mut().for_each(|(actor, _)| actor.is_tool = true);
    }
    assert!(warning(&explanation));
    let document = explanation_document(None, &explanation, &context);
    assert!(document.by_culprit.iter().any(|culprit| culprit.latpath), "{document:?}");
}

#[test]
fn a_sentence_says_who_waited_for_whom() {
    let (context, server) = (context(), || task(911, "server", OTHER));
    let hog = task(7, "hog", fifo(50));
    for (cause, by, said) in [
        (Cause::PollInterval, None, "slept for 12.00 ms by its own timer"),
        (Cause::WaitingForCpu, Some(hog.clone()), "was ready but not running for 12.00 ms behind hog (7, FIFO 50)"),
        (Cause::Blocked, Some(hog), "was blocked for 12.00 ms until woken by hog (7, FIFO 50)"),
        (Cause::Work, None, "worked for 12.00 ms"),
    ] {
        let held = (12 * MS, cause, 1, 0, Some(server()), by);
        let mut packet = packet_of_all_hops(1, 0, true, vec![], vec![], vec![held]);
        packet.hops[3].intervals[1].waiter = Some(relay());
        let text =
            packet_text(&explained_packet(packet, &Baseline::default(), &context), &context, CharacterSet::Unicode);
        let text: Vec<&str> = text.split_whitespace().collect();
        let said = format!("relay waited for server (911, CPU 0, SCHED_OTHER), which {said}:");
        assert!(text.join(" ").contains(&said), "{said} is not in {text:?}");
    }
}

#[test]
fn one_packet_from_point_to_point() {
    let (explanation, context) = story();
    insta::assert_snapshot!(packet_text(&explanation.worst[0], &context, CharacterSet::Unicode));
}

#[test]
fn a_crowd_and_a_gap_are_reported_too() {
    let (explanation, context) = story();
    let of = |number| explanation.worst.iter().find(|t| t.explained.number == number).unwrap();
    let text = packet_text(of(4001), &context, CharacterSet::Unicode)
        + "\n"
        + &packet_text(of(77), &context, CharacterSet::Unicode);
    insta::assert_snapshot!(text);
}

#[test]
fn ascii_stays_ascii_and_no_line_is_wider_than_the_page() {
    let (mut explanation, mut context) = story();
    for letters in [CharacterSet::Unicode, CharacterSet::Ascii] {
        let text = shown(&explanation, &context, letters) + &packet_text(&explanation.worst[0], &context, letters);
        assert!(letters == CharacterSet::Unicode || text.is_ascii(), "{text}");
    }
    insta::assert_snapshot!(packet_text(&explanation.worst[0], &context, CharacterSet::Ascii));
    let name = "a-guest-with-a-very-long-name-and-then-some-more-of-it";
    let renamed = context.vms.of(HOST).iter().map(|vm| Vm { name: name.into(), ..vm.clone() }).collect();
    context.vms.set(HOST, renamed);
    context.points[0].point.device = "x".repeat(60);
    explanation.ranking[0].row.share.actor.as_mut().unwrap().name = "y".repeat(80);
    for letters in [CharacterSet::Unicode, CharacterSet::Ascii] {
        let text = shown(&explanation, &context, letters) + &packet_text(&explanation.worst[0], &context, letters);
        for line in text.lines() {
            // Commands are not wrapped, so that users can copy them.
            let is_command = ["taskset", "virsh", "chrt"].iter().any(|c| line.trim_start().starts_with(c));
            assert!(is_command || line.width() <= WIDTH, "{} columns: {line}", line.width());
        }
    }
}

#[test]
fn names_from_outside_cannot_steer_the_terminal() {
    let (mut explanation, mut context) = story();
    let evil = "\u{1b}[2J\u{202e}\u{7}";
    context.streams[0] = "svid:MU\u{1b}[2J".parse().unwrap();
    context.points[1].point.device = evil.into();
    explanation.notes.push(evil.into());
    explanation.ranking[0].row.share.actor.as_mut().unwrap().name = evil.into();
    for interval in explanation.worst.iter_mut().flat_map(|t| &mut t.explained.hops).flat_map(|p| &mut p.intervals) {
        interval.notes = vec![evil.into()];
        interval.state = Some(evil.into());
        interval.actor.iter_mut().chain(&mut interval.by).for_each(|who| who.name = evil.into());
    }
    for explained_packet in &mut explanation.worst {
        for held in &mut explained_packet.attribution.shares {
            held.actor.iter_mut().for_each(|a| a.name = evil.into());
            held.notes.push((evil.into(), 1));
            held.state = Some(evil.into());
        }
        explained_packet.advice.iter_mut().for_each(|a| a.commands.push(evil.into()));
    }
    let mut text = shown(&explanation, &context, CharacterSet::Unicode);
    explanation
        .worst
        .iter()
        .for_each(|explained_packet| text += &packet_text(explained_packet, &context, CharacterSet::Unicode));
    assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'));
}

/// Returns the explanation, the waterfall and the JSON of a packet whose reader's CPU was slow to leave this idle
/// state.
fn out_of_idle(number: u64, state: Option<&str>) -> (String, String, ExplanationDocument<'static>) {
    let context = context();
    let mut baseline = Baseline::default();
    (0..40).for_each(|n| baseline.add(&packet_of_all_hops(n, 0, false, vec![], vec![], vec![])));
    let mut late = packet_of_all_hops(2375, 0, true, vec![], vec![], vec![]);
    let moved = 5 * MS;
    for hop in &mut late.hops {
        for interval in &mut hop.intervals {
            if interval.cause == Cause::IdleExit {
                interval.to += moved;
                (interval.number, interval.state) = (Some(number), state.map(Into::into));
            } else if interval.from > 13 * US {
                (interval.from, interval.to) = (interval.from + moved, interval.to + moved);
            }
        }
        (hop.begin, hop.end) = (hop.intervals[0].from, hop.intervals.last().unwrap().to);
    }
    late.seen.iter_mut().skip(2).for_each(|seen| seen.t += moved);
    let explained_packet = explained_packet(late, &baseline, &context);
    let mut ranking = Ranking::default();
    ranking.add(&explained_packet.attribution);
    let rows =
        ranking.rows().into_iter().map(|row| RankedCause { row, advice: explained_packet.advice.clone() }).collect();
    let mut explanation = Explanation { late: 1, excess_ns: moved, ranking: rows, ..story().0 };
    // Replaces line breaks with spaces, so that the test does not depend on them.
    let line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let packet = line(packet_text(&explained_packet, &context, CharacterSet::Unicode));
    explanation.spikes.clear();
    explanation.worst = vec![explained_packet];
    let document = explanation_document(None, &explanation, &context);
    (line(shown(&explanation, &context, CharacterSet::Unicode)), packet, document)
}

#[test]
fn an_idle_state_is_reported_by_its_name_where_that_is_known() {
    let (all, packet, document) = out_of_idle(3, Some("C1E"));
    assert!(all.contains("idle state C1E") && all.contains("until its CPU had left its idle state (C1E)"), "{all}");
    assert!(packet.contains("waited for 5.006 ms until its CPU had left its idle state (C1E)"), "{packet}");
    assert!(packet.contains("from idle state C1E"), "{packet}");
    assert!(all.contains("the CPU came out of C1E"), "{all}");
    for cause in [&document.causes[0].share, &document.packets[0].causes[0].share] {
        assert_eq!((cause.cause, cause.number), (Cause::IdleExit, Some(3)));
        assert_eq!(cause.idle_state.as_deref(), Some("C1E"));
    }
    let (all, packet, document) = out_of_idle(3, None);
    assert!(all.contains("idle state 3"), "{all}");
    assert!(packet.contains("until its CPU had left its idle state (state 3)"), "{packet}");
    assert!(packet.contains("from idle state 3"), "{packet}");
    assert_eq!(document.causes[0].share.idle_state, None);
}

#[test]
fn where_nobody_knows_that_stands_first() {
    let (mut explanation, context) = story();
    explanation.ranking.last_mut().unwrap().row.share.excess_ns = 900 * MS;
    explanation.excess_ns += 900 * MS;
    let text = shown(&explanation, &context, CharacterSet::Unicode);
    insta::assert_snapshot!(text.split("\n\n").next().unwrap());
}

#[test]
fn json_has_keys_that_docs_describe_and_sums_that_hold() {
    let directory = tempfile::tempdir().unwrap();
    let run = run(directory.path());
    let (explanation, context) = story();
    let document = explanation_document(Some((&run, &files())), &explanation, &context);
    let rows: Ns = document.causes.iter().map(|row| row.share.excess_ns).sum();
    assert_eq!(rows + document.other_causes.excess_ns, document.excess_ns);
    for packet in &document.packets {
        assert_eq!(packet.causes.iter().map(|cause| cause.time_ns).sum::<Ns>(), packet.time_ns);
        assert_eq!(packet.causes.iter().map(|cause| cause.share.excess_ns).sum::<Ns>(), packet.excess_ns);
        for segment in &packet.segments {
            assert_eq!(segment.intervals.iter().map(|interval| interval.time_ns).sum::<Ns>(), segment.time_ns);
        }
    }
    let advice = document.causes.iter().flat_map(|cause| &cause.advice);
    let settings: Vec<_> =
        advice.chain(document.fixes.iter().map(|row| &row.fix)).flat_map(|fix| &fix.settings).collect();
    assert!(settings.iter().any(|id| *id == "thread-priority"), "{settings:?}");
    for id in settings {
        assert!(latpath_settings::Setting::of_id(id).is_some(), "{id} is no setting");
    }
    let json = serde_json::to_value(&document).unwrap();
    let again: ExplanationDocument = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(&again).unwrap(), json);
    let docs = include_str!("../../../docs/json.md");
    let docs = docs.split("## `latpath explain").nth(1).expect("a section of docs/json.md");
    let mut unknown = Vec::new();
    keys(&json, &mut unknown);
    unknown.retain(|key| !docs.contains(&format!("`{key}`")) && !json["run"].as_object().unwrap().contains_key(key));
    unknown.sort();
    unknown.dedup();
    let of_run = ["utc", "utc_ns", "tai_ns", "monotonic_ns"];
    unknown.retain(|key| !of_run.contains(&key.as_str()) && json["run"]["host"].get(key).is_none());
    assert_eq!(unknown, Vec::<String>::new(), "keys that docs/json.md does not name");
}

fn keys(value: &serde_json::Value, all: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| {
            all.push(key.clone());
            keys(value, all);
        }),
        serde_json::Value::Array(list) => list.iter().for_each(|value| keys(value, all)),
        _ => {}
    }
}
