//! Where the programs stand.

use latpath_bpf::{function_hook, hook, module_hook, or, Hook};

/// Without it nobody says when a guest was left.
pub(crate) const NEEDED: &str = "kvm_exit";

const INTERRUPTS: &str = "interrupts that a vCPU's thread was broken by, of some kind";

const fn kvm(program: &'static str, at: &'static str, shows: &'static str) -> Hook {
    module_hook(program, at, "kvm", shows)
}

/// All of them; alternatives stand behind those that they stand in for.
pub(crate) static HOOKS: [Hook; 34] = [
    or(kvm("kvm_entry", "kvm_entry", "when a guest was entered"), "kvm_entry_of_any"),
    kvm("kvm_entry_of_any", "kvm_entry", "when a guest was entered"),
    or(kvm("kvm_exit", NEEDED, "when and why a guest was left"), "kvm_exit_with_reason"),
    kvm("kvm_exit_with_reason", NEEDED, "when and why a guest was left"),
    kvm("user_exit", "kvm_userspace_exit", "what the hypervisor's process does itself"),
    kvm("run", "kvm_fpu", "when the hypervisor's process comes back to KVM"),
    kvm("halt_end", "kvm_vcpu_wakeup", "halts, and polling in them"),
    kvm("injected", "kvm_inj_virq", "interrupts that KVM injected"),
    or(function_hook("accepts", "__apic_accept_irq", Some("kvm"), "which VM's APIC took an interrupt"), "accepted"),
    kvm("accepted", "kvm_apic_accept_irq", "interrupts that virtual APICs took"),
    or(hook("switch_with_state", "sched_switch", "sleeping and waiting for a CPU"), "switch_without_state"),
    hook("switch_without_state", "sched_switch", "sleeping and waiting for a CPU"),
    hook("wakeup", "sched_wakeup", "since when a thread was ready"),
    hook("thread_end", "sched_process_exit", "ends of vCPUs"),
    hook("irq_begins", "irq_handler_entry", INTERRUPTS),
    hook("irq_ends", "irq_handler_exit", INTERRUPTS),
    hook("softirq_begins", "softirq_entry", INTERRUPTS),
    hook("softirq_ends", "softirq_exit", INTERRUPTS),
    hook("local_timer_begins", "local_timer_entry", INTERRUPTS),
    hook("local_timer_ends", "local_timer_exit", INTERRUPTS),
    hook("reschedule_begins", "reschedule_entry", INTERRUPTS),
    hook("reschedule_ends", "reschedule_exit", INTERRUPTS),
    hook("call_function_begins", "call_function_entry", INTERRUPTS),
    hook("call_function_ends", "call_function_exit", INTERRUPTS),
    hook("call_function_single_begins", "call_function_single_entry", INTERRUPTS),
    hook("call_function_single_ends", "call_function_single_exit", INTERRUPTS),
    hook("irq_work_begins", "irq_work_entry", INTERRUPTS),
    hook("irq_work_ends", "irq_work_exit", INTERRUPTS),
    hook("platform_begins", "x86_platform_ipi_entry", INTERRUPTS),
    hook("platform_ends", "x86_platform_ipi_exit", INTERRUPTS),
    hook("thermal_begins", "thermal_apic_entry", INTERRUPTS),
    hook("thermal_ends", "thermal_apic_exit", INTERRUPTS),
    hook("ipi_begins", "ipi_entry", INTERRUPTS),
    hook("ipi_ends", "ipi_exit", INTERRUPTS),
];
