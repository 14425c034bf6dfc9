// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Redirects frames from one device to another, below the network stack. One object is loaded for each direction between
 * an uplink and a guest's tap. No addresses are learned: with one guest, each frame has only one destination. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "map.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define VLAN_ID_BITS 0x0fff
#define VLAN_TAG_BYTES 4
#define OUTCOME_REDIRECTED 0
#define OUTCOME_PASSED 1
#define OUTCOME_FAILED 2
#define OUTCOMES 3

/* VLAN id of the frames to redirect; other frames pass to the host's stack. 0: all frames are redirected. */
const volatile __u16 only_vlan = 0;
/* Whether the tag of redirected frames is removed. */
const volatile __u8 remove_tag = 0;
/* VLAN id of the tag that is added to redirected frames; 0: none. */
const volatile __u16 add_vlan = 0;

struct vlan_frame {
	__u8 addresses[2 * ETH_ALEN];
	__be16 type;
	__be16 tag;
	__be16 inner_type;
} __attribute__((packed));

/* The device to which frames are redirected. */
MAP(other, DEVMAP, 1, __u32, __u32);
/* Number of frames per outcome (OUTCOME_*). */
MAP(frames, PERCPU_ARRAY, OUTCOMES, __u32, __u64);

static __always_inline int count(__u32 outcome, int action)
{
	__u64 *frames_of = bpf_map_lookup_elem(&frames, &outcome);

	if (frames_of)
		*frames_of += 1;
	return action;
}

/* The frame's VLAN id, or -1 without a tag. */
static __always_inline int vlan_of(struct xdp_md *ctx)
{
	struct vlan_frame *frame = (void *)(long)ctx->data;

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end || frame->type != bpf_htons(ETH_P_8021Q))
		return -1;
	return bpf_ntohs(frame->tag) & VLAN_ID_BITS;
}

/* tag_off and tag_on move the frame's head by the length of a tag, and the MAC addresses with it. They return non-zero
 * if the frame is too short or has no headroom. */
static __always_inline int tag_off(struct xdp_md *ctx)
{
	struct vlan_frame *frame = (void *)(long)ctx->data;
	__u8 addresses[2 * ETH_ALEN];

	if ((void *)(frame + 1) > (void *)(long)ctx->data_end)
		return -1;
	__builtin_memcpy(addresses, frame->addresses, sizeof(addresses));
	if (bpf_xdp_adjust_head(ctx, VLAN_TAG_BYTES))
		return -1;
	frame = (void *)(long)ctx->data;
	if ((void *)(frame->addresses + sizeof(addresses)) > (void *)(long)ctx->data_end)
		return -1;
	__builtin_memcpy(frame->addresses, addresses, sizeof(addresses));
	return 0;
}

static __always_inline int tag_on(struct xdp_md *ctx)
{
	struct vlan_frame *frame = (void *)(long)ctx->data;
	__u8 addresses[2 * ETH_ALEN];

	if ((void *)(frame->addresses + sizeof(addresses)) > (void *)(long)ctx->data_end)
		return -1;
	__builtin_memcpy(addresses, frame->addresses, sizeof(addresses));
	if (bpf_xdp_adjust_head(ctx, -VLAN_TAG_BYTES))
		return -1;
	frame = (void *)(long)ctx->data;
	if ((void *)(frame + 1) > (void *)(long)ctx->data_end)
		return -1;
	__builtin_memcpy(frame->addresses, addresses, sizeof(addresses));
	frame->type = bpf_htons(ETH_P_8021Q);
	frame->tag = bpf_htons(add_vlan);
	return 0;
}

SEC("xdp")
int redirect(struct xdp_md *ctx)
{
	if (only_vlan && vlan_of(ctx) != only_vlan)
		return count(OUTCOME_PASSED, XDP_PASS);
	if ((remove_tag && tag_off(ctx)) || (add_vlan && tag_on(ctx)))
		return count(OUTCOME_FAILED, XDP_DROP);
	/* The map is empty while the topology is being made; the frame is then dropped. */
	return count(OUTCOME_REDIRECTED, bpf_redirect_map(&other, 0, XDP_DROP));
}

/* For the other end of a veth: unless that end has an XDP program, the veth driver does not accept redirected frames
 * (veth_xdp_xmit). */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}
