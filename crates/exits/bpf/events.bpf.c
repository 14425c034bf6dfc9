// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Counts one of KVM's events; the program is loaded once per event. Events in threads known to exits.bpf.c are counted
 * by vCPU, all others by process. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "map.h"
#include "vcpu_time.h"
#include "shared.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Index of this event, and the number of events. */
const volatile __u32 event = 0;
const volatile __u32 events = 0;

/* Maps shared with exits.bpf.c (`cpus`) and between the loaded programs. */
MAP(cpus, ARRAY, 1, __u32, struct here);
SHARED_ARRAY(counting, 1, struct event_count);

/* Indexed by slot * events + event. */
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
	/* Atomic, because an interrupt during the update may count an event too. */
	__sync_fetch_and_add(count ? count : &state->no_room, 1);
	return 0;
}
