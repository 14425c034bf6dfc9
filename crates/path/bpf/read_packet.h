/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Reads a packet: locates its frame, checks its stream, and hashes the bytes that distinguish it. */
#ifndef LATPATH_PATH_READ_PACKET_H
#define LATPATH_PATH_READ_PACKET_H

#define SKB_BYTES 512 /* an skb has some 230 */

#include "filter.h"

#define CAPTURES SCRATCHES

MAP(captures, ARRAY, CAPTURES, __u32, struct capture);
MAP(counts, ARRAY, 1, __u32, struct counts);

const volatile __u32 has_streams = 0; /* streams were requested; otherwise only the pcap filter chooses packets */
const volatile __u32 has_code = 0;

/* Location of a packet's frame; addresses are plain numbers. */
struct place {
	__u64 mac;     /* the Ethernet header; of a packet without one, its network header */
	__u32 linear;
	__u32 frag_len;
	__u32 len;      /* linear part and all fragments */
	__u64 frag;
	__u32 tag;     /* proto << 16 | tci of a tag that is not in the bytes, 0 for none */
	__u16 protocol; /* network order; for a packet without an Ethernet header, else 0 */
	__u16 pad;
};

#define COUNT(what)                                                                 \
	do {                                                                        \
		__u32 zero_ = 0;                                                    \
		struct counts *counts_ = bpf_map_lookup_elem(&counts, &zero_);      \
		if (counts_)                                                        \
			__sync_fetch_and_add(&counts_->what, 1);                    \
	} while (0)

/* A field of the copied struct sk_buff; the struct is copied only once. */
#define FIELD(c, type, field) (*(type *)((c)->copy + bpf_core_field_offset(struct sk_buff, field)))

/* Locates the frame of an skb. `sends`: the device is about to transmit it, so that `data` points to its first byte. */
static __always_inline int find_frame(struct place *w, struct capture *c, int sends)
{
	struct net_device *dev;
	__u32 len, data_len, size = bpf_core_type_size(struct sk_buff);
	__u16 mac, network;
	__u64 head, data;

	if (size > SKB_BYTES || bpf_probe_read_kernel(c->copy, size, (void *)c->skb))
		return -1;
	head = FIELD(c, __u64, head);
	data = FIELD(c, __u64, data);
	len = FIELD(c, __u32, len);
	data_len = FIELD(c, __u32, data_len);
	mac = FIELD(c, __u16, mac_header);
	network = FIELD(c, __u16, network_header);
	dev = (void *)FIELD(c, __u64, dev);
	if (!is_kernel_address(head) || !is_kernel_address(data))
		return -1;
	w->frag = w->frag_len = w->protocol = w->pad = 0;
	w->mac = data;
	if (!sends && mac != 0xffff && head + mac <= data)
		w->mac = head + mac;
	w->tag = removed_tag((void *)c->skb, FIELD(c, __be16, vlan_proto), FIELD(c, __u16, vlan_tci));
	if (is_kernel_address((__u64)dev)) {
		__u16 type = BPF_CORE_READ(dev, type);

		if (!is_ethernet(type)) {
			w->protocol = FIELD(c, __u16, protocol);
			if (!sends && network && network != 0xffff && head + network <= data)
				w->mac = head + network;
		}
	}
	w->linear = (__u32)(data - w->mac) + len - data_len;
	w->len = w->linear + data_len;
	if (w->linear > 0x10000)
		return -1;
	if (data_len)
		find_fragment(head + FIELD(c, __u32, end), &w->frag, &w->frag_len);
	return 0;
}

static __always_inline struct capture *take_capture(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	for (int i = 0; i < CAPTURES; i++) {
		__u32 at = cpu * CAPTURES + i;
		struct capture *c = bpf_map_lookup_elem(&captures, &at);

		if (c && !__sync_val_compare_and_swap(&c->busy, 0, 1))
			return c;
	}
	return 0;
}

/* The capture that an earlier program in the same context has acquired. */
static __always_inline struct capture *my_capture(void *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();

	for (int i = 0; i < CAPTURES; i++) {
		__u32 at = cpu * CAPTURES + i;
		struct capture *c = bpf_map_lookup_elem(&captures, &at);

		if (c && c->busy && c->ctx == (__u64)ctx)
			return c;
	}
	return 0;
}

static __always_inline void leave_capture(struct capture *c)
{
	*(volatile __u32 *)&c->busy = 0;
}

#define HEAD 16 /* offset at which bytes after addresses and a stripped tag are copied: 12 + 4 */

/* Copies the frame as it was on the wire: MAC addresses, the tag if there is one, and the rest. */
__noinline int copy_frame(struct capture *c, struct place *w)
{
	__u32 from = 12, n, to = 12;

	if (!c || !w)
		return -1;
	if (w->protocol) { /* without an Ethernet header one is made up, so that filters find the network header */
		__builtin_memset(c->frame, 0, 12);
		c->frame[12] = w->protocol;
		c->frame[13] = w->protocol >> 8;
		from = 0;
		to = 14;
	} else {
		if (w->linear < 14 || bpf_probe_read_kernel(c->frame, 12, (void *)w->mac))
			return -1;
		if (w->tag) {
			c->frame[12] = w->tag >> 24;
			c->frame[13] = w->tag >> 16;
			c->frame[14] = w->tag >> 8;
			c->frame[15] = w->tag;
			to = 16;
		}
	}
	n = w->linear - from;
	if (n > CAPTURE - HEAD)
		n = CAPTURE - HEAD;
	if (bpf_probe_read_kernel(c->frame + (to & 31), n & (CAPTURE - 1), (void *)(w->mac + from)))
		return -1;
	c->have = to + n;
	c->len = to + w->linear - from + w->frag_len;
	/* Drivers that use paged frames keep only the headers in the linear part, so copy the start of the first page as well.
	 */
	if (w->frag_len && c->have < CAPTURE / 2) {
		__u32 rest = w->frag_len;

		if (rest > CAPTURE / 2)
			rest = CAPTURE / 2;
		n = c->have;
		BOUND(n, CAPTURE / 2);
		if (!bpf_probe_read_kernel(c->frame + n, rest & (CAPTURE - 1), (void *)w->frag))
			c->have = n + rest;
	}
	return 0;
}

/* Whether the frame belongs to one of the streams. */
static __always_inline int in_streams(struct place *w)
{
	struct scratch *scratch = take_scratch(bpf_get_smp_processor_id());
	struct frame *f;
	int n = 0, off;

	if (!scratch)
		return 0;
	f = &scratch->frame;
	f->base = w->mac;
	f->linear = w->linear;
	f->frag = w->frag;
	f->frag_len = w->frag_len;
	f->len = w->len;
	f->have = f->appid = f->fragment = 0;
	f->no_link = w->protocol != 0;
	f->ethertype = bpf_ntohs(w->protocol);
	f->vlan = w->tag & 0xfff;
	__builtin_memset(&scratch->found, 0, sizeof(scratch->found));
	if (!fill(f)) {
		off = ethernet(f);
		if (off >= 0)
			match_frame(f, off, &scratch->found);
		n = scratch->found.n;
	}
	release_scratch(scratch);
	return n;
}

/* Hashes the bytes after the ethertype and any tags, excluding those that routers and offloads change: in IPv4 the type
 * of service, TTL and checksum, in IPv6 the traffic class, flow label and hop limit, in UDP and TCP the checksum.
 * Trailing zeros are ignored, because short frames may be padded on the way. */
__noinline int hash_frame(struct capture *c, __u64 *out)
{
	__u64 h = 0, factor = 0x9e3779b97f4a7c15ull, skip = 0;
	__u32 off = 12, type, l4 = 0, proto = 0;

	if (!c || !out)
		return -1;
	if (c->have < 14)
		return -1;
	type = c->frame[12] << 8 | c->frame[13];
	if ((type == ETH_VLAN || type == ETH_QINQ) && c->have >= 18) {
		off = 16;
		type = c->frame[16] << 8 | c->frame[17];
		if ((type == ETH_VLAN || type == ETH_QINQ) && c->have >= 22) {
			off = 20;
			type = c->frame[20] << 8 | c->frame[21];
		}
	}
	off += 2;
	if (type == ETH_IP && c->have > off + 20) {
		skip = 1ull << 1 | 1ull << 8 | 1ull << 10 | 1ull << 11;
		l4 = (c->frame[off & 63] & 15) * 4;
		proto = c->frame[(off + 9) & 63];
	} else if (type == ETH_IP6 && c->have > off + 40) {
		skip = 15 | 1ull << 7;
		l4 = 40;
		proto = c->frame[(off + 6) & 63];
	}
	/* If the IP header has many options, the checksum's position wraps around: other bytes are then omitted, but the same
	 * ones for all such packets. */
	if (proto == 17)
		skip |= 3ull << ((l4 + 6) & 63);
	else if (proto == 6)
		skip |= 3ull << ((l4 + 16) & 63);
	for (__u32 i = 0; i < HASHED; i++) {
		__u32 at = off + i;
		__u64 b, kept = i < 64 ? (skip >> (i & 63) & 1) - 1 : ~0ull;

		if (at >= c->have)
			break;
		BOUND(at, CAPTURE);
		b = c->frame[at];
		factor = factor * 0xff51afd7ed558ccdull + 1;
		h += (b & kept) * (factor | 1);
	}
	*out = h ^ type;
	return 0;
}

#endif
