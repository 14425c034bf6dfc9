/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The fast path for Sampled Values frames as most senders build them: one ASDU, BER lengths of one or two bytes, svID
 * of at most 32 bytes followed by smpCnt, all in the linear part, and a stream without filters. Any other frame,
 * including a malformed one, takes the slow path (match_frame). A frame whose layout the CPU has seen before takes
 * neither path (known_layout). */
#ifndef LATPATH_FAST_PATH_H
#define LATPATH_FAST_PATH_H

#include "direct.h"

/* Reads eight bytes of kernel memory. */
static __always_inline __u64 kernel_word(__u64 at)
{
	return *(volatile __u64 *)bpf_rdonly_cast((void *)at, bpf_core_type_id_kernel(struct new_utsname));
}

/* Reads eight bytes of the frame, in native byte order. */
static __always_inline __u64 word_at(__u64 base, struct frame *f, __u32 off)
{
	__u64 word;

	if (!f)
		return kernel_word(base + off);
	if (off > WINDOW - 8)
		return 0;
	/* In assembler, because the compiler would read byte by byte. */
	asm volatile("%0 = *(u64 *)(%1 + 0)" : "=r"(word) : "r"(&f->buf[off]));
	return word;
}

static __always_inline __u16 be16(__u64 word)
{
	return __builtin_bswap16((__u16)word);
}

/* Clears the bytes of a word that follow the end of a name; `left` bytes of the name remain. */
static __always_inline __u64 head_of(__u64 word, __s32 left)
{
	if (left <= 0)
		return 0;
	return left >= 8 ? word : word & ((1ull << (left * 8)) - 1);
}

/* Reads a BER length of one or two bytes from the start of *w and advances *q; returns 0x80 or more for other forms. */
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

/* Fields of a frame on the fast path, with their offsets. */
struct fields {
	__u64 base; /* the frame's address; a field, because some verifiers take it for a pointer and refuse it as an argument */
	__u32 key;
	__u32 synch; /* smpSynch + 1; 0 if not read */
	__u32 smp_cnt_at;
	__u32 synch_at; /* 0 if not at its usual offset */
	__u32 end; /* of the PDU */
};

/* Offset of smpSynch, which follows smpCnt, confRev and an optional refrTm; 0 if confRev does not follow smpCnt, or if
 * smpSynch would exceed `end`. */
static __always_inline __u32 find_synch(__u64 base, struct frame *f, __u32 smp_cnt_at, __u32 end)
{
	__u32 at = smp_cnt_at + 8;

	if ((word_at(base, f, smp_cnt_at) >> 16 & 0xffff) != 0x0483)
		return 0;
	if ((word_at(base, f, at) & 0xffff) == 0x0884)
		at += 10;
	return at + 3 <= end ? at : 0;
}

/* smpSynch + 1 from a word that begins with its tag; 0 if the tag is missing. */
static __always_inline __u32 synch_of(__u64 w)
{
	return (w & 0xffff) == 0x0185 && (w >> 16 & 0xff) < 0xff ? (w >> 16 & 0xff) + 1 : 0;
}

#define IN_NO_STREAM -1
#define SLOW_PATH -2

/* Decodes a frame by direct loads or, if f is set, from its window. Returns the frame's stream and sets *at; or
 * IN_NO_STREAM; or SLOW_PATH. Words are little-endian, as on all supported machines: the frame's first byte is the
 * lowest. */
static __always_inline int fast_path(__u64 base, __u32 linear, struct frame *f, struct fields *at)
{
	__u64 w = word_at(base, f, 12);
	struct name_words id = {};
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
	at->key = be16(w >> 16);
	at->smp_cnt_at = q + n + 2;
	at->synch_at = find_synch(base, f, at->smp_cnt_at, end);
	at->synch = at->synch_at ? synch_of(word_at(base, f, at->synch_at)) : 0;
	id.word[0] = head_of(word_at(base, f, q), n);
	if (n > 8)
		id.word[1] = head_of(word_at(base, f, q + 8), n - 8);
	if (n > 16) {
		id.word[2] = head_of(word_at(base, f, q + 16), n - 16);
		if (n > 24)
			id.word[3] = head_of(word_at(base, f, q + 24), n - 24);
	}
	s = lookup_words(PROTOCOL_SV, &id, n);
	if (unlikely(!s))
		return IN_NO_STREAM;
	return s->simple ? (int)s->first - 1 : SLOW_PATH;
}

/* A frame layout that a CPU has seen: another frame with the same bytes from the ethertype up to smpCnt needs no
 * decoding. Fits one cache line. */
#define LAYOUT_WORDS 7
#define LAYOUTS 16 /* per CPU, selected by the last byte of the destination address */

struct layout {
	__u64 word[LAYOUT_WORDS]; /* of the frame, backwards from smpCnt (masked out) to the ethertype */
	__u64 places; /* 16 bits each: stream + 1, minimum length of a frame, offset of smpCnt, flags */
};

#define LAYOUT_SYNCH (1ull << 48) /* smpSynch is at its offset without refrTm */
#define LAYOUT_BUSY (1ull << 63)  /* the entry is being replaced */

static __always_inline __u32 layout_of(__u64 base)
{
	return kernel_word(base) >> 40 & (LAYOUTS - 1);
}

/* A pointer from which the words of a layout and smpSynch are at fixed offsets. Each conversion of an address to a
 * pointer is a helper call, and the verifier requires a sufficiently large type: a struct with an array of 65 bytes. */
static __always_inline const volatile void *before_smp_cnt(__u64 base, __u32 smp_cnt)
{
	return bpf_rdonly_cast((void *)(base + smp_cnt + 2 - 8 * LAYOUT_WORDS), bpf_core_type_id_kernel(struct new_utsname));
}

static __always_inline __u64 layout_word(const volatile void *words, int i)
{
	return *(const volatile __u64 *)(words + 8 * (LAYOUT_WORDS - 1 - i));
}

/* Whether word i contains any bytes of the layout, i.e. at or after the ethertype. */
static __always_inline int has_word(__u32 smp_cnt, int i)
{
	return smp_cnt + 2 > 12 + 8 * i;
}

#define KNOWN_STREAM(known) ((int)((known) >> 32))
#define KNOWN_SYNCH(known) ((__u32)(known) >> 16)
#define KNOWN_KEY(known) ((__u32)(known) & 0xffff)

/* Compares a frame with a layout. If they match, returns stream << 32 | smpSynch + 1 << 16 | smpCnt, otherwise
 * SLOW_PATH. An interrupt may replace the layout at any time. */
static __always_inline __s64 known_layout(struct layout *l, __u64 base, __u32 linear)
{
	__u64 places = *(volatile __u64 *)&l->places, w, known;
	__u32 smp_cnt = (__u16)(places >> 32);
	const volatile void *words;

	if (unlikely(!(__u16)places || linear < (__u16)(places >> 16)))
		return SLOW_PATH;
	words = before_smp_cnt(base, smp_cnt);
	w = layout_word(words, 0);
	if (unlikely(w << 16 != *(volatile __u64 *)&l->word[0]))
		return SLOW_PATH;
	known = be16(w >> 48) | (__u64)((__u16)places - 1) << 32;
#pragma unroll
	for (int i = 1; i < LAYOUT_WORDS; i++) {
		if (!has_word(smp_cnt, i))
			break;
		if (unlikely(layout_word(words, i) != *(volatile __u64 *)&l->word[i]))
			return SLOW_PATH;
	}
	if (places & LAYOUT_SYNCH) /* read from the byte before, so that the 65 bytes end with it */
		known |= synch_of(*(const volatile __u32 *)(words + 8 * LAYOUT_WORDS + 5) >> 8) << 16;
	return likely(*(volatile __u64 *)&l->places == places) ? (__s64)known : SLOW_PATH;
}

static __always_inline void learn_layout(struct layout *l, __u64 base, struct fields *at, __u32 stream)
{
	__u64 before = *(volatile __u64 *)&l->places, places;
	const volatile void *words;

	if (has_word(at->smp_cnt_at, LAYOUT_WORDS) || (at->synch_at && at->synch_at != at->smp_cnt_at + 8) || before & LAYOUT_BUSY ||
	    __sync_val_compare_and_swap(&l->places, before, LAYOUT_BUSY) != before)
		return;
	words = before_smp_cnt(base, at->smp_cnt_at);
	*(volatile __u64 *)&l->word[0] = layout_word(words, 0) << 16;
#pragma unroll
	for (int i = 1; i < LAYOUT_WORDS; i++) {
		if (!has_word(at->smp_cnt_at, i))
			break;
		*(volatile __u64 *)&l->word[i] = layout_word(words, i);
	}
	places = (stream + 1) | (__u64)at->end << 16 | (__u64)at->smp_cnt_at << 32;
	*(volatile __u64 *)&l->places = at->synch_at ? places | LAYOUT_SYNCH : places;
}

/* The fast path by direct loads. A separate function, so that the verifier checks it only once for all forms of a
 * frame. */
__noinline int fast_path_directly(struct fields *at, __u32 linear)
{
	return at && reads_directly() ? fast_path(at->base, linear, 0, at) : SLOW_PATH;
}

/* The fast path in the window, where the verifier permits reading words at any offset. */
__noinline int fast_path_in_window(struct frame *f, struct fields *at)
{
	return f && at ? fast_path(0, f->linear, f, at) : SLOW_PATH;
}

#endif
