/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the programs and user space share. */
#ifndef LATPATH_QUEUES_SHARED_H
#define LATPATH_QUEUES_SHARED_H

#include "histogram.h"

/* The side that a queue is seen from. */
#define DRIVER 0 /* virtio's driver, in the guest */
#define VHOST 1  /* vhost, in the host */

/* In `directions`, as the device sees them. */
#define READS 1  /* buffers that it reads */
#define WRITES 2 /* buffers that it writes */

/* Indices of a ring: of what the driver made available, or of what the device used. */
struct ring_index {
	__u32 at;
	__u32 pad;
	__u64 moved;   /* since it was first read */
	__u64 counted; /* what should have moved it */
};

/* One virtqueue. The lock of its driver, or of vhost, is held where it is changed, but for kicks and interrupts. */
struct queue {
	__u64 address; /* of the kernel's own struct; 0: none */
	__u64 handler; /* vhost: the function that serves kicks */
	__u32 side;
	__u32 gone;
	__u32 device;   /* driver: N of virtioN; vhost: the tap's index in its namespace, 0 without a tap */
	__u32 device_id; /* driver: the virtio device's type */
	__u32 index;    /* driver: the queue's number in its device; vhost: the tap's queue */
	__u32 size;
	__u32 packed;
	__u32 directions;
	__u32 pid;   /* vhost: the process that owns it */
	__u32 netns; /* vhost: of the tap */
	__u32 header; /* virtio-net and vhost-net: length of the header before each packet */
	__u32 mergeable; /* virtio-net: a packet may take several buffers */
	__u32 interrupt; /* driver: its number plus one; vhost: the GSI plus one */
	__u32 known;  /* the ring's indices have been read */
	__u32 left_of_packet;
	__u32 signalled_inside; /* vhost_signal was seen inside the function that is about to end */
	char name[32]; /* driver: the queue's; vhost: the tap's */
	struct ring_index available;
	struct ring_index used_up;
	__u64 resets;
	__u64 posted; /* driver: added; vhost: taken off the ring */
	__u64 put_back;
	__u64 refused; /* the ring was full */
	__u64 read_bytes;  /* in posted buffers that the device reads */
	__u64 write_bytes; /* room in posted buffers that it writes */
	__u64 used;
	__u64 used_bytes; /* what the device says that it wrote */
	__u64 done_bytes; /* read_bytes of used buffers that were seen being posted */
	__u64 packets;    /* virtio-net: begun in used buffers of a receive queue */
	__u64 kicks;
	__u64 kicks_asked; /* driver: how often it asked whether to kick */
	__u64 kicks_suppressed;
	__u64 rounds; /* vhost: rounds of its worker */
	__u64 interrupts;
	__u64 interrupts_asked; /* vhost: how often it would have signalled */
	__u64 interrupts_empty; /* driver: found nothing used */
	__u64 by_irqfd; /* vhost: signals that KVM made an interrupt of */
	__u64 since_kick; /* driver: posted since a kick; vhost: taken since the end of a round */
	__u64 since_interrupt; /* used since */
	__u64 inner; /* what the inner one of two functions, that may call each other, has counted */
	__u64 kick; /* vhost: its eventfds */
	__u64 call;
	struct coarse_histogram waited; /* driver: from being added to being got back; vhost: from being taken to being used */
	struct coarse_histogram occupied; /* driver: descriptors in use; vhost: buffers that wait to be taken */
	struct coarse_histogram per_kick; /* buffers; vhost: per round */
	struct coarse_histogram per_interrupt;
};

struct shared {
	__u64 from; /* the window */
	__u64 until;
	__u32 next; /* place of the next new queue */
	__u32 pad;
	__u64 no_room;      /* events of queues for which there was no place */
	__u64 no_room_time; /* buffers whose time of posting could not be kept */
};

#endif
