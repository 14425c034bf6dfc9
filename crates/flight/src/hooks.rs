//! The hooks of the recorder's programs, and whether this kernel has them.

use latpath_bpf::{function_hook as function, hook, irq_vectors, joined, module_hook as module, or, Hook};

/// Required: without it nothing is recorded.
pub(crate) const NEEDED: &str = "sched_switch";

const IRQ: &str = "interrupts of devices";
const SOFTIRQ: &str = "softirqs, and waiting for them";
const TIMERS: &str = "which timer's function ran";
const WORK: &str = "which work a kworker did";
const GUEST: &str = "when a vCPU was in its guest, and why it left";
const RECLAIM: &str = "when a thread had to free memory before it got some";
const TICK: &str = "timer interrupts";
const IPI: &str = "interrupts from other CPUs";

/// Hooks that explain late packets; an alternative follows the hook that it replaces.
static CAUSES: [Hook; 48] = joined(OWN, irq_vectors(TICK, IPI, "thermal interrupts"));

const OWN: [Hook; 32] = [
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

const KICKS: &str = "which queue is kicked, and which interrupt vhost signals";
const ROUNDS: &str = "which queue vhost serves";
const REGISTERS: &str = "which registers guests write and read";
const RAISED: &str = "when interrupts are raised";
const IRQFD: &str = "which interrupt KVM makes of vhost's signal";
const ACCEPTED: &str = "which interrupt a vCPU gets";
const POSTED: &str = "which interrupts hardware delivers";
const ENDED: &str = "when guests end interrupts";
const TAPS: &str = "packets at taps";
const NET: Option<&str> = Some("vhost_net");

/// Hooks for the guest's door: how a guest is notified of packets for it, and kicks to vhost.
static DOOR: [Hook; 21] = joined(ANNOUNCED, [hook("macvtap_write", "net_dev_start_xmit", TAPS)]);

const ANNOUNCED: [Hook; 20] = [
    or(hook("switch_with_state", NEEDED, "who ran"), "switch_without_state"),
    hook("switch_without_state", NEEDED, "who ran"),
    module("kvm_entry", "kvm_entry", "kvm", GUEST),
    or(module("kvm_exit", "kvm_exit", "kvm", GUEST), "kvm_exit_with_reason"),
    module("kvm_exit_with_reason", "kvm_exit", "kvm", GUEST),
    module("kvm_inject", "kvm_inj_virq", "kvm", "when an interrupt was injected into a guest"),
    or(function("eventfd_signal", "eventfd_signal", None, KICKS), "eventfd_signal_mask"),
    function("eventfd_signal_mask", "eventfd_signal_mask", None, KICKS),
    function("eventfd_read", "eventfd_read", None, "when QEMU turns to a queue"),
    function("vhost_tx_kick", "handle_tx_kick", NET, ROUNDS),
    function("vhost_rx_kick", "handle_rx_kick", NET, ROUNDS),
    function("vhost_tx_net", "handle_tx_net", NET, ROUNDS),
    function("vhost_rx_net", "handle_rx_net", NET, ROUNDS),
    function("irqfd_wakeup", "irqfd_wakeup", Some("kvm"), IRQFD),
    module("kvm_set_irq", "kvm_set_irq", "kvm", RAISED),
    module("kvm_irq_line", "kvm_irq_line", "kvm", RAISED),
    module("kvm_msi_set_irq", "kvm_msi_set_irq", "kvm", RAISED),
    module("kvm_accept", "kvm_apic_accept_irq", "kvm", ACCEPTED),
    module("kvm_posted", "kvm_apicv_accept_irq", "kvm", POSTED),
    hook("tap_write", "netif_receive_skb", TAPS),
];

/// Hooks for transfers between guests and host: those of the door, and the steps before and after it.
static TRANSFERS: [Hook; 31] = joined(
    ANNOUNCED,
    [
        hook("waking", "sched_waking", "who woke a thread"),
        hook("wakeup_new", "sched_wakeup_new", "the names of new threads"),
        hook("rename", "task_rename", "new names of threads that are gone"),
        module("kvm_mmio", "kvm_mmio", "kvm", REGISTERS),
        module("kvm_fast_mmio", "kvm_fast_mmio", "kvm", REGISTERS),
        or(module("kvm_pio", "kvm_pio", "kvm", REGISTERS), "kvm_pio_without_value"),
        module("kvm_pio_without_value", "kvm_pio", "kvm", REGISTERS),
        module("kvm_end", "kvm_eoi", "kvm", ENDED),
        module("kvm_pv_end", "kvm_pv_eoi", "kvm", ENDED),
        hook("tap_arrive", "net_dev_start_xmit", TAPS),
        hook("tap_read", "skb_copy_datagram_iovec", TAPS),
    ],
);

/// The set of events to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Events that explain late packets.
    Causes,
    /// Events of transfers between guests and host.
    Transfers,
    /// How a guest is notified of packets for it: vhost's rounds, interrupts, entries of vCPUs.
    Door,
}

impl Scope {
    pub(crate) fn hooks(self) -> &'static [Hook] {
        match self {
            Self::Causes => &CAUSES,
            Self::Transfers => &TRANSFERS,
            Self::Door => &DOOR,
        }
    }
}
