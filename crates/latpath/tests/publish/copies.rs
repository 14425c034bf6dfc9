//! Copies of redundant networks as `publish --prp` and `--hsr` send them: tshark and latpath read each frame's mark
//! alike.

use crate::bench::{complaints, tshark, Pair, Result};
use crate::sends::bytes_of;
use crate::{Needs, Test};
use latpath_protocols::redundancy::{Lan, Method};
use latpath_protocols::Matcher;
use latpath_testkit::equal;
use latpath_traffic::document::PublishDocument;
use std::path::Path;

pub const TESTS: &[Test] = &[
    ("tshark reads the trailers of PRP as latpath does", Needs::Capture, || copies("prp")),
    ("tshark reads the tags of HSR as latpath does", Needs::Capture, || copies("hsr")),
];

/// Number of frames per stream and LAN.
const FRAMES: usize = 40;

/// The redundancy fields of a frame, as printed by tshark.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    lan: String,
    sequence: String,
    size: String,
    vlan: String,
    number: String,
}

fn copies(method: &str) -> Result<()> {
    let pair = Pair::new()?;
    pair.add_link("lpc", "lpd")?;
    let flag = format!("--{method}");
    let streams: [&[&str]; 5] = [
        &["--svid", "MU01"],
        &["--svid", "MU01", "--vlan", "7", "--pcp", "4"],
        // Several ASDUs, and a payload below the minimum size of a frame.
        &["--svid", "MU01", "--profile", "f14400s6", "--vlan", "0", "--pcp", "6"],
        &["--stream", "goose:trip,vlan=9", "--event-every", "20ms"],
        &["--stream", "ptp:sync", "--rate", "500"],
    ];
    for stream in streams {
        let count = FRAMES.to_string();
        let words = [&["publish", &flag, "lpa,lpc", "--count", &count, "--json"], stream].concat();
        let (by_a, (by_b, sent)) = pair.capture_on("lpb", FRAMES, || {
            pair.capture_on("lpd", FRAMES, || pair.latpath("lpa", &words)?.json::<PublishDocument>())
        })?;
        equal("sent", sent.frames_sent, FRAMES as u64)?;
        for (lan, file) in [(Lan::A, &by_a), (Lan::B, &by_b)] {
            let name = format!("{method}, LAN {}, {}", lan.name(), stream.join(" "));
            equal(&name, complaints(file)?, vec![])?;
            let by_latpath = marks(file, method, lan)?;
            equal(&name, marks_by_tshark(file, method)?, by_latpath)?;
        }
    }
    Ok(())
}

/// The marks as latpath reads them.
fn marks(file: &Path, method: &str, lan: Lan) -> Result<Vec<Mark>> {
    let expected = if method == "prp" { Method::Prp } else { Method::Hsr };
    let mark = |frame: Vec<u8>| {
        let (header, found) = Matcher::read(&frame).map_err(|error| error.to_string())?;
        let copy = header.copy.ok_or("a frame without a mark")?;
        equal("method and LAN", (copy.method, copy.lan), (expected, lan))?;
        // PRP: LAN A is 10. HSR: the lowest bit of the path is the port.
        let lan = copy.lan as usize + if method == "prp" { 10 } else { 0 };
        let number = found.first().map_or(String::new(), |found| (found.key & 0xffff).to_string());
        Ok(Mark {
            lan: lan.to_string(),
            sequence: copy.sequence.to_string(),
            size: (frame.len() - 14 - 4 * header.tags().len()).to_string(),
            vlan: header.tags().iter().map(|tag| tag.vlan().to_string()).collect::<Vec<_>>().join(","),
            number,
        })
    };
    let marks: Vec<Mark> = bytes_of(file)?.into_iter().map(mark).collect::<Result<_>>()?;
    let in_order = (0..).zip(&marks).all(|(n, mark): (usize, _)| mark.sequence == n.to_string());
    equal("a sequence number for each packet", (marks.len(), in_order), (FRAMES, true))?;
    Ok(marks)
}

fn marks_by_tshark(file: &Path, method: &str) -> Result<Vec<Mark>> {
    let of_mark = match method {
        "prp" => ["prp.trailer.prp_lan", "prp.trailer.prp_sequence_nr", "prp.trailer.prp_size"],
        _ => ["hsr.laneid", "hsr.sequence_nr", "hsr.lsdu_size"],
    };
    let numbers = ["vlan.id", "sv.smpCnt", "goose.sqNum", "ptp.v2.sequenceid"];
    let mark = |row: Vec<String>| {
        let [lan, sequence, size, vlan, numbers @ ..] = &row[..] else {
            return Err(format!("fields of tshark: {row:?}").into());
        };
        let [lan, sequence, size, vlan] = [lan, sequence, size, vlan].map(String::clone);
        // With several ASDUs, the number of the first one.
        let number = numbers.concat().split(',').take(1).collect();
        Ok(Mark { lan, sequence, size, vlan, number })
    };
    tshark(file, &[&of_mark[..], &numbers].concat())?.into_iter().map(mark).collect()
}
