// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The programs' state machine, for tests in user space. */
#include <linux/types.h>
#define __always_inline inline __attribute__((always_inline))
#define BOUND(x, size) ((x) &= (size) - 1)
#include "vcpu_time.h"

unsigned long vcpu_size(void)
{
	return sizeof(struct vcpu);
}

unsigned long row_size(void)
{
	return sizeof(struct row);
}

unsigned int vcpu_bucket_of(__u64 v)
{
	return bucket_of(v);
}

void row_add(struct row *row, __u64 v)
{
	histogram_add(&row->took, v);
}

/* Applies one event. `argument`: the new exit's row, whether the thread is ready, or the duration of the halt, ns. */
void vcpu_event(struct vcpu *v, struct row *rows, unsigned int event, __u64 now, __u64 argument)
{
	struct row *row = &rows[v->row & (REASONS - 1)];

	switch (event) {
	case 0: return on_entry(v, now, row);
	case 1: return on_exit(v, now, argument & (REASONS - 1), row);
	case 2: return on_user_exit(v, now);
	case 3: return on_run(v, now);
	case 4: return on_switch_out(v, now, argument & 1);
	case 5: return on_wakeup(v, now);
	case 6: return on_switch_in(v, now);
	case 7: return on_interrupt(v, now);
	case 8: return on_interrupt_end(v, now);
	case 9: return on_halt_end(v, now, argument, argument & 1);
	default: return on_thread_end(v, now);
	}
}
