//! The study on VMs of its own, in a hypervisor that the lab boots: first a VM without vhost, then one with it.

use anyhow::{bail, Context, Result};
use latpath_agent::Address;
use latpath_lab::{
    path_of, Acceleration, Application, Guest, GuestPlan, Hypervisor, Lab, LabKernel, LabPath, NicService, Nics,
    Switch, GUEST_ADDRESS,
};
use latpath_model::text::{printable, quoted};
use latpath_observe::study::Configuration;
use std::cell::Cell;
use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Version of the hypervisor's kernel: that of Debian 12.
const KERNEL: &str = "6.1";
/// Maximum duration of the study: more than it takes in an emulated hypervisor.
const LIMIT: Duration = Duration::from_secs(1200);
/// The configurations, each with the service of its NIC.
const CONFIGURATIONS: [(&str, NicService); 2] = [("standard", NicService::Qemu), ("vhost", NicService::Default)];
/// Amount of data that the load transfers, the same for all configurations; it takes some seconds in an emulated lab.
const BYTES: &str = "100M";
/// Boots the lab's hypervisor and runs the study in it.
pub(super) fn from_outside(repeat: u32, quiet: bool, stop: &AtomicBool) -> Result<Vec<Configuration>> {
    let stopped = || stop.load(Ordering::Relaxed);
    let lab = Lab::new()?;
    let kernel = LabKernel::named(KERNEL).context("the lab's kernel")?;
    let mut say = |line: &str| {
        if !quiet {
            super::say(line)
        }
    };
    let mut hypervisor = Hypervisor::boot(&lab, kernel, Nics::default(), &mut say, &stopped)?;
    say(&format!("the hypervisor is up: Linux {}, {}", hypervisor.release(), hypervisor.acceleration()));
    let program = std::env::current_exe().context("find latpath's own program file")?;
    let program = program.to_str().context("latpath's own path is no text")?;
    let quoted = quoted(program);
    let emulated = if hypervisor.acceleration() == Acceleration::Tcg { " --emulated" } else { "" };
    let silent = if quiet { " --quiet" } else { "" };
    let script = format!(
        "{quoted} study vhost --in-lab{emulated}{silent} --repeat {repeat} -o /out/study --json > /out/all.json 2> /out/said"
    );
    let (said, shown) = (hypervisor.out().join("said"), Cell::new(0));
    let show = || {
        let text = std::fs::read_to_string(&said).unwrap_or_default();
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let new = text.get(shown.replace(whole)..whole).unwrap_or_default();
        new.lines().for_each(|line| eprintln!("{}", printable(line)));
    };
    let ended = hypervisor.run(&script, LIMIT, &|| {
        show();
        stopped()
    })?;
    show();
    if ended.status != 0 {
        bail!("the study in the lab failed (exit code {}); what it said stands above", ended.status);
    }
    let text = std::fs::read_to_string(hypervisor.out().join("all.json")).context("what the lab measured")?;
    serde_json::from_str(&text).context("what the lab measured")
}

/// Creates the VMs on this machine, one after the other, and measures each.
pub(super) fn inside(
    quiet: bool,
    stop: &AtomicBool,
    mut measure: impl FnMut(&str, &str, &Address, &[OsString]) -> Result<()>,
) -> Result<()> {
    let stopped = || stop.load(Ordering::Relaxed);
    let lab = Lab::new()?;
    for (name, service) in CONFIGURATIONS {
        let path = lab.lay_through(Switch::LinuxBridge, Application::Guest)?;
        let mut guest = boot(&lab, &path, (name, service), quiet, &stopped)?;
        guest.lay_addresses(&path.publisher, &stopped)?;
        guest.start("iperf3", "iperf3 --server", true, &stopped)?;
        guest.start("agent", "latpath agent --device /dev/virtio-ports/latpath.agent", true, &stopped)?;
        reach(&path, &stopped)?;
        let client = format!("iperf3 --client {GUEST_ADDRESS} --reverse --bytes {BYTES} --json");
        let words = ["ip", "netns", "exec", path.publisher.name()].into_iter().chain(client.split(' '));
        let command: Vec<OsString> = words.map(OsString::from).collect();
        let agent = Address::Unix(guest.agent_socket().into());
        measure(name, &format!("latpath-{name}"), &agent, &command)?;
    }
    Ok(())
}

fn boot(
    lab: &Lab,
    path: &LabPath,
    (name, service): (&str, NicService),
    quiet: bool,
    stop: &dyn Fn() -> bool,
) -> Result<Guest> {
    let mut say = |line: &str| {
        if !quiet {
            super::say(line)
        }
    };
    let iperf3 = path_of("iperf3").context("the lab has no iperf3: apt-get install iperf3")?;
    let latpath = std::env::current_exe().context("find latpath's own program file")?;
    let plan = GuestPlan {
        name: name.into(),
        programs: vec![(iperf3, "/bin/iperf3".into()), (lab.stripped(latpath, "latpath"), "/bin/latpath".into())],
        cpus: 1,
        memory_mib: 256,
        acceleration: Some(Acceleration::KvmVhost),
        service,
        ..GuestPlan::default()
    };
    Ok(Guest::boot(lab, path, &plan, &mut say, stop)?)
}

/// Waits until the iperf3 server in the guest answers.
fn reach(path: &LabPath, stop: &dyn Fn() -> bool) -> Result<()> {
    for _ in 0..60 {
        if stop() {
            bail!("ended by Ctrl-C");
        }
        let mut command = Command::new("ip");
        command.args(["netns", "exec", path.publisher.name(), "iperf3", "--client", GUEST_ADDRESS, "--bytes", "1K"]);
        if command.output().context("starting iperf3")?.status.success() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    bail!("iperf3 in the guest does not answer")
}
