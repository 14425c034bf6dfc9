/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Frames that XDP takes never become packets of the stack. The tracepoints of XDP do not show their bytes, so these programs
 * stand at functions (fentry), where the kernel has trampolines.
 */
#ifndef LATPATH_XDP_H
#define LATPATH_XDP_H

static __always_inline int look_xdp(struct xdp_buff *xdp, __u32 kind)
{
	struct bytes raw = { .at = (__u64)xdp->data, .len = (__u32)((__u64)xdp->data_end - (__u64)xdp->data) };

	return look_at(0, &raw, xdp->rxq->dev, kind, 0, DOOR_ONE);
}

SEC("fentry/xdp_do_redirect")
int BPF_PROG(xdp_redirect, struct net_device *dev, struct xdp_buff *xdp)
{
	return look_xdp(xdp, POINT_XDP_REDIRECT);
}

/* The same for devices whose driver has no XDP of its own. */
SEC("fentry/xdp_do_generic_redirect")
int BPF_PROG(xdp_generic, struct net_device *dev, struct sk_buff *skb, struct xdp_buff *xdp)
{
	return look_xdp(xdp, POINT_XDP_REDIRECT);
}

SEC("fentry/__xsk_map_redirect")
int BPF_PROG(xsk_rx, struct xdp_sock *xs, struct xdp_buff *xdp)
{
	return look_xdp(xdp, POINT_XSK_RX);
}

SEC("fentry/xsk_generic_rcv")
int BPF_PROG(xsk_generic, struct xdp_sock *xs, struct xdp_buff *xdp)
{
	return look_xdp(xdp, POINT_XSK_RX);
}

#define FRAMES_AT_ONCE 16 /* DEV_MAP_BULK_SIZE */

/* Frames that XDP redirects to a tap: the queue's tracepoint shows the device alone. */
SEC("fentry/tun_xdp_xmit")
int BPF_PROG(tap_xdp, struct net_device *dev, int n)
{
	__u64 frames; /* a pointer to pointers, which older verifiers let nobody take as an argument */

	if (bpf_get_func_arg(ctx, 2, &frames))
		return 0;
	for (int i = 0; i < FRAMES_AT_ONCE; i++) {
		struct xdp_frame *frame;
		struct bytes raw = {};

		if (i >= n || bpf_probe_read_kernel(&frame, sizeof(frame), (void *)(frames + i * sizeof(frame))))
			break;
		raw.at = (__u64)BPF_CORE_READ(frame, data);
		bpf_probe_read_kernel(&raw.len, bpf_core_field_size(frame->len) == 2 ? 2 : 4, &frame->len);
		look_at(0, &raw, dev, POINT_TX, 0, DOOR_ONE);
	}
	return 0;
}

#endif
