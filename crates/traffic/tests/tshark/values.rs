//! Compares the decoded values of samples and GOOSE messages with tshark's.

use latpath_protocols::goose;
use latpath_protocols::protocol::FrameLink;
use latpath_protocols::sv::{AsduSpec, Channel, Frame, FrameSpec};
use latpath_protocols::{Header, ValuePath};
use latpath_testkit::Failed;
use std::path::Path;
use std::process::Command;

/// Number of frames per protocol.
const FRAMES: u32 = 60;

/// A reproducible pseudorandom number.
fn number(n: u32) -> u32 {
    n.wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b)
}

fn samples(n: u32) -> Vec<u8> {
    let asdu = |k: u32| AsduSpec {
        svid: format!("MU{k}").into_bytes(),
        smp_cnt: (n + k) as u16,
        data: (0..16).flat_map(|i| number(n * 64 + k * 16 + i).to_be_bytes()).collect(),
        ..AsduSpec::default()
    };
    let spec = FrameSpec { asdus: (0..1 + n % 3).map(asdu).collect(), ..FrameSpec::default() };
    spec.build().expect("a valid frame")
}

fn message(n: u32) -> Vec<u8> {
    let boolean = |k: u32| [0x83, 1, (number(n + k) % 3) as u8];
    let mut all_data = boolean(1).to_vec();
    // After the first BOOLEAN: a structure of a bit string and a BOOLEAN, then an INTEGER, then a BOOLEAN.
    all_data.extend([0xa2, 8, 0x84, 3, 3, 0, 0]);
    all_data.extend(boolean(2));
    all_data.extend([0x85, 2, (n >> 8) as u8 & 0x7f, n as u8]);
    all_data.extend(boolean(3));
    let frame = goose::Frame { st_num: n, entries: 4, all_data: &all_data, ..goose::Frame::default() };
    frame.build(&FrameLink::default()).expect("a valid frame")
}

/// The values of this field as printed by tshark, one line per packet; several in one packet are separated by commas.
fn by_tshark(file: &Path, field: &str) -> Result<Vec<String>, Failed> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-o", "sv.decode_data_as_phsmeas:TRUE", "-T", "fields", "-e", field, "-r"]).arg(file);
    let output = tshark.output()?;
    let text = String::from_utf8(output.stdout)?;
    match output.status.success() {
        true => Ok(text.lines().map(Into::into).collect()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        let len = frame.len() as u32;
        [0, 0, len, len].into_iter().for_each(|word: u32| file.extend(word.to_le_bytes()));
        file.extend(frame);
    }
    file
}

pub fn compare() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("values.pcap");
    let frames: Vec<Vec<u8>> = (0..FRAMES).map(samples).chain((0..FRAMES).map(message)).collect();
    std::fs::write(&path, pcap(&frames))?;

    let channels = ["Ia", "Ib", "Ic", "In", "Ua", "Ub", "Uc", "#8"].map(|name| name.parse::<Channel>());
    let channels = channels.into_iter().collect::<Result<Vec<_>, _>>()?;
    let values = |frame: &Vec<u8>| {
        let samples = Frame::parse(frame).into_iter().flat_map(|frame| frame.asdus().filter_map(|asdu| asdu.data));
        let values = samples.flat_map(|data| channels.iter().filter_map(|channel| channel.value(data)));
        values.map(|value| value.to_string()).collect::<Vec<_>>().join(",")
    };
    latpath_testkit::equal(
        "values of samples",
        frames.iter().map(values).collect(),
        by_tshark(&path, "sv.meas_value")?,
    )?;

    let paths = ["1", "2.2", "4"].map(|path| path.parse::<ValuePath>()).into_iter().collect::<Result<Vec<_>, _>>()?;
    let booleans = |frame: &Vec<u8>| {
        let Ok(header) = Header::parse(frame) else { return String::new() };
        let values = paths.iter().filter_map(|path| goose::boolean(frame, frame.len(), &header, path).ok());
        values.map(|value| if value { "True" } else { "False" }).collect::<Vec<_>>().join(",")
    };
    let own: Vec<String> = frames.iter().map(booleans).collect();
    let its = by_tshark(&path, "goose.boolean")?;
    // Depending on its version, tshark prints a BOOLEAN as True or as 1.
    let its = its.iter().map(|text| text.replace('1', "True").replace('0', "False")).collect();
    latpath_testkit::equal("values of messages", own, its)
}
