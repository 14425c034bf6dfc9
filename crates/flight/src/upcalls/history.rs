//! The flows that datapaths had, and the latest upcalls, updated with each of the programs' records.

use super::{FlowState, Removal, Upcall};
use crate::layout::{constants, DatapathRecord as Record};
use crate::names::Thread;
use latpath_bpf::from_bytes;
use latpath_model::text::{of_field, printable};
use latpath_model::Ns;
use std::collections::{HashMap, VecDeque};

/// Maximum number of flows kept (the latest). Each upcall is compared with all of them, so there must not be too many.
const MAX_FLOWS: usize = 2048;
/// Maximum number of upcalls kept (the latest).
pub(crate) const MAX_UPCALLS: usize = 4096;
/// Maximum number of sockets, of threads, of CPUs and of tables kept.
const MAX_EACH: usize = 4096;
/// Maximum time between the record of an upcall and its arrival in its queue, ns.
const ON_ITS_WAY: Ns = 1_000_000;
/// OVS_PACKET_CMD_MISS of include/uapi/linux/openvswitch.h.
const MISS: u32 = 1;
const KEY: usize = constants::FLOW_KEY_BYTES;

/// A flow that a datapath has, or had.
struct Flow {
    table: u64,
    /// Offset in the packet's key of the part that the mask covers, bytes.
    start: usize,
    /// That part of the key; bits outside the mask are 0.
    key: Box<[u8]>,
    mask: Box<[u8]>,
    installed: Option<Ns>,
    removal: Option<Removal>,
    /// Number of packets since its removal that would have matched it.
    missed: u64,
}

impl Flow {
    fn is(&self, other: &Self) -> bool {
        (self.table, self.start) == (other.table, other.start) && self.key == other.key && self.mask == other.mask
    }

    fn matches(&self, table: u64, key: &[u8]) -> bool {
        let Some(part) = key.get(self.start..self.start + self.mask.len()) else { return false };
        self.table == table && part.iter().zip(&self.mask).zip(&self.key).all(|((k, mask), own)| k & mask == *own)
    }
}

/// An upcall that may still be read and replied to.
struct Entry {
    upcall: Upcall,
    /// Whether the packet matched no flow; otherwise a flow's action sent it.
    is_miss: bool,
    port: u32,
}

/// The state after all records so far.
pub(super) struct History {
    /// Time from which all changes to flows are known; `None` if the kernel does not report them.
    since: Option<Ns>,
    /// Duration of the kernel's tick, ns.
    tick: Ns,
    flows: VecDeque<Flow>,
    /// The latest removal of all flows of each table.
    emptied: HashMap<u64, Removal>,
    upcalls: VecDeque<Entry>,
    /// Number of upcalls that are no longer in `upcalls`.
    dropped: u64,
    /// Sequence numbers of the upcalls in each socket's queue, the oldest first.
    queues: HashMap<u32, VecDeque<u64>>,
    /// Sequence number of each CPU's last upcall.
    last: HashMap<u32, u64>,
    /// Sequence numbers of the upcalls that each handler has read but not replied to.
    read: HashMap<u32, Vec<u64>>,
}

impl History {
    pub fn new(since: Ns, tick: Ns, knows_flows: bool) -> Self {
        Self {
            since: knows_flows.then_some(since),
            tick,
            flows: VecDeque::new(),
            emptied: HashMap::new(),
            upcalls: VecDeque::new(),
            dropped: 0,
            queues: HashMap::new(),
            last: HashMap::new(),
            read: HashMap::new(),
        }
    }

    /// Discards the state of flows and queues, which may be wrong because records were lost before `now`.
    pub fn forget(&mut self, now: Ns) {
        self.since = self.since.map(|_| now);
        self.flows.clear();
        self.emptied.clear();
        self.queues.clear();
        self.read.clear();
    }

    /// The upcalls of packets without a flow in `from..to`, in order of time.
    pub fn between(&self, from: Ns, to: Ns) -> Vec<Upcall> {
        let within = |entry: &&Entry| entry.is_miss && (from..to).contains(&entry.upcall.t);
        let mut upcalls: Vec<Upcall> = self.upcalls.iter().filter(within).map(|entry| entry.upcall.clone()).collect();
        upcalls.sort_by_key(|upcall| upcall.t);
        upcalls
    }

    /// Processes a record: its head, and the key and mask that may follow.
    pub fn take(&mut self, bytes: &[u8]) {
        let Some((head, rest)) = bytes.split_at_checked(size_of::<Record>()) else { return };
        let Some(head) = from_bytes::<Record>(head) else { return };
        let t = Ns::try_from(head.time).unwrap_or(Ns::MAX);
        match head.event as usize {
            constants::FLOW_INSERTED | constants::FLOW_REMOVED => self.flow(&head, t, rest),
            constants::TABLE_FLUSHED => self.flushed(&head, t),
            constants::UPCALL_SENT => self.sent(&head, t, rest),
            constants::UPCALL_LOST => self.lost(&head),
            constants::UPCALL_READ => self.was_read(&head, t),
            constants::QUEUE_EMPTY => self.empty(&head, t),
            constants::REPLY_SENT => self.answered(&head, t),
            _ => {}
        }
    }

    fn flow(&mut self, head: &Record, t: Ns, rest: &[u8]) {
        let (start, end) = (usize::from(head.start), usize::from(head.end));
        let Some((key, mask)) = rest.split_at_checked(KEY) else { return };
        let (Some(key), Some(mask)) = (key.get(start..end), mask.get(start..end)) else { return };
        let mut flow = Flow {
            table: head.table,
            start,
            key: key.into(),
            mask: mask.into(),
            installed: None,
            removal: None,
            missed: 0,
        };
        let known = self.flows.iter().position(|known| known.is(&flow));
        let known = known.and_then(|at| self.flows.remove(at));
        if head.event as usize == constants::FLOW_INSERTED {
            flow.installed = Some(t);
        } else {
            flow.installed = known.filter(|known| known.removal.is_none()).and_then(|known| known.installed);
            let idle = Ns::try_from(head.idle).ok().and_then(|ticks| ticks.checked_mul(self.tick));
            // A flow that no packet used has been idle since its installation.
            let idle = idle.or_else(|| Some(t.saturating_sub(flow.installed?)));
            let removal = removal(head, t, false);
            let installed = flow.installed;
            flow.removal = Some(Removal { packets: Some(head.packets), idle_ns: idle, installed, ..removal });
        }
        self.flows.push_back(flow);
        if self.flows.len() > MAX_FLOWS {
            self.flows.pop_front();
            // A packet may match the flow just discarded, so the state of flows is known only from now on.
            self.since = self.since.map(|_| t);
        }
    }

    fn flushed(&mut self, head: &Record, t: Ns) {
        let removal = removal(head, t, true);
        for flow in self.flows.iter_mut().filter(|flow| flow.table == head.table && flow.removal.is_none()) {
            flow.removal = Some(Removal { installed: flow.installed, ..removal.clone() });
        }
        if self.emptied.len() >= MAX_EACH {
            self.emptied.clear();
        }
        self.emptied.insert(head.table, removal);
    }

    fn sent(&mut self, head: &Record, t: Ns, key: &[u8]) {
        let is_miss = head.command == MISS;
        let (flow, missed_before) = match self.since {
            Some(since) if is_miss => self.missing(head.table, key, since),
            _ => (FlowState::Unknown, 0),
        };
        let number = self.dropped + self.upcalls.len() as u64;
        let upcall = Upcall { t, cpu: head.cpu, flows: head.flows, flow, missed_before, read: None, answered: None };
        self.upcalls.push_back(Entry { upcall, is_miss, port: head.port });
        if self.upcalls.len() > MAX_UPCALLS {
            self.upcalls.pop_front();
            self.dropped += 1;
        }
        if self.queues.len() >= MAX_EACH || self.last.len() >= MAX_EACH {
            self.queues.clear();
            self.last.clear();
        }
        self.last.insert(head.cpu, number);
        let queue = self.queues.entry(head.port).or_default();
        queue.push_back(number);
        if queue.len() > MAX_UPCALLS {
            queue.pop_front();
        }
    }

    /// Finds the flow that would have matched a key. Returns its state, and the number of earlier packets that missed
    /// it.
    fn missing(&mut self, table: u64, key: &[u8], since: Ns) -> (FlowState, u64) {
        let matching = self.flows.iter_mut().filter(|flow| flow.matches(table, key));
        // An existing flow takes precedence over removed ones.
        let latest = matching.max_by_key(|flow| flow.removal.as_ref().map_or(Ns::MAX, |removal| removal.at));
        let Some(flow) = latest else {
            let emptied = self.emptied.get(&table).cloned();
            return (emptied.map_or(FlowState::NeverThere { since }, FlowState::Removed), 0);
        };
        let missed = flow.missed;
        flow.missed += 1;
        let state = match &flow.removal {
            Some(removal) => FlowState::Removed(removal.clone()),
            None => FlowState::Installed { at: flow.installed.unwrap_or(since) },
        };
        (state, missed)
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        self.upcalls.get_mut(usize::try_from(number.checked_sub(self.dropped)?).ok()?)
    }

    /// The last upcall of the record's CPU did not reach its queue.
    fn lost(&mut self, head: &Record) {
        let Some(number) = self.last.remove(&head.cpu) else { return };
        let Some(port) = self.entry(number).map(|entry| entry.port) else { return };
        if let Some(queue) = self.queues.get_mut(&port) {
            queue.retain(|waiting| *waiting != number);
        }
    }

    /// A handler found its queue empty: all upcalls were read or lost, except those still in transit.
    fn empty(&mut self, head: &Record, t: Ns) {
        let Some(mut queue) = self.queues.remove(&head.port) else { return };
        queue.retain(|number| self.entry(*number).is_some_and(|entry| entry.upcall.t > t.saturating_sub(ON_ITS_WAY)));
        self.queues.insert(head.port, queue);
    }

    fn was_read(&mut self, head: &Record, t: Ns) {
        let Some(number) = self.queues.get_mut(&head.port).and_then(VecDeque::pop_front) else { return };
        if self.read.len() >= MAX_EACH {
            self.read.clear();
        }
        let read = self.read.entry(head.pid).or_default();
        if read.len() < MAX_UPCALLS {
            read.push(number);
        }
        if let Some(entry) = self.entry(number) {
            entry.upcall.read = Some((head.pid, t));
        }
    }

    fn answered(&mut self, head: &Record, t: Ns) {
        for number in self.read.remove(&head.pid).unwrap_or_default() {
            if let Some(entry) = self.entry(number) {
                entry.upcall.answered = Some(t);
            }
        }
    }
}

/// A removal by the thread in a record.
fn removal(head: &Record, at: Ns, all: bool) -> Removal {
    let by = Thread { name: printable(&of_field(&head.comm)), tgid: head.tgid };
    Removal { at, pid: head.pid, by, flows: head.flows, all, installed: None, packets: None, idle_ns: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_bpf::bytes_of;

    const TABLE: u64 = 0x1000;
    const TICK: Ns = 4_000_000;
    /// The part of keys that the masks in these tests cover.
    const PART: std::ops::Range<usize> = 8..16;

    fn record(event: usize, t: u64) -> Record {
        let mut comm = [0; 16];
        comm[..12].copy_from_slice(b"revalidator5");
        let (start, end) = (PART.start as u16, PART.end as u16);
        let idle = constants::NEVER_USED as u64;
        let (cpu, pid, tgid, flows) = (1, 911, 900, 3);
        Record {
            time: t,
            table: TABLE,
            packets: 0,
            idle,
            event: event as u32,
            cpu,
            pid,
            tgid,
            flows,
            start,
            end,
            comm,
            port: 7,
            command: MISS,
        }
    }

    /// Creates a key whose covered part begins with these bytes.
    fn key(part: &[u8]) -> Vec<u8> {
        let mut key = vec![0xee; KEY];
        key[PART].fill(0);
        key[PART.start..PART.start + part.len()].copy_from_slice(part);
        key
    }

    fn take(history: &mut History, head: Record, rest: &[&[u8]]) {
        history.take(&[bytes_of(&head), &rest.concat()].concat());
    }

    /// Installs or removes a flow that matches packets whose key begins with `part`.
    fn change(history: &mut History, head: Record, part: &[u8]) {
        let mask = key(&vec![0xff; part.len()]);
        take(history, head, &[&key(part), &mask]);
    }

    fn miss(history: &mut History, t: u64, part: &[u8]) -> Upcall {
        take(history, record(constants::UPCALL_SENT, t), &[&key(part)]);
        history.between(t as Ns, t as Ns + 1).pop().expect("an upcall")
    }

    fn removal(upcall: &Upcall) -> &Removal {
        match &upcall.flow {
            FlowState::Removed(removal) => removal,
            other => panic!("{other:?}"),
        }
    }

    fn history() -> History {
        History::new(10, TICK, true)
    }

    #[test]
    fn a_packet_without_a_flow_finds_the_one_that_was_removed() {
        let mut history = history();
        assert_eq!(miss(&mut history, 20, &[1, 2]).flow, FlowState::NeverThere { since: 10 });
        change(&mut history, record(constants::FLOW_INSERTED, 30), &[1]);
        let removed = Record { packets: 5, idle: 2, ..record(constants::FLOW_REMOVED, 50) };
        change(&mut history, removed, &[1]);
        assert_eq!(miss(&mut history, 60, &[9]).flow, FlowState::NeverThere { since: 10 }, "it has another key");
        let upcall = miss(&mut history, 70, &[1, 2]);
        let by = Thread { name: "revalidator5".into(), tgid: 900 };
        let (installed, packets, idle_ns) = (Some(30), Some(5), Some(2 * TICK));
        let expected = Removal { at: 50, pid: 911, by, flows: 3, all: false, installed, packets, idle_ns };
        assert_eq!((removal(&upcall), upcall.missed_before), (&expected, 0));
        assert_eq!(miss(&mut history, 80, &[1, 3]).missed_before, 1, "the flow's mask does not cover the second byte");
    }

    #[test]
    fn a_flow_that_was_there_before_the_record_is_known_by_its_removal() {
        let mut history = history();
        change(&mut history, Record { packets: 5, idle: 0, ..record(constants::FLOW_REMOVED, 50) }, &[1]);
        let upcall = miss(&mut history, 70, &[1]);
        assert_eq!((removal(&upcall).installed, removal(&upcall).idle_ns), (None, Some(0)));
    }

    #[test]
    fn a_flow_without_packets_is_as_idle_as_it_is_old() {
        let mut history = history();
        change(&mut history, record(constants::FLOW_REMOVED, 20), &[2]);
        change(&mut history, record(constants::FLOW_INSERTED, 30), &[1]);
        change(&mut history, record(constants::FLOW_REMOVED, 50), &[1]);
        assert_eq!(removal(&miss(&mut history, 60, &[1])).idle_ns, Some(20));
        assert_eq!(removal(&miss(&mut history, 61, &[2])).idle_ns, None, "its installation is not known");
    }

    #[test]
    fn emptying_a_table_removes_its_flows_and_those_that_are_not_known() {
        let mut history = history();
        change(&mut history, record(constants::FLOW_INSERTED, 30), &[1]);
        take(&mut history, record(constants::TABLE_FLUSHED, 40), &[]);
        let (known, unknown) = (miss(&mut history, 50, &[1]), miss(&mut history, 51, &[9]));
        assert_eq!((removal(&known).all, removal(&known).installed), (true, Some(30)));
        assert_eq!((removal(&unknown).all, removal(&unknown).installed), (true, None));
        let elsewhere = Record { table: 0x2000, ..record(constants::UPCALL_SENT, 52) };
        take(&mut history, elsewhere, &[&key(&[1])]);
        let other = history.between(52, 53).pop().expect("an upcall");
        assert_eq!(other.flow, FlowState::NeverThere { since: 10 }, "another datapath was not emptied");
        change(&mut history, record(constants::FLOW_INSERTED, 60), &[1]);
        assert_eq!(miss(&mut history, 61, &[1]).flow, FlowState::Installed { at: 60 });
    }

    #[test]
    fn the_latest_removal_counts() {
        let mut history = history();
        change(&mut history, Record { pid: 1, ..record(constants::FLOW_REMOVED, 20) }, &[1, 2]);
        change(&mut history, Record { pid: 2, ..record(constants::FLOW_REMOVED, 30) }, &[1]);
        assert_eq!(removal(&miss(&mut history, 40, &[1, 2])).pid, 2);
        assert_eq!(removal(&miss(&mut history, 41, &[1, 3])).pid, 2);
    }

    #[test]
    fn handlers_read_upcalls_in_order_and_answer_what_they_have_read() {
        let mut history = history();
        let handler = |event, t| Record { pid: 50, ..record(event, t) };
        miss(&mut history, 20, &[1]);
        // A flow's action sends a packet to the same socket; it takes a place in the queue.
        take(&mut history, Record { command: 2, ..record(constants::UPCALL_SENT, 21) }, &[&key(&[1])]);
        miss(&mut history, 22, &[1]);
        take(&mut history, handler(constants::UPCALL_READ, 30), &[]);
        take(&mut history, handler(constants::UPCALL_READ, 31), &[]);
        take(&mut history, handler(constants::REPLY_SENT, 40), &[]);
        take(&mut history, handler(constants::UPCALL_READ, 50), &[]);
        take(&mut history, handler(constants::REPLY_SENT, 60), &[]);
        take(&mut history, handler(constants::REPLY_SENT, 70), &[]);
        let times: Vec<_> = history.between(0, 100).into_iter().map(|u| (u.t, u.read, u.answered)).collect();
        assert_eq!(times, [(20, Some((50, 30)), Some(40)), (22, Some((50, 50)), Some(60))]);
    }

    #[test]
    fn an_upcall_that_did_not_fit_into_its_queue_is_never_read() {
        let mut history = history();
        miss(&mut history, 20, &[1]);
        miss(&mut history, 21, &[1]);
        take(&mut history, record(constants::UPCALL_LOST, 22), &[]);
        miss(&mut history, 23, &[1]);
        for t in [30, 31] {
            take(&mut history, record(constants::UPCALL_READ, t), &[]);
        }
        let read: Vec<_> = history.between(0, 100).into_iter().map(|upcall| upcall.read.map(|(_, t)| t)).collect();
        assert_eq!(read, [Some(30), None, Some(31)]);
    }

    #[test]
    fn an_empty_queue_has_no_upcalls_that_are_still_to_be_read() {
        let mut history = history();
        miss(&mut history, 20, &[1]);
        miss(&mut history, 2_000_000, &[1]);
        // The second upcall was recorded just before, and may not be in the queue yet.
        take(&mut history, record(constants::QUEUE_EMPTY, 2_000_010), &[]);
        take(&mut history, record(constants::UPCALL_READ, 2_000_020), &[]);
        let read: Vec<_> = history.between(0, Ns::MAX).into_iter().map(|upcall| upcall.read.is_some()).collect();
        assert_eq!(read, [false, true]);
    }

    #[test]
    fn after_lost_records_nothing_is_known_of_earlier_flows() {
        let mut history = history();
        change(&mut history, record(constants::FLOW_REMOVED, 20), &[1]);
        history.forget(35);
        assert_eq!(miss(&mut history, 40, &[1]).flow, FlowState::NeverThere { since: 35 });
        let mut blind = History::new(10, TICK, false);
        blind.forget(35);
        assert_eq!(miss(&mut blind, 40, &[1]).flow, FlowState::Unknown);
    }

    #[test]
    fn only_the_latest_flows_and_upcalls_are_kept() {
        let mut history = history();
        for n in 0..3000u64 {
            change(&mut history, record(constants::FLOW_REMOVED, 100 + n), &(n as u16).to_ne_bytes());
        }
        assert_eq!(history.flows.len(), MAX_FLOWS);
        let early = miss(&mut history, 4000, &5u16.to_ne_bytes()).flow;
        assert_eq!(early, FlowState::NeverThere { since: 3099 }, "what was dropped at that time may have matched");
        for t in 5000..10_000 {
            miss(&mut history, t, &[1]);
        }
        assert_eq!((history.upcalls.len(), history.queues[&7].len()), (MAX_UPCALLS, MAX_UPCALLS));
    }

    proptest::proptest! {
        #[test]
        fn any_records_are_taken(records in proptest::collection::vec(
            (0..10usize, proptest::array::uniform4(0..4u32), proptest::collection::vec(0..2u8, 0..40)), 0..60,
        )) {
            let mut history = history();
            for (event, [cpu, pid, port, command], rest) in records {
                let rest = [rest, vec![0; 2 * KEY]].concat();
                let head = Record { cpu, pid, port, command, ..record(event, u64::from(cpu) * 5) };
                history.take(&[bytes_of(&head), &rest].concat());
                history.take(&rest[..rest.len() / 3]);
            }
            proptest::prop_assert!(history.between(Ns::MIN, Ns::MAX).len() <= MAX_UPCALLS);
        }
    }
}
