//! State of a run after its writer is killed at any instant, or on a full disk. Each case needs its own process, for
//! which this test program starts itself again.

use latpath_capture::{Capture, CaptureKind, Packet, RankedCapture, RetentionLimits, RetentionPolicy};
use latpath_journey::Journey;
use latpath_model::{PacketSighting, Point, PointInfo, StreamSpec, HOST};
use latpath_run::{Condition, Manifest, Run, RunError, Select, Writer, SPIKES};
use latpath_settings::{Reading, SettingValue};
use latpath_testkit::{trial, Failed};
use nix::{
    mount::{mount, MsFlags},
    sched::{unshare, CloneFlags},
};
use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

const ROLE: &str = "LATPATH_TEST_ROLE";
/// Captures that a killed writer keeps.
const CAPTURES: usize = 4;
const DIRECTORY: &str = "LATPATH_TEST_DIRECTORY";

fn main() -> ExitCode {
    let directory = std::env::var_os(DIRECTORY).map(PathBuf::from).unwrap_or_default();
    match std::env::var(ROLE).as_deref() {
        Ok("write") => return write_for_ever(&directory),
        Ok("fill") => return fill_a_disk(&directory, &mut |writer, number| push(writer, number)),
        Ok("fill-by-spikes") => {
            return fill_a_disk(&directory, &mut |writer, number| {
                let capture = number as u32 + 1;
                writer.push_capture(spike(capture, 20_000));
                push(writer, number)?;
                let file = writer.path().join(SPIKES).join(format!("{capture:06}.spike"));
                // Another thread writes the capture; without waiting, journeys could fill the disk first.
                while !file.exists() {
                    writer.tick()?;
                    latpath_testkit::waits::pace(Duration::from_millis(1));
                }
                Ok(())
            });
        }
        Ok("try-disk") => return small_disk(&directory).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        _ => {}
    }
    let disk = &[(!can_mount()).then(|| "a small file system needs root to mount".into())];
    let trials = vec![
        trial("a_writer_killed_at_any_instant_loses_only_its_open_part", &[], killed),
        trial("a_full_disk_stops_the_run_and_leaves_it_readable", disk, full_disk),
        trial("a_disk_full_of_spikes_does_too", disk, full_of_spikes),
    ];
    latpath_testkit::main(trials)
}

fn role(name: &str, directory: &Path) -> Result<Command, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, name).env(DIRECTORY, directory);
    Ok(command)
}

fn manifest() -> Manifest {
    let point = |name: &str| PointInfo::from(name.parse::<Point>().expect("a point"));
    let points = vec![point("host/nic-rx@eth0"), point("host/tx@vnet0")];
    Manifest { points, streams: vec![StreamSpec::svid("A")], ..Manifest::begin() }
}

fn push(writer: &mut Writer, number: u64) -> Result<(), RunError> {
    // Noise, so that the times cannot be compressed.
    let noise = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let t = [number as i64 * 250_000 + (noise >> 50) as i64, number as i64 * 250_000 + 20_000 + (noise >> 40) as i64];
    writer.push(&Journey {
        stream: 0,
        key: number as u32,
        number,
        seen: 3,
        t: &t,
        cpu: &[0, 1],
        tid: &[0, (noise >> 33) as u32],
        ..Journey::default()
    })
}

/// A capture of this many packets.
fn spike(number: u32, packets: u32) -> RankedCapture {
    let packet = |key: u32| {
        let t = i64::from(key) * 250_000 + i64::from(key.wrapping_mul(0x9e37_79b1) >> 12);
        let sightings = vec![PacketSighting { point: 0, t, cpu: Some(3), tid: Some(key) }];
        Packet { stream: 0, key, number: key.into(), late: true, sightings }
    };
    let packets = (0..packets).map(packet).collect();
    let capture = Capture { number, kind: CaptureKind::Spike, from: 0, to: 9, machines: vec![], packets, more_late: 0 };
    RankedCapture { capture, worst: number.into(), late: vec![1] }
}

/// A reading with one value.
fn reading(governor: &str) -> Reading {
    let value = SettingValue { setting: "cpu-governor".into(), target: "0-3".into(), at: None, value: governor.into() };
    Reading { values: vec![value], ..Reading::default() }
}

/// Writes parts as fast as possible, and prints the number of durable journeys after each.
fn write_for_ever(directory: &Path) -> ExitCode {
    let mut writer = Writer::create(directory, manifest()).expect("a run");
    writer.set_part_time(Duration::from_micros(500));
    writer
        .begin_spikes(RetentionPolicy::new(RetentionLimits { captures: CAPTURES, ..RetentionLimits::default() }))
        .expect("room on the disk");
    writer.begin_settings(HOST, reading("powersave")).expect("room on the disk");
    let (mut number, mut said) = (0, 0);
    loop {
        for _ in 0..100 {
            push(&mut writer, number).expect("room on the disk");
            number += 1;
        }
        // The settings file is replaced repeatedly, so that some kills hit it during a replacement.
        if number % 1000 == 0 {
            writer.end_settings(HOST, reading("performance")).expect("room on the disk");
        }
        writer.push_capture(spike(number as u32, 100));
        writer.tick().expect("room on the disk");
        if writer.stored() != said {
            said = writer.stored();
            println!("{said}");
        }
        latpath_testkit::waits::pace(Duration::from_micros(100));
    }
}

fn killed() -> Result<(), Failed> {
    let mut any_spikes = false;
    for round in 0..25 {
        let home = tempfile::tempdir()?;
        let directory = home.path().join("run");
        let mut child = role("write", &directory)?.stdout(Stdio::piped()).spawn()?;
        let mut safe = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
        // Rounds end at different instants, some before and some during a merge.
        for _ in 0..=round * 11 {
            safe.next().ok_or("the writer ended by itself")??;
        }
        child.kill()?;
        child.wait()?;
        let mut stored = 0;
        for line in safe {
            // The last line may be truncated.
            stored = line?.parse().unwrap_or(stored).max(stored);
        }
        let run = Run::open(&directory)?;
        if *run.condition() != Condition::Killed {
            return Err(format!("round {round}: {:?}, not killed", run.condition()).into());
        }
        let [host] = run.settings().machines.as_slice() else { return Err("no settings".into()) };
        let begin = host.begin.as_ref().ok_or("no settings of its beginning")?;
        if *begin != reading("powersave") || host.end.as_ref().is_some_and(|end| *end != reading("performance")) {
            return Err(format!("round {round}: other settings: {host:?}").into());
        }
        let mut next = 0;
        let damaged = run.for_each(&Select::default(), |j| {
            let follows = j.number == next;
            next += u64::from(follows);
            follows
        });
        if !damaged.is_empty() || next != run.journeys() || next < stored {
            return Err(format!(
                "round {round}: {next} journeys in order of {} in the run, {stored} were said to be safe; damaged: {damaged:?}",
                run.journeys()
            )
            .into());
        }
        let spikes = run.spikes();
        let whole = spikes.files.iter().filter(|f| run.capture(f.head.number).is_ok()).count();
        // There may be one capture more while a less severe one is about to be removed.
        if !spikes.notes.is_empty() || whole != spikes.files.len() || whole > CAPTURES + 1 {
            return Err(format!("round {round}: {whole} spikes of {}: {:?}", spikes.files.len(), spikes.notes).into());
        }
        any_spikes |= whole > 0;
    }
    any_spikes.then_some(()).ok_or_else(|| "no spike was ever kept".into())
}

/// Mounts a file system of 3 MiB that only this process sees.
fn small_disk(directory: &Path) -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    mount(Some("latpath-test"), directory, Some("tmpfs"), MsFlags::empty(), Some("size=3m"))
}

fn can_mount() -> bool {
    let tried = tempfile::tempdir().ok().and_then(|home| role("try-disk", home.path()).ok()?.status().ok());
    tried.is_some_and(|status| status.success())
}

/// Prints the error caused by the full disk, then the state of the run.
fn fill_a_disk(directory: &Path, push: &mut dyn FnMut(&mut Writer, u64) -> Result<(), RunError>) -> ExitCode {
    small_disk(directory).expect("a small disk");
    let directory = directory.join("run");
    let mut writer = Writer::create(&directory, manifest()).expect("a run");
    writer.set_part_time(Duration::from_millis(5));
    writer.begin_spikes(RetentionPolicy::default()).expect("room on the disk");
    // Far more journeys than fit on the disk.
    let error = (0..20_000_000).find_map(|number| push(&mut writer, number).err());
    let Some(error) = error else { return ExitCode::FAILURE };
    println!("{error}");
    let run = Run::open(&directory).expect("a readable run");
    let mut next = 0;
    let damaged = run.for_each(&Select::default(), |j| {
        next += u64::from(j.number == next);
        true
    });
    println!("{:?}", run.condition());
    println!("{} {next} {}", run.journeys(), damaged.len());
    let _ = std::io::stdout().flush();
    ExitCode::SUCCESS
}

fn full_disk() -> Result<(), Failed> {
    filled("fill", "run/journeys/part-", 10_000)
}

fn full_of_spikes() -> Result<(), Failed> {
    filled("fill-by-spikes", "run/spikes/0", 1)
}

fn filled(how: &str, path: &str, least: u64) -> Result<(), Failed> {
    let home = tempfile::tempdir()?;
    let output = role(how, home.path())?.output()?;
    let text = String::from_utf8(output.stdout)?;
    let [error, condition, counts] = text.lines().collect::<Vec<_>>()[..] else {
        return Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)).into());
    };
    let named = error.contains(path) && error.contains("No space left") && error.contains("use -o");
    if !named || !condition.starts_with("Interrupted") {
        return Err(text.into());
    }
    match counts.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?[..] {
        [journeys, in_order, 0] if journeys >= least && journeys == in_order => Ok(()),
        _ => Err(text.into()),
    }
}
