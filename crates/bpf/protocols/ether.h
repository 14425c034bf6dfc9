/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Any ethertype. */
struct ether_conf {
	__u16 ethertype;
};

__noinline int match_ether(struct frame *f, __u32 off, struct found *out)
{
	if (!f || !out)
		return 0;
	FOR_EACH_STREAM(PROTOCOL_ETHER, stream, s) {
		struct ether_conf *own = (void *)s->own;

		if (own->ethertype == f->ethertype)
			add_stream(f, out, stream, off, 0);
	}
	return 0;
}
