/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What becomes of a sighting: a record in the CPU's ring (record), or a step in the journey table (live). */
#ifndef LATPATH_SIGHT_H
#define LATPATH_SIGHT_H

const volatile __u32 live = 0;
const volatile __u32 ring_size = 0;   /* records of one CPU, a power of two */
const volatile __u32 slots_each = 0;  /* journeys kept of one stream, a power of two */
const volatile __u32 keep_who = 0;    /* live: CPUs and threads are kept too */
const volatile __u64 window_ns = 0;   /* a packet later than this is not matched any more */
const volatile __u64 threshold_ns = 0;
const volatile __u32 path_classes = 1; /* histograms of each segment, one for each way to be slow */

/* Points of packets that went by way of Open vSwitch's daemon: because no flow fitted, or by a flow's action. */
volatile __u32 upcall_points = 0, slow_points = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct percpu);
} percpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct record);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot_far);
} slots_far SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot_who);
} slots_who SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} slot_index SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stream_state);
} stream_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct ended_key);
	__type(value, __u64);
} ended SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct drop_key);
	__type(value, __u64);
} drops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_POINTS);
	__type(key, __u32);
	__type(value, struct segments_to);
} segments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hist);
} hists SEC(".maps");

/* Keeps an index below a power of two, also in the eyes of verifiers that forget what they saw of a spilled register. */
#define BOUND(x, size) asm volatile("%0 &= %1" : "+r"(x) : "i"((size) - 1))

/* Where and when the packet was seen. */
struct seen_at {
	__u64 t;
	__u64 aux;
	__u32 tid;
	__u32 cpu;
	__u32 point;
	__u32 kind;
};

/* Makes the record whole for the reader: all other stores first. x86 keeps the order of stores by itself. */
static __always_inline void publish(struct record *r, __u16 lap)
{
#if defined(__TARGET_ARCH_x86)
	asm volatile("" ::: "memory");
	*(volatile __u16 *)&r->lap = lap;
#else
	/* cpu and point share the word with lap; exchange is a full barrier. */
	__u32 *word = (__u32 *)((void *)r + 28);
	__u32 whole = (__u32)r->point | (__u32)lap << 16;

	__sync_lock_test_and_set(word, whole);
#endif
}

/* Appends to this CPU's ring; a full ring drops the sighting and counts it. */
static __always_inline void to_ring(struct percpu *p, struct seen_at *w, __u32 stream, __u32 key)
{
	__u64 head = p->head, at;
	struct record *r;
	__u32 idx;

	/* Some records of room are left for interrupts that come between here and the reservation. */
	if (head - *(volatile __u64 *)&p->tail >= ring_size - 8) {
		__sync_fetch_and_add(&p->dropped, 1);
		return;
	}
	at = __sync_fetch_and_add(&p->head, 1); /* also counts the sightings of record mode */
	idx = w->cpu * ring_size + ((__u32)at & (ring_size - 1));
	r = bpf_map_lookup_elem(&ring, &idx);
	if (!r)
		return;
	r->t = w->t;
	r->aux = w->aux;
	r->key = key;
	r->tid = w->tid;
	r->stream = stream;
	r->cpu = w->cpu;
	r->point = w->point;
	publish(r, (__u16)(at / ring_size) | 1u << 15);
}

/* Index of the log-linear bucket of v: latpath_stats has the same. No branches, for the verifier's sake. */
static __always_inline __u32 bucket_of(__u32 v)
{
	__u64 x = v;
	__u32 msb, step;

	if (v < 128)
		return v;
	msb = (0xffffull - x) >> 63 << 4;
	x >>= msb;
	step = (0xffull - x) >> 63 << 3;
	x >>= step;
	msb += step;
	step = (0xfull - x) >> 63 << 2;
	x >>= step;
	msb += step;
	step = (3ull - x) >> 63 << 1;
	x >>= step;
	msb += step + (__u32)(x >> 1);
	return ((msb - 6) << 6) + (v >> (msb - 6));
}

static __always_inline void to_hist(__u32 idx, __s64 d)
{
	struct hist *h = bpf_map_lookup_elem(&hists, &idx);
	__u64 v = d, old, b;

	if (seldom(!h))
		return;
	if (seldom(d < 0)) {
		__sync_fetch_and_add(&h->negative, 1);
		return;
	}
	__sync_fetch_and_add(&h->sum, v);
	if (seldom(v > threshold_ns))
		__sync_fetch_and_add(&h->over, 1);
	b = bucket_of(v > 0xffffffffull ? 0xffffffffu : (__u32)v);
	asm volatile("" : "+r"(b)); /* what is compared is what is used */
	if (b < BUCKETS)
		__sync_fetch_and_add(&h->bucket[b], 1);
	old = h->max;
	if (seldom(v > old) && __sync_val_compare_and_swap(&h->max, old, v) != old) {
		old = h->max; /* another CPU came between: once more */
		if (v > old)
			__sync_val_compare_and_swap(&h->max, old, v);
	}
	old = h->min; /* kept as its complement, so that 0 means none */
	if (seldom(~v > old) && __sync_val_compare_and_swap(&h->min, old, ~v) != old) {
		old = h->min;
		if (~v > old)
			__sync_val_compare_and_swap(&h->min, old, ~v);
	}
}

/* Counts a journey that leaves the table. A stream has few sets of points; the first four need no hash. */
static __always_inline void count_ended(struct stream_state *st, __u32 stream, __u32 seen)
{
	struct ended_key key = { .stream = stream, .seen = seen };
	__u64 one = 1, *n;

	for (int i = 0; i < ENDED_NEAR; i++) {
		__u32 have = st->ended_seen[i];

		if (!have)
			have = __sync_val_compare_and_swap(&st->ended_seen[i], 0, seen);
		if (!have || have == seen) {
			__sync_fetch_and_add(&st->ended[i], 1);
			return;
		}
	}
	n = bpf_map_lookup_elem(&ended, &key);
	if (!n) {
		if (!bpf_map_update_elem(&ended, &key, &one, BPF_NOEXIST))
			return;
		n = bpf_map_lookup_elem(&ended, &key);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline void count_drop(struct seen_at *w, __u32 stream)
{
	struct drop_key key = { .stream = stream, .point = w->point, .at = w->aux };
	__u64 one = 1, *n = bpf_map_lookup_elem(&drops, &key);

	if (!n && bpf_map_update_elem(&drops, &key, &one, BPF_NOEXIST))
		n = bpf_map_lookup_elem(&drops, &key);
	if (n)
		__sync_fetch_and_add(n, 1);
}

/* How a packet that these points saw was held up: not at all, by an upcall, by a slow action. */
static __always_inline __u32 path_class(__u32 seen)
{
	if (path_classes == 1)
		return 0;
	return seen & slow_points ? 2 : !!(seen & upcall_points);
}

static __always_inline struct slot *slot_of(__u32 stream, __u32 number)
{
	__u32 idx = stream * slots_each + (number & (slots_each - 1));

	return bpf_map_lookup_elem(&slots, &idx);
}


/*
 * Finds the journey that this sighting continues: one with the same key that lacks the point. Where several are left
 * (the counter has wrapped), a sequence tells them apart: a point sees packets in order, so the right journey is the one
 * next to the last that the point saw; after a gap, the newest. docs/journeys.md gives the reasons.
 * *over says that the sighting is accounted for and starts no journey.
 */
static __always_inline struct slot *find_journey(__u32 stream, struct stream_state *st, struct seen_at *w, __u32 key,
						 __u32 n, __u32 sequence, int *over)
{
	__u32 bit = 1u << (w->point & 31), last;
	__u64 point = w->point;
	struct slot *newest = 0;

	BOUND(point, MAX_POINTS);
	last = st->last[point];

	for (int i = 0; i < 4; i++) {
		struct slot *s;
		__s32 ahead;

		if (!n)
			break;
		/* Left far behind, and those before it still more: nothing below would take them. */
		ahead = (__s32)(n - last);
		if (sequence && last && ahead <= -REORDER)
			break;
		s = slot_of(stream, n);
		if (!s || s->number != n)
			break;
		if (s->key != key) {
			n = s->prev;
			continue;
		}
		if (s->seen & bit) {
			/* Seen here before, and not a wrap ago: a duplicate. */
			if ((!sequence || (ahead <= 0 && ahead > -REORDER)) && w->t - s->t0 < window_ns) {
				if (w->kind != POINT_DROP)
					__sync_fetch_and_add(&st->duplicates, 1);
				*over = 1;
				return 0;
			}
		} else if (!sequence || !last || (ahead <= REORDER && ahead > -REORDER)) {
			if (w->t - s->t0 < window_ns)
				return s;
			if (sequence && last) {
				__sync_fetch_and_add(&st->late, 1);
				*over = 1;
				return 0;
			}
		} else if (!newest && ahead > -REORDER && w->t - s->t0 < window_ns) {
			newest = s;
		}
		n = s->prev;
	}
	return newest;
}

/* Where a journey keeps the time of one point. */
static __always_inline __u32 *time_at(struct slot *s, __u32 stream, __u64 point)
{
	struct slot_far *far;
	__u32 idx;

	BOUND(point, MAX_POINTS);
	if (!seldom(point >= POINTS_NEAR))
		return &s->dt[point];
	idx = stream * slots_each + (s->number & (slots_each - 1));
	far = bpf_map_lookup_elem(&slots_far, &idx);
	BOUND(point, MAX_POINTS);
	return far ? &far->dt[point] : 0;
}

/* Keeps which CPU and thread saw a journey's packet. */
static __always_inline void saw(struct seen_at *w, __u32 stream, __u32 number)
{
	__u32 idx = stream * slots_each + (number & (slots_each - 1));
	__u64 point = w->point;
	struct slot_who *who;

	if (!keep_who)
		return;
	who = bpf_map_lookup_elem(&slots_who, &idx);
	BOUND(point, MAX_POINTS);
	if (who)
		who->at[point] = (__u64)w->cpu << 32 | w->tid;
}

/* Begins a journey with its first sighting. */
static __always_inline void new_journey(__u32 stream, struct stream_state *st, struct seen_at *w, __u32 key, __u32 *index)
{
	__u32 number = (__u32)__sync_fetch_and_add(&st->next, 1) + 1, *dt;
	__u64 point = w->point;
	struct slot *s;

	BOUND(point, MAX_POINTS);
	if (seldom(!number)) /* 0 means none: skip it, every 4,294,967,296 journeys */
		number = (__u32)__sync_fetch_and_add(&st->next, 1) + 1;
	s = slot_of(stream, number);
	if (!s)
		return;
	if (s->number && s->t0 >= st->count_from)
		count_ended(st, stream, s->seen);
	saw(w, stream, number);
	BOUND(point, MAX_POINTS);
	s->seen = 1u << point;
	s->number = number;
	s->key = key;
	s->t0 = w->t;
	s->prev = *index;
	dt = time_at(s, stream, point);
	if (dt)
		*dt = 0;
	BOUND(point, MAX_POINTS);
	st->last[point] = number;
	st->last_t = w->t;
	/* From here on other CPUs find it. */
	*(volatile __u32 *)index = number;
}

static __always_inline void to_table(struct seen_at *w, __u32 stream, __u32 key)
{
	struct stream_state *st = bpf_map_lookup_elem(&stream_states, &stream);
	__u32 bit = 1u << (w->point & 31), at = stream * slots_each + (key & (slots_each - 1));
	__u32 *index = bpf_map_lookup_elem(&slot_index, &at), row = w->point & 31, number, last, *dt;
	__u64 point = row;
	struct segments_to *seg;
	struct slot *s;
	int over = 0;
	__u64 since;

	if (!st || !index)
		return;
	s = find_journey(stream, st, w, key, *index, st->sequence, &over);
	if (seldom(over))
		return;
	if (!s) {
		new_journey(stream, st, w, key, index);
		return;
	}
	since = w->t - s->t0;
	if (since > 0xffffffff)
		since = 0xffffffff;
	dt = time_at(s, stream, point);
	if (!dt)
		return;
	*dt = since;
	saw(w, stream, s->number);
	__sync_fetch_and_or(&s->seen, bit);
	number = s->number;
	BOUND(point, MAX_POINTS);
	last = st->last[point];
	if (seldom(last && (__s32)(number - last) < 0))
		__sync_fetch_and_add(&st->out_of_order, 1);
	else
		st->last[point] = number;
	st->last_t = w->t;
	seg = bpf_map_lookup_elem(&segments, &row);
	if (!seg || s->t0 < st->count_from)
		return;
	for (int i = 0; i < SEGMENTS_TO; i++) {
		__u32 from;

		if (i >= seg->count)
			break;
		from = seg->from[i] & 31;
		if (!(s->seen & 1u << from))
			continue;
		dt = time_at(s, stream, from);
		if (dt)
			to_hist((stream * path_classes + path_class(s->seen)) * MAX_SEGMENTS +
					(seg->hist[i] & (MAX_SEGMENTS - 1)),
				(__s64)since - *dt);
	}
}

/* Takes one sighting. */
static __always_inline void sight(struct percpu *p, struct seen_at *w, __u32 stream, __u32 key)
{
	if (live) {
		__sync_fetch_and_add(&p->sightings, 1);
		if (w->kind == POINT_DROP)
			count_drop(w, stream);
		to_table(w, stream, key);
	} else {
		to_ring(p, w, stream, key);
	}
	/* One sighting in 64 says what a sighting costs. */
	if (seldom(((w->t >> 5) & 63) == 0)) {
		__sync_fetch_and_add(&p->cost_ns, bpf_ktime_get_ns() - w->t);
		__sync_fetch_and_add(&p->cost_samples, 1);
	}
}

/* The same for frames that took the long way, verified once for all programs. */
__noinline int sight_any(struct seen_at *w, __u32 stream, __u32 key)
{
	struct percpu *p;
	__u32 cpu;

	if (!w || stream >= MAX_STREAMS)
		return 0;
	cpu = w->cpu;
	p = bpf_map_lookup_elem(&percpu, &cpu);
	if (p)
		sight(p, w, stream, key);
	return 0;
}

#endif
