//! Merges the packets of all files by time. A file's own order stays as it is, also where its clock went back a little: it is
//! the order in which its point saw the packets.

use crate::{
    chosen::Streams,
    packets::{FileEnd, Message, Packet},
    ImportError,
};
use latpath_model::{Ns, PointId, Sighting, StreamId};
use std::sync::mpsc::{Receiver, Sender};

/// One file's packets, with the times of the common timeline.
pub(crate) struct Feed {
    point: PointId,
    /// What is subtracted from its times.
    offset: Ns,
    from: Receiver<Message>,
    free: Sender<Vec<Packet>>,
    packets: Vec<Packet>,
    at: usize,
    /// The run's number of each stream that the file names; none beyond those that a run can have.
    streams: Vec<Option<StreamId>>,
    /// The newest time that it has had.
    newest: Ns,
    /// The first time that it has.
    first: Ns,
    pub end: Option<Box<FileEnd>>,
    /// Packets of streams beyond those that a run can have.
    pub beyond: u64,
}

impl Feed {
    /// The packets that come by `from`; emptied batches go back by `free`.
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

    /// The time up to which all that was seen before has been handed out; `Ns::MAX` at the end. Waits for the file.
    pub fn next(&mut self, streams: &mut Streams) -> Result<Ns, ImportError> {
        while self.at == self.packets.len() {
            match self.from.recv() {
                _ if self.end.is_some() => return Ok(Ns::MAX),
                Ok(Message::Packets(packets, named)) => {
                    let numbers = named.into_iter().map(|stream| streams.number(stream));
                    self.streams.extend(numbers);
                    // The thread may have ended: then it needs none.
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

    /// The time of its first packet.
    pub fn first(&self) -> Ns {
        self.first
    }

    /// The newest time that was handed out.
    pub fn newest(&self) -> Ns {
        self.newest
    }

    fn time(&self, at: usize) -> Ns {
        self.packets[at].t.saturating_sub(self.offset)
    }

    /// Hands out packets that are here, up to a time. Returns the time of the next one; `None` where [`Self::next`] must
    /// wait for it. `take` also gets what the packet says of its sender's clock.
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

    /// Reads to the end of the file without handing out what is there: its sum is of all of it. How many packets that left out.
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
