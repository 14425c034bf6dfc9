/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The steps of a transfer between a guest and its host: kicks, vhost's rounds, packets at taps, interrupts. Loaded on
 * request only. An eventfd is identified by its ID in /proc/PID/fdinfo, plus one; 0 stands for none. */
#ifndef LATPATH_FLIGHT_TRANSFERS_H
#define LATPATH_FLIGHT_TRANSFERS_H

#include "vhost.h"

static __always_inline __u32 number_of_eventfd(struct eventfd_ctx *eventfd)
{
	return eventfd ? (__u32)BPF_CORE_READ(eventfd, id) + 1 : 0;
}

/* For doors: marks the running thread as one that serves a queue or raises an interrupt, so that its switches are
 * recorded. */
static __always_inline void note_server(void)
{
	__u32 thread = current_pid();
	__u8 yes = 1;

	if (is_for_doors && !bpf_map_lookup_elem(&servers, &thread))
		bpf_map_update_elem(&servers, &thread, &yes, BPF_ANY);
}

/* Linux up to 6.7; later kernels call eventfd_signal_mask only. */
SEC("fentry/eventfd_signal")
int BPF_PROG(eventfd_signal, struct eventfd_ctx *eventfd)
{
	return record_here(EVENTFD_SIGNAL, number_of_eventfd(eventfd), 0);
}

SEC("fentry/eventfd_signal_mask")
int BPF_PROG(eventfd_signal_mask, struct eventfd_ctx *eventfd)
{
	return record_here(EVENTFD_SIGNAL, number_of_eventfd(eventfd), 0);
}

/* Called when QEMU serves a queue, or an interrupt that it relays. */
SEC("fentry/eventfd_read")
int BPF_PROG(eventfd_read, struct kiocb *iocb)
{
	struct eventfd_ctx *eventfd = BPF_CORE_READ(iocb, ki_filp, private_data);

	note_server();
	return record_here(EVENTFD_READ, number_of_eventfd(eventfd), 0);
}

static __always_inline int record_round(struct vhost_virtqueue *vq, __u64 to_guest)
{
	struct eventfd_ctx *kick = BPF_CORE_READ(vq, kick, private_data);
	struct eventfd_ctx *call = BPF_CORE_READ(vq, call_ctx.ctx);

	note_server();
	return record_here(VHOST_ROUND, low_high(number_of_eventfd(kick), number_of_eventfd(call)), to_guest);
}

/* drivers/vhost/net.c: handle_*_kick are rounds started by a kick, handle_*_net rounds started by the tap. */
SEC("fentry/handle_tx_kick")
int BPF_PROG(vhost_tx_kick, struct vhost_work *work)
{
	return record_round(queue_of_kick(work), 0);
}

SEC("fentry/handle_rx_kick")
int BPF_PROG(vhost_rx_kick, struct vhost_work *work)
{
	return record_round(queue_of_kick(work), 1);
}

SEC("fentry/handle_tx_net")
int BPF_PROG(vhost_tx_net, struct vhost_work *work)
{
	return record_round(QUEUE_OF_SOCKET(work, 1), 0);
}

SEC("fentry/handle_rx_net")
int BPF_PROG(vhost_rx_net, struct vhost_work *work)
{
	return record_round(QUEUE_OF_SOCKET(work, 0), 1);
}

#define EPOLLIN 1

/* virt/kvm/eventfd.c */
SEC("fentry/irqfd_wakeup")
int BPF_PROG(irqfd_wakeup, struct wait_queue_entry *wait, unsigned int mode, int sync, void *key)
{
	struct kvm_kernel_irqfd *irqfd = (void *)wait - bpf_core_field_offset(struct kvm_kernel_irqfd, wait);

	if (!((__u64)key & EPOLLIN))
		return 0;
	return record_here(KVM_IRQFD, low_high(number_of_eventfd(BPF_CORE_READ(irqfd, eventfd)), BPF_CORE_READ(irqfd, gsi)), 0);
}

SEC("tp_btf/kvm_mmio")
int BPF_PROG(kvm_mmio, int type, int len, __u64 address, void *value)
{
	__u64 written = 0;

	/* include/trace/events/kvm.h: KVM_TRACE_MMIO_WRITE */
	if (type != 2)
		return record_here(KVM_REGISTER_READ, address, 0);
	if (len == 4 || len == 2)
		bpf_probe_read_kernel(&written, len == 4 ? 4 : 2, value);
	return record_here(KVM_REGISTER_WRITE, address, written << 1);
}

/* A kick by virtio-mmio, or by modern PCI on VMX; the event follows the kick's eventfd. */
SEC("tp_btf/kvm_fast_mmio")
int BPF_PROG(kvm_fast_mmio, __u64 address)
{
	return record_here(KVM_REGISTER_WRITE, address, 0);
}

/* KVM_PIO_OUT */
#define PIO_OUT 1

SEC("tp_btf/kvm_pio")
int BPF_PROG(kvm_pio, unsigned int rw, unsigned int port, unsigned int size, unsigned int count, void *data)
{
	__u64 written = 0;

	if (rw != PIO_OUT)
		return record_here(KVM_REGISTER_READ, port, 1);
	if (size == 4 || size == 2)
		bpf_probe_read_kernel(&written, size == 4 ? 4 : 2, data);
	return record_here(KVM_REGISTER_WRITE, port, written << 1 | 1);
}

/* For older verifiers, which reject a const void * argument. */
SEC("tp_btf/kvm_pio")
int BPF_PROG(kvm_pio_without_value, unsigned int rw, unsigned int port)
{
	return record_here(rw == PIO_OUT ? KVM_REGISTER_WRITE : KVM_REGISTER_READ, port, 1);
}

SEC("tp_btf/kvm_set_irq")
int BPF_PROG(kvm_set_irq, unsigned int gsi, int level)
{
	note_server();
	return level ? record_here(KVM_RAISE_LINE, gsi, 0) : 0;
}

SEC("tp_btf/kvm_irq_line")
int BPF_PROG(kvm_irq_line, unsigned int type, int vcpu, int number, int level)
{
	note_server();
	return level ? record_here(KVM_RAISE_LINE, (__u32)number, 0) : 0;
}

SEC("tp_btf/kvm_msi_set_irq")
int BPF_PROG(kvm_msi_set_irq, __u64 address, __u64 data)
{
	note_server();
	return record_here(KVM_RAISE_MESSAGE, data, address);
}

SEC("tp_btf/kvm_apic_accept_irq")
int BPF_PROG(kvm_accept, __u32 vcpu, __u16 delivery, __u16 trigger, __u8 vector)
{
	return record_here(KVM_ACCEPT, vector, vcpu);
}

SEC("tp_btf/kvm_apicv_accept_irq")
int BPF_PROG(kvm_posted, __u32 vcpu, __u16 delivery, __u16 trigger, __u8 vector)
{
	return record_here(KVM_POSTED, vector, vcpu);
}

SEC("tp_btf/kvm_eoi")
int BPF_PROG(kvm_end, void *apic, int vector)
{
	return record_here(KVM_END, (__u32)vector, 0);
}

SEC("tp_btf/kvm_pv_eoi")
int BPF_PROG(kvm_pv_end, void *apic, int vector)
{
	return record_here(KVM_END, (__u32)vector, 0);
}

/* Records a packet at a device of this driver; `size` includes the name's terminating zero. */
static __always_inline int record_at_device(__u16 kind, struct net_device *dev, const char *driver, __u32 size)
{
	struct net_device *device = UNTRUSTED(dev);
	char name[8] = {};

	if (!device || !device->rtnl_link_ops || !device->rtnl_link_ops->kind)
		return 0;
	bpf_probe_read_kernel(name, size, device->rtnl_link_ops->kind);
	if (__builtin_memcmp(name, driver, size))
		return 0;
	return record_here(kind, low_high(device->ifindex, device->nd_net.net->ns.inum), 0);
}

/* drivers/net/tun.c: DRV_NAME */
static __always_inline int record_at_tap(__u16 kind, struct net_device *dev)
{
	return record_at_device(kind, dev, "tun", sizeof("tun"));
}

/* drivers/net/macvtap.c: macvtap_link_ops. Packets from a guest leave through the macvtap. */
SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(macvtap_write, struct sk_buff *skb, struct net_device *dev)
{
	return record_at_device(TAP_WRITE, dev, "macvtap", sizeof("macvtap"));
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(tap_arrive, struct sk_buff *skb, struct net_device *dev)
{
	return record_at_tap(TAP_ARRIVE, dev);
}

SEC("tp_btf/skb_copy_datagram_iovec")
int BPF_PROG(tap_read, struct sk_buff *skb)
{
	return record_at_tap(TAP_READ, UNTRUSTED(skb)->dev);
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(tap_write, struct sk_buff *skb)
{
	return record_at_tap(TAP_WRITE, UNTRUSTED(skb)->dev);
}

#endif
