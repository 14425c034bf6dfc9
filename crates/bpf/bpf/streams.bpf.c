// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Programs that use only the shared headers: tests run them on frames, and user space takes the shared types from here.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "protocols.h"
#include "fast_path.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define TRIAL_BYTES 16384

struct trial {
	__u32 len;
	__u32 paged; /* number of the frame's last bytes in a page fragment */
	__u32 no_link; /* ethertype of a frame without an Ethernet header; otherwise 0 */
	__u32 fragment; /* the frame is the first of several fragments */
	__s32 fast;     /* result of the fast path: in the window, and directly */
	__s32 fast_direct;
	__u32 fast_key;
	__u32 fast_direct_key;
	__s32 known; /* result by the layout of an earlier frame */
	__u32 known_key;
	__u32 bad;
	__u32 hash;
	__u32 synch[4]; /* as read by the three fast paths and the slow path */
	__u32 lan;      /* from the frame's end, and by the slow path */
	__u32 lan_slow;
	struct found found;
	__u32 pad;
	__u8 frame[TRIAL_BYTES];
};

/* The frame under test, in kernel memory like the frames of real packets. */
SHARED_ARRAY(trials, 1, struct trial);

struct layout layouts[LAYOUTS];

SEC("syscall")
int try_frame(void *ctx)
{
	__u32 zero = 0, len;
	int off = -1;
	struct scratch *s = take_scratch(0);
	struct trial *t = bpf_map_lookup_elem(&trials, &zero);
	struct fields at = {};
	struct frame *f;

	if (!s)
		return 1;
	if (!t) {
		release_scratch(s);
		return 1;
	}
	len = t->len;
	if (len > TRIAL_BYTES || t->paged > len) {
		release_scratch(s);
		return 1;
	}
	f = &s->frame;
	f->base = (__u64)t->frame;
	f->linear = len - t->paged;
	f->frag = t->paged ? f->base + f->linear : 0;
	f->frag_len = t->paged;
	f->len = len;
	f->have = f->appid = f->synch = f->fragment = f->vlan = f->lan = 0;
	f->ethertype = t->no_link;
	f->no_link = t->no_link != 0;
	__builtin_memset(&s->found, 0, sizeof(s->found));
	t->fast = t->fast_direct = t->known = SLOW_PATH;
	t->bad = t->hash = t->lan = t->lan_slow = 0;
	__builtin_memset(t->synch, 0, sizeof(t->synch));
	if (!fill(f)) {
		if (!f->no_link) {
			t->fast = fast_path_in_window(f, &at);
			t->fast_key = at.key;
			t->synch[0] = at.synch;
		}
		off = ethernet(f);
	}
	if (reads_directly() && f->linear >= 14 && !f->no_link) {
		struct layout *l = &layouts[layout_of(f->base)];
		__s64 known = known_layout(l, f->base, f->linear);

		/* Read from the frame itself, because the slow path has removed the trailer from f. */
		t->lan = lan_of_end(kernel_word(f->base + len - t->paged - 8), len - t->paged);

		if (known >= 0) {
			t->known = KNOWN_STREAM(known);
			t->known_key = KNOWN_KEY(known);
			t->synch[2] = KNOWN_SYNCH(known);
		}
		__builtin_memset(&at, 0, sizeof(at));
		at.base = f->base;
		t->fast_direct = fast_path_directly(&at, f->linear);
		t->fast_direct_key = at.key;
		t->synch[1] = at.synch;
		if (t->fast_direct >= 0)
			learn_layout(l, f->base, &at, t->fast_direct);
	}
	if (off >= 0)
		t->bad = !!match_frame(f, off, &s->found);
	t->synch[3] = f->synch;
	t->lan_slow = f->lan;
	t->fragment = f->fragment;
	hash_bytes(f, 0, 128, &t->hash);
	t->found = s->found;
	release_scratch(s);
	return 0;
}
