/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Streams of Sampled Values and GOOSE, identified by a name in the frame. */
#ifndef LATPATH_IEC61850_H
#define LATPATH_IEC61850_H

#include "ber.h"

/* Layout of `protocol_bytes` for a stream of Sampled Values or GOOSE. */
struct iec61850_conf {
	__u16 appid;
	__u16 has_appid;
};

/* Name and key of a packet. */
struct named {
	__u32 name_off;
	__u32 name_len;
	__u32 key;
	__u32 payload; /* offset of the APPID */
};

/* Adds the streams with this name whose filters accept the frame. */
__noinline int add_named(struct frame *f, struct found *out, __u32 protocol, struct named *n)
{
	int first;
	__u32 stream;

	if (!f || !out || !n)
		return -1;
	first = lookup_name(f, protocol, n->name_off, n->name_len);
	if (first < 0)
		return 0;
	stream = first;
	for (int i = 0; i < MAX_CHAIN; i++) {
		struct stream_conf *s = bpf_map_lookup_elem(&streams, &stream);
		struct iec61850_conf *conf;

		if (!s)
			return 0;
		conf = (void *)s->protocol_bytes;
		if (!conf->has_appid || conf->appid == f->appid)
			add_stream(f, out, stream, n->payload, n->key);
		stream = s->next;
		if (stream == NONE)
			return 0;
	}
	return 0;
}

#endif
