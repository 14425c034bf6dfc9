//! Live figures, compared with the packets sent.

use crate::*;
use latpath_follow::{Follow, Live, Options};
use latpath_stats::Summary;
use latpath_testkit::{bench, trial, Lack};

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![
        trial("live_counts_duplicates", needs, duplicates),
        trial("live_joins_points_past_the_tenth", needs, many_points),
        trial("runs_that_the_kernel_left_out_are_said", needs, left_out),
        trial("a_sample_has_the_same_packets_at_all_points", needs, sample),
    ]
}

/// Tests that run alone, because their sender must get CPU time.
pub fn alone(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![trial("live_joins_across_wraps_and_counts_every_segment", needs, wraps)]
}

pub fn options(stream: &str) -> Options {
    // The maximum, since on a busy machine a packet may take long to reach its next point.
    Options { window: 4_000_000_000, ..Options::new(vec![StreamSpec::svid(stream)]) }
}

/// Follows one stream; returns once packets are counted.
fn live(stream: &str) -> Result<Live, Failed> {
    let live = Live::start(options(stream))?;
    until("packets count", || latpath_linux::monotonic() > live.follow.begin())?;
    Ok(live)
}

/// Sends frames, waits until `packets` packets are counted, and returns the final figures.
fn count(bench: &Bench, live: Live, frames: &[Vec<u8>], packets: u64) -> Result<Summary, Failed> {
    send(bench, frames)?;
    counted(live, packets)
}

/// Waits until `packets` packets are counted, and returns the final figures.
fn counted(mut live: Live, packets: u64) -> Result<Summary, Failed> {
    let mut counted = 0;
    let waited = until("all packets are counted", || {
        live.step();
        counted = live.seen()[0];
        counted >= packets
    });
    waited.map_err(|e| format!("{}: {counted} of {packets} are", e.message().unwrap_or_default()))?;
    live.stop();
    Ok(live.summary())
}

/// Ten rounds of a counter that wraps at 400, each shorter than the window.
fn rounds() -> Result<Summary, Failed> {
    let bench = bench()?;
    let stream = own("wraps");
    let live = live(&stream)?;
    let frames: Vec<_> = (0..4000).map(|i| bytes(&frame(&stream, i % 400))).collect();
    // A round takes 100 ms, which is usually longer than a sender on a busy machine waits for its CPU.
    for some in frames.chunks(40) {
        send(&bench, some)?;
        latpath_testkit::waits::pace(std::time::Duration::from_millis(10));
    }
    counted(live, 4000)
}

fn wraps() -> Result<(), Failed> {
    // A sender that gets no CPU for longer than a round looks like one whose rounds were lost, so the test is then
    // repeated.
    let mut summary = rounds()?;
    for _ in 0..2 {
        if summary.streams[0].never_seen > 0 {
            latpath_testkit::retried("live_joins_across_wraps_and_counts_every_segment", "the sender stood still");
            summary = rounds()?;
        }
    }
    let figures = &summary.streams[0];
    let losses = (figures.lost.len(), figures.duplicates, figures.out_of_order, figures.never_seen);
    assert_eq!((figures.journeys, figures.complete, losses), (4000, 4000, (0, 0, 0, 0)));
    assert!(summary.segments.len() > LINE.len() - 1, "neighbours and the total");
    for segment in &summary.segments {
        assert_eq!(segment.times.count, 4000, "segment {}", segment.name);
        assert_eq!(segment.histogram.iter().map(|b| b.count).sum::<u64>(), 4000);
        assert!(
            segment.times.min_ns > 0
                && segment.times.min_ns <= segment.times.p50_ns
                && segment.times.p99_99_ns <= segment.times.max_ns
        );
    }
    assert_eq!(summary.worst.len(), 10, "the worst packets are kept");
    assert!(summary.worst.iter().all(|worst| worst.steps.len() >= LINE.len()), "with all their sightings");
    let longest = summary.segments.iter().find(|s| s.name == "total").map(|s| s.times.max_ns);
    assert_eq!(Some(summary.worst[0].total_ns), longest);
    Ok(())
}

fn duplicates() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("twice");
    let live = live(&stream)?;
    // 0 1 2 2 3 5 4 6: a duplicate, and a packet overtaken before the first point, as the application counts them.
    let frames: Vec<_> = [0, 1, 2, 2, 3, 5, 4, 6].map(|i| bytes(&frame(&stream, i))).into();
    let summary = count(&bench, live, &frames, 7)?;
    let figures = &summary.streams[0];
    assert_eq!((figures.journeys, figures.complete, figures.duplicates, figures.out_of_order), (7, 7, 1, 1));
    Ok(())
}

fn many_points() -> Result<(), Failed> {
    let bench = bench()?;
    // The bridge floods each frame to five more ports.
    bench.path.hypervisor.inside(|| {
        for port in 0..5 {
            for words in [
                format!("link add more{port} type veth peer name far{port}"),
                format!("link set more{port} master br0 up"),
                format!("link set far{port} up"),
            ] {
                let status = std::process::Command::new("ip").args(words.split(' ')).status();
                assert!(status.is_ok_and(|s| s.success()), "ip {words}");
            }
        }
    })?;
    let stream = own("flooded");
    let live = live(&stream)?;
    let frames: Vec<_> = (0..500).map(|i| bytes(&frame(&stream, i))).collect();
    let summary = count(&bench, live, &frames, 500)?;
    // Each of the five ports sends, and each of their peers receives.
    assert!(summary.points.len() + summary.off_route.len() > 12, "{:?} {:?}", summary.points, summary.off_route);
    assert_eq!(summary.journeys, 500);
    assert!(summary.worst.iter().all(|worst| worst.steps.len() > 12));
    Ok(())
}

fn sample() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("sampled");
    let mut probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    probe.sample(4);
    let frames: Vec<_> = (0..400).map(|i| bytes(&frame(&stream, i))).collect();
    send(&bench, &frames)?;
    let seen = seen(&bench, probe, |seen| seen.at(LINE[3]).len() >= 100)?;
    let expected: Vec<_> = (0..400).filter(|key| key % 4 == 0).map(|key| (0, key)).collect();
    expect_everywhere(&seen, &expected)?;
    assert_eq!(seen.counters.left_out, 3 * seen.counters.sightings, "three packets of four, at each point");
    Ok(())
}

fn left_out() -> Result<(), Failed> {
    let stream = own("left-out");
    let follow = Follow::over(options(&stream), |options| {
        let mut probe = Probe::attach(ProbeOptions::new("host", options.streams.clone()))?;
        probe.leave_out(7);
        Ok(probe)
    });
    let mut live = Live::of(options(&stream), follow?);
    live.step();
    live.stop();
    let mut notes = live.summary().notes;
    notes.retain(|note| note.contains("times the kernel left a program out"));
    // The kernel may have skipped some runs by itself.
    let count = notes.iter().filter_map(|note| note.split(' ').next()?.parse::<u64>().ok()).sum::<u64>();
    match count >= 7 {
        true => Ok(()),
        false => Err(format!("{notes:?}").into()),
    }
}
