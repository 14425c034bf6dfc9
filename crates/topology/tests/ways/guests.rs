//! Complete guests: a topology starts QEMU, and packets go from the wire into the guest and back.

use crate::{
    machine::{Machine, Snapshot},
    make, Test,
};
use latpath_lab::{GuestFiles, Hypervisor, Lab, LabKernel, Namespace, Nics, OpenVswitch, WITH_DPDK};
use latpath_net::Netns;
use latpath_testkit::{equal, Failed};
use latpath_topology::{down, status, GuestPort, OvsOptions, Qemu, Topology, Way};
use latpath_vms::TapKind;
use std::{net::IpAddr, path::Path, time::Duration};

const NEVER: &dyn Fn() -> bool = &|| false;
/// Maximum time for an emulated guest to boot, and for a script to run in it.
const PATIENCE: Duration = Duration::from_secs(240);
/// Environment variable that is set in the lab's hypervisor, where guests have KVM and vhost.
pub const NESTED: &str = "LATPATH_NESTED_KVM";
/// The tests that also run in the lab's hypervisor.
pub const IN_HYPERVISOR: [&str; 9] = [
    "each_way_carries_a_stream_in_both_directions",
    "a_vlan_of_the_host_is_taken_off_and_put_on",
    "a_vlan_of_the_host_is_an_access_port_of_open_vswitch",
    "status_names_the_points_that_a_recording_sees",
    "status_names_the_points_behind_open_vswitch",
    "nothing_remains_after_a_kill_at_any_step",
    "a_guest_answers_on_each_way",
    "a_guest_answers_behind_open_vswitch_on_the_kernels_datapath",
    "a_guest_answers_behind_open_vswitch_with_af_xdp",
];
const WIRE: &str = "192.0.2.1";
/// The guest first resolves the wire's address; each request is then one packet in each direction.
const PING: &str =
    "ip addr add 192.0.2.2/24 dev eth0; ping -c 3 -w 60 192.0.2.1 >/dev/null; ping -c 50 -i 0.1 192.0.2.1";

/// Tests bridge, macvtap and XDP with a guest that latpath starts, and macvtap with two queues.
pub fn ways() -> Test {
    for way in super::WAYS {
        let machine = Machine::new("guest")?;
        let topology = machine.trial(way, "")?;
        answered(&machine, topology)?;
    }
    // The guest gets one vCPU per queue.
    let machine = Machine::new("queues")?;
    answered(&machine, machine.trial_with_guest("macvtap", "queues = 2")?)
}

/// Tests Open vSwitch in user space with AF_XDP at the uplink, to a tap and to vhost-user.
pub fn afxdp() -> Test {
    for port in [GuestPort::Tap, GuestPort::VhostUser] {
        let machine = Machine::new("ovs")?;
        let lab = Lab::new()?;
        let host: Namespace = lab.namespace("host")?;
        let switch = OpenVswitch::without_bridge(&lab, &host, WITH_DPDK)?;
        let mut topology = machine.trial("ovs-afxdp", "")?;
        topology.namespace = Some(host.name().into());
        let options = OvsOptions {
            bridge: Some("bro".into()),
            database: Some(switch.database()),
            pmd_cpu_mask: Some("0x2".into()),
            guest_port: port,
            ..OvsOptions::default()
        };
        topology.ovs = Some(options);
        answered(&machine, topology)?;
        let rest = switch.vsctl("show")?;
        equal(&rest, rest.contains("bro"), false)?;
        let mask = switch.vsctl("--if-exists get Open_vSwitch . other_config:pmd-cpu-mask")?;
        equal("the mask is unset again", mask.trim(), "")?;
    }
    Ok(())
}

/// Tests Open vSwitch on the kernel's datapath, with vhost.
pub fn ovs() -> Test {
    let machine = Machine::new("ovs")?;
    let lab = Lab::new()?;
    let host: Namespace = lab.namespace("host")?;
    let switch = OpenVswitch::without_bridge(&lab, &host, "ovs-vswitchd")?;
    let mut topology = machine.trial("ovs", "")?;
    topology.namespace = Some(host.name().into());
    let (bridge, database) = (Some("bro".into()), Some(switch.database()));
    topology.ovs = Some(OvsOptions { bridge, database, ..OvsOptions::default() });
    answered(&machine, topology)?;
    let rest = switch.vsctl("show")?;
    equal(&rest, rest.contains("bro"), false)
}

/// Runs one of this program's tests in a hypervisor, on each of the lab's kernels that LATPATH_LAB names.
pub fn in_hypervisor(test: &str) -> Test {
    let own = std::env::current_exe()?;
    let chosen = std::env::var("LATPATH_LAB").unwrap_or_else(|_| "6.1".into());
    for name in chosen.split(',') {
        let kernel = LabKernel::named(name).ok_or_else(|| format!("LATPATH_LAB: the lab has no kernel {name}"))?;
        let lab = Lab::new()?;
        let mut hypervisor = Hypervisor::boot(&lab, kernel, Nics::default(), &mut |line| eprintln!("{line}"), NEVER)?;
        let ran = hypervisor.run(&format!("{NESTED}=1 {} --exact {test} 2>&1", own.display()), 5 * PATIENCE, NEVER)?;
        eprintln!("Linux {name}, {test}:\n{}", ran.text);
        equal(&format!("{name}, {test}"), ran.status, 0)?;
        equal("it ran", ran.text.contains(" 1 passed; 0 failed; 0 ignored"), true)?;
        equal("the kernel's complaints", hypervisor.complaints(), Vec::<String>::new())?;
    }
    Ok(())
}

/// Starts the guest, which pings the wire, then removes everything.
fn answered(machine: &Machine, mut topology: Topology) -> Result<(), Failed> {
    let lab = Lab::new()?;
    let files = GuestFiles::build(&lab, "guest", &[], &mut |_| (), NEVER)?;
    let before = Snapshot::take(machine)?;
    let nested = std::env::var_os(NESTED).is_some();
    topology.guests[0].qemu = Some(Qemu {
        cpus: topology.guests[0].queues,
        acceleration: if nested { "kvm" } else { "tcg" }.into(),
        memory_mib: u32::try_from(files.memory_mib)?,
        kernel: Some(files.kernel.clone()),
        initrd: Some(files.initramfs.clone()),
        append: Some(files.append.clone()),
        vhost: nested,
        queue_size: Some(512),
        // QEMU 7.2 crashes when an emulated guest masks an interrupt of a vhost-user device.
        vectors: (!nested && topology.has_vhost_user()).then_some(0),
        arguments: files.arguments.clone(),
        ..Qemu::default()
    });
    make(&topology)?;
    let shown = status(&topology.name)?;
    equal(&format!("{shown:?}"), shown.is_whole(), true)?;
    let cable = topology.uplink.cable.clone().ok_or("a cable")?;
    let wire = latpath_net::Rtnetlink::open(&Netns::named(&cable.namespace)?)?;
    wire.add_address(&cable.device, WIRE.parse::<IpAddr>()?, 24)?;
    let mut shell = files.shell(PATIENCE, NEVER)?;
    listed(&topology)?;
    let printed = shell.run(PING, PATIENCE, NEVER)?;
    let what = format!("{}: {}", topology.way, printed.text);
    equal(&what, printed.text.contains("50 packets transmitted, 50 packets received, 0% packet loss"), true)?;
    let queues = shell.run("ls -d /sys/class/net/eth0/queues/rx-* | wc -l", PATIENCE, NEVER)?.text;
    equal("the guest's queues", queues.trim().parse(), Ok(topology.guests[0].queues))?;
    drop(shell);
    let removed = down(&topology.name)?;
    equal("left alone", removed.left_alone, Vec::new())?;
    before.is_again(machine)?;
    equal("its files", Path::new(&latpath_topology::directory(&topology.name)).exists(), false)
}

/// Requires that the guest is found on this host, with its tap, its macvtap, or the program that serves its NIC.
fn listed(topology: &Topology) -> Result<(), Failed> {
    let found = latpath_vms::find()?;
    let host = Netns::named(topology.namespace.as_deref().ok_or("a namespace")?)?.inode();
    let vm = found.vms.iter().find(|vm| vm.netns == Some(host)).ok_or("the guest is not found")?;
    if topology.has_vhost_user() {
        let [nic] = &vm.vhost_user[..] else { return Err(format!("one NIC over vhost-user: {vm:?}").into()) };
        // If the kernel's socket diagnostics are a module, the peer is unknown until the module is loaded.
        if nic.peer.is_none() && latpath_linux::would_load_module("unix_diag") {
            return Ok(());
        }
        let served = nic.peer.as_ref().map_or("nobody", |peer| peer.program.as_str());
        return equal(&format!("{nic:?}"), served.starts_with("ovs-vswitchd"), true);
    }
    let kind = if topology.way == Way::Macvtap { TapKind::Macvtap } else { TapKind::Tap };
    let [tap] = &vm.taps[..] else { return Err(format!("one tap: {vm:?}").into()) };
    equal(&format!("{tap:?}"), (tap.device.as_str(), tap.kind, tap.netns), ("tap0", kind, Some(host)))
}
