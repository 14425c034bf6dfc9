//! Faults of Open vSwitch's datapaths in the kernel.

use super::Hit;
use crate::fix::Fix;
use crate::machine::Machine;
use latpath_counters::Datapath;
use latpath_settings::{Disturbance, Setting};

/// Maximum share of packets without a matching flow, percent: the first packet of each connection has none.
const MAX_MISSED: u64 = 5;
/// Minimum number of packets of a datapath for this share to be judged.
const MIN_PACKETS: u64 = 10_000;

pub(super) fn slow_path(machine: &Machine) -> Vec<Hit> {
    let hit = |datapath: &Datapath| {
        let Datapath { name, hit, missed, lost, flows } = datapath;
        let packets = hit.saturating_add(*missed);
        let percent = missed.saturating_mul(100) / packets.max(1);
        let is_missed = packets >= MIN_PACKETS && percent > MAX_MISSED;
        let commands = ["ovs-vsctl set Open_vSwitch . other_config:max-idle=60000"];
        (is_missed || *lost > 0).then(|| Hit {
            what: format!(
                "of {packets} packets of datapath {name}, {missed} found no flow and {lost} upcalls were lost, since its \
                 creation; its table now has {flows} flows"
            ),
            target: name.clone(),
            now: format!("{percent} % without a flow, {lost} lost"),
            should: format!("at most {MAX_MISSED} %, 0 lost"),
            fix: Fix::commands(Setting::OvsConfig, Disturbance::Nothing, commands)
                .undone_by(["ovs-vsctl remove Open_vSwitch . other_config max-idle"]),
            ..Hit::default()
        })
    };
    machine.datapaths.iter().filter_map(hit).collect()
}
