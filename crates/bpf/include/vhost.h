/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Finds the virtqueue of a vhost work item. */
#ifndef LATPATH_VHOST_H
#define LATPATH_VHOST_H

#include "kernel.h"

/* Finds the virtqueue of a work item queued by a kick (drivers/vhost). */
static __always_inline struct vhost_virtqueue *queue_of_kick(struct vhost_work *work)
{
	return (void *)work - bpf_core_field_offset(struct vhost_virtqueue, poll.work);
}

/* Finds the virtqueue of a work item queued by the socket (drivers/vhost/net.c): queue 0 (to the guest) or queue 1
 * (from the guest). */
#define QUEUE_OF_SOCKET(work, n)                                                                          \
	((struct vhost_virtqueue *)((void *)(work)-bpf_core_field_offset(struct vhost_net, poll[n].work) + \
				    bpf_core_field_offset(struct vhost_net, vqs[n].vq)))

#endif
