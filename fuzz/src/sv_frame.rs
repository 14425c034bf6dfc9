//! Parses arbitrary bytes as a frame. The parser does not panic, and everything that it returns is within the frame.

use latpath_protocols::sv::Frame;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let Ok(frame) = Frame::parse(bytes) else { return };
    assert!((1..=16).contains(&frame.asdus().count()));
    let mut patched = bytes.to_vec();
    for asdu in frame.asdus() {
        assert!((1..=129).contains(&asdu.svid.len()));
        assert_eq!(&bytes[asdu.smp_cnt_at..asdu.smp_cnt_at + 2], asdu.smp_cnt.to_be_bytes());
        let data = asdu.data.unwrap_or_default();
        assert_eq!(&bytes[asdu.data_at..asdu.data_at + data.len()], data);
        let next = asdu.smp_cnt.wrapping_add(1).to_be_bytes();
        patched[asdu.smp_cnt_at..asdu.smp_cnt_at + 2].copy_from_slice(&next);
    }
    // A replay changes smpCnt in place: no other field may change.
    let again = Frame::parse(&patched).expect("smpCnt may have any value");
    for (old, new) in frame.asdus().zip(again.asdus()) {
        assert_eq!(old.smp_cnt.wrapping_add(1), new.smp_cnt);
        assert_eq!((old.svid, old.data, old.conf_rev), (new.svid, new.data, new.conf_rev));
    }
}
