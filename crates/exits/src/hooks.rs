//! The programs' hooks.

use latpath_bpf::{function_hook, hook, irq_vectors, joined, module_hook, or, Hook};

/// Required: marks the start of each exit.
pub(crate) const NEEDED: &str = "kvm_exit";

const INTERRUPTS: &str = "interrupts that a vCPU's thread was broken by, of some kind";

const fn kvm(program: &'static str, at: &'static str, shows: &'static str) -> Hook {
    module_hook(program, at, "kvm", shows)
}

/// All hooks; an alternative follows the hook that it replaces.
pub(crate) static HOOKS: [Hook; 34] = joined(OWN, irq_vectors(INTERRUPTS, INTERRUPTS, INTERRUPTS));

const OWN: [Hook; 18] = [
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
    hook("irq_handler_entry", "irq_handler_entry", INTERRUPTS),
    hook("irq_handler_exit", "irq_handler_exit", INTERRUPTS),
    hook("softirq_entry", "softirq_entry", INTERRUPTS),
    hook("softirq_exit", "softirq_exit", INTERRUPTS),
];
