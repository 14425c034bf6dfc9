/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Remarks on a stream, in addition to its sightings: its senders, fragmentation, and frames that differ from the stream
 * only in VLAN or an address. Only packets at devices cause remarks. */
#ifndef LATPATH_REMARKS_H
#define LATPATH_REMARKS_H

#define MAX_REMARKS 2048

MAP(remarks, HASH, MAX_REMARKS, struct remark_key, struct remark);

/* Number of remarks dropped because the table was full. */
__u64 remarks_overflow;

static __noinline int add_remark(struct remark_key *k, struct net_device *dev, __u64 t, __u32 key)
{
	struct remark *r, first = {};

	if (!k || !dev)
		return 0;
	k->device = identity(dev);
	r = bpf_map_lookup_elem(&remarks, k);
	if (!r) {
		first.first = t;
		first.netns = dev->nd_net.net->ns.inum;
		bpf_probe_read_kernel(first.name, sizeof(first.name), dev->name);
		if (bpf_map_update_elem(&remarks, k, &first, BPF_NOEXIST) == -E2BIG)
			__sync_fetch_and_add(&remarks_overflow, 1);
		r = bpf_map_lookup_elem(&remarks, k);
		if (!r)
			return 0;
	}
	__sync_fetch_and_add(&r->count, 1);
	*(volatile __u64 *)&r->last = t;
	*(volatile __u32 *)&r->key = key;
	return 0;
}

/* Notes the sender of a packet from the fast path: the source MAC of the frame at `mac`. */
static __noinline int note_source(struct net_device *dev, __u64 mac, __u32 kind, __u32 stream, __u64 t)
{
	struct remark_key k = { .what = REMARK_SENDER_MAC, .kind = kind, .stream = stream };

	if (bpf_probe_read_kernel(k.value, 6, (void *)(mac + 6)))
		return 0;
	return add_remark(&k, dev, t, 0);
}

/* Notes the findings of the slow path. `off`: offset of the bytes after the link header. */
static __noinline int note_packet(struct scratch *scratch, struct net_device *dev, __u32 kind, __u32 off, __u64 t)
{
	struct frame *f = &scratch->frame;
	struct found *found = &scratch->found;
	struct remark_key k = { .kind = kind };
	int is_udp = f->ethertype == ETH_IP || f->ethertype == ETH_IP6;
	__u32 at = off, len = 6, key, n = found->n;
	struct chunk bytes = {};

	if (!n && !found->near_difference)
		return 0;
	if (is_udp) {
		len = f->ethertype == ETH_IP ? 4 : 16;
		at = off + (len == 4 ? 12 : 8);
		k.what = len == 4 ? REMARK_SENDER_IP4 : REMARK_SENDER_IP6;
	} else {
		at = 6;
		k.what = REMARK_SENDER_MAC;
	}
	if (!n) {
		k.what = found->near_difference == DIFFERENCE_VLAN     ? REMARK_OTHER_VLAN :
			 found->near_difference == DIFFERENCE_MAC      ? REMARK_OTHER_MAC :
			 found->near_difference == DIFFERENCE_SOURCE   ? REMARK_OTHER_SOURCE :
									 REMARK_OTHER_DESTINATION;
		if (k.what == REMARK_OTHER_MAC)
			at = 0;
		else if (k.what == REMARK_OTHER_DESTINATION)
			at += len;
		k.len = len;
	}
	k.stream = n ? found->at[0].stream : found->near_stream;
	key = n ? found->at[0].key : found->near_key;
	if (k.what == REMARK_OTHER_VLAN) {
		k.len = 2;
		*(__u16 *)k.value = f->no_link ? 0 : f->vlan;
	} else {
		if (f->no_link && !is_udp)
			return 0;
		if (fetch(f, at, len, &bytes))
			return 0;
		__builtin_memcpy(k.value, bytes.byte, sizeof(k.value));
	}
	add_remark(&k, dev, t, key);
	if (n && f->fragment) {
		__builtin_memset(&k.value, 0, sizeof(k.value));
		k.what = REMARK_FRAGMENT;
		add_remark(&k, dev, t, key);
	}
	return 0;
}

#endif
