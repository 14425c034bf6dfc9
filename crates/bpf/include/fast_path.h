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

/* Eight bytes of the frame, in the machine's order. */
static __always_inline __u64 word_at(__u64 base, struct frame *f, __u32 off)
{
	__u64 word;

	if (!f) {
		void *bytes = bpf_rdonly_cast((void *)(base + off), bpf_core_type_id_kernel(struct new_utsname));

		return *(volatile __u64 *)bytes;
	}
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

#define IN_NO_STREAM -1
#define SLOW_PATH -2

/*
 * Reads a frame, directly or, with f, in the window. Returns the stream that it belongs to and sets *key; or IN_NO_STREAM; or
 * SLOW_PATH. Words are little-endian, as on all machines that this is built for: the frame's first byte is the lowest.
 */
static __always_inline int fast_path(__u64 base, __u32 linear, struct frame *f, __u32 *key)
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
	if (unlikely(q + len > end || (w & 0xff) != 0x80))
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

/* The same in the window: a function, since only there the verifier lets words stand at any address. */
__noinline int fast_path_in_window(struct frame *f)
{
	return f ? fast_path(0, f->linear, f, &f->key) : SLOW_PATH;
}

#endif
