//! `latpath vms` from the command line, with real guests; and `latpath doctor` where it concerns guests.

use latpath_caps::Works;
use latpath_doctor::DoctorDocument;
use latpath_lab::{Application, GuestPlan, Lab, Labs, Namespace, Running, Step, BRIDGE, TAP};
use latpath_model::HOST;
use latpath_net::Netns;
use latpath_run::Run;
use latpath_testkit::waits::until;
use latpath_testkit::Failed;
use latpath_testkit::{boot, equal, latpath, need_btf, need_guest, need_lab, need_root, need_tool, trial, Lack};
use latpath_undo::{Journal, Lifetime};
use latpath_vms::{Accel, Guests, Role, TapKind, Thread, Vm};
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::os::unix::{fs::MetadataExt, fs::PermissionsExt, process::CommandExt};
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};

const QEMU: &str = "qemu-system-x86_64";

fn main() -> ExitCode {
    let needs = [need_root(), need_lab(), need_tool(QEMU)];
    let with = |more: Lack| [&needs[..], &[more]].concat();
    latpath_testkit::main(vec![
        trial("a_guest_is_listed_with_its_tap_its_vcpus_and_its_main_loop", &with(need_guest()), listed).in_lab(),
        trial("a_macvtap_is_found_by_its_descriptor", &with(need_device_files()), macvtap),
        trial("a_tap_in_another_namespace_than_its_guest_is_found", &needs, moved),
        trial("without_root_guests_are_listed_and_what_is_not_seen_is_said", &needs, without_root),
        trial("what_a_guest_is_called_does_not_reach_the_terminal_as_a_control_code", &needs, hostile_name),
        trial("what_cannot_work_here_is_what_fails_here", &[need_root()], caps),
        trial("a_run_of_roots_is_refused_with_what_to_do", &[need_root()], run_of_root),
        trial("a_command_on_another_machine_is_the_window", &[need_root()], inside),
        trial(
            "a_recording_keeps_the_virtual_machines_of_each_hypervisor",
            &[need_root(), need_btf(), need_tool("unshare")],
            kept_by_machine,
        ),
        trial("an_agent_that_is_all_that_one_may_start_runs_no_command", &[need_root()], forced),
        trial("a_study_is_kept_in_no_directory_in_which_others_may_write", &[need_root()], study_of_others),
        trial("what_a_killed_lab_leaves_any_other_command_removes", &[need_root(), need_tool("ip")], killed_lab),
        trial("the_list_ends_well_whether_there_are_guests_or_not", &[], ends_well),
    ])
}

/// The kernel creates `/dev/tapN` by itself only in a devtmpfs.
fn need_device_files() -> Lack {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let there = mounts.lines().any(|line| line.contains(" /dev devtmpfs "));
    (!there).then(|| "needs /dev to be a devtmpfs, for /dev/tapN".into())
}

fn run(command: &mut Command) -> Result<Output, Failed> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(format!("{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(output)
}

/// The entry of a process in `latpath vms --json`, once `ready` accepts it.
fn vm(pid: u32, ready: impl Fn(&Vm) -> bool) -> Result<Vm, Failed> {
    let (mut all, mut found) = (String::new(), None);
    let waited = until(&format!("process {pid} is as it should be"), || {
        let output = latpath("vms --json").output().map(|output| output.stdout).unwrap_or_default();
        let guests: Guests = serde_json::from_slice(&output).unwrap_or_default();
        all = format!("{guests:#?}");
        found = guests.vms.into_iter().find(|vm| vm.pid == pid && ready(vm));
        found.is_some()
    });
    found.ok_or_else(|| format!("{waited:?}: {all}").into())
}

fn of_role(vm: &Vm, role: Role) -> Vec<&Thread> {
    vm.threads.iter().filter(|thread| thread.role == role).collect()
}

fn netns(name: &str) -> Result<u32, Failed> {
    Ok(u32::try_from(fs::metadata(Path::new("/run/netns").join(name))?.ino())?)
}

/// Starts a guest whose vCPUs never run: it starts at once, and is listed all the same. `before` is shell code that
/// runs in the process that becomes QEMU.
fn paused(lab: &Lab, space: &Namespace, before: &str, words: &str) -> Result<Running, Failed> {
    let messages = File::create(lab.folder().join("paused"))?;
    let plain = "-accel tcg,thread=multi -machine q35 -m 64M -nodefaults -no-user-config -display none -S";
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{before} exec {QEMU} {plain} {words}"));
    command.stdin(Stdio::null()).stdout(messages.try_clone()?).stderr(messages);
    Ok(space.start(command, Signal::SIGKILL)?)
}

fn listed() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let path = lab.lay(Application::Guest)?;
    let guest = boot(&lab, &path, &GuestPlan::default())?;
    let vm = vm(guest.pid(), |_| true)?;
    equal("its name", vm.name.as_str(), "latpath-guest0")?;
    equal("its machine", vm.machine.as_deref(), Some("q35"))?;
    equal("its vCPUs", vm.vcpus, Some(2))?;
    let here = netns(path.hypervisor.name())?;
    equal("its namespace", vm.netns, Some(here))?;
    let [tap] = &vm.taps[..] else { return Err(format!("not one tap: {vm:#?}").into()) };
    equal("the tap", (tap.device.as_str(), tap.netns), (TAP, Some(here)))?;
    equal("its bridge", tap.bridge.as_ref().map(|bridge| bridge.name.as_str()), Some(BRIDGE))?;
    equal("its queues", tap.queues, 1)?;
    equal("what it dropped", tap.dropped, Some(path.hypervisor.counters_of(TAP)?.tx_dropped))?;
    let main: Vec<u32> = of_role(&vm, Role::MainLoop).iter().map(|thread| thread.tid).collect();
    equal("the main loop", main, vec![guest.pid()])?;
    let vcpus: Vec<_> = of_role(&vm, Role::Vcpu).iter().map(|thread| thread.vcpu).collect();
    equal("the vCPU threads", vcpus, vec![Some(0), Some(1)])?;
    // The scheduling attributes shown are the kernel's for each thread.
    for thread in &vm.threads {
        let status = fs::read_to_string(format!("/proc/{}/task/{}/status", guest.pid(), thread.tid))?;
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim);
        equal("a thread's CPUs", Some(thread.cpus_allowed.to_string().as_str()), cpus)?;
    }
    let text = String::from_utf8(run(&mut latpath("vms"))?.stdout)?;
    for expected in ["latpath-guest0  process", "vCPU 1", "main loop", TAP] {
        if !text.contains(expected) {
            return Err(format!("no {expected:?} in\n{text}").into());
        }
    }
    Ok(())
}

fn macvtap() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let space = lab.namespace("vtap")?;
    // Device files are shared by all namespaces: a macvtap in another namespace may already have the first index that
    // is free in this one.
    let index = 1_000_000 + std::process::id();
    for words in [
        "link add lpv0 type veth peer name lpv1",
        "link set lpv0 up",
        &format!("link add link lpv0 name lpm0 index {index} type macvtap mode bridge"),
        "link set lpm0 up",
    ] {
        space.ip(words)?;
    }
    let qemu = paused(
        &lab,
        &space,
        &format!("exec 9<>/dev/tap{index};"),
        "-name guest=vtap -netdev tap,id=n,fd=9 -device virtio-net-pci,netdev=n,mac=52:54:00:01:02:03,romfile=",
    )?;
    // The shell opens the macvtap before it becomes QEMU, whose command line contains the address.
    let vm = vm(qemu.pid(), |vm| vm.taps.first().is_some_and(|tap| tap.guest_mac.is_some()))?;
    let tap = &vm.taps[0];
    let expected = ("lpm0", Some(index), TapKind::Macvtap, Some("lpv0"), Some("52:54:00:01:02:03"));
    let found = (tap.device.as_str(), tap.ifindex, tap.kind, tap.lower.as_deref(), tap.guest_mac.as_deref());
    equal("the macvtap", found, expected)
}

fn moved() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let (born, there) = (lab.namespace("born")?, lab.namespace("there")?);
    let qemu = paused(&lab, &born, "", "-netdev tap,id=n,ifname=lptap7,script=no,downscript=no")?;
    vm(qemu.pid(), |vm| !vm.taps.is_empty())?;
    born.ip(&format!("link set lptap7 netns {}", there.name()))?;
    there.ip("link set lptap7 txqueuelen 77")?;
    let vm = vm(qemu.pid(), |vm| !vm.taps.is_empty())?;
    let tap = &vm.taps[0];
    equal("the guest's namespace", vm.netns, Some(netns(born.name())?))?;
    equal("the tap's namespace", tap.netns, Some(netns(there.name())?))?;
    equal("its queue's length", tap.tx_queue_len, Some(77))
}

fn without_root() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let space = lab.namespace("other")?;
    let qemu = paused(
        &lab,
        &space,
        "",
        "-name guest=plain,debug-threads=on -netdev tap,id=n,ifname=lptap8,script=no,downscript=no",
    )?;
    vm(qemu.pid(), |vm| !vm.taps.is_empty())?;
    let folder = tempfile::tempdir()?;
    let output = run(&mut by_nobody(folder.path(), "vms --json")?)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !said.contains("may be read only by root") {
        return Err(format!("it does not say what it cannot see: {said:?}").into());
    }
    let all: Guests = serde_json::from_slice(&output.stdout)?;
    let vm = all.vms.iter().find(|vm| vm.pid == qemu.pid()).ok_or("the guest is not listed")?;
    equal("its name", vm.name.as_str(), "plain")?;
    equal("its taps", vm.taps.len(), 0)?;
    equal("its vCPUs by name", of_role(vm, Role::Vcpu).len(), 1)?;
    equal("what accelerates it", vm.accel, Accel::Unknown)
}

/// Returns a latpath command for a user without privileges. The program is copied to a directory from which any user
/// may run it.
fn by_nobody(folder: &Path, words: &str) -> Result<Command, Failed> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let program = folder.join("latpath");
    fs::copy(env!("CARGO_BIN_EXE_latpath"), &program)?;
    let mut command = Command::new(program);
    command.args(words.split(' ')).current_dir("/").uid(65534).gid(65534);
    Ok(command)
}

fn caps() -> Result<(), Failed> {
    let doctor: DoctorDocument = serde_json::from_slice(&run(&mut latpath("doctor --commands --json"))?.stdout)?;
    let caps = doctor.capabilities.ok_or("no capabilities")?;
    let works = |name: &str| caps.works(name).ok_or(format!("nothing is said of {name}"));
    let tried = [
        ("exits", "exits --duration 100ms"),
        ("queues", "queues --duration 100ms"),
        ("ladder", "ladder --duration 100ms"),
        ("path", "path --stream svid:latpath-none --duration 100ms"),
        ("live", "live --stream svid:latpath-none --duration 100ms --no-flight"),
        ("streams", "streams -i lo --duration 100ms"),
    ];
    for (name, words) in tried {
        let output = latpath(words).stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        equal(&format!("{name} works ({said})"), output.status.success(), works(name)? != Works::No)?;
    }
    let need = |command: &mut Command| command.stdin(Stdio::null()).output().map(|output| output.status.code());
    let live_works = works("live")? != Works::No;
    equal("--need", need(&mut latpath("doctor --need live"))?, Some(if live_works { 0 } else { 3 }))?;
    equal("an unknown command", need(&mut latpath("doctor --need nonsense"))?, Some(2))?;
    let folder = tempfile::tempdir()?;
    equal("--need without root", need(&mut by_nobody(folder.path(), "doctor --need live")?)?, Some(3))?;
    let text = by_nobody(folder.path(), "doctor --commands")?.stdin(Stdio::null()).output()?.stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let causes = "\ncauses in record and live, which explain shows: does not work\n";
    equal(&text, (text.contains(causes), text.contains("\nexplain:")), (true, false))
}

/// A run in a directory that only root may access.
fn run_of_root() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let run = folder.path().join("run");
    fs::create_dir(&run)?;
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700))?;
    let output = by_nobody(folder.path(), &format!("report {}", run.display()))?.output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let advice = "Permission denied; it belongs to another user: try as that user, or with sudo\n";
    equal(&said, (output.status.code(), said.ends_with(advice)), (Some(1), true))
}

fn inside() -> Result<(), Failed> {
    let exits = |command: &str| {
        let mut exits = latpath("exits --in");
        exits.arg(format!("guest0=exec:{} agent --stdio --allow-commands", env!("CARGO_BIN_EXE_latpath")));
        exits.args(["--", "sh", "-c", command]).stdin(Stdio::null()).output()
    };
    let well = exits("printf '\\033[2Jseen\\n'; sleep 0.2")?;
    let (said, shown) = (String::from_utf8_lossy(&well.stderr), String::from_utf8_lossy(&well.stdout));
    if !well.status.success() && said.contains("kvm_exit") {
        // Without KVM there is nothing to watch, here or in the agent.
        return Ok(());
    }
    equal(&format!("its end ({said})"), well.status.code(), Some(0))?;
    equal("what it printed, as it is where no terminal is", shown.starts_with("\x1b[2Jseen\n"), true)?;
    let failed = exits("exit 3")?;
    equal("the end of one that fails", failed.status.code(), Some(1))?;
    let said = String::from_utf8_lossy(&failed.stderr);
    equal("what is said of it", said.contains("the command failed (exit code 3)"), true)
}

/// A user who may start an agent need not be allowed to run other commands: a forced command of ssh or a sudo rule
/// permits only that.
fn forced() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let (script, made) = (folder.path().join("forced"), folder.path().join("made"));
    let ran = |options: &str| -> Result<(bool, String), Failed> {
        fs::write(&script, format!("exec {} agent --stdio {options}\n", env!("CARGO_BIN_EXE_latpath")))?;
        let mut profile = latpath("profile --in");
        profile.arg(format!("g=exec:sh {}", script.display())).args(["--", "touch"]).arg(&made);
        let output = profile.stdin(Stdio::null()).output()?;
        let ran = fs::remove_file(&made).is_ok();
        Ok((ran, String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let (runs, said) = ran("")?;
    equal(&format!("it ran ({said})"), runs, false)?;
    equal(&format!("what is said ({said})"), said.contains("latpath agent --allow-commands"), true)?;
    let (runs, said) = ran("--allow-commands")?;
    equal(&format!("it ran ({said})"), runs, true)
}

/// An agent with another boot ID lists the processes of this kernel as those of its own machine.
fn kept_by_machine() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let [path, script, id, qemu] = ["run", "script", "id", "qemu-system-none"].map(|name| folder.path().join(name));
    fs::write(&id, "33333333-4444-5555-6666-777777777777\n")?;
    let agent = format!("exec {} agent --stdio", env!("CARGO_BIN_EXE_latpath"));
    fs::write(&script, format!("mount --bind {} /proc/sys/kernel/random/boot_id && {agent}\n", id.display()))?;
    fs::copy("/bin/sleep", &qemu)?;
    let mut vm = Command::new(&qemu).arg("300").stdin(Stdio::null()).spawn()?;
    let mut record = latpath("record -s svid:latpath-none --no-flight --duration 1s -o");
    record.arg(&path).arg("--machine").arg(format!("b=exec:unshare --mount sh {}", script.display()));
    let recorded = run(&mut record);
    vm.kill()?;
    vm.wait()?;
    recorded?;
    let vms = Run::open(&path)?.vms();
    let role = |machine: &str| vms.of_thread(machine, vm.id()).map(|(_, thread)| thread.role);
    equal("machines with virtual machines", vms.machines().collect::<Vec<_>>(), vec!["b", HOST])?;
    equal("roles", [role(HOST), role("b"), role("c")], [Some(Role::MainLoop), Some(Role::MainLoop), None])
}

fn hostile_name() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let space = lab.namespace("rude")?;
    let qemu = paused(&lab, &space, "", "-name \"$(printf 'guest=a\\033[2Jb')\"")?;
    vm(qemu.pid(), |_| true)?;
    let text = run(&mut latpath("vms"))?.stdout;
    if text.contains(&0x1b) {
        return Err("a control code reaches the terminal".into());
    }
    let vm = vm(qemu.pid(), |_| true)?;
    equal("the name", vm.name.as_str(), "a\\u{1b}[2Jb")
}

fn ends_well() -> Result<(), Failed> {
    let text = String::from_utf8(run(&mut latpath("vms"))?.stdout)?;
    let json = run(&mut latpath("vms --json"))?.stdout;
    serde_json::from_slice::<Guests>(&json).map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&json)))?;
    equal(&text, text.ends_with('\n'), true)?;
    let refused = latpath("vms --nonsense").output()?;
    equal("exit code of wrong usage", refused.status.code(), Some(2))
}

/// The study's directory belongs to another user, or other users may write to it, and there is a link where latpath
/// would write.
fn study_of_others() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let (study, victim, qemu) =
        (folder.path().join("study"), folder.path().join("victim"), folder.path().join("qemu-system-none"));
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    fs::write(&victim, "mine")?;
    fs::create_dir(&study)?;
    for planted in [".a.unfinished", "a.json"] {
        std::os::unix::fs::symlink(&victim, study.join(planted))?;
    }
    fs::copy("/bin/sleep", &qemu)?;
    let mut vm = Command::new(&qemu).arg("300").stdin(Stdio::null()).spawn()?;
    let refused = |why: &str| -> Result<(), Failed> {
        let mut command = latpath("study vhost --repeat 1");
        command.arg("--measure").arg(format!("a={}", vm.id())).arg("-o").arg(&study).args(["--", "true"]);
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        equal(&said, (output.status.code(), said.contains(why)), (Some(1), true))?;
        equal("what the link leads to", fs::read(&victim)?.as_slice(), &b"mine"[..])
    };
    let tried = (|| {
        std::os::unix::fs::chown(&study, Some(65534), None)?;
        refused("belongs to another user")?;
        std::os::unix::fs::chown(&study, Some(0), None)?;
        fs::set_permissions(&study, fs::Permissions::from_mode(0o1777))?;
        refused("other users may write")
    })();
    vm.kill()?;
    vm.wait()?;
    tried
}

/// A lab whose process was killed between recording a namespace and removing it.
fn killed_lab() -> Result<(), Failed> {
    let lab = format!("latpath-{}-1-1", std::process::id());
    let name = format!("{lab}-hyp");
    let turn = Journal::of_this_machine().turn()?;
    let mut entry = turn.begin::<Labs>(&lab, Lifetime::Process, "a test")?;
    drop(turn);
    for role in ["hyp", "never-made"] {
        entry.add(Step::Namespace { role: role.into() })?;
    }
    Netns::create(&name)?;
    entry.abandon()?;
    let output = latpath("vms").output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_there = Path::new("/run/netns").join(&name).exists();
    if is_there {
        Netns::delete(&name)?;
    }
    let is_noted = Journal::of_this_machine().path().join(format!("lab-{lab}")).exists();
    equal(&said, (is_there, is_noted), (false, false))
}
