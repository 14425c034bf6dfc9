//! The tests, one per file. A new test needs a file and an entry in [`ALL`].

use crate::{Need, Test};

mod agent_by_vsock;
mod agent_flight;
mod boots;
mod both_directions;
mod cause_fixed;
mod cause_guest;
mod cause_host;
mod cause_idle;
mod cause_ovs;
mod clocks_two_machines;
mod counters;
mod doctor_faults;
mod door;
mod exits;
mod exits_guest;
mod flight_recorder;
mod hsr_kernel;
mod hypervisor_guide;
mod igb;
pub mod ladder;
mod linux_bridge;
mod lying_nic;
mod nic;
mod nic_times;
mod ovs_daemon_stops;
mod ovs_fast_path;
mod ovs_no_flow;
mod ovs_slow_action;
mod ovs_upcall;
mod path_function_tracer;
mod path_into_guest;
mod path_ovs_upcall;
mod path_pcap_filter;
mod phc_followed;
mod ping_caps;
mod ping_clocks;
mod ping_hardware;
mod profile;
mod profile_full_load;
mod programs_load;
mod ptp4l_beside;
mod queues;
mod stamping_nics;
mod studies;
mod study;
mod talker_gates;
mod tap_overflow;
mod two_hypervisors;
mod udp_read;
mod vms;
mod xdp_redirect;
mod xsk;

/// The tests by requirement, in the order in which they run.
pub const ALL: &[(Need, &[Test])] = &[
    (Need::Nothing, ORDINARY),
    (Need::Hsr, &[hsr_kernel::TEST]),
    (Need::Isolation, ISOLATION),
    (Need::SlowIdle, IDLE),
    (Need::StampingNics, STAMPING),
    (Need::Igb, IGB),
];

const ORDINARY: &[Test] = &[
    boots::TEST,
    programs_load::TEST,
    exits::TEST,
    counters::TEST,
    linux_bridge::TEST,
    exits_guest::TEST,
    profile::TEST,
    profile_full_load::TEST,
    agent_by_vsock::TEST,
    agent_flight::TEST,
    ovs_fast_path::TEST,
    ovs_no_flow::TEST,
    ovs_upcall::TEST,
    ovs_slow_action::TEST,
    ovs_daemon_stops::TEST,
    tap_overflow::TEST,
    both_directions::TEST,
    cause_host::CPU,
    cause_host::STOPPED,
    cause_guest::TEST,
    cause_ovs::TEST,
    cause_fixed::FAIR,
    cause_fixed::IRQ,
    cause_fixed::FLOWS,
    path_function_tracer::TEST,
    path_into_guest::TEST,
    path_ovs_upcall::TEST,
    path_pcap_filter::TEST,
    ladder::TEST,
    door::MACVTAP,
    door::MACVTAP_QEMU,
    door::VHOST,
    door::RELAYED,
    door::QEMU,
    door::FAULTS,
    study::TEST,
    queues::TEST,
    vms::TEST,
    studies::WAYS,
    two_hypervisors::TEST,
    studies::GATES,
    xdp_redirect::TEST,
    xsk::TEST,
    udp_read::TEST,
    nic::TEST,
    lying_nic::TEST,
    flight_recorder::TEST,
];

const ISOLATION: &[Test] = &[hypervisor_guide::TEST, studies::ISOLATION, doctor_faults::TEST];

const IDLE: &[Test] = &[cause_idle::TEST];

const STAMPING: &[Test] = &[
    stamping_nics::TEST,
    phc_followed::TEST,
    ping_caps::TEST,
    ping_hardware::TEST,
    ping_clocks::TEST,
    nic_times::TEST,
    ptp4l_beside::TEST,
    talker_gates::TEST,
    clocks_two_machines::TEST,
];

const IGB: &[Test] = &[igb::TEST];
