//! Passes arbitrary sequences of frames through a subscriber and the discovery. Nothing panics, and each frame is
//! counted once.
//!
//! Input: frames, each preceded by 2 bytes of time (µs since the previous frame, signed) and 2 bytes of length.

use latpath_traffic::{Discovery, Subscription};
use latpath_wire::Received;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let (mut rest, mut t, mut frames) = (bytes, 0i64, 0u64);
    let mut subscription = Subscription::new(&[]).expect("no streams are named");
    let mut found = Discovery::default();
    while let Some((head, tail)) = rest.split_first_chunk::<4>() {
        let len = usize::from(u16::from_be_bytes([head[2], head[3]])).min(tail.len());
        let (frame, tail) = tail.split_at(len);
        t += i64::from(i16::from_be_bytes([head[0], head[1]])) * 1000;
        subscription.note(&Received { frame, tag: None, arrival: Some(t), nic: None, had: t + 1 });
        found.note(t, frame, None);
        frames += 1;
        rest = tail;
    }
    assert_eq!(found.frames, frames);
    assert_eq!(subscription.unread.total(), found.unread.total());
    assert_eq!(subscription.taken + subscription.others + found.unread.total() + found.other_protocols, frames);
    for stream in subscription.streams() {
        let totals = stream.totals();
        assert!(totals.duplicates + totals.out_of_order <= totals.received);
        assert_eq!(stream.delay.count(), totals.received);
    }
}
