/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* One look at a packet where it comes by: whose is it, at which point, and what becomes of the sighting. */
#ifndef LATPATH_LOOK_H
#define LATPATH_LOOK_H

#ifdef __TARGET_ARCH_x86
/* Where struct pages and their pages are mapped. */
extern const void vmemmap_base __ksym __weak;
extern const void page_offset_base __ksym __weak;
#endif

/*
 * Notes where the first page fragment lies: struct page's place in vmemmap gives its page's address. Where this cannot be
 * told, a paged frame counts as unreadable.
 */
static __always_inline void find_fragment(struct frame *f, struct sk_buff *skb)
{
#ifdef __TARGET_ARCH_x86
	struct fragment frag = {};
	__u64 at = (__u64)skb->head + skb->end + bpf_core_field_offset(struct skb_shared_info, frags);
	__u64 maps = 0, direct = 0;

	if (!&vmemmap_base || !&page_offset_base)
		return;
	if (bpf_probe_read_kernel(&maps, 8, &vmemmap_base) || bpf_probe_read_kernel(&direct, 8, &page_offset_base))
		return;
	if (bpf_probe_read_kernel(&frag, sizeof(frag), (void *)at))
		return;
	if (frag.page & 1 || frag.page < maps) /* not a page: memory of a device */
		return;
	f->frag = direct + ((frag.page - maps) / bpf_core_type_size(struct page) << 12) + frag.off;
	f->frag_len = frag.len;
#endif
}

/* Whether frames of this ethertype can be anyone's: asked before a byte is read. */
static __always_inline int protocol_wanted(__be16 protocol, int sure)
{
	switch (bpf_ntohs(protocol)) {
	case ETH_SV:
		return want_sv | want_ether;
	case ETH_VLAN:
	case ETH_QINQ:
		return 1;
	case ETH_IP:
	case ETH_IP6:
		return want_ip | want_ether;
	case 0x0806:
		return want_ether;
	default: /* a sender's packet socket may leave protocol unset or wrong */
		return want_ether | !sure;
	}
}

/*
 * The two doors of nic-rx: a frame that passed GRO's is not counted again at the stack's. Open vSwitch's, which a packet
 * passes once for each action; and the second one of a UDP reader.
 */
enum door { DOOR_ONE, DOOR_GRO, DOOR_STACK, DOOR_OVS, DOOR_UDP };

/* The point of a packet that is in a stream, where the CPU does not know it from the device. */
static __always_inline int point_of_packet(struct percpu *p, struct net_device *dev, __u64 device, __u32 kind)
{
	struct point_key key = { .kind = kind };

	if (kind == POINT_APP_READ)
		return thread_point(kind);
	if (dev)
		return learn_point(p, dev, device, kind);
	return kind == POINT_DROP ? find_point(&key, 0) : -1;
}

/* The VID of a tag that the NIC or the stack took off the frame, NONE if there is none. */
static __always_inline __u16 vid_beside(struct sk_buff *skb)
{
	struct sk_buff___with_vlan_present *old = (void *)skb;

	if (bpf_core_field_exists(old->vlan_present)) {
		if (!BPF_CORE_READ_BITFIELD_PROBED(old, vlan_present))
			return NONE;
	} else if (!skb->vlan_proto) {
		return NONE;
	}
	return skb->vlan_tci & 0xfff;
}

/* Where the frame of a packet lies. */
static __always_inline void lay_out(struct frame *f, struct sk_buff *skb, __u64 base, __u32 linear)
{
	f->base = base;
	f->linear = linear;
	f->frag = 0;
	f->frag_len = f->have = f->appid = f->ethertype = 0;
	f->vlan = skb ? vid_beside(skb) : NONE;
	if (skb && skb->data_len)
		find_fragment(f, skb);
}

/* The long way: any legal frame, any stream. Returns the number of streams found. */
static __always_inline __u32 match(struct percpu *p, struct work *work, struct sk_buff *skb)
{
	struct frame *f = &work->frame;
	struct found *found = &work->found;
	__u32 off;
	int bad;

	__builtin_memset(found, 0, sizeof(*found));
	if (fill(f))
		return 0;
	off = ethernet(f);
	if (!off)
		return 0;
	if (f->ethertype == ETH_SV && want_sv) {
		bad = match_sv(f, off, found);
		if (bad && f->have < WINDOW && skb && skb->data_len && !f->frag)
			__sync_fetch_and_add(&p->unreadable, 1);
		else if (bad)
			__sync_fetch_and_add(&p->malformed, 1);
	}
	if (want_ip | want_ether)
		match_other(f, off, found);
	return found->n;
}

/* The packet that a thread saw last at such a point; threads share places by chance. */
struct last_seen {
	__u64 what;
	__u32 who;
	__u32 pad;
};

#define LAST_SEEN 1024

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LAST_SEEN);
	__type(key, __u32);
	__type(value, struct last_seen);
} last_seen SEC(".maps");

/*
 * Whether the packet that this thread saw last at such a point is this one: a packet comes to a point of Open vSwitch once for
 * each action, and to a UDP reader's by two doors. Between the two another thread may take the CPU, on a real-time kernel from a
 * softirq too. The idle threads are all thread 0, one for each CPU.
 */
static __always_inline int is_again(__u32 cpu, __u32 point, __u32 stream, __u32 key, enum door door)
{
	__u64 now = (__u64)(point + 1) << 56 | (__u64)stream << 32 | key;
	__u32 tid = bpf_get_current_pid_tgid(), who = tid ? tid : cpu | 1u << 31, slot = who % LAST_SEEN;
	struct last_seen *last = bpf_map_lookup_elem(&last_seen, &slot);
	int again;

	if (!last)
		return 0;
	again = last->who == who && last->what == now && door != DOOR_ONE;
	last->who = who;
	last->what = door == DOOR_UDP ? 0 : now;
	return again;
}

/* Bytes of a frame that has no skb. */
struct bytes {
	__u64 at;
	__u32 len;
};

/* Looks at a packet, or at the bytes of a frame, where it has come by. */
static __always_inline int look_at(struct sk_buff *skb, const struct bytes *raw, struct net_device *dev, __u32 kind,
				   __u64 aux, enum door door)
{
	struct work *work = 0;
	struct seen_at w;
	struct percpu *p;
	__u64 mac, data, device = 0;
	__u32 linear, key = 0, cpu;
	int point = -1, stream = -2;

	w.t = bpf_ktime_get_ns();
	w.cpu = cpu = bpf_get_smp_processor_id();
	p = bpf_map_lookup_elem(&percpu, &cpu);
	if (seldom(!p))
		return 0;
	if (dev) {
		device = identity(dev);
		point = known_point(p, device, kind);
	}
	if (door == DOOR_STACK && point >= 0 && seldom(passes_gro(point)))
		return 0;
	if (skb) {
		data = (__u64)skb->data;
		mac = (__u64)skb->head + skb->mac_header;
		if (kind == POINT_TX || skb->mac_header == 0xffff)
			mac = data;
		linear = (__u32)(data - mac) + skb->len - skb->data_len;
	} else {
		mac = raw->at;
		linear = raw->len;
	}
	if (seldom(linear > 0x10000))
		return 0;
	if (reads_directly() && want_sv && !want_ether)
		stream = quick_sv(mac, linear, 0, &key);
	if (seldom(stream == -2)) {
		work = take_work(w.cpu);
		if (!work) {
			__sync_fetch_and_add(&p->unreadable, 1);
			return 0;
		}
		lay_out(&work->frame, skb, mac, linear);
		if (!reads_directly() && want_sv && !want_ether && !fill(&work->frame)) {
			stream = quick_sv_in_window(&work->frame);
			key = work->frame.key;
		}
		if (stream == -2 && !match(p, work, skb))
			stream = -1;
	}
	if (seldom(stream == -1)) {
		__sync_fetch_and_add(&p->others, 1);
		goto out;
	}
	if (seldom(point < 0))
		point = point_of_packet(p, dev, device, kind);
	if (seldom(point < 0 || point >= MAX_POINTS)) {
		__sync_fetch_and_add(&p->points_overflow, 1);
		goto out;
	}
	if (door == DOOR_GRO)
		note_gro(point);
	else if (door == DOOR_STACK && passes_gro(point))
		goto out;
	w.point = point;
	w.kind = kind;
	w.aux = aux;
	w.tid = (__u32)bpf_get_current_pid_tgid();
	if (kind >= POINT_OVS_EXEC || (kind == POINT_APP_READ && want_ip)) {
		__u32 first = work ? work->found.at[0].stream : stream, its = work ? work->found.at[0].key : key;

		if (is_again(cpu, point, stream < 0 ? first : stream, stream < 0 ? its : key, door))
			goto out;
	}
	if (!seldom(stream < 0)) {
		if (stream < MAX_STREAMS)
			sight(p, &w, stream, key);
		goto out;
	}
	for (int i = 0; work && i < MAX_FOUND; i++) {
		struct seen_at at = w; /* a copy: w itself can stay in registers */

		if (i >= work->found.n)
			break;
		sight_any(&at, work->found.at[i].stream, work->found.at[i].key);
	}
out:
	if (seldom(work))
		leave_work(work);
	return 0;
}

static __always_inline int look(struct sk_buff *skb, struct net_device *dev, __u32 kind, __u64 aux, enum door door)
{
	if (!protocol_wanted(skb->protocol, kind != POINT_TX && kind != POINT_DROP))
		return 0;
	return look_at(skb, 0, dev, kind, aux, door);
}

#endif
