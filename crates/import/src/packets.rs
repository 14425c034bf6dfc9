//! Passes packets from the threads that read files to the thread that joins them.

use crate::{
    chosen::{StreamName, StreamSelection},
    source::Format,
    ImportError,
};
use latpath_model::{Ns, StreamSpec};
use latpath_protocols::UnreadFrames;
use latpath_run::ImportedFile;
use std::{
    path::Path,
    sync::mpsc::{Receiver, SyncSender},
};

/// Number of packets per batch.
const BATCH: usize = 1 << 14;
/// Maximum number of a file's batches that are waiting for the joiner.
pub(crate) const WAITING: usize = 12;
/// Maximum number of streams per file; packets of further streams are dropped.
pub(crate) const MAX_STREAMS: usize = 4096;
/// Stream index for streams beyond the limit, whose packets are only counted.
const NO_PLACE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// Time by the file's clock, ns since 1970.
    pub t: Ns,
    pub key: u32,
    /// Index of the stream among those found in this file so far.
    pub stream: u16,
    /// State of its sender's clock, from the packet.
    pub synch: Option<u8>,
}

/// A message from a reading thread.
pub(crate) enum Message {
    /// Packets in the order of the file, and the streams found since the last message.
    Packets(Vec<Packet>, Vec<StreamSpec>),
    End(Box<FileEnd>),
    /// The file cannot be read.
    Failed(Box<ImportError>),
}

/// A packet, identified by its stream and key.
pub(crate) type PacketId = (StreamSpec, u32);

#[derive(Debug, Default)]
pub(crate) struct FileEnd {
    pub file: ImportedFile,
    /// The first and (`last`) the last packet of the file.
    pub first: Option<PacketId>,
    pub last: Option<PacketId>,
    /// Frames of a supported protocol that could not be read.
    pub unread: UnreadFrames,
    /// Number of packets of streams beyond the limit.
    pub beyond: u64,
    /// Numbers of frames that are copies from LAN A and from LAN B of redundant networks. At a point of one LAN, those
    /// from the other are omitted.
    pub copies: [u64; 2],
    /// The interface whose packets were taken, if the file has several.
    pub interface: Option<String>,
    pub notes: Vec<String>,
}

/// Collects the packets of one file, in order.
pub(crate) struct Packets<'a> {
    path: &'a Path,
    /// Format of the file; set once its first bytes have been read.
    pub format: Format,
    chosen: &'a StreamSelection,
    window: Ns,
    to: SyncSender<Message>,
    free: Receiver<Vec<Packet>>,
    batch: Vec<Packet>,
    streams: Vec<StreamSpec>,
    named: Vec<StreamSpec>,
    newest: Ns,
    first: Option<Packet>,
    last: Option<Packet>,
    taken: u64,
    /// Number of packets of streams beyond the limit.
    beyond: u64,
    /// Number of packets whose time precedes that of an earlier packet, and the largest such step back, ns.
    back: (u64, Ns),
    whole_microseconds: bool,
}

impl<'a> Packets<'a> {
    pub fn new(
        path: &'a Path,
        (chosen, window): (&'a StreamSelection, Ns),
        (to, free): (SyncSender<Message>, Receiver<Vec<Packet>>),
    ) -> Self {
        let batch = Vec::with_capacity(BATCH);
        Self {
            path,
            format: Format::Pcap,
            chosen,
            window,
            to,
            free,
            batch,
            streams: Vec::new(),
            named: Vec::new(),
            newest: Ns::MIN,
            first: None,
            last: None,
            taken: 0,
            beyond: 0,
            back: (0, 0),
            whole_microseconds: true,
        }
    }

    /// Index of a stream in this file; `None` if it is not imported.
    pub fn stream(&mut self, seen: &StreamName) -> Option<u16> {
        let stream = self.chosen.stream(seen)?;
        if let Some(known) = self.streams.iter().position(|s| *s == stream) {
            return Some(known as u16);
        }
        if self.streams.len() == MAX_STREAMS {
            return Some(NO_PLACE);
        }
        self.streams.push(stream.clone());
        self.named.push(stream);
        Some(self.streams.len() as u16 - 1)
    }

    /// Adds packet number `at` of the file, from 1. Returns false if the receiver is gone.
    #[inline]
    pub fn push(&mut self, packet: Packet, at: u64) -> Result<bool, ImportError> {
        if packet.stream == NO_PLACE {
            self.beyond += 1;
            return Ok(true);
        }
        if packet.t < self.newest {
            self.note_backwards(packet.t, at)?;
        }
        self.newest = self.newest.max(packet.t);
        self.whole_microseconds &= packet.t % 1000 == 0;
        self.batch.push(packet);
        if self.batch.len() < BATCH {
            return Ok(true);
        }
        Ok(self.send())
    }

    #[cold]
    fn note_backwards(&mut self, t: Ns, at: u64) -> Result<(), ImportError> {
        let by = self.newest.saturating_sub(t);
        if by > self.window {
            let (unit, sort) = (self.format.unit(), self.format.sort());
            return Err(ImportError::Backwards { path: self.path.into(), unit, at, by, sort });
        }
        self.back = (self.back.0 + 1, self.back.1.max(by));
        Ok(())
    }

    /// Sends the batch. Returns false if the receiver is gone.
    fn send(&mut self) -> bool {
        self.first = self.first.or(self.batch.first().copied());
        self.last = self.batch.last().copied();
        self.taken += self.batch.len() as u64;
        let next = self.free.try_recv().unwrap_or_else(|_| Vec::with_capacity(BATCH));
        let full = std::mem::replace(&mut self.batch, next);
        self.batch.clear();
        self.to.send(Message::Packets(full, std::mem::take(&mut self.named))).is_ok()
    }

    /// Sends the remaining packets, and the end. `packets`: number of packets in the file.
    pub fn end(mut self, packets: u64, mut end: FileEnd) {
        if !self.batch.is_empty() {
            self.send();
        }
        if self.taken == 0 {
            let (path, streams, unread) = (self.path.into(), self.chosen.text(), Box::new(end.unread));
            return self.fail(ImportError::NoPackets { path, packets, streams, copies: end.copies, unread });
        }
        if let (n @ 1.., most) = self.back {
            let (n, most) = (latpath_stats::units::number_of(n, "time"), latpath_stats::units::duration(most));
            end.notes.push(format!("{}: its times go back {n}, by {most} at most", self.path.display()));
        }
        end.file.format = self.format.name().into();
        end.file.path = self.path.display().to_string();
        end.file.packets = self.taken;
        end.file.left_out = packets.saturating_sub(self.taken);
        end.beyond = self.beyond;
        (end.file.first_utc_ns, end.file.last_utc_ns) = (self.first.map_or(0, |packet| packet.t), self.newest);
        let named = |packet: Packet| Some((self.streams.get(usize::from(packet.stream))?.clone(), packet.key));
        (end.first, end.last) = (self.first.and_then(named), self.last.and_then(named));
        end.file.resolution_ns = if self.whole_microseconds { 1000 } else { 1 };
        // Without a receiver, the import has already failed.
        let _ = self.to.send(Message::End(Box::new(end)));
    }

    /// Sends an error instead of the end.
    pub fn fail(self, error: ImportError) {
        let _ = self.to.send(Message::Failed(Box::new(error)));
    }
}
