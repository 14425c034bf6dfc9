// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Redirects latpath's own frames to the AF_XDP socket of their queue, and passes all others to the kernel.
 * src/ethernet/framing.rs describes the layout of the frames; src/ethernet/filter.rs selects the same frames for packet
 * sockets.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "map.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define MAX_ADDRESSES 32 /* filter.rs */
#define MAX_QUEUES 64 /* xdp.rs */
#define OWN 0x88b5
#define SV 0x88ba

struct address {
	__u32 first; /* the first four bytes, as in the frame */
	__u16 last; /* the last two */
	__u16 unused;
};

/* These constants are set before the program is loaded. */
const volatile struct address addresses[MAX_ADDRESSES];
const volatile __u32 address_count;
const volatile __u8 one_session; /* whether to accept one session only */
const volatile __u32 session; /* its number, as in a message */
const volatile __u8 stamps; /* whether to stamp received frames */
const volatile __u8 session_name[8]; /* the session, as in an svID */

MAP(sockets, XSKMAP, MAX_QUEUES, __u32, __u32);

/* Returns a pointer to `len` bytes of the frame at offset `at`, or NULL if the frame is shorter. */
static __always_inline __u8 *bytes(struct xdp_md *ctx, __u32 at, __u32 len)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 *from = data + (at & 0xff);

	return (void *)(from + len) > end ? NULL : from;
}

static __always_inline int is_requested(const __u8 *frame)
{
	__u32 first = *(__u32 *)frame;
	__u16 last = *(__u16 *)(frame + 4);

	for (int i = 0; i < MAX_ADDRESSES; i++) {
		if (i >= address_count)
			break;
		if (addresses[i].first == first && addresses[i].last == last)
			return 1;
	}
	return 0;
}

/* Number of bytes that the BER length at `at` occupies. Forms with more than three length bytes are not supported: they
 * lead to an offset at which nothing matches. */
static __always_inline __u32 length_of_length(struct xdp_md *ctx, __u32 at)
{
	__u8 *form = bytes(ctx, at, 1);

	return form && (*form & 0x80) ? 1 + (*form & 3) : 1;
}

static __always_inline int is_own(struct xdp_md *ctx, __u32 at)
{
	__u8 *message = bytes(ctx, at + 2, 8);

	if (!message || message[0] != 'L' || message[1] != 'P')
		return 0;
	return !one_session || *(__u32 *)(message + 4) == session;
}

/* Whether the frame contains latpath's Sampled Values. After the ethertype: 8 bytes, savPdu, noASDU of 1, the sequence
 * of ASDUs, the ASDU, and its svID. */
static __always_inline int is_sv(struct xdp_md *ctx, __u32 at)
{
	static const char begins[13] = "latpath-ping-";
	__u8 *p;

	at += 8;
	p = bytes(ctx, at, 1);
	if (!p || *p != 0x60)
		return 0;
	at += 1 + length_of_length(ctx, at + 1);
	p = bytes(ctx, at, 4);
	if (!p || p[0] != 0x80 || p[1] != 1 || p[2] != 1 || p[3] != 0xa2)
		return 0;
	at += 4 + length_of_length(ctx, at + 4);
	p = bytes(ctx, at, 1);
	if (!p || *p != 0x30)
		return 0;
	at += 1 + length_of_length(ctx, at + 1);
	p = bytes(ctx, at, 2 + 13 + 8);
	if (!p || *p != 0x80)
		return 0;
	for (int i = 0; i < 13; i++)
		if (p[2 + i] != begins[i])
			return 0;
	for (int i = 0; i < 8; i++)
		if (one_session && p[15 + i] != session_name[i])
			return 0;
	return 1;
}

/* Metadata in front of the frame; xdp/kernel.rs reads it. */
struct stamp {
	__u64 mark;
	__u64 time; /* CLOCK_MONOTONIC */
};
#define MARK 0x6c617470617468ULL /* distinguishes a stamp from accidental bytes */

/* Stamps the frame. If the driver has no room for metadata, the frame gets no stamp. */
static __always_inline void note(struct xdp_md *ctx, __u64 time)
{
	struct stamp *stamp;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*stamp)))
		return;
	stamp = (void *)(long)ctx->data_meta;
	if ((void *)(stamp + 1) > (void *)(long)ctx->data)
		return;
	stamp->mark = MARK;
	stamp->time = time;
}

SEC("xdp")
int choose(struct xdp_md *ctx)
{
	__u8 *frame = bytes(ctx, 0, 60);
	__u16 ethertype;
	__u64 time;
	__u32 at = 14;
	int ours;

	if (!frame || !is_requested(frame))
		return XDP_PASS;
	time = stamps ? bpf_ktime_get_ns() : 0;
	ethertype = *(__u16 *)(frame + 12);
	if (ethertype == bpf_htons(0x8100) || ethertype == bpf_htons(0x88a8)) {
		ethertype = *(__u16 *)(frame + 16);
		at = 18;
	}
	if (ethertype == bpf_htons(OWN))
		ours = is_own(ctx, at);
	else if (ethertype == bpf_htons(SV))
		ours = is_sv(ctx, at);
	else
		return XDP_PASS;
	if (!ours)
		return XDP_PASS;
	if (stamps)
		note(ctx, time);
	/* Frames on a queue without a socket are passed to the kernel. */
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}
