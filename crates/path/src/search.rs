//! A running search, and its results.

use crate::attach::{attach, Attached, SearchError};
use crate::layout::{Counts, Event};
use crate::options::{How, Options};
use crate::packet::Packet;
use latpath_bpf::{bytes_of, from_bytes};
use latpath_model::Ns;
use libbpf_rs::{MapCore, MapFlags, RingBuffer, RingBufferBuilder};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// A search in progress.
pub struct Search {
    attached: Option<Attached>,
    ring: RingBuffer<'static>,
    inbox: Rc<RefCell<Vec<Event>>>,
    packets: BTreeMap<u32, Packet>,
    how: How,
    last: Ns,
}

impl Search {
    /// Attaches the programs, which choose packets from then on.
    ///
    /// # Errors
    /// If the kernel does not support tracing, or not with the requested kind of attachment.
    pub fn start(options: &Options) -> Result<Self, SearchError> {
        let (attached, how) = attach(options)?;
        let inbox = Rc::new(RefCell::new(Vec::new()));
        let to = Rc::clone(&inbox);
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            to.borrow_mut().extend(from_bytes::<Event>(bytes));
            0
        };
        builder.add(&attached.events, take).map_err(SearchError::Reading)?;
        let ring = builder.build().map_err(SearchError::Reading)?;
        let open = Counts { open: 1, ..Default::default() };
        attached.counts.update(&0u32.to_ne_bytes(), bytes_of(&open), MapFlags::ANY).map_err(SearchError::Reading)?;
        let last = latpath_linux::monotonic();
        Ok(Self { attached: Some(attached), ring, inbox, packets: BTreeMap::new(), how, last })
    }

    /// How the search is attached.
    pub fn how(&self) -> &How {
        &self.how
    }

    /// Waits for events for at most `time`. Returns the number of packets seen so far.
    pub fn wait(&mut self, time: Duration) -> u32 {
        // An interrupted wait is treated as one without events.
        self.ring.poll_raw(time);
        self.take();
        self.packets.len() as u32
    }

    /// Time of the last event, `CLOCK_MONOTONIC`, ns; if there was none, the start of the search.
    pub fn last(&self) -> Ns {
        self.last
    }

    fn take(&mut self) {
        let Some(attached) = &self.attached else { return };
        for event in self.inbox.borrow_mut().drain(..) {
            self.last = self.last.max(event.t as Ns);
            let packet = self.packets.entry(event.packet).or_insert_with(|| Packet::new(event.packet));
            packet.push(&event, &attached.names);
        }
    }

    /// Counts of missed events so far.
    pub fn counts(&self) -> Counts {
        let Some(attached) = &self.attached else { return Counts::default() };
        let kept = attached.counts.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        let kept = kept.and_then(|bytes| from_bytes::<Counts>(&bytes)).unwrap_or_default();
        Counts { recursion_misses: attached.recursion_misses(), ..kept }
    }

    /// Ends the search; later events are not reported. Returns the packets in the order in which they were chosen, each
    /// with its steps in order of time, the counts of missed events, and the remaining attachments.
    pub fn stop(mut self) -> (Vec<Packet>, Counts, Remains) {
        let counts = self.counts();
        if let Some(attached) = &self.attached {
            // The same update succeeded at the start of the search.
            let _ = attached.counts.update(&0u32.to_ne_bytes(), bytes_of(&Counts::default()), MapFlags::ANY);
        }
        while self.ring.consume_raw() > 0 {}
        self.take();
        let mut packets: Vec<Packet> = std::mem::take(&mut self.packets).into_values().collect();
        packets.iter_mut().for_each(Packet::finish);
        (packets, counts, Remains { attached: self.attached.take() })
    }
}

/// Attachments that remain after a search; dropping this value detaches them. Detaching individual kprobes takes a
/// while: for each of them, the kernel waits until no CPU executes it.
pub struct Remains {
    attached: Option<Attached>,
}

impl Remains {
    /// Number of kprobes that must be detached one by one.
    pub fn kprobes(&self) -> usize {
        self.attached.as_ref().map_or(0, Attached::kprobes)
    }
}
