//! Fixes for a cause: a sentence and its commands, with the numbers of the case at hand.
//!
//! The commands are those of Debian 12: chrt(1), taskset(1), virsh(1), cpupower-idle-set(1), perf-record(1), sysctl(8),
//! ovs-ofctl(8), ovs-vswitchd.conf.db(5), tc(8), nsenter(1), and files described in proc(5), cgroups(7), the kernel's
//! admin-guide and its KVM documentation. crates/latpath/tests/lab/causes/fixes.rs runs those that can run anywhere.
//! Advice fits the case: it raises a priority only if another one is higher, and moves a thread only if another CPU
//! exists. docs/causes.md lists all advice.

mod shell;

use crate::actor::Actor;
use crate::{kernel_time, CauseShare, NoFlow, Note, RunContext};
use latpath_flight::{Class, Doing, Vector};
use latpath_linux::Cpus;
use latpath_model::text::quoted;
use latpath_model::{Link, PointId, PointInfo, StreamId, HOST};
use latpath_settings::{Place, Setting};
use latpath_vms::{Role, Thread, Vm};
use shell::{device_of, flow, group_of, list, mask, ofctl_port, old_group_of, text};

/// A fix, or a method to find one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Advice {
    /// The action and its reason: a sentence without a full stop.
    pub what: String,
    /// Commands for it, to be run on `machine`. If there are alternatives, the first one that fits the setup is enough.
    pub commands: Vec<String>,
    /// The settings that the fix changes; empty if it changes none, or only settings missing from latpath's table.
    pub settings: Vec<Setting>,
    /// Name of the machine on which to run the commands.
    pub machine: String,
}

/// The real-time priority, 1 to 99, of a thread under SCHED_FIFO or SCHED_RR.
fn realtime(class: Option<Class>) -> Option<u32> {
    let class = class.filter(|class| matches!(class.policy, 1 | 2))?;
    u32::try_from(99 - i32::from(class.prio)).ok().filter(|p| (1..=99).contains(p))
}

fn is_deadline(class: Option<Class>) -> bool {
    class.is_some_and(|class| class.policy == 6)
}

/// Fixes for a cause of one packet of this stream, or of many packets ([`Row`](crate::Row)), the best first; empty if
/// latpath knows no fix.
pub fn advise(share: &CauseShare, stream: Option<StreamId>, known: &RunContext) -> Vec<Advice> {
    let advisor = Advisor { share, stream, known };
    // Only as a culprit (`by`) is a latpath program to blame; as `share.actor`, it is the user's application.
    match advisor.by().filter(|actor| actor.is_tool) {
        Some(tool) => advisor.of_tool(tool),
        None => (share.cause.info().advice)(&advisor),
    }
}

/// Gives advice on one cause. Each cause names the method that applies to its kind.
pub(crate) struct Advisor<'a> {
    share: &'a CauseShare,
    stream: Option<StreamId>,
    known: &'a RunContext,
}

impl Advisor<'_> {
    fn one<S: Into<String>>(&self, what: impl Into<String>, commands: impl IntoIterator<Item = S>) -> Advice {
        let commands = commands.into_iter().map(Into::into).collect();
        Advice { what: what.into(), commands, settings: Vec::new(), machine: self.share.machine.clone() }
    }

    /// Advises changing a setting; the command comes from the table of settings.
    fn set(&self, what: impl Into<String>, setting: Setting, at: &Place, value: &str) -> Advice {
        Advice { settings: vec![setting], ..self.one(what, setting.shell(at, value)) }
    }

    fn without_command(&self, what: impl Into<String>) -> Vec<Advice> {
        vec![self.one(what, None::<String>)]
    }

    fn on_hypervisor(&self, what: &str, command: &str) -> Vec<Advice> {
        let machine = self.known.hypervisor_of(&self.share.machine).into();
        vec![Advice { machine, ..self.one(what, [command]) }]
    }

    /// The CPU on which the delay occurred; all CPUs if it is unknown.
    fn cpu_or_all(&self) -> Place {
        self.share.cpu().map_or(Place::All, Place::name)
    }

    /// Returns no advice, for causes to which latpath knows no fix.
    pub(crate) fn none(&self) -> Vec<Advice> {
        Vec::new()
    }

    fn by(&self) -> Option<&Actor> {
        self.share.by.first().map(|(by, _)| by)
    }

    fn thread(&self) -> Option<(&Actor, u32)> {
        let actor = self.share.actor.as_ref()?;
        Some((actor, actor.pid()?))
    }

    fn is_on_host(&self) -> bool {
        self.share.machine == HOST
    }

    /// The virtual machines of the machine on which the delay occurred.
    fn vms(&self) -> &[Vm] {
        self.known.vms.of(&self.share.machine)
    }

    /// CPUs to which a thread could move: not the one on which the delay occurred and, if possible, none to which vCPUs
    /// are pinned.
    fn elsewhere(&self) -> Option<String> {
        self.elsewhere_list().map(|cpus| text(&cpus))
    }

    fn elsewhere_list(&self) -> Option<Vec<u32>> {
        let mut cpus = list(self.known.cpus.get(&self.share.machine)?);
        let all = cpus.len();
        cpus.retain(|cpu| Some(*cpu) != self.share.cpu());
        let vcpus = self.vms().iter().flat_map(|vm| &vm.threads).filter(|t| t.role == Role::Vcpu);
        let pinned: Vec<&Cpus> = vcpus.map(|t| &t.cpus_allowed).filter(|c| list(c).len() < all).collect();
        let free: Vec<u32> = cpus.iter().copied().filter(|c| !pinned.iter().any(|p| p.contains(*c))).collect();
        if !free.is_empty() {
            cpus = free;
        }
        (!cpus.is_empty()).then_some(cpus)
    }

    /// The virtual machine and role of a thread, if libvirt manages the virtual machine.
    fn libvirts(&self, pid: u32) -> Option<(&Vm, &Thread)> {
        self.known.vm_of(&self.share.machine, pid).filter(|(vm, _)| vm.libvirt)
    }

    /// Advises moving the observed threads by their IDs. For threads of a virtual machine, adds libvirt's command; for
    /// a service, a command that also covers threads started later.
    fn moving(&self, what: String, actor: &Actor, cpus: &str) -> Advice {
        let Some(pid) = actor.pid() else { return self.one(what, None::<String>) };
        let mut advice = match actor.pids.as_slice() {
            [_] => self.set(what, Setting::ThreadCpus, &Place::name(pid), cpus),
            pids => {
                let mut each = self.set(what, Setting::ThreadCpus, &Place::expression("$pid"), cpus);
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                each.commands
                    .iter_mut()
                    .for_each(|line| *line = format!("for pid in {}; do {line}; done", pids.join(" ")));
                each
            }
        };
        if let Some((vm, thread)) = self.libvirts(pid) {
            let name = quoted(&vm.name);
            advice.commands.extend(match (thread.role, thread.vcpu) {
                (Role::Vcpu, n) => n.map(|n| format!("virsh vcpupin {name} {n} {cpus} --live --config")),
                // libvirt's thread names contain the IDs of I/O threads.
                (Role::Io, _) => thread
                    .comm
                    .strip_prefix("IO iothread")
                    .and_then(|n| n.parse::<u32>().ok())
                    .map(|n| format!("virsh iothreadpin {name} {n} {cpus} --live --config")),
                _ => Some(format!("virsh emulatorpin {name} {cpus} --live --config")),
            });
            return advice;
        }
        let unit = actor.process.as_ref().and_then(|process| process.unit.as_deref());
        let victims = self.share.actor.as_ref().and_then(|a| a.process.as_ref()?.unit.as_deref());
        let is_systemds = |unit: &&str| unit.ends_with(".service") || unit.ends_with(".scope");
        if let Some(unit) = unit.filter(is_systemds).filter(|unit| victims != Some(unit)) {
            advice.settings.push(Setting::CgroupCpus);
            advice.commands.extend(Setting::CgroupCpus.shell(&Place::name(unit), cpus));
        }
        advice
    }

    /// Advises pinning the waiting thread to the CPU on which it waited most, so that moving other threads away helps.
    /// `None` if it is a thread of a VM, a kernel thread bound to its CPU, or one of several threads; if a vCPU is
    /// pinned to the CPU; or if there is no other CPU.
    fn pin_victim(&self, victim: &Actor) -> Option<Advice> {
        let (cpu, pid) = (self.share.cpu()?, victim.pid()?);
        let elsewhere = self.elsewhere_list()?;
        let is_of_vm = self.known.vm_of(&self.share.machine, pid).is_some();
        if is_of_vm || stays(victim) || victim.pids.len() > 1 || elsewhere.contains(&cpu) || self.has_vcpu(cpu) {
            return None;
        }
        let what = format!("pin {} to CPU {cpu}, before other threads are kept off that CPU", victim.name);
        Some(self.set(what, Setting::ThreadCpus, &Place::name(pid), &cpu.to_string()))
    }

    /// Whether a vCPU is pinned to this CPU of the machine.
    fn has_vcpu(&self, cpu: u32) -> bool {
        let all = self.known.cpus.get(&self.share.machine).map_or(0, |cpus| list(cpus).len());
        let mut vcpus = self.vms().iter().flat_map(|vm| &vm.threads).filter(|t| t.role == Role::Vcpu);
        vcpus.any(|t| t.cpus_allowed.contains(cpu) && list(&t.cpus_allowed).len() < all)
    }

    /// Advice for a thread that was ready while its CPU was running another thread.
    pub(crate) fn of_waiting(&self) -> Vec<Advice> {
        let (Some(victim), Some(by)) = (self.share.actor.as_ref(), self.by()) else { return Vec::new() };
        let Some(pid) = victim.pid() else { return self.of_interrupts() };
        if by.doing.interrupts() {
            return self.of_interrupts();
        }
        let elsewhere = self.elsewhere();
        let cpu = self.share.cpu().map_or("that CPU".to_owned(), |cpu| format!("CPU {cpu}"));
        let is_vcpu = |m: &Actor| {
            let thread = m.pid().and_then(|pid| self.known.vm_of(&self.share.machine, pid));
            thread.is_some_and(|(_, thread)| thread.role == Role::Vcpu)
        };
        let move_victim = elsewhere
            .as_ref()
            .map(|cpus| self.moving(format!("keep {} off {cpu}, which {} uses", victim.name, by.name), victim, cpus));
        let move_by = elsewhere
            .as_ref()
            .filter(|_| !stays(by))
            .map(|cpus| self.moving(format!("keep {} off {cpu}", by.name), by, cpus));
        let raise = |priority: u32, what: String| {
            self.set(what, Setting::ThreadPriority, &Place::name(pid), &format!("fifo {priority}"))
        };
        // The waiting thread must stay on the CPU from which the others are moved.
        let make_room = || match move_by.clone() {
            Some(move_by) if self.share.cpu().is_some_and(|cpu| self.has_vcpu(cpu)) && !is_vcpu(victim) => {
                move_victim.clone().into_iter().chain(move_victim.is_none().then_some(move_by)).collect::<Vec<_>>()
            }
            Some(move_by) => self.pin_victim(victim).into_iter().chain([move_by]).collect(),
            None => move_victim.clone().into_iter().collect(),
        };
        let (mine, its) = (realtime(victim.class), realtime(by.class));
        let mut all = Vec::new();
        match (mine, its) {
            (mine, Some(its)) if its < 99 && mine.is_none_or(|mine| mine <= its) => {
                let raise = raise(its + 1, format!("give {} a priority above that of {}", victim.name, by.name));
                // A vCPU has real-time priority on purpose and may never sleep, so moving the waiting thread comes
                // first.
                if is_vcpu(by) {
                    all.extend(move_victim);
                    all.push(raise);
                } else {
                    all.push(raise);
                    all.extend(make_room());
                }
            }
            (_, Some(_)) => all.extend(make_room()),
            _ if is_deadline(by.class) => all.extend(move_victim.or(move_by)),
            (None, None) => {
                all.push(raise(
                    1,
                    format!("run {} in real time: threads that are not in real time then wait for it", victim.name),
                ));
                all.extend(make_room());
            }
            (Some(_), None) => {
                all.extend(make_room());
                all.push(self.set(
                    format!(
                        "{} keeps its CPU while it is in the kernel: a kernel with PREEMPT_RT takes it away",
                        by.name
                    ),
                    Setting::KernelPreemption,
                    &Place::All,
                    "PREEMPT_RT",
                ));
                all.extend(self.of_fair_server());
            }
        }
        all
    }

    /// Advice for softirqs of a veth: they run on the CPU that sent the packets, so there is no interrupt to move.
    fn of_virtual_devices(&self) -> Option<Advice> {
        let is_here = |info: &&PointInfo| {
            info.link == Link::Veth && info.point.kind.is_entry() && info.point.machine == self.share.machine
        };
        let info = self.known.points.iter().find(is_here)?;
        let (device, namespace) = device_of(info);
        let elsewhere = mask(&self.elsewhere_list()?);
        let queue = Place::name(format!("{device}/queues/rx-0"));
        let mut advice = self.set(
            format!(
                "{device} is a virtual device: the CPU that sends to it takes its packets too; let other CPUs take them \
                 (receive packet steering)"
            ),
            Setting::DeviceRps,
            &queue,
            &elsewhere,
        );
        if let Some(namespace) = namespace {
            advice.commands.iter_mut().for_each(|line| *line = namespace.with_sysfs(line));
        }
        Some(advice)
    }

    /// Advice if an interrupt, softirq or timer occupied the CPU, or if interrupts were delayed.
    pub(crate) fn of_interrupts(&self) -> Vec<Advice> {
        let Some(by) = self.by() else { return Vec::new() };
        let cpu = self.share.cpu().map_or("this CPU".to_owned(), |cpu| format!("CPU {cpu}"));
        let elsewhere = self.elsewhere();
        let affinity = |what: String, irq: &str| match &elsewhere {
            Some(cpus) => self.set(what, Setting::IrqAffinity, &Place::name(irq), cpus),
            None => self.one(what, None::<String>),
        };
        match by.doing {
            Doing::Irq(n) => {
                let keep = self.share.cpu().map_or(String::new(), |cpu| {
                    format!(" (irqbalance, where it runs, needs IRQBALANCE_BANNED_CPULIST={cpu} in /etc/default/irqbalance)")
                });
                vec![affinity(format!("let another CPU serve {}{keep}", by.name), &n.to_string())]
            }
            Doing::Softirq(2 | 3) => {
                let what = format!(
                    "let another CPU serve the NIC whose packets keep {cpu} busy (its interrupts N: grep NIC /proc/interrupts)"
                );
                self.of_virtual_devices().into_iter().chain([affinity(what, "N")]).collect()
            }
            Doing::Softirq(_) | Doing::Vector(Vector::LocalTimer) | Doing::Timer(_) => {
                let what = format!("keep timers and housekeeping off {cpu}: on the kernel's command line");
                let Some(cpu) = self.share.cpu() else { return self.without_command(what) };
                vec![self.isolate(what, cpu, &elsewhere.unwrap_or("0".into()))]
            }
            Doing::Nmi => vec![self.set("switch the NMI watchdog off", Setting::NmiWatchdog, &Place::All, "0")],
            Doing::Thread(_) => {
                let Some(cpus) = elsewhere.filter(|_| !stays(by)) else { return Vec::new() };
                let what = format!("keep {} off {cpu}: it kept interrupts from being served", by.name);
                vec![self.moving(what, by, &cpus)]
            }
            _ => Vec::new(),
        }
    }

    /// Advises isolating a CPU with kernel command line options; `others` are the CPUs for interrupts.
    fn isolate(&self, what: String, cpu: u32, others: &str) -> Advice {
        let cpu = &*cpu.to_string();
        let parameters = [
            (Setting::BootIsolcpus, cpu),
            (Setting::BootNohzFull, cpu),
            (Setting::BootRcuNocbs, cpu),
            (Setting::BootIrqaffinity, others),
        ];
        let lines = parameters.iter().filter_map(|(setting, value)| setting.shell(&Place::All, value));
        let line = lines.collect::<Vec<_>>().join(" ");
        Advice { settings: parameters.map(|(setting, _)| setting).to_vec(), ..self.one(what, [line]) }
    }

    pub(crate) fn of_idle(&self) -> Vec<Advice> {
        let state = self.share.state.as_deref();
        // A machine that runs virtual machines is assumed to have physical CPUs.
        if !self.is_on_host() && self.vms().is_empty() {
            // On x86, a virtual CPU that polls in its idle loop does not exit to the host.
            if state.is_some_and(|name| name.eq_ignore_ascii_case("poll")) {
                return self.without_command("the guest's CPU polled: what the host did to that vCPU delayed it");
            }
            return vec![self.set(
                "let the guest's CPU poll instead of halting, where it has the host's CPU to itself (the guest's kernel command line)",
                Setting::BootIdle,
                &Place::All,
                "poll",
            )];
        }
        // Only virtual machines use the haltpoll driver.
        if self.is_on_host() && self.known.is_virtual
            || state.is_some_and(|name| name.to_ascii_lowercase().starts_with("haltpoll"))
        {
            return vec![self.one(
                "cannot be fixed in this machine, which is virtual: its CPU had halted, and the outer host ran it again late. See on the \
                 outer host that this vCPU has a CPU to itself and that KVM polls (halt_poll_ns). Check here with vmstat: column st is \
                 the percentage of CPU time that the outer host took",
                ["vmstat 1 5"],
            )];
        }
        if self.share.number == Some(0) {
            let named = state.map_or(String::new(), |name| format!(", {name},"));
            return vec![self.one(
                format!(
                    "any CPU leaves its first idle state{named} at once: what is below this kernel kept it, firmware or, of a \
                     virtual machine, the host; look for that (package rt-tests)"
                ),
                ["hwlatdetect --duration=60"],
            )];
        }
        let named = state.map_or(String::new(), |name| format!("the CPU came out of {name}: "));
        vec![self.set(
            format!("{named}forbid idle states that take 10 µs or more to leave (package linux-cpupower)"),
            Setting::CpuIdleLimit,
            &self.cpu_or_all(),
            "10",
        )]
    }

    pub(crate) fn of_throttling(&self) -> Vec<Advice> {
        let Some(actor) = &self.share.actor else { return Vec::new() };
        let Some(pid) = actor.pid() else { return Vec::new() };
        if is_deadline(actor.class) {
            return self.of_runtime(actor, pid);
        }
        if realtime(actor.class).is_some() {
            return self.of_realtime_limits(actor, pid);
        }
        let look = format!(
            "g={}; while [ -e $g/cpu.max ]; do echo $g: $(cat $g/cpu.max); g=${{g%/*}}; done; g={}; \
             while [ -e $g/cpu.cfs_quota_us ]; do echo $g: $(cat $g/cpu.cfs_quota_us); g=${{g%/*}}; done",
            group_of(pid),
            old_group_of(pid, "cpu")
        );
        let what = format!("lift the CPU limit of the control group of {}", actor.name);
        let mut lift = self.set(what, Setting::CgroupQuota, &Place::expression(group_of(pid)), "max");
        lift.commands.push(format!("echo -1 > {}/cpu.cfs_quota_us", old_group_of(pid, "cpu")));
        if let Some((vm, _)) = self.libvirts(pid) {
            let name = quoted(&vm.name);
            lift.commands.push(format!(
                "virsh schedinfo {name} --live --config --set global_quota=-1 vcpu_quota=-1 emulator_quota=-1"
            ));
        }
        vec![lift, self.one("lift it of one above that: this shows which has one (max and -1 are none)", [look])]
    }

    /// Advice for a SCHED_DEADLINE thread that used up its runtime.
    fn of_runtime(&self, actor: &Actor, pid: u32) -> Vec<Advice> {
        let look = format!("chrt -p {pid}");
        vec![
            self.one(
                format!(
                    "{} used up the runtime that SCHED_DEADLINE gives it in each period: double that, up to its deadline (refused \
                     where all such threads together would have more than 95 % of the CPUs)",
                    actor.name
                ),
                [format!(
                    "set -- $({look} | grep -oE '[0-9]+/[0-9]+/[0-9]+' | tr / ' '); chrt -d --sched-runtime \
                     $(($1*2<$2?$1*2:$2)) --sched-deadline $2 --sched-period $3 -p 0 {pid}"
                )],
            ),
            self.one("see its runtime, deadline and period, in ns", [look]),
        ]
    }

    /// Advice for a real-time thread that was throttled.
    fn of_realtime_limits(&self, actor: &Actor, pid: u32) -> Vec<Advice> {
        let group = old_group_of(pid, "cpu");
        let mut all = vec![
            self.one(
                format!(
                    "see which control group of {} has a limit for real-time threads (cpu.rt_runtime_us of cpu.rt_period_us; no line: \
                     none), and raise it, those above it first",
                    actor.name
                ),
                [format!(
                    "g={group}; while [ -e $g/cpu.rt_runtime_us ]; do echo $g: $(cat $g/cpu.rt_runtime_us $g/cpu.rt_period_us); \
                     g=${{g%/*}}; done"
                )],
            ),
            self.set(
                "real-time threads of all groups together may use 95 % of the time: lift that, for all of them",
                Setting::RtRuntime,
                &Place::All,
                "-1",
            ),
        ];
        all.extend(self.of_fair_server());
        all
    }

    /// Advice on the CPU time that the kernel reserves for ordinary threads.
    fn of_fair_server(&self) -> Option<Advice> {
        let cpu = self.share.cpu()?;
        Some(self.set(
            "from Linux 6.12 on real-time threads that fill a CPU leave 50 ms of each second to others, unless this is 0 \
             (6.12 itself warns once in its log if others wait while it is written; before it, sysctl \
             kernel.sched_rt_runtime_us says how much they leave)",
            Setting::FairServer,
            &Place::name(cpu),
            "0",
        ))
    }

    pub(crate) fn of_stopping(&self) -> Vec<Advice> {
        let Some((actor, pid)) = self.thread() else { return Vec::new() };
        vec![
            self.one(
                format!("find what stops {} (SIGSTOP, a debugger, the freezer); if it is still stopped", actor.name),
                [
                    format!("kill -CONT {pid}"),
                    format!("echo 0 > {}/cgroup.freeze", group_of(pid)),
                    format!("echo THAWED > {}/freezer.state", old_group_of(pid, "freezer")),
                ],
            ),
            self.one(
                "see what holds it: State T is a signal, t a debugger (TracerPid is its number), any other the freezer",
                [format!("grep -E '^(State|TracerPid):' /proc/{pid}/status")],
            ),
        ]
    }

    pub(crate) fn of_blocking(&self) -> Vec<Advice> {
        let Some((actor, pid)) = self.thread() else { return Vec::new() };
        let mut all = Vec::new();
        let notes = || self.share.notes.iter().map(|(note, _)| note);
        if notes().any(|note| *note == Note::ThrottledIo) {
            let (new, old) = (group_of(pid), old_group_of(pid, "blkio"));
            let no_limits = "rbps=max wbps=max riops=max wiops=max";
            all.push(self.one(
                format!("lift the limits of block I/O of the control group of {}, for each device that it names", actor.name),
                [
                    format!(
                        "g={new}; devices=$(cut -d' ' -f1 $g/io.max) && for device in $devices; do echo $device {no_limits} > $g/io.max; done"
                    ),
                    format!(
                        "for file in {old}/blkio.throttle.*_device; do devices=$(cut -d' ' -f1 $file) && for device in $devices; do \
                         echo $device 0 > $file; done; done"
                    ),
                ],
            ));
            all.push(self.one(
                "see these limits, to put them back",
                [format!("cat {new}/io.max"), format!("tail -n +1 {old}/blkio.throttle.*_device")],
            ));
        }
        all.extend(notes().find_map(kernel_time::fix).map(|fix| self.one(fix, None::<String>)));
        if let Some((vm, _)) = self.known.vm_of(&self.share.machine, pid) {
            let what = format!("{} waited for a lock, a page or a disk: keep the guest's memory locked", actor.name);
            all.push(match vm.libvirt {
                true => self.set(
                    what + " (from its next start on: <memoryBacking><locked/></memoryBacking>)",
                    Setting::VmMemoryLocked,
                    &Place::name(&vm.name),
                    "yes",
                ),
                false => self.set(what + " (QEMU's option)", Setting::VmMemoryLocked, &Place::All, "yes"),
            });
        }
        all.push(self.one(
            format!("see where in the kernel {} waits so (package linux-perf; perf report shows it)", actor.name),
            [format!("perf record -e sched:sched_switch --filter 'prev_state == 2' -g -t {pid} -- sleep 10")],
        ));
        all
    }

    pub(crate) fn of_queues(&self) -> Vec<Advice> {
        let ahead = match self.share.number {
            Some(n) if n > 1 => format!("{n} packets"),
            _ => "others".into(),
        };
        self.without_command(format!(
            "up to {ahead} came before: spread the burst at its sender, or give this stream a queue that others do not share"
        ))
    }

    pub(crate) fn of_polling(&self) -> Vec<Advice> {
        let reader = self.share.actor.as_ref().map_or("the thread", |actor| &actor.name);
        if let Some(waiter) = &self.share.waiter {
            return self
                .without_command(format!("{} waits for {reader}: let {reader} answer without sleeping", waiter.name));
        }
        self.without_command(match self.share.number {
            Some(ns) if ns >= 1000 => format!(
                "{reader} looks for packets from time to time, having slept for {} µs: let it wait in its receiving call",
                ns / 1000
            ),
            _ => format!("let {reader} wait in its receiving call instead of sleeping by a timer"),
        })
    }

    pub(crate) fn of_late_timers(&self) -> Vec<Advice> {
        let talker = self.share.actor.as_ref().map_or("the talker", |actor| &actor.name);
        self.without_command(format!(
            "let {talker} wake up earlier and wait actively for its send time (latpath publish --spin TIME); as SCHED_FIFO, \
             its timers have no slack (50 µs by default)"
        ))
    }

    pub(crate) fn of_upcalls(&self) -> Vec<Advice> {
        let mut taps = self.vms().iter().flat_map(|vm| &vm.taps);
        let tap = taps.find(|tap| tap.bridge.as_ref().is_some_and(|b| b.kind == "openvswitch"));
        let bridge = tap.and_then(|tap| tap.bridge.as_ref()).map_or("BRIDGE".into(), |b| quoted(&b.name));
        let port = tap.map_or("PORT".into(), |tap| ofctl_port(&tap.device));
        let streams = &self.known.streams;
        let stream = match self.stream {
            Some(id) => streams.get(usize::from(id)),
            None => streams.first().filter(|_| streams.len() == 1),
        };
        let matches = stream.map_or("dl_type=0x88ba".to_owned(), flow);
        let mut all = vec![self.one(
            "give Open vSwitch a rule of its own for this stream, so that learning and ageing leave it alone; it then goes to the \
             ports that are named here and to no others, so name all that want it; of a port with a VLAN of its own (tag), put \
             strip_vlan before its output",
            [format!("ovs-ofctl add-flow {bridge} {}", quoted(&format!("priority=1000,{matches},actions=output:{port}")))],
        )];
        let reason = self.share.notes.iter().find_map(|(note, _)| match note {
            Note::NoFlow(reason) => Some(*reason),
            _ => None,
        });
        all.extend(match reason.unwrap_or(NoFlow::Unknown) {
            // Idle flows are the most frequent reason, so this advice is also given if the reason is unknown.
            NoFlow::Idle | NoFlow::Unknown => Some(self.one(
                "keep flows in the kernel for 10 minutes without a packet (10 s otherwise)",
                ["ovs-vsctl set Open_vSwitch . other_config:max-idle=600000"],
            )),
            NoFlow::FlowLimit => Some(self.one(
                "let the kernel have a million flows (200,000 otherwise)",
                ["ovs-vsctl set Open_vSwitch . other_config:flow-limit=1000000"],
            )),
            NoFlow::Emptied | NoFlow::Deleted | NoFlow::Purged => Some(self.one(
                "do not remove flows (ovs-dpctl del-flows, ovs-appctl revalidator/purge) while packets must be on time",
                None::<String>,
            )),
            NoFlow::Revalidated => Some(self.one(
                "do not change OpenFlow rules, ports or bridges while packets must be on time: flows that no longer fit are removed",
                None::<String>,
            )),
            NoFlow::NeverThere | NoFlow::Installed => None,
        });
        all.push(self.one(
            "take that rule away again, if it was wrong",
            [format!("ovs-ofctl --strict del-flows {bridge} {}", quoted(&format!("priority=1000,{matches}")))],
        ));
        all
    }

    pub(crate) fn of_qdiscs(&self) -> Vec<Advice> {
        let sender = sending_device(self.share, self.known);
        let (name, namespace) = sender.map_or(("DEV", None), device_of);
        let within = namespace.map_or(String::new(), |namespace| namespace.enter());
        let device = quoted(name);
        // taprio has its own timer function; all other qdiscs that wait for a time share the qdisc watchdog.
        let is_taprio = self.by().is_some_and(|by| by.name.contains("advance_sched"));
        let kinds = held_by(self.share, self.known);
        let what = match is_taprio {
            true => of_qdisc("taprio").unwrap_or_default(),
            false => kinds.iter().find_map(|kind| of_qdisc(kind)).unwrap_or_else(|| {
                "look at the queueing discipline. Where it limits a rate (tbf, htb, cake, fq with maxrate) or adds a delay (netem), \
                 raise or remove that; where it sends at launch times (etf), let the sender set them earlier"
                    .into()
            }),
        };
        let how = "take it off (what the line above shows is what tc qdisc replace needs to put it back)";
        let mut off = self.set(how, Setting::DeviceQdisc, &Place::name(name), "default");
        off.commands.iter_mut().for_each(|line| line.insert_str(0, &within));
        vec![self.one(what, [format!("{within}tc -s qdisc show dev {device}")]), off]
    }

    pub(crate) fn of_halting(&self) -> Vec<Advice> {
        let what =
            "let KVM poll for up to 1 ms before a halted vCPU's thread sleeps (before Linux 6.2: of guests that are started after this)";
        vec![self.set(what, Setting::KvmHaltPoll, &Place::All, "1000000")]
    }

    pub(crate) fn of_injection(&self) -> Vec<Advice> {
        let of_both = |advice: Advice| Advice { settings: vec![Setting::KvmApicv, Setting::KvmAvic], ..advice };
        let advice = self.on_hypervisor(
            "let the CPU deliver interrupts to a running guest, if this prints N or 0: options kvm_intel enable_apicv=1, or \
             options kvm_amd avic=1, in /etc/modprobe.d, and load the module again while no guest runs",
            "grep -s . /sys/module/kvm_intel/parameters/enable_apicv /sys/module/kvm_amd/parameters/avic",
        );
        advice.into_iter().map(of_both).collect()
    }

    pub(crate) fn of_work(&self) -> Vec<Advice> {
        let slow = self.is_on_host() && self.known.governors.iter().any(|g| !matches!(g.as_str(), "performance" | ""));
        let mut all = Vec::new();
        let mut notes = self.share.notes.iter().map(|(note, _)| note);
        if notes.clone().any(|note| matches!(note, Note::PageFaults(_))) {
            all.push(self.one(
                "touch all memory before the first packet and keep it: mlockall(MCL_CURRENT | MCL_FUTURE), and no memory that is given \
                 back and taken again (mallopt: M_TRIM_THRESHOLD, M_MMAP_MAX)",
                None::<String>,
            ));
        }
        if let Some((actor, pid)) = self.thread().filter(|_| notes.any(|note| *note == Note::Reclaims)) {
            let what =
                format!("lift the memory limit of the control group of {}; where it has none, the machine has too little memory", actor.name);
            let mut lift = self.set(what, Setting::CgroupMemory, &Place::expression(group_of(pid)), "max");
            lift.commands.push(format!("echo -1 > {}/memory.limit_in_bytes", old_group_of(pid, "memory")));
            all.push(lift);
        }
        if slow {
            all.push(self.set(
                "let the CPU run at its full frequency (package linux-cpupower)",
                Setting::CpuGovernor,
                &self.cpu_or_all(),
                "performance",
            ));
        }
        if self.is_on_host() && self.known.is_virtual {
            all.push(self.one(
                "cannot be fixed in this machine, which is virtual, if the outer host ran something else on this vCPU's CPU meanwhile. See \
                 on the outer host that this vCPU has a CPU to itself. Check here with vmstat: column st is the percentage of CPU time \
                 that the outer host took",
                ["vmstat 1 5"],
            ));
        }
        if let Some((actor, pid)) = self.thread() {
            all.push(self.one(
                format!("see what {} does for so long (package linux-perf; perf report shows it)", actor.name),
                [format!("perf record -g -t {pid} -- sleep 10")],
            ));
        }
        all
    }

    /// Advice if latpath itself caused the delay.
    fn of_tool(&self, tool: &Actor) -> Vec<Advice> {
        let names = match tool.threads.as_slice() {
            [] => String::new(),
            threads => format!(" ({})", threads.join(", ")),
        };
        let own = if self.is_on_host() { "record" } else { "agent" };
        let command = self.elsewhere().map(|cpus| format!("taskset -c {cpus} latpath {own} …"));
        let lighter = self.one(
            format!("this is latpath itself{names}: with --no-flight it does less, and then finds no causes"),
            None::<String>,
        );
        command
            .map(|command| self.one("keep latpath off the CPUs that packets need", [command]))
            .into_iter()
            .chain([lighter])
            .collect()
    }
}

/// The sending point of the device whose queueing discipline held the packets, for [`Cause::QdiscHeld`](crate::Cause).
fn sending_device<'a>(share: &CauseShare, known: &'a RunContext) -> Option<&'a PointInfo> {
    let ((from, to), _) = share.hops.first()?;
    let sends = |id: &PointId| known.points.get(usize::from(*id)).filter(|p| p.point.kind.is_sending());
    sends(to).or(sends(from))
}

/// The kinds of queueing disciplines of the device that held packets, the root first; empty if unknown.
pub fn held_by<'a>(share: &CauseShare, known: &'a RunContext) -> &'a [String] {
    let sender = sending_device(share, known).filter(|info| info.point.machine == HOST);
    sender.and_then(|info| known.qdiscs.get(&(info.netns, info.ifindex))).map_or(&[], Vec::as_slice)
}

/// The device whose queueing discipline held packets, with the discipline's kinds: `hout (tbf)`, `hout of network
/// namespace nw-hv (tbf)`.
pub fn held_at(share: &CauseShare, known: &RunContext) -> Option<String> {
    let (device, namespace) = device_of(sending_device(share, known)?);
    let name = namespace.as_ref().and_then(|namespace| namespace.name());
    let namespace = name.map_or(String::new(), |name| format!(" of network namespace {name}"));
    let kinds = held_by(share, known);
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    Some(format!("{device}{namespace}{kinds}"))
}

/// Advice on a queueing discipline of this kind; `None` if it does not hold packets until a time.
fn of_qdisc(kind: &str) -> Option<String> {
    Some(match kind {
        "taprio" => "the schedule of taprio made it wait: look at it, and give this stream a gate that is open when its packets come".into(),
        "tbf" | "htb" | "hfsc" | "cake" => format!("{kind} limits the rate, and packets beyond it wait: look at its rate, and raise or remove it"),
        "fq" => "fq paces packets, by its maxrate or by the rate that the sender's socket asks for: look at it, and raise or remove that".into(),
        "cbs" => "cbs shapes the traffic: look at its idleslope, and raise it to what the stream needs".into(),
        "netem" => "netem adds a delay: look at it, and remove it".into(),
        "etf" => "etf sends at launch times: look at its delta, and let the sender set launch times earlier".into(),
        _ => return None,
    })
}

/// Whether the actor is a kernel thread that is bound to its CPU.
fn stays(actor: &Actor) -> bool {
    let of_a_cpu = [
        "ksoftirqd/",
        "migration/",
        "rcuc/",
        "ktimers/",
        "irq_work/",
        "cpuhp/",
        "idle_inject/",
        "backlog_napi/",
        "kworker",
    ];
    of_a_cpu.iter().any(|start| actor.name.starts_with(start))
}
