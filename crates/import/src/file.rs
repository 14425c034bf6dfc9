//! Reads one file from beginning to end in one pass: its packets, and its SHA-256.

use crate::{
    chosen::{StreamName, StreamSelection},
    options::Options,
    packets::{FileEnd, Message, Packet, Packets, WAITING},
    source::{self, Format, Source},
    sv_log::{is_trailer, Line},
    ImportError,
};
use latpath_linux::background::lower_priority;
use latpath_model::{
    text::{cut, printable},
    Matcher, StreamSpec,
};
use latpath_protocols::Tag;
use latpath_traffic::{CaptureError, CaptureFile, InterfaceChoice, SeveralInterfaces};
use sha2::{Digest, Sha256};
use std::{
    cell::RefCell,
    collections::HashMap,
    fs::File,
    io::{self, Read},
    path::Path,
    rc::Rc,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{channel, sync_channel, Receiver, Sender},
        Arc,
    },
    thread::Scope,
};

/// Size of the pieces in which a log is read, which is also the maximum length of a line, bytes.
const PIECE: usize = 1 << 18;
/// Number of lines after which a log in which each smpCnt is 0 is refused; less than a batch.
const TELLING_LINES: u64 = 4096;

/// Checksum and number of the bytes read.
#[derive(Default)]
pub(crate) struct Sum {
    sha256: Sha256,
    pub bytes: u64,
}

impl Sum {
    /// The SHA-256 in hexadecimal.
    pub fn hex(self) -> String {
        self.sha256.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Reads a file, and computes its checksum and the progress.
pub(crate) struct ChecksumReader<T> {
    pub file: T,
    pub sum: Rc<RefCell<Sum>>,
    pub read: Arc<AtomicU64>,
}

impl<T: Read> Read for ChecksumReader<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(into)?;
        let mut sum = self.sum.borrow_mut();
        sum.sha256.update(&into[..n]);
        sum.bytes += n as u64;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Starts reading a source's file on a new thread. Packets arrive through the receiver, emptied batches return through
/// the sender; `read` counts the bytes read.
pub(crate) fn begin<'s, 'e: 's>(
    scope: &'s Scope<'s, 'e>,
    source: &'e Source,
    (options, chosen): (&'e Options, &'s StreamSelection),
    read: Arc<AtomicU64>,
) -> (Receiver<Message>, Sender<Vec<Packet>>) {
    let ((to, from), (free, emptied)) = (sync_channel(WAITING), channel());
    let packets = Packets::new(&source.path, (chosen, options.window), (to, emptied));
    scope.spawn(move || {
        // The joining thread must be the faster one: the reading threads wait for it.
        lower_priority();
        self::read(source, options.format, packets, read)
    });
    (from, free)
}

/// Reads a whole file and sends its packets; `read` counts the bytes read.
fn read(source: &Source, forced: Option<Format>, mut packets: Packets, read: Arc<AtomicU64>) {
    match read_into(source, forced, &mut packets, read) {
        Ok(Some((all, end))) => packets.end(all, end),
        Ok(None) => {}
        Err(error) => packets.fail(error),
    }
}

/// Reads a file into `packets`. Returns the number of packets in it, and facts known at its end; `None` if the receiver
/// is gone.
fn read_into(
    named: &Source,
    forced: Option<Format>,
    packets: &mut Packets,
    read: Arc<AtomicU64>,
) -> Result<Option<(u64, FileEnd)>, ImportError> {
    let path = named.path.as_path();
    let broken = |cause| ImportError::Io { path: path.into(), cause };
    let sum = Rc::new(RefCell::new(Sum::default()));
    let file = ChecksumReader { file: File::open(path).map_err(broken)?, sum: Rc::clone(&sum), read };
    let (source, start) = source::open(file).map_err(broken)?;
    let unknown = || ImportError::Unknown { path: path.into(), found: source::beginning(&start) };
    packets.format = forced.or_else(|| Format::recognise(&start)).ok_or_else(unknown)?;
    let mut end = FileEnd::default();
    let all = match packets.format {
        Format::Pcap => read_capture(named, source, packets, &mut end)?,
        Format::SvLog => read_log(path, source, packets, &mut end)?,
    };
    let sum = sum.take();
    end.file.bytes = sum.bytes;
    end.file.sha256 = sum.hex();
    Ok(all.map(|all| (all, end)))
}

fn read_capture(
    named: &Source,
    source: impl Read,
    packets: &mut Packets,
    end: &mut FileEnd,
) -> Result<Option<u64>, ImportError> {
    let path = named.path.as_path();
    let mut capture = CaptureFile::read(path, source)?;
    let mut selection = named.selection();
    let mut known: HashMap<StreamSpec, Option<u16>> = HashMap::new();
    let (mut all, mut selected) = (0, None);
    let of_lan = named.lan();
    loop {
        let frame = match capture.next_packet() {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(CaptureError::Cut { at, .. }) if at > 0 => {
                let path = path.display();
                end.notes
                    .push(format!("{path}: ends in the middle of packet {}: those before it are imported", at + 1));
                break;
            }
            Err(error) => return Err(error.into()),
        };
        all += 1;
        match selection.takes(capture.interfaces(), frame.interface) {
            Ok(true) => selected = Some(frame.interface),
            Ok(false) => continue,
            Err(SeveralInterfaces) => {
                let (point, interfaces) = (named.point.clone(), capture.interface_names());
                return Err(ImportError::SeveralInterfaces { path: path.into(), point, interfaces });
            }
        }
        let (header, found) = match Matcher::read_captured(&frame.bytes, frame.len) {
            Ok(read) => read,
            Err(error) => {
                end.unread.count(error);
                continue;
            }
        };
        if let Some(copy) = header.copy {
            end.copies[copy.lan as usize] += 1;
            if of_lan.is_some_and(|lan| lan != copy.lan) {
                continue;
            }
        }
        let vlan = header.tags().last().copied().map(Tag::vlan);
        for found in found {
            let exact = StreamSpec::exact(found.stream, header.dst, vlan);
            let stream = match known.get(&exact) {
                Some(stream) => *stream,
                None => {
                    let stream = packets.stream(&StreamName::Exact(&exact));
                    if known.len() < crate::packets::MAX_STREAMS {
                        known.insert(exact, stream);
                    }
                    stream
                }
            };
            if let Some(stream) = stream {
                if !packets.push(Packet { t: frame.t, key: found.key, stream, synch: found.synch }, all)? {
                    return Ok(None);
                }
            }
        }
    }
    let interfaces = capture.interfaces();
    if let (Some(InterfaceChoice::One(interface)), None) = (&named.interface, selected) {
        let (interface, interfaces) = (interface.clone(), capture.interface_names());
        return Err(ImportError::NoInterface { path: path.into(), interface, interfaces });
    }
    end.interface =
        selected.and_then(|at| interfaces.get(at)).filter(|_| interfaces.len() > 1).map(ToString::to_string);
    Ok(Some(all + capture.left_out()))
}

/// Looks up the streams of a log by svID, quickly if a line has the svID of the previous one.
#[derive(Default)]
struct Names {
    newest: Vec<u8>,
    /// The newest line, up to its smpCnt.
    start: Vec<u8>,
    stream: Option<u16>,
    known: HashMap<Vec<u8>, Option<u16>>,
    /// Number of lines with the logger's own counts; line number and text of the last one (`trailer`).
    trailers: u64,
    trailer: (u64, String),
}

/// Maximum length of text quoted from a logger, bytes.
const MAX_QUOTED: usize = 40;

impl Names {
    /// A note on the logger's own counts, if it wrote any.
    fn note(&self, path: &Path) -> Option<String> {
        let (line, said) = &self.trailer;
        let often = if self.trailers > 1 { format!(", {} times, at last", self.trailers) } else { String::new() };
        (self.trailers > 0).then(|| format!("{}:{line}: its logger counted by itself{often}: {said}", path.display()))
    }

    fn find(&mut self, svid: &[u8], packets: &mut Packets) {
        self.stream = match self.known.get(svid) {
            Some(stream) => *stream,
            None => {
                let sv = latpath_protocols::sv::Sv { svid: svid.to_vec(), appid: None };
                let stream = packets.stream(&StreamName::Name(&StreamSpec::new(Matcher::Sv(sv))));
                if self.known.len() < crate::packets::MAX_STREAMS {
                    self.known.insert(svid.to_vec(), stream);
                }
                stream
            }
        };
        self.newest.clear();
        self.newest.extend_from_slice(svid);
    }
}

fn read_log(
    path: &Path,
    mut source: impl Read,
    packets: &mut Packets,
    end: &mut FileEnd,
) -> Result<Option<u64>, ImportError> {
    let (mut piece, mut filled) = (vec![0; PIECE], 0);
    let (mut names, mut lines, mut all) = (Names::default(), 0, 0);
    let mut is_zero = true;
    let seconds_alone = || ImportError::SecondsAlone { path: path.into() };
    loop {
        let n = match source.read(&mut piece[filled..]) {
            Ok(n) => n,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => {
                end.notes.extend(names.note(path));
                end.notes.push(format!("{}:{}: its compressed data end in the middle", path.display(), lines + 1));
                return Ok(Some(all));
            }
            Err(cause) => return Err(ImportError::Io { path: path.into(), cause }),
        };
        filled += n;
        let whole = piece[..filled].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let mut text = &piece[..whole];
        while !text.is_empty() {
            lines += 1;
            let (packet, taken) = next_line(text, (path, lines), &mut names, packets)?;
            text = &text[taken..];
            let Some(packet) = packet else { continue };
            all += 1;
            is_zero &= packet.key == 0;
            if is_zero && all == TELLING_LINES {
                return Err(seconds_alone());
            }
            if let Some(stream) = names.stream {
                if !packets.push(Packet { stream, ..packet }, lines)? {
                    return Ok(None);
                }
            }
        }
        if n == 0 {
            if is_zero && all > 1 {
                return Err(seconds_alone());
            }
            end.notes.extend(names.note(path));
            if whole < filled {
                let path = path.display();
                end.notes.push(format!("{path}:{}: ends in the middle of this line, which is left out", lines + 1));
            }
            return Ok(Some(all));
        }
        piece.copy_within(whole..filled, 0);
        filled -= whole;
        if filled == piece.len() {
            return Err(line_error(path, lines + 1, &piece, "it is longer than any line of such a log"));
        }
    }
}

/// Parses the next line. Returns its packet, if it has one, and the line's length.
#[inline]
fn next_line(
    text: &[u8],
    (path, number): (&Path, u64),
    names: &mut Names,
    packets: &mut Packets,
) -> Result<(Option<Packet>, usize), ImportError> {
    if let Some((smp_cnt, t, taken)) = Line::parse_next(text, &names.start) {
        return Ok((Some(Packet { t, key: smp_cnt.into(), stream: 0, synch: None }), taken));
    }
    let length = text.iter().position(|b| *b == b'\n').unwrap_or(text.len());
    let (line, taken) = (&text[..length], (length + 1).min(text.len()));
    if is_trailer(line) {
        names.trailers += 1;
        let said = String::from_utf8_lossy(&line[..line.len().min(4 * MAX_QUOTED)]);
        names.trailer = (number, cut(&printable(&said), MAX_QUOTED).to_owned());
        return Ok((None, taken));
    }
    if line.trim_ascii().is_empty() {
        return Ok((None, taken));
    }
    let parsed = Line::parse(line).map_err(|why| line_error(path, number, line, why))?;
    if names.newest != parsed.svid {
        names.find(parsed.svid, packets);
    }
    names.start.clear();
    names.start.extend_from_slice(parsed.start);
    Ok((Some(Packet { t: parsed.t, key: parsed.smp_cnt.into(), stream: 0, synch: None }), taken))
}

fn line_error(path: &Path, line: u64, text: &[u8], why: &'static str) -> ImportError {
    let text = String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned();
    ImportError::Line { path: path.into(), line, text, why }
}
