//! Assigns packets to transfers.

use crate::event::{Device, Direction};
use crate::figures::{Key, Lane};
use crate::ladder::{Join, Ladder};
use crate::step::Step;
use crate::threads::Mark;
use crate::transfer::{Open, Stage};

impl Ladder {
    /// A packet for the guest reaches the tap.
    pub(crate) fn arrived(&mut self, mark: Mark, device: Device) {
        let Some(lane) = self.lane(Key::Tap(device)) else { return };
        self.lanes[lane].packets += 1;
        if self.open.iter().any(|open| open.lane == lane && open.stage == Stage::Waiting) {
            self.lanes[lane].coalesced += 1;
            return;
        }
        let vm = self.lanes[lane].vm;
        self.begin(Open { vm, ..Open::new(lane, Direction::ToGuest, mark) });
    }

    /// A server takes a packet off the tap.
    pub(crate) fn packet_to_guest(&mut self, mark: Mark, device: Option<Device>) {
        let is_waiting = |open: &Open| open.stage == Stage::Waiting && open.direction == Direction::ToGuest;
        let woken = self.threads.get(mark.pid).and_then(|thread| thread.woken);
        let candidates: Vec<usize> = (0..self.open.len())
            .filter(|at| {
                let open = &self.open[*at];
                let lane = &self.lanes[open.lane];
                let serves = lane.server == Some(mark.pid) || woken.is_some_and(|woken| woken.t >= open.began());
                let is_its = device.map_or(serves, |device| lane.device == Some(device));
                is_waiting(open) && is_its && self.may_serve(lane.vm, mark.pid)
            })
            .collect();
        let [at] = candidates[..] else {
            // Without a waiting transfer, the packet does not count: of several packets in a round, only the first
            // does.
            self.counts.ambiguous += u64::from(candidates.len() > 1);
            return;
        };
        let lane = self.open[at].lane;
        self.take_up(mark, lane);
        self.work(mark, lane);
    }

    /// Whether this thread may serve the virtual machine: applications on the host may also read packets from taps.
    fn may_serve(&self, vm: Option<u32>, pid: u32) -> bool {
        vm.is_none() || self.threads.is_vhost(pid) || self.threads.process(pid) == vm
    }

    /// A server passes a guest's packet to the tap.
    pub(crate) fn packet_from_guest(&mut self, mark: Mark, device: Option<Device>) {
        let mine = |open: &Open| open.direction == Direction::FromGuest && open.server == mark.pid;
        let fits = |lane: usize, lanes: &[Lane]| {
            lanes[lane].device.is_none() || device.is_none() || lanes[lane].device == device
        };
        let lanes = &self.lanes;
        let find = |is: &dyn Fn(&Open) -> bool| -> Vec<usize> {
            let found = self.open.iter().filter(|open| is(open) && fits(open.lane, lanes)).map(|open| open.lane);
            let mut found: Vec<usize> = found.collect();
            found.dedup();
            found
        };
        let serving = find(&|open| mine(open) && open.stage == Stage::Serving);
        let in_round =
            find(&|open| mine(open) && !open.is_round_over && !matches!(open.stage, Stage::Waiting | Stage::Serving));
        let waiting = match self.join {
            Join::Eventfds => Vec::new(),
            Join::Wakeups => find(&|open| self.waits_for(open, mark.pid)),
        };
        match (&serving[..], &in_round[..], &waiting[..]) {
            ([lane], ..) => match self.left_over(mark.pid, *lane, device) {
                Some(carrier) => self.count_packet(carrier, device),
                None => self.work_on(mark, *lane, device),
            },
            ([], [.., lane], _) => self.count_packet(*lane, device),
            ([], [], [lane]) => {
                self.take_up(mark, *lane);
                self.work_on(mark, *lane, device);
            }
            ([], [], []) => self.packet_without_kick(mark, device),
            (several, _, others) => self.choose(mark, device, [several, others].concat()),
        }
    }

    /// The queue of this device that the server turned to earlier in the same round, if the queue that it now serves
    /// has carried no packet: QEMU continues with a NIC's remaining packets (in a bottom half, without a kick) after it
    /// has turned to another device.
    fn left_over(&self, pid: u32, serving: usize, device: Option<Device>) -> Option<usize> {
        if device.is_none() || self.lanes[serving].device.is_some() {
            return None;
        }
        self.carriers(pid, device).find(|lane| self.lanes[*lane].is_in_round)
    }

    /// The server's queues that have carried packets from the guest to this device, or to any device if the source does
    /// not report it.
    fn carriers(&self, pid: u32, device: Option<Device>) -> impl Iterator<Item = usize> + '_ {
        let carries = move |lane: &Lane| {
            let is_same = device.is_none() || lane.device == device;
            lane.direction == Some(Direction::FromGuest) && lane.server == Some(pid) && is_same
        };
        self.lanes.iter().enumerate().filter(move |(_, lane)| carries(lane)).map(|(at, _)| at)
    }

    /// Whether this thread was woken for the waiting transfer, or serves its queue.
    fn waits_for(&self, open: &Open, pid: u32) -> bool {
        let woken = self.threads.get(pid).and_then(|thread| thread.woken);
        let by_kick = woken.is_some_and(|woken| woken.t >= open.began() && Some(woken.pid) == open.vcpu);
        let is_waiting = open.stage == Stage::Waiting && open.direction == Direction::FromGuest;
        is_waiting && (by_kick || self.lanes[open.lane].server == Some(pid))
    }

    /// Chooses the one queue, among several of a server, that is known to carry this device's packets.
    fn choose(&mut self, mark: Mark, device: Option<Device>, lanes: Vec<usize>) {
        let known =
            |lane: &usize| self.lanes[*lane].packets > 0 && (device.is_none() || self.lanes[*lane].device == device);
        let mut carriers = lanes.iter().copied().filter(known);
        match (carriers.next(), carriers.next()) {
            (Some(lane), None) => {
                if self.open.iter().any(|open| open.lane == lane && open.stage == Stage::Waiting) {
                    self.take_up(mark, lane);
                }
                self.work_on(mark, lane, device);
            }
            _ => self.counts.ambiguous += 1,
        }
    }

    fn count_packet(&mut self, lane: usize, device: Option<Device>) {
        let queue = &mut self.lanes[lane];
        queue.packets += 1;
        queue.device = queue.device.or(device);
        queue.direction = Some(Direction::FromGuest);
    }

    fn work_on(&mut self, mark: Mark, lane: usize, device: Option<Device>) {
        self.count_packet(lane, device);
        self.work(mark, lane);
    }

    /// Marks the transfer in service on this queue as having carried a packet.
    fn work(&mut self, mark: Mark, lane: usize) {
        let serving = |open: &&mut Open| open.lane == lane && open.stage == Stage::Serving;
        if let Some(open) = self.open.iter_mut().find(serving) {
            open.stage = Stage::Worked;
            open.set(Step::Packet, mark);
        }
    }

    /// A packet without a kick: the guest need not kick while the server is active.
    fn packet_without_kick(&mut self, mark: Mark, device: Option<Device>) {
        let lane = self.carriers(mark.pid, device).next();
        if let Some(lane) = lane {
            self.lanes[lane].packets += 1;
        }
    }
}
