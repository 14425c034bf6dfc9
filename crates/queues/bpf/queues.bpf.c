// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* Counts the traffic of virtqueues, in virtio's drivers and in vhost. The programs send nothing to user space, which
 * reads the counts from the maps. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <asm/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "kernel.h"
#include "virtio.h"
#include "queue.h"
#include "driver.h"
#include "host.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
