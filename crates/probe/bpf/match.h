/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Which of the user's streams a frame belongs to, and its key in each. */
#ifndef LATPATH_MATCH_H
#define LATPATH_MATCH_H

#define MAX_FOUND 8 /* streams that one frame may belong to */

struct found {
	__u32 n;
	struct {
		__u32 stream;
		__u32 key;
	} at[MAX_FOUND];
};

/* What the long way works on: too much for the stack. */
struct work {
	__u32 busy;
	struct found found;
	struct svid_long svid;
	struct frame frame;
};

/* An interrupt may come while one is in use, so a CPU has as many as contexts that interrupt each other: task, softirq, hardirq, NMI. */
#define WORKS 4

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WORKS);
	__type(key, __u32);
	__type(value, struct work);
} works SEC(".maps");

static __always_inline struct work *take_work(__u32 cpu)
{
	for (int i = 0; i < WORKS; i++) {
		__u32 at = cpu * WORKS + i;
		struct work *w = bpf_map_lookup_elem(&works, &at);

		if (w && !__sync_val_compare_and_swap(&w->busy, 0, 1)) {
			w->frame.work = at;
			return w;
		}
	}
	return 0;
}

static __always_inline void leave_work(struct work *w)
{
	*(volatile __u32 *)&w->busy = 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_STREAMS);
	__type(key, __u32);
	__type(value, struct stream_conf);
} streams SEC(".maps");

struct svid_short svids_short[SVID_PLACES];

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_STREAMS);
	__type(key, struct svid_long);
	__type(value, __u32);
} svids_long SEC(".maps");

const volatile __u32 first_other = 0;  /* streams from here on are not SV */
const volatile __u32 stream_count = 0;
const volatile __u32 want_sv = 0, want_ip = 0, want_ether = 0, want_long = 0;

static __always_inline void add_found(struct found *out, __u32 stream, __u32 key)
{
	/* A stream of several ASDUs in one frame has the key of the first. */
	for (int i = 0; i < MAX_FOUND; i++) {
		if (i == out->n) {
			out->at[i].stream = stream;
			out->at[i].key = key;
			out->n = i + 1;
			return;
		}
		if (out->at[i].stream == stream)
			return;
	}
}

__noinline int lookup_long(struct frame *f, __u32 off, __u32 len)
{
	struct svid_long *key;
	__u32 *first, at;
	struct work *w;

	if (!f || len > SVID_LONG)
		return -1;
	at = f->work;
	w = bpf_map_lookup_elem(&works, &at);
	if (!w)
		return -1;
	key = &w->svid;
	__builtin_memset(key, 0, sizeof(*key));
	key->len = len;
	if (pull(f, off & OFF_MASK, key->id, len))
		return -1;
	first = bpf_map_lookup_elem(&svids_long, key);
	return first ? *first : -1;
}

/* Cuts a word of an svID that has `left` bytes from here on. */
static __always_inline __u64 head_of(__u64 word, __s32 left)
{
	if (left <= 0)
		return 0;
	return left >= 8 ? word : word & ((1ull << (left * 8)) - 1);
}

/* The place where an svID's search begins: src/config.rs has the same. */
static __always_inline __u32 svid_place(const __u64 *w, __u32 len)
{
	__u64 h = (w[0] + len) * 0x9e3779b97f4a7c15ull;

	if (len > 8)
		h = (h ^ h >> 32 ^ w[1]) * 0xff51afd7ed558ccdull;
	if (len > 16) {
		h = (h ^ h >> 32 ^ w[2]) * 0xc4ceb9fe1a85ec53ull;
		h = (h ^ h >> 32 ^ w[3]) * 0x9e3779b97f4a7c15ull;
	}
	return h >> 53;
}

/* The entry of the svID in w, zeros behind it; none if it is nobody's. */
static __always_inline struct svid_short *lookup_words(const __u64 *w, __u32 len)
{
	__u32 place = svid_place(w, len);

	for (int i = 0; i < SVID_PROBES; i++) {
		struct svid_short *s = &svids_short[(place + i) & (SVID_PLACES - 1)];

		if (!s->first)
			return 0;
		if (s->len == len && s->word[0] == w[0] && s->word[1] == w[1] && s->word[2] == w[2] &&
		    s->word[3] == w[3])
			return s;
	}
	return 0;
}

static __always_inline int lookup_svid(struct frame *f, __u32 off, __u32 len)
{
	struct svid_short *s;
	__u64 w[4] = {};

	if (len > SVID_SHORT)
		return want_long ? lookup_long(f, off, len) : -1;
	if (pull(f, off & OFF_MASK, w, len & 63))
		return -1;
	s = lookup_words(w, len);
	return s ? s->first - 1 : -1;
}

/* Where one ASDU keeps what names it. */
struct asdu {
	__u32 svid_off;
	__u32 svid_len;
	__u32 smp_cnt;
	__u32 payload; /* of the frame: where the APPID stands */
};

/* Adds the stream `first` and those of the same svID whose filters this frame passes. */
__noinline int add_chain(struct frame *f, struct found *out, __u32 first, struct asdu *a)
{
	if (!f || !out || !a)
		return -1;
	for (int i = 0; i < 8; i++) {
		__u32 idx = first;
		struct stream_conf *s = bpf_map_lookup_elem(&streams, &idx);
		__u32 key = a->smp_cnt;

		if (!s)
			return 0;
		if (link_passes(f, s) && (s->rule == KEY_SMPCNT || !payload_key(f, s, a->payload, &key)))
			add_found(out, idx, key);
		first = s->next;
		if (first == NONE)
			return 0;
	}
	return 0;
}

/* Reads the ASDU whose fields lie in [off, end). 0 if it has svID and smpCnt. */
__noinline int read_asdu(struct frame *f, __u32 off, __u32 end, struct asdu *a)
{
	int have = 0;

	if (!f || !a)
		return -1;
	for (int i = 0; i < MAX_FIELDS; i++) {
		int tl;

		off &= OFF_MASK;
		if (off >= end)
			return -1;
		tl = tlv(f, &off, end);
		if (tl < 0)
			return -1;
		if (value_tag(tl) == 0x80) {
			a->svid_off = off;
			a->svid_len = value_len(tl);
			if (!a->svid_len)
				return -1;
			have |= 1;
		} else if (value_tag(tl) == 0x82) {
			int cnt = be16_at(f, off);

			if (value_len(tl) != 2 || cnt < 0)
				return -1;
			a->smp_cnt = cnt;
			have |= 2;
		}
		if (have == 3)
			return 0;
		off += value_len(tl);
	}
	return -1;
}

/* Finds the SV streams of a frame whose APPID stands at `off`. */
__noinline int match_sv(struct frame *f, __u32 off, struct found *out)
{
	__u32 end, length, payload = off;
	int tl, b;

	if (!f || !out)
		return -1;
	b = be16_at(f, off);
	if (b < 0)
		return -1;
	f->appid = b;
	b = be16_at(f, off + 2);
	if (b < 8)
		return -1;
	length = b;
	end = off + length; /* APPID to the end of the APDU */
	if (end > f->linear + f->frag_len || end > OFF_MASK)
		return -1;
	off += 8;
	tl = tlv(f, &off, end);
	if (tl < 0 || value_tag(tl) != 0x60)
		return -1;
	for (int i = 0; i < 4; i++) {
		off &= OFF_MASK;
		tl = tlv(f, &off, end);
		if (tl < 0)
			return -1;
		if (value_tag(tl) == 0xa2)
			break;
		off += value_len(tl);
	}
	if (value_tag(tl) != 0xa2)
		return -1;
	end = off + value_len(tl);
	for (int i = 0; i < MAX_ASDU; i++) {
		struct asdu a = {};
		__u32 asdu_end;
		int first;

		off &= OFF_MASK;
		if (off >= end)
			return i ? 0 : -1;
		tl = tlv(f, &off, end);
		if (tl < 0 || value_tag(tl) != 0x30)
			return -1;
		asdu_end = off + value_len(tl);
		if (read_asdu(f, off, asdu_end, &a))
			return -1;
		first = lookup_svid(f, a.svid_off, a.svid_len);
		if (first >= 0) {
			a.payload = payload;
			add_chain(f, out, first, &a);
		}
		off = asdu_end;
	}
	return 0;
}

/* Reads an IPv4 or IPv6 UDP header at `off`. Returns the payload's offset, 0 if it is no UDP. */
static __always_inline __u32 udp_header(struct frame *f, __u32 off, __u32 *l4)
{
	int b = byte_at(f, off);
	__u32 at;

	if (f->ethertype == ETH_IP) {
		if (b < 0 || b >> 4 != 4 || byte_at(f, off + 9) != 17)
			return 0;
		if (be16_at(f, off + 6) & 0x1fff) /* a later fragment has no ports */
			return 0;
		at = off + (b & 15) * 4;
	} else {
		if (b < 0 || b >> 4 != 6 || byte_at(f, off + 6) != 17)
			return 0;
		at = off + 40;
	}
	*l4 = at;
	return at + 8;
}

static __noinline int address_is(struct frame *f, __u32 off, const __u8 *want, __u32 len)
{
	if (!f || !want)
		return 0;
	for (__u32 i = 0; i < 16; i++) {
		if (i >= len)
			break;
		if (byte_at(f, off + i) != want[i])
			return 0;
	}
	return 1;
}

/* Finds the UDP and Ethernet streams of a frame whose payload begins at `off`. */
__noinline int match_other(struct frame *f, __u32 off, struct found *out)
{
	__u32 l4 = 0, payload = 0;
	int src_port = -1, dst_port = -1, version;

	if (!f || !out)
		return -1;
	version = f->ethertype == ETH_IP ? 4 : 6;
	if (want_ip && (f->ethertype == ETH_IP || f->ethertype == ETH_IP6)) {
		payload = udp_header(f, off, &l4);
		if (payload) {
			src_port = be16_at(f, l4);
			dst_port = be16_at(f, l4 + 2);
		}
	}
	for (__u32 i = 0; i < 64; i++) {
		__u32 idx = first_other + i, len = version == 4 ? 4 : 16, at = off;
		struct stream_conf *s;
		__u32 key = 0;

		if (idx >= stream_count)
			break;
		s = bpf_map_lookup_elem(&streams, &idx);
		if (!s)
			break;
		if (s->kind == KIND_ETHER) {
			if (s->ethertype != f->ethertype || !link_passes(f, s))
				continue;
		} else {
			if (!payload || dst_port < 0 || src_port < 0)
				continue;
			if ((s->dst_port && s->dst_port != dst_port) || (s->src_port && s->src_port != src_port))
				continue;
			if (s->ip_version && s->ip_version != version)
				continue;
			if (s->filters & FILTER_SRC && !address_is(f, version == 4 ? off + 12 : off + 8, s->src, len))
				continue;
			if (s->filters & FILTER_DST && !address_is(f, version == 4 ? off + 16 : off + 24, s->dst, len))
				continue;
			if (!link_passes(f, s))
				continue;
			at = payload;
		}
		if (!payload_key(f, s, at, &key))
			add_found(out, idx, key);
	}
	return 0;
}

#endif
