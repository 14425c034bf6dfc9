/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Assigns skbs to packets, and reports events. */
#ifndef LATPATH_PATH_FOLLOW_H
#define LATPATH_PATH_FOLLOW_H

/* A chosen packet. */
struct packet {
	__u64 hash;
	__u64 last;  /* time of its last event */
	__u32 first; /* tracepoint, device and namespace of its choice; an equal packet seen there later is another packet */
	__u32 ifindex;
	__u32 netns;
	__u32 pad;
};

struct followed {
	__u32 packet;
	__u32 dying; /* the kernel is freeing it */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} events SEC(".maps");

const volatile struct event event_type = {}; /* exports the type to user space */

MAP(skbs, HASH, 4 * MAX_PACKETS, __u64, struct followed);
MAP(by_content, LRU_HASH, MAX_PACKETS, __u64, __u32);
MAP(packets, ARRAY, MAX_PACKETS, __u32, struct packet);

/* Properties of functions: FUNCTION_… by address. */
MAP(functions, HASH, 256, __u64, __u32);

const volatile __u32 requested = 0;  /* number of packets to choose */
const volatile __u64 same_ns = 0;    /* maximum age of a packet's last event at which an skb with equal bytes is that packet */
const volatile __u32 only_tracepoints = 0;
const volatile __u8 at_device[16] = {}; /* device on which packets are chosen; empty for any */
const volatile __u32 at_netns = 0;   /* 0 for any namespace */

volatile __u32 chosen = 0; /* number of packets chosen */
volatile __u32 alive = 0;  /* number of followed skbs: most functions only check this */

static __always_inline int is_open(void)
{
	__u32 zero = 0;
	struct counts *c = bpf_map_lookup_elem(&counts, &zero);

	return c && c->open;
}

volatile __u64 last_event = 0; /* time of the last event of any packet */

/* The device on which a packet is. */
struct on_device {
	__u32 netns;
	__u32 ifindex;
	__u32 flags;
	__u8 name[16];
};

static __always_inline void read_device(struct on_device *d, struct net_device *dev)
{
	enum device_kind kind;
	struct net *net;

	__builtin_memset(d, 0, sizeof(*d));
	if (!is_kernel_address((__u64)dev))
		return;
	net = BPF_CORE_READ(dev, nd_net.net);
	if (!is_kernel_address((__u64)net))
		return;
	d->ifindex = BPF_CORE_READ(dev, ifindex);
	d->netns = BPF_CORE_READ(net, ns.inum);
	bpf_probe_read_kernel(d->name, sizeof(d->name), &dev->name);
	kind = device_kind(BPF_CORE_READ(dev, rtnl_link_ops));
	if (kind == DEVICE_TAP)
		d->flags = FLAG_TAP;
	else if (kind == DEVICE_MACVTAP)
		d->flags = FLAG_TAP | FLAG_MACVTAP;
}

/* An event concerning an skb. */
struct happening {
	__u64 skb;
	__u64 at;
	__u64 aux;
	__u32 reason;
	__u32 packet;
	__u8 kind;
	__u8 flags;
	__u8 pad[6];
};

/* Reports an event to user space. */
__noinline int report_event(struct happening *h)
{
	struct sk_buff *skb;
	struct on_device d;
	struct packet *p;
	struct event *e;
	__u64 who, t = bpf_ktime_get_ns();
	__u32 packet;

	if (!h)
		return 0;
	packet = h->packet;
	p = bpf_map_lookup_elem(&packets, &packet);
	if (p)
		p->last = t;
	last_event = t;
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		COUNT(events_lost);
		return 0;
	}
	skb = (void *)h->skb;
	read_device(&d, BPF_CORE_READ(skb, dev));
	e->t = t;
	e->skb = h->skb;
	e->at = h->at;
	e->aux = h->aux;
	e->reason = h->reason;
	e->packet = packet;
	e->netns = d.netns;
	e->ifindex = d.ifindex;
	who = bpf_get_current_pid_tgid();
	e->pid = who >> 32;
	e->tid = who;
	e->len = BPF_CORE_READ(skb, len);
	e->cpu = bpf_get_smp_processor_id();
	e->kind = h->kind;
	e->flags = h->flags | d.flags;
	if (BPF_CORE_READ(skb, sk))
		e->flags |= FLAG_SOCKET;
	if (BPF_CORE_READ(skb, skb_iif))
		e->flags |= FLAG_ARRIVED;
	bpf_get_current_comm(e->comm, sizeof(e->comm));
	__builtin_memcpy(e->device, d.name, sizeof(e->device));
	bpf_ringbuf_submit(e, 0);
	return 0;
}

static __always_inline void forget(__u64 skb)
{
	if (!bpf_map_delete_elem(&skbs, &skb))
		__sync_fetch_and_add(&alive, -1);
}

static __always_inline void follow(__u64 skb, __u32 packet)
{
	struct followed f = { .packet = packet }, *old;

	old = bpf_map_lookup_elem(&skbs, &skb);
	if (old) { /* the address was reused */
		*old = f;
		return;
	}
	if (bpf_map_update_elem(&skbs, &skb, &f, BPF_NOEXIST))
		COUNT(skbs_lost);
	else
		__sync_fetch_and_add(&alive, 1);
}

static __always_inline int chooses_here(struct on_device *d)
{
	if (at_netns && at_netns != d->netns)
		return 0;
	if (!at_device[0])
		return 1;
	for (int i = 0; i < 16; i++) {
		if (at_device[i] != d->name[i])
			return 0;
		if (!at_device[i])
			break;
	}
	return 1;
}

/* Flags of a tracepoint. */
#define HOOK_SENDS 1   /* the frame begins at skb->data */
#define HOOK_CHOOSES 2 /* packets are chosen here */
#define HOOK_ENTERS 4  /* a packet enters the stack: without functions, the skb followed at this address may be gone */

#define HOOK_LEAVES 8  /* the skb's last user releases it */

/* Whether a packet that is not followed may turn out to be one to follow. Decided before any of its bytes are read,
 * because this runs at every tracepoint for every packet of the machine. */
static __always_inline int may_be_chosen(struct sk_buff *skb, __u32 hook)
{
	struct on_device d;

	if (has_streams && !ethertype_possible(BPF_CORE_READ(skb, protocol)))
		return 0;
	/* The packet may be a copy of one that is followed. */
	if (chosen && bpf_ktime_get_ns() - last_event < same_ns)
		return 1;
	if (!(hook & HOOK_CHOOSES) || chosen >= requested)
		return 0;
	if (!at_device[0])
		return 1;
	read_device(&d, BPF_CORE_READ(skb, dev));
	return chooses_here(&d);
}

/* Whether the streams and the filter select the frame; if so, computes its hash. */
__noinline int is_chosen(struct capture *c, __u64 *hash)
{
	struct place w;

	if (!c || !hash)
		return 0;
	if (find_frame(&w, c, c->hook & HOOK_SENDS)) {
		COUNT(unreadable);
		return 0;
	}
	if (has_streams && !in_streams(&w))
		return 0;
	COUNT(looked_at);
	if (copy_frame(c, &w)) {
		COUNT(unreadable);
		return 0;
	}
	if (has_code) {
		if (!run_filter(c)) {
			if (c->beyond)
				COUNT(beyond);
			return 0;
		}
	}
	return !hash_frame(c, hash);
}

/* The result of identifying a packet. */
struct found_packet {
	__u64 hash;
	__u32 packet;
	__u32 flags;
};

/* Identifies a packet as one that was chosen before, or chooses it now. */
__noinline int identify(struct capture *c, struct found_packet *of)
{
	struct sk_buff *skb;
	struct on_device d;
	struct packet *p, new = {};
	__u64 now = bpf_ktime_get_ns(), hash;
	__u32 *known, packet;

	if (!c || !of)
		return 0;
	hash = of->hash;
	skb = (void *)c->skb;
	read_device(&d, BPF_CORE_READ(skb, dev));
	known = bpf_map_lookup_elem(&by_content, &hash);
	if (known) {
		packet = *known;
		p = bpf_map_lookup_elem(&packets, &packet);
		if (p && p->hash == hash && now - p->last < same_ns &&
		    (p->first != c->tracepoint || p->ifindex != d.ifindex || p->netns != d.netns)) {
			of->packet = packet;
			of->flags = FLAG_ADOPTED;
			return 1;
		}
	}
	if (!(c->hook & HOOK_CHOOSES) || !chooses_here(&d))
		return 0;
	if (chosen >= requested) {
		COUNT(packets_over);
		return 0;
	}
	packet = __sync_fetch_and_add(&chosen, 1);
	if (packet >= requested) {
		__sync_fetch_and_add(&chosen, -1);
		COUNT(packets_over);
		return 0;
	}
	new.hash = hash;
	new.last = now;
	new.first = c->tracepoint;
	new.ifindex = d.ifindex;
	new.netns = d.netns;
	bpf_map_update_elem(&packets, &packet, &new, BPF_ANY);
	bpf_map_update_elem(&by_content, &hash, &packet, BPF_ANY);
	of->packet = packet;
	of->flags = FLAG_NEW;
	return 1;
}

#endif
