/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Counts the traffic of queues; common to drivers and vhost. */
#ifndef LATPATH_QUEUE_H
#define LATPATH_QUEUE_H

#include "map.h"
#include "ring.h"

#define NO_QUEUE 0xffffffff
#define MOST_ENTRIES 4096 /* maximum entries of a buffer; Linux creates at most about 1,000 */

const volatile __u32 queues_max = 0;

struct shared shared = {};

SHARED_ARRAY(queues, 1, struct queue);

/* Index of a queue in `queues`, by the address of the kernel's struct. */
MAP(places, HASH, 1, __u64, __u32);

/* A buffer held by the device: the queue's address, and the driver's token (vhost: the index of the buffer's first
 * descriptor). */
struct buffer {
	__u64 queue;
	__u64 token;
};

struct posted {
	__u64 at;
	__u32 bytes;
	__u32 descriptors;
};

MAP(buffers, HASH, 1, struct buffer, struct posted);

/* The current time if it is in the window; otherwise 0. Clock: CLOCK_MONOTONIC, ns. */
static __always_inline __u64 now_in_window(void)
{
	__u64 now = bpf_ktime_get_ns();

	return now >= shared.from && now < shared.until ? now : 0;
}

/* Reads an argument as a raw number: verifiers before Linux 6.14 refuse pointers to pointers and to const void. */
static __always_inline __u64 argument(void *ctx, __u32 n)
{
	__u64 value = 0;

	bpf_get_func_arg(ctx, n, &value);
	return value;
}

static __always_inline __u64 returned(void *ctx)
{
	__u64 value = 0;

	bpf_get_func_ret(ctx, &value);
	return value;
}

static __always_inline struct queue *in_place(__u32 place)
{
	return bpf_map_lookup_elem(&queues, &place);
}

static __always_inline struct queue *queue_at(__u64 address)
{
	__u32 *place = bpf_map_lookup_elem(&places, &address);

	return place ? in_place(*place) : 0;
}

/* Returns an unused index for a new queue; NO_QUEUE if there is none. */
static __always_inline __u32 new_place(void)
{
	__u32 place;

	if (shared.next >= queues_max) {
		__sync_fetch_and_add(&shared.no_room, 1);
		return NO_QUEUE;
	}
	place = __sync_fetch_and_add(&shared.next, 1);
	return place < queues_max ? place : NO_QUEUE;
}

/* Publishes a fully initialised new queue, unless another CPU has already published it. */
static __always_inline void publish(struct queue *q, __u64 address, __u32 place)
{
	q->address = address;
	if (bpf_map_update_elem(&places, &address, &place, BPF_NOEXIST))
		q->address = 0;
}

static __always_inline void forget(__u64 address)
{
	struct queue *q = queue_at(address);

	if (!q)
		return;
	q->gone = 1;
	bpf_map_delete_elem(&places, &address);
}

static __always_inline void remember(struct queue *q, __u64 token, __u64 now, __u64 bytes, __u32 descriptors)
{
	struct buffer buffer = { .queue = q->address, .token = token };
	struct posted posted = { .at = now, .bytes = bytes, .descriptors = descriptors };

	if (bpf_map_update_elem(&buffers, &buffer, &posted, BPF_ANY))
		__sync_fetch_and_add(&shared.no_room_time, 1);
}

/* Adds the time for which the device held a used buffer to the histogram. Returns the buffer's descriptor count; 0 if
 * its posting was not seen. */
static __always_inline __u32 recall(struct queue *q, __u64 token, __u64 now)
{
	struct buffer buffer = { .queue = q->address, .token = token };
	struct posted *posted = bpf_map_lookup_elem(&buffers, &buffer);
	__u32 descriptors;

	if (!posted)
		return 0;
	descriptors = posted->descriptors;
	q->done_bytes += posted->bytes;
	histogram_add(&q->waited, now > posted->at ? now - posted->at : 0);
	bpf_map_delete_elem(&buffers, &buffer);
	return descriptors;
}

/* Ends a batch. Atomic, because kicks and interrupts occur without the queue's lock. */
static __always_inline void batch_ends(__u64 *since, struct coarse_histogram *batches, _Bool counts)
{
	__u64 buffers = __sync_lock_test_and_set(since, 0);

	if (counts)
		histogram_add(batches, buffers);
}

#endif
