/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Handles a packet at a hook: finds its streams and point, and takes the sighting. */
#ifndef LATPATH_HANDLE_PACKET_H
#define LATPATH_HANDLE_PACKET_H

/* How a hook avoids counting one packet twice at a point. */
enum dedup_mode {
	DEDUP_NONE,
	DEDUP_GRO,       /* the first of the two hooks of nic-rx */
	DEDUP_STACK,     /* the second: frames that passed GRO were already seen */
	DEDUP_NOTE,      /* remembers the packet, for the thread's next one */
	DEDUP_SKIP,      /* Open vSwitch: a packet appears once per action */
	DEDUP_SKIP_ONCE, /* the second hook of a UDP reader */
};

/* The device of a packet. Reading pointers in it does not slow down the verifier: see UNTRUSTED. */
static __always_inline struct net_device *device_of(struct sk_buff *skb)
{
	return UNTRUSTED(skb)->dev;
}

/* The point of a stream's packet whose device is not in the CPU's cache. */
static __always_inline int point_of_packet(struct percpu *p, struct net_device *dev, __u64 device, __u32 kind, __u32 lan)
{
	struct point_key key = { .kind = kind };

	if (IS_POINT_OF(kind, NAMED_BY_THREAD))
		return thread_point(kind);
	if (dev)
		return learn_point(p, dev, device, kind, lan);
	return IS_POINT_OF(kind, NEED_NO_DEVICE) ? find_point(&key, 0, 0) : -1;
}

/* Sets the location of a packet's frame. */
static __always_inline void locate_frame(struct frame *f, struct sk_buff *skb, __u64 base, __u32 linear, int can_load)
{
	f->base = base;
	f->linear = f->len = linear;
	f->frag = 0;
	f->frag_len = f->have = f->appid = f->ethertype = f->synch = 0;
	f->vlan = f->no_link = f->fragment = f->lan = 0;
	if (skb) {
		__u32 tag = removed_tag(skb, skb->vlan_proto, skb->vlan_tci);

		if (tag)
			f->vlan = tag & 0xfff;
		f->len += skb->data_len;
		if (skb->data_len) {
			if (can_load && loads_fragments())
				load_fragments(f, skb);
			else
				find_fragment((__u64)skb->head + skb->end, &f->frag, &f->frag_len);
		}
	}
}

/*
 * The slow path: any legal frame, any stream. Returns the offset of the bytes after the link header; -1 if they cannot
 * be read. A frame with unreadable parts is counted as such, unless the rest identified its streams.
 */
static __always_inline int slow_path(struct percpu *p, struct scratch *scratch)
{
	struct frame *f = &scratch->frame;
	struct found *found = &scratch->found;
	int off = -1, bad;

	__builtin_memset(found, 0, sizeof(*found));
	bad = fill(f) || (off = ethernet(f)) < 0;
	if (!bad && !match_frame(f, off, found))
		return off;
	if (f->len > f->linear + f->frag_len)
		__sync_fetch_and_add(&p->unreadable, 1);
	else if (!bad)
		__sync_fetch_and_add(&p->malformed, 1);
	return off;
}

/* The last packet that a thread handled at a hook with deduplication. Threads with the same slot overwrite each other.
 */
struct last_seen {
	__u64 what;
	__u32 who;
	__u32 pad;
};

#define LAST_SEEN 1024

MAP(last_seen, ARRAY, LAST_SEEN, __u32, struct last_seen);

/* Whether the last packet that this thread handled at such a hook was this one, at the same point: then this is the
 * second hook that sees it. The state is per thread: between the two hooks another thread may take the CPU, on a
 * real-time kernel even from a softirq. The idle threads of all CPUs have TID 0, so their CPU identifies them. */
static __always_inline int is_repeated(__u32 cpu, __u32 tid, __u32 point, __u32 stream, __u32 key, enum dedup_mode mode)
{
	__u64 now = (__u64)point << 56 | 1ull << 55 | (__u64)stream << 32 | key;
	__u32 who = tid ? tid : cpu | 1u << 31, slot = who % LAST_SEEN;
	struct last_seen *last = bpf_map_lookup_elem(&last_seen, &slot);
	int repeated;

	if (!last)
		return 0;
	repeated = mode != DEDUP_NOTE && last->who == who && last->what == now;
	last->who = who;
	last->what = mode == DEDUP_SKIP_ONCE ? 0 : now;
	return repeated;
}

/* Bytes of a frame without an skb. */
struct bytes {
	__u64 at;
	__u32 len;
};

/*
 * Whether an IP packet has no Ethernet header here: on a device without one, or sent by this machine to its own sockets
 * (multicast). At the entry to the stack, its network header is not yet set.
 */
static __always_inline int lacks_link_header(struct sk_buff *skb, struct net_device *dev, __u32 kind)
{
	if (!selection.over_ip || !is_ip(skb->protocol))
		return 0;
	if (dev && !has_ethernet_header(dev))
		return 1;
	if (IS_POINT_OF(kind, HAVE_LINK_HEADER))
		return 0;
	if (skb->mac_header == 0xffff)
		return !IS_POINT_OF(kind, RECEIVED);
	if (IS_POINT_OF(kind, RECEIVED))
		return (__u64)skb->data == (__u64)skb->head + skb->mac_header;
	return (__u32)skb->network_header < (__u32)skb->mac_header + 14;
}

/* Address of the IP header of a packet without an Ethernet header. */
static __always_inline __u64 ip_header_of(struct sk_buff *skb, __u32 kind)
{
	return IS_POINT_OF(kind, RECEIVED) ? (__u64)skb->data : (__u64)skb->head + skb->network_header;
}

/* Address of the Ethernet header of a packet. */
static __always_inline __u64 header_of(struct sk_buff *skb, __u32 kind)
{
	if (IS_POINT_OF(kind, HEADER_AT_DATA) || skb->mac_header == 0xffff)
		return (__u64)skb->data;
	return (__u64)skb->head + skb->mac_header;
}

/* Number of linear bytes of a packet's frame. */
static __always_inline __u32 linear_of(struct sk_buff *skb, __u64 mac)
{
	return (__u32)((__u64)skb->data - mac) + skb->len - skb->data_len;
}

/* Whether to take sightings of packets' arrival at NICs, with the NICs' timestamps. */
const volatile __u8 nic_stamps = 0;

/* Takes a sighting of a received packet at its NIC, if the NIC has timestamped it. The parameters are scalars, because
 * a pointer to a struct would force the caller to keep the struct in memory, even where no NIC timestamps packets. */
static __noinline int sight_arrival(struct percpu *p, struct sk_buff *skb, __u64 t, __u32 stream, __u32 key);

/* Whether packets enter the stack at a hook: the GRO hook or the stack's, only one of which takes a packet's sighting.
 */
static __always_inline int enters_stack(enum dedup_mode mode)
{
	return mode == DEDUP_GRO || mode == DEDUP_STACK;
}

/* The fast path, for nearly every packet of a stream: its CPU has seen the device and a frame of this layout before.
 * Returns the time if handle_packet must handle the packet, or if its sender is to be noted, with the stream in *noted;
 * else 0. It uses little stack on purpose: from Linux 6.13 on, a program with more than 48 bytes of stack gets a
 * private stack, in memory that nothing else keeps in the CPU's cache. */
static __always_inline __u64 known_packet(struct sk_buff *skb, struct net_device *dev, __u32 kind, enum dedup_mode mode,
					  int *noted)
{
	__u32 linear, cpu = bpf_get_smp_processor_id();
	struct percpu *p = bpf_map_lookup_elem(&percpu, &cpu);
	struct seen_at w = {};
	__s64 known;
	__u64 mac, last;
	int point;

	if (mode != DEDUP_STACK)
		w.t = bpf_ktime_get_ns();
	if (unlikely(!p))
		return 0;
	mac = header_of(skb, kind);
	linear = linear_of(skb, mac);
	if (unlikely(linear < 14 || linear > 0x10000 || skb->data_len)) /* no Ethernet header, or no end at hand */
		return mode == DEDUP_STACK ? bpf_ktime_get_ns() : w.t;
	last = kernel_word(mac + linear - 8);
	point = known_point(p, with_lan(identity(dev), lan_of_end(last, linear)), kind);
	if (unlikely(point == REFUSED_POINT))
		return 0;
	if (mode == DEDUP_STACK) {
		if (point >= 0 && unlikely(passes_gro(point)))
			return 0;
		w.t = bpf_ktime_get_ns();
	}
	known = known_layout(&p->layouts[layout_of(mac)], mac, linear);
	if (unlikely(known < 0 || point < 0 || point >= MAX_POINTS || (mode == DEDUP_GRO && !passes_gro(point))))
		return w.t;
	w.point = point;
	w.tid = (__u32)bpf_get_current_pid_tgid();
	w.synch = KNOWN_SYNCH(known);
	w.aux = bpf_be64_to_cpu(last);
	if (nic_stamps && enters_stack(mode))
		sight_arrival(p, skb, w.t, KNOWN_STREAM(known), KNOWN_KEY(known));
	if (likely(!sight(p, &w, KNOWN_STREAM(known), KNOWN_KEY(known))))
		return 0;
	*noted = KNOWN_STREAM(known);
	return w.t;
}

/* Flags of handle_packet. */
#define IS_UNKNOWN 1 /* known_packet has compared its layout already */
#define CAN_LOAD 2   /* the program may let the kernel copy bytes of the skb: only at tracepoints */

/* Handles a packet (`skb`), or a frame without an skb (`raw`). */
static __always_inline int handle_packet(struct sk_buff *skb, const struct bytes *raw, struct net_device *dev, __u32 kind,
					 __u64 aux, enum dedup_mode mode, __u64 t, int flags)
{
	struct scratch *scratch = 0;
	struct fields fields = {};
	struct seen_at w;
	struct percpu *p;
	__u64 mac, device = 0, last = 0;
	__u32 linear, key = 0, synch = 0, lan = 0, cpu;
	int point = -1, stream = SLOW_PATH, off = 0, no_link, is_whole;

	cpu = bpf_get_smp_processor_id();
	w.t = t;
	p = bpf_map_lookup_elem(&percpu, &cpu);
	if (unlikely(!p))
		return 0;
	no_link = skb && lacks_link_header(skb, dev, kind);
	if (skb) {
		mac = no_link ? ip_header_of(skb, kind) : header_of(skb, kind);
		linear = linear_of(skb, mac);
	} else {
		mac = raw->at;
		linear = raw->len;
	}
	if (unlikely(linear > 0x10000))
		return 0;
	is_whole = !no_link && linear >= 14 && !(skb && skb->data_len);
	if (is_whole && !bpf_probe_read_kernel(&last, sizeof(last), (void *)(mac + linear - sizeof(last))))
		lan = lan_of_end(last, linear);
	if (dev) {
		device = with_lan(identity(dev), lan);
		point = known_point(p, device, kind);
		if (unlikely(point == REFUSED_POINT))
			return 0;
	}
	if (mode == DEDUP_STACK && point >= 0 && passes_gro(point))
		return 0;
	if (reads_directly() && selection.fast_path && is_whole) {
		struct layout *l = &p->layouts[layout_of(mac)];
		__s64 known = flags & IS_UNKNOWN ? SLOW_PATH : known_layout(l, mac, linear);

		if (known >= 0) {
			stream = KNOWN_STREAM(known);
			synch = KNOWN_SYNCH(known);
			key = KNOWN_KEY(known);
		} else {
			fields.base = mac;
			stream = fast_path_directly(&fields, linear);
			synch = fields.synch;
			key = fields.key;
			/* Streams that share an entry of the layouts replace each other only for one packet in 16. */
			if (stream >= 0 && (!l->places || (w.t >> 5 & 15) == 0))
				learn_layout(l, mac, &fields, stream);
		}
	}
	if (unlikely(stream == SLOW_PATH)) {
		scratch = take_scratch(cpu);
		if (!scratch) {
			__sync_fetch_and_add(&p->unreadable, 1);
			return 0;
		}
		locate_frame(&scratch->frame, skb, mac, linear, flags & CAN_LOAD);
		if (no_link) {
			scratch->frame.no_link = 1;
			scratch->frame.ethertype = bpf_ntohs(skb->protocol);
		} else if (!reads_directly() && selection.fast_path && !fill(&scratch->frame)) {
			stream = fast_path_in_window(&scratch->frame, &fields);
			synch = fields.synch;
			key = fields.key;
		}
		if (stream == SLOW_PATH) {
			off = slow_path(p, scratch);
			if (!scratch->found.n)
				stream = IN_NO_STREAM;
			synch = scratch->frame.synch;
			/* Only the slow path reads the HSR tag, and the end of a paged frame, so it may find another LAN. */
			if (unlikely(scratch->frame.lan != lan)) {
				lan = scratch->frame.lan;
				if (dev) {
					device = with_lan(identity(dev), lan);
					point = known_point(p, device, kind);
				}
				if (point == REFUSED_POINT || (mode == DEDUP_STACK && point >= 0 && passes_gro(point)))
					goto out;
			}
		}
	}
	if (skb && dev && IS_POINT_OF(kind, NOTE_SENDERS)) {
		if (stream >= 0) {
			if (point < 0 || (t >> 5 & 15) == 0)
				note_source(dev, mac, kind, stream, t);
		} else if (scratch && off >= 0) {
			/* Noting a sample of a stream's packets is enough. */
			if (!scratch->found.n || scratch->frame.fragment || point < 0 || (t >> 5 & 3) == 0)
				note_packet(scratch, dev, kind, off, t);
		}
	}
	if (unlikely(stream == IN_NO_STREAM)) {
		__sync_fetch_and_add(&p->others, 1);
		goto out;
	}
	if (unlikely(point < 0))
		point = point_of_packet(p, dev, device, kind, lan);
	if (unlikely(point < 0 || point >= MAX_POINTS)) {
		if (point != REFUSED_POINT)
			__sync_fetch_and_add(&p->points_overflow, 1);
		goto out;
	}
	if (mode == DEDUP_GRO)
		note_gro(point);
	else if (mode == DEDUP_STACK && passes_gro(point))
		goto out;
	w.point = point;
	w.aux = aux ? aux : bpf_be64_to_cpu(last);
	w.tid = (__u32)bpf_get_current_pid_tgid();
	w.synch = synch;
	if (mode >= DEDUP_NOTE && (!IS_POINT_OF(kind, NAMED_BY_THREAD) || selection.over_ip)) {
		__u32 first = scratch ? scratch->found.at[0].stream : stream, its = scratch ? scratch->found.at[0].key : key;

		if (is_repeated(cpu, w.tid, point, stream < 0 ? first : stream, stream < 0 ? its : key, mode))
			goto out;
	}
	if (likely(stream >= 0)) {
		if (nic_stamps && skb && enters_stack(mode))
			sight_arrival(p, skb, t, stream, key);
		if (stream < MAX_STREAMS)
			sight(p, &w, stream, key);
		goto out;
	}
	for (int i = 0; scratch && i < MAX_FOUND; i++) {
		struct seen_at at = w; /* a copy: w itself can stay in registers */

		if (i >= scratch->found.n)
			break;
		if (nic_stamps && skb && enters_stack(mode))
			sight_arrival(p, skb, t, scratch->found.at[i].stream, scratch->found.at[i].key);
		sight_any(&at, scratch->found.at[i].stream, scratch->found.at[i].key);
	}
out:
	if (unlikely(scratch))
		release_scratch(scratch);
	return 0;
}

/* Whether a frame's ethertype is that of a stream, according to skb->protocol; tx and drop also check its header. */
static __always_inline int may_be_selected(struct sk_buff *skb, __u32 kind)
{
	if (ethertype_selected(skb->protocol))
		return 1;
	if (IS_POINT_OF(kind, PROTOCOL_IS_SET) || !ethertype_possible(skb->protocol))
		return 0;
	/* The header itself is reliable where skb->protocol is not. */
	return !reads_directly() || skb->len - skb->data_len < 14 ||
	       ethertype_selected((__be16)kernel_word(header_of(skb, kind) + 12));
}

static __always_inline int handle_skb(struct sk_buff *skb, struct net_device *dev, __u32 kind, __u64 aux,
				      enum dedup_mode mode, int flags)
{
	return may_be_selected(skb, kind) ? handle_packet(skb, 0, dev, kind, aux, mode, bpf_ktime_get_ns(), flags) : 0;
}

/* Handles packets at a hook that all packets pass through. Unknown packets are handled by a separate function, so that
 * known ones need little stack. */
#define HANDLE_OFTEN(name, kind, mode, its_dev)                                                                       \
	static __noinline int name##_unknown(void **ctx, __u64 t)                                                     \
	{                                                                                                             \
		struct sk_buff *skb = ctx[0];                                                                         \
                                                                                                                      \
		return handle_packet(skb, 0, its_dev, kind, 0, mode, t, IS_UNKNOWN | CAN_LOAD);                       \
	}                                                                                                             \
	static __noinline int name##_noted(void **ctx, __u64 t, int stream)                                           \
	{                                                                                                             \
		struct sk_buff *skb = ctx[0];                                                                         \
                                                                                                                      \
		return note_source(its_dev, header_of(skb, kind), kind, stream, t);                                   \
	}                                                                                                             \
	static __always_inline int name##_often(void **ctx)                                                           \
	{                                                                                                             \
		struct sk_buff *skb = ctx[0];                                                                         \
		int noted = -1;                                                                                       \
		__u64 t;                                                                                              \
                                                                                                                      \
		if (!may_be_selected(skb, kind))                                                                      \
			return 0;                                                                                     \
		if (!reads_directly() || !selection.fast_path)                                                        \
			t = bpf_ktime_get_ns();                                                                       \
		else if (!(t = known_packet(skb, its_dev, kind, mode, &noted)))                                       \
			return 0;                                                                                     \
		else if (noted >= 0)                                                                                  \
			return name##_noted(ctx, t, noted);                                                           \
		return name##_unknown(ctx, t);                                                                        \
	}

#endif
