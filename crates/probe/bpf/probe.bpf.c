// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The kernel programs: each is attached to one tracepoint, recognises the user's streams, and records time, CPU and
 * thread. A packet is identified by its bytes (the key), not by its skb: bridges and Open vSwitch copy and clone skbs.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/if_packet.h>
#include <linux/openvswitch.h>
#include <linux/types.h>
#include <linux/version.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "protocols.h"
#include "fast_path.h"
#include "shared.h"
#include "sight.h"
#include "points.h"
#include "fragments.h"
#include "remarks.h"
#include "handle_packet.h"
#include "xdp.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

HANDLE_OFTEN(tx, POINT_TX, DEDUP_NONE, UNTRUSTED((struct net_device *)ctx[1])) /* it is skb->dev */
HANDLE_OFTEN(gro, POINT_NIC_RX, DEDUP_GRO, device_of(skb))
HANDLE_OFTEN(stack_rx, POINT_NIC_RX, DEDUP_STACK, device_of(skb))
HANDLE_OFTEN(vm_read, POINT_VM_READ, DEDUP_NONE, device_of(skb))

SEC("tp_btf/net_dev_start_xmit")
int tx(void **ctx)
{
	return tx_often(ctx);
}

SEC("tp_btf/napi_gro_receive_entry")
int gro(void **ctx)
{
	return gro_often(ctx);
}

SEC("tp_btf/netif_receive_skb")
int stack_rx(void **ctx)
{
	return stack_rx_often(ctx);
}

/* Bit of skb_shared_info.tx_flags: hwtstamps holds a driver's pointer, not a time (Linux 5.19; igc, tsnep). */
#define STAMP_OF_DRIVER (1 << 5)

/* A forwarded packet keeps its stamp, so user space refuses this point on any device other than the NIC that made the
 * stamp. */
static __noinline int sight_arrival(struct percpu *p, struct sk_buff *skb, __u64 t, __u32 stream, __u32 key)
{
	struct skb_shared_info *info;
	struct seen_at w = { .t = t };
	struct net_device *dev;
	__u64 device;
	int point;

	if (!p || !skb || stream >= MAX_STREAMS)
		return 0;
	info = (struct skb_shared_info *)((__u64)skb->head + skb->end);
	w.aux = BPF_CORE_READ(info, hwtstamps.hwtstamp);
	dev = device_of(skb);
	if (!w.aux || !is_kernel_address((__u64)dev))
		return 0;
	device = identity(dev);
	point = known_point(p, device, POINT_NIC_HW_RX);
	if (point < 0)
		point = learn_point(p, dev, device, POINT_NIC_HW_RX, 0);
	if (point < 0 || point >= MAX_POINTS) {
		if (point != REFUSED_POINT)
			__sync_fetch_and_add(&p->points_overflow, 1);
		return 0;
	}
	if (BPF_CORE_READ(info, tx_flags) & STAMP_OF_DRIVER) {
		__sync_fetch_and_add(&p->stamps_of_driver, 1);
		return 0;
	}
	w.point = point;
	w.tid = (__u32)bpf_get_current_pid_tgid();
	to_ring(p, &w, stream, key);
	return 0;
}

/* A separate function, because one program's stack cannot hold both this path and that of reads by VMs. */
static __noinline int app_read(void **ctx)
{
	return handle_skb(ctx[0], 0, POINT_APP_READ, 0, DEDUP_NOTE, CAN_LOAD);
}

/* The kind of a packet's device. A separate function, to save stack: see known_packet. */
static __noinline enum device_kind kind_of_device(struct net_device *dev)
{
	return device_kind(dev->rtnl_link_ops);
}

/* Packets of a tap or macvtap are read by vhost or QEMU, those of a tun device (no Ethernet header) by a VPN, which
 * forwards them. All others are read by applications: a socket removes the device from queued packets. The packet's
 * socket does not distinguish these cases: it may be the sender's, if the sender is on this machine.
 *
 * An "outgoing" packet was not received here: the kernel marks sniffers' copies of packets that this machine sends, and
 * packets that a socket's error queue returns to the sender with their TX timestamps (skb_set_err_queue). */
SEC("tp_btf/skb_copy_datagram_iovec")
int copy_out(void **ctx)
{
	struct sk_buff *skb = ctx[0];
	struct net_device *dev = device_of(skb);

	if (!ethertype_selected(skb->protocol) || BPF_CORE_READ_BITFIELD(skb, pkt_type) == PACKET_OUTGOING)
		return 0;
	if (is_kernel_address((__u64)dev) && dev->rtnl_link_ops) {
		enum device_kind kind = kind_of_device(dev);

		if (kind == DEVICE_TAP || kind == DEVICE_MACVTAP)
			return has_ethernet_header(dev) ? vm_read_often(ctx) : 0;
	}
	return app_read(ctx);
}

static __always_inline int dropped(struct sk_buff *skb, __u64 location, __u32 reason)
{
	struct net_device *dev;
	__u64 r;

	if (!ethertype_possible(skb->protocol))
		return 0;
	dev = device_of(skb);
	/* A subsystem's reason contains the subsystem's number in its upper half, of which 4 bits are kept. */
	r = reason >> 16 ? (reason >> 16 & 15) << 12 | (reason & 0xfff) : reason & 0xffff;

	if (!is_kernel_address((__u64)dev))
		dev = 0;
	return handle_skb(skb, dev, POINT_DROP, (location & 0xffffffffffffull) | r << 48, DEDUP_NONE, CAN_LOAD);
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(drop, struct sk_buff *skb, void *location, int reason)
{
	return dropped(skb, (__u64)location, reason);
}

/* Kernels before 5.17 do not report drop reasons. */
SEC("tp_btf/kfree_skb")
int BPF_PROG(drop_no_reason, struct sk_buff *skb, void *location)
{
	return dropped(skb, (__u64)location, 0);
}

/* Attached while a NIC sends packets of a stream: a NIC's driver frees sent packets with consume_skb. The same function
 * frees packets received by the NIC (skb_iif is set) and sniffers' copies of sent packets ("outgoing"), which are
 * ignored. */
SEC("tp_btf/consume_skb")
int BPF_PROG(tx_done, struct sk_buff *skb)
{
	struct net_device *dev;

	if (!ethertype_possible(skb->protocol))
		return 0;
	dev = device_of(skb);
	if (!is_kernel_address((__u64)dev) || dev->rtnl_link_ops || skb->skb_iif == dev->ifindex)
		return 0;
	if (BPF_CORE_READ_BITFIELD_PROBED(skb, pkt_type) == PACKET_OUTGOING)
		return 0;
	return handle_skb(skb, dev, POINT_TX_DONE, 0, DEDUP_NONE, CAN_LOAD);
}

/* The NIC's transmit timestamp of a packet whose sender requested one, reported by the driver. Without `stamps` it is a
 * software timestamp, which is ignored. */
SEC("fentry/skb_tstamp_tx")
int BPF_PROG(nic_sent, struct sk_buff *skb, struct skb_shared_hwtstamps *stamps)
{
	struct net_device *dev;

	if (!stamps || !stamps->hwtstamp || !skb || !ethertype_possible(skb->protocol))
		return 0;
	dev = device_of(skb);
	return is_kernel_address((__u64)dev) ? handle_skb(skb, dev, POINT_NIC_HW_TX, stamps->hwtstamp, DEDUP_NONE, 0) : 0;
}

/*
 * Open vSwitch: a packet returned by ovs-vswitchd for execution is a new skb that no device received and no socket owns
 * (net/openvswitch/datapath.c, ovs_packet_cmd_execute).
 */
SEC("tp_btf/ovs_do_execute_action")
int BPF_PROG(ovs_exec, struct datapath *dp, struct sk_buff *skb)
{
	if (!skb) /* newer verifiers require this test */
		return 0;
	return handle_skb(skb, device_of(skb), skb->skb_iif || UNTRUSTED(skb)->sk ? POINT_OVS_EXEC : POINT_OVS_RETURN, 0,
			  DEDUP_SKIP, CAN_LOAD);
}

SEC("tp_btf/ovs_dp_upcall")
int BPF_PROG(ovs_upcall, struct datapath *dp, struct sk_buff *skb, void *key, struct dp_upcall_info *info)
{
	if (!skb || !info)
		return 0;
	return handle_skb(skb, device_of(skb), info->cmd == OVS_PACKET_CMD_ACTION ? POINT_OVS_SLOW : POINT_OVS_UPCALL, 0,
			  DEDUP_NOTE, CAN_LOAD);
}

/*
 * UDP copies a packet in one piece without skb_copy_datagram_iovec (net/ipv4/udp.c, udp_recvmsg). A negative length
 * means that the reader only peeked, or failed: the packet remains in the queue.
 */
SEC("fentry/skb_consume_udp")
int BPF_PROG(udp_read, struct sock *sk, struct sk_buff *skb, int len)
{
	if (len < 0)
		return 0;
	return handle_skb(skb, 0, POINT_APP_READ, 0, DEDUP_SKIP_ONCE, 0);
}
