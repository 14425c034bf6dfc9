//! Writes settings of network devices in the test's own namespace, checks them with ip(8), tc(8), sysctl(8) and
//! ethtool(8), and restores them.

use latpath_lab::{Hypervisor, Lab, LabKernel, Nics};
use latpath_net::{namespace_names, Netns};
use latpath_settings::{namespace_for, Address, Setting, Source, WriteError};
use latpath_testkit::{equal, igb_device, need_guest, need_igb, need_lab, need_root, need_tool, trial, Failed, Space};
use std::collections::BTreeMap;
use std::process::Command;

type Result = std::result::Result<(), Failed>;

fn main() -> std::process::ExitCode {
    let needs = [need_root(), need_lab()];
    let tc = [need_root(), need_lab(), need_tool("tc")];
    let ethtool = [need_root(), need_lab(), need_tool("ethtool")];
    latpath_testkit::main(vec![
        trial("a_devices_settings_are_those_that_ip_shows", &needs, by_ip),
        trial("a_devices_sysctls_are_those_of_its_namespace", &needs, by_sysctl),
        trial("a_devices_qdisc_is_the_one_that_tc_shows", &tc, by_tc),
        trial("a_devices_features_and_channels_are_those_that_ethtool_shows", &ethtool, by_ethtool),
        trial("a_device_moves_to_its_own_namespace_and_back", &needs, moved),
        trial("a_sequence_of_writes_is_undone_from_its_last_to_its_first", &needs, undone),
        trial("a_refusal_names_the_device_and_the_reason", &needs, refused),
        trial("igb_takes_its_settings_as_ethtool_shows", &[need_root(), need_tool("ethtool"), need_igb()], igb)
            .in_lab(),
        trial("the_labs_kernels_take_all_of_these_settings", &[need_guest()], on_lab_kernels).in_lab(),
    ])
}

/// Runs these tests on the lab's kernels, with ethtool(8) and emulated NICs.
fn on_lab_kernels() -> Result {
    let me = std::env::current_exe()?;
    for name in ["6.1", "6.12"] {
        let kernel = LabKernel::named(name).ok_or("no such kernel")?;
        let lab = Lab::new()?;
        let mut hypervisor = Hypervisor::boot(&lab, kernel, Nics::Igb, &mut |line| eprintln!("{line}"), NEVER)?;
        let program = hypervisor.path_of(&me).display().to_string();
        hypervisor.expect("modprobe igb", NEVER)?;
        // Each test is a separate call, because each call has a time limit.
        for test in ["ip_shows", "its_namespace", "tc_shows", "a_devices_features", "moves", "undone", "refusal", "igb"]
        {
            let said = hypervisor.expect(&format!("'{program}' {test}"), NEVER)?;
            equal(&said, said.contains("1 passed; 0 failed; 0 ignored"), true)?;
        }
    }
    Ok(())
}

const NEVER: &dyn Fn() -> bool = &|| false;

fn output(line: &str) -> std::result::Result<String, Failed> {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap_or_default()).args(words).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// The current values in the output of `ethtool`, after the heading of that section: `RX: 64`.
fn present(line: &str) -> std::result::Result<BTreeMap<String, String>, Failed> {
    let text = output(line)?;
    let text = text.split("Current hardware settings:").last().unwrap_or_default();
    let pair = |line: &str| line.split_once(':').map(|(name, value)| (name.trim().into(), value.trim().into()));
    Ok(text.lines().filter_map(pair).collect())
}

fn igb() -> Result {
    let device = igb_device().ok_or("no device of igb")?;
    let nic = Nic(Address::Device { name: device.clone(), netns: 0 });
    for (setting, value, option, shown) in [
        (Setting::DeviceRings, "rx 64 tx 128", "-g", &[("RX", "64"), ("TX", "128")][..]),
        (Setting::DeviceRings, "rx 512", "-g", &[("RX", "512"), ("TX", "128")]),
        (Setting::DeviceChannels, "combined 1", "-l", &[("Combined", "1")]),
        (Setting::DeviceCoalescing, "rx-usecs 0 tx-usecs 0", "-c", &[("rx-usecs", "0"), ("tx-usecs", "0")]),
        (Setting::DevicePause, "autoneg off rx off tx off", "-a", &[("RX", "off"), ("TX", "off")]),
        (Setting::DevicePrivateFlags, "legacy-rx on", "--show-priv-flags", &[("legacy-rx", "on")]),
        (Setting::DeviceGro, "off", "-k", &[("generic-receive-offload", "off")]),
        (Setting::DeviceReceiveChecksum, "off", "-k", &[("rx-checksumming", "off")]),
        (Setting::DeviceSendChecksum, "off", "-k", &[("tx-checksum-ip-generic", "off")]),
        (Setting::DeviceHash, "off", "-k", &[("receive-hashing", "off")]),
    ] {
        let old = nic.read(setting).ok_or(format!("{setting} cannot be read"))?;
        let line = format!("ethtool {option} {device}");
        let before = present(&line)?;
        write(&nic, setting, value)?;
        let after = present(&line)?;
        for (name, value) in shown {
            equal(&format!("{setting}: {name} in {after:?}"), after.get(*name).map(String::as_str), Some(*value))?;
        }
        // The next case continues with these values, so do not restore the old ones.
        if value != "rx 64 tx 128" {
            write(&nic, setting, &old)?;
            equal(&setting.to_string(), present(&line)?, before)?;
        }
    }
    let refused = nic.write(Setting::DeviceRings, "rx 5000").err().map(|e| e.to_string()).unwrap_or_default();
    equal(&refused, refused.contains("the device takes 4096 for rx at most"), true)?;
    let frames = nic.write(Setting::DeviceCoalescing, "rx-frames 1");
    equal(&format!("{frames:?}"), matches!(frames, Err(WriteError::NotOffered { .. })), true)
}

/// A namespace with a veth pair; `lpd0` has four queues and is up.
fn pair() -> std::result::Result<(Space, Nic), Failed> {
    let space = Space::new("dev")?;
    space.ip("link add lpd0 numtxqueues 4 numrxqueues 4 type veth peer name lpd1 numrxqueues 4 numtxqueues 4")?;
    space.ip("link set lpd0 up")?;
    space.ip("link set lpd1 up")?;
    let nic = nic(space.name())?;
    Ok((space, nic))
}

/// The device lpd0 of a namespace.
struct Nic(Address);

impl Nic {
    fn read(&self, setting: Setting) -> Option<String> {
        Source::machine(&[], Vec::new()).value(setting, &self.0).ok()
    }

    fn write(&self, setting: Setting, value: &str) -> std::result::Result<(), WriteError> {
        setting.write(&Source::machine(&[], Vec::new()), &self.0, value)
    }
}

fn nic(space: &str) -> std::result::Result<Nic, Failed> {
    Ok(Nic(Address::Device { name: "lpd0".into(), netns: Netns::named(space)?.inode() }))
}

fn write(nic: &Nic, setting: Setting, value: &str) -> Result {
    Ok(nic.write(setting, value)?)
}

/// Output of a tool that runs in the namespace.
fn shown(space: &Space, line: &str) -> std::result::Result<String, Failed> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    let finished = space.run(command)?;
    Ok(finished.stdout)
}

/// Writes a value, checks it with a tool's output, and writes the old value.
fn checked(
    space: &Space,
    nic: &Nic,
    setting: Setting,
    value: &str,
    (line, before, after): (&str, &str, &str),
) -> Result {
    let old = nic.read(setting).ok_or(format!("{setting} cannot be read"))?;
    let has = |part: &str, when: &str| {
        let shown = shown(space, line)?;
        equal(&format!("{setting} {when}: {part} in {shown}"), shown.contains(part), true)
    };
    has(before, "before")?;
    write(nic, setting, value)?;
    has(after, "after")?;
    write(nic, setting, &old)?;
    has(before, "again")?;
    equal(&setting.to_string(), nic.read(setting), Some(old))
}

fn by_ip() -> Result {
    let (space, nic) = pair()?;
    let link = "ip -d link show lpd0";
    let check = |setting, value, shown| checked(&space, &nic, setting, value, shown);
    check(Setting::DeviceMtu, "1400", (link, "mtu 1500", "mtu 1400"))?;
    check(Setting::DeviceQueueLength, "77", (link, "qlen 1000", "qlen 77"))?;
    check(Setting::DeviceMulticast, "off", (link, "MULTICAST", "<BROADCAST,UP"))?;
    check(Setting::DeviceArp, "off", (link, "<BROADCAST,MULTICAST", "NOARP"))?;
    check(Setting::DeviceAllMulticast, "on", (link, "<BROADCAST,MULTICAST,UP", "ALLMULTI"))?;
    check(Setting::DevicePromiscuous, "on", (link, "<BROADCAST,MULTICAST,UP", "PROMISC"))?;
    check(Setting::DeviceState, "down", (link, ",UP", "state DOWN"))?;
    let address = "ip addr show lpd0";
    space.ip("addr add 192.0.2.9/24 brd 192.0.2.255 dev lpd0")?;
    check(
        Setting::DeviceAddresses,
        "198.51.100.1/24, 198.51.100.2/24",
        (address, "192.0.2.9/24 brd 192.0.2.255", "198.51.100.2/24"),
    )?;
    let neighbours = "ip neigh show dev lpd0";
    check(
        Setting::DeviceNeighbours,
        "192.0.2.2 02:00:00:00:00:02, 192.0.2.3 02:00:00:00:00:03",
        (neighbours, "", "192.0.2.3 lladdr 02:00:00:00:00:03 PERMANENT"),
    )
}

fn by_sysctl() -> Result {
    let (space, nic) = pair()?;
    for (setting, name, value) in [
        (Setting::DeviceArpIgnore, "ipv4/conf/lpd0/arp_ignore", "1"),
        (Setting::DeviceArpAnnounce, "ipv4/conf/lpd0/arp_announce", "2"),
        (Setting::DeviceReversePath, "ipv4/conf/lpd0/rp_filter", "2"),
        (Setting::DeviceSendRedirects, "ipv4/conf/lpd0/send_redirects", "0"),
    ] {
        let line = format!("cat /proc/sys/net/{name}");
        let before = shown(&space, &line)?;
        write(&nic, setting, value)?;
        equal(name, shown(&space, &line)?.trim(), value)?;
        write(&nic, setting, before.trim())?;
    }
    let has_ipv6 = std::path::Path::new("/proc/sys/net/ipv6").exists();
    equal("IPv6", nic.write(Setting::DeviceIpv6Off, "1").is_ok(), has_ipv6)
}

fn by_tc() -> Result {
    let (space, nic) = pair()?;
    let line = "tc qdisc show dev lpd0";
    // By default, a veth has no queueing discipline.
    write(&nic, Setting::DeviceQdisc, "pfifo_fast")?;
    equal("pfifo_fast", shown(&space, line)?.contains("qdisc pfifo_fast"), true)?;
    checked(&space, &nic, Setting::DeviceQdisc, "mq", (line, "qdisc pfifo_fast", "qdisc mq"))?;
    write(&nic, Setting::DeviceQdisc, "noqueue")?;
    equal("noqueue", shown(&space, line)?.contains("qdisc noqueue"), true)?;
    shown(&space, "tc qdisc replace dev lpd0 root bfifo limit 9999")?;
    let why = nic.write(Setting::DeviceQdisc, "noqueue").err().map(|refusal| refusal.to_string()).unwrap_or_default();
    equal(&why, why.contains("tc qdisc del dev lpd0 root"), true)?;
    equal("bfifo", shown(&space, line)?.contains("bfifo"), true)
}

fn by_ethtool() -> Result {
    let (space, nic) = pair()?;
    let features = "ethtool -k lpd0";
    for (setting, name) in [
        (Setting::DeviceTso, "tx-tcp-segmentation"),
        (Setting::DeviceTso6, "tx-tcp6-segmentation"),
        (Setting::DeviceGso, "generic-segmentation-offload"),
        (Setting::DeviceGro, "generic-receive-offload"),
        (Setting::DeviceSendChecksum, "tx-checksum-ip-generic"),
    ] {
        let old = nic.read(setting).ok_or(format!("{setting} cannot be read"))?;
        let new = if old == "on" { "off" } else { "on" };
        checked(&space, &nic, setting, new, (features, &format!("{name}: {old}"), &format!("{name}: {new}")))?;
    }
    write(&nic, Setting::DeviceChannels, "rx 2 tx 3")?;
    let channels = shown(&space, "ethtool -l lpd0")?;
    let current = channels.split("Current hardware settings").nth(1).unwrap_or_default();
    let numbers: Vec<&str> = current.split_whitespace().filter(|word| word.parse::<u32>().is_ok()).collect();
    equal(&channels, numbers, vec!["2", "3"])?;
    write(&nic, Setting::DeviceChannels, "rx 4")?;
    equal("the rest stays", nic.read(Setting::DeviceChannels).as_deref(), Some("rx 4 tx 3"))
}

fn moved() -> Result {
    let (space, nic_before) = pair()?;
    let (name, home) = (namespace_for("lpd0"), space.name().to_owned());
    equal("home", nic_before.read(Setting::DeviceNamespace), Some(home.clone()))?;
    write(&nic_before, Setting::DevicePrivateNamespace, &name)?;
    write(&nic_before, Setting::DeviceNamespace, &name)?;
    equal("gone", nic_before.read(Setting::DeviceState), None)?;
    let there = nic(&name)?;
    equal("there", there.read(Setting::DeviceNamespace), Some(name.clone()))?;
    equal("down", there.read(Setting::DeviceState).as_deref(), Some("down"))?;
    let why = there
        .write(Setting::DevicePrivateNamespace, "none")
        .err()
        .map(|refusal| refusal.to_string())
        .unwrap_or_default();
    equal(&why, why.contains("lpd0 is in it"), true)?;
    write(&there, Setting::DeviceNamespace, &home)?;
    let back = nic(space.name())?;
    write(&back, Setting::DevicePrivateNamespace, "none")?;
    equal("deleted", namespace_names().values().any(|one| *one == name), false)
}

/// Values to write in random sequences.
const WRITES: [(Setting, &[&str]); 10] = [
    (Setting::DeviceMtu, &["1400", "9000", "1500"]),
    (Setting::DeviceQueueLength, &["10", "1000"]),
    (Setting::DeviceMulticast, &["off", "on"]),
    (Setting::DeviceArp, &["off", "on"]),
    (Setting::DevicePromiscuous, &["on", "off"]),
    (Setting::DeviceAddresses, &["192.0.2.1/24", "192.0.2.1/24, 192.0.2.2/24", "none"]),
    (Setting::DeviceArpIgnore, &["1", "2"]),
    (Setting::DeviceGro, &["on", "off"]),
    (Setting::DeviceTso, &["off", "on"]),
    (Setting::DeviceChannels, &["rx 1 tx 1", "rx 4 tx 2", "tx 4"]),
];

/// The device's values of all settings that the sequences change.
fn snapshot(nic: &Nic) -> BTreeMap<Setting, Option<String>> {
    WRITES.iter().map(|(setting, _)| (*setting, nic.read(*setting))).collect()
}

fn undone() -> Result {
    let (_space, nic) = pair()?;
    let before = snapshot(&nic);
    // A linear congruential generator yields the same sequences in every run.
    let mut state = 7_u32;
    let mut random = |most: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % most
    };
    for round in 0..12 {
        let mut journal = Vec::new();
        for _ in 0..random(12) {
            let (setting, values) = WRITES[random(WRITES.len())];
            let old = nic.read(setting).ok_or(format!("{setting} cannot be read"))?;
            write(&nic, setting, values[random(values.len())])?;
            journal.push((setting, old));
        }
        for (setting, old) in journal.iter().rev() {
            write(&nic, *setting, old)?;
        }
        equal(&format!("round {round}: {journal:?}"), snapshot(&nic), before.clone())?;
    }
    Ok(())
}

fn refused() -> Result {
    let (space, nic) = pair()?;
    let why = |setting: Setting, value: &str| match nic.write(setting, value) {
        Err(refusal) => refusal.to_string(),
        Ok(()) => "written".into(),
    };
    let contains = |text: String, part: &str| equal(&text, text.contains(part), true);
    contains(why(Setting::DeviceChannels, "rx 5"), "the device takes 4 for rx at most")?;
    contains(why(Setting::DeviceMtu, "1"), "lpd0/mtu: Invalid argument")?;
    contains(why(Setting::DeviceMulticast, "yes"), "yes is neither on nor off")?;
    contains(why(Setting::DeviceAddresses, "192.0.2.1"), "cannot read \"192.0.2.1\"")?;
    contains(why(Setting::DeviceNamespace, "no-such-namespace"), "no-such-namespace")?;
    let pause = nic.write(Setting::DevicePause, "rx off");
    equal("pause", matches!(pause, Err(WriteError::NotOffered { .. })), true)?;
    space.ip("link del lpd0")?;
    contains(why(Setting::DeviceChannels, "rx 1"), "lpd0 does not exist")?;
    contains(why(Setting::DeviceMulticast, "off"), "find device lpd0")
}
