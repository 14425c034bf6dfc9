/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Registration of points: the first packet of a stream at a new place adds an entry to the table of points. */
#ifndef LATPATH_POINTS_H
#define LATPATH_POINTS_H

/* Index of each point; REFUSED_POINT if user space does not request it, or it is in another user's namespace. */
MAP(point_of, LRU_HASH, KNOWN_KEYS, struct point_key, __u32);

/* Free indexes. User space fills the queue at the start, and returns released indexes. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, MAX_POINTS);
	__type(value, __u32);
} free_points SEC(".maps");

SHARED_ARRAY(points, MAX_POINTS, struct point_entry);

/*
 * A thread may change its name at any time, and each name is a point. So that one process cannot use all indexes, each
 * reader needs one of MAX_OTHER_READERS permits from user space, unless the user named the reader.
 */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, MAX_OTHER_READERS);
	__type(value, __u32);
} reader_permits SEC(".maps");

/* Indexes reserved for readers that the user named: `first_reserved` and above. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, MAX_POINTS);
	__type(value, __u32);
} reserved_points SEC(".maps");

const volatile __u32 first_reserved = MAX_POINTS;
const volatile __u32 named_reader_count = 0;
const volatile struct reader_name named_readers[MAX_NAMED_READERS] = {};

static __always_inline int is_named_reader(struct point_key *key)
{
	__u64 comm[2];

	__builtin_memcpy(comm, key->comm, sizeof(comm));
	for (__u32 i = 0; i < MAX_NAMED_READERS && i < named_reader_count; i++) {
		const volatile struct reader_name *name = &named_readers[i];

		if ((comm[0] & name->mask[0]) == name->word[0] && (comm[1] & name->mask[1]) == name->word[1])
			return 1;
	}
	return 0;
}

/* Whether a point needs a permit: a reader that the user did not name. */
static __always_inline int needs_permit(struct point_key *key)
{
	return IS_POINT_OF(key->kind, NAMED_BY_THREAD) && !is_named_reader(key);
}

/* Returns an unused index. */
static __always_inline void return_index(__u32 idx, int with_permit)
{
	if (with_permit)
		bpf_map_push_elem(&reader_permits, &idx, 0);
	if (idx >= first_reserved)
		bpf_map_push_elem(&reserved_points, &idx, 0);
	else
		bpf_map_push_elem(&free_points, &idx, 0);
}

/* Takes an index for a point; returns nonzero if no index, or no permit, is free. */
static __always_inline int take_index(struct point_key *key, int with_permit, __u32 *idx)
{
	__u32 permit;

	if (!with_permit) {
		if (!bpf_map_pop_elem(&free_points, idx))
			return 0;
		return !IS_POINT_OF(key->kind, NAMED_BY_THREAD) || bpf_map_pop_elem(&reserved_points, idx);
	}
	if (bpf_map_pop_elem(&reader_permits, &permit))
		return -1;
	if (!bpf_map_pop_elem(&free_points, idx))
		return 0;
	bpf_map_push_elem(&reader_permits, &permit, 0);
	return -1;
}

/* Whether points may be in network namespaces of other user namespaces, which any user can create. */
const volatile __u8 other_users = 0;

/* Set of points whose frames pass the GRO hook, so that the stack's hook ignores them. */
#define GRO_WORDS ((MAX_POINTS + 64) / 64)
__u64 gro_points[GRO_WORDS];

static __always_inline __u64 *gro_word(__u32 point)
{
	return &gro_points[(point >> 6) & (GRO_WORDS - 1)];
}

/* Value of addr_assign_type if a program set the device's MAC address: include/uapi/linux/netdevice.h */
#define NET_ADDR_SET 3

static __always_inline int has_ethernet_header(struct net_device *dev)
{
	return is_ethernet(dev->type);
}

/* Adds a point; returns its index, REFUSED_POINT, or a negative number if the table is full. */
static __noinline int register_point(struct point_key *key, struct net_device *dev, struct net *net)
{
	__u32 idx, *have;
	struct point_entry *e;
	int with_permit;

	if (!other_users && net && net->user_ns->level > 0) {
		__u32 cpu = bpf_get_smp_processor_id();
		struct percpu *p = bpf_map_lookup_elem(&percpu, &cpu);

		idx = REFUSED_POINT;
		if (!bpf_map_update_elem(&point_of, key, &idx, BPF_NOEXIST) && p)
			__sync_fetch_and_add(&p->points_of_others, 1);
		return REFUSED_POINT;
	}
	with_permit = needs_permit(key);
	if (take_index(key, with_permit, &idx))
		return -1;
	e = bpf_map_lookup_elem(&points, &idx);
	if (!e)
		return -1;
	__builtin_memset(e, 0, sizeof(*e));
	e->key = *key;
	if (net)
		e->netns = net->ns.inum;
	if (dev) {
		const struct rtnl_link_ops *ops = dev->rtnl_link_ops;

		bpf_probe_read_kernel(e->device, sizeof(e->device), dev->name);
		e->no_link = !has_ethernet_header(dev);
		if (has_ethernet_header(dev) && dev->addr_assign_type == NET_ADDR_SET)
			bpf_probe_read_kernel(e->mac, sizeof(e->mac), dev->dev_addr);
		if (ops)
			bpf_probe_read_kernel_str(e->link, sizeof(e->link), ops->kind);
	}
	__sync_fetch_and_and(gro_word(idx), ~(1ull << (idx & 63)));
	if (bpf_map_update_elem(&point_of, key, &idx, BPF_NOEXIST)) {
		/* Another CPU registered the point first. */
		return_index(idx, with_permit);
		have = bpf_map_lookup_elem(&point_of, key);
		return have ? *have : -1;
	}
	__sync_lock_test_and_set(&e->valid, 1);
	return idx;
}

static __always_inline int find_point(struct point_key *key, struct net_device *dev, struct net *net)
{
	__u32 *have = bpf_map_lookup_elem(&point_of, key);

	return have ? *have : register_point(key, dev, net);
}

/* Identity of a network namespace: its cookie (Linux 5.12), which is unique, or else its inode number. The kernel
 * reuses inode numbers, and device indexes start from 1 in each namespace. */
static __always_inline __u32 space_of(struct net *net)
{
	return bpf_core_field_exists(net->net_cookie) ? net->net_cookie : net->ns.inum;
}

static __always_inline __u64 identity(struct net_device *dev)
{
	return (__u64)space_of(dev->nd_net.net) << 32 | (__u32)dev->ifindex;
}

/* Combines the identity of a device with the LAN of redundant networks to which a packet belongs; `lan` is 0 if it
 * belongs to none. */
static __always_inline __u64 with_lan(__u64 device, __u32 lan)
{
	return device ^ (__u64)lan << LAN_SHIFT;
}

/* The CPU's cache entry of a device and LAN. */
static __always_inline struct cached *cache_of(struct percpu *p, __u64 device, __u32 kind)
{
	return &p->known[kind][(device ^ device >> 32 ^ device >> LAN_SHIFT) & (CACHE - 1)];
}

/* The point of this kind on a device from the CPU's cache; -1 if not cached. */
static __always_inline int known_point(struct percpu *p, __u64 device, __u32 kind)
{
	struct cached *c = cache_of(p, device, kind);
	__u64 apart;

	if (c->device != device)
		return -1;
	apart = *(volatile __u64 *)&c->with_point ^ device;
	return apart << 8 ? -1 : (int)(apart >> 56);
}

static __always_inline int passes_gro(__u32 point)
{
	return *(volatile __u64 *)gro_word(point) >> (point & 63) & 1;
}

static __always_inline void note_gro(__u32 point)
{
	if (!passes_gro(point))
		__sync_fetch_and_or(gro_word(point), 1ull << (point & 63));
}

/* The point of this kind on a device that is not cached; -1 if the table is full. */
static __always_inline int learn_point(struct percpu *p, struct net_device *dev, __u64 device, __u32 kind, __u32 lan)
{
	struct cached *c = cache_of(p, device, kind);
	struct point_key key = { .space = device >> 32, .ifindex = (__u32)device, .kind = kind, .lan = lan };
	int point = find_point(&key, dev, dev->nd_net.net);

	if (point < 0)
		return point;
	*(volatile __u64 *)&c->with_point = device ^ (__u64)point << 56;
	*(volatile __u64 *)&c->device = device;
	return point;
}

/* The point of an application, identified by its thread's name. */
static __always_inline int thread_point(__u32 kind)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct nsproxy *ns = UNTRUSTED(task)->nsproxy;
	struct point_key key = {};
	struct net *net = 0;

	if (ns) {
		net = ns->net_ns;
		key.space = space_of(net);
	}
	key.kind = kind;
	bpf_get_current_comm(key.comm, sizeof(key.comm));
	return find_point(&key, 0, net);
}

#endif
