//! Tmu: the time from a sample to its packet's first point, measured with a publisher whose samples and delay are
//! known.

use crate::{latpath, live, publish, report, Recorder, LIMIT};
use latpath_clock::{ClockTie, RealtimeWatch};
use latpath_lab::NIC;
use latpath_model::{Ns, SegmentKind};
use latpath_run::{Run, Select};
use latpath_stats::{SegmentFigures, Summary};
use latpath_testkit::names::own;
use latpath_testkit::waits::until;
use latpath_testkit::{bench, equal, need_tool, trial, Bench, Failed, Lack, Started, Trial};
use pcap_file::pcap::PcapReader;
use std::path::{Path, PathBuf};
use std::process::Command;

const SECOND: Ns = 1_000_000_000;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial(
            "each_sample_has_its_time_within_the_stated_bound",
            &[needs, &[need_tool("tcpdump")]].concat(),
            each_sample,
        ),
        trial("live_times_samples_within_the_bound", &[needs, &[need_tool("tcpdump")]].concat(), live_samples),
        trial("a_publisher_that_is_not_synchronised_has_no_tmu", needs, not_synchronised),
    ]
}

/// The offset between `CLOCK_MONOTONIC` and the time of day as this test reads it, before and after the measurement.
struct Tie {
    realtime: RealtimeWatch,
}

impl Tie {
    fn new() -> Self {
        Self { realtime: RealtimeWatch::new(&ClockTie::read()) }
    }

    /// Reads the clocks again. The time of day must not have been set in between.
    fn again(&mut self) -> Result<(), Failed> {
        match self.realtime.observe(&ClockTie::read()) {
            None => Ok(()),
            Some(step) => Err(format!("the time of day was set while this was tested, by {} ns", step.by_ns).into()),
        }
    }

    /// The time of day at a `CLOCK_MONOTONIC` time.
    fn utc(&self, monotonic: Ns) -> Ns {
        monotonic - self.realtime.to_monotonic(0).0
    }

    /// The error bound of the conversion, ns.
    fn uncertainty(&self) -> Ns {
        self.realtime.to_monotonic(0).1
    }
}

/// The stated error of this host's clock, ns. It is also the publisher's clock, so the real error is 0.
const STATED: Ns = 1_000;
/// Minimum delay between a sample and its packet, ns.
const DELAY: Ns = 2_000_000;

/// The publisher's packets as seen by tcpdump on the receiving device: smpCnt and time of day.
struct Arrivals(Started, PathBuf);

impl Arrivals {
    fn begin(bench: &Bench) -> Result<Self, Failed> {
        let file = bench.lab.folder().join("samples.pcap");
        let mut command = Command::new("tcpdump");
        let words = "-s 512 -B 32768 -Q in --immediate-mode -Z root --time-stamp-precision nano";
        command.args(["-i", NIC]).args(words.split(' ')).arg("-w").arg(&file).args(["ether", "proto", "0x88ba"]);
        let tcpdump = bench.start(&bench.path.hypervisor, command)?;
        until("tcpdump listens", || tcpdump.said().contains("listening on"))?;
        Ok(Self(tcpdump, file))
    }

    /// Stops tcpdump; returns its file, and for each packet the smpCnt, the time of day, and the time of its sample:
    /// the latest earlier time with this smpCnt.
    fn end(self) -> Result<(PathBuf, Vec<(u32, Ns, Ns)>), Failed> {
        self.0.interrupt();
        self.0.finish(LIMIT)?;
        let mut reader = PcapReader::new(std::fs::File::open(&self.1)?).map_err(|e| e.to_string())?;
        let mut all = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.map_err(|e| e.to_string())?;
            let frame = latpath_protocols::sv::Frame::parse(&packet.data).map_err(|e| e.to_string())?;
            let key = frame.asdus().next().map(|asdu| u32::from(asdu.smp_cnt)).ok_or("a frame without a sample")?;
            let (at, in_second) = (packet.timestamp.as_nanos() as Ns, Ns::from(key) * SECOND / 4000);
            all.push((key, at, (at - in_second).div_euclid(SECOND) * SECOND + in_second));
        }
        Ok((self.1, all))
    }
}

/// The figures of Tmu, if there are any.
fn tmu(figures: &Summary) -> Option<&SegmentFigures> {
    figures.segments.iter().find(|segment| segment.kind == SegmentKind::Tmu)
}

/// Every packet's Tmu is within the stated bound. tcpdump's times of day show the second of each sample; the offset
/// between the clocks of the probe and of the samples is measured by this test itself.
fn each_sample() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("tmu");
    let mut tie = Tie::new();
    let arrivals = Arrivals::begin(&bench)?;
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} --clock-error 1us"))?;
    let sent = publish(&bench, &format!("--svid {svid} --delay 2ms --count 20000"))?;
    recorder.has(sent.frames_sent)?;
    let path = recorder.end()?;
    let (file, arrivals) = arrivals.end()?;
    tie.again()?;

    let run = Run::open(&path)?;
    let point = |name: &str| {
        let at = run.points().iter().position(|p| p.point.to_string() == name);
        at.map(|p| p as u16).ok_or_else(|| Failed::from(format!("no point {name}")))
    };
    let (sampled, first) = (point("MU/sampled@smpCnt")?, point("host/tx@lp-pub")?);
    let mut journeys = Vec::new();
    run.for_each(&Select::default(), |j| {
        journeys.push((j.key, j.at(sampled), j.at(first)));
        true
    });
    let figures = report(&path, "")?.summary;
    let segment = tmu(&figures).ok_or("no Tmu")?;
    let bound = segment.error_bound_ns;
    equal(&format!("bound {bound}"), (STATED..100_000).contains(&bound), true)?;
    let within = bound - STATED + tie.uncertainty();
    equal("packets of tcpdump", arrivals.len(), journeys.len())?;
    let (mut dated, mut worst) = (0, 0);
    for ((key, sampled, first), (seen, at, sample)) in journeys.into_iter().zip(arrivals) {
        equal("smpCnt", seen, key)?;
        let Some((sampled, first)) = sampled.zip(first) else { continue };
        dated += 1;
        let (tmu, truth) = (first - sampled, tie.utc(first) - sample);
        worst = worst.max((tmu - truth).abs());
        if (tmu - truth).abs() > within {
            return Err(format!("smpCnt {key}: Tmu {tmu} ns, {truth} ns in truth, and the bound is {within} ns").into());
        }
        // Independent bounds: the publisher's delay, and tcpdump's time for the packet.
        if !(DELAY - within..=at - sample + within).contains(&tmu) {
            return Err(
                format!("smpCnt {key}: Tmu {tmu} ns, tcpdump saw it {} ns after its sample", at - sample).into()
            );
        }
    }
    println!(
        "recorded: Tmu of {dated} packets is off by {worst} ns at most, the bound beside the stated {STATED} ns is {} ns, and the \
         test's own tie is good to {} ns",
        bound - STATED,
        tie.uncertainty()
    );
    // It takes a second to detect that smpCnt wraps, and another to detect that it wraps every second.
    equal("most packets are dated", (20_000 - 9_000..20_000).contains(&dated), true)?;
    equal("count", segment.times.count, dated)?;
    imported(&run, &file)
}

/// The minimum and maximum Tmu shown by live belong to packets whose times are consistent with the publisher and
/// tcpdump.
fn live_samples() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("tmu-live");
    let live = live::start(&bench, &format!("--stream svid:{svid} --clock-error 1us"))?;
    let arrivals = Arrivals::begin(&bench)?;
    publish(&bench, &format!("--svid {svid} --delay 2ms --count 20000"))?;
    let figures =
        live::shows(&live, "most packets have a Tmu", |f| tmu(f).is_some_and(|tmu| tmu.times.count >= 9_000))?;
    let figures = live::last(live).unwrap_or(figures);
    let (_, arrivals) = arrivals.end()?;
    let segment = tmu(&figures).ok_or("no Tmu")?;
    let (bound, least, greatest) = (segment.error_bound_ns, segment.times.min_ns, segment.times.max_ns);
    equal(&format!("bound {bound}"), (STATED..100_000).contains(&bound), true)?;
    let within = bound - STATED;
    let latest = arrivals.iter().map(|(_, at, sample)| at - sample).max().ok_or("tcpdump saw nothing")?;
    println!("live: Tmu {least} to {greatest} ns, {DELAY} to {latest} ns in truth, to within {within} ns");
    equal("the least", least >= DELAY - within, true)?;
    equal("the greatest", greatest <= latest + within, true)?;
    equal("most packets are dated", (20_000 - 11_000..20_000).contains(&segment.times.count), true)
}

/// The capture of the same packets, imported on its own, has the same sample times as the recording.
fn imported(recorded: &Run, file: &Path) -> Result<(), Failed> {
    let path = file.with_extension("run");
    let words = format!("import host/nic-rx@{NIC}={} --clock-error 1us --json -o {}", file.display(), path.display());
    let output = latpath(&words).output()?;
    equal("exit code", output.status.code(), Some(0))?;
    let run = Run::open(&path)?;
    let time_of_day = recorded.manifest().time_of_day();
    let mut samples: [Vec<(u32, Option<Ns>)>; 2] = Default::default();
    for (run, samples) in [recorded, &run].into_iter().zip(&mut samples) {
        run.for_each(&Select::default(), |j| {
            let sampled = (j.samples != 0).then(|| j.at(j.samples.trailing_zeros() as u16)).flatten();
            samples.push((j.key, sampled));
            true
        });
    }
    let [recorded, imported] = samples;
    equal("packets", imported.len(), recorded.len())?;
    let mut both = 0;
    for ((key, sampled), (imported_key, imported)) in recorded.into_iter().zip(imported) {
        equal("smpCnt", imported_key, key)?;
        let Some((sampled, imported)) = sampled.zip(imported) else { continue };
        both += 1;
        let off = time_of_day.utc(sampled) - imported;
        equal(&format!("smpCnt {key}: {off} ns is the tie of the clocks"), off.abs() <= 20_000, true)?;
    }
    equal("most packets are dated in both", both > 20_000 - 10_000, true)?;
    let figures = report(&path, "")?.summary;
    let segments: Vec<_> = figures.segments.iter().map(|s| (s.name.as_str(), s.error_bound_ns)).collect();
    equal("segments and their bounds", segments, vec![("Tmu", 1_000)])
}

/// If smpSynch reports an unsynchronised clock, there is no Tmu; where smpSynch changes between packets, the run has a
/// mark.
fn not_synchronised() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("local");
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} --clock-error 1us"))?;
    let first = publish(&bench, &format!("--svid {svid} --count 9000"))?;
    let then = publish(&bench, &format!("--svid {svid} --count 500 --smp-synch 0"))?;
    recorder.has(first.frames_sent + then.frames_sent)?;
    let path = recorder.end()?;
    equal("Tmu", tmu(&report(&path, "")?.summary).is_some(), false)?;
    let run = Run::open(&path)?;
    let marks: Vec<&str> = run.marks().iter().map(|mark| mark.text.as_str()).collect();
    equal("marks", marks, vec![format!("{svid}: smpSynch 1 -> 0").as_str()])
}
