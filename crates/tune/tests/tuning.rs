//! Plans, applies, stops, verifies, confirms and undoes profiles on a machine in a folder.

mod common;

use common::{differences, guest, lay_out, snapshot, variables, VCPUS, VHOST};
use latpath_settings::{BootState, Disturbance, Setting, Writable};
use latpath_tune::{
    export, plan, Applied, ApplyOptions, Effect, Format, Machine, NoWatch, Plan, PlanError, Planned, Profile,
    TuneError, Tuning, Tunings, Variables, Watch,
};
use latpath_undo::Journal;
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

struct Bench {
    folder: TempDir,
    journal: TempDir,
    machine: Machine,
}

impl Bench {
    fn new() -> Self {
        let folder = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let (folder, journal) = (folder(), folder());
        let machine = lay_out(folder.path());
        Self { folder, journal, machine }
    }

    fn plan(&self, profile: &str) -> Plan {
        plan(&Profile::named(profile).unwrap(), &variables(), &self.machine.again()).unwrap()
    }

    fn journal(&self) -> Journal {
        Journal::at(&self.journal.path().join("journal"))
    }

    fn tuning(&self) -> Tuning<'_> {
        Tuning::new(&self.machine, self.journal())
    }

    fn apply(&self, plan: &Plan, watch: &mut dyn Watch, options: ApplyOptions) -> Applied {
        self.tuning().apply(plan, watch, options, &AtomicBool::new(false), &mut |_| ()).unwrap()
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.folder.path().join(path), text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.folder.path().join(path)).unwrap().trim().to_owned()
    }
}

/// Reports a lost packet at this step.
struct LostPacketAt {
    at: usize,
    seen: usize,
}

impl Watch for LostPacketAt {
    fn begin(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn settle(&mut self, _: &Planned) -> Result<Option<Effect>, String> {
        let disturbed = (self.seen == self.at).then(|| "1 packet was lost".to_owned());
        self.seen += 1;
        Ok(Some(Effect { packets: 100, lost: u64::from(disturbed.is_some()), disturbed, ..Effect::default() }))
    }
}

fn steps(plan: &Plan, setting: Setting) -> Vec<(String, &str)> {
    plan.steps.iter().filter(|step| step.setting == setting).map(|step| (step.at(), step.to.as_str())).collect()
}

#[test]
fn a_plan_has_what_differs_what_is_met_and_what_needs_more_than_a_write() {
    let bench = Bench::new();
    bench.write("proc/sys/vm/swappiness", "5");
    let plan = bench.plan("sv-hypervisor");
    assert_eq!(steps(&plan, Setting::WorkqueueCpus), [(String::new(), "3")]);
    assert_eq!(steps(&plan, Setting::CpuResumeLatency), [("CPUs 2-3".into(), "2")]);
    assert_eq!(steps(&plan, Setting::KsoftirqdPriority), [("CPUs 2-3".into(), "fifo 2")]);
    assert_eq!(steps(&plan, Setting::IrqAffinity), [("eth0-rx-0".into(), "1")]);
    let moved = steps(&plan, Setting::ThreadCpus);
    assert!(
        moved.contains(&("guest7 vCPU 0".into(), "2")) && moved.contains(&("guest7 vCPU 1".into(), "3")),
        "{moved:?}"
    );
    assert!(moved.contains(&("guest7 main loop, guest7 vhost".into(), "0-1")), "{moved:?}");
    assert!(plan.met.iter().any(|met| met.setting == Setting::Swappiness && met.value == "5"), "at most 10");
    let boot = plan.later.iter().find(|later| later.setting == Setting::BootNohzFull).unwrap();
    assert_eq!((boot.state, boot.command.as_deref()), (Some(BootState::Pending), Some("nohz_full=2-3")));
    let boot = plan.later.iter().find(|later| later.setting == Setting::BootRcuNocbs).unwrap();
    assert_eq!(boot.state, Some(BootState::Missing));
    let module = plan.later.iter().find(|later| later.setting == Setting::KvmclockSync).unwrap();
    assert_eq!(module.writable, Writable::ModuleLoad);
    let vm = plan.later.iter().find(|later| later.setting == Setting::VmMemoryLocked).unwrap();
    assert_eq!((vm.target.as_str(), vm.writable), ("guest7", Writable::VmStart));
    let ranks: Vec<Disturbance> = plan.steps.iter().map(|step| step.disturbs).collect();
    let flap = ranks.iter().position(|rank| *rank == Disturbance::LinkFlap).unwrap();
    assert!(ranks[..flap].is_sorted(), "{ranks:?}");
    let affinity = plan.steps.iter().position(|step| step.setting == Setting::IrqAffinity).unwrap();
    assert!(affinity > flap, "a flap resets the affinity");
    assert_eq!(plan.subject(), "sv-hypervisor-eth0");
    let nowhere = plan.skipped.iter().find(|skipped| skipped.setting == Setting::ThreadCpus).unwrap();
    assert_eq!((nowhere.at.as_str(), nowhere.why.as_str()), ("threads:io", "this machine has no such setting there"));
}

#[test]
fn a_plan_is_exported_for_a_shell_libvirt_and_ansible() {
    let bench = Bench::new();
    let plan = bench.plan("sv-hypervisor");
    let of = |format| export(&plan, &bench.machine, format);
    let shell = of(Format::Shell);
    for line in [
        "sysctl vm.swappiness=10",
        "# undo: sysctl vm.swappiness=60",
        "echo 3 > /sys/devices/virtual/workqueue/cpumask",
        "chrt -f -p 2 $(pgrep -x ksoftirqd/2)",
        "taskset -cp 2 6154",
        "echo options kvm_intel ple_gap=0 > /etc/modprobe.d/latpath-kvm_intel-ple_gap.conf",
    ] {
        assert!(shell.lines().any(|found| found == line), "{line} is not in\n{shell}");
    }
    let parsed = std::process::Command::new("sh").args(["-n", "-c", &shell]).output().unwrap();
    assert!(parsed.status.success(), "{}", String::from_utf8_lossy(&parsed.stderr));
    let commands: Vec<&str> = shell.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    assert!(commands.len() > plan.changes(), "a command for each change");

    let xml = of(Format::Libvirt);
    for element in [
        "<vcpupin vcpu='0' cpuset='2'/>",
        "<vcpupin vcpu='1' cpuset='3'/>",
        "<emulatorpin cpuset='0-1'/>",
        "<vcpusched vcpus='1' scheduler='fifo' priority='1'/>",
        "<locked/>",
    ] {
        assert!(xml.contains(element), "{element} is not in\n{xml}");
    }
    let ansible = of(Format::Ansible);
    for line in ["isolcpus: \"2-3\"", "cpusystem: \"0-1\"", "cpumachinesrt: \"2-3\"", "  vm.swappiness = 10"] {
        assert!(ansible.lines().any(|found| found == line), "{line} is not in\n{ansible}");
    }
}

#[test]
fn sizes_of_virtqueues_are_exported_for_the_interface_that_has_them() {
    let mut bench = Bench::new();
    bench.machine.vms[0].taps[0].guest_mac = Some("52:54:00:01:02:03".into());
    let line = "[[line]]\nsetting = 'vm-virtqueues'\nat = 'vms'\nvalue = 'rx 1024 tx 256 vectors default'\n\
                why = 'bursts'\nsource = 'a test'\n";
    let text = format!("name = 'sizes'\nabout = 'Sizes of virtqueues.'\nneeds = []\n{line}");
    let plan = plan(&Profile::parse(&text, "sizes.toml").unwrap(), &variables(), &bench.machine).unwrap();
    let xml = export(&plan, &bench.machine, Format::Libvirt);
    let expected = "<interface>\n      <mac address='52:54:00:01:02:03'/>\n      <driver rx_queue_size='1024' tx_queue_size='256'/>";
    assert!(xml.contains(expected), "{xml}");
    assert!(!export(&bench.plan("sv-hypervisor"), &bench.machine, Format::Libvirt).contains("<interface>"));
}

#[test]
fn missing_variables_and_wrong_cpus_are_named() {
    let bench = Bench::new();
    let profile = Profile::named("sv-hypervisor").unwrap();
    let of = |variables: Variables| plan(&profile, &variables, &bench.machine).unwrap_err();
    assert_eq!(of(Variables::default()).to_string(), "profile sv-hypervisor needs --isolated");
    let error = of(Variables { isolated: "2-9".parse().ok(), ..Variables::default() });
    assert_eq!(error.to_string(), "isolated CPUs 4-9: this machine's CPUs are 0-3");
    let error = of(Variables { interfaces: vec!["eth9".into()], ..variables() });
    assert!(matches!(error, PlanError::NoSuchInterface { .. }) && error.to_string().contains("eth0"), "{error}");
}

#[test]
fn placements_that_would_hurt_are_warned_about() {
    let bench = Bench::new();
    let warnings = |variables: Variables| {
        let profile = Profile::named("sv-hypervisor").unwrap();
        plan(&profile, &variables, &bench.machine).unwrap().warnings.join("\n")
    };
    assert_eq!(warnings(variables()), "");
    let all = warnings(Variables { isolated: "0-3".parse().ok(), ..variables() });
    assert!(all.contains("all CPUs (0-3) are isolated"), "{all}");
    let both = warnings(Variables { housekeeping: "1-2".parse().ok(), ..variables() });
    assert!(both.contains("CPU 2 isolated and for housekeeping at once"), "{both}");
    let one = warnings(Variables { isolated: "3".parse().ok(), ..variables() });
    assert!(one.contains("CPU 3 has guest7 vCPU 0 and guest7 vCPU 1 under SCHED_FIFO"), "{one}");
    let deadlock = warnings(Variables { housekeeping: "2".parse().ok(), isolated: "2-3".parse().ok(), ..variables() });
    assert!(
        deadlock.contains("guest7: its main loop can only run on CPU 2") && deadlock.contains("deadlock"),
        "{deadlock}"
    );
}

#[test]
fn each_profile_is_applied_verified_and_undone() {
    for profile in Profile::all() {
        let bench = Bench::new();
        let before = snapshot(bench.folder.path());
        let first = bench.plan(&profile.name);
        assert!(first.steps.len() > 15, "{}: {} steps", profile.name, first.steps.len());
        let applied = bench.apply(&first, &mut NoWatch, ApplyOptions::default());
        let failed: Vec<_> = applied.steps.iter().filter_map(|step| step.failed.as_ref()).collect();
        assert!(applied.stopped.is_none() && failed.is_empty(), "{}: {:?} {failed:?}", profile.name, applied.stopped);
        assert_ne!(differences(&before, &snapshot(bench.folder.path())), [""; 0]);
        let again = bench.plan(&profile.name);
        assert!(again.steps.is_empty(), "{}: {:?}", profile.name, again.steps);
        assert!(bench.tuning().verify(&profile.name).unwrap()[0].is_none());
        let messages = bench.tuning().undo(&profile.name).unwrap();
        assert!(!messages.is_empty());
        assert_eq!(differences(&before, &snapshot(bench.folder.path())), [""; 0], "{}", profile.name);
        assert!(bench.tuning().applied().unwrap().is_empty());
    }
}

#[test]
fn a_plan_that_was_read_from_json_is_not_applied() {
    let bench = Bench::new();
    let (before, first) = (snapshot(bench.folder.path()), bench.plan("sv-hypervisor"));
    let read: Plan = serde_json::from_str(&serde_json::to_string(&first).unwrap()).unwrap();
    let refused =
        bench.tuning().apply(&read, &mut NoWatch, ApplyOptions::default(), &AtomicBool::new(false), &mut |_| ());
    assert!(matches!(refused, Err(TuneError::Read { profile }) if profile == "sv-hypervisor"));
    assert_eq!(differences(&before, &snapshot(bench.folder.path())), [""; 0]);
    assert!(bench.tuning().applied().unwrap().is_empty());
}

#[test]
fn a_step_that_disturbs_ends_and_reverts_the_change_unless_it_is_forced() {
    let bench = Bench::new();
    let before = snapshot(bench.folder.path());
    let plan = bench.plan("sv-hypervisor");
    for at in 0..plan.steps.len() {
        let applied = bench.apply(&plan, &mut LostPacketAt { at, seen: 0 }, ApplyOptions::default());
        let stopped = applied.stopped.unwrap();
        assert_eq!((stopped.why.as_str(), stopped.step), ("1 packet was lost", plan.steps[at].name()));
        assert_eq!((applied.steps.len(), applied.not_reverted.len()), (at + 1, 0));
        assert_eq!(differences(&before, &snapshot(bench.folder.path())), [""; 0], "step {at}");
        assert!(bench.tuning().applied().unwrap().is_empty());
    }
    let force = ApplyOptions { force: true, ..ApplyOptions::default() };
    let applied = bench.apply(&plan, &mut LostPacketAt { at: 3, seen: 0 }, force);
    assert_eq!((applied.stopped, applied.steps.len()), (None, plan.steps.len()));
    assert_eq!(applied.steps[3].effect.as_ref().unwrap().lost, 1);
}

#[test]
fn a_user_who_stops_it_gets_everything_back() {
    let bench = Bench::new();
    let before = snapshot(bench.folder.path());
    let stop = AtomicBool::new(false);
    let plan = bench.plan("tsn-host");
    let applied = bench.tuning().apply(&plan, &mut NoWatch, ApplyOptions::default(), &stop, &mut |_| {
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(applied.unwrap().stopped.unwrap().why.contains("stopped by the user"));
    assert_eq!(differences(&before, &snapshot(bench.folder.path())), [""; 0]);
}

#[test]
fn what_another_program_changed_since_is_left_alone_and_reported() {
    let bench = Bench::new();
    bench.apply(&bench.plan("sv-hypervisor"), &mut NoWatch, ApplyOptions::default());
    bench.write("proc/sys/vm/swappiness", "33\n");
    let drift = &bench.tuning().verify("sv-hypervisor").unwrap()[0];
    assert_eq!(drift.drifted.iter().map(Planned::name).collect::<Vec<_>>(), ["swappiness"]);
    let messages = bench.tuning().undo("sv-hypervisor").unwrap();
    let text = "swappiness: left at 33: another program has changed it since latpath set 10";
    assert!(messages.iter().any(|message| message == text), "{messages:?}");
    assert_eq!(bench.read("proc/sys/vm/swappiness"), "33");
    assert_eq!(bench.read("proc/sys/kernel/nmi_watchdog"), "1");
}

#[test]
fn a_profile_that_is_applied_again_gives_the_oldest_values_back() {
    let bench = Bench::new();
    let before = snapshot(bench.folder.path());
    bench.apply(&bench.plan("sv-hypervisor"), &mut NoWatch, ApplyOptions::default());
    let other = Variables { isolated: "3".parse().ok(), ..variables() };
    let profile = Profile::named("sv-hypervisor").unwrap();
    let second = plan(&profile, &other, &bench.machine.again()).unwrap();
    assert_eq!(steps(&second, Setting::WorkqueueCpus), [(String::new(), "7")]);
    bench.apply(&second, &mut NoWatch, ApplyOptions::default());
    assert_eq!(bench.tuning().applied().unwrap().len(), 1);
    bench.tuning().undo("sv-hypervisor").unwrap();
    assert_eq!(differences(&before, &snapshot(bench.folder.path())), [""; 0]);
}

#[test]
fn an_unconfirmed_change_goes_with_its_process_and_a_confirmed_one_stays() {
    let bench = Bench::new();
    let before = snapshot(bench.folder.path());
    let unconfirmed = ApplyOptions { unconfirmed: true, ..ApplyOptions::default() };
    let plan = bench.plan("sv-guest");
    bench.apply(&plan, &mut NoWatch, unconfirmed);
    assert!(bench.tuning().applied().unwrap()[0].unconfirmed);
    let busy = bench.tuning().apply(&plan, &mut NoWatch, unconfirmed, &AtomicBool::new(false), &mut |_| ());
    assert!(busy.unwrap_err().to_string().contains("waits to be confirmed"));
    // The time limit of this guard has passed.
    let messages = bench.tuning().guard(&plan.subject(), &mut || (), &mut || true).unwrap();
    assert!(!messages.is_empty());
    assert_eq!(differences(&before, &snapshot(bench.folder.path())), [""; 0]);

    bench.apply(&plan, &mut NoWatch, unconfirmed);
    let mut rounds = 0;
    let messages = bench.tuning().guard(&plan.subject(), &mut || (), &mut || {
        rounds += 1;
        // Simulates another process that confirms the change.
        assert_eq!(bench.tuning().confirm("sv-guest").unwrap(), [plan.subject()]);
        false
    });
    assert_eq!((messages.unwrap().len(), rounds), (0, 1));
    let tunings = Tunings::below(bench.folder.path().into());
    assert_eq!(bench.journal().sweep(&[&tunings]), [""; 0]);
    assert_ne!(differences(&before, &snapshot(bench.folder.path())), [""; 0]);
    assert!(bench.tuning().confirm("sv-guest").unwrap_err().to_string().contains("no change waits"));
    bench.tuning().undo("sv-guest").unwrap();
    assert_eq!(differences(&before, &snapshot(bench.folder.path())), [""; 0]);
}

#[test]
fn a_thread_that_has_ended_since_is_not_looked_for() {
    let bench = Bench::new();
    bench.apply(&bench.plan("sv-hypervisor"), &mut NoWatch, ApplyOptions::default());
    fs::remove_dir_all(bench.folder.path().join(format!("proc/{VHOST}"))).unwrap();
    let other = fs::read_to_string(bench.folder.path().join(format!("proc/{}/stat", VCPUS[1]))).unwrap();
    // Field 22 is the start time: this is another thread, with the TID of the second vCPU.
    let mut fields: Vec<&str> = other.split(' ').collect();
    fields[21] = "77";
    bench.write(&format!("proc/{}/stat", VCPUS[1]), &fields.join(" "));
    let messages = bench.tuning().undo("sv-hypervisor").unwrap().join("\n");
    assert!(
        messages.contains("thread-priority of guest7 vhost, guest7 vCPU 1: it no longer exists")
            || messages.contains("thread-priority of guest7 vCPU 1, guest7 vhost: it no longer exists"),
        "{messages}"
    );
    assert!(
        bench.read(&format!("proc/{}/stat", VCPUS[0])).ends_with("0 0 0 0 0 0 0 0 0 0 0 0 0 0"),
        "vCPU 0 is as before"
    );
}

/// Resets an interrupt of eth0 to its default affinity when the link flaps, as drivers do.
struct LinkFlap<'a>(&'a Path);

impl Watch for LinkFlap<'_> {
    fn begin(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn settle(&mut self, step: &Planned) -> Result<Option<Effect>, String> {
        if step.disturbs == Disturbance::LinkFlap {
            fs::write(self.0.join("proc/irq/45/smp_affinity_list"), "0-3\n").unwrap();
        }
        Ok(None)
    }
}

#[test]
fn what_a_flap_of_the_link_resets_is_set_again() {
    let bench = Bench::new();
    let before = snapshot(bench.folder.path());
    let plan = bench.plan("sv-hypervisor");
    assert!(plan.steps.iter().any(|step| step.disturbs == Disturbance::LinkFlap));
    let applied = bench.apply(&plan, &mut LinkFlap(bench.folder.path()), ApplyOptions::default());
    assert_eq!(applied.stopped, None);
    assert_eq!(bench.read("proc/irq/45/smp_affinity_list"), "1");
    bench.tuning().undo("sv-hypervisor").unwrap();
    assert_eq!(differences(&before, &snapshot(bench.folder.path())), [""; 0]);
}

#[test]
fn a_profile_that_is_not_applied_names_those_that_are() {
    let bench = Bench::new();
    let error = bench.tuning().undo("sv-guest").unwrap_err().to_string();
    assert_eq!(error, "sv-guest: not applied; no profile is");
    bench.apply(&bench.plan("tsn-host"), &mut NoWatch, ApplyOptions::default());
    let error = bench.tuning().verify("sv-guest").unwrap_err().to_string();
    assert_eq!(error, "sv-guest: not applied; applied: tsn-host-eth0");
    assert_eq!(guest().threads.len(), 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]
    #[test]
    fn whatever_is_applied_in_whatever_order_the_undo_gives_the_first_state_back(
        order in proptest::collection::vec((0_usize..3, 1_u32..4, any::<bool>()), 1..5)
    ) {
        let bench = Bench::new();
        let before = snapshot(bench.folder.path());
        let names = ["sv-hypervisor", "sv-guest", "tsn-host"];
        let mut applied: Vec<&str> = Vec::new();
        for (profile, isolated, disturbed) in order {
            // Profiles that share settings must be undone in reverse order, so a profile is only applied on top of
            // itself.
            let name = *applied.last().unwrap_or(&names[profile]);
            let variables = Variables { isolated: format!("{isolated}-3").parse().ok(), ..variables() };
            let plan = plan(&Profile::named(name).unwrap(), &variables, &bench.machine.again()).unwrap();
            let mut watch = LostPacketAt { at: if disturbed { 5 } else { usize::MAX }, seen: 0 };
            let done = bench.apply(&plan, &mut watch, ApplyOptions::default());
            if done.stopped.is_none() {
                applied.push(name);
            }
        }
        if let Some(name) = applied.first() {
            bench.tuning().undo(name).unwrap();
        }
        prop_assert_eq!(differences(&before, &snapshot(bench.folder.path())), Vec::<String>::new());
    }
}
