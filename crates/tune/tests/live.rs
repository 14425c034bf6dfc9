//! Applies the lines of `ping-interface` that concern a network device to devices of this machine, checks them with
//! ip(8), tc(8) and ethtool(8), and undoes them, also after a kill at each step.

use latpath_lab::{Hypervisor, Lab, LabKernel, Nics};
use latpath_net::{namespace_name, Netns};
use latpath_settings::{namespace_for, Setting};
use latpath_testkit::{
    equal, igb_device, need_guest, need_igb, need_lab, need_root, need_tool, trial, waits, Failed, Space,
};
use latpath_tune::{
    plan, Applied, ApplyOptions, Effect, Machine, NoWatch, Plan, Planned, Profile, Selector, Tuning, Tunings,
    Variables, Watch,
};
use latpath_undo::Journal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicBool;

type Result<T = ()> = std::result::Result<T, Failed>;

/// First argument of a child that applies the profile and is killed; it is followed by the journal, the device and the
/// step.
const APPLY: &str = "--apply-and-be-killed";
const NEVER: &dyn Fn() -> bool = &|| false;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if words.get(1).is_some_and(|word| word == APPLY) {
        return match apply_and_be_killed(Path::new(&words[2]), &words[3], &words[4]) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failed) => {
                eprintln!("{}", failed.message().unwrap_or("failed"));
                ExitCode::FAILURE
            }
        };
    }
    let needs = [need_root(), need_lab(), need_tool("tc"), need_tool("nsenter")];
    let igb = [need_root(), need_tool("ethtool"), need_tool("chrt"), need_igb()];
    latpath_testkit::main(vec![
        trial("a_veth_is_prepared_as_ip_and_tc_show_and_undone", &needs, prepared),
        trial("a_device_is_as_before_after_a_kill_at_each_step_and_an_undo", &needs, killed),
        trial("igb_is_prepared_as_ethtool_and_chrt_show_and_undone", &igb, prepared_igb).in_lab(),
        trial("the_labs_kernels_prepare_igb", &[need_guest()], on_lab_kernels).in_lab(),
    ])
}

/// The device's name. It must be unique on the machine, because the namespace named after it is visible to all
/// processes.
fn device() -> String {
    format!("lpt{}", std::process::id())
}

/// The profile, with only its lines for network devices and their interrupts: the others would change the whole
/// machine.
fn profile() -> Result<Profile> {
    let mut profile = Profile::named("ping-interface")?;
    profile.lines.retain(|line| matches!(line.at, Selector::Interface | Selector::InterfaceInterrupts));
    Ok(profile)
}

fn variables(device: &str, irq_cpu: Option<u32>) -> Variables {
    let other = [("address", "192.0.2.1/24"), ("peer", "192.0.2.2 02:00:00:00:00:02"), ("no_ptp", "1")];
    Variables {
        interfaces: vec![device.into()],
        irq_cpu,
        other: other.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        ..Variables::default()
    }
}

fn plan_of(device: &str, irq_cpu: Option<u32>) -> Result<(Machine, Plan)> {
    let machine = Machine::this(&[device.to_owned()]);
    let plan = plan(&profile()?, &variables(device, irq_cpu), &machine)?;
    Ok((machine, plan))
}

fn apply(journal: &Path, device: &str, irq_cpu: Option<u32>, watch: &mut dyn Watch) -> Result<Applied> {
    let (machine, plan) = plan_of(device, irq_cpu)?;
    let tuning = Tuning::new(&machine, Journal::at(journal));
    Ok(tuning.apply(&plan, watch, ApplyOptions::default(), &AtomicBool::new(false), &mut |_| ())?)
}

fn undo(journal: &Path, device: &str) -> Result<Vec<String>> {
    let machine = Machine::this(&[device.to_owned()]);
    Ok(Tuning::new(&machine, Journal::at(journal)).undo("ping-interface")?)
}

/// Kills this process after the step with index `at`.
struct KillAt {
    at: usize,
    seen: usize,
}

impl Watch for KillAt {
    fn begin(&mut self) -> std::result::Result<(), String> {
        Ok(())
    }

    fn settle(&mut self, _: &Planned) -> std::result::Result<Option<Effect>, String> {
        if self.seen == self.at {
            let me = nix::unistd::Pid::this();
            let _ = nix::sys::signal::kill(me, nix::sys::signal::Signal::SIGKILL);
        }
        self.seen += 1;
        Ok(None)
    }
}

fn apply_and_be_killed(journal: &Path, device: &str, step: &str) -> Result {
    apply(journal, device, None, &mut KillAt { at: step.parse()?, seen: 0 }).map(drop)
}

/// A namespace with a veth pair; the first end is up, and has an address, a neighbour and a queueing discipline.
fn pair() -> Result<Space> {
    let (space, device) = (Space::new("tune")?, device());
    space.ip(&format!("link add {device} numtxqueues 2 numrxqueues 2 type veth peer name lptpeer"))?;
    space.ip(&format!("link set {device} mtu 1400 up"))?;
    space.ip("link set lptpeer up")?;
    space.ip(&format!("addr add 198.51.100.7/24 brd 198.51.100.255 dev {device}"))?;
    space.ip(&format!("neigh add 198.51.100.8 lladdr 02:00:00:00:00:08 nud permanent dev {device}"))?;
    run(&space, &format!("tc qdisc replace dev {device} root pfifo_fast"))?;
    Ok(space)
}

fn run(space: &Space, line: &str) -> Result<String> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    Ok(space.run(command)?.stdout)
}

/// The device's state in its first namespace as shown by the tools, and the namespace that was made for it.
fn shown(space: &Space) -> Result<String> {
    let device = device();
    waits::until("the device has its carrier", || {
        run(space, &format!("ip link show {device}")).is_ok_and(|text| text.contains("LOWER_UP"))
    })?;
    let mut all = String::new();
    for line in ["ip -d link show", "ip addr show", "ip neigh show dev", "tc qdisc show dev"] {
        all += &run(space, &format!("{line} {device}"))?;
    }
    for name in ["arp_ignore", "arp_announce", "rp_filter", "accept_redirects", "send_redirects"] {
        all += &run(space, &format!("cat /proc/sys/net/ipv4/conf/{device}/{name}"))?;
    }
    // Words that end with a colon are left out: the qdisc's handle differs each time.
    let all: Vec<&str> = all.split_whitespace().filter(|word| !word.ends_with(':')).collect();
    Ok(format!("{} {:?}", all.join(" "), made()))
}

/// The namespace that was made for the device; `None` if there is none.
fn made() -> Option<String> {
    let netns = Netns::named(&namespace_for(&device())).ok()?;
    namespace_name(netns.inode())
}

fn prepared() -> Result {
    let (space, device) = (pair()?, device());
    let journal = tempfile::tempdir()?;
    let journal = journal.path().join("journal");
    let before = shown(&space)?;
    let applied = space.inside(|| apply(&journal, &device, None, &mut NoWatch))?;
    equal("stopped", applied.stopped, None)?;
    let there = |line: &str| -> Result<String> {
        let output =
            Command::new("ip").args(["netns", "exec", &namespace_for(&device)]).args(line.split(' ')).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for (line, part) in [
        ("ip link show DEVICE", "<BROADCAST,UP,LOWER_UP> mtu 1400 qdisc noqueue"),
        ("ip addr show DEVICE", "inet 192.0.2.1/24"),
        ("ip neigh show dev DEVICE", "192.0.2.2 lladdr 02:00:00:00:00:02 PERMANENT"),
        ("tc qdisc show dev DEVICE", "qdisc noqueue"),
        ("cat /proc/sys/net/ipv4/conf/DEVICE/arp_ignore", "1"),
        ("cat /proc/sys/net/ipv4/conf/DEVICE/arp_announce", "2"),
        ("ip link show lo", "UP"),
    ] {
        let text = there(&line.replace("DEVICE", &device))?;
        equal(&format!("{line}: {part} in {text}"), text.contains(part), true)?;
    }
    let machine = space.inside(|| Machine::this(std::slice::from_ref(&device)));
    let again = space.inside(|| plan(&profile()?, &variables(&device, None), &machine).map_err(Failed::from))?;
    let refused: Vec<Setting> = applied.steps.iter().filter(|s| s.failed.is_some()).map(|s| s.step.setting).collect();
    let left: Vec<Setting> = again.steps.iter().map(|s| s.setting).filter(|s| !refused.contains(s)).collect();
    equal("what is left to do", left, vec![])?;
    let messages = space.inside(|| undo(&journal, &device))?;
    equal(&format!("{messages:?}"), messages.iter().any(|text| text.contains("left at")), false)?;
    equal("undone", shown(&space)?, before)
}

fn killed() -> Result {
    let (space, device) = (pair()?, device());
    let before = shown(&space)?;
    let steps = space.inside(|| plan_of(&device, None).map(|(_, plan)| plan.steps.len()))?;
    for step in 0..steps {
        let journal = tempfile::tempdir()?;
        let journal: PathBuf = journal.path().join("journal");
        // Unlike `ip netns exec`, nsenter leaves the child in this mount namespace.
        let mut child = Command::new("nsenter");
        child.arg(format!("--net={}", space.file().display())).arg(std::env::current_exe()?);
        let child = child.arg(APPLY).arg(&journal).args([device.as_str(), &step.to_string()]).output()?;
        let said = String::from_utf8_lossy(&child.stderr).into_owned();
        equal(&format!("step {step}: {said}"), child.status.code(), None)?;
        let messages = space.inside(|| Journal::at(&journal).sweep(&[&Tunings::LIVE]));
        let left = std::fs::read_dir(&journal)?.count();
        equal(&format!("the journal after step {step}: {messages:?}"), left, 0)?;
        let when = format!("after a kill at step {step} of {steps}: {messages:?}");
        let after = shown(&space).map_err(|failed| format!("{when}: {}", failed.message().unwrap_or_default()))?;
        equal(&when, after, before.clone())?;
    }
    Ok(())
}

fn output(line: &str) -> Result<String> {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap_or_default()).args(words).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")),
        false => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// The device's state as shown by ethtool, and the CPUs of its interrupts by handler.
fn igb_shown(device: &str, within: &str) -> Result<String> {
    let mut all = String::new();
    for option in ["-g", "-l", "-c", "-a", "-k", "--show-priv-flags"] {
        all += &output(&format!("{within} ethtool {option} {device}"))?;
        all += "\n";
    }
    let mut irqs: Vec<String> = Vec::new();
    for entry in std::fs::read_dir("/proc/irq")?.flatten() {
        let handlers = std::fs::read_dir(entry.path()).into_iter().flatten().flatten();
        let names = handlers.filter_map(|handler| handler.file_name().into_string().ok());
        for name in names.filter(|name| name.starts_with(device)) {
            let cpus = std::fs::read_to_string(entry.path().join("smp_affinity_list")).unwrap_or_default();
            irqs.push(format!("{name} {}", cpus.trim()));
        }
    }
    irqs.sort();
    Ok(format!("{all}{irqs:?}"))
}

fn prepared_igb() -> Result {
    let device = igb_device().ok_or("no device of igb")?;
    let within = format!("ip netns exec {}", namespace_for(&device));
    output(&format!("ip link set {device} up"))?;
    let journal = tempfile::tempdir()?;
    let journal = journal.path().join("journal");
    let before = igb_shown(&device, "")?;
    let applied = apply(&journal, &device, Some(1), &mut NoWatch)?;
    equal("stopped", applied.stopped, None)?;
    let after = igb_shown(&device, &within)?;
    let current = "Current hardware settings:";
    for (option, part) in [
        ("-g", "RX: 64"),
        ("-g", "TX: 128"),
        ("-l", "Combined: 1"),
        ("-c", "rx-usecs: 0"),
        ("-c", "tx-usecs: 0"),
        ("-a", "RX: off TX: off"),
        ("-k", "rx-checksumming: off"),
        ("-k", "tx-checksumming: off"),
        ("-k", "generic-receive-offload: off"),
        ("-k", "generic-segmentation-offload: off"),
        ("-k", "tcp-segmentation-offload: off"),
    ] {
        let text = output(&format!("{within} ethtool {option} {device}"))?;
        let present = text.split(current).last().unwrap_or_default();
        equal(&format!("ethtool {option}: {part} in {text}"), present.contains(part), true)?;
    }
    let text = output(&format!("{within} ip addr show {device}"))?;
    equal(&text, text.contains("192.0.2.1/24") && text.contains("qdisc noqueue") && text.contains(",UP"), true)?;
    // CPU 1 serves all interrupts of the device.
    let irqs = after.rsplit_once('[').map_or("", |(_, irqs)| irqs);
    let others: Vec<&str> = irqs.split(',').map(|irq| irq.trim_matches([' ', '"', ']'])).collect();
    equal(irqs, !irqs.is_empty() && others.iter().all(|irq| irq.ends_with(" 1")), true)?;
    threads_are(&device, "FF 50")?;
    let messages = undo(&journal, &device)?;
    equal(&format!("{messages:?}"), messages.iter().any(|text| text.contains("left at")), false)?;
    equal("undone", igb_shown(&device, "")?, before)?;
    equal("the namespace", Netns::named(&namespace_for(&device)).is_err(), true)
}

/// Requires that ps shows this policy and priority for the threads of the device's interrupts; some kernels have no
/// such threads.
fn threads_are(device: &str, expected: &str) -> Result {
    let text = Command::new("ps").args(["-eo", "cls,rtprio,comm"]).output()?.stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    for line in text.lines().filter(|line| line.contains("irq/") && line.contains(&format!("-{device}"))) {
        let words: Vec<&str> = line.split_whitespace().collect();
        equal(line, words[..2].join(" ").as_str(), expected)?;
    }
    Ok(())
}

/// Runs the igb test on the lab's kernels.
fn on_lab_kernels() -> Result {
    let me = std::env::current_exe()?;
    for name in ["6.1", "6.12", "6.12-rt"] {
        let kernel = LabKernel::named(name).ok_or("no such kernel")?;
        let lab = Lab::new()?;
        let mut hypervisor = Hypervisor::boot(&lab, kernel, Nics::Igb, &mut |line| eprintln!("{line}"), NEVER)?;
        let program = hypervisor.path_of(&me).display().to_string();
        hypervisor.expect("modprobe igb", NEVER)?;
        let said = hypervisor.expect(&format!("'{program}' igb_is_prepared"), NEVER)?;
        equal(&said, said.contains("1 passed; 0 failed; 0 ignored"), true)?;
    }
    Ok(())
}
