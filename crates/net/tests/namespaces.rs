//! ip(8) and tc(8) show the objects and settings that netlink has created and changed, in the test's own namespaces.

use latpath_lab::{Hypervisor, Lab, LabKernel, Nics};
use latpath_net::{
    interfaces, qdiscs, Change, Flag, Gates, MacvtapMode, Netns, NewDevice, Rtnetlink, Shaping, TrafficClasses,
    INGRESS, ROOT,
};
use latpath_testkit::{equal, need_guest, need_lab, need_root, need_tool, trial, Failed, Lack, Space};
use serde_json::Value;
use std::{fs, net::IpAddr, path::Path, process::Command};

type Result = std::result::Result<(), Failed>;

const NEVER: &dyn Fn() -> bool = &|| false;

fn main() -> std::process::ExitCode {
    let needs = [need_root(), need_lab()];
    let tc = [need_root(), need_lab(), need_tool("tc")];
    let kernel = |kind: &str, queues: u32| [tc.to_vec(), vec![kernel_has(kind, queues)]].concat();
    let tests = vec![
        trial("a_namespace_is_made_as_ip_shows_it_and_deleted", &needs, namespace),
        trial("a_veth_is_made_with_an_end_in_another_namespace", &needs, veth),
        trial("devices_change_as_ip_shows_it", &needs, changes),
        trial("flags_change_as_ip_shows_it", &needs, flags),
        trial("bridges_taps_and_macvtaps_are_made", &needs, kinds),
        trial("a_vlan_is_made", &with(&needs, no_vlan()), vlan),
        trial("addresses_and_neighbours_are_those_that_ip_shows", &needs, addresses),
        trial("a_refused_change_names_the_object_and_the_kernels_reason", &needs, refused),
        trial("queueing_disciplines_without_parameters_are_those_that_tc_shows", &tc, plain_qdiscs),
        trial("what_another_program_set_is_put_back_as_it_was", &tc, put_back),
        trial("fq_and_its_parameters_are_those_that_tc_shows", &kernel("fq", 1), fq),
        trial("fq_codel_and_its_parameters_are_those_that_tc_shows", &kernel("fq_codel", 1), fq_codel),
        trial("mqprio_and_its_classes_are_those_that_tc_shows", &kernel("mqprio", 4), mqprio),
        trial("etf_and_its_clock_are_those_that_tc_shows", &kernel("etf", 1), etf),
        trial("taprio_and_its_schedule_are_those_that_tc_shows", &kernel("taprio", 2), taprio),
        trial("the_labs_kernels_have_all_kinds_of_queueing_disciplines", &[need_guest()], on_lab_kernels).in_lab(),
    ];
    latpath_testkit::main(tests)
}

/// Runs the tests of queueing disciplines on the lab's kernels, because this machine's kernel may lack modules.
fn on_lab_kernels() -> Result {
    let me = std::env::current_exe()?;
    for name in ["6.1", "6.12"] {
        let kernel = LabKernel::named(name).ok_or("no such kernel")?;
        let lab = Lab::new()?;
        let mut hypervisor = Hypervisor::boot(&lab, kernel, Nics::default(), &mut |line| eprintln!("{line}"), NEVER)?;
        let program = hypervisor.path_of(&me).display().to_string();
        let modules = "sch_fq sch_fq_codel sch_mqprio sch_etf sch_taprio";
        let said = hypervisor.expect(&format!("modprobe -a {modules} && '{program}' that_tc_shows"), NEVER)?;
        equal(&said, said.contains("6 passed; 0 failed; 0 ignored"), true)?;
    }
    Ok(())
}

fn with(needs: &[Lack], lack: Lack) -> Vec<Lack> {
    needs.iter().cloned().chain([lack]).collect()
}

/// Creates a veth pair with this number of queues; lpq0 is up.
fn pair(queues: u32) -> std::result::Result<Space, Failed> {
    let space = Space::new("net")?;
    space.ip(&format!("link add lpq0 numtxqueues {queues} type veth peer name lpq1 numrxqueues {queues}"))?;
    network(&space)?.set("lpq0", &[Change::Up(true)])?;
    Ok(space)
}

/// Checks that the kernel has a kind of queueing discipline by adding one without parameters.
fn kernel_has(kind: &str, queues: u32) -> Lack {
    let tried = || -> std::result::Result<Option<String>, Failed> {
        let space = pair(queues)?;
        let shaping = Shaping::Other { name: kind.into(), options: Vec::new() };
        let error = network(&space)?.set_qdisc("lpq0", ROOT, &shaping).err().map(|e| e.to_string());
        Ok(error.filter(|error| error.contains("kind is unknown")))
    };
    match (need_root(), tried()) {
        (None, Ok(Some(error))) => Some(format!("the kernel has no {kind}: {error}")),
        _ => None,
    }
}

fn no_vlan() -> Lack {
    let tried = || -> Result {
        let space = pair(1)?;
        Ok(network(&space)?.add_device("lpv", NewDevice::Vlan { lower: "lpq0", id: 5 })?)
    };
    let lacks = |error: &Failed| format!("{error:?}").contains("Unknown device type");
    let is_missing = need_root().is_none() && tried().err().as_ref().is_some_and(lacks);
    is_missing.then(|| "the kernel has no VLAN devices".into())
}

fn network(space: &Space) -> latpath_net::Result<Rtnetlink> {
    Rtnetlink::open(&Netns::named(space.name())?)
}

fn shown(space: &Space, words: &str) -> std::result::Result<Value, Failed> {
    Ok(serde_json::from_slice(&space.ip(words)?)?)
}

fn tc(space: &Space, words: &str) -> std::result::Result<Vec<u8>, Failed> {
    let output = Command::new("tc").args(["-n", space.name()]).args(words.split(' ')).output()?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("tc {words}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// The root queueing discipline of a device, from tc.
fn root(space: &Space, device: &str) -> std::result::Result<Value, Failed> {
    let all: Vec<Value> = serde_json::from_slice(&tc(space, &format!("-j qdisc show dev {device}"))?)?;
    all.into_iter().find(|qdisc| qdisc["root"] == true).ok_or_else(|| "no root".into())
}

/// The root queueing discipline of lpq0, as read by latpath.
fn read(space: &Space) -> std::result::Result<Shaping, Failed> {
    let all = qdiscs(&Netns::named(space.name())?)?;
    let ifindex = space.ifindex("lpq0");
    let root = all.iter().find(|qdisc| qdisc.ifindex == ifindex && qdisc.parent == ROOT);
    Ok(root.ok_or("no root")?.shaping())
}

fn namespace() -> Result {
    let name = format!("latpath-test-{}-made", std::process::id());
    let made = Netns::create(&name)?;
    let listed = String::from_utf8(Command::new("ip").args(["netns", "list"]).output()?.stdout)?;
    equal("it is listed", listed.lines().any(|line| line.split(' ').next() == Some(&name)), true)?;
    equal("its name", made.name(), Some(name.as_str()))?;
    equal("it is another one", made.inode() == Netns::own()?.inode(), false)?;
    let devices: Vec<String> = interfaces(&made)?.into_iter().map(|device| device.name).collect();
    equal("its devices", devices.iter().any(|name| name == "lo"), true)?;
    let twice = Netns::create(&name).unwrap_err().to_string();
    equal(&twice, twice.starts_with(&format!("make network namespace {name}: File exists")), true)?;
    Netns::delete(&name)?;
    equal("it is gone", Path::new("/run/netns").join(&name).exists(), false)?;
    let gone = Netns::delete(&name).unwrap_err().to_string();
    equal(&gone, gone.starts_with(&format!("delete network namespace {name}: No such file")), true)?;
    for name in ["", "..", "a/b"] {
        equal(name, Netns::create(name).is_err(), true)?;
    }
    Ok(())
}

fn veth() -> Result {
    let (one, two) = (Space::new("one")?, Space::new("two")?);
    let there = Netns::named(two.name())?;
    network(&one)?.add_device("lpa", NewDevice::Veth { peer: "lpb", netns: Some(&there) })?;
    network(&one)?.set("lpa", &[Change::Up(true)])?;
    network(&two)?.set("lpb", &[Change::Up(true)])?;
    let link = |space: &Space, device: &str| shown(space, &format!("-d -j link show {device}"));
    equal("kind", &link(&one, "lpa")?[0]["linkinfo"]["info_kind"], &"veth".into())?;
    equal("other end", link(&two, "lpb")?[0]["flags"].to_string().contains("\"UP\""), true)?;
    network(&two)?.set("lpb", &[Change::Netns(&Netns::named(one.name())?)])?;
    equal("it is moved", link(&one, "lpb")?[0]["ifname"].as_str(), Some("lpb"))?;
    network(&one)?.delete_device("lpb")?;
    equal("both ends go", interfaces(&Netns::named(one.name())?)?.len(), 1)
}

fn changes() -> Result {
    let space = pair(1)?;
    let network = network(&space)?;
    network.add_device("lpbr", NewDevice::Bridge { multicast_snooping: false, spanning_tree: false })?;
    let mac = [2, 0, 0, 0, 0, 0x33];
    let all =
        [Change::Mtu(1400), Change::Mac(mac), Change::QueueLength(77), Change::Master(Some("lpbr")), Change::Up(false)];
    network.set("lpq0", &all)?;
    let link = shown(&space, "-j link show lpq0")?[0].clone();
    equal("MTU", link["mtu"].as_u64(), Some(1400))?;
    equal("MAC", link["address"].as_str(), Some("02:00:00:00:00:33"))?;
    equal("queue", link["txqlen"].as_u64(), Some(77))?;
    equal("bridge", link["master"].as_str(), Some("lpbr"))?;
    equal("down", link["flags"].to_string().contains("\"UP\""), false)?;
    let device = network.device("lpq0")?;
    equal("read", (device.tx_queue_len, device.address.as_slice(), device.is_up()), (77, &mac[..], false))?;
    network.set("lpq0", &[Change::Master(None)])?;
    equal("no bridge", &shown(&space, "-j link show lpq0")?[0]["master"], &Value::Null)
}

fn kinds() -> Result {
    let space = pair(1)?;
    let network = network(&space)?;
    network.add_device("lpbr", NewDevice::Bridge { multicast_snooping: false, spanning_tree: false })?;
    let bridge = shown(&space, "-d -j link show lpbr")?[0]["linkinfo"].clone();
    equal("bridge", bridge["info_kind"].as_str(), Some("bridge"))?;
    equal("spanning tree", bridge["info_data"]["stp_state"].as_u64(), Some(0))?;
    equal("snooping", bridge["info_data"]["mcast_snooping"].as_u64().unwrap_or(0), 0)?;
    if Path::new("/dev/net/tun").exists() {
        network.add_device("lptap", NewDevice::Tap)?;
        let tap = shown(&space, "-d -j link show lptap")?[0]["linkinfo"].clone();
        equal("tap", (tap["info_kind"].as_str(), tap["info_data"]["type"].as_str()), (Some("tun"), Some("tap")))?;
        equal("it stays", tap["info_data"]["persist"].as_bool(), Some(true))?;
    }
    match network.add_device("lpm", NewDevice::Macvtap { lower: "lpq0", mode: MacvtapMode::Bridge, queues: 2 }) {
        Ok(()) => {
            let macvtap = shown(&space, "-d -j link show lpm")?[0].clone();
            equal("lower", macvtap["link"].as_str(), Some("lpq0"))?;
            equal("mode", macvtap["linkinfo"]["info_data"]["mode"].as_str(), Some("bridge"))
        }
        Err(error) => equal(&error.to_string(), error.to_string().contains("Unknown device type"), true),
    }
}

fn vlan() -> Result {
    let space = pair(1)?;
    network(&space)?.add_device("lpv", NewDevice::Vlan { lower: "lpq0", id: 5 })?;
    let vlan = shown(&space, "-d -j link show lpv")?[0].clone();
    equal("lower", vlan["link"].as_str(), Some("lpq0"))?;
    equal("number", vlan["linkinfo"]["info_data"]["id"].as_u64(), Some(5))
}

fn flags() -> Result {
    let space = pair(1)?;
    let network = network(&space)?;
    let all = [
        (Flag::Multicast, "MULTICAST", true),
        (Flag::Arp, "NOARP", false),
        (Flag::AllMulticast, "ALLMULTI", true),
        (Flag::Promiscuous, "PROMISC", true),
    ];
    for on in [false, true, false] {
        for (flag, name, is_shown) in all {
            network.set("lpq0", &[Change::Flag(flag, on)])?;
            let shown = shown(&space, "-j link show lpq0")?[0]["flags"].clone();
            let has = shown.as_array().is_some_and(|flags| flags.iter().any(|one| one == name));
            equal(&format!("{name} in {shown}"), has, on == is_shown)?;
            equal(name, flag.is_on(network.device("lpq0")?.flags), on)?;
        }
    }
    equal("the other flags", network.device("lpq0")?.is_up(), true)
}

fn addresses() -> Result {
    let space = pair(1)?;
    let network = network(&space)?;
    fs_in(&space, "/proc/sys/net/ipv6/conf/lpq0/disable_ipv6", "0")?;
    let (four, six): (IpAddr, IpAddr) = ("192.0.2.1".parse()?, "fd77::1".parse()?);
    network.add_address("lpq0", four, 24)?;
    let mut expected = vec![(four, 24)];
    if network.add_address("lpq0", six, 64).is_ok() {
        expected.push((six, 64));
    }
    let of = |all: Vec<latpath_net::Address>, ifindex| -> Vec<(IpAddr, u8)> {
        let global = |address: &IpAddr| !address.to_string().starts_with("fe80");
        all.iter().filter(|a| a.ifindex == ifindex && global(&a.address)).map(|a| (a.address, a.prefix)).collect()
    };
    equal("read", of(network.addresses()?, space.ifindex("lpq0")), expected.clone())?;
    let shown = shown(&space, "-j addr show lpq0")?[0]["addr_info"].clone();
    for (address, prefix) in &expected {
        let is = |info: &Value| info["local"] == address.to_string() && info["prefixlen"] == *prefix;
        equal(&shown.to_string(), shown.as_array().is_some_and(|all| all.iter().any(is)), true)?;
    }
    network.add_neighbour("lpq0", "192.0.2.2".parse()?, [2, 0, 0, 0, 0, 2])?;
    let neighbours = String::from_utf8(space.ip("neigh show dev lpq0")?)?;
    equal(&neighbours, neighbours.contains("192.0.2.2 lladdr 02:00:00:00:00:02 PERMANENT"), true)?;
    let permanent = network.neighbours()?;
    equal("permanent", permanent.iter().map(|n| n.address.to_string()).collect::<Vec<_>>(), vec!["192.0.2.2".into()])?;
    network.delete_neighbour("lpq0", "192.0.2.2".parse()?)?;
    equal("deleted", (network.neighbours()?, space.ip("neigh show dev lpq0 nud permanent")?), (vec![], vec![]))?;
    network.delete_address("lpq0", four, 24)?;
    network.add_broadcast_address("lpq0", four, 24, Some("192.0.2.255".parse()?))?;
    let all = network.addresses()?;
    let broadcast = all.iter().find(|a| a.address == four).and_then(|a| a.broadcast).map(|a| a.to_string());
    equal("broadcast", broadcast.as_deref(), Some("192.0.2.255"))?;
    let shown = String::from_utf8(space.ip("addr show dev lpq0")?)?;
    equal(&shown, shown.contains("192.0.2.1/24 brd 192.0.2.255"), true)?;
    network.delete_address("lpq0", four, 24)?;
    equal("taken", of(network.addresses()?, space.ifindex("lpq0")).contains(&(four, 24)), false)
}

/// Writes a file in the namespace; ignores a missing file, e.g. on a kernel without IPv6.
fn fs_in(space: &Space, file: &str, text: &str) -> Result {
    match space.inside(|| fs::write(file, text)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(()),
    }
}

fn refused() -> Result {
    let space = pair(1)?;
    let network = network(&space)?;
    let error = network.set("lp-none", &[Change::Up(true)]).unwrap_err().to_string();
    equal(&error, error.starts_with("find device lp-none: No such"), true)?;
    let error = network
        .add_device("lpq1", NewDevice::Bridge { multicast_snooping: true, spanning_tree: false })
        .unwrap_err()
        .to_string();
    equal(&error, error.starts_with("make bridge lpq1: File exists"), true)?;
    let nonsense = Shaping::Other { name: "lpnone".into(), options: Vec::new() };
    let error = network.set_qdisc("lpq0", ROOT, &nonsense).unwrap_err().to_string();
    let (start, reason) = ("give lpq0 queueing discipline lpnone: ", "qdisc kind is unknown");
    equal(&error, error.starts_with(start) && error.contains(reason), true)?;
    let error = network.delete_qdisc("lpq0", ROOT).unwrap_err().to_string();
    equal(&error, error.starts_with("delete the queueing discipline of lpq0 (root): "), true)
}

fn plain_qdiscs() -> Result {
    for (shaping, queues) in [(Shaping::PfifoFast, 1), (Shaping::Noqueue, 1), (Shaping::Mq, 4)] {
        let space = pair(queues)?;
        network(&space)?.set_qdisc("lpq0", ROOT, &shaping)?;
        equal("tc", root(&space, "lpq0")?["kind"].as_str(), Some(shaping.name()))?;
        equal("read", read(&space)?, shaping)?;
    }
    let space = pair(1)?;
    let network = network(&space)?;
    network.add_qdisc("lpq0", ROOT, &Shaping::PfifoFast)?;
    let error = network.add_qdisc("lpq0", ROOT, &Shaping::PfifoFast).unwrap_err().to_string();
    equal(&error, error.starts_with("add queueing discipline pfifo_fast to lpq0: "), true)?;
    network.delete_qdisc("lpq0", ROOT)?;
    equal("the default is back", root(&space, "lpq0")?["handle"].as_str(), Some("0:")).or_else(|_| {
        // For a device without a queue, tc shows the default as noqueue, or not at all.
        equal("default", root(&space, "lpq0")?["kind"].as_str(), Some("noqueue"))
    })?;
    let ingress = Shaping::Other { name: "clsact".into(), options: Vec::new() };
    match network.add_qdisc("lpq0", INGRESS, &ingress) {
        Ok(()) => Ok(network.delete_qdisc("lpq0", INGRESS)?),
        Err(error) => equal(&error.to_string(), error.to_string().contains("unknown"), true),
    }
}

/// latpath does not know the kind pfifo, so it keeps the parameters as bytes.
fn put_back() -> Result {
    let space = pair(1)?;
    if tc(&space, "qdisc add dev lpq0 root pfifo limit 321").is_err() {
        return equal("a kernel without pfifo has none to put back", true, true);
    }
    let (network, before) = (network(&space)?, read(&space)?);
    equal("kind", before.name(), "pfifo")?;
    network.set_qdisc("lpq0", ROOT, &Shaping::Noqueue)?;
    network.set_qdisc("lpq0", ROOT, &before)?;
    equal("limit", root(&space, "lpq0")?["options"]["limit"].as_u64(), Some(321))
}

fn fq() -> Result {
    let space = pair(1)?;
    let shaping = Shaping::Fq { limit: Some(2000), flow_limit: Some(50), quantum: Some(4000), pacing: Some(false) };
    network(&space)?.set_qdisc("lpq0", ROOT, &shaping)?;
    let options = root(&space, "lpq0")?["options"].clone();
    equal("limit", options["limit"].to_string().contains("2000"), true)?;
    equal("quantum", options["quantum"].as_u64(), Some(4000))?;
    equal("read", read(&space)?, shaping)
}

fn fq_codel() -> Result {
    let space = pair(1)?;
    let ask = Shaping::FqCodel {
        limit: Some(500),
        flows: Some(64),
        quantum: Some(1000),
        target_us: Some(2000),
        interval_us: Some(40_000),
        ecn: Some(false),
    };
    network(&space)?.set_qdisc("lpq0", ROOT, &ask)?;
    let options = root(&space, "lpq0")?["options"].clone();
    equal("limit", options["limit"].as_u64(), Some(500))?;
    equal("flows", options["flows"].as_u64(), Some(64))?;
    // The kernel counts in units of 1024 ns.
    match read(&space)? {
        Shaping::FqCodel { target_us: Some(1999 | 2000), limit: Some(500), ecn: Some(false), .. } => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn classes(queues: Vec<(u16, u16)>) -> TrafficClasses {
    let mut of_priority = [0; 16];
    of_priority[3] = 1;
    TrafficClasses { of_priority, queues, offload: 0 }
}

fn mqprio() -> Result {
    let space = pair(4)?;
    let shaping = Shaping::Mqprio(classes(vec![(1, 0), (3, 1)]));
    network(&space)?.set_qdisc("lpq0", ROOT, &shaping)?;
    let options = root(&space, "lpq0")?["options"].clone();
    equal("classes", options["tc"].as_u64(), Some(2))?;
    equal("map", options["map"][3].as_u64(), Some(1))?;
    equal("read", read(&space)?, shaping)
}

fn etf() -> Result {
    let space = pair(1)?;
    let shaping = Shaping::Etf { clockid: 11, delta_ns: 200_000, flags: 4 };
    network(&space)?.set_qdisc("lpq0", ROOT, &shaping)?;
    let options = root(&space, "lpq0")?["options"].clone();
    equal("clock", options["clockid"].as_str(), Some("TAI"))?;
    equal("delta", options["delta"].as_u64(), Some(200_000))?;
    equal("read", read(&space)?, shaping)
}

fn taprio() -> Result {
    let space = pair(2)?;
    let gates = vec![Gates { open: 1, interval_ns: 200_000 }, Gates { open: 2, interval_ns: 300_000 }];
    let shaping = Shaping::Taprio {
        classes: Some(classes(vec![(1, 0), (1, 1)])),
        clockid: Some(11),
        base_time_ns: 1000,
        cycle_time_ns: 500_000,
        flags: 0,
        txtime_delay_ns: 0,
        gates: gates.clone(),
    };
    // The speed of a veth is 10 Gbit/s, so frames fit into the intervals.
    network(&space)?.set_qdisc("lpq0", ROOT, &shaping)?;
    let options = root(&space, "lpq0")?["options"].clone();
    equal("clock", options["clockid"].as_str(), Some("TAI"))?;
    equal("classes", options["tc"].as_u64(), Some(2))?;
    match read(&space)? {
        Shaping::Taprio { clockid: Some(11), base_time_ns, cycle_time_ns: 500_000, gates: read, .. } => {
            equal("gates", read, gates)?;
            equal("base time", base_time_ns, 1000)
        }
        other => Err(format!("{other:?}").into()),
    }
}
