/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Types shared by the programs and user space. */
#ifndef LATPATH_QUEUES_SHARED_H
#define LATPATH_QUEUES_SHARED_H

#include "histogram.h"

/* The side that counts a queue. */
#define DRIVER 0 /* virtio's driver, in the guest */
#define VHOST 1  /* vhost, in the host */

/* Bits of `directions`, from the device's view. */
#define READS 1  /* buffers that it reads */
#define WRITES 2 /* buffers that it writes */

/* An index of a ring: of buffers made available by the driver, or of buffers used by the device. */
struct ring_index {
	__u32 at;
	__u32 pad;
	__u64 moved;   /* distance since the first reading */
	__u64 counted; /* distance according to the counted buffers */
};

/* One virtqueue. It is updated under the lock of its driver or of vhost, except for kicks and interrupts. */
struct queue {
	__u64 address; /* of the kernel's own struct; 0: unused entry */
	__u64 handler; /* vhost: the function that serves kicks */
	__u32 side;
	__u32 gone;
	__u32 device;   /* driver: N of virtioN; vhost: the tap's index in its namespace, 0 without a tap */
	__u32 device_id; /* driver: the virtio device's type */
	__u32 index;    /* driver: the queue's number in its device; vhost: the tap's queue */
	__u32 size;
	__u32 packed;
	__u32 directions;
	__u32 pid;   /* vhost: the owning process */
	__u32 netns; /* vhost: network namespace of the tap */
	__u32 header; /* virtio-net and vhost-net: length of the header before each packet */
	__u32 mergeable; /* virtio-net: whether a packet may span several buffers */
	__u32 interrupt; /* driver: interrupt number plus one; vhost: GSI plus one */
	__u32 known;  /* whether the ring's indices have been read */
	__u32 left_of_packet;
	__u32 signalled_inside; /* vhost_signal was called by the function that is about to return */
	char name[32]; /* driver: the queue's name; vhost: the tap's */
	struct ring_index available;
	struct ring_index used_up;
	__u64 resets;
	__u64 posted; /* driver: buffers added; vhost: buffers taken off the ring */
	__u64 put_back;
	__u64 refused; /* the ring was full */
	__u64 read_bytes;  /* bytes in posted buffers that the device reads */
	__u64 write_bytes; /* bytes in posted buffers that the device may write */
	__u64 used;
	__u64 used_bytes; /* bytes that the device reports as written */
	__u64 done_bytes; /* read_bytes of used buffers whose posting was seen */
	__u64 packets;    /* virtio-net: packets that begin in used buffers of a receive queue */
	__u64 kicks;
	__u64 kicks_asked; /* driver: checks whether a kick is needed */
	__u64 kicks_suppressed;
	__u64 rounds; /* vhost: rounds of its worker */
	__u64 interrupts;
	__u64 interrupts_asked; /* vhost: interrupts before suppression */
	__u64 interrupts_empty; /* driver: interrupts without used buffers */
	__u64 by_irqfd; /* vhost: signals that KVM turned into an interrupt */
	__u64 since_kick; /* driver: buffers posted since the last kick; vhost: taken since the last round */
	__u64 since_interrupt; /* buffers used since the last interrupt */
	__u64 inner; /* the buffer that the inner of two nested functions has counted */
	__u64 kick; /* vhost: eventfds of its kicks and interrupts */
	__u64 call;
	struct coarse_histogram waited; /* ns; driver: from posting to return; vhost: from taking to use */
	struct coarse_histogram occupied; /* driver: descriptors in use; vhost: buffers waiting to be taken */
	struct coarse_histogram per_kick; /* driver: buffers per kick; vhost: per round */
	struct coarse_histogram per_interrupt;
};

struct shared {
	__u64 from; /* the window */
	__u64 until;
	__u32 next; /* place of the next new queue */
	__u32 pad;
	__u64 no_room;      /* events of queues for which the table had no room */
	__u64 no_room_time; /* buffers whose posting time could not be stored */
};

#endif
