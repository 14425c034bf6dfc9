// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Records changes to the flows of Open vSwitch's datapaths, and the upcalls of packets that match no flow: which thread
 * installs and removes flows, which packets are sent to ovs-vswitchd, and when one of its handlers reads them and
 * replies. User space reads the records some time later, and compares the keys of packets with those of removed flows.
 *
 * Functions as in Linux 6.1 to 6.18: net/openvswitch/{datapath,flow_table}.c, net/netlink/af_netlink.c. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "upcalls.h"
#include "kernel.h"
#include "map.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Number of possible CPUs. */
const volatile __u32 cpus = 1;
const volatile struct datapath_record record_type = {}; /* exports the type to user space */

/* Number of records that did not fit into `records`. */
SHARED_ARRAY(records_lost, 1, __u64);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} records SEC(".maps");

static __always_inline void *reserve(__u64 size)
{
	void *record = bpf_ringbuf_reserve(&records, size, 0);
	__u32 zero = 0;
	__u64 *lost;

	if (!record) {
		lost = bpf_map_lookup_elem(&records_lost, &zero);
		if (lost)
			__sync_fetch_and_add(lost, 1);
	}
	return record;
}

/* Fills a record, except for the fields specific to its event. */
static __always_inline void fill(struct datapath_record *record, __u32 event, __u64 table)
{
	__u64 thread = bpf_get_current_pid_tgid();

	record->time = bpf_ktime_get_ns();
	record->table = table;
	record->packets = 0;
	record->idle = NEVER_USED;
	record->event = event;
	record->cpu = bpf_get_smp_processor_id();
	record->pid = (__u32)thread;
	record->tgid = thread >> 32;
	record->flows = 0;
	record->port = 0;
	record->command = 0;
	record->start = 0;
	record->end = 0;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
}

/* Submits a record without waking user space, which reads records only when it needs them. */
static __always_inline int submit(void *record)
{
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Returns the address as a number, because the verifier does not allow variables to be added to the pointer. */
static __always_inline __u64 address_of(const void *pointer)
{
	const void *volatile there = pointer;
	__u64 address = 0;

	bpf_probe_read_kernel(&address, sizeof(address), (void *)&there);
	return address;
}

static __always_inline void read_key(__u8 *to, const void *key)
{
	__u64 size = bpf_core_type_size(struct sw_flow_key);

	bpf_probe_read_kernel(to, size < FLOW_KEY_BYTES ? size : FLOW_KEY_BYTES, key);
}

/* Reads the number of a flow's packets, and the time since the last one. Statistics are per CPU; at first, all CPUs use
 * those of CPU 0. */
static __always_inline void read_use(struct datapath_record *record, struct sw_flow *flow)
{
	__u64 place = address_of(flow) + bpf_core_field_offset(struct sw_flow, stats);
	__u64 used = 0, packets = 0, now = bpf_jiffies64();
	__u32 cpu;

	for (cpu = 0; cpu < FLOW_CPUS && cpu < cpus; cpu++) {
		struct sw_flow_stats *stats = 0;
		__u64 here;

		bpf_probe_read_kernel(&stats, sizeof(stats), (void *)(place + cpu * sizeof(void *)));
		if (!stats)
			continue;
		packets += BPF_CORE_READ(stats, packet_count);
		here = BPF_CORE_READ(stats, used);
		if (here > used)
			used = here;
	}
	record->packets = packets;
	if (used)
		record->idle = now > used ? now - used : 0;
}

static __always_inline struct flow_record *of_flow(struct flow_table *table, struct sw_flow *flow,
						   const struct sw_flow_mask *mask, __u32 event)
{
	struct flow_record *record = reserve(sizeof(*record));

	if (!record)
		return 0;
	fill(&record->head, event, address_of(table));
	record->head.flows = BPF_CORE_READ(table, count);
	record->head.start = BPF_CORE_READ(mask, range.start);
	record->head.end = BPF_CORE_READ(mask, range.end);
	read_key(record->key, (void *)flow + bpf_core_field_offset(struct sw_flow, key));
	read_key(record->mask, (void *)mask + bpf_core_field_offset(struct sw_flow_mask, key));
	return record;
}

/* The mask is an argument here: the flow's own pointer to it is set afterwards. */
SEC("fentry/ovs_flow_tbl_insert")
int BPF_PROG(flow_inserted, struct flow_table *table, struct sw_flow *flow, const struct sw_flow_mask *mask)
{
	struct flow_record *record;

	if (!table || !flow || !mask)
		return 0;
	record = of_flow(table, flow, mask, FLOW_INSERTED);
	return record ? submit(record) : 0;
}

SEC("fentry/ovs_flow_tbl_remove")
int BPF_PROG(flow_removed, struct flow_table *table, struct sw_flow *flow)
{
	struct flow_record *record;
	struct sw_flow_mask *mask;

	if (!table || !flow)
		return 0;
	mask = BPF_CORE_READ(flow, mask);
	record = of_flow(table, flow, mask, FLOW_REMOVED);
	if (!record)
		return 0;
	read_use(&record->head, flow);
	return submit(record);
}

SEC("fentry/ovs_flow_tbl_flush")
int BPF_PROG(table_flushed, struct flow_table *table)
{
	struct datapath_record *record;

	if (!table)
		return 0;
	record = reserve(sizeof(*record));
	if (!record)
		return 0;
	fill(record, TABLE_FLUSHED, address_of(table));
	record->flows = BPF_CORE_READ(table, count);
	return submit(record);
}

SEC("tp_btf/ovs_dp_upcall")
int BPF_PROG(upcall_sent, struct datapath *dp, void *skb, void *key, struct dp_upcall_info *info)
{
	struct upcall_record *record;

	if (!dp || !key || !info)
		return 0;
	record = reserve(sizeof(*record));
	if (!record)
		return 0;
	fill(&record->head, UPCALL_SENT, address_of(dp) + bpf_core_field_offset(struct datapath, table));
	record->head.flows = BPF_CORE_READ(dp, table.count);
	record->head.port = BPF_CORE_READ(info, portid);
	record->head.command = BPF_CORE_READ(info, cmd);
	read_key(record->key, key);
	return submit(record);
}

static __always_inline int plain_record(__u32 event, __u32 port)
{
	struct datapath_record *record = reserve(sizeof(*record));

	if (!record)
		return 0;
	fill(record, event, 0);
	record->port = port;
	return submit(record);
}

SEC("fexit/ovs_dp_upcall")
int BPF_PROG(upcall_ended, struct datapath *dp, void *skb, void *key, void *info, __u32 cut, int result)
{
	return result ? plain_record(UPCALL_LOST, 0) : 0;
}

/* Whether the current thread is one of the ovs-vswitchd threads that read upcalls, judged by its name
 * (lib/ovs-thread.c: handler1). */
static __always_inline _Bool is_handler(void)
{
	char comm[16] = {};

	bpf_get_current_comm(comm, sizeof(comm));
	return !__builtin_memcmp(comm, "handler", 7);
}

SEC("fexit/netlink_recvmsg")
int BPF_PROG(upcall_read, struct socket *socket, void *message, __u64 length, int flags, int result)
{
	struct netlink_sock *sock;

	if (!is_handler() || !socket)
		return 0;
	sock = (struct netlink_sock *)BPF_CORE_READ(socket, sk);
	return plain_record(result > 0 ? UPCALL_READ : QUEUE_EMPTY, BPF_CORE_READ(sock, portid));
}

SEC("fentry/netlink_sendmsg")
int BPF_PROG(reply_sent)
{
	return is_handler() ? plain_record(REPLY_SENT, 0) : 0;
}
