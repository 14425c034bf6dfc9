//! Topologies in network namespaces: they carry frames, and leave nothing behind, even after a kill at any step.

mod carry;
mod guests;
mod machine;
mod seen;

use carry::{stream, Tap};
use latpath_lab::{Lab, OpenVswitch};
use latpath_net::Rtnetlink;
use latpath_testkit::{equal, need_btf, need_guest, need_root, need_tool, trial, waits, Failed};
use latpath_topology::{down, status, up, Event, Presence, Topologies, Topology, Value};
use latpath_undo::{Journal, Kind, Undo};
use machine::{Machine, Snapshot};
use nix::sys::signal::{raise, Signal};
use std::{os::unix::fs::PermissionsExt, os::unix::process::ExitStatusExt, path::Path, process::ExitCode};

type Test = Result<(), Failed>;

/// VLAN of the guests, whose tag the host removes and adds.
const VLAN: &str = "[vlan]\nid = 5\ntagged_by = 'host'\n";

const FILE: &str = "LATPATH_TEST_TOPOLOGY";
const KILL_AT: &str = "LATPATH_TEST_KILL_AT";
/// Environment variable; if it is set, the process removes the topology instead.
const DOWN: &str = "LATPATH_TEST_DOWN";
/// Ways that work on any machine.
const WAYS: [&str; 3] = ["bridge", "macvtap", "xdp"];

fn main() -> ExitCode {
    if let (Ok(file), Ok(kill_at)) = (std::env::var(FILE), std::env::var(KILL_AT)) {
        return victim(Path::new(&file), kill_at.parse().expect("a number"));
    }
    let needs = [need_root(), need_tool("ip")];
    let with_dpdk = [need_root(), need_guest(), need_tool("ovs-vsctl"), need_tool(latpath_lab::WITH_DPDK)];
    let recording = [need_root(), need_tool("ip"), need_btf(), seen::need_program()];
    let behind_switch = [&recording[..], &[need_tool("ovs-vsctl")]].concat();
    let module = (!seen::has_module()).then(|| "needs the module openvswitch".into());
    let with_kernel = [need_root(), need_guest(), need_tool("ovs-vsctl"), module];
    let mut trials = vec![
        trial("each_way_carries_a_stream_in_both_directions", &needs, carries),
        trial("a_vlan_of_the_host_is_taken_off_and_put_on", &needs, vlan),
        trial("a_vlan_of_the_host_is_an_access_port_of_open_vswitch", &behind_switch, vlan_of_open_vswitch).in_lab(),
        trial("an_uplink_is_restored_as_it_was", &needs, restored),
        trial("nothing_remains_after_a_kill_at_any_step", &needs, killed),
        trial("no_guest_remains_after_a_kill_at_any_step", &[need_root(), need_guest()], killed_with_guest).in_lab(),
        trial("nothing_remains_of_open_vswitch_after_a_kill_at_any_step", &behind_switch, killed_behind_switch)
            .in_lab(),
        trial("a_command_to_open_vswitch_does_not_outlive_a_killed_up", &needs, killed_during_a_command),
        trial("what_others_changed_since_stays", &needs, changed),
        trial("what_cannot_be_made_leaves_nothing", &needs, refused),
        trial("status_names_what_is_gone", &needs, shown),
        trial("status_names_the_points_that_a_recording_sees", &recording, seen::points),
        trial("status_names_the_points_behind_open_vswitch", &behind_switch, seen::points_of_open_vswitch).in_lab(),
        trial("a_guest_answers_on_each_way", &[need_root(), need_guest()], guests::ways).in_lab(),
        trial("a_guest_answers_behind_open_vswitch_on_the_kernels_datapath", &with_kernel, guests::ovs).in_lab(),
        trial("a_guest_answers_behind_open_vswitch_with_af_xdp", &with_dpdk, guests::afxdp).in_lab(),
    ];
    trials.extend(
        guests::IN_HYPERVISOR.map(|test| {
            trial(&format!("in_the_lab::{test}"), &with_dpdk, move || guests::in_hypervisor(test)).in_lab()
        }),
    );
    latpath_testkit::main(trials)
}

/// Makes a topology, and kills itself at this event (0: never). Prints the number of events.
fn victim(file: &Path, kill_at: u32) -> ExitCode {
    let mut events = 0;
    let mut progress = |_: Event<'_>| {
        events += 1;
        if events == kill_at {
            raise(Signal::SIGKILL).expect("it dies");
        }
    };
    let made = Topology::read(file).and_then(|topology| match std::env::var_os(DOWN) {
        Some(_) => down(&topology.name).map(drop),
        None => up(&topology, &mut progress, &|| false).map(drop),
    });
    match made {
        Ok(()) => println!("{events}"),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn make(topology: &Topology) -> Result<(), Failed> {
    up(topology, &mut |_| (), &|| false)?;
    Ok(())
}

/// Sends 4,000 frames per second to a reader that acts as the guest and sends each frame back.
fn carries() -> Test {
    for way in WAYS {
        let machine = Machine::new(way)?;
        let topology = machine.trial(way, "")?;
        let before = Snapshot::take(&machine)?;
        make(&topology)?;
        let shown = status(&topology.name)?;
        equal(&format!("{way}: {shown:?}"), shown.is_whole(), true)?;
        let tap = Tap::open(&machine, &topology)?;
        let sent = stream(&machine, &topology, None)?;
        let (read, echoed) = (tap.end()?, sent.received);
        equal(&format!("{way}: frames to the guest"), read, sent.sent)?;
        equal(&format!("{way}: frames back"), echoed, sent.sent)?;
        let removed = down(&topology.name)?;
        equal(&format!("{way}: left alone"), removed.left_alone, Vec::new())?;
        before.is_again(&machine)?;
    }
    Ok(())
}

/// Tests VLAN tags handled by XDP programs and, if the kernel has VLAN devices, by those.
fn vlan() -> Test {
    for way in WAYS.into_iter().filter(|way| *way == "xdp" || has_vlan_devices()) {
        let machine = Machine::new("vlan")?;
        untagged(&machine, &machine.trial(way, VLAN)?)?;
    }
    Ok(())
}

/// Tests VLAN tags in user space and, if the module is loaded, on the kernel's datapath.
fn vlan_of_open_vswitch() -> Test {
    for way in seen::ways_of_open_vswitch() {
        let machine = Machine::new("vlan")?;
        let lab = Lab::new()?;
        let host = lab.namespace("host")?;
        let switch = OpenVswitch::without_bridge(&lab, &host, "ovs-vswitchd")?;
        untagged(&machine, &seen::behind(&machine.trial(way, VLAN)?, &host, &switch))?;
    }
    Ok(())
}

/// Requires that the reader that acts as the guest sees no tag, and that frames returning to the wire are tagged.
fn untagged(machine: &Machine, topology: &Topology) -> Test {
    make(topology)?;
    let way = topology.way;
    let wire = &topology.uplink.cable.as_ref().ok_or("a cable")?.namespace;
    if has_vlan_devices() {
        machine.ip(&format!("-n {wire} link add link wire0 name tagged type vlan id 5"))?;
        machine.ip(&format!("-n {wire} link set tagged up"))?;
    }
    let tap = Tap::open(machine, topology)?;
    let sent = stream(machine, topology, Some(5))?;
    equal(&format!("{way}: frames to the guest, without a tag"), tap.end()?, sent.sent)?;
    equal(&format!("{way}: frames back"), sent.received, sent.sent)?;
    if has_vlan_devices() {
        // This device receives only frames with the tag.
        let netns = latpath_net::Netns::named(wire)?;
        let tagged = Rtnetlink::open(&netns)?.device("tagged")?.statistics.rx_packets;
        equal(&format!("{way}: {tagged} frames back have the tag"), tagged >= sent.sent, true)?;
    }
    down(&topology.name)?;
    Ok(())
}

/// Whether this kernel has VLAN devices (802.1Q).
fn has_vlan_devices() -> bool {
    Path::new("/proc/net/vlan").exists()
}

/// Requires that an existing uplink, with an address, down and not promiscuous, is restored.
fn restored() -> Test {
    for way in WAYS {
        let machine = Machine::new("uplink")?;
        machine.lay_uplink()?;
        let before = Snapshot::take(&machine)?;
        let topology = machine.on_uplink(way, "")?;
        if way != "macvtap" {
            let error = up(&topology, &mut |_| (), &|| false).err().map(|e| e.to_string()).unwrap_or_default();
            equal(&error, error.contains("it has address 192.0.2.1/24"), true)?;
            before.is_again(&machine)?;
        }
        let topology = machine.on_uplink(way, "keep_addresses = true")?;
        make(&topology)?;
        equal(&format!("{way}: the uplink was changed"), Snapshot::take(&machine)? != before, true)?;
        down(&topology.name)?;
        before.is_again(&machine)?;
    }
    Ok(())
}

fn killed() -> Test {
    for way in WAYS {
        let machine = Machine::new(way)?;
        machine.lay_uplink()?;
        let before = Snapshot::take(&machine)?;
        for on_uplink in [false, true] {
            let topology = match on_uplink {
                false => machine.trial(way, "")?,
                true => machine.on_uplink(way, "keep_addresses = true")?,
            };
            let whole = machine.run_victim(&topology, 0)?;
            let events: u32 =
                String::from_utf8_lossy(&whole.stdout).trim().parse().map_err(|_| format!("{whole:?}"))?;
            equal("it stays after its maker", status(&topology.name)?.is_whole(), true)?;
            down(&topology.name)?;
            before.is_again(&machine)?;
            for kill_at in 1..=events {
                let ended = machine.run_victim(&topology, kill_at)?;
                equal(&format!("{way} {kill_at}: {ended:?}"), ended.status.signal(), Some(9))?;
                match kill_at % 2 {
                    0 => drop(down(&topology.name)?),
                    _ => sweep()?,
                }
                before.is_again(&machine).map_err(|e| format!("{way}, killed at {kill_at}: {e:?}"))?;
            }
        }
    }
    Ok(())
}

/// Kills latpath at each event while it makes a topology with a guest, which only runs its firmware.
fn killed_with_guest() -> Test {
    let machine = Machine::new("guest")?;
    let further = "qemu = { acceleration = 'tcg', vhost = false, memory_mib = 64 }";
    let topology = machine.trial_with_guest("macvtap", further)?;
    let before = Snapshot::take(&machine)?;
    let whole = machine.run_victim(&topology, 0)?;
    let events: u32 = String::from_utf8_lossy(&whole.stdout).trim().parse().map_err(|_| format!("{whole:?}"))?;
    equal("the guest outlives its maker", status(&topology.name)?.is_whole(), true)?;
    down(&topology.name)?;
    before.is_again(&machine)?;
    for kill_at in 1..=events {
        let ended = machine.run_victim(&topology, kill_at)?;
        equal(&format!("{kill_at}: {ended:?}"), ended.status.signal(), Some(9))?;
        down(&topology.name)?;
        // The shell that has not yet become QEMU ends on its own.
        waits::until("nothing remains", || before.is_again(&machine).is_ok())
            .or_else(|_| before.is_again(&machine).map_err(|e| format!("killed at {kill_at}: {e:?}")))?;
    }
    Ok(())
}

/// Kills latpath at each event while it uses Open vSwitch in user space, which needs no kernel module.
fn killed_behind_switch() -> Test {
    let machine = Machine::new("killed")?;
    let lab = Lab::new()?;
    let host = lab.namespace("host")?;
    let switch = OpenVswitch::without_bridge(&lab, &host, "ovs-vswitchd")?;
    let state = || -> Result<(String, Vec<u8>), Failed> {
        let rows = switch.vsctl("show")? + &switch.vsctl("get Open_vSwitch . other_config")?;
        Ok((rows, host.ip("-br link show")?))
    };
    // The first bridge makes devices of the datapath, which stay until Open vSwitch ends; so they are made beforehand.
    let topology = machine.behind(host.name(), &switch.database())?;
    make(&topology)?;
    down(&topology.name)?;
    let (files, rows) = (Snapshot::take(&machine)?, state()?);
    let whole = machine.run_victim(&topology, 0)?;
    let events: u32 = String::from_utf8_lossy(&whole.stdout).trim().parse().map_err(|_| format!("{whole:?}"))?;
    equal("the mask is set", state()?.0.contains("pmd-cpu-mask"), true)?;
    down(&topology.name)?;
    for kill_at in 0..=events {
        if kill_at > 0 {
            let ended = machine.run_victim(&topology, kill_at)?;
            equal(&format!("{kill_at}: {ended:?}"), ended.status.signal(), Some(9))?;
            match kill_at % 2 {
                0 => drop(down(&topology.name)?),
                _ => sweep()?,
            }
        }
        files.is_again(&machine).map_err(|e| format!("killed at {kill_at}: {e:?}"))?;
        equal(&format!("killed at {kill_at}"), state()?, rows.clone())?;
    }
    Ok(())
}

/// Replaces ovs-vsctl: when it adds a bridge, it first waits for a file, and then creates another one.
const SLOW_VSCTL: &str = "#!/bin/sh
case \"$*\" in
*add-br*) echo $$ > $FOLDER/started; until test -e $FOLDER/go; do sleep 0.01; done; touch $FOLDER/committed ;;
*iface_types*) echo '[afxdp]' ;;
esac
";

fn killed_during_a_command() -> Test {
    let (machine, lab) = (Machine::new("during")?, Lab::new()?);
    let topology = machine.behind(lab.namespace("host")?.name(), "unix:/none")?;
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("ovs-vsctl"), SLOW_VSCTL)?;
    std::fs::set_permissions(file("ovs-vsctl"), std::fs::Permissions::from_mode(0o755))?;
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let with_slow_command = || -> Result<_, Failed> {
        let mut command = machine.victim(&topology, 0)?;
        command.env("PATH", &path).env("FOLDER", folder.path());
        Ok(command)
    };
    let mut victim = with_slow_command()?.spawn()?;
    let started = || std::fs::read_to_string(file("started")).unwrap_or_default();
    waits::until("it adds the bridge", || started().ends_with('\n'))?;
    victim.kill()?;
    victim.wait()?;
    // A killed process that has not been reaped has an empty command line.
    let words = format!("/proc/{}/cmdline", started().trim());
    waits::until("the command has ended", || std::fs::read(&words).unwrap_or_default().is_empty())?;
    std::fs::write(file("go"), "")?;
    equal("what it committed", file("committed").exists(), false)?;
    let undone = with_slow_command()?.env(DOWN, "1").output()?;
    equal(&format!("{undone:?}"), undone.status.success(), true)
}

/// Does what the next start of latpath does: sweeps the journal.
fn sweep() -> Test {
    let notes = Journal::of_this_machine().sweep(&[&Topologies]);
    equal("kind", Topologies::KIND, Kind::Topology)?;
    let bad = notes.iter().find(|note| note.contains("left by a latpath"));
    equal("swept", bad, None)
}

fn changed() -> Test {
    let machine = Machine::new("changed")?;
    machine.lay_uplink()?;
    let topology = machine.on_uplink("bridge", "keep_addresses = true")?;
    make(&topology)?;
    machine.host.ip("link set eno1 mtu 1400")?;
    machine.host.ip("link set eno1 nomaster")?;
    let shown = status(&topology.name)?;
    let changed: Vec<_> = shown.objects.iter().filter(|object| object.state == Presence::Changed).collect();
    equal(&format!("{shown:?}"), (shown.is_whole(), changed.len()), (false, 2))?;
    machine.host.ip("link add other type bridge")?;
    machine.host.ip("link set eno1 master other")?;
    let removed = down(&topology.name)?;
    let left: Vec<_> = removed.left_alone.iter().map(|what| what.rsplit(": ").next().unwrap_or_default()).collect();
    let stays = |value: Value| format!("stays {value}, which another program has set");
    let expected = [stays(Value::Master(Some("other".into()))), stays(Value::Mtu(1400))];
    equal("left alone", left, expected.iter().map(String::as_str).collect())?;
    let uplink = Rtnetlink::open(machine.host.netns())?.device("eno1")?;
    equal("not latpath's to change", (uplink.mtu, uplink.master.is_some()), (1400, true))
}

fn refused() -> Test {
    let machine = Machine::new("refused")?;
    machine.lay_uplink()?;
    let before = Snapshot::take(&machine)?;
    let fails = |topology: &Topology, words: &str| -> Test {
        let error = up(topology, &mut |_| (), &|| false).err().map(|e| e.to_string()).unwrap_or_default();
        equal(&format!("{error}, not {words}"), error.contains(words), true)?;
        before.is_again(&machine)
    };
    let mut topology = machine.on_uplink("bridge", "keep_addresses = true")?;
    topology.uplink.device = "eno7".into();
    fails(&topology, "eno7: no such device")?;
    topology.uplink.device = "eno1".into();
    topology.guests[0].tap = Some("busy0".into());
    machine.host.ip("link add busy0 type dummy").or_else(|_| machine.host.ip("link add busy0 type bridge"))?;
    let before = Snapshot::take(&machine)?;
    let error = up(&topology, &mut |_| (), &|| false).err().map(|e| e.to_string()).unwrap_or_default();
    equal(&error, error.contains("busy0: a device has this name already"), true)?;
    equal(&error, error.contains("is removed again"), true)?;
    before.is_again(&machine)?;
    // Simulates Ctrl-C at the third change.
    topology.guests[0].tap = Some("tap0".into());
    let calls = std::cell::Cell::new(0);
    let stop = || {
        calls.set(calls.get() + 1);
        calls.get() > 2
    };
    let error = up(&topology, &mut |_| (), &stop).err().map(|e| e.to_string()).unwrap_or_default();
    equal(&error, error.starts_with("interrupted"), true)?;
    before.is_again(&machine)?;
    let mut with_guest = topology.clone();
    let qemu = latpath_topology::Qemu { program: "/bin/false".into(), ..Default::default() };
    with_guest.guests[0].qemu = Some(qemu);
    let error = up(&with_guest, &mut |_| (), &|| false).err().map(|e| e.to_string()).unwrap_or_default();
    equal(&error, error.contains("guest relay: /bin/false ended (exit status: 1)"), true)?;
    before.is_again(&machine)?;
    make(&topology)?;
    let error = up(&topology, &mut |_| (), &|| false).err().map(|e| e.to_string()).unwrap_or_default();
    equal(&error, error.contains("is up already"), true)?;
    down(&topology.name)?;
    let error = down(&topology.name).err().map(|e| e.to_string()).unwrap_or_default();
    equal(&error, error.contains("it is not up"), true)?;
    before.is_again(&machine)
}

fn shown() -> Test {
    let machine = Machine::new("shown")?;
    let topology = machine.trial("bridge", "")?;
    make(&topology)?;
    let shown = status(&topology.name)?;
    let points: Vec<_> = shown.points.iter().map(|point| point.point.as_str()).collect();
    let expected = ["host/nic-rx@eno1", "host/tx@tap0", "host/vm-read@tap0", "host/vm-write@tap0", "host/tx@eno1"];
    equal("points", points, expected.to_vec())?;
    equal("gaps", shown.gaps.len(), 0)?;
    let host = topology.namespace.clone().ok_or("a namespace")?;
    machine.ip(&format!("-n {host} link delete tap0"))?;
    machine.ip(&format!("-n {host} link add tap0 type bridge"))?;
    let shown = status(&topology.name)?;
    let gone: Vec<_> = shown.objects.iter().filter(|object| object.state != Presence::Present).collect();
    equal(&format!("{gone:?}"), gone.len(), 1)?;
    equal("another device", (gone[0].object.as_str(), gone[0].state), ("tap tap0", Presence::Replaced))?;
    let removed = down(&topology.name)?;
    equal("it is not latpath's", removed.left_alone.len(), 1)
}
