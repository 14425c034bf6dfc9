//! Plans in the formats of other tools: a shell script, libvirt's XML, Ansible variables for SEAPATH.

use crate::machine::Machine;
use crate::plan::{Later, Plan, Planned};
use latpath_linux::Cpus;
use latpath_model::text::printable;
use latpath_settings::{Address, Read, Setting, Writable};
use latpath_vms::{Role, Tap, Thread, Vm};

/// An output format for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A commented shell script, including the lines that undo it.
    Shell,
    /// Elements of libvirt's domain XML, for each virtual machine managed by libvirt.
    Libvirt,
    /// Variables for SEAPATH's Ansible roles.
    Ansible,
}

/// The plan in another tool's format.
pub fn export(plan: &Plan, machine: &Machine, format: Format) -> String {
    match format {
        Format::Shell => shell(plan),
        Format::Libvirt => libvirt(plan, machine),
        Format::Ansible => ansible(plan),
    }
}

fn shell(plan: &Plan) -> String {
    let name = &plan.profile;
    let mut text = format!(
        "#!/bin/sh\n# Settings of profile {name}, planned for this machine by latpath tune plan {name} --export shell.\n\
         # The lines behind \"undo:\" give the present values back. Enter them as root.\nset -e\n"
    );
    for step in &plan.steps {
        text += &format!("\n# {}: {} ({})\n", step.setting, printable(&step.why), printable(&step.source));
        for place in &step.places {
            let at = if place.target.is_empty() { String::new() } else { format!(" of {}", printable(&place.target)) };
            text += &format!("# was{at}: {}\n", printable(&place.from));
            if let Some(command) = &place.command {
                text += &format!("{command}\n");
            }
            if let Some(undo) = &place.undo {
                text += &format!("# undo: {}\n", printable(undo));
            }
        }
    }
    let boot: Vec<&str> =
        plan.later.iter().filter(|one| one.writable == Writable::NextBoot).filter_map(command).collect();
    if !boot.is_empty() {
        text += "\n# On the kernel's command line (GRUB_CMDLINE_LINUX of /etc/default/grub, then update-grub):\n";
        text += &format!("# {}\n", printable(&boot.join(" ")));
    }
    for one in plan.later.iter().filter(|one| one.writable == Writable::ModuleLoad) {
        text += &format!(
            "\n# {}: {} ({}); from the module's next load on\n",
            one.setting,
            printable(&one.why),
            printable(&one.source)
        );
        text += &command(one).map(|command| format!("{command}\n")).unwrap_or_default();
    }
    for one in plan.later.iter().filter(|one| ![Writable::NextBoot, Writable::ModuleLoad].contains(&one.writable)) {
        let target = printable(&one.target);
        text += &format!("\n# {} of {target}: {} ({})\n", one.setting, printable(&one.to), printable(&one.why));
        text += &command(one).map(|command| format!("# {}\n", printable(command))).unwrap_or_default();
    }
    text
}

fn command(one: &Later) -> Option<&str> {
    one.command.as_deref()
}

/// The value that the plan sets for a thread; `None` if it does not change it.
fn planned(plan: &Plan, setting: Setting, tid: u32) -> Option<&str> {
    let is_its = |step: &&Planned| {
        let is_at = |address: &Address| matches!(address, Address::Thread { tid: own, .. } if *own == tid);
        step.setting == setting && step.places.iter().any(|place| is_at(&place.address))
    };
    plan.steps.iter().find(is_its).map(|step| step.to.as_str())
}

fn cpus(plan: &Plan, thread: &Thread) -> Cpus {
    let planned = planned(plan, Setting::ThreadCpus, thread.tid).and_then(|list| list.parse().ok());
    planned.unwrap_or_else(|| thread.cpus_allowed.clone())
}

fn libvirt(plan: &Plan, machine: &Machine) -> String {
    let all: Vec<&Vm> = machine.vms.iter().filter(|vm| vm.libvirt).collect();
    if all.is_empty() {
        return "<!-- libvirt manages no virtual machine here -->\n".into();
    }
    all.into_iter().map(|vm| of_vm(plan, vm)).collect()
}

/// The elements of one virtual machine, to be merged with `virsh edit`.
fn of_vm(plan: &Plan, vm: &Vm) -> String {
    // A comment must not contain two consecutive dashes.
    let mut text =
        format!("<!-- {}: merge these elements by virsh edit -->\n", printable(&vm.name).replace("--", "- -"));
    text += "<domain>\n";
    let wants = |setting: Setting| plan.later.iter().find(|one| one.setting == setting && one.target == vm.name);
    if wants(Setting::VmMemoryLocked).is_some_and(|one| one.to == "yes") {
        text += "  <memoryBacking>\n    <locked/>\n  </memoryBacking>\n";
    }
    text += "  <cputune>\n";
    let vcpus = vm.threads.iter().filter_map(|thread| Some((thread.vcpu?, thread)));
    for (number, thread) in vcpus.clone() {
        text += &format!("    <vcpupin vcpu='{number}' cpuset='{}'/>\n", cpus(plan, thread));
    }
    if let Some(main_loop) = vm.threads.iter().find(|thread| thread.role == Role::MainLoop) {
        text += &format!("    <emulatorpin cpuset='{}'/>\n", cpus(plan, main_loop));
    }
    for (number, thread) in vcpus {
        let scheduling = planned(plan, Setting::ThreadPriority, thread.tid)
            .map_or_else(|| format!("{} {}", thread.policy.name(), thread.rt_priority), str::to_owned);
        if let Some((policy @ ("fifo" | "rr"), priority)) = scheduling.split_once(' ') {
            text += &format!("    <vcpusched vcpus='{number}' scheduler='{policy}' priority='{priority}'/>\n");
        }
    }
    text += "  </cputune>\n";
    let mut devices = wants(Setting::VmVirtqueues).map_or_else(String::new, |one| interfaces(vm, &one.to));
    if wants(Setting::VmBalloon).is_some_and(|one| one.to == "no") {
        devices += "    <memballoon model='none'/>\n";
    }
    if !devices.is_empty() {
        text += &format!("  <devices>\n{devices}  </devices>\n");
    }
    text + "</domain>\n"
}

/// The queue sizes of network devices, from the value of `vm-virtqueues`: one part per device, or one part for all.
fn interfaces(vm: &Vm, value: &str) -> String {
    let parts: Vec<&str> = value.split("; ").collect();
    let size = |part: &str, queue: &str| -> Option<u32> {
        part.split(' ').skip_while(|word| *word != queue).nth(1).and_then(|size| size.parse().ok())
    };
    let one = |(number, tap): (usize, &Tap)| {
        let part = parts.get(if parts.len() == 1 { 0 } else { number })?;
        let sizes = [("rx", "rx_queue_size"), ("tx", "tx_queue_size")];
        let sizes = sizes.map(|(queue, name)| Some(format!(" {name}='{}'", size(part, queue)?)));
        let sizes: String = sizes.into_iter().flatten().collect();
        let address = tap.guest_mac.as_ref().map_or(String::new(), |mac| format!("      <mac address='{mac}'/>\n"));
        let interface = format!("    <interface>\n{address}      <driver{sizes}/>\n    </interface>\n");
        (!sizes.is_empty()).then_some(interface)
    };
    vm.taps.iter().enumerate().filter_map(one).collect()
}

/// A string as a YAML value.
fn yaml(text: &str) -> String {
    format!("\"{}\"", printable(text).replace('\\', "\\\\").replace('"', "\\\""))
}

/// Variables for SEAPATH's roles `debian_hypervisor` and `debian_physical_machine`
/// (<https://github.com/seapath/ansible>).
fn ansible(plan: &Plan) -> String {
    let mut text = format!("# Variables of SEAPATH's Ansible roles for profile {}.\n", plan.profile);
    let isolated = plan.isolated.as_ref().map(Cpus::to_string);
    let housekeeping = plan.housekeeping.as_ref().map(Cpus::to_string);
    let mut all = plan.isolated.clone().unwrap_or_default();
    all.join(plan.housekeeping.clone().unwrap_or_default());
    for (names, value) in [
        (&["isolcpus", "cpumachinesrt"][..], isolated),
        (&["cpusystem", "cpuuser", "cpumachinesnort"], housekeeping),
        (&["cpumachines"], Some(all.to_string()).filter(|list| !list.is_empty())),
    ] {
        let Some(value) = value else { continue };
        names.iter().for_each(|name| text += &format!("{name}: {}\n", yaml(&value)));
    }
    let sysctls = plan.steps.iter().filter_map(|step| match step.setting.info().read {
        Read::Sysctl(name) => Some(format!("  {name} = {}\n", printable(&step.to))),
        _ => None,
    });
    let sysctls: String = sysctls.collect();
    if !sysctls.is_empty() {
        text += &format!("extra_sysctl_physical_machines: |\n{sysctls}");
    }
    let others = plan.steps.iter().filter(|step| !matches!(step.setting.info().read, Read::Sysctl(_)));
    let others = others.map(|step| format!("{} = {}", step.name(), step.to));
    let boot = plan.later.iter().map(|one| match (&one.command, one.writable) {
        (Some(command), Writable::NextBoot) => format!("kernel's command line: {command}"),
        _ => format!(
            "{} of {} = {}",
            one.setting,
            if one.target.is_empty() { "the machine" } else { &one.target },
            one.to
        ),
    });
    let rest: Vec<String> = others.chain(boot).collect();
    if !rest.is_empty() {
        text += "# SEAPATH's roles have no variable for these; its tuned profile sets some of them (custom_tuned_profile_path):\n";
        rest.iter().for_each(|line| text += &format!("#   {}\n", printable(line)));
    }
    text
}
