//! The tests, a file each. A new one is a file and its name in the list.

use crate::Test;

mod agent_by_vsock;
mod boots;
mod both_directions;
mod counters;
mod linux_bridge;
mod nic;
mod ovs_daemon_stops;
mod ovs_fast_path;
mod ovs_slow_action;
mod ovs_upcall;
mod path_function_tracer;
mod path_into_guest;
mod path_ovs_upcall;
mod path_pcap_filter;
mod tap_overflow;
mod udp_read;
mod vms;
mod xdp_redirect;
mod xsk;

/// In the order in which they run.
pub const ALL: &[Test] = &[
    boots::TEST,
    counters::TEST,
    linux_bridge::TEST,
    agent_by_vsock::TEST,
    ovs_fast_path::TEST,
    ovs_upcall::TEST,
    ovs_slow_action::TEST,
    ovs_daemon_stops::TEST,
    tap_overflow::TEST,
    both_directions::TEST,
    path_function_tracer::TEST,
    path_into_guest::TEST,
    path_ovs_upcall::TEST,
    path_pcap_filter::TEST,
    vms::TEST,
    xdp_redirect::TEST,
    xsk::TEST,
    udp_read::TEST,
    nic::TEST,
];
