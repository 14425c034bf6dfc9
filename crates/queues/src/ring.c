// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The programs' tracking of ring indices, for tests in user space. */
#include <linux/types.h>
#define __always_inline inline __attribute__((always_inline))
#define BOUND(x, size) ((x) &= (size) - 1)
#include "ring.h"

unsigned long queue_size(void)
{
	return sizeof(struct queue);
}

void ring_event(struct queue *q, __u32 available, __u32 used, __u32 cycle, __u32 posted, __u32 got)
{
	follow_ring(q, available, used, cycle, posted, got);
}

void ring_step_back(struct queue *q, __u32 available, __u32 cycle, __u32 buffers)
{
	step_back(q, available, cycle, buffers);
}
