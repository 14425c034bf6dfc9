//! The input: a file, and the point at which its packets were seen.

use crate::sv_log;
use flate2::bufread::MultiGzDecoder;
use latpath_model::point::{Copies, Lan};
use latpath_model::{text::cut, Point, MERGING_UNIT, TALKER};
use latpath_traffic::{is_capture, InterfaceChoice, Selection};
use std::{
    fmt,
    io::{self, BufRead, BufReader, Read},
    path::PathBuf,
    str::FromStr,
};

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A capture: pcap or pcapng.
    Pcap,
    /// Lines written by `sv_timestamp_logger`: `ITERATION:SVID:SMPCNT:MICROSECONDS`.
    SvLog,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::Pcap, Self::SvLog];

    /// Name on the command line and in runs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pcap => "pcap",
            Self::SvLog => "sv-log",
        }
    }

    /// What an entry of such a file is called.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Pcap => "packet",
            Self::SvLog => "line",
        }
    }

    /// A command that sorts such a file by time.
    pub(crate) fn sort(self) -> &'static str {
        match self {
            Self::Pcap => "reordercap IN OUT",
            Self::SvLog => "sort -s -t: -k4,4n IN",
        }
    }

    /// Recognises a format by the first decompressed bytes. Ignores text before a log's first line, as printed by a
    /// logger, a shell or a terminal.
    pub(crate) fn recognise(start: &[u8]) -> Option<Self> {
        if is_capture(start) {
            return Some(Self::Pcap);
        }
        let mut lines = start.split(|b| *b == b'\n').take(FIRST_LINES);
        lines.any(|line| sv_log::is_trailer(line) || sv_log::Line::parse(line).is_ok()).then_some(Self::SvLog)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A file of packets seen at one point, written `machine/kind@device=FILE`. To select one of several interfaces in the
/// file: `machine/kind@device=FILE,interface=NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The point.
    pub point: Point,
    /// The file.
    pub path: PathBuf,
    /// The interface; `None` for the one named like the point or its device.
    pub interface: Option<InterfaceChoice>,
}

impl Source {
    /// The LAN of redundant networks whose packets the point sees; `None` if the point is not limited to a LAN.
    pub(crate) fn lan(&self) -> Option<Lan> {
        match self.point.copies() {
            Some(Copies::Lan(lan)) => Some(lan),
            _ => None,
        }
    }

    /// Selects the packets of the interface.
    pub(crate) fn selection(&self) -> Selection {
        Selection::new(
            self.interface.clone(),
            vec![self.point.device_name().to_owned(), self.point.device.clone(), self.point.to_string()],
        )
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || format!("{text:?}: write POINT=FILE, e.g. publisher/tx@eth0=pub.pcap or relay/app-read@relay=sub.txt");
        let (point, path) = text.split_once('=').filter(|(_, path)| !path.is_empty()).ok_or_else(form)?;
        let point: Point = point.parse().map_err(|error| format!("{error}"))?;
        let computed = [(MERGING_UNIT, "whatever takes the samples"), (TALKER, "the sender by the send times")];
        if let Some((name, what)) = computed.into_iter().find(|(name, _)| point.machine == *name) {
            return Err(format!("{point}: {name} is {what} of a stream; give the machine another name"));
        }
        if !point.kind.can_be_on_route() || point.kind.is_optional() {
            return Err(format!(
                "{point}: a file cannot hold the packets of such a point; choose nic-rx, tx, vm-read or app-read"
            ));
        }
        let (path, interface) = InterfaceChoice::split(path);
        Ok(Self { point, path: path.into(), interface })
    }
}

/// Number of bytes examined to recognise a format; lines of a log are shorter.
const START: usize = 4096;
const FIRST_LINES: usize = 20;

/// Decompresses gzip if necessary. Returns the reader, and a copy of the first bytes.
pub(crate) fn open<'a>(source: impl Read + 'a) -> io::Result<(Box<dyn Read + 'a>, Vec<u8>)> {
    let mut raw = BufReader::with_capacity(1 << 16, source);
    let mut plain: Box<dyn Read + 'a> = match raw.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        true => Box::new(MultiGzDecoder::new(raw)),
        false => Box::new(raw),
    };
    let mut start = Vec::with_capacity(START);
    plain.by_ref().take(START as u64).read_to_end(&mut start)?;
    Ok((Box::new(io::Cursor::new(start.clone()).chain(plain)), start))
}

/// Unsupported compression formats: first bytes, name, and a command that decompresses.
const PACKED: [(&[u8], &str, &str); 4] = [
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstd -d FILE"),
    (&[0xfd, b'7', b'z', b'X', b'Z'], "xz", "xz -d FILE"),
    (b"BZh", "bzip2", "bzip2 -d FILE"),
    (&[0x04, 0x22, 0x4d, 0x18], "lz4", "lz4 -d FILE"),
];

/// Describes the beginning of an unrecognised file.
pub(crate) fn beginning(start: &[u8]) -> String {
    let line = start.split(|b| *b == b'\n').next().unwrap_or_default();
    let packed = PACKED.iter().find(|(magic, ..)| start.starts_with(magic));
    match std::str::from_utf8(line) {
        _ if packed.is_some() => packed
            .map(|(_, name, command)| format!("it is compressed by {name}: undo that first ({command})"))
            .unwrap_or_default(),
        _ if start.is_empty() => "it is empty".into(),
        Ok(text) if text.trim().parse::<f64>().is_ok() => {
            format!("it begins with {:?}: times alone name no packet, and cannot be joined; svtrace's results are imported with --format svtrace", cut(text, 60))
        }
        Ok(text) => format!("its first line is {:?}", cut(text, 60)),
        Err(_) => format!("it begins with the bytes {:02x?}", &start[..start.len().min(8)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_names_a_point_and_a_file() {
        let source: Source = "publisher/tx@eth0=a=b.pcap".parse().unwrap();
        assert_eq!((source.point.to_string().as_str(), source.path.to_str()), ("publisher/tx@eth0", Some("a=b.pcap")));
        let source: Source = "host/nic-rx@csin=a.pcapng,interface=eth 0".parse().unwrap();
        assert_eq!(
            (source.path.to_str(), source.interface),
            (Some("a.pcapng"), Some(InterfaceChoice::One("eth 0".into())))
        );
        for wrong in [
            "pub.pcap",
            "publisher/tx@eth0",
            "publisher/tx@eth0=",
            "a/b@c=d",
            "host/drop@eth0=x.pcap",
            "MU/tx@eth0=x.pcap",
        ] {
            assert!(wrong.parse::<Source>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn formats_are_known_by_their_first_bytes() {
        let known = |start: &[u8]| Format::recognise(start);
        assert_eq!(known(&[0x4d, 0x3c, 0xb2, 0xa1, 2, 0]), Some(Format::Pcap));
        assert_eq!(known(&[0x0a, 0x0d, 0x0d, 0x0a]), Some(Format::Pcap));
        assert_eq!(known(b"0:svID0000:3999:1727698715978775\n0:sv"), Some(Format::SvLog));
        let behind = b"SV drop: 0\n\n0:svID0000:3999:1727698715978775\n";
        assert_eq!([known(behind), known(b"Listening on eth0\r\n0:a:1:2\r\n")], [Some(Format::SvLog); 2]);
        assert_eq!([known(b""), known(b"57\n61\n"), known(&[0x7f, b'E', b'L', b'F'])], [None; 3]);
        assert!(beginning(b"57\n61\n").contains("times alone"));
        assert!(beginning(&[0x28, 0xb5, 0x2f, 0xfd, 0]).contains("zstd -d"));
    }
}
