//! Checks the events of guests against their hypervisors' records of the vCPUs.

use crate::{guests::Vcpus, machine::Machine};
use latpath_flight::{Doing, State};
use latpath_model::{Causality, Ns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many of a guest's events agree with its hypervisor's record of the vCPU, and how many contradict it. Events at
/// times without such a record do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuestCausality {
    /// Name of the guest's machine.
    pub machine: String,
    /// Number of events checked, and of events that contradict the record.
    #[serde(flatten)]
    pub events: Causality,
}

/// Checks each guest with a record, known vCPU threads and recorded guest entries.
pub(crate) fn of_guests(machines: &[Machine], vcpus: &Vcpus) -> Vec<GuestCausality> {
    let of = |(place, guest): (usize, &Machine)| {
        let mut events = Causality::default();
        for cpu in guest.cpus() {
            let Some((at, thread)) = vcpus.thread(place, cpu) else { continue };
            let is_checked = vcpus.number(at, thread) == Some(cpu) && machines[at].records_guest_exits_of(thread);
            if is_checked {
                add(&mut events, &machines[at], thread, guest, cpu);
            }
        }
        (events.checked > 0).then(|| GuestCausality { machine: guest.name.clone(), events })
    };
    machines.iter().enumerate().filter_map(of).collect()
}

fn add(sum: &mut Causality, host: &Machine, thread: u32, guest: &Machine, cpu: u32) {
    let stays = stays(host, thread);
    // The hypervisor's own times also have an error, unless it is this host.
    let bound = guest.error_bound.saturating_add(host.error_bound);
    for event in guest.events(cpu, Ns::MIN, Ns::MAX) {
        let at = |t: Ns| stays.get(stays.partition_point(|stay| stay.to <= t)).filter(|stay| stay.from <= t);
        if let Some(stay) = at(event.t) {
            sum.check(event.t, bound, (!stay.inside).then_some((stay.from, stay.to)));
        }
    }
}

/// An interval in which a vCPU thread was inside or outside its guest.
struct VcpuPeriod {
    from: Ns,
    to: Ns,
    inside: bool,
}

/// The vCPU thread's periods in order, without times that the host did not record.
fn stays(host: &Machine, thread: u32) -> Vec<VcpuPeriod> {
    let mut stays: Vec<VcpuPeriod> = Vec::new();
    let mut push = |from: Ns, to: Ns, inside: bool| match stays.last_mut() {
        Some(last) if last.to == from && last.inside == inside => last.to = to,
        _ => stays.push(VcpuPeriod { from, to, inside }),
    };
    for tile in host.row(thread).iter() {
        match tile.state {
            State::Running { cpu } => {
                for part in host.tiles(cpu, tile.from, tile.to) {
                    match part.doing {
                        Doing::Thread(running) if running.pid == thread => push(part.from, part.to, running.guest),
                        doing if doing.interrupts() => push(part.from, part.to, false),
                        _ => {}
                    }
                }
            }
            State::Unknown => {}
            _ => push(tile.from, tile.to, false),
        }
    }
    stays
}
