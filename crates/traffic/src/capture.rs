//! Reads captures: pcap and pcapng, also gzip-compressed, recognised by their first bytes. Frames and times equal those
//! of tshark (tests/tshark).

mod input;
mod interface;
mod link;
mod pcap;
mod pcapng;

pub use interface::{Interface, InterfaceChoice, Selection, SeveralInterfaces};

use input::{Fault, Input};
use latpath_model::Ns;
use link::Link;
use pcap::Pcap;
use pcapng::PcapNg;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Why a capture cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be opened or read.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The file ends in the middle of a packet, or is empty.
    #[error("{}: ends in the middle, after {at} whole packets", path.display())]
    Cut {
        /// The file.
        path: PathBuf,
        /// Number of packets read before.
        at: u64,
    },
    /// The file is not a capture, or is damaged.
    #[error("{}: no pcap or pcapng file, or broken after {at} packets: {how}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// Number of packets read before.
        at: u64,
        /// The fault.
        how: String,
    },
    /// All packets have a link type that carries no streams.
    #[error("{}: captured on a link of type {link}; only Ethernet, Linux cooked and IP captures can be read (types: 1, 113, 276, 101)",
            path.display())]
    Link {
        /// The file.
        path: PathBuf,
        /// The link type.
        link: u16,
    },
}

/// A packet as stored in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Capture time, ns since 1970; 0 if the file has none.
    pub t: Ns,
    /// Index of its interface in [`CaptureFile::interfaces`].
    pub interface: usize,
    /// Length on the wire, bytes.
    pub len: usize,
    /// The captured bytes.
    pub bytes: Vec<u8>,
}

/// A packet, converted to an Ethernet frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Capture time, ns since 1970; 0 if the file has none.
    pub t: Ns,
    /// Captured bytes, starting at the destination MAC.
    pub bytes: Vec<u8>,
    /// Length on the wire, bytes; at least the length of `bytes`.
    pub len: usize,
    /// Index of its interface in [`CaptureFile::interfaces`].
    pub interface: usize,
}

/// An open capture.
pub struct CaptureFile<'a> {
    path: PathBuf,
    input: Input<'a>,
    kind: Kind,
    read: u64,
    /// Number of packets by link type, for link types that carry no streams.
    other_links: BTreeMap<u16, u64>,
}

enum Kind {
    Pcap(Pcap, [Interface; 1]),
    Ng(PcapNg),
}

/// Whether a file with these first bytes, decompressed, is a capture.
pub fn is_capture(start: &[u8]) -> bool {
    pcapng::is_pcapng(start) || pcap::is_pcap(start)
}

impl CaptureFile<'static> {
    /// Opens a file; `-` is standard input.
    ///
    /// # Errors
    /// The file cannot be read, or is not a capture.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        if path == Path::new("-") {
            return CaptureFile::read(Path::new("standard input"), io::stdin());
        }
        let file = File::open(path).map_err(|cause| CaptureError::Io { path: path.into(), cause })?;
        CaptureFile::read(path, file)
    }
}

impl<'a> CaptureFile<'a> {
    /// Reads a capture from any source; `path` names it in errors.
    ///
    /// # Errors
    /// The input cannot be read, or is not a capture.
    pub fn read(path: &Path, source: impl Read + 'a) -> Result<Self, CaptureError> {
        let mut input = Input::new(source).map_err(|cause| CaptureError::Io { path: path.into(), cause })?;
        let opened = if pcapng::is_pcapng(input.peek(4)) {
            PcapNg::open(&mut input).map(Kind::Ng)
        } else {
            let kind = |pcap: Pcap| {
                let interface = Interface { number: 0, name: None, link: pcap.link };
                Kind::Pcap(pcap, [interface])
            };
            Pcap::open(&mut input).map(kind)
        };
        let kind = opened.map_err(|fault| error(path, 0, fault))?;
        Ok(Self { path: path.into(), input, kind, read: 0, other_links: BTreeMap::new() })
    }

    /// The interfaces that the file has described so far.
    pub fn interfaces(&self) -> &[Interface] {
        match &self.kind {
            Kind::Pcap(_, interface) => interface,
            Kind::Ng(file) => &file.interfaces,
        }
    }

    /// Names of these interfaces for a message, e.g. `csin, vnet0`.
    pub fn interface_names(&self) -> String {
        interface::list(self.interfaces())
    }

    /// The next packet as stored in the file, of any link type; `None` at the end.
    ///
    /// # Errors
    /// The file ends in the middle of a packet, or is damaged.
    pub fn next_record(&mut self) -> Result<Option<Record>, CaptureError> {
        let record = match &mut self.kind {
            Kind::Pcap(file, _) => file.next(&mut self.input),
            Kind::Ng(file) => file.next(&mut self.input),
        };
        let record = record.map_err(|fault| error(&self.path, self.read, fault))?;
        self.read += u64::from(record.is_some());
        Ok(record)
    }

    /// The next packet as an Ethernet frame; `None` at the end. Packets whose link type carries no streams are skipped.
    ///
    /// # Errors
    /// As for [`next_record`](Self::next_record); also if all packets have such link types.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, CaptureError> {
        loop {
            let Some(record) = self.next_record()? else { return self.end() };
            let number = self.interfaces().get(record.interface).map_or(0, |interface| interface.link);
            let Some(link) = Link::of(number) else {
                if let Kind::Pcap(..) = self.kind {
                    return Err(CaptureError::Link { path: self.path.clone(), link: number });
                }
                *self.other_links.entry(number).or_default() += 1;
                continue;
            };
            let (t, interface) = (record.t, record.interface);
            let (bytes, len) = link.frame(record.bytes, record.len);
            return Ok(Some(Packet { t, len: len.max(bytes.len()), bytes, interface }));
        }
    }

    /// Number of packets skipped because their link type carries no streams.
    pub fn left_out(&self) -> u64 {
        self.other_links.values().sum()
    }

    fn end(&self) -> Result<Option<Packet>, CaptureError> {
        match self.other_links.first_key_value() {
            Some((link, _)) if self.left_out() == self.read => {
                Err(CaptureError::Link { path: self.path.clone(), link: *link })
            }
            _ => Ok(None),
        }
    }
}

fn error(path: &Path, at: u64, fault: Fault) -> CaptureError {
    let path = path.into();
    match fault {
        Fault::Cut => CaptureError::Cut { path, at },
        Fault::Broken(how) => CaptureError::Broken { path, at, how },
        Fault::Io(cause) => CaptureError::Io { path, cause },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn pcap(magic: u32, link: u32, (captured, len): (&[u8], usize)) -> Vec<u8> {
        let header = words(&[magic, 2 | 4 << 16, 0, 0, 64, link]);
        let more: &[u32] = if magic >> 8 == 0x1c_0001 { &[0] } else { &[] };
        let record = words(&[1, 2000, captured.len() as u32, len as u32]);
        [header, words(more), record, captured.to_vec()].concat()
    }

    fn frame() -> Vec<u8> {
        [&[0u8; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xba], &[0x40, 0, 1, 2, 3]].concat()
    }

    fn packets(file: &[u8]) -> Result<Vec<Packet>, CaptureError> {
        let mut capture = CaptureFile::read(Path::new("x"), file)?;
        std::iter::from_fn(|| capture.next_packet().transpose()).collect()
    }

    #[test]
    fn cooked_and_compressed_captures_are_read_as_their_frames() {
        let frame = frame();
        let cooked = [&[0u8, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0], &frame[12..]].concat();
        let cooked2 = [&frame[12..14], &[0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0], &frame[14..]].concat();
        // The upper bits of the link type field encode the length of the frame check sequence.
        for (link, bytes) in [(1u32, &frame), (0x2400_0001, &frame), (113, &cooked), (276, &cooked2)] {
            let file = pcap(0xa1b2_c3d4, link, (bytes, bytes.len()));
            let mut gz = flate2::read::GzEncoder::new(&file[..], flate2::Compression::fast());
            let mut packed = Vec::new();
            gz.read_to_end(&mut packed).unwrap();
            for file in [file, packed] {
                let expected = Packet { t: 1_002_000_000, bytes: frame.clone(), len: frame.len(), interface: 0 };
                assert_eq!(packets(&file).unwrap(), [expected], "link {link}");
            }
        }
        let ip = pcap(0xa1b2_c3d4, 101, (&[0x45, 0, 0], 3));
        assert_eq!(packets(&ip).unwrap()[0].bytes, [&[0; 12][..], &[8, 0, 0x45, 0, 0]].concat());
        let error = packets(&pcap(0xa1b2_c3d4, 105, (&frame, 19))).unwrap_err();
        assert!(error.to_string().contains("type 105"), "{error}");
    }

    #[test]
    fn a_truncated_frame_keeps_its_length_and_contradictory_lengths_are_accepted() {
        let frame = frame();
        let read = |captured: &[u8], len| packets(&pcap(0xa1b2_3c4d, 1, (captured, len))).unwrap().remove(0);
        assert_eq!((read(&frame[..15], 19).len, read(&frame, 7).len), (19, 19));
        let long = vec![7; 100];
        assert_eq!(read(&long, 100).bytes.len(), 100, "longer than the snap length");
        let error = packets(&pcap(0xa1b2_3c4d, 1, (&vec![0; 262_145], 9))).unwrap_err();
        assert!(error.to_string().contains("262145 bytes"), "{error}");
    }

    #[test]
    fn ixia_writes_nanoseconds_and_microseconds() {
        let frame = frame();
        let t = |magic| packets(&pcap(magic, 1, (&frame, 19))).unwrap()[0].t;
        assert_eq!([t(0x1c00_01ac), t(0x1c00_01ab)], [1_000_002_000, 1_002_000_000]);
    }

    #[test]
    fn a_truncated_file_is_read_to_its_end() {
        let frame = frame();
        let mut file = pcap(0xa1b2_c3d4, 1, (&frame, 19));
        file.extend(words(&[1, 2, 3]));
        let mut capture = CaptureFile::read(Path::new("x"), &file[..]).unwrap();
        assert!(capture.next_packet().unwrap().is_some());
        assert!(matches!(capture.next_packet(), Err(CaptureError::Cut { at: 1, .. })));
        for start in [&b""[..], b"\xd4\xc3", b"#!/bin/sh\n echo, not a capture at all"] {
            assert!(packets(start).is_err());
        }
    }
}
