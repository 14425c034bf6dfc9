// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Counts one of KVM's events; loaded once for each. Counts by vCPU in threads that exits.bpf.c knows, by process in
 * all others.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "map.h"
#include "vcpu_time.h"
#include "shared.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Number of this event, and of all events. */
const volatile __u32 event = 0;
const volatile __u32 events = 0;

/* Shared with exits.bpf.c. */
MAP(cpus, ARRAY, 1, __u32, struct here);
SHARED_ARRAY(counting, 1, struct event_count);

/* By slot and event. */
SHARED_ARRAY(of_vcpus, 1, __u64);
MAP(of_processes, HASH, PROCESS_EVENTS, struct process_event, __u64);

static __always_inline __u64 *of_process(void)
{
	struct process_event key = { .pid = bpf_get_current_pid_tgid() >> 32, .event = event };
	__u64 *count = bpf_map_lookup_elem(&of_processes, &key), none = 0;

	if (count)
		return count;
	bpf_map_update_elem(&of_processes, &key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&of_processes, &key);
}

SEC("raw_tp")
int count(void *ctx)
{
	__u32 first = 0, cpu = bpf_get_smp_processor_id(), place;
	struct event_count *state = bpf_map_lookup_elem(&counting, &first);
	struct here *here = bpf_map_lookup_elem(&cpus, &cpu);
	__u64 *count;

	if (!state || !here || !state->on)
		return 0;
	if (here->slot) {
		place = here->slot * events + event;
		count = bpf_map_lookup_elem(&of_vcpus, &place);
	} else {
		count = of_process();
	}
	/* An interrupt may occur in between and count too. */
	__sync_fetch_and_add(count ? count : &state->no_room, 1);
	return 0;
}
