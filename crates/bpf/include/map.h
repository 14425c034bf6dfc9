/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Macros that declare a map in one line. */
#ifndef LATPATH_MAP_H
#define LATPATH_MAP_H

/* Declares a map of type BPF_MAP_TYPE_kind_. */
#define MAP(name_, kind_, entries_, key_, value_) \
	struct { \
		__uint(type, BPF_MAP_TYPE_##kind_); \
		__uint(max_entries, entries_); \
		__type(key, key_); \
		__type(value, value_); \
	} name_ SEC(".maps")

/* An array that user space maps into its own memory. */
#define SHARED_ARRAY(name_, entries_, value_) \
	struct { \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, entries_); \
		__type(key, __u32); \
		__type(value, value_); \
	} name_ SEC(".maps")

#endif
