//! Merges the packets of all files by time. The order within a file is kept even if its clock was set back slightly: it
//! is the order in which its point saw the packets.

use crate::{
    chosen::Streams,
    packets::{FileEnd, Message, Packet},
    ImportError,
};
use latpath_model::{Ns, PointId, Sighting, StreamId};
use std::sync::mpsc::{Receiver, Sender};

/// One file's packets, with times on the common timeline.
pub(crate) struct Feed {
    point: PointId,
    /// Offset to subtract from the packets' times, ns.
    offset: Ns,
    from: Receiver<Message>,
    free: Sender<Vec<Packet>>,
    packets: Vec<Packet>,
    at: usize,
    /// For each stream of the file, its number in the run; `None` if the run already has the maximum number of streams.
    streams: Vec<Option<StreamId>>,
    /// Newest time so far, ns.
    newest: Ns,
    /// Time of the first packet, ns.
    first: Ns,
    pub end: Option<Box<FileEnd>>,
    /// Number of packets of streams beyond the run's limit.
    pub beyond: u64,
}

impl Feed {
    /// Creates a feed that receives packets through `from`, and returns emptied batches through `free`.
    pub fn new(point: PointId, offset: Ns, (from, free): (Receiver<Message>, Sender<Vec<Packet>>)) -> Self {
        let (packets, streams) = (Vec::new(), Vec::new());
        Self {
            point,
            offset,
            from,
            free,
            packets,
            at: 0,
            streams,
            newest: Ns::MIN,
            first: Ns::MAX,
            end: None,
            beyond: 0,
        }
    }

    /// Time before which all packets have been handed over; `Ns::MAX` at the end. Waits until the next packet has been
    /// read.
    pub fn next(&mut self, streams: &mut Streams) -> Result<Ns, ImportError> {
        while self.at == self.packets.len() {
            match self.from.recv() {
                _ if self.end.is_some() => return Ok(Ns::MAX),
                Ok(Message::Packets(packets, named)) => {
                    let numbers = named.into_iter().map(|stream| streams.number(stream));
                    self.streams.extend(numbers);
                    // If the thread has ended, it needs no more batches.
                    let _ = self.free.send(std::mem::replace(&mut self.packets, packets));
                    self.at = 0;
                }
                Ok(Message::End(end)) => self.end = Some(end),
                Ok(Message::Failed(error)) => return Err(*error),
                Err(_) => return Ok(Ns::MAX),
            }
        }
        let next = self.newest.max(self.time(self.at));
        self.first = self.first.min(next);
        Ok(next)
    }

    /// Time of the file's first packet, ns.
    pub fn first(&self) -> Ns {
        self.first
    }

    /// Latest time handed over, ns.
    pub fn newest(&self) -> Ns {
        self.newest
    }

    fn time(&self, at: usize) -> Ns {
        self.packets[at].t.saturating_sub(self.offset)
    }

    /// Hands over the available packets up to a time, each with its clock state. Returns the time of the next packet;
    /// `None` if [`Self::next`] must wait for it.
    #[inline]
    pub fn drain(&mut self, upto: Ns, take: &mut impl FnMut(&Sighting, Option<u8>)) -> Option<Ns> {
        while self.at < self.packets.len() {
            let next = self.newest.max(self.time(self.at));
            let t = self.time(self.at);
            if next > upto {
                return Some(next);
            }
            self.newest = next;
            let Packet { key, stream, synch, .. } = self.packets[self.at];
            self.at += 1;
            match self.streams.get(usize::from(stream)).copied().flatten() {
                Some(stream) => take(&Sighting { t, key, stream, point: self.point, ..Sighting::default() }, synch),
                None => self.beyond += 1,
            }
        }
        None
    }

    /// Reads to the end of the file without handing over packets, because the file's checksum covers all of it. Returns
    /// the number of packets skipped.
    pub fn skip(&mut self) -> Result<u64, ImportError> {
        let mut streams = Streams::default();
        let mut skipped = 0;
        while self.next(&mut streams)? < Ns::MAX {
            skipped += (self.packets.len() - self.at) as u64;
            self.at = self.packets.len();
        }
        Ok(skipped)
    }
}
