/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Any ethertype. */
struct ether_conf {
	__u16 ethertype;
};

__noinline int match_ether(struct frame *f, __u32 payload, struct found *out)
{
	if (!f || !out)
		return 0;
	FOR_EACH_STREAM(PROTOCOL_ETHER, stream, s) {
		struct ether_conf *conf = (void *)s->protocol_bytes;

		if (conf->ethertype == f->ethertype)
			add_stream(f, out, stream, payload, 0);
	}
	return 0;
}
