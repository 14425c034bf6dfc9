// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Compiles the kernel programs' headers in user space: this file replaces the parts of the kernel that they use, and
 * checks every read. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdlib.h>
#include <string.h>

#define SEC(name)
#define __noinline __attribute__((noinline))
#define __weak
#define __ksym
#define __uint(name, value) int(*name)[value]
#define __type(name, value) __typeof__(value) *name
#define likely(x) (x)
#define unlikely(x) (x)
#define BOUND(x, size) ((x) &= (size) - 1)
#define bpf_htons __builtin_bswap16
/* User space sets these values, which are constant in the kernel. */
#define const
/* The only inline assembly in the included headers reads a word from the window. */
#define asm
#define volatile(...) memcpy(&word, &f->buf[off], sizeof(word))
/* Kernel types, and the code that reads them, are not needed. */
#define LATPATH_KERNEL_H
#define LATPATH_COMMON_H
#define bpf_ksym_exists(name) 1
#define bpf_core_type_id_kernel(type) 0
#define bpf_rdonly_cast(at, id) readable(at)

/* Number of bytes after a frame that a program may read: kernel memory or zeros. */
#define BEHIND 4096

static __u64 frame_at, frame_len;

static long bpf_probe_read_kernel(void *to, __u32 len, void *from)
{
	__u64 at = (__u64)from;

	if (at < frame_at || at + len > frame_at + frame_len)
		abort();
	memcpy(to, from, len);
	return 0;
}

static void *readable(void *at)
{
	if ((__u64)at < frame_at || (__u64)at + 8 > frame_at + frame_len + BEHIND)
		abort();
	return at;
}

static void *bpf_map_lookup_elem(void *map, void *key);

#include "protocols.h"
#include "fast_path.h"

#define LONG_NAMES 16

static struct scratch scratch;
static struct stream_conf confs[MAX_STREAMS];
static struct {
	struct name_long name;
	__u32 first;
} longs[LONG_NAMES];

static void *bpf_map_lookup_elem(void *map, void *key)
{
	__u32 at = *(__u32 *)key;

	if (map == &scratches)
		return at ? 0 : &scratch;
	if (map == &streams)
		return at < MAX_STREAMS ? &confs[at] : 0;
	for (int i = 0; map == &names_long && i < LONG_NAMES; i++)
		if (longs[i].name.len && !memcmp(&longs[i].name, key, sizeof(longs[i].name)))
			return &longs[i].first;
	return 0;
}

/* Copies the tables that user space prepares for the kernel. */
void kernel_parser_select(void *s)
{
	memcpy((void *)&selection, s, sizeof(selection));
}

void kernel_parser_stream(__u32 at, void *conf)
{
	memcpy(&confs[at % MAX_STREAMS], conf, sizeof(confs[0]));
}

void kernel_parser_short(__u32 place, void *name)
{
	memcpy(&names_short[place % NAME_PLACES], name, sizeof(names_short[0]));
}

void kernel_parser_long(__u32 place, void *name, __u32 first)
{
	memcpy(&longs[place % LONG_NAMES].name, name, sizeof(longs[0].name));
	longs[place % LONG_NAMES].first = first;
}

struct result {
	__u32 bad;
	__s32 fast[2]; /* in the window, and directly */
	__u32 fast_key[2];
	__u32 n;
	struct {
		__u32 stream;
		__u32 key;
	} at[MAX_FOUND];
	__u32 fragment;
};

/* Parses a frame of `len` bytes, the last `paged` of which are in a page fragment; BEHIND more bytes are readable.
 * `no_link`: the ethertype of a frame that has no Ethernet header; otherwise 0. */
void kernel_parser_run(__u8 *bytes, __u32 len, __u32 paged, __u32 no_link, struct result *out)
{
	struct frame *f = &scratch.frame;
	struct fields at = {};
	int off = -1;

	frame_at = (__u64)bytes;
	frame_len = len;
	memset(&scratch, 0, sizeof(scratch));
	memset(out, 0, sizeof(*out));
	f->base = frame_at;
	f->linear = len - paged;
	f->frag = paged ? f->base + f->linear : 0;
	f->frag_len = paged;
	f->len = len;
	f->no_link = no_link != 0;
	f->ethertype = no_link;
	out->fast[0] = out->fast[1] = SLOW_PATH;
	if (!fill(f)) {
		if (!no_link) {
			out->fast[0] = fast_path_in_window(f, &at);
			out->fast_key[0] = at.key;
		}
		off = ethernet(f);
	}
	if (f->linear >= 14 && !no_link) {
		at.base = f->base;
		out->fast[1] = fast_path_directly(&at, f->linear);
		out->fast_key[1] = at.key;
	}
	if (off >= 0)
		out->bad = !!match_frame(f, off, &scratch.found);
	out->n = scratch.found.n;
	memcpy(out->at, scratch.found.at, sizeof(out->at));
	out->fragment = f->fragment;
}
