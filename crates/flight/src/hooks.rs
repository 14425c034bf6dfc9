//! The tracepoints at which the recorder's programs stand, and which of them this kernel has.

use latpath_bpf::{hook, module_hook as module, or, Hook};

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
