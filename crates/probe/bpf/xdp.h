/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Frames that XDP redirects bypass the network stack. XDP's tracepoints do not pass their bytes, so these programs
 * attach to functions (fentry), which requires trampolines.
 */
#ifndef LATPATH_XDP_H
#define LATPATH_XDP_H

static __always_inline int handle_xdp(struct xdp_buff *xdp, __u32 kind)
{
	struct bytes raw = { .at = (__u64)xdp->data, .len = (__u32)((__u64)xdp->data_end - (__u64)xdp->data) };

	return handle_packet(0, &raw, xdp->rxq->dev, kind, 0, DEDUP_NONE, bpf_ktime_get_ns(), 0);
}

SEC("fentry/xdp_do_redirect")
int BPF_PROG(xdp_redirect, struct net_device *dev, struct xdp_buff *xdp)
{
	return handle_xdp(xdp, POINT_XDP_REDIRECT);
}

/* Redirection on devices without XDP support in the driver. */
SEC("fentry/xdp_do_generic_redirect")
int BPF_PROG(xdp_generic, struct net_device *dev, struct sk_buff *skb, struct xdp_buff *xdp)
{
	return handle_xdp(xdp, POINT_XDP_REDIRECT);
}

SEC("fentry/__xsk_map_redirect")
int BPF_PROG(xsk_rx, struct xdp_sock *xs, struct xdp_buff *xdp)
{
	return handle_xdp(xdp, POINT_XSK_RX);
}

SEC("fentry/xsk_generic_rcv")
int BPF_PROG(xsk_generic, struct xdp_sock *xs, struct xdp_buff *xdp)
{
	return handle_xdp(xdp, POINT_XSK_RX);
}

/* Transmission by generic XDP, which bypasses the queueing layer and so the tracepoint of tx. */
SEC("fentry/generic_xdp_tx")
int BPF_PROG(xdp_tx, struct sk_buff *skb)
{
	return handle_skb(skb, device_of(skb), POINT_TX, 0, DEDUP_NONE, 0);
}

/* The bytes of a redirected frame. */
static __always_inline void bytes_of(struct bytes *raw, struct xdp_frame *frame)
{
	raw->at = (__u64)BPF_CORE_READ(frame, data);
	bpf_probe_read_kernel(&raw->len, bpf_core_field_size(frame->len) == 2 ? 2 : 4, &frame->len);
}

#define FRAMES_AT_ONCE 16 /* DEV_MAP_BULK_SIZE */

/* Frames redirected to a tap. */
struct to_tap {
	struct net_device *dev;
	__u64 frames; /* a pointer to pointers, as a number: older verifiers refuse it as an argument */
};

static long frame_to_tap(__u32 i, struct to_tap *all)
{
	struct xdp_frame *frame;
	struct bytes raw = {};

	if (bpf_probe_read_kernel(&frame, sizeof(frame), (void *)(all->frames + (__u64)i * sizeof(frame))))
		return 1;
	bytes_of(&raw, frame);
	handle_packet(0, &raw, all->dev, POINT_TX, 0, DEDUP_NONE, bpf_ktime_get_ns(), 0);
	return 0;
}

/* Frames that XDP redirects to a tap; the queue's tracepoint reports only the device. The loop's body is a function, so
 * it is verified only once. */
SEC("fentry/tun_xdp_xmit")
int BPF_PROG(tap_xdp, struct net_device *dev, int n)
{
	struct to_tap all = { .dev = dev };

	if (bpf_get_func_arg(ctx, 2, &all.frames) || n <= 0)
		return 0;
	bpf_loop(n > FRAMES_AT_ONCE ? FRAMES_AT_ONCE : n, frame_to_tap, &all, 0);
	return 0;
}

/* vhost takes a redirected frame from the tap's queue and passes it to tun_do_read to be copied. The lowest bit of the
 * pointer distinguishes a frame from an skb (TUN_XDP_FLAG); sightings of skbs are taken when they are copied. */
SEC("fentry/tun_do_read")
int BPF_PROG(tap_xdp_read, struct tun_struct *tun)
{
	struct bytes raw = {};
	__u64 at;

	if (bpf_get_func_arg(ctx, 4, &at) || !(at & 1))
		return 0;
	bytes_of(&raw, (struct xdp_frame *)(at & ~1ull));
	return handle_packet(0, &raw, tun->dev, POINT_VM_READ, 0, DEDUP_NONE, bpf_ktime_get_ns(), 0);
}

#endif
