//! Writes frames that show every form of the format, one a file: the seeds of the fuzzers, for the parser here and for the
//! one in the kernel.
//!
//!     cargo run --release -p latpath-protocols --example frame_seeds -- fuzz/seeds/sv_frame

use latpath_protocols::{
    protocol::FrameLink,
    sv::{AsduSpec, FrameSpec, Profile, Waveform},
    Tag,
};
use std::{error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = PathBuf::from(std::env::args().nth(1).ok_or("usage: frame_seeds DIRECTORY")?);
    fs::create_dir_all(&dir)?;
    let base = AsduSpec { svid: b"MU01".to_vec(), conf_rev: 1, smp_synch: 2, data: vec![0; 64], ..AsduSpec::default() };
    let one = |asdu: AsduSpec| FrameSpec { asdus: vec![asdu], ..FrameSpec::default() };
    let tagged = |tags: &[Tag]| FrameLink { tags: tags.into(), ..FrameLink::default() };
    let mut frames: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| frames.push((name.into(), bytes));

    for p in Profile::ALL {
        let wave = Waveform::new(p.samples_per_s, p.hz);
        let asdu = |n| AsduSpec { smp_cnt: n, data: wave.sample(u64::from(n)).to_vec(), ..base.clone() };
        add(p.name, FrameSpec { asdus: (0..p.asdus).map(asdu).collect(), ..FrameSpec::default() }.build()?);
    }
    for n in [1, 127, 128, 129] {
        add(&format!("svid-{n}"), one(AsduSpec { svid: vec![b'x'; n], ..base.clone() }).build()?);
    }
    for n in [0, 127, 128, 255, 256] {
        add(&format!("data-{n}"), one(AsduSpec { data: vec![1; n], ..base.clone() }).build()?);
    }
    let all = AsduSpec {
        dat_set: Some(b"IED1/LLN0$PhsMeas1".to_vec()),
        refr_tm: Some([0x5f, 0xee, 0x66, 0, 0, 0, 0, 0x0a]),
        smp_rate: Some(4000),
        smp_mod: Some(1),
        gm_identity: Some([1, 2, 3, 0xff, 0xfe, 4, 5, 6]),
        ..base.clone()
    };
    add("all-fields", one(all).build()?);
    add("vlan", FrameSpec { link: tagged(&[Tag::new(7, 4)]), ..one(base.clone()) }.build()?);
    add("two-tags", FrameSpec { link: tagged(&[Tag::new(100, 6), Tag::new(7, 4)]), ..one(base.clone()) }.build()?);
    add("simulated", FrameSpec { simulated: true, ..one(base.clone()) }.build()?);
    let names = [b"A".to_vec(), b"B".to_vec(), b"A".to_vec()].map(|svid| AsduSpec { svid, ..base.clone() });
    add("three-svids", FrameSpec { asdus: names.into(), ..FrameSpec::default() }.build()?);
    let good = one(base).build()?;
    add("cut", good[..60].to_vec());
    let mut wrong = good.clone();
    wrong[23] = 0x80;
    add("indefinite-length", wrong.clone());
    wrong[23] = 0x83;
    add("length-of-three-bytes", wrong);

    for (name, bytes) in &frames {
        fs::write(dir.join(name), bytes)?;
    }
    println!("{} frames in {}", frames.len(), dir.display());
    Ok(())
}
