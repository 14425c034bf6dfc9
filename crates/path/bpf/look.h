/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Reading a packet: is it wanted, and which bytes tell it from others. */
#ifndef LATPATH_PATH_LOOK_H
#define LATPATH_PATH_LOOK_H

/* Keeps an index below a power of two, also in the eyes of verifiers that forget what they saw of a spilled register. */
#define BOUND_TO(x, size) asm volatile("%0 &= %1" : "+r"(x) : "i"((size) - 1))

#define SKB_BYTES 512 /* an skb has some 230 */

#include "filter.h"

#define ETHER 1       /* ARPHRD_… of linux/if_arp.h */
#define LOOPBACK 772
#define CAPTURES 4    /* contexts of a CPU that can interrupt each other: task, softirq, hardirq, NMI */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct net_device___path {
	char name[16];
	int ifindex;
	unsigned short type;
	possible_net_t nd_net;
	const struct rtnl_link_ops *rtnl_link_ops;
};

struct sk_buff___path {
	struct net_device___path *dev;
	struct sock *sk;
	unsigned int len;
	unsigned int data_len;
	int skb_iif;
	__be16 vlan_proto;
	__u16 vlan_tci;
	__be16 protocol;
	__u16 mac_header;
	__u16 network_header;
	unsigned int end;
	unsigned char *head;
	unsigned char *data;
};

#pragma clang attribute pop

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CAPTURES);
	__type(key, __u32);
	__type(value, struct capture);
} captures SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

const volatile __u32 has_streams = 0; /* streams are asked for; else packets are chosen by the pcap filter alone */
const volatile __u32 has_code = 0;

/* Where the frame of a packet lies, as plain numbers. */
struct place {
	__u64 mac;     /* the Ethernet header; of a packet without one, its network header */
	__u32 linear;
	__u32 frag_len;
	__u64 frag;
	__u32 tag;     /* proto << 16 | tci of a tag that is not in the bytes, 0 if there is none */
	__u16 protocol; /* network order; of a packet without an Ethernet header, else 0 */
	__u16 pad;
};

#define COUNT(what)                                                                 \
	do {                                                                        \
		__u32 zero_ = 0;                                                    \
		struct counts *counts_ = bpf_map_lookup_elem(&counts, &zero_);      \
		if (counts_)                                                        \
			__sync_fetch_and_add(&counts_->what, 1);                    \
	} while (0)

/* Kernel addresses have their top bits set; a socket keeps other things where skb->dev was. */
static __always_inline int in_kernel(__u64 p)
{
	return p >> 47 == 0x1ffff || p >> 48 == 0xffff;
}

/* A field of the skb's copy: one read for all of them. */
#define FIELD(c, type, field) (*(type *)((c)->copy + bpf_core_field_offset(struct sk_buff___path, field)))

static __always_inline __u32 tag_of(struct capture *c)
{
	struct sk_buff___with_vlan_present *old = (void *)c->skb;
	__u32 proto = FIELD(c, __u16, vlan_proto), tci = FIELD(c, __u16, vlan_tci);

	if (bpf_core_field_exists(old->vlan_present)) {
		if (!BPF_CORE_READ_BITFIELD_PROBED(old, vlan_present))
			return 0;
	} else if (!(proto | tci)) {
		return 0;
	}
	return (__u32)bpf_ntohs(proto) << 16 | tci;
}

/* Notes where the first page fragment lies: struct page's place in vmemmap gives its page's address. */
static __always_inline void find_fragment(struct place *w, struct capture *c, __u64 head)
{
#ifdef __TARGET_ARCH_x86
	struct fragment frag = {};
	__u64 at = head + FIELD(c, __u32, end) + bpf_core_field_offset(struct skb_shared_info, frags);
	__u64 maps = 0, direct = 0;
	__u32 zero = 0;
	struct counts *known = bpf_map_lookup_elem(&counts, &zero);

	if (!known || !known->vmemmap_base || !known->page_offset_base)
		return;
	if (bpf_probe_read_kernel(&maps, 8, (void *)known->vmemmap_base) ||
	    bpf_probe_read_kernel(&direct, 8, (void *)known->page_offset_base))
		return;
	if (bpf_probe_read_kernel(&frag, sizeof(frag), (void *)at))
		return;
	if (frag.page & 1 || frag.page < maps) /* not a page: memory of a device */
		return;
	w->frag = direct + ((frag.page - maps) / bpf_core_type_size(struct page) << 12) + frag.off;
	w->frag_len = frag.len;
#endif
}

/* Finds the frame of an skb. `sends`: the device is about to send it, so that data is its first byte. */
static __always_inline int find_frame(struct place *w, struct capture *c, int sends)
{
	struct net_device___path *dev;
	__u32 len, data_len, size = bpf_core_type_size(struct sk_buff___path);
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
	if (!in_kernel(head) || !in_kernel(data))
		return -1;
	w->frag = w->frag_len = w->protocol = w->pad = 0;
	w->mac = data;
	if (!sends && mac != 0xffff && head + mac <= data)
		w->mac = head + mac;
	w->tag = tag_of(c);
	if (in_kernel((__u64)dev)) {
		__u16 type = BPF_CORE_READ(dev, type);

		if (type != ETHER && type != LOOPBACK) {
			w->protocol = FIELD(c, __u16, protocol);
			if (!sends && network && network != 0xffff && head + network <= data)
				w->mac = head + network;
		}
	}
	w->linear = (__u32)(data - w->mac) + len - data_len;
	if (w->linear > 0x10000)
		return -1;
	if (data_len)
		find_fragment(w, c, head);
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

/* The one that a program before this one in the same context has taken. */
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

#define HEAD 16 /* where the bytes behind addresses and a stripped tag are copied to: 12 + 4 */

/* Copies the frame as it was on the wire: MACs, the tag if there is one, the rest. */
__noinline int copy_frame(struct capture *c, struct place *w)
{
	__u32 from = 12, n, to = 12;

	if (!c || !w)
		return -1;
	if (w->protocol) { /* no Ethernet header: one is made up, so that filters find the network header */
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
	/* Drivers that page their frames leave just the headers linear. */
	if (w->frag_len && c->have < CAPTURE / 2) {
		__u32 rest = w->frag_len;

		if (rest > CAPTURE / 2)
			rest = CAPTURE / 2;
		n = c->have;
		BOUND_TO(n, CAPTURE / 2);
		if (!bpf_probe_read_kernel(c->frame + n, rest & (CAPTURE - 1), (void *)w->frag))
			c->have = n + rest;
	}
	return 0;
}

/* Whether the streams that are asked for have this frame. */
static __always_inline int in_streams(struct place *w)
{
	struct work *work = take_work(bpf_get_smp_processor_id());
	struct frame *f;
	__u32 off;
	int n = 0;

	if (!work)
		return 0;
	f = &work->frame;
	f->base = w->mac;
	f->linear = w->linear;
	f->frag = w->frag;
	f->frag_len = w->frag_len;
	f->have = f->appid = f->ethertype = 0;
	f->vlan = w->tag ? w->tag & 0xfff : NONE;
	__builtin_memset(&work->found, 0, sizeof(work->found));
	if (!w->protocol && !fill(f)) {
		off = ethernet(f);
		if (off && f->ethertype == ETH_SV && want_sv)
			match_sv(f, off, &work->found);
		if (off && (want_ip | want_ether))
			match_other(f, off, &work->found);
		n = work->found.n;
	}
	leave_work(work);
	return n;
}

/*
 * A hash of the bytes behind the ethertype and any tags, without those that routers and offloads change: of IPv4 the type of
 * service, TTL and checksum, of IPv6 traffic class, flow label and hop limit, of UDP and TCP the checksum. Zeros at the end do
 * not count: short frames are padded on the way.
 */
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
	/* Headers with many options wrap round: then another byte is left out, of all such packets alike. */
	if (proto == 17)
		skip |= 3ull << ((l4 + 6) & 63);
	else if (proto == 6)
		skip |= 3ull << ((l4 + 16) & 63);
	for (__u32 i = 0; i < HASHED; i++) {
		__u32 at = off + i;
		__u64 b, kept = i < 64 ? (skip >> (i & 63) & 1) - 1 : ~0ull;

		if (at >= c->have)
			break;
		BOUND_TO(at, CAPTURE);
		b = c->frame[at];
		factor = factor * 0xff51afd7ed558ccdull + 1;
		h += (b & kept) * (factor | 1);
	}
	*out = h ^ type;
	return 0;
}

#endif
