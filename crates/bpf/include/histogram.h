/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* A histogram that programs fill and user space reads (Histogram::of_coarse). It needs no kernel types, so that user
 * space can test it too. */
#ifndef LATPATH_HISTOGRAM_H
#define LATPATH_HISTOGRAM_H

#include "bound.h"

#define STEP_BITS 4   /* 16 buckets per power of two */
#define BUCKETS 512   /* up to 2^35 (34 s in ns), the last one without an upper limit; a power of two */
#define SMALL_BITS 32 /* squares of values below 2^32 are exact; those of larger values have units of 2^32 */

/* A sum of up to 2^64 64-bit values, without overflow. */
struct wide_sum {
	__u64 low;
	__u64 high;
};

/* No counter overflows in any window: 2^64 values at 1,000,000/s take 584,000 years. */
struct coarse_histogram {
	__u64 count;
	__u64 min;
	__u64 max;
	struct wide_sum sum;
	struct wide_sum squares;
	struct wide_sum squares_of_large;
	__u64 buckets[BUCKETS];
};

static __always_inline void add_wide(struct wide_sum *sum, __u64 v)
{
	__u64 low = sum->low + v;

	if (low < v)
		sum->high++;
	sum->low = low;
}

static __always_inline __u32 bucket_of(__u64 v)
{
	__u32 shift = 0, at;
	__u64 rest = v;

	if (v < 1 << (STEP_BITS + 1))
		return v;
#define HALVE(bits)                                     \
	if (rest >> (bits) >= 1 << (STEP_BITS)) {       \
		rest >>= (bits);                        \
		shift += (bits);                        \
	}
	HALVE(32)
	HALVE(16)
	HALVE(8)
	HALVE(4)
	HALVE(2)
	HALVE(1)
#undef HALVE
	at = (shift << STEP_BITS) + (__u32)rest;
	return at < BUCKETS ? at : BUCKETS - 1;
}

static __always_inline void histogram_add(struct coarse_histogram *h, __u64 v)
{
	__u64 coarse = v >> (SMALL_BITS / 2);
	__u32 at = bucket_of(v);

	if (coarse >> SMALL_BITS)
		coarse = (1ull << SMALL_BITS) - 1; /* capped at 2^48 (3 days in ns) */
	if (!h->count || v < h->min)
		h->min = v;
	if (v > h->max)
		h->max = v;
	h->count++;
	add_wide(&h->sum, v);
	if (v >> SMALL_BITS)
		add_wide(&h->squares_of_large, coarse * coarse);
	else
		add_wide(&h->squares, v * v);
	BOUND(at, BUCKETS);
	h->buckets[at]++;
}

#endif
