//! Compares the points that `status` names with those in a recording of a stream to the guest and back.

use crate::{
    carry::{stream, Tap},
    guests::NESTED,
    machine::Machine,
    make, Test, WAYS,
};
use latpath_lab::{Lab, Namespace, OpenVswitch};
use latpath_testkit::{equal, latpath, program, waits, Failed, Lack};
use latpath_topology::{down, status, GuestPort, OvsOptions, PointOnWay, Topology, XdpMode, XdpOptions};
use std::{collections::BTreeSet, path::Path};

/// Kinds of points at the uplink and the tap that are compared.
const KINDS: [&str; 6] = ["nic-rx", "tx", "vm-read", "vm-write", "xdp-redirect", "xsk-rx"];

/// Why the latpath program, which makes the recording, cannot be used; `None` if it is built.
pub fn need_program() -> Lack {
    (!program().exists()).then(|| format!("needs {}, which is not built", program().display()))
}

pub fn points() -> Test {
    for way in WAYS {
        let modes = if way == "xdp" { vec![XdpMode::Native, XdpMode::Generic] } else { vec![XdpMode::Auto] };
        for mode in modes {
            let machine = Machine::new("seen")?;
            let mut topology = machine.trial(way, "")?;
            topology.xdp = (way == "xdp").then_some(XdpOptions { mode });
            same(&machine, &topology)?;
        }
    }
    Ok(())
}

/// Compares the points with a tap, in user space with AF_XDP and, if the module is loaded, on the kernel's datapath.
pub fn points_of_open_vswitch() -> Test {
    for way in ways_of_open_vswitch() {
        let machine = Machine::new("seen")?;
        let lab = Lab::new()?;
        let host = lab.namespace("host")?;
        let switch = OpenVswitch::without_bridge(&lab, &host, "ovs-vswitchd")?;
        same(&machine, &behind(&machine.trial(way, "")?, &host, &switch))?;
    }
    Ok(())
}

/// The ways with Open vSwitch and a tap that this kernel supports.
pub fn ways_of_open_vswitch() -> impl Iterator<Item = &'static str> {
    ["ovs", "ovs-afxdp"].into_iter().filter(|way| *way != "ovs" || has_module())
}

/// The topology with a tap, in the namespace of this Open vSwitch.
pub fn behind(topology: &Topology, host: &Namespace, switch: &OpenVswitch) -> Topology {
    let (bridge, database) = (Some("bro".into()), Some(switch.database()));
    let options = OvsOptions { bridge, database, guest_port: GuestPort::Tap, ..OvsOptions::default() };
    Topology { namespace: Some(host.name().into()), ovs: Some(options), ..topology.clone() }
}

/// Whether the module of the kernel's datapath is loaded.
pub fn has_module() -> bool {
    Path::new("/sys/module/openvswitch").exists()
}

/// Requires that the points that `status` names are those in a recording.
fn same(machine: &Machine, topology: &Topology) -> Test {
    make(topology)?;
    let (seen, on_fast_path) = recorded(machine, topology)?;
    let shown = status(&topology.name)?;
    // Points that need fentry exist only on a kernel with it. Those that need vhost do not exist here, because the
    // reader is no guest.
    let is_offered = |needs: Option<&str>| match needs {
        None => true,
        Some(needs) => std::env::var_os(NESTED).is_some() && !needs.contains("vhost"),
    };
    // A report shows Open vSwitch's optional points as paths; most packets match a flow in the kernel.
    let names_flows = shown.points.iter().any(|point| point.point == "host/ovs-exec@eno1");
    equal(&format!("{}: {on_fast_path} packets on the fast path", topology.way), on_fast_path > 1000, names_flows)?;
    let is_listed = |point: &&PointOnWay| is_offered(point.needs) && !point.point.contains("/ovs-");
    let named = shown.points.iter().filter(is_listed);
    let named: BTreeSet<String> = named.map(|point| point.point.clone()).collect();
    let what = format!("{} {:?}", topology.way, topology.xdp.as_ref().map(|xdp| xdp.mode));
    eprintln!("{what}: status names {named:?}, seen: {seen:?}");
    equal(&format!("{what}: points"), seen, named)?;
    down(&topology.name)?;
    Ok(())
}

/// The points at uplink and tap in a recording, and its number of packets on Open vSwitch's fast path.
fn recorded(machine: &Machine, topology: &Topology) -> Result<(BTreeSet<String>, u64), Failed> {
    let run = machine.host.folder().join("run");
    let _ = std::fs::remove_dir_all(&run);
    let words = format!("record --stream ether:0x88b5 --match hash:0:32 --no-flight -o {}", run.display());
    let mut recorder = machine.host.start(latpath(&words))?;
    let is_recording = |run: &Path| run.join("manifest.json").exists();
    waits::until("the recording begins", || is_recording(&run) || !recorder.runs())?;
    equal(&recorder.said(), is_recording(&run), true)?;
    let tap = Tap::open(machine, topology)?;
    let sent = stream(machine, topology, None)?;
    equal("frames to the guest", tap.end()?, sent.sent)?;
    waits::delivered()?;
    recorder.interrupt();
    let ended = recorder.finish(waits::LIMIT)?;
    equal(&ended.stderr, ended.code, Some(0))?;
    let report: serde_json::Value = machine.host.run(latpath(&format!("report {} --json", run.display())))?.json()?;
    let points = ["points", "off_route"].into_iter().flat_map(|key| report[key].as_array().into_iter().flatten());
    let ours = |point: &&str| {
        let parts = point.strip_prefix("host/").and_then(|point| point.split_once('@'));
        parts.is_some_and(|(kind, device)| KINDS.contains(&kind) && ["eno1", "tap0"].contains(&device))
    };
    let seen = points.filter_map(|point| point.as_str()).filter(ours).map(str::to_owned).collect();
    let mut paths = report["paths"].as_array().into_iter().flatten();
    let on_fast_path = paths.find(|path| path["path"] == "fast path").and_then(|path| path["journeys"].as_u64());
    Ok((seen, on_fast_path.unwrap_or(0)))
}
