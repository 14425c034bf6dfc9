//! Labs on the real machine: packets pass, the guest boots and answers, and nothing remains afterwards, even if the
//! process that created the lab is killed.

use latpath_lab::{
    Application, Guest, GuestPlan, Hypervisor, Lab, LabPath, Labs, Nics, APPLICATION, KERNELS, NIC, PUBLISHER, TAP,
    VETH,
};
use latpath_testkit::waits::until;
use latpath_testkit::{boot, need_guest, need_lab, trial, Failed, Lack};
use latpath_undo::Journal;
use nix::sys::signal::Signal;
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

/// Argument with which the test program runs as the process that is killed during its work.
const VICTIM: &str = "--victim";
const NEVER: &dyn Fn() -> bool = &|| false;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if let Some(at) = words.iter().position(|w| w == VICTIM) {
        victim(words.get(at + 1).is_some_and(|w| w == "guest"));
        return ExitCode::SUCCESS;
    }
    let (namespaces, guest) = ([need_lab()], [need_guest()]);
    latpath_testkit::main(vec![
        trial("a_packet_crosses_the_bridge_between_namespaces_and_is_counted", &namespaces, crosses),
        trial("a_lab_is_gone_with_its_last_handle", &namespaces, gone),
        trial("two_labs_stand_side_by_side", &namespaces, side_by_side),
        trial("what_a_killed_process_leaves_is_removed_by_the_next_sweep", &namespaces, swept),
        trial("a_guest_boots_runs_scripts_and_answers_packets", &guest, guest_answers).in_lab(),
        trial("a_guest_dies_with_the_process_that_booted_it", &guest, guest_swept).in_lab(),
        trial("a_guest_that_is_killed_is_reported_and_no_call_hangs", &guest, guest_killed).in_lab(),
        trial(
            "a_hypervisor_is_this_machine_on_another_kernel_and_leaves_no_trace",
            &[guest[0].clone(), lacks_hypervisor()],
            hypervisor,
        )
        .in_lab(),
    ])
}

/// Fetches the hypervisor's kernel; returns the error if that fails.
fn lacks_hypervisor() -> Lack {
    if cfg!(not(target_arch = "x86_64")) {
        return Some("the lab's hypervisor is x86-64".into());
    }
    KERNELS[0].fetch(&mut |line| eprintln!("{line}"), NEVER).err().map(|e| e.to_string())
}

/// Sets up a lab, prints its namespace, folder and child, and waits to be killed.
fn victim(with_guest: bool) {
    let lab = Lab::new().unwrap();
    let application = if with_guest { Application::Guest } else { Application::Namespace };
    let path = lab.lay(application).unwrap();
    let guest = with_guest.then(|| booted(&lab, &path));
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let running = path.publisher.start(sleep, Signal::SIGKILL).unwrap();
    let child = guest.as_ref().map_or(running.pid(), |guest| guest.pid());
    println!("{} {} {child}", path.publisher.name(), lab.folder().display());
    latpath_testkit::waits::fault_for(Duration::from_secs(1000));
}

fn booted(lab: &Lab, path: &LabPath) -> Guest {
    boot(lab, path, &GuestPlan::default()).unwrap()
}

fn ip(words: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(words.split(' '));
    command
}

fn done(space: &latpath_lab::Namespace, command: Command) -> Result<(), Failed> {
    let status = space.start(command, Signal::SIGKILL)?.wait(Duration::from_secs(60))?;
    match status {
        Some(status) if status.success() => Ok(()),
        status => Err(format!("{status:?}").into()),
    }
}

fn there(name: &str) -> bool {
    Path::new("/run/netns").join(name).exists()
}

/// Sends echo requests from the publisher to 192.0.2.2.
fn ping(from: &latpath_lab::Namespace, times: u64) -> Result<(), Failed> {
    let mut ping = Command::new("busybox");
    ping.args(["ping", "-c", &times.to_string(), "-W", "10", "192.0.2.2"]).stdout(Stdio::null());
    done(from, ping)
}

fn crosses() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let path = lab.lay(Application::Namespace)?;
    let application = path.application.as_ref().ok_or("no namespace for the application")?;
    done(&path.publisher, ip(&format!("addr add 192.0.2.1/24 dev {PUBLISHER}")))?;
    done(application, ip(&format!("addr add 192.0.2.2/24 dev {APPLICATION}")))?;
    let before = path.hypervisor.counters_of(NIC)?;
    assert_eq!((before.rx_packets, before.tx_packets), (0, 0), "something sends on a lab link unasked");
    // One ARP exchange and three echoes: four frames in each direction.
    let mut ping = Command::new("ping");
    ping.args(["-c", "3", "-i", "0.2", "-W", "5", "192.0.2.2"]).stdout(Stdio::null());
    if done(&path.publisher, ping).is_err() {
        self::ping(&path.publisher, 3)?;
    }
    assert!(path.hypervisor.counters_of(NIC)?.since(&before).rx_packets >= 4);
    assert!(path.hypervisor.counters_of(VETH)?.tx_packets >= 4);
    let error = path.hypervisor.counters_of("vnet7").unwrap_err().to_string();
    assert_eq!(error, "counters of vnet7: no such device (devices here: lo, br0, nic0, veth0)");
    Ok(())
}

fn gone() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let folder = lab.folder().to_owned();
    let path = lab.lay(Application::Namespace)?;
    let (lab_again, name, kept) = (lab.clone(), path.publisher.name().to_owned(), path.hypervisor.clone());
    drop((lab, path));
    assert!(folder.is_dir() && !there(&name) && there(kept.name()));
    let hypervisor = kept.name().to_owned();
    drop((lab_again, kept));
    assert!(!folder.exists() && !there(&hypervisor));
    Ok(())
}

fn side_by_side() -> Result<(), Failed> {
    let first = Lab::new()?;
    let paths = (first.lay(Application::Namespace)?, Lab::new()?.lay(Application::Guest)?);
    assert_ne!(paths.0.hypervisor.name(), paths.1.hypervisor.name());
    assert_eq!(paths.1.hypervisor.counters_of(TAP)?.tx_packets, 0);
    Ok(())
}

fn swept() -> Result<(), Failed> {
    killed_and_swept("namespaces")
}

fn guest_swept() -> Result<(), Failed> {
    killed_and_swept("guest")
}

fn killed_and_swept(what: &str) -> Result<(), Failed> {
    let me = std::env::current_exe()?;
    let mut victim = Command::new(me).args([VICTIM, what]).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(victim.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
    let [name, folder, child] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        victim.kill()?;
        return Err(format!("the victim said {line:?}").into());
    };
    assert!(there(name) && Path::new(folder).is_dir());
    victim.kill()?;
    victim.wait()?;
    let process = Path::new("/proc").join(child);
    until(&format!("process {child} ends with its parent"), || !process.exists())?;
    // Another test's latpath may sweep before this one.
    Journal::of_this_machine().sweep(&[&Labs]);
    assert!(!there(name) && !Path::new(folder).exists());
    Ok(())
}

fn guest_answers() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let path = lab.lay(Application::Guest)?;
    let mut guest = booted(&lab, &path);
    eprintln!("booted Linux {} in {:.1?}, {}", guest.release(), guest.boot_time(), guest.acceleration());

    assert_eq!(guest.expect("echo one; echo two >&2; printf %s 'th ree'", NEVER)?, "one\ntwo\nth ree");
    let output = guest.run("echo no; exit 3", Duration::from_secs(30), NEVER)?;
    assert_eq!((output.status, output.text.as_str()), (3, "no\n"));
    // A script that exceeds its limit is an error; its late answer is not taken for that of the next script.
    assert!(guest.run("sleep 2; echo late", Duration::from_millis(300), NEVER).is_err());
    assert_eq!(guest.expect("echo next", NEVER)?, "next\n");
    let long = guest.expect("head -c 3000000 /dev/zero | tr '\\0' x", NEVER)?;
    assert_eq!(long.len(), 3_000_000);

    guest.start(
        "count",
        "sh -c 'trap \"echo ended; exit 5\" TERM; echo began; while :; do usleep 10000; done'",
        false,
        NEVER,
    )?;
    guest.expect("until grep -q began /run/count.out; do usleep 10000; done", NEVER)?;
    let output = guest.end("count", Duration::from_secs(10), NEVER)?;
    assert_eq!((output.status, output.text.as_str()), (5, "began\nended\n"));

    for needed in ["/sys/kernel/tracing/events/net", "/sys/kernel/btf/vmlinux", "/dev/virtio-ports/latpath.agent"] {
        guest.expect(&format!("[ -e {needed} ]"), NEVER)?;
    }
    assert!(!guest.expect("ls /proc/sys/net", NEVER)?.contains("ipv6"));

    done(&path.publisher, ip(&format!("addr add 192.0.2.1/24 dev {PUBLISHER}")))?;
    let before = guest.counters(NEVER)?;
    assert_eq!((before.rx_packets, path.hypervisor.counters_of(TAP)?.tx_packets), (0, 0), "something sends unasked");
    guest.expect("ip addr add 192.0.2.2/24 dev eth0; ping -c 3 -W 10 192.0.2.1", NEVER)?;
    let counted = guest.counters(NEVER)?.since(&before);
    assert!(counted.rx_packets >= 3 && counted.tx_packets >= 3, "{counted:?}");
    assert_eq!(path.hypervisor.counters_of(TAP)?.tx_packets, counted.rx_packets);
    Ok(())
}

fn guest_killed() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let path = lab.lay(Application::Guest)?;
    let mut guest = booted(&lab, &path);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(guest.pid() as i32), Signal::SIGKILL)?;
    let error = guest.run("echo still there", Duration::from_secs(30), NEVER).unwrap_err().to_string();
    assert!(error.starts_with("guest guest0: QEMU ended, signal: 9"), "{error}");
    Ok(())
}

fn hypervisor() -> Result<(), Failed> {
    let lab = Lab::new()?;
    let mut hypervisor = Hypervisor::boot(&lab, KERNELS[0], Nics::default(), &mut |line| eprintln!("{line}"), NEVER)?;
    assert_eq!(hypervisor.expect("uname -r", NEVER)?.trim(), hypervisor.release());

    // This machine's files are visible; writes do not reach this machine, except for /out.
    let me = std::env::current_exe()?;
    let trace = me.with_extension("trace");
    hypervisor.expect(&format!("[ -x '{}' ] && touch '{}' /out/brought", me.display(), trace.display()), NEVER)?;
    assert!(!trace.exists() && hypervisor.out().join("brought").exists());

    for needed in
        ["/dev/kvm", "/dev/vhost-net", "/dev/vhost-vsock", "/sys/module/openvswitch", "/sys/kernel/btf/vmlinux"]
    {
        hypervisor.expect(&format!("[ -e {needed} ]"), NEVER)?;
    }
    hypervisor.expect("ovs-vswitchd --version && ip link add lpd0 type dummy", NEVER)?;

    // The machine resumes after the debugger has read its state.
    assert_eq!(hypervisor.stands_at()?.len(), 2);
    hypervisor.expect("true", NEVER)?;

    // The machine's end is reported at once, with the reason.
    assert_eq!(hypervisor.complaints(), Vec::<String>::new());
    let error = hypervisor.run("echo c >/proc/sysrq-trigger; sleep 100", Duration::from_secs(60), NEVER).unwrap_err();
    assert_eq!(error.to_string(), "guest hypervisor-6.1: QEMU ended, exit status: 0");
    let complaints = hypervisor.complaints();
    assert!(complaints.iter().any(|line| line.contains("Kernel panic")), "{complaints:?}");
    Ok(())
}
