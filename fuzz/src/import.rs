//! Imports arbitrary bytes as two files. The result is an error, or a run that can be opened.

use latpath_import::{import, Options, Source};
use latpath_run::{Run, Select};
use std::sync::atomic::AtomicBool;

/// Runs one input: its first half is one file, its second half the other.
pub fn run(bytes: &[u8]) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let source = |(point, name, bytes): (&str, &str, &[u8])| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).ok()?;
        Some(Source { point: point.parse().ok()?, path, interface: None })
    };
    let files = [("a/tx@eth0", "a", first), ("b/app-read@x", "b", second)];
    let Some(sources) = files.map(source).into_iter().collect::<Option<Vec<_>>>() else { return };
    let options = Options::new(sources);
    let path = folder.path().join("run");
    match import(&options, &path, &AtomicBool::new(false), |_| {}) {
        Ok(manifest) => {
            let run = Run::open(&path).expect("a run that was made");
            let mut journeys = 0;
            let damaged = run.for_each(&Select::default(), |_| {
                journeys += 1;
                true
            });
            assert!(damaged.is_empty() && journeys == manifest.journeys);
        }
        Err(error) => assert!(!error.to_string().is_empty() && !path.exists(), "{error}: the run is left"),
    }
}

/// Two logs, and two captures.
pub fn seeds() -> Vec<Vec<u8>> {
    let log = |late: u32| -> String {
        (0..40_u32)
            .map(|n| {
                format!("0:MU{:02}:{:04}:{}\n", n % 2, n / 2, 1_700_000_000_000_000_u64 + u64::from(n * 250 + late))
            })
            .collect()
    };
    let pcap = |late: u32| -> Vec<u8> {
        let mut file: Vec<u8> =
            [0xa1b2_c3d4_u32, 2 | 4 << 16, 0, 0, 65_535, 1].iter().flat_map(|w| w.to_le_bytes()).collect();
        for n in 0..8_u16 {
            let asdu = latpath_protocols::sv::AsduSpec { svid: b"MU".to_vec(), smp_cnt: n, ..Default::default() };
            let spec = latpath_protocols::sv::FrameSpec { asdus: vec![asdu], ..Default::default() };
            let frame = spec.build().unwrap_or_default();
            let length = frame.len() as u32;
            [1_700_000_000, u32::from(n) * 250 + late, length, length]
                .iter()
                .for_each(|w| file.extend(w.to_le_bytes()));
            file.extend(frame);
        }
        file
    };
    vec![[log(100), log(170)].concat().into_bytes(), [pcap(100), pcap(170)].concat()]
}
