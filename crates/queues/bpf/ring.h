/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Compares a ring's own indices with the counts. The code accesses only its arguments, so tests can run it in user
 * space. */
#ifndef LATPATH_QUEUES_RING_H
#define LATPATH_QUEUES_RING_H

#include "shared.h"

/* Forward distance from one value of an index to another; the index wraps after `cycle`. */
static __always_inline __u32 distance(__u32 from, __u32 to, __u32 cycle)
{
	return to >= from ? to - from : to + cycle - from;
}

/* Updates how far the ring's own indices moved, and the counts of buffers (in packed rings: of descriptors); user space
 * compares the two. The first call only stores the indices. A jump of an index counts as a reset. */
static __always_inline void follow_ring(struct queue *q, __u32 available, __u32 used, __u32 cycle, __u32 posted, __u32 got)
{
	__u32 forward = distance(q->available.at, available, cycle), back = distance(q->used_up.at, used, cycle);

	if (q->known) {
		if (forward > q->size || back > q->size) {
			q->resets++;
		} else {
			q->available.moved += forward;
			q->available.counted += posted;
			q->used_up.moved += back;
			q->used_up.counted += got;
		}
	}
	q->known = 1;
	q->available.at = available;
	q->used_up.at = used;
}

/* The device puts `buffers` back on the ring, and moves its index back accordingly. */
static __always_inline void step_back(struct queue *q, __u32 available, __u32 cycle, __u32 buffers)
{
	if (q->known) {
		q->available.moved -= distance(available, q->available.at, cycle);
		q->available.counted -= buffers;
	}
	q->available.at = available;
}

#endif
