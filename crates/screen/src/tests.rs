//! Compares whole screens with the pictures in `tests/screens`. After an intended change, `LATPATH_DRAW_SCREENS=1 cargo
//! test -p latpath-screen` redraws them; review the difference before committing it.

use crate::{keys::Key, model::Model, theme::Theme, view, Action};
use latpath_model::{Point, PointKind, SegmentKind};
use latpath_stats::{
    units::CharacterSet, Bucket, CauseFigures, DelayShare, LateFigures, Loss, MachineFigures, PathFigures,
    SegmentFigures, ShownAfter, StreamFigures, Summary, TimeFigures, ToolCost,
};
use proptest::prelude::*;
use ratatui::{backend::TestBackend, buffer::Buffer, style::Color, Terminal};
use samples::{summary, Capture};
use std::{path::Path, time::Duration};

mod samples;

fn unicode() -> Theme {
    Theme::of(CharacterSet::Unicode, "xterm", "")
}

/// The state of the screen after this many seconds of a scenario and these keys.
fn model(theme: Theme, capture: Capture, seconds: u64, keys: &[Key]) -> Model {
    let mut model = Model::new(theme, |_| "03:12:05".into());
    for s in 1..=seconds {
        model.feed(&summary(capture, s), Duration::from_secs(s));
    }
    for key in keys {
        model.key(*key);
    }
    model
}

fn drawn(model: &Model, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::render(model, frame.area(), frame.buffer_mut())).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let rows = buffer.content.chunks(width);
    rows.map(|row| row.iter().map(|c| c.symbol()).collect::<String>().trim_end().to_string() + "\n").collect()
}

/// Compares a screen with its picture.
fn picture(name: &str, model: &Model, width: u16, height: u16) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/screens").join(format!("{name}.txt"));
    let now = text(&drawn(model, width, height));
    if std::env::var_os("LATPATH_DRAW_SCREENS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(now == want, "{name} looks different now:\n{now}\nbefore:\n{want}");
}

#[test]
fn normal_on_80_by_24() {
    picture("normal-80x24", &model(unicode(), Capture::Normal, 6, &[]), 80, 24);
}

#[test]
fn normal_on_200_by_60() {
    picture("normal-200x60", &model(unicode(), Capture::Normal, 6, &[]), 200, 60);
}

/// The state of a screen with late packets and their culprits.
fn late(theme: Theme) -> Model {
    let mut model = Model::new(theme, |_| "03:12:05".into());
    let cause = |cause: &str, cpus: &[u32], who: &str, first, excess_ns, share_percent| CauseFigures {
        cause: cause.into(),
        machine: "host".into(),
        cpus: cpus.into(),
        segment: "Thyp".into(),
        description: who.into(),
        first,
        excess_ns,
        median_ns: 14_000_000,
        share_percent,
    };
    let causes = vec![
        cause(
            "waiting-for-cpu",
            &[4, 0, 5],
            "vhost of guest7 behind vCPU 0 of guest7 (FIFO 1)",
            41,
            598_200_000,
            92.013,
        ),
        cause("upcall", &[4], "handler12", 2, 50_000_000, 7.692),
        cause("unexplained", &[4], "guest7: the recorder had written over it", 0, 2_000_000, 0.307),
    ];
    let latest = Some("MU01:1072@01:08:48.859964  14.20 ms in Thyp: vhost of guest7 (5620, CPU 4, SCHED_OTHER) ready but not running for 14.01 ms".into());
    let sum = |name: &str, excess_ns, share_percent| DelayShare { name: name.into(), excess_ns, share_percent };
    let by_cause = vec![sum("waiting for its CPU", 598_200_000, 92.013), sum("upcall", 50_000_000, 7.692)];
    let by_culprit = vec![sum("vCPU 0 of guest7", 590_000_000, 90.742), sum("handler12", 50_000_000, 7.692)];
    let figures = LateFigures { late: 43, explained: 43, excess_ns: 650_200_000, ..LateFigures::default() };
    let late = LateFigures { causes, by_cause, by_culprit, latest, ..figures };
    for s in 1..=6 {
        let summary = Summary { late: Some(late.clone()), ..summary(Capture::Normal, s) };
        model.feed(&summary, Duration::from_secs(s));
    }
    model
}

#[test]
fn late_packets_have_their_culprits_beside_them() {
    picture("late-80x24", &late(unicode()), 80, 24);
    picture("late-120x40", &late(unicode()), 120, 40);
    picture("late-200x60", &late(unicode()), 200, 60);
}

#[test]
fn the_sums_of_the_delay_come_before_single_causes_where_there_is_room() {
    let screen = |height| text(&drawn(&late(unicode()), 120, height));
    let at = |screen: &str, words: &str| screen.lines().position(|line| line.contains(words));
    let (sums, first) =
        ("waiting for its CPU 92 %, by vCPU 0 of guest7 91 %", "vhost of guest7 behind vCPU 0 of guest7");
    let high = screen(40);
    assert!(at(&high, sums).is_some() && at(&high, sums) < at(&high, first), "{high}");
    // A screen with a single line for late packets shows the worst cause and its culprit.
    let heights = (5..40).map(screen).filter(|screen| screen.contains(first) && !screen.contains(sums)).count();
    assert!(heights > 0);
}

#[test]
fn a_small_screen_shows_losses_late_packets_and_keys_where_there_is_room() {
    picture("late-40x15", &late(unicode()), 40, 15);
    let shown = text(&drawn(&model(unicode(), Capture::Warning, 7, &[]), 40, 15));
    assert!(shown.contains(" lost ") && shown.contains("q quit"), "{shown}");
}

#[test]
fn that_no_packets_come_is_shown_once() {
    let shown = text(&drawn(&model(unicode(), Capture::Silent, 16, &[]), 80, 24));
    assert_eq!(shown.matches("NO PACKETS").count(), 1, "{shown}");
    let paused = text(&drawn(&model(unicode(), Capture::Silent, 16, &[Key::Char('p')]), 80, 24));
    assert_eq!(paused.matches("NO PACKETS").count(), 1, "{paused}");
}

#[test]
fn normal_on_20_by_5() {
    picture("normal-20x5", &model(unicode(), Capture::Normal, 6, &[]), 20, 5);
}

#[test]
fn a_stream_that_never_comes() {
    picture("waiting-80x24", &model(unicode(), Capture::Waiting, 12, &[]), 80, 24);
}

#[test]
fn a_stream_that_stopped() {
    picture("silent-80x24", &model(unicode(), Capture::Silent, 16, &[]), 80, 24);
}

#[test]
fn losses_and_faults_on_80_by_24() {
    picture("trouble-80x24", &model(unicode(), Capture::Warning, 7, &[]), 80, 24);
}

#[test]
fn losses_and_faults_on_120_by_40() {
    picture("trouble-120x40", &model(unicode(), Capture::Warning, 7, &[]), 120, 40);
}

#[test]
fn losses_and_faults_on_20_by_5() {
    picture("trouble-20x5", &model(unicode(), Capture::Warning, 7, &[]), 20, 5);
}

#[test]
fn eight_streams_on_80_by_24() {
    let keys = [Key::Right, Key::Right, Key::Right, Key::Down];
    picture("streams-80x24", &model(unicode(), Capture::Streams, 9, &keys), 80, 24);
}

#[test]
fn eight_streams_in_a_table() {
    let keys = [Key::Char('t'), Key::Char('t'), Key::Char('t'), Key::Char('l')];
    picture("streams-table-80x24", &model(unicode(), Capture::Streams, 9, &keys), 80, 24);
}

#[test]
fn eight_streams_on_200_by_60() {
    picture("streams-200x60", &model(unicode(), Capture::Streams, 9, &[]), 200, 60);
}

#[test]
fn no_guest() {
    picture("no-guest-80x24", &model(unicode(), Capture::NoGuest, 6, &[]), 80, 24);
}

#[test]
fn help_fits_on_80_by_24() {
    picture("help-80x24", &model(unicode(), Capture::Normal, 6, &[Key::F1]), 80, 24);
}

#[test]
fn details_tell_in_full_what_is_cut_elsewhere() {
    picture("details-80x24", &model(unicode(), Capture::Warning, 7, &[Key::Char('d')]), 80, 24);
    let mut late = late(unicode());
    late.key(Key::Char('d'));
    picture("late-details-120x40", &late, 120, 40);
}

#[test]
fn ascii_where_the_locale_is_not_utf8() {
    let ascii = Theme::of(CharacterSet::Ascii, "xterm", "");
    for capture in [Capture::Warning, Capture::Streams, Capture::Waiting] {
        let text = text(&drawn(&model(ascii, capture, 7, &[]), 160, 50));
        assert!(text.is_ascii(), "{text}");
    }
    picture("ascii-80x24", &model(ascii, Capture::Warning, 7, &[]), 80, 24);
}

#[test]
fn the_linux_console_gets_only_what_its_fonts_have() {
    let linux = Theme::of(CharacterSet::Unicode, "linux", "");
    for capture in [Capture::Warning, Capture::Streams] {
        let text = text(&drawn(&model(linux, capture, 7, &[]), 160, 50));
        let strange: String = text.chars().filter(|c| !c.is_ascii() && !"µ±→←↑↓·»█▄─│┴".contains(*c)).collect();
        assert_eq!(strange, "");
    }
}

/// The text of all cells in a row that have this background.
fn with_background(buffer: &Buffer, row: u16, colour: Color) -> String {
    let cells = (0..buffer.area.width).map(|x| &buffer[(x, row)]);
    cells.filter(|c| c.bg == colour).map(|c| c.symbol()).collect()
}

#[test]
fn what_is_wrong_now_is_red_in_the_second_line() {
    let buffer = drawn(&model(unicode(), Capture::Warning, 7, &[]), 120, 40);
    let red = with_background(&buffer, 1, Color::Red);
    for sign in ["CLOCK guest0: no answer for 2.1 s", "LOST 16", "SIGHTINGS DROPPED 120", "NEGATIVE"] {
        assert!(red.contains(sign), "{sign} in {red}");
    }
    let silent = drawn(&model(unicode(), Capture::Silent, 16, &[]), 80, 24);
    assert!(with_background(&silent, 0, Color::Red).contains("NO PACKETS for 12 s"));
}

#[test]
fn when_nothing_is_wrong_nothing_is_marked() {
    let mut quiet = summary(Capture::NoGuest, 6);
    quiet.segments.iter_mut().for_each(|s| s.over_threshold = 0);
    let mut model = Model::new(unicode(), |_| "03:12:05".into());
    model.feed(&quiet, Duration::from_secs(6));
    let buffer = drawn(&model, 80, 24);
    assert!(text(&buffer).contains("no loss, no drops, clocks well"));
    assert!(buffer.content.iter().all(|c| c.bg == Color::Reset));
}

#[test]
fn no_color_means_no_colour_and_alarms_still_stand_out() {
    let plain = Theme::of(CharacterSet::Unicode, "xterm", "1");
    let buffer = drawn(&model(plain, Capture::Warning, 7, &[]), 120, 40);
    assert!(buffer.content.iter().all(|c| c.fg == Color::Reset && c.bg == Color::Reset));
    let reversed: String = (0..120)
        .map(|x| &buffer[(x, 1)])
        .filter(|c| c.modifier.contains(ratatui::style::Modifier::REVERSED))
        .map(|c| c.symbol())
        .collect();
    assert!(reversed.contains("LOST 16"), "{reversed}");
}

#[test]
fn segments_shorter_than_their_bound_are_marked() {
    let text = text(&drawn(&model(unicode(), Capture::Normal, 6, &[]), 120, 40));
    let row = text.lines().find(|l| l.contains("4→5")).unwrap();
    assert!(row.contains("~4.666µs"), "{row}");
    let row = text.lines().find(|l| l.contains("3→4 ")).unwrap();
    assert!(!row.contains('~'), "{row}");
}

#[test]
fn pausing_holds_the_figures_but_not_the_alarms() {
    let mut m = model(unicode(), Capture::Normal, 5, &[]);
    assert_eq!(m.key(Key::Char('p')), Some(Action::Pause(true)));
    m.feed(&summary(Capture::Warning, 6), Duration::from_secs(6));
    let held = text(&drawn(&m, 120, 40));
    assert!(held.contains("20\u{202f}000 journeys") && held.contains("PAUSED") && held.contains("LOST 16"), "{held}");
    assert_eq!(m.key(Key::Char(' ')), Some(Action::Pause(false)));
    assert!(text(&drawn(&m, 120, 40)).contains("24\u{202f}000 journeys"));
}

#[test]
fn a_reset_is_asked_for_and_seen() {
    let mut m = model(unicode(), Capture::Warning, 9, &[Key::Char('p')]);
    assert_eq!(m.key(Key::Char('r')), Some(Action::Reset));
    m.feed(&summary(Capture::Normal, 1), Duration::from_secs(10));
    let fresh = text(&drawn(&m, 120, 40));
    assert!(fresh.contains(" 4000 journeys") && !fresh.contains("LOST"), "{fresh}");
}

#[test]
fn keys_choose_segment_stream_sorting_and_view() {
    let shows = |keys: &[Key], want: &str| {
        let text = text(&drawn(&model(unicode(), Capture::Streams, 9, keys), 100, 40));
        assert!(text.contains(want), "{want} after {keys:?}:\n{text}");
    };
    shows(&[Key::Home], "▸Tnet");
    shows(&[Key::Up, Key::Up], "▸Thyp");
    shows(&[Key::End], "▸5→6");
    shows(&[Key::Right], "MU01 (1 of 8)");
    shows(&[Key::Left, Key::Left], "MU07 (7 of 8)");
    shows(&[Key::Left, Key::Right], "all 8 streams");
    shows(&[Key::Char('s')], "sort: p99");
    shows(&[Key::Char('t'), Key::Char('t'), Key::Char('t')], " MU08 ");
    assert_eq!(model(unicode(), Capture::Normal, 1, &[]).key(Key::Char('q')), Some(Action::Quit));
    assert_eq!(model(unicode(), Capture::Normal, 1, &[Key::F1]).key(Key::Interrupt), Some(Action::Quit));
}

#[test]
fn the_details_scroll_no_further_than_their_end() {
    let mut keys = vec![Key::Char('d')];
    keys.extend([Key::PageDown; 30]);
    let text = text(&drawn(&model(unicode(), Capture::Warning, 7, &keys), 60, 14));
    assert!(text.contains("NOTES") && text.contains("disordered"), "{text}");
}

/// Generates figures from arbitrary numbers and strings.
struct Pool {
    numbers: Vec<i64>,
    texts: Vec<String>,
    at: usize,
}

impl Pool {
    fn number(&mut self) -> i64 {
        self.at += 1;
        self.numbers[self.at % self.numbers.len()]
    }

    fn count(&mut self) -> u64 {
        // The cast turns the sign into the top bit, which also yields counts above `i64::MAX`.
        self.number() as u64
    }

    fn float(&mut self) -> f64 {
        f64::from_bits(self.count())
    }

    fn text(&mut self) -> String {
        self.at += 1;
        self.texts[self.at % self.texts.len()].clone()
    }

    fn many<T>(&mut self, most: u64, one: fn(&mut Self) -> T) -> Vec<T> {
        (0..self.count() % (most + 1)).map(|_| one(self)).collect()
    }

    fn point(&mut self) -> Point {
        let kind = PointKind::ALL[(self.count() % 5) as usize];
        Point { machine: self.text(), kind, device: self.text() }
    }

    fn segment(&mut self) -> SegmentFigures {
        let name = self.text();
        SegmentFigures {
            kind: SegmentKind::classic(&name).unwrap_or_default(),
            name,
            from: self.text(),
            to: self.text(),
            times: TimeFigures {
                count: self.count(),
                min_ns: self.number(),
                mean_ns: self.number(),
                stddev_ns: self.number(),
                p50_ns: self.number(),
                p90_ns: self.number(),
                p95_ns: self.number(),
                p99_ns: self.number(),
                p99_9_ns: self.number(),
                p99_99_ns: self.number(),
                p99_999_ns: self.number(),
                p99_9999_ns: self.number(),
                max_ns: self.number(),
                negative: self.count(),
            },
            rate_hz: self.float(),
            over_threshold: self.count(),
            in_band: None,
            close_to: Vec::new(),
            error_bound_ns: self.number(),
            min_at: None,
            max_at: None,
            histogram: self.many(9, |p| Bucket { from_ns: p.number(), to_ns: p.number(), count: p.count() }),
        }
    }

    fn loss(&mut self) -> Loss {
        Loss {
            place: self.text(),
            reason: Some(self.text()).filter(|t| t.len() % 2 == 0),
            meaning: Some(self.text()).filter(|t| t.len() % 3 == 0),
            dropped_at: None,
            kernel_count: None,
            count: self.count(),
        }
    }

    fn stream(&mut self) -> StreamFigures {
        StreamFigures {
            consecutive_over: Vec::new(),
            stream: self.text(),
            points: self.many(9, Self::point),
            journeys: self.count(),
            complete: self.count(),
            incomplete: self.count(),
            lost: self.many(4, Self::loss),
            duplicates: self.count(),
            out_of_order: self.count(),
            lans: Vec::new(),
            never_seen: self.count(),
            consecutive: None,
            pacing: Vec::new(),
            segments: self.many(6, Self::segment),
            paths: self.many(5, Self::path),
        }
    }

    fn path(&mut self) -> PathFigures {
        PathFigures {
            path: self.text(),
            journeys: self.count(),
            lost: self.count(),
            segments: self.many(3, Self::segment),
        }
    }

    fn machine(&mut self) -> MachineFigures {
        MachineFigures {
            machine: self.text(),
            hypervisor: Some(self.text()),
            method: self.text(),
            offset_ns: self.number(),
            drift_ppb: self.number(),
            error_bound_ns: self.number(),
            exchanges: self.count(),
            causality_violations: self.count(),
            fault: Some(self.text()).filter(|t| t.len() % 3 == 0),
            cpu_percent: Some(self.float()),
        }
    }

    fn cause(&mut self) -> CauseFigures {
        CauseFigures {
            cause: self.text(),
            machine: self.text(),
            cpus: self.many(3, |any| any.count() as u32),
            segment: self.text(),
            description: self.text(),
            first: self.count(),
            excess_ns: self.number(),
            median_ns: self.number(),
            share_percent: self.float(),
        }
    }

    fn delay_share(&mut self) -> DelayShare {
        DelayShare { name: self.text(), excess_ns: self.number(), share_percent: self.float() }
    }

    fn late(&mut self) -> LateFigures {
        LateFigures {
            late: self.count(),
            explained: self.count(),
            excess_ns: self.number(),
            unexplained_percent: self.float(),
            baseline_packets: self.count(),
            skipped: self.count(),
            by_cause: self.many(3, Self::delay_share),
            by_culprit: self.many(3, Self::delay_share),
            latpath_percent: Some(self.float()).filter(|percent| *percent > 5.0),
            causes: self.many(9, Self::cause),
            latest: Some(self.text()).filter(|t| t.len() % 3 > 0),
            shown_after: Some(ShownAfter {
                spikes: self.count(),
                latest_ns: self.number(),
                median_ns: self.number(),
                worst_ns: self.number(),
            })
            .filter(|after| after.spikes % 4 > 0),
        }
    }

    fn summary(&mut self) -> Summary {
        Summary {
            lans: Vec::new(),
            deficiencies: Vec::new(),
            footnotes: Vec::new(),
            durations_alone: false,
            off_route: vec![],
            reader_gaps: Vec::new(),
            elapsed_ns: self.number(),
            threshold_ns: self.number(),
            band: None,
            points: self.many(9, Self::point),
            journeys: self.count(),
            complete: self.count(),
            incomplete: self.count(),
            lost: self.many(6, Self::loss),
            duplicates: self.count(),
            out_of_order: self.count(),
            malformed: self.count(),
            segments: self.many(14, Self::segment),
            paths: self.many(5, Self::path),
            streams: self.many(9, Self::stream),
            machines: self.many(4, Self::machine),
            clocks: None,
            worst: Vec::new(),
            patterns: Vec::new(),
            without: None,
            intervals: Vec::new(),
            late: Some(self.late()).filter(|late| late.late % 4 > 0),
            tool: ToolCost {
                sightings: self.count(),
                sightings_dropped: self.count(),
                ns_per_sighting: self.count(),
                cpu_percent: self.float(),
                max_rss_bytes: self.count(),
            },
            notes: self.many(4, Self::text),
        }
    }
}

fn numbers() -> impl Strategy<Value = Vec<i64>> {
    let one = prop_oneof![
        Just(0),
        Just(1),
        Just(-1),
        Just(i64::MAX),
        Just(i64::MIN),
        Just(f64::NAN.to_bits() as i64),
        Just(f64::INFINITY.to_bits() as i64),
        0_i64..1000,
        any::<i64>(),
        (any::<i64>(), 0_u32..63).prop_map(|(n, cut)| n >> cut),
    ];
    proptest::collection::vec(one, 3..80)
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    let one = prop_oneof![
        any::<String>(),
        "[a-z]{0,12}",
        ".{0,400}",
        Just("total".to_string()),
        Just("a→b".to_string()),
        Just("svid:東京\u{200d}\u{202e}\x1b[2J".to_string()),
    ];
    proptest::collection::vec(one, 1..20)
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![
        "[ -~]".prop_map(|s| Key::Char(s.chars().next().unwrap())),
        proptest::sample::select(vec![
            Key::Up,
            Key::Down,
            Key::Left,
            Key::Right,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::F1,
            Key::Escape,
            Key::Enter,
        ]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_figures_keys_or_sizes_break_the_screen(
        numbers in numbers(),
        texts in texts(),
        keys in proptest::collection::vec(key(), 0..12),
        width in prop_oneof![0_u16..30, 30..300_u16],
        height in prop_oneof![0_u16..14, 14..90_u16],
        letters in prop_oneof![Just(CharacterSet::Unicode), Just(CharacterSet::Ascii)],
        step in any::<u32>(),
    ) {
        let mut pool = Pool { numbers, texts, at: 0 };
        let mut model = Model::new(Theme::of(letters, "linux", ""), |ns| ns.to_string());
        for round in 0..3 {
            model.feed(&pool.summary(), Duration::from_millis(u64::from(step)) * round);
            let screen = drawn(&model, width, height);
            prop_assert!(letters == CharacterSet::Unicode || text(&screen).is_ascii());
            prop_assert!(!text(&screen).contains('\x1b'));
            for key in &keys {
                model.key(*key);
                drawn(&model, width, height);
            }
        }
    }
}
