/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The fast path for frames of Sampled Values as most senders make them: one ASDU, BER lengths of one or two bytes, svID of at most
 * 32 bytes with smpCnt next to it, all of it linear, and a stream that asks for nothing else. Any other frame, also a broken one,
 * takes the slow path (match_frame). No function is called here: on CPUs whose returns are guarded, a call costs more than the
 * reading.
 */
#ifndef LATPATH_FAST_PATH_H
#define LATPATH_FAST_PATH_H

extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym __weak;

/*
 * From Linux 6.2 on, programs may read kernel memory by plain loads that a fault turns into zeros. Before, the window has
 * been fetched. The kernel's verifier removes the branch that is not taken.
 */
static __always_inline int reads_directly(void)
{
	return bpf_ksym_exists(bpf_rdonly_cast);
}

/* Eight bytes of kernel memory. */
static __always_inline __u64 kernel_word(__u64 at)
{
	return *(volatile __u64 *)bpf_rdonly_cast((void *)at, bpf_core_type_id_kernel(struct new_utsname));
}

/* Eight bytes of the frame, in the machine's order. */
static __always_inline __u64 word_at(__u64 base, struct frame *f, __u32 off)
{
	__u64 word;

	if (!f)
		return kernel_word(base + off);
	if (off > WINDOW - 8)
		return 0;
	/* The compiler, left alone, would read it byte by byte. */
	asm volatile("%0 = *(u64 *)(%1 + 0)" : "=r"(word) : "r"(&f->buf[off]));
	return word;
}

static __always_inline __u16 be16(__u64 word)
{
	return __builtin_bswap16((__u16)word);
}

/* Cuts a word of a name that has `left` bytes from here on. */
static __always_inline __u64 head_of(__u64 word, __s32 left)
{
	if (left <= 0)
		return 0;
	return left >= 8 ? word : word & ((1ull << (left * 8)) - 1);
}

/* Takes a BER length of one or two bytes off the front of *w and moves *q behind it; 0x80 and above for other forms. */
static __always_inline __u32 take_len(__u64 *w, __u32 *q)
{
	__u32 len = *w & 0xff;

	*w >>= 8;
	*q += 1;
	if (len < 0x80)
		return len;
	if (len != 0x81)
		return 0x1000;
	len = *w & 0xff;
	*w >>= 8;
	*q += 1;
	return len;
}

/* Where a frame that the fast path has read keeps what. */
struct fields {
	__u32 smp_cnt;
	__u32 synch; /* 0 where it is not in its usual place */
	__u32 end; /* of the PDU */
};

/*
 * Where smpSynch stands: behind smpCnt and confRev, and refrTm if there is one. 0 where something else does; then nothing is known of
 * the sender's clock.
 */
static __always_inline __u32 find_synch(__u64 base, struct frame *f, __u32 smp_cnt, __u32 end)
{
	__u32 at = smp_cnt + 8;

	if ((word_at(base, f, smp_cnt) >> 16 & 0xffff) != 0x0483)
		return 0;
	if ((word_at(base, f, at) & 0xffff) == 0x0884)
		at += 10;
	return at + 3 <= end ? at : 0;
}

/* smpSynch at this place, plus one; 0 where it is not there. */
static __always_inline __u32 synch_at(__u64 base, struct frame *f, __u32 at)
{
	__u64 w = word_at(base, f, at);

	return (w & 0xffff) == 0x0185 && (w >> 16 & 0xff) < 0xff ? (w >> 16 & 0xff) + 1 : 0;
}

#define IN_NO_STREAM -1
#define SLOW_PATH -2

/*
 * Reads a frame, directly or, with f, in the window. Returns the stream that it belongs to and sets *key; or IN_NO_STREAM; or
 * SLOW_PATH. Words are little-endian, as on all machines that this is built for: the frame's first byte is the lowest.
 */
static __always_inline int fast_path(__u64 base, __u32 linear, struct frame *f, __u32 *key, struct fields *at)
{
	__u64 w = word_at(base, f, 12), id[4] = {};
	__u32 q = 22, n, len, end;
	struct name_short *s;

	if (unlikely((w & 0xffff) == 0x0081)) { /* 81 00: one tag */
		w = word_at(base, f, 16);
		q = 26;
	}
	if ((w & 0xffff) != 0xba88) /* 88 ba, APPID, length, reserved */
		return SLOW_PATH;
	end = q - 8 + be16(w >> 32);
	if (unlikely(end > linear))
		return SLOW_PATH;
	at->end = end;
	w = word_at(base, f, q); /* 60 length 80 01 01 a2 */
	if (unlikely((w & 0xff) != 0x60))
		return SLOW_PATH;
	w >>= 8;
	q += 1;
	len = take_len(&w, &q);
	if (unlikely(q + len > end || (__u32)w != 0xa2010180))
		return SLOW_PATH;
	end = q + len;
	q += 4;
	w = word_at(base, f, q); /* length 30 length 80 length */
	len = take_len(&w, &q);
	if (unlikely(q + len > end || (w & 0xff) != 0x30))
		return SLOW_PATH;
	end = q + len;
	w >>= 8;
	q += 1;
	len = take_len(&w, &q);
	n = w >> 8 & 0xff;
	if (unlikely(q + len != end || (w & 0xff) != 0x80))
		return SLOW_PATH;
	end = q + len;
	q += 2;
	if (unlikely(n == 0 || n > NAME_SHORT || q + n + 4 > end))
		return SLOW_PATH;
	if (unlikely(f && q + n + 8 > WINDOW))
		return SLOW_PATH;
	w = word_at(base, f, q + n); /* 82 02 smpCnt */
	if (unlikely((w & 0xffff) != 0x0282))
		return SLOW_PATH;
	*key = be16(w >> 16);
	at->smp_cnt = q + n + 2;
	at->synch = find_synch(base, f, at->smp_cnt, end);
	id[0] = head_of(word_at(base, f, q), n);
	if (n > 8)
		id[1] = head_of(word_at(base, f, q + 8), n - 8);
	if (n > 16) {
		id[2] = head_of(word_at(base, f, q + 16), n - 16);
		if (n > 24)
			id[3] = head_of(word_at(base, f, q + 24), n - 24);
	}
	s = lookup_words(PROTOCOL_SV, id, n);
	if (unlikely(!s))
		return IN_NO_STREAM;
	return s->simple ? (int)s->first - 1 : SLOW_PATH;
}

/* The layout of a stream's frames as a CPU has seen it: another frame with the same bytes before smpCnt needs no decoding. */
#define LAYOUT_WORDS 6
#define LAYOUTS 16 /* of one CPU, by the last byte of the destination */

struct layout {
	__u64 word[LAYOUT_WORDS]; /* of the frame, from its ethertype on */
	__u64 mask[LAYOUT_WORDS];
	__u32 stream;  /* plus one; 0 while there is none */
	__u32 busy;
	__u32 smp_cnt; /* where it stands */
	__u32 synch;   /* likewise, 0 if nowhere */
	__u32 end;     /* bytes that a frame must have */
};

static __always_inline __u32 layout_of(__u64 base)
{
	return kernel_word(base) >> 40 & (LAYOUTS - 1);
}

/* The stream of a frame of this layout, SLOW_PATH for any other. An interrupt may replace the layout at any time. */
static __always_inline int known_layout(struct layout *l, __u64 base, __u32 linear, __u32 *key, __u32 *synch)
{
	__u32 stream = *(volatile __u32 *)&l->stream, at;

	if (unlikely(!stream || linear < l->end))
		return SLOW_PATH;
#pragma unroll
	for (int i = 0; i < LAYOUT_WORDS; i++) {
		__u64 mask = *(volatile __u64 *)&l->mask[i];

		if (!mask)
			break;
		if (unlikely((kernel_word(base + 12 + 8 * i) & mask) != *(volatile __u64 *)&l->word[i]))
			return SLOW_PATH;
	}
	*key = be16(kernel_word(base + l->smp_cnt));
	at = *(volatile __u32 *)&l->synch;
	*synch = at ? synch_at(base, 0, at) : 0;
	return likely(*(volatile __u32 *)&l->stream == stream) ? (int)stream - 1 : SLOW_PATH;
}

static __always_inline void learn_layout(struct layout *l, __u64 base, struct fields *at, __u32 stream)
{
	__s32 left = at->smp_cnt - 12;

	if (left > 8 * LAYOUT_WORDS || __sync_val_compare_and_swap(&l->busy, 0, 1))
		return;
	*(volatile __u32 *)&l->stream = 0;
#pragma unroll
	for (int i = 0; i < LAYOUT_WORDS; i++) {
		__u64 mask = head_of(~0ull, left - 8 * i);

		*(volatile __u64 *)&l->mask[i] = mask;
		*(volatile __u64 *)&l->word[i] = kernel_word(base + 12 + 8 * i) & mask;
	}
	l->smp_cnt = at->smp_cnt;
	l->synch = at->synch;
	l->end = at->end;
	*(volatile __u32 *)&l->stream = stream + 1;
	*(volatile __u32 *)&l->busy = 0;
}

/* The same in the window: a function, since only there the verifier lets words stand at any address. */
__noinline int fast_path_in_window(struct frame *f)
{
	struct fields at = {};
	int stream = f ? fast_path(0, f->linear, f, &f->key, &at) : SLOW_PATH;

	if (f && at.synch)
		f->synch = synch_at(0, f, at.synch);
	return stream;
}

#endif
