//! A limit that the complete run breaks is never judged as kept if the run is damaged or lacks an observation.

use latpath_analysis::compare::{recording, DifferenceLimit, RecordingOptions};
use latpath_analysis::{summarise, Limit, SummaryOptions};
use latpath_compare::compare;
use latpath_journey::Journey;
use latpath_model::{Link, Ns, Point, PointInfo, StreamSpec};
use latpath_run::{
    ClockSample, Deficiency, DeficiencyKind, MachineFigures, MachineRecord, Manifest, Run, State, Writer, JOURNEYS,
};
use std::path::{Path, PathBuf};

const POINTS: [&str; 3] = ["host/nic-rx@eth0", "guest0/nic-rx@eth1", "guest0/app-read@relay"];
const PARTS: u64 = 3;
/// Number of journeys per part.
const ROWS: u64 = 300;
/// Indexes of the packets that are late at the last point only; below, of a lost, an overtaken and a duplicated packet.
const LATE: [u64; 2] = [ROWS + 70, ROWS + 71];
const LOST: u64 = 2 * ROWS + 90;
const OVERTAKEN: u64 = 40;
const TWICE: u64 = 50;

/// Limits that the complete run breaks, except the last one, which cannot be judged because of the guest's clock error.
const LIMITS: [&str; 13] = [
    "total:max<=1ms",
    "total(all):max<=1ms",
    "total:p99.9<=1ms",
    "total:over<=1",
    "Tsub:max<=1ms",
    "lost<=0",
    "consecutive(1ms)<=1",
    "out_of_order<=0",
    "duplicates<=0",
    "never_seen<=0",
    "pacing:max<=1ms",
    "journeys>=1000",
    "Thyp:max<=3ms",
];
/// Limits whose violation is visible only in the reader's sightings.
const OF_READER: [&str; 6] =
    ["total:max<=1ms", "total(all):max<=1ms", "total:over<=1", "Tsub:max<=1ms", "lost<=0", "consecutive(1ms)<=1"];

type Change = fn(&mut Manifest);
type Seen = fn(u64) -> u64;

/// Bit mask of the points that see a packet.
fn all_points(number: u64) -> u64 {
    if number == LOST {
        3
    } else {
        7
    }
}

fn manifest() -> Manifest {
    let names = POINTS.map(|p| p.parse::<Point>().unwrap());
    let link = Link::Nic;
    let info = |p: &Point| PointInfo { link, netns: 1, ifindex: 2, ..PointInfo::from(p.clone()) };
    let machine = |machine: &str, error_bound_ns| MachineRecord {
        clock: MachineFigures { machine: machine.into(), error_bound_ns, ..MachineFigures::default() },
        ..MachineRecord::default()
    };
    let totals = latpath_journey::Totals { never_seen: 3, ..Default::default() };
    Manifest {
        streams: vec![StreamSpec::svid("MU01")],
        points: names.iter().map(info).collect(),
        machines: vec![machine("host", 0), machine("guest0", 900)],
        joined: vec![totals],
        threshold_ns: 500_000,
        ..Manifest::begin()
    }
}

/// Records the journeys that at least one point sees, in three parts.
fn record(path: &Path, seen: Seen, change: Change) {
    let home = path.parent().unwrap();
    let last = PARTS - 1;
    let numbers = |part: u64| (part * ROWS..(part + 1) * ROWS).filter(|number| seen(*number) != 0);
    for part in 0..PARTS {
        // Each part is first the only part of its own run; the parts are then merged into one run.
        let run = if part == last { path.into() } else { home.join(format!("part{part}")) };
        let mut manifest = manifest();
        change(&mut manifest);
        // The last run provides the manifest of the merged run, so it counts the journeys of all parts.
        manifest.journeys = (0..part).map(|part| numbers(part).count() as u64).sum();
        let mut writer = Writer::create(&run, manifest).unwrap();
        for number in numbers(part) {
            let begin = number as Ns * 250_000;
            let tsub = if LATE.contains(&number) { 13_000_000 } else { 20_000 + number as Ns * 331 % 9_000 };
            let t: Vec<Ns> = [0, 60_000, 60_000 + tsub].iter().map(|after| begin + after).collect();
            let journey = Journey {
                key: number as u32,
                number,
                seen: seen(number),
                t: &t,
                cpu: &[1; 3],
                tid: &[7; 3],
                out_of_order: number == OVERTAKEN,
                duplicates: u32::from(number == TWICE),
                ..Journey::default()
            };
            writer.push(&journey).unwrap();
        }
        for number in 0..20 {
            let clock = "guest0".into();
            writer.clock_sample(ClockSample { clock, t_ns: number, offset_ns: 1 << 40, error_bound_ns: 900 });
        }
        writer.finish().unwrap();
    }
    let place = |part: u64| path.join(JOURNEYS).join(format!("part-{part:08}.parquet"));
    for part in (0..PARTS).rev() {
        let run = if part == last { path.into() } else { home.join(format!("part{part}")) };
        let own = files(&run.join(JOURNEYS)).into_iter().next().unwrap();
        std::fs::rename(own, place(part)).unwrap();
        if part != last {
            std::fs::remove_dir_all(run).unwrap();
        }
    }
}

fn files(of: &Path) -> Vec<PathBuf> {
    let is_part = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "parquet");
    let mut all: Vec<_> = std::fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path()).filter(is_part).collect();
    all.sort();
    all
}

/// The verdict on each limit; empty if the run cannot be read, in which case no limit is kept either.
fn words(path: &Path, limits: &[&str]) -> Vec<(String, &'static str)> {
    let Ok(run) = Run::open(path) else { return Vec::new() };
    let options = SummaryOptions { row_limits: vec![1_000_000], workers: 1, ..SummaryOptions::default() };
    let Ok(summary) = summarise(&run, &options) else { return Vec::new() };
    let word = |text: &&str| (text.to_string(), text.parse::<Limit>().unwrap().check(&summary).word());
    limits.iter().map(word).collect()
}

fn kept(path: &Path, limits: &[&str]) -> Vec<String> {
    words(path, limits).into_iter().filter(|(_, word)| *word == "kept").map(|(limit, _)| limit).collect()
}

/// Pseudo-random numbers (xorshift), the same in each run of the test.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

#[test]
fn of_200_runs_that_are_damaged_in_one_place_none_keeps_a_limit_that_the_whole_run_breaks() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    record(&path, all_points, |manifest| manifest.machines[1].clock.error_bound_ns = 5_000_000);
    let whole = words(&path, &LIMITS);
    let (open, broken) = whole.split_last().unwrap();
    assert_eq!(open.1, "cannot be judged");
    assert!(broken.iter().all(|(_, word)| *word == "broken"), "{whole:?}");
    let mut targets = files(&path.join(JOURNEYS));
    assert_eq!(targets.len(), PARTS as usize);
    targets.extend([path.join("manifest.json"), path.join("clocks.jsonl")]);
    let (mut chance, mut silent) = (Chance(0x9e37_79b9_7f4a_7c15), 0);
    for n in 0..200 {
        let file = &targets[n % targets.len()];
        let content = std::fs::read(file).unwrap();
        let at = chance.below(content.len());
        let how = match n / targets.len() {
            0 => "deleted",
            1 => "emptied",
            2..=9 => "cut",
            10..=14 => "zeroed",
            _ => "flipped",
        };
        let mut bytes = content.clone();
        match how {
            "cut" => bytes.truncate(at),
            "zeroed" => bytes[at..].iter_mut().take(64).for_each(|byte| *byte = 0),
            "flipped" => bytes[at] ^= 1 << chance.below(8),
            _ => bytes.clear(),
        }
        match how {
            "deleted" => std::fs::remove_file(file).unwrap(),
            _ => std::fs::write(file, &bytes).unwrap(),
        }
        let passed = kept(&path, &LIMITS);
        assert!(passed.is_empty(), "{} {how} at {at}: {passed:?} kept", file.display());
        silent += usize::from(words(&path, &LIMITS) == whole);
        std::fs::write(file, content).unwrap();
    }
    assert_eq!(words(&path, &LIMITS), whole, "it is whole again");
    assert!(silent < 150, "{silent} damages hid nothing that breaks a limit");
}

#[test]
fn what_was_not_observed_keeps_no_limit_that_it_could_have_broken() {
    use DeficiencyKind::{MachineLost, PointNotSeen};
    // No point sees the packets that would break a limit of `OF_READER`.
    let unseen: Seen = |number| match number {
        OVERTAKEN | TWICE | LOST => 0,
        number if LATE.contains(&number) => 0,
        number => all_points(number),
    };
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("clean");
    record(&path, unseen, |manifest| manifest.joined[0].never_seen = 0);
    assert_eq!(kept(&path, &OF_READER), OF_READER, "nothing shows that anything is missing");
    let cases: [(&str, Seen, Change); 17] = [
        ("no reader", |_| 3, |_| {}),
        ("a late packet's first sighting", |number| if LATE.contains(&number) { 6 } else { 7 }, |_| {}),
        ("sightings dropped", unseen, |manifest| manifest.counters.dropped = 2),
        ("points overflow", unseen, |manifest| manifest.counters.points_overflow = 2),
        ("programs left out", unseen, |manifest| manifest.counters.skipped = 2),
        ("unreadable frames", unseen, |manifest| manifest.counters.unreadable = 2),
        ("late sightings", unseen, |manifest| manifest.joined[0].late = 2),
        ("evicted journeys", unseen, |manifest| manifest.joined[0].evicted = 2),
        ("crowded keys", unseen, |manifest| manifest.joined[0].crowded = 2),
        ("journeys missing", unseen, |manifest| manifest.journeys = 1),
        ("a machine lost", unseen, |manifest| {
            manifest.deficiencies.push(Deficiency::new(MachineLost, "guest0: the agent closed the stream"));
        }),
        ("points that match nothing", unseen, |manifest| {
            manifest.deficiencies.push(Deficiency::new(PointNotSeen, "--points host/*@nope"));
        }),
        ("a change on the way", unseen, |manifest| {
            manifest.deficiencies.push(Deficiency::new(DeficiencyKind::Changed, "guest0: without a VLAN tag"));
        }),
        ("senders that meet", unseen, |manifest| {
            manifest.deficiencies.push(Deficiency::new(DeficiencyKind::SendersMixed, "2 senders of svid:MU01 meet"));
        }),
        ("a sender that is not followed", unseen, |manifest| {
            manifest.deficiencies.push(Deficiency::new(DeficiencyKind::SenderNotFollowed, "two senders"));
        }),
        ("a stream of another run", unseen, |manifest| manifest.streams.push(StreamSpec::svid("MU02"))),
        ("a clock that jumped", unseen, |manifest| manifest.machines[1].clock.fault = Some("jumped".into())),
    ];
    for (n, (what, seen, change)) in cases.into_iter().enumerate() {
        let path = home.path().join(format!("run{n}"));
        record(&path, seen, change);
        // A clock jump affects neither arrivals nor times on a single machine.
        let limits =
            if what == "a clock that jumped" { vec!["total:max<=1ms", "total:over<=1"] } else { OF_READER.into() };
        let limits = if what == "a late packet's first sighting" {
            vec!["total:max<=1ms", "consecutive(1ms)<=1"]
        } else {
            limits
        };
        if what == "journeys missing" {
            // As after a writer was killed: the manifest counts more journeys than the files contain.
            let file = path.join("manifest.json");
            let text = std::fs::read_to_string(&file).unwrap();
            let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
            json["journeys"] = 99_999.into();
            json.as_object_mut().unwrap().remove("xxh64");
            std::fs::write(&file, json.to_string()).unwrap();
        }
        assert_eq!(kept(&path, &limits), Vec::<String>::new(), "{what}");
    }
}

#[test]
fn without_the_samples_of_its_clocks_a_run_keeps_no_limit_between_machines() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    record(&path, |_| 7, |manifest| manifest.joined[0].never_seen = 0);
    let (between, on_one) = (["Thyp:max<=3ms", "total:max<=20ms"], ["Tsub:max<=20ms", "lost<=0"]);
    assert_eq!(
        (kept(&path, &between), kept(&path, &on_one)),
        (between.map(String::from).to_vec(), on_one.map(String::from).to_vec())
    );
    let file = path.join("clocks.jsonl");
    let whole = std::fs::read(&file).unwrap();
    for damage in ["deleted", "emptied", "cut", "flipped"] {
        let mut bytes = whole.clone();
        match damage {
            "cut" => bytes.truncate(whole.len() / 2),
            "flipped" => bytes[whole.len() / 2] ^= 1,
            _ => bytes.clear(),
        }
        match damage {
            "deleted" => std::fs::remove_file(&file).unwrap(),
            _ => std::fs::write(&file, &bytes).unwrap(),
        }
        assert_eq!(kept(&path, &between), Vec::<String>::new(), "{damage}");
        assert_eq!(kept(&path, &on_one), on_one, "{damage}: these times are of one clock");
    }
}

#[test]
fn a_difference_is_within_no_limit_where_a_recording_is_damaged() {
    let home = tempfile::tempdir().unwrap();
    let paths = ["a", "b", "c", "d"].map(|name| home.path().join(name));
    paths.iter().for_each(|path| record(path, all_points, |_| {}));
    let verdict = || {
        let of = |path: &PathBuf| recording(&Run::open(path).unwrap(), &RecordingOptions::default()).unwrap().0;
        let all: Vec<_> = paths.iter().map(of).collect();
        let limit: DifferenceLimit = "total:mean<=+50%".parse().unwrap();
        limit.check(&compare(("A", &all[..2]), ("B", &all[2..]))).unwrap()
    };
    assert_eq!(verdict().word(), "kept");
    let part = files(&paths[3].join(JOURNEYS)).remove(1);
    std::fs::remove_file(part).unwrap();
    let verdict = verdict();
    let why = verdict.cannot_be_judged.as_deref().unwrap_or_default();
    assert!(verdict.word() == "cannot be judged" && why.contains("/d: parts 1 to 1 are missing"), "{verdict:?}");
}

#[test]
fn a_recording_that_was_killed_keeps_no_limit() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("run");
    record(&path, |_| 7, |manifest| manifest.joined[0].never_seen = 0);
    assert_eq!(kept(&path, &OF_READER[5..]), Vec::<String>::new(), "two are late");
    let file = path.join("manifest.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(kept(&path, &["lost<=0"]), ["lost<=0"]);
    json["state"] = serde_json::to_value(State::Recording).unwrap();
    json.as_object_mut().unwrap().remove("xxh64");
    std::fs::write(&file, json.to_string()).unwrap();
    assert_eq!(words(&path, &["lost<=0"]), [("lost<=0".to_string(), "cannot be judged")]);
}
