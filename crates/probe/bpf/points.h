/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Points register themselves: the first stream packet at a new place makes an entry in the table of points. */
#ifndef LATPATH_POINTS_H
#define LATPATH_POINTS_H


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

/* Points whose frames pass the hook of GRO, as a set: at the stack's hook they have been seen already. */
volatile __u32 gro_points = 0;

__u32 point_count = 0;

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

static __always_inline __u64 identity(struct net_device *dev)
{
	return (__u64)dev->nd_net.net->ns.inum << 32 | (__u32)dev->ifindex;
}

/* The point of this kind on a device if this CPU knows it, -1 otherwise. */
static __always_inline int known_point(struct percpu *p, __u64 device, __u32 kind)
{
	struct cached *c = &p->known[kind][(device ^ device >> 32) & (CACHE - 1)];
	__u64 apart;

	if (c->device != device)
		return -1;
	apart = *(volatile __u64 *)&c->with_point ^ device;
	return apart << 5 ? -1 : (int)(apart >> 59);
}

static __always_inline int passes_gro(__u32 point)
{
	return gro_points >> (point & (MAX_POINTS - 1)) & 1;
}

static __always_inline void note_gro(__u32 point)
{
	if (!passes_gro(point))
		__sync_fetch_and_or(&gro_points, 1u << (point & (MAX_POINTS - 1)));
}

/* The point of this kind on a device that the CPU does not know yet, -1 if the table is full. */
static __always_inline int learn_point(struct percpu *p, struct net_device *dev, __u64 device, __u32 kind)
{
	struct cached *c = &p->known[kind][(device ^ device >> 32) & (CACHE - 1)];
	struct point_key key = { .netns = device >> 32, .ifindex = (__u32)device, .kind = kind };
	int point = find_point(&key, dev);

	if (point < 0)
		return point;
	*(volatile __u64 *)&c->with_point = device ^ (__u64)point << 59;
	*(volatile __u64 *)&c->device = device;
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
