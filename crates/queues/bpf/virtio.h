/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Kernel types, reduced to the fields that the programs read: see crates/bpf/include/kernel.h. */
#ifndef LATPATH_VIRTIO_H
#define LATPATH_VIRTIO_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct scatterlist {
	unsigned long page_link;
	unsigned int length;
};

struct virtio_device_id {
	__u32 device;
};

struct virtio_device {
	int index;
	struct virtio_device_id id;
	void *priv;
};

struct virtqueue {
	const char *name;
	struct virtio_device *vdev;
	unsigned int index;
	unsigned int num_free;
};

struct vring {
	unsigned int num;
};

struct vring_virtqueue_split {
	struct vring vring;
	__u16 avail_idx_shadow;
};

struct vring_virtqueue_packed {
	struct vring vring;
	_Bool avail_wrap_counter;
	__u16 next_avail_idx;
};

struct vring_virtqueue {
	struct virtqueue vq;
	_Bool packed_ring;
	_Bool indirect;
	__u16 last_used_idx;
	union {
		struct vring_virtqueue_split split;
		struct vring_virtqueue_packed packed;
	};
};

/* After Linux 6.18. */
enum vq_layout { VQ_LAYOUT_SPLIT, VQ_LAYOUT_PACKED, VQ_LAYOUT_SPLIT_IN_ORDER, VQ_LAYOUT_PACKED_IN_ORDER };

struct vring_virtqueue___layout {
	enum vq_layout layout;
};

/* drivers/net/virtio_net.c */
struct virtnet_info {
	_Bool mergeable_rx_bufs;
	__u8 hdr_len;
};

/* A tap's socket and its device: drivers/net/tun.c and tap.c. */
struct proto {
	char name[32];
};

struct sock_common {
	struct proto *skc_prot;
};

struct sock {
	struct sock_common __sk_common;
};

struct tun_file {
	struct tun_struct *tun;
	__u16 queue_index;
};

struct tap_dev {
	struct net_device *dev;
};

struct tap_queue {
	struct tap_dev *tap;
	__u16 queue_index;
};

struct iovec {
	void *iov_base;
	unsigned long iov_len;
};

struct vring_used_elem {
	__u32 id;
	__u32 len;
};

#pragma clang attribute pop

#endif
