//! Frames read back as built; malformed frames are rejected and never cause a panic.

use latpath_protocols::{
    protocol::FrameLink,
    sv::{Asdu, AsduSpec, Frame, FrameSpec, FIRST_GROUP, MAX_SVID},
    FrameError, Matcher, Tag,
};
use proptest::prelude::*;

/// Any ASDU that a merging unit could send.
fn any_asdu() -> impl Strategy<Value = AsduSpec> {
    let bytes = |n| prop::collection::vec(any::<u8>(), n);
    (
        (bytes(1..=MAX_SVID), prop::option::of(bytes(0..=129)), any::<u16>(), any::<u32>()),
        (any::<Option<[u8; 8]>>(), any::<u8>(), any::<Option<u16>>(), bytes(0..=300)),
        (any::<Option<u16>>(), any::<Option<[u8; 8]>>()),
    )
        .prop_map(|((svid, dat_set, smp_cnt, conf_rev), (refr_tm, smp_synch, smp_rate, data), (smp_mod, gm))| {
            AsduSpec { svid, dat_set, smp_cnt, conf_rev, refr_tm, smp_synch, smp_rate, data, smp_mod, gm_identity: gm }
        })
}

fn any_frame() -> impl Strategy<Value = FrameSpec> {
    let tag = (prop::sample::select(vec![0x8100, 0x88a8]), any::<u16>()).prop_map(|(tpid, tci)| Tag { tpid, tci });
    let header = (any::<[u8; 6]>(), any::<[u8; 6]>(), prop::collection::vec(tag, 0..=2), any::<u16>(), any::<bool>());
    (header, prop::collection::vec(any_asdu(), 1..=16)).prop_map(|((dst, src, tags, appid, simulated), asdus)| {
        FrameSpec { link: FrameLink { dst: Some(dst), src, tags }, appid, simulated, asdus }
    })
}

fn read_back(frame: &Frame<'_>) -> FrameSpec {
    let asdus = frame.asdus().map(|a| AsduSpec {
        svid: a.svid.to_vec(),
        dat_set: a.dat_set.map(<[u8]>::to_vec),
        smp_cnt: a.smp_cnt,
        conf_rev: a.conf_rev.unwrap(),
        refr_tm: a.refr_tm,
        smp_synch: a.smp_synch.unwrap(),
        smp_rate: a.smp_rate,
        data: a.data.unwrap().to_vec(),
        smp_mod: a.smp_mod,
        gm_identity: a.gm_identity,
    });
    FrameSpec {
        link: FrameLink { dst: Some(frame.header.dst), src: frame.header.src, tags: frame.tags().to_vec() },
        appid: frame.link.appid,
        simulated: frame.link.simulated,
        asdus: asdus.collect(),
    }
}

fn small() -> FrameSpec {
    let asdu = AsduSpec { svid: b"MU01".to_vec(), data: vec![7; 64], ..AsduSpec::default() };
    FrameSpec {
        link: FrameLink { dst: Some(FIRST_GROUP), ..FrameLink::default() },
        asdus: vec![asdu.clone(), asdu],
        ..FrameSpec::default()
    }
}

proptest! {
    #[test]
    fn any_frame_reads_back_as_it_was_built(spec in any_frame()) {
        let bytes = spec.build().unwrap();
        let frame = Frame::parse(&bytes).unwrap();
        prop_assert_eq!(read_back(&frame), spec.clone());
        prop_assert!(bytes.len() >= 60);
        for asdu in frame.asdus() {
            prop_assert_eq!(&bytes[asdu.smp_cnt_at..asdu.smp_cnt_at + 2], asdu.smp_cnt.to_be_bytes());
            let data = asdu.data.unwrap();
            prop_assert_eq!(&bytes[asdu.data_at..asdu.data_at + data.len()], data);
        }
    }

    #[test]
    fn a_short_frame_is_refused(spec in any_frame(), cut in any::<prop::sample::Index>()) {
        let bytes = spec.build().unwrap();
        // All bytes covered by `length`, without padding.
        let whole = 14 + 4 * spec.link.tags.len() + usize::from(Frame::parse(&bytes).unwrap().link.length);
        let error = Frame::parse(&bytes[..cut.index(whole)]).unwrap_err();
        prop_assert!(matches!(error, FrameError::Truncated { .. }), "{error}");
    }

    #[test]
    fn bytes_after_the_announced_length_do_not_matter(spec in any_frame(), more in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut bytes = spec.build().unwrap();
        bytes.extend(more);
        prop_assert_eq!(read_back(&Frame::parse(&bytes).unwrap()), spec);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), as_sv in any::<bool>()) {
        let mut bytes = bytes;
        if as_sv && bytes.len() > 14 {
            bytes[12..14].copy_from_slice(&[0x88, 0xba]);
        }
        if let Ok(frame) = Frame::parse(&bytes) {
            prop_assert!((1..=16).contains(&frame.asdus().count()));
        }
    }

    #[test]
    fn no_change_to_a_frame_makes_it_panic(
        spec in any_frame(),
        changes in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 1..8),
    ) {
        let mut bytes = spec.build().unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(frame) = Frame::parse(&bytes) {
            // All slices that the parser returns are within the frame.
            prop_assert!((1..=16).contains(&frame.asdus().count()));
            for asdu in frame.asdus() {
                prop_assert!(bytes.get(asdu.smp_cnt_at..asdu.smp_cnt_at + 2).is_some());
                prop_assert!((1..=MAX_SVID).contains(&asdu.svid.len()));
            }
        }
    }
}

#[test]
fn each_length_form_is_used_where_required_and_reads_back() {
    // Lengths around the limits of the short form and of the long forms 81 and 82.
    for len in [0, 1, 126, 127, 128, 129, 254, 255, 256, 257, 1400] {
        let mut spec = small();
        spec.asdus[1].data = vec![0xab; len];
        let bytes = spec.build().unwrap();
        assert_eq!(read_back(&Frame::parse(&bytes).unwrap()), spec, "{len} bytes of samples");
    }
}

#[test]
fn a_long_form_in_place_of_a_short_one_is_legal_ber() {
    let bytes = small().build().unwrap();
    let at = bytes.windows(6).position(|w| w == b"\x80\x04MU01").unwrap();
    // Encodes svID's length as 82 00 04 instead of 04; the three enclosing lengths grow by two.
    let mut long = bytes[..at].to_vec();
    long.extend(b"\x80\x82\x00\x04MU01");
    long.extend(&bytes[at + 6..]);
    assert_eq!(&long[14 + 8..][..2], &[0x60, 0x81], "savPdu has a long length in this frame");
    for (grows, by) in [(17, 2), (24, 2), (30, 2), (32, 2)] {
        long[grows] += by;
    }
    let frame = Frame::parse(&long).unwrap();
    assert_eq!(read_back(&frame), small());
}

#[test]
fn a_small_frame_is_padded_to_the_minimum_of_ethernet() {
    let asdu = AsduSpec { svid: b"A".to_vec(), data: vec![1, 2], ..AsduSpec::default() };
    let bytes = FrameSpec { asdus: vec![asdu], ..FrameSpec::default() }.build().unwrap();
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!((bytes.len(), usize::from(frame.link.length) + 14 < 60), (60, true));
}

#[test]
fn violations_of_9_2_are_refused_with_their_offset() {
    let good = small().build().unwrap();
    let svid = good.windows(6).position(|w| w == b"\x80\x04MU01").unwrap();
    let broken = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Frame::parse(&bytes).unwrap_err()
    };
    assert_eq!(broken(13, 0xb8), FrameError::OtherProtocol { ethertype: 0x88b8 });
    assert!(!broken(13, 0xb8).is_malformed());
    assert_eq!(broken(22, 0x61), FrameError::BadTag { expected: "savPdu", at: 22, found: 0x61 });
    assert_eq!(broken(23, 0x80), FrameError::LengthForm { what: "savPdu", at: 23, form: 0x80 });
    assert_eq!(broken(23, 0x83), FrameError::LengthForm { what: "savPdu", at: 23, form: 0x83 });
    assert_eq!(broken(svid, 0x81), FrameError::Missing { what: "svID" });
    assert!(matches!(broken(svid + 1, 0), FrameError::BadLength { what: "svID", .. }));
    assert!(matches!(broken(svid + 1, 0x7f), FrameError::Truncated { what: "a field of an ASDU", .. }));
    assert_eq!(
        Frame::parse(&[]).unwrap_err(),
        FrameError::Truncated { what: "destination MAC", at: 0, needed: 6, left: 0 }
    );
    let tags = FrameSpec { link: FrameLink { tags: vec![Tag::new(1, 1); 3], ..FrameLink::default() }, ..small() }
        .build()
        .unwrap();
    assert_eq!(Frame::parse(&tags).unwrap_err(), FrameError::TooManyTags);
}

#[test]
fn frames_that_cannot_be_built_are_refused_with_the_reason() {
    let with = |asdu: AsduSpec, n: usize| FrameSpec { asdus: vec![asdu; n], ..FrameSpec::default() }.build();
    let good = small().asdus[0].clone();
    let error = with(AsduSpec { svid: vec![b'x'; 130], ..good.clone() }, 1).unwrap_err().to_string();
    assert!(error.contains("130 bytes"), "{error}");
    assert!(with(AsduSpec { svid: vec![], ..good.clone() }, 1).is_err());
    assert!(with(good.clone(), 0).is_err());
    assert!(with(AsduSpec { data: vec![0; 60_000], ..good.clone() }, 2).is_err());
    assert!(with(AsduSpec { data: vec![0; 70_000], ..good }, 1).is_err());
}

#[test]
fn all_asdus_of_a_long_frame_of_one_stream_are_samples() {
    let asdu = AsduSpec { svid: b"A".to_vec(), ..AsduSpec::default() };
    for n in [1, 16, 17, 127, 128, 255, 256, 2000] {
        let mut spec = FrameSpec { asdus: vec![asdu.clone(); n], ..FrameSpec::default() };
        let bytes = spec.build().unwrap();
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!((frame.asdus().count(), frame.samples_of(b"A")), (n.min(16), Some(n as u16)));
        spec.asdus[0].svid = b"B".to_vec();
        let bytes = spec.build().unwrap();
        let samples = Frame::parse(&bytes).unwrap().samples_of(b"B");
        assert_eq!(samples, (n <= 16).then_some(1), "of which stream the others are is not known");
    }
}

/// Deviations of merging units in the field that the kernel programs accept too.
#[test]
fn fields_outside_the_key_may_be_missing_or_of_any_length() {
    let read = |bytes: &[u8]| {
        let (_, found) = Matcher::read(bytes).unwrap();
        found.into_iter().map(|f| (f.key, f.step, f.synch)).collect::<Vec<_>>()
    };
    let asdu = AsduSpec { svid: b"MU01".to_vec(), smp_cnt: 7, smp_synch: 2, data: vec![0; 8], ..AsduSpec::default() };
    let good = FrameSpec { asdus: vec![asdu], ..FrameSpec::default() }.build().unwrap();
    assert_eq!(read(&good), [(7, 1, Some(2))]);
    let whole = 14 + usize::from(u16::from_be_bytes([good[16], good[17]]));
    // The lengths that cover an ASDU: those of the link layer, savPdu, seqASDU and the ASDU itself.
    let changed = |at: usize, removed: usize, put: &[u8]| {
        let mut bytes = good[..whole].to_vec();
        bytes.splice(at..at + removed, put.iter().copied());
        for length in [17, 23, 28, 30] {
            bytes[length] = (usize::from(bytes[length]) + put.len() - removed) as u8;
        }
        bytes
    };
    let at = |element: &[u8]| good.windows(element.len()).position(|w| w == element).unwrap();
    assert_eq!(read(&changed(at(&[0x85, 1, 2]), 3, &[])), [(7, 1, None)], "no smpSynch");
    assert_eq!(read(&changed(at(&[0x83, 4]), 6, &[])), [(7, 1, Some(2))], "no confRev");
    assert_eq!(read(&changed(whole, 0, &[0x88, 4, 0, 0, 0, 1])), [(7, 1, Some(2))], "smpMod of four bytes");
    assert_eq!(read(&changed(whole, 0, &[0x8f, 2, 0, 0])), [(7, 1, Some(2))], "a field of one's own");
    assert_eq!(read(&changed(at(&[0x83, 4]), 6, &[0x83, 1, 1])), [(7, 1, Some(2))], "confRev of one byte");
    let mut counted = good.clone();
    counted[at(&[0x80, 1, 1]) + 2] = 3;
    assert_eq!(read(&counted), [(7, 1, Some(2))], "noASDU that is wrong");
}

proptest! {
    #[test]
    fn a_truncated_frame_is_a_packet_of_each_stream_whose_key_it_has(spec in any_frame(), cut in any::<prop::sample::Index>()) {
        let bytes = spec.build().unwrap();
        let kept = cut.index(bytes.len());
        let whole: Vec<_> = Frame::parse(&bytes).unwrap().asdus().take_while(|a| a.smp_cnt_at + 2 <= kept).collect();
        match Frame::parse_captured(&bytes[..kept], bytes.len()) {
            Ok(frame) => {
                let keys = |asdu: &Asdu<'_>| (asdu.svid.to_vec(), asdu.smp_cnt, asdu.smp_cnt_at);
                prop_assert_eq!(frame.asdus().map(|a| keys(&a)).collect::<Vec<_>>(), whole.iter().map(keys).collect::<Vec<_>>());
            }
            Err(_) => prop_assert!(whole.is_empty()),
        }
        if let Err(error) = Matcher::read_captured(&bytes[..kept], bytes.len()) {
            prop_assert!(matches!(error, FrameError::CutOff { .. } | FrameError::OtherProtocol { .. }), "{}", error);
        }
    }
}
