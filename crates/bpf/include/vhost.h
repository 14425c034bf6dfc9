/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Where a work of vhost's finds its queue. */
#ifndef LATPATH_VHOST_H
#define LATPATH_VHOST_H

#include "kernel.h"

/* drivers/vhost: a kick begins it. */
static __always_inline struct vhost_virtqueue *queue_of_kick(struct vhost_work *work)
{
	return (void *)work - bpf_core_field_offset(struct vhost_virtqueue, poll.work);
}

/* drivers/vhost/net.c: the socket begins it; of queue 0, to the guest, or queue 1, from it. */
#define QUEUE_OF_SOCKET(work, n)                                                                          \
	((struct vhost_virtqueue *)((void *)(work)-bpf_core_field_offset(struct vhost_net, poll[n].work) + \
				    bpf_core_field_offset(struct vhost_net, vqs[n].vq)))

#endif
