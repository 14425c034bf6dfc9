/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The driver's side: drivers/virtio/virtio_ring.c. */
#ifndef LATPATH_QUEUES_DRIVER_H
#define LATPATH_QUEUES_DRIVER_H

#define VIRTIO_ID_NET 1
/* include/linux/scatterlist.h */
#define SG_CHAIN 1
#define SG_END 2
/* include/linux/irqreturn.h */
#define IRQ_HANDLED 1

static __always_inline _Bool is_packed(struct vring_virtqueue *vq)
{
	struct vring_virtqueue___layout *newer = (void *)vq;

	if (bpf_core_field_exists(newer->layout))
		return BPF_CORE_READ(newer, layout) & 1;
	return BPF_CORE_READ(vq, packed_ring);
}

static __always_inline __u32 size_of_ring(struct vring_virtqueue *vq, _Bool packed)
{
	return packed ? BPF_CORE_READ(vq, packed.vring.num) : BPF_CORE_READ(vq, split.vring.num);
}

static __noinline int new_driver_queue(struct vring_virtqueue *vq)
{
	struct virtio_device *device = BPF_CORE_READ(vq, vq.vdev);
	struct virtnet_info *net;
	struct queue *q;
	__u32 place = new_place();

	q = in_place(place);
	if (!q)
		return 0;
	q->side = DRIVER;
	q->device = BPF_CORE_READ(device, index);
	q->device_id = BPF_CORE_READ(device, id.device);
	q->index = BPF_CORE_READ(vq, vq.index);
	q->packed = is_packed(vq);
	q->size = size_of_ring(vq, q->packed);
	bpf_probe_read_kernel_str(q->name, sizeof(q->name), BPF_CORE_READ(vq, vq.name));
	if (q->device_id == VIRTIO_ID_NET && bpf_core_field_exists(struct virtnet_info, hdr_len)) {
		net = BPF_CORE_READ(device, priv);
		q->header = BPF_CORE_READ(net, hdr_len);
		q->mergeable = BPF_CORE_READ(net, mergeable_rx_bufs);
	}
	publish(q, (__u64)vq, place);
	return 0;
}

static __always_inline struct queue *driver_queue(struct vring_virtqueue *vq)
{
	struct queue *q = queue_at((__u64)vq);

	if (q)
		return q;
	new_driver_queue(vq);
	return queue_at((__u64)vq);
}

/* In packed rings, an index comes with a wrap counter of one bit: whether the number of wraps is even or odd. */
static __always_inline void follow_driver_ring(struct queue *q, struct vring_virtqueue *vq, __u32 posted, __u32 got,
					       __u32 descriptors)
{
	__u32 available, used = BPF_CORE_READ(vq, last_used_idx);

	if (!q->packed) {
		available = BPF_CORE_READ(vq, split.avail_idx_shadow);
		follow_ring(q, available, used, 1 << 16, posted, got);
		return;
	}
	available = BPF_CORE_READ(vq, packed.next_avail_idx);
	if (!BPF_CORE_READ(vq, packed.avail_wrap_counter))
		available += q->size;
	/* VRING_PACKED_EVENT_F_WRAP_CTR */
	used = (used & 0x7fff) + (used & 0x8000 ? 0 : q->size);
	follow_ring(q, available, used, 2 * q->size, posted ? descriptors : 0, got ? descriptors : 0);
}

/* Buffers that a driver adds: lists of scatterlist entries; those that the device reads come first. */
struct adding {
	struct vring_virtqueue *vq;
	__u64 token;
	__u64 entry;
	__u64 lists; /* array of pointers to entries; 0: a single list */
	__u32 reads; /* number of lists that the device reads */
	__u32 all;
	__u32 list;
	__u32 entries;
	__u64 read_bytes;
	__u64 write_bytes;
	__u64 error;
};

static long add_entry(__u32 i, void *data)
{
	struct adding *adding = data;
	struct scatterlist *entry = (void *)adding->entry;
	__u64 link = BPF_CORE_READ(entry, page_link);

	if (!entry)
		return 1;
	if (link & SG_CHAIN) {
		adding->entry = link & ~(__u64)(SG_CHAIN | SG_END);
		return 0;
	}
	adding->entries++;
	if (adding->list < adding->reads)
		adding->read_bytes += BPF_CORE_READ(entry, length);
	else
		adding->write_bytes += BPF_CORE_READ(entry, length);
	if (!(link & SG_END)) {
		adding->entry += bpf_core_type_size(struct scatterlist);
		return 0;
	}
	if (++adding->list >= adding->all)
		return 1;
	bpf_probe_read_kernel(&adding->entry, 8, (void *)(adding->lists + 8 * adding->list));
	return 0;
}

static __noinline int added(struct adding *adding)
{
	struct vring_virtqueue *vq = adding->vq;
	__u64 now = now_in_window();
	__u32 descriptors;
	struct queue *q;

	if (!now)
		return 0;
	q = driver_queue(vq);
	if (!q)
		return 0;
	if (adding->error) {
		q->refused++;
		return 0;
	}
	bpf_loop(MOST_ENTRIES, add_entry, adding, 0);
	q->inner = 0;
	q->posted++;
	q->read_bytes += adding->read_bytes;
	q->write_bytes += adding->write_bytes;
	q->directions |= (adding->reads ? READS : 0) | (adding->all > adding->reads ? WRITES : 0);
	__sync_fetch_and_add(&q->since_kick, 1);
	/* virtqueue_use_indirect */
	descriptors = adding->entries > 1 && BPF_CORE_READ(vq, indirect) ? 1 : adding->entries;
	remember(q, adding->token, now, adding->read_bytes, descriptors);
	follow_driver_ring(q, vq, 1, 0, descriptors);
	histogram_add(&q->occupied, q->size - BPF_CORE_READ(vq, vq.num_free));
	return 0;
}

/* Defines a program for a function that adds a single list. */
#define ADDS(function, is_read)                                         \
	SEC("fexit/" #function)                                         \
	int function(void *ctx)                                         \
	{                                                               \
		struct adding adding = {                                \
			.vq = (void *)argument(ctx, 0),                 \
			.entry = argument(ctx, 1),                      \
			.token = argument(ctx, 3),                      \
			.reads = is_read,                               \
			.all = 1,                                       \
			.error = (__u32)returned(ctx),                  \
		};                                                      \
                                                                        \
		return added(&adding);                                  \
	}

ADDS(virtqueue_add_outbuf, 1)
ADDS(virtqueue_add_outbuf_premapped, 1)
ADDS(virtqueue_add_inbuf, 0)
ADDS(virtqueue_add_inbuf_ctx, 0)
ADDS(virtqueue_add_inbuf_premapped, 0)
ADDS(virtqueue_add_inbuf_cache_clean, 0)

SEC("fexit/virtqueue_add_sgs")
int virtqueue_add_sgs(void *ctx)
{
	__u32 reads = argument(ctx, 2), writes = argument(ctx, 3);
	struct adding adding = {
		.vq = (void *)argument(ctx, 0),
		.lists = argument(ctx, 1),
		.token = argument(ctx, 4),
		.reads = reads,
		.all = reads + writes,
		.error = (__u32)returned(ctx),
	};

	bpf_probe_read_kernel(&adding.entry, 8, (void *)adding.lists);
	return added(&adding);
}

/* struct virtio_net_hdr_mrg_rxbuf */
#define NUM_BUFFERS_AT 10

/* Counts a packet at its first buffer, whose header contains the packet's number of buffers. */
static __always_inline void count_packet(struct queue *q, __u64 buffer)
{
	__u16 buffers = 1;

	if (q->left_of_packet) {
		q->left_of_packet--;
		return;
	}
	q->packets++;
	if (q->mergeable)
		bpf_probe_read_kernel(&buffers, sizeof(buffers), (void *)(buffer + NUM_BUFFERS_AT));
	q->left_of_packet = buffers ? buffers - 1 : 0;
}

static __noinline int got(struct vring_virtqueue *vq, __u32 *length, __u64 token, _Bool inner)
{
	__u64 now = token ? now_in_window() : 0;
	__u32 descriptors, written = 0;
	struct queue *q;

	if (!now)
		return 0;
	q = driver_queue(vq);
	if (!q)
		return 0;
	/* The outer function may have called the inner one, which already counted this buffer: a token cannot be returned
	 * twice without being added in between. */
	if (!inner && q->inner == token) {
		q->inner = 0;
		return 0;
	}
	q->inner = inner ? token : 0;
	bpf_probe_read_kernel(&written, sizeof(written), length);
	q->used++;
	q->used_bytes += written;
	__sync_fetch_and_add(&q->since_interrupt, 1);
	/* "input.N": a receive queue */
	if (q->header && q->name[0] == 'i')
		count_packet(q, token);
	descriptors = recall(q, token, now);
	if (q->packed && !descriptors) {
		/* Posted before the window: its number of descriptors is unknown. */
		q->known = 0;
		descriptors = 1;
	}
	follow_driver_ring(q, vq, 0, 1, descriptors);
	return 0;
}

SEC("fexit/virtqueue_get_buf_ctx")
int virtqueue_get_buf_ctx(void *ctx)
{
	return got((void *)argument(ctx, 0), (void *)argument(ctx, 1), returned(ctx), 1);
}

SEC("fexit/virtqueue_get_buf")
int virtqueue_get_buf(void *ctx)
{
	return got((void *)argument(ctx, 0), (void *)argument(ctx, 1), returned(ctx), 0);
}

/* A driver that shuts down takes its unused buffers back, and moves the index accordingly. */
SEC("fexit/virtqueue_detach_unused_buf")
int virtqueue_detach_unused_buf(void *ctx)
{
	struct buffer buffer = { .queue = argument(ctx, 0), .token = returned(ctx) };
	struct queue *q = buffer.token ? queue_at(buffer.queue) : 0;

	if (!q)
		return 0;
	q->known = 0;
	bpf_map_delete_elem(&buffers, &buffer);
	return 0;
}

SEC("fexit/virtqueue_kick_prepare")
int virtqueue_kick_prepare(void *ctx)
{
	struct queue *q = now_in_window() ? driver_queue((void *)argument(ctx, 0)) : 0;

	if (!q)
		return 0;
	__sync_fetch_and_add(&q->kicks_asked, 1);
	if (!(returned(ctx) & 0xff))
		__sync_fetch_and_add(&q->kicks_suppressed, 1);
	return 0;
}

static __noinline int notified(struct vring_virtqueue *vq)
{
	struct queue *q = now_in_window() ? driver_queue(vq) : 0;

	if (!q)
		return 0;
	batch_ends(&q->since_kick, &q->per_kick, 1);
	__sync_fetch_and_add(&q->kicks, 1);
	return 0;
}

/* virtqueue_notify is inlined into its callers, so the programs attach to the functions that it calls by pointer. */
#define NOTIFIES(function)                                      \
	SEC("fentry/" #function)                                \
	int function(void *ctx)                                 \
	{                                                       \
		return notified((void *)argument(ctx, 0));      \
	}

NOTIFIES(vp_notify)
NOTIFIES(vp_notify_with_data)
NOTIFIES(vm_notify)
NOTIFIES(vm_notify_with_data)
NOTIFIES(virtio_vdpa_notify)

SEC("fexit/vring_interrupt")
int vring_interrupt(void *ctx)
{
	struct queue *q;

	if (!now_in_window())
		return 0;
	/* On an interrupt line shared by many queues, idle queues must not use up the table. */
	if ((__u32)returned(ctx) != IRQ_HANDLED) {
		q = queue_at(argument(ctx, 1));
		if (q)
			__sync_fetch_and_add(&q->interrupts_empty, 1);
		return 0;
	}
	q = driver_queue((void *)argument(ctx, 1));
	if (!q)
		return 0;
	q->interrupt = (__u32)argument(ctx, 0) + 1;
	/* Buffers used before the first interrupt are part of an unknown batch. */
	batch_ends(&q->since_interrupt, &q->per_interrupt, q->interrupts > 0);
	__sync_fetch_and_add(&q->interrupts, 1);
	return 0;
}

SEC("fentry/vring_del_virtqueue")
int vring_del_virtqueue(void *ctx)
{
	forget(argument(ctx, 0));
	return 0;
}

#endif
