//! The tracepoints at which the recorder's programs stand, and which of them this kernel has.

use libbpf_rs::btf::types::Typedef;
use libbpf_rs::btf::Btf;
use std::fmt;

/// One program.
pub(crate) struct Hook {
    /// Its name in bpf/.
    pub program: &'static str,
    /// The tracepoint.
    pub at: &'static str,
    /// The module that has it, where that need not be loaded: then nothing of its kind happens.
    pub module: Option<&'static str>,
    /// What stands in for it where the kernel refuses it.
    pub instead: Option<&'static str>,
    /// What is not recorded without it.
    pub shows: &'static str,
}

const fn hook(program: &'static str, at: &'static str, shows: &'static str) -> Hook {
    Hook { program, at, module: None, instead: None, shows }
}

const fn module(program: &'static str, at: &'static str, module: &'static str, shows: &'static str) -> Hook {
    Hook { program, at, module: Some(module), instead: None, shows }
}

const fn or(hook: Hook, instead: &'static str) -> Hook {
    Hook { instead: Some(instead), ..hook }
}

/// Without it there is nothing to record.
pub(crate) const NEEDED: &str = "sched_switch";

const IRQ: &str = "interrupts of devices";
const SOFTIRQ: &str = "softirqs, and waiting for them";
const TIMERS: &str = "which timer's function ran";
const WORK: &str = "which work a kworker did";
const GUEST: &str = "when a vCPU was in its guest, and why it left";
const RECLAIM: &str = "when a thread had to free memory before it got some";
const TICK: &str = "timer interrupts";
const IPI: &str = "interrupts from other CPUs";

/// All of them; alternatives stand behind those that they stand in for.
pub(crate) const HOOKS: [Hook; 48] = [
    or(hook("switch_with_state", NEEDED, "who ran"), "switch_without_state"),
    hook("switch_without_state", NEEDED, "who ran"),
    hook("waking", "sched_waking", "who woke a thread"),
    hook("wakeup", "sched_wakeup", "since when a thread was ready"),
    hook("wakeup_new", "sched_wakeup_new", "since when a new thread was ready"),
    hook("rename", "task_rename", "new names of threads that are gone"),
    hook("migrate", "sched_migrate_task", "for which CPU a thread waited"),
    hook("irq_entry", "irq_handler_entry", IRQ),
    hook("irq_exit", "irq_handler_exit", IRQ),
    hook("softirq_raise", "softirq_raise", SOFTIRQ),
    hook("softirq_entry", "softirq_entry", SOFTIRQ),
    hook("softirq_exit", "softirq_exit", SOFTIRQ),
    hook("local_timer_entry", "local_timer_entry", TICK),
    hook("local_timer_exit", "local_timer_exit", TICK),
    hook("reschedule_entry", "reschedule_entry", IPI),
    hook("reschedule_exit", "reschedule_exit", IPI),
    hook("call_function_entry", "call_function_entry", IPI),
    hook("call_function_exit", "call_function_exit", IPI),
    hook("call_function_single_entry", "call_function_single_entry", IPI),
    hook("call_function_single_exit", "call_function_single_exit", IPI),
    hook("irq_work_entry", "irq_work_entry", IPI),
    hook("irq_work_exit", "irq_work_exit", IPI),
    hook("x86_platform_ipi_entry", "x86_platform_ipi_entry", IPI),
    hook("x86_platform_ipi_exit", "x86_platform_ipi_exit", IPI),
    hook("thermal_apic_entry", "thermal_apic_entry", "thermal interrupts"),
    hook("thermal_apic_exit", "thermal_apic_exit", "thermal interrupts"),
    hook("ipi_entry", "ipi_entry", IPI),
    hook("ipi_exit", "ipi_exit", IPI),
    hook("nmi", "nmi_handler", "NMIs"),
    hook("napi_poll", "napi_poll", "packets that a poll took before"),
    hook("cpu_idle", "cpu_idle", "idle states, and leaving them"),
    hook("hrtimer_entry", "hrtimer_expire_entry", TIMERS),
    hook("hrtimer_exit", "hrtimer_expire_exit", TIMERS),
    hook("timer_entry", "timer_expire_entry", TIMERS),
    hook("timer_exit", "timer_expire_exit", TIMERS),
    hook("work_start", "workqueue_execute_start", WORK),
    hook("work_end", "workqueue_execute_end", WORK),
    hook("reclaim_begin", "mm_vmscan_direct_reclaim_begin", RECLAIM),
    hook("reclaim_end", "mm_vmscan_direct_reclaim_end", RECLAIM),
    hook("group_reclaim_begin", "mm_vmscan_memcg_reclaim_begin", RECLAIM),
    hook("group_reclaim_end", "mm_vmscan_memcg_reclaim_end", RECLAIM),
    module("kvm_entry", "kvm_entry", "kvm", GUEST),
    or(module("kvm_exit", "kvm_exit", "kvm", GUEST), "kvm_exit_with_reason"),
    module("kvm_exit_with_reason", "kvm_exit", "kvm", GUEST),
    module("kvm_halt_poll", "kvm_halt_poll_ns", "kvm", "halt polling"),
    module("kvm_wakeup", "kvm_vcpu_wakeup", "kvm", "how long a vCPU was halted"),
    module("kvm_inject", "kvm_inj_virq", "kvm", "when an interrupt was injected into a guest"),
    module("ovs_upcall", "ovs_dp_upcall", "openvswitch", "upcalls to ovs-vswitchd"),
];

/// Something that this kernel does not offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The tracepoint.
    pub tracepoint: &'static str,
    /// What is not recorded without it.
    pub lost: &'static str,
    /// Why: what the kernel said, or that it is not there.
    pub why: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tracepoint {}: {}; not recorded: {}", self.tracepoint, self.why, self.lost)
    }
}

/// Which programs this kernel can have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hooks {
    /// Programs that are to be loaded.
    pub programs: Vec<&'static str>,
    /// What is not there.
    pub missing: Vec<Missing>,
    /// Programs that have a substitute, and what the kernel said of them.
    refused: Vec<(&'static str, String)>,
}

/// Whether a loaded module has this tracepoint.
fn module_has(module: &str, tracepoint: &str) -> bool {
    let found = |btf: Vec<u8>| btf.windows(tracepoint.len()).any(|w| w == tracepoint.as_bytes());
    std::fs::read(format!("/sys/kernel/btf/{module}")).is_ok_and(found)
}

/// Whether the other architecture alone has this tracepoint.
fn elsewhere(at: &str) -> bool {
    let arm = at.starts_with("ipi_");
    let x86 = ["local_timer_", "reschedule_", "call_function_", "irq_work_", "x86_", "thermal_", "nmi_"];
    if cfg!(target_arch = "x86_64") {
        arm
    } else {
        x86.iter().any(|prefix| at.starts_with(prefix))
    }
}

impl Hooks {
    /// Asks the kernel's type information.
    pub fn find(btf: &Btf<'_>) -> Self {
        let mut found = Self::default();
        for hook in HOOKS.iter().filter(|hook| !elsewhere(hook.at)) {
            // A substitute comes into play where the kernel refuses the other one.
            if HOOKS.iter().any(|h| h.instead == Some(hook.program)) {
                continue;
            }
            let name = format!("btf_trace_{}", hook.at);
            if btf.type_by_name::<Typedef<'_>>(&name).is_some() {
                found.programs.push(hook.program);
            } else if let Some(module) = hook.module {
                if module_has(module, &name) {
                    found.programs.push(hook.program);
                }
            } else {
                found.misses(hook, "this kernel does not have it".into());
            }
        }
        found
    }

    fn misses(&mut self, hook: &Hook, why: String) {
        self.missing.push(Missing { tracepoint: hook.at, lost: hook.shows, why });
    }

    /// The kernel refused this program. False if it was not to be loaded.
    pub fn without(&mut self, program: &str, why: String) -> bool {
        let Some(at) = self.programs.iter().position(|p| *p == program) else { return false };
        self.programs.remove(at);
        if let Some(hook) = HOOKS.iter().find(|hook| hook.program == program) {
            if let Some(instead) = hook.instead {
                self.refused.push((instead, why));
                self.programs.push(instead);
                return true;
            }
            // Of two that were refused, the newer kernel's says more.
            let first = self.refused.iter().find(|(instead, _)| *instead == program);
            let why = first.map_or(why, |(_, first)| first.clone());
            self.misses(hook, why);
        }
        true
    }

    /// Whether this program is to be loaded.
    pub fn has(&self, program: &str) -> bool {
        self.programs.contains(&program)
    }

    /// Whether anything stands at this tracepoint.
    pub fn stands_at(&self, tracepoint: &str) -> bool {
        HOOKS.iter().any(|hook| hook.at == tracepoint && self.has(hook.program))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_program_has_its_substitute_or_is_missing() {
        let mut hooks = Hooks { programs: vec!["switch_with_state", "nmi"], ..Hooks::default() };
        assert!(hooks.without("switch_with_state", "no fourth argument".into()));
        assert!(hooks.stands_at(NEEDED) && hooks.missing.is_empty());
        assert!(hooks.without("switch_without_state", "no state".into()));
        assert!(!hooks.stands_at(NEEDED));
        assert_eq!(hooks.missing[0].to_string(), "tracepoint sched_switch: no fourth argument; not recorded: who ran");
        assert!(!hooks.without("waking", String::new()), "it was not to be loaded");
    }
}
