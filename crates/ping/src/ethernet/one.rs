//! The emitter's transport: sends to one peer and ignores the messages of others.

use super::framing::Peer;
use crate::transport::{Arrived, Got, KernelClock, Sent, SentStamp, Transport, Wait};
use std::io;

/// A transport of frames to and from one peer. If the address is a group's, the peer that answers first is used.
#[derive(Debug)]
pub struct ToOne<T> {
    transport: T,
    to: Peer,
    /// Address whose messages are accepted: the peer's, or for a group that of the first answer.
    answers: Option<[u8; 6]>,
}

impl<T: Transport<Peer = Peer>> ToOne<T> {
    /// Restricts a transport to the peer `to`.
    pub fn new(transport: T, to: Peer) -> Self {
        let is_group = to.mac[0] & 1 == 1;
        Self { transport, to, answers: (!is_group).then_some(to.mac) }
    }

    /// The peer.
    pub fn peer(&self) -> Peer {
        self.to
    }

    /// The underlying transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }
}

impl<T: Transport<Peer = Peer>> Transport for ToOne<T> {
    type Peer = ();
    type Error = T::Error;

    #[inline]
    fn send(&mut self, (): (), message: &[u8]) -> Result<Sent, T::Error> {
        self.transport.send(self.to, message)
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8], wait: Wait) -> Result<Got<()>, T::Error> {
        Ok(match self.transport.receive(buffer, wait)? {
            Got::Message(arrived) => {
                let from = arrived.from.mac;
                // An empty message is malformed, so it is no answer.
                let is_answer = arrived.len > 0 && *self.answers.get_or_insert(from) == from;
                // Messages from others are passed on as empty messages, which count as foreign.
                let len = if is_answer { arrived.len } else { 0 };
                Got::Message(Arrived { from: (), len, kernel: arrived.kernel, nic: arrived.nic })
            }
            Got::Nothing => Got::Nothing,
            Got::NobodyThere => Got::NobodyThere,
        })
    }

    fn left(&mut self, each: &mut dyn FnMut(SentStamp<'_>)) -> Result<(), T::Error> {
        self.transport.left(each)
    }

    fn takes(&self) -> u16 {
        self.transport.takes()
    }

    fn kernel_clock(&self) -> KernelClock {
        self.transport.kernel_clock()
    }

    fn dropped(&self) -> u64 {
        self.transport.dropped()
    }

    fn last_refusal(&self) -> Option<io::Error> {
        self.transport.last_refusal()
    }
}
