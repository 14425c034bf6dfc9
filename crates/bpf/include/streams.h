/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The user's streams in the kernel programs, and functions with which all protocols look them up. User space
 * (src/streams.rs) fills the tables declared here. Each protocol has a header in protocols/, from which the build
 * generates match_frame(). */
#ifndef LATPATH_STREAMS_H
#define LATPATH_STREAMS_H

#include "map.h"

#define MAX_STREAMS 256
#define MAX_PROTOCOLS 8
#define MAX_ETHERTYPES 8  /* maximum ethertypes tested before a byte is read */
#define MAX_CHAIN 8       /* maximum streams with the same name, which differ only in filters */
#define MAX_SCANNED 64    /* maximum streams of one protocol that have no name */
#define NAME_SHORT 32     /* maximum length of names in names_short */
#define NAME_PLACES 2048
#define NAME_PROBES 4
#define NAME_LONG 134
#define PROTOCOL_BYTES 40
#define NONE 0xffff

enum key_rule { KEY_OWN = 0, KEY_SEQ = 1, KEY_HASH = 2 };

#define FILTER_MAC 1
#define FILTER_VLAN 2

/* One of the user's streams. `next` links streams with the same name. */
struct stream_conf {
	__u8 rule;
	__u8 filters;
	__u8 dst[6]; /* destination MAC */
	__u16 key_off;
	__u16 key_len;
	__u16 vlan;
	__u16 next;
	__u8 protocol_bytes[PROTOCOL_BYTES]; /* read by the protocol's header */
};

/* The range of one protocol's streams in the table. */
struct stream_range {
	__u16 first;
	__u16 count;
};

/* Set before the programs are loaded, so that the verifier removes code that no stream needs. */
struct selection {
	struct stream_range streams[MAX_PROTOCOLS];
	__be16 ethertypes[MAX_ETHERTYPES]; /* of all streams; 0: unused entry */
	__u8 any_ethertype;                /* there are more */
	__u8 long_names;
	__u8 fast_path; /* only streams of the first protocol have frames with its ethertype */
	__u8 over_ip;
	__u16 reach_ip; /* bytes of an IP packet's frame that any stream may need for recognition and key */
	__u16 reach;    /* the same for any frame */
};

const volatile struct selection selection = {};

/* Names of up to 32 bytes: a hash table with open addressing. A name is in one of the NAME_PROBES entries starting at
 * its hash. */
struct name_short {
	__u64 word[4];  /* the bytes, padded with zeros */
	__u16 protocol_len; /* protocol << 8 | length */
	__u16 simple;   /* one stream, the protocol's own key, no filters: the rest of the frame is not read */
	__u32 first;    /* stream plus one; 0: unused entry */
	__u64 pad[3];
};

struct name_long {
	__u8 protocol;
	__u8 len;
	__u8 name[NAME_LONG];
};

/* Whether frames with this ethertype can belong to a stream; checked before any other part of the frame is read. */
static __always_inline int ethertype_selected(__be16 ethertype)
{
	if (selection.any_ethertype)
		return 1;
#pragma unroll
	for (int i = 0; i < MAX_ETHERTYPES; i++) {
		__be16 one = selection.ethertypes[i];

		if (!one)
			break;
		if (one == ethertype)
			return 1;
	}
	return ethertype == bpf_htons(ETH_VLAN) || ethertype == bpf_htons(ETH_QINQ) || ethertype == bpf_htons(ETH_HSR);
}

/* Whether a packet is IPv4 or IPv6, according to skb->protocol. */
static __always_inline int is_ip(__be16 protocol)
{
	return protocol == bpf_htons(ETH_IP) || protocol == bpf_htons(ETH_IP6);
}

/* Like ethertype_selected, but for points where a sender's packet socket may have left skb->protocol unset or wrong:
 * only protocols that cannot be set by mistake rule a packet out. */
static __always_inline int ethertype_possible(__be16 protocol)
{
	return ethertype_selected(protocol) || (!is_ip(protocol) && protocol != bpf_htons(ETH_ARP));
}

#define MAX_FOUND 8 /* maximum streams of one frame */

/* The first difference between a frame and a stream that it nearly matches: it has the same name, or the same source or
 * destination. */
enum difference { DIFFERENCE_VLAN = 1, DIFFERENCE_MAC = 2, DIFFERENCE_SOURCE = 3, DIFFERENCE_DESTINATION = 4 };

struct found {
	__u32 n;
	struct {
		__u32 stream;
		__u32 key;
	} at[MAX_FOUND];
	/* A stream that the frame nearly matches: the frame may be one of its packets, changed on the route. */
	__u32 near_difference; /* enum difference; 0: none */
	__u32 near_stream;
	__u32 near_key;
};

/* Memory of the slow path, too large for the stack. */
struct scratch {
	__u32 busy;
	struct found found;
	struct name_long name;
	struct chunk behind_name; /* the last chunk of a name may be incomplete */
	struct frame frame;
};

/* Each CPU has one scratch for each context that can interrupt another (task, softirq, hardirq, NMI), because an
 * interrupt may occur while a scratch is in use. */
#define SCRATCHES 4

MAP(scratches, ARRAY, SCRATCHES, __u32, struct scratch);

static __always_inline struct scratch *take_scratch(__u32 cpu)
{
	for (int i = 0; i < SCRATCHES; i++) {
		__u32 at = cpu * SCRATCHES + i;
		struct scratch *s = bpf_map_lookup_elem(&scratches, &at);

		if (s && !__sync_val_compare_and_swap(&s->busy, 0, 1)) {
			s->frame.scratch = at;
			return s;
		}
	}
	return 0;
}

static __always_inline void release_scratch(struct scratch *s)
{
	*(volatile __u32 *)&s->busy = 0;
}

MAP(streams, ARRAY, MAX_STREAMS, __u32, struct stream_conf);

struct name_short names_short[NAME_PLACES];

MAP(names_long, HASH, MAX_STREAMS, struct name_long, __u32);

static __always_inline void add_found(struct found *out, __u32 stream, __u32 key)
{
	/* If a frame has several keys of one stream, only the first is added. */
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

/* The first of a stream's Ethernet filters that this frame does not pass; 0 if it passes them all. A frame without a
 * link header passes none. */
static __always_inline __u32 link_difference(struct frame *f, struct stream_conf *s)
{
	__u8 filters = s->filters;

	if (filters & FILTER_VLAN && (f->no_link || s->vlan != f->vlan))
		return DIFFERENCE_VLAN;
	if (filters & FILTER_MAC) {
		if (f->no_link)
			return DIFFERENCE_MAC;
		for (int i = 0; i < 6; i++)
			if (s->dst[i] != f->buf[i])
				return DIFFERENCE_MAC;
	}
	return 0;
}

/* The key of a packet whose payload begins at `payload`, by a rule other than the protocol's own. */
static __always_inline int payload_key(struct frame *f, struct stream_conf *s, __u32 payload, __u32 *key)
{
	__u32 off = payload + s->key_off, k = 0;

	if (s->rule == KEY_HASH)
		return hash_bytes(f, off, s->key_len, key);
	for (int i = 0; i < 4; i++) {
		int b;

		if (i >= s->key_len)
			break;
		b = byte_at(f, off + i);
		if (b < 0)
			return -1;
		k = k << 8 | b;
	}
	*key = k;
	return 0;
}

__noinline int lookup_long(struct frame *f, __u32 protocol, __u32 off, __u32 len)
{
	struct name_long *key;
	__u32 *first, at;
	struct scratch *s;

	if (!f || len > NAME_LONG)
		return -1;
	at = f->scratch;
	s = bpf_map_lookup_elem(&scratches, &at);
	if (!s)
		return -1;
	key = &s->name;
	__builtin_memset(key, 0, sizeof(*key));
	key->protocol = protocol;
	key->len = len;
	if (fetch_all(f, off, key->name, len, NAME_LONG))
		return -1;
	first = bpf_map_lookup_elem(&names_long, key);
	return first ? *first : -1;
}

/* The entry at which the search for a name starts; src/streams.rs has the same function. */
static __always_inline __u32 name_place(const __u64 *w, __u32 len)
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

/* A name of at most 32 bytes, padded with zeros. */
struct name_words {
	__u64 word[4];
};

/* Finds the entry of a name in names_short; -1 if no stream has the name. A separate function, which the verifier
 * checks once; inlined code would be checked again for each form of the preceding frame. */
__noinline int place_of_name(struct name_words *name, __u32 protocol_len)
{
	__u32 place;

	if (!name)
		return -1;
	place = name_place(name->word, protocol_len & 0xff);
	for (int i = 0; i < NAME_PROBES; i++) {
		__u32 at = (place + i) & (NAME_PLACES - 1);
		struct name_short *s = &names_short[at];

		if (!s->first)
			break;
		if (s->protocol_len == protocol_len && s->word[0] == name->word[0] && s->word[1] == name->word[1] &&
		    s->word[2] == name->word[2] && s->word[3] == name->word[3])
			return at;
	}
	return -1;
}

/* Finds the entry of a name; null if no stream has the name. */
static __always_inline struct name_short *lookup_words(__u32 protocol, struct name_words *name, __u32 len)
{
	int at = place_of_name(name, protocol << 8 | len);

	return at < 0 ? 0 : &names_short[at & (NAME_PLACES - 1)];
}

/* Finds the protocol's first stream with the name at `off`; -1 if there is none. */
__noinline int lookup_name(struct frame *f, __u32 protocol, __u32 off, __u32 len)
{
	struct name_short *s;
	struct name_words name = {};

	if (!f)
		return -1;
	if (len > NAME_SHORT)
		return selection.long_names ? lookup_long(f, protocol, off, len) : -1;
	BOUND(len, 64); /* 6.1 forgets the bound of a spilled register */
	if (len > NAME_SHORT || fetch_all(f, off, &name, len, NAME_SHORT))
		return -1;
	s = lookup_words(protocol, &name, len);
	return s ? s->first - 1 : -1;
}

/* Visits the streams of a protocol without names: `stream` is the index of each, `s` its configuration. The body
 * executes `continue` if the frame does not belong to the stream. */
#define FOR_EACH_STREAM(protocol, stream, s)                                                                         \
	for (__u32 i_ = 0, stream; i_ < MAX_SCANNED; i_++)                                                           \
		if (stream = selection.streams[protocol].first + i_, i_ >= selection.streams[protocol].count)        \
			break;                                                                                       \
		else                                                                                                 \
			for (struct stream_conf *s = bpf_map_lookup_elem(&streams, &stream); s; s = 0)

/* Adds a stream to which the frame belongs, or records it as a near match if there is a difference. The upper 16 bits
 * of stream_payload are the stream, the lower 16 the offset of the payload; `key` is the key by the protocol's own
 * rule; `difference` is the first difference found so far, or 0. */
__noinline int add_stream_unless(struct frame *f, struct found *out, __u32 stream_payload, __u32 key, __u32 difference)
{
	__u32 stream = stream_payload >> 16, payload = stream_payload & 0xffff;
	struct stream_conf *s = bpf_map_lookup_elem(&streams, &stream);

	if (!f || !out || !s)
		return 0;
	if (!difference)
		difference = link_difference(f, s);
	if (s->rule != KEY_OWN && payload_key(f, s, payload, &key))
		return 0;
	if (!difference) {
		add_found(out, stream, key);
	} else if (!out->near_difference) {
		out->near_difference = difference;
		out->near_stream = stream;
		out->near_key = key;
	}
	return 0;
}

static __always_inline void add_stream(struct frame *f, struct found *out, __u32 stream, __u32 payload, __u32 key)
{
	add_stream_unless(f, out, stream << 16 | (payload & OFF_MASK), key, 0);
}

#endif
