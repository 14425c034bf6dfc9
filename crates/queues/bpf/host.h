/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* vhost's side: drivers/vhost. */
#ifndef LATPATH_QUEUES_HOST_H
#define LATPATH_QUEUES_HOST_H

#include "vhost.h"

#define VIRTIO_F_IN_ORDER 35
#define EPOLLIN 1

extern const void handle_tx_kick __ksym __weak;
extern const void handle_rx_kick __ksym __weak;

/* Use of an eventfd: the index of its queue, and whether it carries the guest's kicks (or else vhost's interrupts). */
struct meaning {
	__u32 place;
	__u32 is_kick;
};

MAP(eventfds, HASH, 1, __u64, struct meaning);

/* Number of signals of eventfds that are still unknown: a queue is found at its first buffer, after its first kick. */
MAP(unknown_signals, LRU_HASH, 4096, __u64, __u64);

/* Finds the tap behind a queue of vhost-net. */
static __always_inline void find_tap(struct queue *q, struct vhost_virtqueue *vq)
{
	struct vhost_net_virtqueue *net = (void *)vq;
	struct socket *socket = BPF_CORE_READ(vq, private_data);
	struct sock *sock = BPF_CORE_READ(socket, sk);
	struct proto *proto = BPF_CORE_READ(sock, __sk_common.skc_prot);
	struct net_device *device = 0;
	struct tun_file *tun = (void *)sock;
	struct tap_queue *tap = (void *)sock;
	char driver[4] = {};

	/* Either vhost or the socket adds the header; the other's header length is 0. */
	q->header = BPF_CORE_READ(net, vhost_hlen) + BPF_CORE_READ(net, sock_hlen);
	/* The structs of both drivers begin with their sock. */
	bpf_probe_read_kernel(driver, sizeof(driver), &proto->name);
	if (driver[0] != 't' || driver[3])
		return;
	if (driver[1] == 'u' && driver[2] == 'n' && bpf_core_field_exists(tun->queue_index)) {
		device = BPF_CORE_READ(tun, tun, dev);
		q->index = BPF_CORE_READ(tun, queue_index);
	} else if (driver[1] == 'a' && driver[2] == 'p' && bpf_core_field_exists(tap->queue_index)) {
		device = BPF_CORE_READ(tap, tap, dev);
		q->index = BPF_CORE_READ(tap, queue_index);
	}
	if (!device)
		return;
	bpf_probe_read_kernel_str(q->name, sizeof(q->name), &device->name);
	q->device = BPF_CORE_READ(device, ifindex);
	q->netns = BPF_CORE_READ(device, nd_net.net, ns.inum);
}

static __noinline int new_vhost_queue(struct vhost_virtqueue *vq)
{
	__u32 place = new_place();
	struct queue *q;

	q = in_place(place);
	if (!q)
		return 0;
	q->side = VHOST;
	q->handler = (__u64)BPF_CORE_READ(vq, handle_kick);
	q->size = BPF_CORE_READ(vq, num);
	if (bpf_core_field_exists(struct mm_struct, owner))
		q->pid = BPF_CORE_READ(vq, dev, mm, owner, tgid);
	if (q->handler && (q->handler == (__u64)&handle_tx_kick || q->handler == (__u64)&handle_rx_kick))
		find_tap(q, vq);
	publish(q, (__u64)vq, place);
	return 0;
}

static __always_inline void learn_eventfd(struct queue *q, __u64 *known, __u64 eventfd, __u32 is_kick)
{
	__u32 *place;
	struct meaning meaning = { .is_kick = is_kick };
	__u64 address = q->address, *earlier;

	if (*known == eventfd)
		return;
	if (*known)
		bpf_map_delete_elem(&eventfds, known);
	*known = eventfd;
	place = bpf_map_lookup_elem(&places, &address);
	if (!eventfd || !place)
		return;
	meaning.place = *place;
	bpf_map_update_elem(&eventfds, &eventfd, &meaning, BPF_ANY);
	earlier = bpf_map_lookup_elem(&unknown_signals, &eventfd);
	if (!earlier)
		return;
	__sync_fetch_and_add(is_kick ? &q->kicks : &q->interrupts, *earlier);
	bpf_map_delete_elem(&unknown_signals, &eventfd);
}

/* Called for each buffer, because QEMU may replace the eventfds, for instance when a guest masks an interrupt. */
static __always_inline void learn_eventfds(struct queue *q, struct vhost_virtqueue *vq)
{
	learn_eventfd(q, &q->kick, (__u64)BPF_CORE_READ(vq, kick, private_data), 1);
	learn_eventfd(q, &q->call, (__u64)BPF_CORE_READ(vq, call_ctx.ctx), 0);
}

static __always_inline struct queue *vhost_queue(struct vhost_virtqueue *vq)
{
	struct queue *q = queue_at((__u64)vq);

	if (q)
		return q;
	new_vhost_queue(vq);
	return queue_at((__u64)vq);
}

static __always_inline void follow_vhost_ring(struct queue *q, struct vhost_virtqueue *vq, __u32 taken, __u32 used)
{
	follow_ring(q, BPF_CORE_READ(vq, last_avail_idx), BPF_CORE_READ(vq, last_used_idx), 1 << 16, taken, used);
}

struct vectors {
	__u64 at;
	__u32 reads;
	__u32 all;
	__u64 read_bytes;
	__u64 write_bytes;
};

static long add_vector(__u32 i, void *data)
{
	struct vectors *vectors = data;
	struct iovec *vector = (struct iovec *)vectors->at + i;
	__u64 length;

	if (i >= vectors->all)
		return 1;
	length = BPF_CORE_READ(vector, iov_len);
	if (i < vectors->reads)
		vectors->read_bytes += length;
	else
		vectors->write_bytes += length;
	return 0;
}

/* Number of buffers that are posted and not yet taken. Reads the guest's ring, because vhost's own copy of the index is
 * older. */
static __always_inline __u32 waiting(struct vhost_virtqueue *vq)
{
	__u16 *avail = BPF_CORE_READ(vq, avail), index = 0;

	if (bpf_probe_read_user(&index, sizeof(index), avail + 1))
		return 0;
	return (__u16)(index - BPF_CORE_READ(vq, last_avail_idx));
}

/* A call that takes a buffer: the function's arguments and result. */
struct taking {
	struct vhost_virtqueue *vq;
	__u64 vectors;
	__u64 reads; /* addresses of the counts */
	__u64 writes;
	int head;
	_Bool inner;
};

static __noinline int taken(struct taking *taking)
{
	struct vhost_virtqueue *vq = taking->vq;
	struct vectors vectors = { .at = taking->vectors };
	__u64 now = now_in_window(), mark;
	__u32 writes = 0;
	struct queue *q;

	/* If the head is the ring's size, no buffer is available. */
	if (!now || taking->head < 0 || taking->head >= BPF_CORE_READ(vq, num))
		return 0;
	q = vhost_queue(vq);
	if (!q)
		return 0;
	/* From Linux 6.18 on, the outer function calls the inner one. Each buffer moves the index, so an equal index means
	 * that the inner one has counted this buffer. */
	mark = 1 + BPF_CORE_READ(vq, last_avail_idx);
	if (!taking->inner && q->inner == mark) {
		q->inner = 0;
		return 0;
	}
	q->inner = taking->inner ? mark : 0;
	bpf_probe_read_kernel(&vectors.reads, 4, (void *)taking->reads);
	bpf_probe_read_kernel(&writes, 4, (void *)taking->writes);
	vectors.all = vectors.reads + writes;
	bpf_loop(MOST_ENTRIES, add_vector, &vectors, 0);
	q->posted++;
	q->read_bytes += vectors.read_bytes;
	q->write_bytes += vectors.write_bytes;
	q->directions |= (vectors.reads ? READS : 0) | (writes ? WRITES : 0);
	q->since_kick++;
	remember(q, taking->head, now, vectors.read_bytes, 1);
	histogram_add(&q->occupied, 1 + waiting(vq));
	follow_vhost_ring(q, vq, 1, 0);
	learn_eventfds(q, vq);
	return 0;
}

#define TAKES(function, is_inner)                                       \
	SEC("fexit/" #function)                                         \
	int function(void *ctx)                                         \
	{                                                               \
		struct taking taking = {                                \
			.vq = (void *)argument(ctx, 0),                 \
			.vectors = argument(ctx, 1),                    \
			.reads = argument(ctx, 3),                      \
			.writes = argument(ctx, 4),                     \
			.head = returned(ctx),                          \
			.inner = is_inner,                              \
		};                                                      \
                                                                        \
		return taken(&taking);                                  \
	}

TAKES(vhost_get_vq_desc_n, 1)
TAKES(vhost_get_vq_desc, 0)

/* Calls in progress, by thread: before Linux 6.6, fexit cannot attach to a function with seven arguments. */
MAP(takings, HASH, 4096, __u64, struct taking);

SEC("kprobe/vhost_get_vq_desc")
int taken_begins(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct taking taking = {
		.vq = (void *)PT_REGS_PARM1(ctx),
		.vectors = PT_REGS_PARM2(ctx),
		.reads = PT_REGS_PARM4(ctx),
		.writes = PT_REGS_PARM5(ctx),
	};

	bpf_map_update_elem(&takings, &thread, &taking, BPF_ANY);
	return 0;
}

SEC("kretprobe/vhost_get_vq_desc")
int taken_ends(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct taking *under_way = bpf_map_lookup_elem(&takings, &thread), taking;

	if (!under_way)
		return 0;
	taking = *under_way;
	bpf_map_delete_elem(&takings, &thread);
	taking.head = PT_REGS_RC(ctx);
	return taken(&taking);
}

/* vhost puts back the buffers that it took last: the packet did not fit, or the tap had no space. */
SEC("fexit/vhost_discard_vq_desc")
int vhost_discard_vq_desc(void *ctx)
{
	struct vhost_virtqueue *vq = (void *)argument(ctx, 0);
	struct queue *q = now_in_window() ? queue_at((__u64)vq) : 0;
	__u32 n = argument(ctx, 1);

	if (!q)
		return 0;
	q->put_back += n;
	step_back(q, BPF_CORE_READ(vq, last_avail_idx), 1 << 16, n);
	return 0;
}

struct heads {
	__u64 at;
	__u64 batches; /* 0: each head is one buffer */
	__u32 heads;
	__u32 buffers;
	__u64 now;
	__u64 queue;
};

static long use_head(__u32 i, void *data)
{
	struct heads *heads = data;
	struct vring_used_elem *head = (struct vring_used_elem *)heads->at + i;
	struct queue *q;
	__u16 buffers = 1;

	if (i >= heads->heads)
		return 1;
	q = queue_at(heads->queue);
	if (!q)
		return 1;
	if (heads->batches)
		bpf_probe_read_kernel(&buffers, sizeof(buffers), (void *)(heads->batches + 2 * i));
	heads->buffers += buffers;
	q->used_bytes += BPF_CORE_READ(head, len);
	recall(q, BPF_CORE_READ(head, id), heads->now);
	return 0;
}

SEC("fexit/vhost_add_used_n")
int vhost_add_used_n(void *ctx)
{
	struct vhost_virtqueue *vq = (void *)argument(ctx, 0);
	struct heads heads = { .at = argument(ctx, 1), .queue = (__u64)vq, .now = now_in_window() };
	struct queue *q;

	if (!heads.now || (int)returned(ctx) < 0)
		return 0;
	q = vhost_queue(vq);
	if (!q)
		return 0;
	if (bpf_core_field_exists(struct vhost_virtqueue___batches, nheads)) {
		heads.heads = argument(ctx, 3);
		if (BPF_CORE_READ(vq, acked_features) >> VIRTIO_F_IN_ORDER & 1)
			heads.batches = argument(ctx, 2);
	} else {
		heads.heads = argument(ctx, 2);
	}
	bpf_loop(MOST_ENTRIES, use_head, &heads, 0);
	q->used += heads.buffers;
	__sync_fetch_and_add(&q->since_interrupt, heads.buffers);
	follow_vhost_ring(q, vq, 0, heads.buffers);
	learn_eventfds(q, vq);
	return 0;
}

/* vhost_signal may be inlined into its callers, so both are hooked. `inner`: whether vhost_signal itself returns. */
static __always_inline int signals(struct queue *q, _Bool inner)
{
	if (!q)
		return 0;
	if (!inner && q->signalled_inside) {
		q->signalled_inside = 0;
		return 0;
	}
	q->signalled_inside = inner;
	__sync_fetch_and_add(&q->interrupts_asked, 1);
	return 0;
}

SEC("fexit/vhost_signal")
int vhost_signal(void *ctx)
{
	return signals(now_in_window() ? queue_at(argument(ctx, 1)) : 0, 1);
}

SEC("fexit/vhost_add_used_and_signal_n")
int vhost_add_used_and_signal_n(void *ctx)
{
	return signals(now_in_window() ? queue_at(argument(ctx, 1)) : 0, 0);
}

SEC("fexit/vhost_add_used_and_signal")
int vhost_add_used_and_signal(void *ctx)
{
	return signals(now_in_window() ? queue_at(argument(ctx, 1)) : 0, 0);
}

/* Index of the queue that a thread signalled last. */
MAP(signalled_last, LRU_HASH, 4096, __u32, __u32);

static __noinline int signalled(__u64 eventfd)
{
	struct meaning *meaning = bpf_map_lookup_elem(&eventfds, &eventfd);
	__u32 thread = bpf_get_current_pid_tgid();
	__u64 once = 1, *earlier;
	struct queue *q;

	if (!now_in_window())
		return 0;
	bpf_map_delete_elem(&signalled_last, &thread);
	q = meaning ? in_place(meaning->place) : 0;
	if (!meaning) {
		earlier = bpf_map_lookup_elem(&unknown_signals, &eventfd);
		if (earlier)
			__sync_fetch_and_add(earlier, 1);
		else
			bpf_map_update_elem(&unknown_signals, &eventfd, &once, BPF_ANY);
	}
	if (!q)
		return 0;
	if (meaning->is_kick) {
		__sync_fetch_and_add(&q->kicks, 1);
		return 0;
	}
	batch_ends(&q->since_interrupt, &q->per_interrupt, 1);
	__sync_fetch_and_add(&q->interrupts, 1);
	bpf_map_update_elem(&signalled_last, &thread, &meaning->place, BPF_ANY);
	return 0;
}

SEC("fentry/eventfd_signal")
int eventfd_signal(void *ctx)
{
	return signalled(argument(ctx, 0));
}

/* Linux 6.8 and later. */
SEC("fentry/eventfd_signal_mask")
int eventfd_signal_mask(void *ctx)
{
	return signalled(argument(ctx, 0));
}

/* KVM turns the signal that this thread has just sent into an interrupt. This counts only if irqfd_wakeup's program has
 * not run (Linux 6.12.95 attaches it, but never runs it). If QEMU relays the signal, a QEMU thread raises the
 * interrupt, which is not counted. */
SEC("tp_btf/kvm_msi_set_irq")
int kvm_msi_set_irq(void *ctx)
{
	__u32 thread = bpf_get_current_pid_tgid(), *place = bpf_map_lookup_elem(&signalled_last, &thread);
	struct queue *q = place && now_in_window() ? in_place(*place) : 0;

	if (!q)
		return 0;
	__sync_fetch_and_add(&q->by_irqfd, 1);
	bpf_map_delete_elem(&signalled_last, &thread);
	return 0;
}

/* virt/kvm/eventfd.c: runs before kvm_msi_set_irq, and has access to the eventfd and the GSI. */
SEC("fentry/irqfd_wakeup")
int irqfd_wakeup(void *ctx)
{
	struct kvm_kernel_irqfd *irqfd = (void *)argument(ctx, 0) - bpf_core_field_offset(struct kvm_kernel_irqfd, wait);
	__u64 eventfd = (__u64)BPF_CORE_READ(irqfd, eventfd);
	struct meaning *meaning = bpf_map_lookup_elem(&eventfds, &eventfd);
	__u32 thread = bpf_get_current_pid_tgid();
	struct queue *q;

	bpf_map_delete_elem(&signalled_last, &thread);
	if (!meaning || meaning->is_kick || !(argument(ctx, 3) & EPOLLIN) || !now_in_window())
		return 0;
	q = in_place(meaning->place);
	if (!q)
		return 0;
	__sync_fetch_and_add(&q->by_irqfd, 1);
	q->interrupt = BPF_CORE_READ(irqfd, gsi) + 1;
	return 0;
}

static __noinline int round_ends(struct vhost_virtqueue *vq)
{
	struct queue *q = now_in_window() ? queue_at((__u64)vq) : 0;

	if (!q)
		return 0;
	q->rounds++;
	batch_ends(&q->since_kick, &q->per_kick, 1);
	return 0;
}

#define ROUND(program, function, queue)                                 \
	SEC("fexit/" #function)                                         \
	int program(void *ctx)                                          \
	{                                                               \
		void *work = (void *)argument(ctx, 0);                  \
                                                                        \
		return round_ends(queue);                               \
	}

ROUND(round_tx_kick, handle_tx_kick, queue_of_kick(work))
ROUND(round_rx_kick, handle_rx_kick, queue_of_kick(work))
ROUND(round_tx_socket, handle_tx_net, QUEUE_OF_SOCKET(work, 1))
ROUND(round_rx_socket, handle_rx_net, QUEUE_OF_SOCKET(work, 0))
ROUND(round_vsock_tx, vhost_vsock_handle_tx_kick, queue_of_kick(work))
ROUND(round_vsock_rx, vhost_vsock_handle_rx_kick, queue_of_kick(work))

static long forget_queue(__u32 i, void *data)
{
	struct vhost_dev *device = *(struct vhost_dev **)data;
	struct vhost_virtqueue **queues;
	struct queue *q;
	__u64 vq = 0;

	if (i >= BPF_CORE_READ(device, nvqs))
		return 1;
	queues = BPF_CORE_READ(device, vqs);
	bpf_probe_read_kernel(&vq, sizeof(vq), queues + i);
	q = queue_at(vq);
	if (q) {
		learn_eventfd(q, &q->kick, 0, 1);
		learn_eventfd(q, &q->call, 0, 0);
		forget(vq);
	}
	return 0;
}

SEC("fentry/vhost_dev_cleanup")
int vhost_dev_cleanup(void *ctx)
{
	__u64 device = argument(ctx, 0);

	bpf_loop(MOST_ENTRIES, forget_queue, &device, 0);
	return 0;
}

#endif
