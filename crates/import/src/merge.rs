//! Merges the packets of all files by time. The order within a file is kept, even where its clock went back slightly:
//! it is the order in which its point saw the packets.

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
    /// Offset to subtract from its times, ns.
    offset: Ns,
    from: Receiver<Message>,
    free: Sender<Vec<Packet>>,
    packets: Vec<Packet>,
    at: usize,
    /// The run's number of each stream of the file; `None` beyond the limit of a run.
    streams: Vec<Option<StreamId>>,
    /// Newest time so far, ns.
    newest: Ns,
    /// First time, ns.
    first: Ns,
    pub end: Option<Box<FileEnd>>,
    /// Packets of streams beyond the limit of a run.
    pub beyond: u64,
}

impl Feed {
    /// Receives packets through `from`, and returns emptied batches through `free`.
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

    /// Time up to which all earlier packets have been handed out; `Ns::MAX` at the end. Waits for the file.
    pub fn next(&mut self, streams: &mut Streams) -> Result<Ns, ImportError> {
        while self.at == self.packets.len() {
            match self.from.recv() {
                _ if self.end.is_some() => return Ok(Ns::MAX),
                Ok(Message::Packets(packets, named)) => {
                    let numbers = named.into_iter().map(|stream| streams.number(stream));
                    self.streams.extend(numbers);
                    // The thread may have ended, and then needs no batches.
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

    /// Time of its first packet, ns.
    pub fn first(&self) -> Ns {
        self.first
    }

    /// Newest time that was handed out, ns.
    pub fn newest(&self) -> Ns {
        self.newest
    }

    fn time(&self, at: usize) -> Ns {
        self.packets[at].t.saturating_sub(self.offset)
    }

    /// Hands out available packets up to a time. Returns the time of the next one; `None` if [`Self::next`] must wait
    /// for it. `take` also gets the packet's clock state.
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

    /// Reads to the end of the file without handing out packets, because its checksum covers all of it. Returns the
    /// number of packets skipped.
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
