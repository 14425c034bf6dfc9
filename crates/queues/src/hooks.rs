//! The programs' hooks.

use latpath_bpf::{function_hook, module_hook, or, Hook};

/// Required hooks, one of virtio's drivers and one of vhost; at least one of the two must attach.
pub(crate) const NEEDED: [&str; 2] = ["virtqueue_get_buf", "vhost_get_vq_desc"];

const POSTED: &str = "buffers that drivers post, of some kind";
const USED: &str = "buffers that drivers get back";
const KICKED: &str = "kicks, of some transport";
const TAKEN: &str = "buffers that vhost takes";
const ASKED: &str = "interrupts that vhost suppresses";
const SIGNALLED: &str = "vhost's kicks and interrupts";
const ROUNDS: &str = "rounds of vhost's workers";

const RING: &str = "virtio_ring";
const NET: &str = "vhost_net";
const VSOCK: &str = "vhost_vsock";

const fn at(program: &'static str, function: &'static str, module: &'static str, shows: &'static str) -> Hook {
    function_hook(program, function, Some(module), shows)
}

/// A hook whose program has the same name as the function that it attaches to.
const fn of(function: &'static str, module: &'static str, shows: &'static str) -> Hook {
    at(function, function, module, shows)
}

/// All hooks; an alternative follows the hook that it replaces.
pub(crate) static HOOKS: [Hook; 36] = [
    of("virtqueue_add_sgs", RING, POSTED),
    of("virtqueue_add_outbuf", RING, POSTED),
    of("virtqueue_add_outbuf_premapped", RING, POSTED),
    of("virtqueue_add_inbuf", RING, POSTED),
    of("virtqueue_add_inbuf_ctx", RING, POSTED),
    of("virtqueue_add_inbuf_premapped", RING, POSTED),
    of("virtqueue_add_inbuf_cache_clean", RING, POSTED),
    of("virtqueue_get_buf", RING, USED),
    of("virtqueue_get_buf_ctx", RING, USED),
    of("virtqueue_detach_unused_buf", RING, USED),
    of("virtqueue_kick_prepare", RING, "kicks that drivers suppress"),
    of("vp_notify", "virtio_pci", KICKED),
    of("vp_notify_with_data", "virtio_pci", KICKED),
    of("vm_notify", "virtio_mmio", KICKED),
    of("vm_notify_with_data", "virtio_mmio", KICKED),
    of("virtio_vdpa_notify", "virtio_vdpa", KICKED),
    of("vring_interrupt", RING, "interrupts of virtio devices"),
    of("vring_del_virtqueue", RING, "that queues are deleted"),
    of("vhost_get_vq_desc", "vhost", TAKEN),
    of("vhost_get_vq_desc_n", "vhost", TAKEN),
    of("vhost_discard_vq_desc", "vhost", "buffers that vhost puts back"),
    of("vhost_add_used_n", "vhost", "buffers that vhost has used"),
    of("vhost_signal", "vhost", ASKED),
    of("vhost_add_used_and_signal_n", "vhost", ASKED),
    of("vhost_add_used_and_signal", "vhost", ASKED),
    of("vhost_dev_cleanup", "vhost", "that vhost's devices are closed"),
    or(function_hook("eventfd_signal", "eventfd_signal", None, SIGNALLED), "eventfd_signal_mask"),
    function_hook("eventfd_signal_mask", "eventfd_signal_mask", None, SIGNALLED),
    module_hook("kvm_msi_set_irq", "kvm_msi_set_irq", "kvm", "interrupts that KVM makes of vhost's signals"),
    of("irqfd_wakeup", "kvm", "which interrupt KVM makes of vhost's signal"),
    at("round_tx_kick", "handle_tx_kick", NET, ROUNDS),
    at("round_rx_kick", "handle_rx_kick", NET, ROUNDS),
    at("round_tx_socket", "handle_tx_net", NET, ROUNDS),
    at("round_rx_socket", "handle_rx_net", NET, ROUNDS),
    at("round_vsock_tx", "vhost_vsock_handle_tx_kick", VSOCK, ROUNDS),
    at("round_vsock_rx", "vhost_vsock_handle_rx_kick", VSOCK, ROUNDS),
];
