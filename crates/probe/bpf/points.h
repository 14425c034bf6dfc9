/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Points register themselves: the first stream packet at a new place makes an entry in the table of points. */
#ifndef LATPATH_POINTS_H
#define LATPATH_POINTS_H

#define CACHE 32 /* entries of one CPU */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_POINTS * 4);
	__type(key, struct point_key);
	__type(value, __u32);
} point_of SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_POINTS);
	__type(key, __u32);
	__type(value, struct point_entry);
} points SEC(".maps");

struct cached {
	__u64 dev;
	__u64 net;
	__u32 ifindex;
	__u32 kind;
	__u32 point;
	__u32 gro;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cached);
} point_cache SEC(".maps");

__u32 point_count = 0;

/* Kernel addresses have their top bits set; a socket keeps other things where skb->dev was. */
static __always_inline int is_kernel_address(__u64 p)
{
	return p >> 47 == 0x1ffff;
}

/* Adds a point; returns its index, or a negative number if the table is full. */
static __noinline int register_point(struct point_key *key, struct net_device *dev)
{
	__u32 idx = __sync_fetch_and_add(&point_count, 1), *have;
	struct point_entry *e;

	if (idx >= MAX_POINTS) {
		__sync_fetch_and_add(&point_count, -1);
		return -1;
	}
	e = bpf_map_lookup_elem(&points, &idx);
	if (!e)
		return -1;
	e->key = *key;
	if (dev) {
		const struct rtnl_link_ops *ops = dev->rtnl_link_ops;

		bpf_probe_read_kernel(e->device, sizeof(e->device), dev->name);
		if (ops)
			bpf_probe_read_kernel_str(e->link, sizeof(e->link), ops->kind);
	}
	if (bpf_map_update_elem(&point_of, key, &idx, BPF_NOEXIST)) {
		/* Another CPU came first: this entry stays unused. */
		have = bpf_map_lookup_elem(&point_of, key);
		return have ? *have : -1;
	}
	e->valid = 1;
	return idx;
}

static __always_inline int find_point(struct point_key *key, struct net_device *dev)
{
	__u32 *have = bpf_map_lookup_elem(&point_of, key);

	return have ? *have : register_point(key, dev);
}

static __always_inline struct cached *cache_of(__u64 dev, __u32 kind, __u32 cpu)
{
	__u32 at = cpu * CACHE + ((dev >> 6 ^ dev >> 12 ^ kind * 5) & (CACHE - 1));

	return bpf_map_lookup_elem(&point_cache, &at);
}

/* Whether this CPU knows, without reading the frame, that the device's frames pass GRO's door. */
static __always_inline int known_gro(struct net_device *dev, __u32 cpu)
{
	struct cached *c = cache_of((__u64)dev, POINT_NIC_RX, cpu);

	return c && c->gro && c->dev == (__u64)dev && c->net == (__u64)dev->nd_net.net && c->ifindex == dev->ifindex &&
	       c->kind == POINT_NIC_RX;
}

/* Notes that a point's frames pass GRO's door; at the stack's door, says whether they do. */
static __always_inline int passed_gro(__u32 point, int at_gro)
{
	struct point_entry *e = bpf_map_lookup_elem(&points, &point);

	if (!e)
		return 0;
	if (at_gro) {
		e->gro = 1;
		return 0;
	}
	return e->gro;
}

/* The point of this kind on a device, -1 if the table is full. */
static __always_inline int device_point(struct net_device *dev, __u32 kind, __u32 cpu)
{
	__u64 d = (__u64)dev;
	struct cached *c = cache_of(d, kind, cpu);
	struct point_entry *e;
	struct point_key key = {};
	struct net *net = dev->nd_net.net;
	__u32 ifindex = dev->ifindex;
	int point;

	if (!c)
		return -1;
	if (c->dev == d && c->net == (__u64)net && c->ifindex == ifindex && c->kind == kind)
		return c->point;
	key.netns = net->ns.inum;
	key.ifindex = ifindex;
	key.kind = kind;
	point = find_point(&key, dev);
	if (point < 0)
		return point;
	/* An interrupt may refill the same entry between two of these stores: identity first, dev last, and no mix passes. */
	c->net = (__u64)net;
	c->ifindex = ifindex;
	c->kind = kind;
	e = bpf_map_lookup_elem(&points, (__u32 *)&point);
	c->gro = e ? e->gro : 0;
	*(volatile __u32 *)&c->point = point;
	*(volatile __u64 *)&c->dev = d;
	return point;
}

/* The point of an application: its thread's name. */
static __always_inline int thread_point(__u32 kind)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct nsproxy *ns = task->nsproxy;
	struct point_key key = {};

	if (ns)
		key.netns = ns->net_ns->ns.inum;
	key.kind = kind;
	bpf_get_current_comm(key.comm, sizeof(key.comm));
	return find_point(&key, 0);
}

#endif
