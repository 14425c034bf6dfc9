//! Reads captures: pcap and pcapng, also compressed by gzip, found out by their first bytes.

use flate2::bufread::MultiGzDecoder;
use latpath_model::Ns;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Why a capture cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be opened or read.
    #[error("{}: {cause}", path.display())]
    Io {
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// The file ends in the middle of a packet, or is empty.
    #[error("{}: ends in the middle, after {at} whole packets", path.display())]
    Cut {
        path: PathBuf,
        /// Packets read before.
        at: u64,
    },
    /// The file is no capture, or broken.
    #[error("{}: no pcap or pcapng file, or broken after {at} packets: {cause}", path.display())]
    Broken {
        path: PathBuf,
        /// Packets read before.
        at: u64,
        cause: PcapError,
    },
    /// The frames are neither Ethernet nor Linux cooked ones.
    #[error("{}: captured on a link of type {link}; only Ethernet and Linux cooked captures can be read", path.display())]
    Link { path: PathBuf, link: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// When it was captured, ns since 1970.
    pub t: Ns,
    /// Its bytes from the destination MAC on, as far as they were captured.
    pub bytes: Vec<u8>,
}

/// A capture being read.
pub struct CaptureFile<'a> {
    path: PathBuf,
    read: u64,
    kind: Kind<'a>,
}

type Source<'a> = BufReader<Box<dyn Read + 'a>>;

enum Kind<'a> {
    Pcap(Box<PcapReader<Source<'a>>>, Link),
    Ng(Box<PcapNgReader<Source<'a>>>),
}

/// Units of time of a pcapng interface (`if_tsresol`: a power of ten, or of two with the top bit set).
fn nanoseconds(units: u64, resolution: u8) -> Ns {
    let (units, exponent) = (u128::from(units), u32::from(resolution & 0x7f));
    let ns = if resolution & 0x80 != 0 {
        if exponent >= 64 {
            0
        } else {
            (units * 1_000_000_000) >> exponent
        }
    } else if exponent <= 9 {
        units * 10u128.pow(9 - exponent)
    } else {
        10u128.checked_pow(exponent - 9).map_or(0, |p| units / p)
    };
    Ns::try_from(ns).unwrap_or(Ns::MAX)
}

impl CaptureFile<'static> {
    /// Opens a file; `-` is standard input.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        if path == Path::new("-") {
            return CaptureFile::read(Path::new("standard input"), io::stdin());
        }
        let file = File::open(path).map_err(|cause| CaptureError::Io { path: path.into(), cause })?;
        CaptureFile::read(path, file)
    }
}

impl<'a> CaptureFile<'a> {
    /// Reads a capture from anywhere; `path` names it in errors.
    pub fn read(path: &Path, source: impl Read + 'a) -> Result<Self, CaptureError> {
        let broken = |cause| error(path, 0, cause);
        let mut reader: Source<'a> = BufReader::with_capacity(1 << 16, Box::new(source));
        let io = |e| broken(PcapError::IoError(e));
        if reader.fill_buf().map_err(io)?.starts_with(&[0x1f, 0x8b]) {
            reader = BufReader::with_capacity(1 << 16, Box::new(MultiGzDecoder::new(reader)));
        }
        let start = reader.fill_buf().map_err(io)?;
        // The section header block's type reads the same in both byte orders.
        let kind = if start.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) {
            Kind::Ng(Box::new(PcapNgReader::new(reader).map_err(broken)?))
        } else {
            let reader = PcapReader::new(reader).map_err(broken)?;
            let link = Link::of(path, reader.header().datalink)?;
            Kind::Pcap(Box::new(reader), link)
        };
        Ok(Self { path: path.into(), read: 0, kind })
    }

    /// The next packet; `None` at the end. A file that was cut in the middle of a packet ends with an error.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, CaptureError> {
        let (path, at) = (&self.path, self.read);
        let broken = |cause| error(path, at, cause);
        let packet = match &mut self.kind {
            Kind::Pcap(reader, link) => match reader.next_packet() {
                None => None,
                Some(p) => {
                    let p = p.map_err(broken)?;
                    let t = Ns::try_from(p.timestamp.as_nanos()).unwrap_or(Ns::MAX);
                    Some(Packet { t, bytes: link.frame(p.data.into_owned()) })
                }
            },
            Kind::Ng(reader) => next_ng(reader, path, &broken)?,
        };
        self.read += u64::from(packet.is_some());
        Ok(packet)
    }
}

fn error(path: &Path, at: u64, cause: PcapError) -> CaptureError {
    let path = path.into();
    match cause {
        PcapError::IoError(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => CaptureError::Cut { path, at },
        PcapError::IoError(cause) => CaptureError::Io { path, cause },
        PcapError::IncompleteBuffer => CaptureError::Cut { path, at },
        cause => CaptureError::Broken { path, at, cause },
    }
}

/// What stands before a frame's payload.
#[derive(Clone, Copy)]
enum Link {
    Ethernet,
    /// `tcpdump -i any`: LINUX_SLL and LINUX_SLL2 (pcap-linktype(7)).
    Cooked,
    Cooked2,
}

impl Link {
    fn of(path: &Path, link: DataLink) -> Result<Self, CaptureError> {
        match link {
            DataLink::ETHERNET => Ok(Self::Ethernet),
            DataLink::LINUX_SLL => Ok(Self::Cooked),
            DataLink::LINUX_SLL2 => Ok(Self::Cooked2),
            link => Err(CaptureError::Link { path: path.into(), link: format!("{link:?}") }),
        }
    }

    /// The packet as an Ethernet frame. A cooked one has no destination: zeros stand for it.
    fn frame(self, bytes: Vec<u8>) -> Vec<u8> {
        let (header, address, ethertype) = match self {
            Self::Ethernet => return bytes,
            Self::Cooked => (16, 6..12, 14..16),
            Self::Cooked2 => (20, 12..18, 0..2),
        };
        if bytes.len() < header {
            return bytes;
        }
        [&[0; 6], &bytes[address], &bytes[ethertype], &bytes[header..]].concat()
    }
}

fn next_ng(
    reader: &mut PcapNgReader<Source<'_>>,
    path: &Path,
    broken: &dyn Fn(PcapError) -> CaptureError,
) -> Result<Option<Packet>, CaptureError> {
    loop {
        let (interface, units, bytes) = match reader.next_block() {
            None => return Ok(None),
            Some(block) => match block.map_err(broken)? {
                // The crate hands over the raw units as if they were nanoseconds.
                Block::EnhancedPacket(p) => {
                    (p.interface_id as usize, p.timestamp.as_nanos() as u64, p.data.into_owned())
                }
                Block::Packet(p) => (usize::from(p.interface_id), p.timestamp, p.data.into_owned()),
                Block::SimplePacket(p) => (0, 0, p.data.into_owned()),
                _ => continue,
            },
        };
        let interface = reader.interfaces().get(interface);
        let interface = interface.ok_or_else(|| broken(PcapError::InvalidInterfaceId(0)))?;
        let link = Link::of(path, interface.linktype)?;
        let resolution = interface.options.iter().find_map(|o| match o {
            InterfaceDescriptionOption::IfTsResol(r) => Some(*r),
            _ => None,
        });
        return Ok(Some(Packet { t: nanoseconds(units, resolution.unwrap_or(6)), bytes: link.frame(bytes) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cooked_and_compressed_captures_are_read_as_the_frames_that_they_hold() {
        let frame = [&[0u8; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xba], &[0x40, 0, 1, 2, 3]].concat();
        let cooked = [&[0u8, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0], &frame[12..]].concat();
        let cooked2 = [&frame[12..14], &[0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0], &frame[14..]].concat();
        for (link, bytes) in [(1u32, &frame), (113, &cooked), (276, &cooked2)] {
            let words = [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65535, link, 1, 0, bytes.len() as u32, bytes.len() as u32];
            let mut file: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
            file.extend(bytes);
            let mut gz = flate2::read::GzEncoder::new(&file[..], flate2::Compression::fast());
            let mut packed = Vec::new();
            gz.read_to_end(&mut packed).unwrap();
            for file in [file.clone(), packed] {
                let mut capture = CaptureFile::read(Path::new("x"), &file[..]).unwrap();
                assert_eq!(capture.next_packet().unwrap().unwrap().bytes, frame, "link {link}");
                assert!(capture.next_packet().unwrap().is_none());
            }
        }
    }

    #[test]
    fn times_of_every_resolution_are_in_nanoseconds() {
        assert_eq!(nanoseconds(1_000_001, 6), 1_000_001_000);
        assert_eq!(nanoseconds(5, 9), 5);
        assert_eq!(nanoseconds(5_000, 12), 5);
        assert_eq!(nanoseconds(1, 0x80 | 10), 976_562);
        assert_eq!(nanoseconds(u64::MAX, 0), Ns::MAX);
        for r in 0..=255 {
            nanoseconds(u64::MAX, r);
        }
    }
}
