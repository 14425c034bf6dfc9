//! Malformed frames are at worst ignored and counted. Frames that both parsers accept are read alike.

use crate::*;
use latpath_model::Ns;
use latpath_protocols::sv::Frame;
use latpath_testkit::{bench, trial, Lack};
use latpath_traffic::{Corrupted, Frames};
use latpath_wire::Deadlines;

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![
        trial("broken_frames_are_read_like_the_user_side_parser_reads_them", needs, like_the_user_side),
        trial("a_flood_of_broken_frames_hides_no_good_one", needs, flood),
    ]
}

/// Repeats the same frames.
struct RepeatedFrames(Vec<Vec<u8>>, usize);

impl Frames for RepeatedFrames {
    fn next(&mut self, out: &mut Vec<u8>) -> Option<Ns> {
        out.clear();
        out.extend(&self.0[self.1 % self.0.len()]);
        self.1 += 1;
        Some(0)
    }

    fn deadlines(&self) -> Option<Deadlines> {
        None
    }
}

fn broken(n: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut two = frame("MU01", 11);
    two.asdus.push(AsduSpec { smp_cnt: 12, svid: "MU02".into(), ..two.asdus[0].clone() });
    let long = frame(&"x".repeat(60), 5);
    let good = [frame("MU01", 7), tagged(frame("MU01", 8), 5), two, long].iter().map(bytes).collect();
    let mut frames = Corrupted::new(RepeatedFrames(good, 0), seed);
    let mut out = Vec::new();
    (0..n)
        .map(|_| {
            frames.next(&mut out);
            out.clone()
        })
        .collect()
}

/// smpCnt of the first ASDU with this svID according to the user-space parser, if any; `None` if it rejects the frame.
fn user_side(frame: &[u8], svid: &[u8]) -> Option<Option<u32>> {
    let frame = Frame::parse(frame).ok()?;
    let mut found = None;
    for asdu in frame.asdus() {
        if asdu.svid == svid && found.is_none() {
            found = Some(u32::from(asdu.smp_cnt));
        }
    }
    Some(found)
}

fn like_the_user_side() -> Result<(), Failed> {
    let bench = bench()?;
    // A valid frame of another stream precedes each malformed one and identifies it.
    let (n, mut frames) = (4000, Vec::new());
    for (i, frame_bytes) in broken(n, 42).into_iter().enumerate() {
        frames.push(bytes(&frame("mark", i as u16)));
        frames.push(frame_bytes);
    }
    let seen = record(&bench, streams(&["svid:mark", "svid:MU01"]), &frames)?;
    let mut taken = vec![None; n];
    let mut at = 0;
    for (stream, key) in seen.at(LINE[0]) {
        match stream {
            0 => at = key as usize,
            _ => taken[at] = Some(key),
        }
    }
    let mut accepted = 0;
    for (i, got) in taken.iter().enumerate() {
        // Only frames that the user-space parser accepts are compared: the kernel parser stops as soon as it knows
        // enough, and may accept a frame with errors after that.
        if let Some(want) = user_side(&frames[2 * i + 1], b"MU01") {
            accepted += 1;
            assert_eq!(*got, want, "frame {i}: {:02x?}", frames[2 * i + 1]);
        }
    }
    assert!(accepted > n / 20 && accepted < n, "{accepted} of {n} were accepted: the frames test nothing");
    assert!(seen.counters.malformed > 0);
    Ok(())
}

fn flood() -> Result<(), Failed> {
    let bench = bench()?;
    let mut frames = broken(60_000, 7);
    let mut want = Vec::new();
    for i in 0..600_usize {
        frames[i * 100] = bytes(&frame("good", i as u16));
        want.push((0, i as u32));
    }
    let seen = record(&bench, streams(&["svid:good"]), &frames)?;
    expect_everywhere(&seen, &want)?;
    assert!(seen.counters.malformed > 10_000, "{} malformed", seen.counters.malformed);
    assert_eq!(seen.counters.dropped, 0);
    Ok(())
}
