/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Writes a sighting as a record into the CPU's ring. User space joins the records into journeys. */
#ifndef LATPATH_SIGHT_H
#define LATPATH_SIGHT_H

/* Size of each CPU's ring: 1 << ring_shift records. */
const volatile __u32 ring_shift = 0;

SHARED_ARRAY(percpu, 1, struct percpu);
SHARED_ARRAY(ring, 1, struct record);

/* Place and time of a sighting. */
struct seen_at {
	__u64 t;
	__u64 aux;
	__u32 tid;
	__u32 point;
	__u32 synch;
};

/*
 * Completes the record for the reader by one store of the fields from `stream` to `generation`, after all other stores.
 * x86 orders stores; elsewhere an exchange acts as a full barrier.
 */
static __always_inline void publish(struct record *r, __u64 last)
{
	__u64 *word = (__u64 *)&r->stream;

#if defined(__TARGET_ARCH_x86)
	asm volatile("" ::: "memory");
	*(volatile __u64 *)word = last;
#else
	__sync_lock_test_and_set(word, last);
#endif
}

/* Appends to this CPU's ring; a full ring drops the sighting and counts the drop. */
static __always_inline void to_ring(struct percpu *p, struct seen_at *w, __u32 stream, __u32 key)
{
	__u32 ring_size = 1u << ring_shift;
	__u64 head = p->head, at;
	struct record *r;
	__u32 idx, cpu;

	if (unlikely(key & *(volatile __u64 *)&p->sample_mask)) {
		__sync_fetch_and_add(&p->left_out, 1);
		return;
	}
	/* Leave some records free for programs that interrupt or preempt this one before the reservation. */
	if (unlikely(head - *(volatile __u64 *)&p->tail_seen >= ring_size - 32)) {
		__u64 tail = *(volatile __u64 *)&p->tail;

		*(volatile __u64 *)&p->tail_seen = tail;
		if (head - tail >= ring_size - 32) {
			__sync_fetch_and_add(&p->dropped, 1);
			return;
		}
	}
	at = __sync_fetch_and_add(&p->head, 1); /* also counts the sightings */
	cpu = p->cpu;
	idx = (cpu << ring_shift) + ((__u32)at & (ring_size - 1));
	r = bpf_map_lookup_elem(&ring, &idx);
	if (!r)
		return;
	r->t = w->t;
	r->aux = w->aux;
	*(volatile __u64 *)&r->key = key | (__u64)w->tid << 32;
	publish(r, (__u16)stream | (__u64)(__u16)cpu << 16 | (__u64)(__u8)w->point << 32 | (__u64)(__u8)w->synch << 40 |
			   (at >> ring_shift | 1u << 15) << 48);
}

/* Takes one sighting. Returns whether its sender is to be noted too: true for one sighting in 1024. */
static __always_inline int sight(struct percpu *p, struct seen_at *w, __u32 stream, __u32 key)
{
	to_ring(p, w, stream, key);
	/* Measure the cost of one in 64 sightings. */
	if (unlikely(((w->t >> 5) & 63) == 0)) {
		__sync_fetch_and_add(&p->cost_ns, bpf_ktime_get_ns() - w->t);
		__sync_fetch_and_add(&p->cost_samples, 1);
		return (w->t >> 11 & 15) == 0;
	}
	return 0;
}

/* Takes a sighting of a frame on the slow path; verified once for all programs. */
__noinline int sight_any(struct seen_at *w, __u32 stream, __u32 key)
{
	struct percpu *p;
	__u32 cpu;

	if (!w || stream >= MAX_STREAMS)
		return 0;
	cpu = bpf_get_smp_processor_id();
	p = bpf_map_lookup_elem(&percpu, &cpu);
	if (p)
		sight(p, w, stream, key);
	return 0;
}

#endif
