//! Live mode: the kernel's own joining and counting, against what was sent.

use crate::support::{bench, trial, Lack};
use crate::*;
use latpath_model::{PointId, StreamId};
use latpath_probe::{HeldUp, KernelHist};
use latpath_stats::kernel::KernelHistogram;

pub fn trials(needs: &[Lack]) -> Vec<libtest_mimic::Trial> {
    vec![
        trial("the_kernel_joins_across_wraps_and_counts_every_segment", needs, wraps),
        trial("duplicates_and_disorder_are_counted", needs, disorder),
        trial("live_and_record_agree_on_times", needs, agree),
        trial("points_past_the_tenth_are_joined_too", needs, many_points),
    ]
}

fn id(probe: &mut Probe, point: &str) -> Result<PointId, Failed> {
    let mut at = None;
    until(&format!("{point} is seen"), || {
        at = probe.points().unwrap_or_default().iter().position(|p| p.point.to_string() == point);
        at.is_some()
    })?;
    Ok(at.unwrap_or_default() as PointId)
}

/// Attaches in live mode, lets the points be found, and sets the segments of the line.
fn live(bench: &Bench) -> Result<(Probe, Vec<PointId>), Failed> {
    let mut probe = Probe::attach(options(vec![StreamSpec::svid(&own("MU01"))], Mode::Live))?;
    send(bench, &[bytes(&frame(&own("MU01"), 3999))])?;
    let line: Vec<_> = LINE.iter().map(|p| id(&mut probe, p)).collect::<Result<_, _>>()?;
    let mut segments: Vec<_> = line.windows(2).map(|w| (w[0], w[1])).collect();
    segments.push((line[0], line[3]));
    assert_eq!(probe.set_segments(&segments, 0), 4);
    Ok((probe, line))
}

/// Sends, waits until the whole line has been counted for so many packets, and takes the programs off.
fn count(bench: &Bench, probe: &mut Probe, frames: &[Vec<u8>], packets: u64) -> Result<(), Failed> {
    send(bench, frames)?;
    let counted = || probe.histogram(0, 3, HeldUp::No).map_or(0, |h| h.count);
    let waited = until("all packets are counted", || counted() >= packets);
    waited.map_err(|e| format!("{}: {} of {packets} are", e.message().unwrap_or_default(), counted()))?;
    probe.detach();
    Ok(())
}

fn wraps() -> Result<(), Failed> {
    let bench = bench()?;
    let (mut probe, line) = live(&bench)?;
    // Ten rounds of a counter that wraps at 400, faster than any window.
    let frames: Vec<_> = (0..4000).map(|i| bytes(&frame(&own("MU01"), i % 400))).collect();
    count(&bench, &mut probe, &frames, 4000)?;
    for segment in 0..4 {
        let h = probe.histogram(0, segment, HeldUp::No).ok_or("no histogram")?;
        assert_eq!(h.count, 4000, "segment {segment}");
        assert_eq!(h.buckets.iter().sum::<u64>(), 4000);
        assert!(h.min > 0 && h.min <= h.max && h.sum >= h.min * 4000 && h.sum <= h.max * 4000);
    }
    let stream = &probe.live_streams()[0];
    assert_eq!((stream.journeys, stream.duplicates, stream.out_of_order, stream.late), (4001, 0, 0, 0));
    let all = line.iter().fold(0, |set, p| set | 1_u64 << p);
    let complete = |sets: &std::collections::HashMap<u64, u64>| -> u64 {
        sets.iter().filter(|(seen, _)| *seen & all == all).map(|(_, n)| n).sum()
    };
    assert_eq!(complete(&stream.open) + complete(&stream.ended), 4001);
    Ok(())
}

fn disorder() -> Result<(), Failed> {
    let bench = bench()?;
    let (mut probe, _) = live(&bench)?;
    // 0 1 2 2 3 5 4 6: one twice. The order that the first point sees is the stream's own.
    let frames: Vec<_> = [0, 1, 2, 2, 3, 5, 4, 6].map(|i| bytes(&frame(&own("MU01"), i))).into();
    count(&bench, &mut probe, &frames, 7)?;
    let stream = &probe.live_streams()[0];
    assert_eq!(stream.journeys, 1 + 7);
    let points = probe.points()?.iter().filter(|p| p.point.kind != latpath_model::PointKind::Drop).count() as u64;
    assert_eq!(stream.duplicates, points, "the frame that was sent twice is a duplicate at each point");
    assert_eq!(stream.out_of_order, 0);
    Ok(())
}

fn agree() -> Result<(), Failed> {
    let bench = bench()?;
    let (mut probe, _) = live(&bench)?;
    let frames: Vec<_> = (0..3000).map(|i| bytes(&frame(&own("MU01"), i))).collect();
    let seen = record(&bench, vec![StreamSpec::svid(&own("MU01"))], &frames)?;
    count(&bench, &mut probe, &[], 3000)?;
    // Both took the time of their own, one after the other at each tracepoint: times differ by what they cost, no more; but for
    // the few packets between whose two times the machine stood still.
    let of = |point: &str| -> Vec<i64> {
        let at = seen.points.iter().position(|p| p.point.to_string() == point).expect("seen") as PointId;
        seen.sightings.iter().filter(|s| s.point == at).map(|s| s.t).collect()
    };
    let (first, last) = (of(LINE[0]), of(LINE[3]));
    let mut times: Vec<i64> = last.iter().zip(&first).map(|(l, f)| l - f).collect();
    times.sort_unstable();
    let h = probe.histogram(0 as StreamId, 3, HeldUp::No).ok_or("no histogram")?;
    assert_eq!((h.count, times.len()), (3000, 3000));
    let KernelHist { count, sum, min, max, buckets: counts, .. } = h;
    let figures = KernelHistogram { counts, count, sum, min, max, ..KernelHistogram::default() }.figures();
    for (percent, lived) in [(50, figures.p50_ns), (90, figures.p90_ns)] {
        let recorded = times[3000 * percent / 100 - 1];
        let apart = (lived - recorded).abs();
        assert!(apart < recorded / 4, "{percent} % take less than {lived} ns live, {recorded} ns in the record");
    }
    Ok(())
}

fn many_points() -> Result<(), Failed> {
    let bench = bench()?;
    // The bridge floods each frame to five more ports, so that it passes more points than a journey's own line holds.
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
    let stream = own("MU01");
    let mut probe = Probe::attach(options(vec![StreamSpec::svid(&stream)], Mode::Live))?;
    send(&bench, &[bytes(&frame(&stream, 9999))])?;
    let first = id(&mut probe, LINE[0])?;
    // Each of the five ports sends, and each of their other ends receives.
    until("all points are seen", || probe.points().unwrap_or_default().len() > 12)?;
    let points = probe.points()?;
    let last =
        points.iter().rposition(|p| p.point.kind == latpath_model::PointKind::NicRx).ok_or("no nic-rx")? as PointId;
    assert_eq!(probe.set_segments(&[(first, last)], 0), 1);
    let from = probe.count_anew();
    until("what comes now is counted", || latpath_linux::monotonic() > from)?;
    let frames: Vec<_> = (0..500).map(|i| bytes(&frame(&stream, i))).collect();
    send(&bench, &frames)?;
    let counted = || probe.histogram(0, 0, HeldUp::No).map_or(0, |h| h.count);
    until("all packets are counted", || counted() >= 500)?;
    probe.detach();
    let h = probe.histogram(0, 0, HeldUp::No).ok_or("no histogram")?;
    assert_eq!(h.count, 500);
    let journeys = probe.live_journeys(500, 0);
    assert_eq!(journeys.len(), 500);
    let all: u64 = journeys.iter().map(|j| (j.t[usize::from(last)] - j.t[usize::from(first)]) as u64).sum();
    assert_eq!(all, h.sum, "the table's times and the histogram are of the same packets");
    Ok(())
}
