// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The kernel programs of `latpath path`. At tracepoints that all packets pass (hooks), a packet is chosen by its bytes.
 * From there on, its skb is followed by address through every function that takes an skb, until it is freed. Copies are
 * recognised by the functions that make them, or, if nothing in the kernel relates them to the original (Open vSwitch's
 * daemon, guests), by their bytes. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <asm/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "protocols.h"
#include "event.h"
#include "read_packet.h"
#include "follow.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

int decide(struct bpf_raw_tracepoint_args *ctx);

/* The program that examines packets that are not followed. All hooks share it, because verifying it takes long. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} decider SEC(".maps") = {
	.values = { [0] = (void *)&decide },
};

/* Reports that a followed skb has reached a tracepoint. */
static __always_inline void known(struct followed *f, __u64 skb, __u32 tracepoint, __u32 hook, __u64 aux, __u32 reason)
{
	struct happening h = {
		.skb = skb, .at = tracepoint, .aux = aux, .reason = reason, .kind = EVENT_TRACEPOINT,
		.packet = f->packet,
	};

	if (hook & HOOK_LEAVES)
		f->dying = 1;
	report_event(&h);
	if (hook & HOOK_LEAVES && only_tracepoints)
		forget(skb);
}

/* Handles an skb at a tracepoint. */
static __always_inline int passes(void *ctx, __u64 skb, __u32 tracepoint, __u32 hook, __u64 aux, __u32 reason)
{
	struct followed *f;
	struct capture *c;

	if (!is_open())
		return 0;
	f = alive ? bpf_map_lookup_elem(&skbs, &skb) : 0;
	if (f && f->dying && !(hook & HOOK_LEAVES)) { /* the address belongs to another packet now */
		forget(skb);
		f = 0;
	}
	if (f && !(only_tracepoints && hook & HOOK_ENTERS)) {
		known(f, skb, tracepoint, hook, aux, reason);
		return 0;
	}
	if (!f && !may_be_chosen((void *)skb, hook))
		return 0;
	c = take_capture();
	if (!c) {
		COUNT(unreadable);
		return 0;
	}
	c->ctx = (__u64)ctx;
	c->skb = skb;
	c->aux = aux;
	c->reason = reason;
	c->tracepoint = tracepoint;
	c->hook = hook;
	bpf_tail_call(ctx, &decider, 0);
	leave_capture(c);
	return 0;
}

/* Examines a packet whose skb is not followed, or whose followed skb may have been reused: decides whether to follow
 * it. */
SEC("raw_tp")
int decide(struct bpf_raw_tracepoint_args *ctx)
{
	struct capture *c = my_capture(ctx);
	struct found_packet of = {};
	struct followed *f;
	struct packet *p;
	__u64 skb;

	if (!c)
		return 0;
	skb = c->skb;
	f = alive ? bpf_map_lookup_elem(&skbs, &skb) : 0;
	if (is_chosen(c, &of.hash)) {
		if (f) {
			of.packet = f->packet;
			p = bpf_map_lookup_elem(&packets, &of.packet);
			if (p && p->hash == of.hash) {
				known(f, skb, c->tracepoint, c->hook, c->aux, c->reason);
				goto out;
			}
		}
		if (identify(c, &of)) {
			struct happening h = {
				.skb = skb, .at = c->tracepoint, .aux = c->aux, .reason = c->reason,
				.kind = EVENT_TRACEPOINT, .packet = of.packet, .flags = of.flags,
			};

			if (!(c->hook & HOOK_LEAVES))
				follow(skb, of.packet);
			else if (f)
				forget(skb);
			report_event(&h);
			goto out;
		}
	}
	if (f) /* the address belongs to another packet now */
		forget(skb);
out:
	leave_capture(c);
	return 0;
}

#define RX (HOOK_CHOOSES | HOOK_ENTERS)
#define TX (HOOK_CHOOSES | HOOK_SENDS)
#define HOOK(name, number, arg, how)                          \
	SEC("raw_tp/" #name)                                  \
	int name(struct bpf_raw_tracepoint_args *ctx)         \
	{                                                     \
		return passes(ctx, ctx->args[arg], number, how, 0, 0); \
	}

HOOK(net_dev_queue, TP_NET_DEV_QUEUE, 0, TX | HOOK_ENTERS)
HOOK(net_dev_start_xmit, TP_NET_DEV_START_XMIT, 0, TX)
HOOK(napi_gro_frags_entry, TP_NAPI_GRO_FRAGS_ENTRY, 0, RX)
HOOK(napi_gro_receive_entry, TP_NAPI_GRO_RECEIVE_ENTRY, 0, RX)
HOOK(netif_receive_skb_entry, TP_NETIF_RECEIVE_SKB_ENTRY, 0, RX)
HOOK(netif_receive_skb_list_entry, TP_NETIF_RECEIVE_SKB_LIST_ENTRY, 0, RX)
HOOK(netif_rx_entry, TP_NETIF_RX_ENTRY, 0, RX)
HOOK(netif_receive_skb, TP_NETIF_RECEIVE_SKB, 0, RX)
HOOK(netif_rx, TP_NETIF_RX, 0, 0) /* netif_rx_entry precedes it */
HOOK(qdisc_enqueue, TP_QDISC_ENQUEUE, 2, HOOK_SENDS)
HOOK(ovs_do_execute_action, TP_OVS_DO_EXECUTE_ACTION, 1, HOOK_CHOOSES)
HOOK(skb_copy_datagram_iovec, TP_SKB_COPY_DATAGRAM_IOVEC, 0, 0)
HOOK(consume_skb, TP_CONSUME_SKB, 0, HOOK_LEAVES)

/* The driver may already have freed the skb, so only recorded state is used. */
SEC("raw_tp/net_dev_xmit")
int net_dev_xmit(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 skb = ctx->args[0];
	struct followed *f = alive ? bpf_map_lookup_elem(&skbs, &skb) : 0;

	if (!f || f->dying)
		return 0;
	return passes(ctx, skb, TP_NET_DEV_XMIT, HOOK_SENDS, ctx->args[1], 0);
}

SEC("raw_tp/qdisc_dequeue")
int qdisc_dequeue(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 skb = ctx->args[3];

	/* The skb is NULL if the queue is empty. */
	return skb ? passes(ctx, skb, TP_QDISC_DEQUEUE, HOOK_SENDS, 0, 0) : 0;
}

SEC("raw_tp/ovs_dp_upcall")
int ovs_dp_upcall(struct bpf_raw_tracepoint_args *ctx)
{
	struct dp_upcall_info *info = (void *)ctx->args[3];

	return passes(ctx, ctx->args[1], TP_OVS_DP_UPCALL, HOOK_CHOOSES, BPF_CORE_READ(info, cmd), 0);
}

SEC("raw_tp/kfree_skb")
int kfree_skb(struct bpf_raw_tracepoint_args *ctx)
{
	return passes(ctx, ctx->args[0], TP_KFREE_SKB, HOOK_LEAVES, ctx->args[1], ctx->args[2]);
}

/* Kernels before 5.17 report no reason. */
SEC("raw_tp/kfree_skb")
int kfree_skb_no_reason(struct bpf_raw_tracepoint_args *ctx)
{
	return passes(ctx, ctx->args[0], TP_KFREE_SKB, HOOK_LEAVES, ctx->args[1], 0);
}

/* Handles the entry of a function that takes an skb. */
static __always_inline int enters(struct pt_regs *ctx, __u64 skb)
{
	struct happening h = { .skb = skb, .kind = EVENT_FUNCTION };
	struct followed *f;
	__u32 *special, is = 0;
	__u64 at;

	if (!alive)
		return 0;
	f = bpf_map_lookup_elem(&skbs, &skb);
	if (!f)
		return 0;
	at = bpf_get_func_ip(ctx);
	special = bpf_map_lookup_elem(&functions, &at);
	if (special)
		is = *special;
	if (f->dying && !(is & FUNCTION_FREES)) { /* the address belongs to another packet now */
		forget(skb);
		return 0;
	}
	h.at = at;
	h.packet = f->packet;
	if (is & FUNCTION_BEGINS)
		f->dying = 1;
	report_event(&h);
	if (is & FUNCTION_LAST)
		forget(skb);
	return 0;
}

#define TAKES(name, arg)                                      \
	SEC("kprobe")                                         \
	int name(struct pt_regs *ctx)                         \
	{                                                     \
		return enters(ctx, PT_REGS_PARM##arg(ctx));   \
	}

TAKES(first, 1)
TAKES(second, 2)
TAKES(third, 3)
TAKES(fourth, 4)
TAKES(fifth, 5)

/* Records that a function made one skb from another. `maker`: the function's index in `MAKERS` of src/attach.rs. */
static __always_inline int copied(__u64 from, __u64 to, __u32 maker)
{
	struct happening h = { .skb = from, .aux = to, .at = maker, .kind = EVENT_COPY };
	struct followed *f;

	if (!alive || !to || from == to)
		return 0;
	f = bpf_map_lookup_elem(&skbs, &from);
	if (!f)
		return 0;
	h.packet = f->packet;
	follow(to, h.packet);
	return report_event(&h);
}

#define MAKER2(name, number)                                                       \
	SEC("fexit/" #name)                                                        \
	int BPF_PROG(after_##name, struct sk_buff *skb, long b, struct sk_buff *ret) \
	{                                                                          \
		return copied((__u64)skb, (__u64)ret, number);                     \
	}
#define MAKER4(name, number)                                                       \
	SEC("fexit/" #name)                                                        \
	int BPF_PROG(after_##name, struct sk_buff *skb, long b, long c, long d, struct sk_buff *ret) \
	{                                                                          \
		return copied((__u64)skb, (__u64)ret, number);                     \
	}

MAKER2(skb_clone, 0)
MAKER2(skb_copy, 1)
MAKER2(skb_realloc_headroom, 2)
MAKER2(skb_expand_head, 3)
MAKER4(__pskb_copy_fclone, 4)
MAKER4(skb_copy_expand, 5)

SEC("fexit/skb_morph")
int BPF_PROG(after_skb_morph, struct sk_buff *to, struct sk_buff *from)
{
	return copied((__u64)from, (__u64)to, 6);
}

/* The packet is copied into a netlink message, which carries Open vSwitch's upcall to its daemon. */
SEC("fentry/skb_zerocopy")
int BPF_PROG(into_skb_zerocopy, struct sk_buff *to, struct sk_buff *from)
{
	return copied((__u64)from, (__u64)to, 7);
}

/* Runs only the interpreter, for tests. */
SEC("syscall")
int try_filter(struct trial *t)
{
	struct capture *c;
	__u32 zero = 0, n = t->len;

	c = bpf_map_lookup_elem(&captures, &zero);
	if (!c || n > CAPTURE)
		return 1;
	if (n && bpf_probe_read_kernel(c->frame, n, t->frame))
		return 1;
	c->have = c->len = n;
	t->verdict = run_filter(c);
	return 0;
}
