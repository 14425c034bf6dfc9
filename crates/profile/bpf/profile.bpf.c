// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Samples each CPU's activity with its call chain, and accumulates each thread's run time from the scheduler's
 * switches. The times are exact and add up to the wall clock of each CPU; samples only give the shares of a thread's
 * call chains.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "kernel.h"
#include "bound.h"
#include "map.h"
#include "shared.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define PF_VCPU 0x1
#define PF_KTHREAD 0x200000

SHARED_ARRAY(cpus, 1, struct here);
MAP(threads, HASH, 1, struct thread, struct thread_time);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} samples SEC(".maps");

/* A sample is too large for the stack. */
MAP(scratch, PERCPU_ARRAY, 1, __u32, struct sample);

/* Processes whose system calls are counted. */
MAP(called_by, HASH, 1, __u32, __u32);
MAP(calls, HASH, 1, struct call, struct call_time);
MAP(open_calls, HASH, 1, __u32, struct open_call);

/* Guest times of vCPU threads; user space inserts the threads. */
MAP(guest_times, HASH, 1, __u32, struct guest_time);

/* Current absence of each vCPU thread from its guest. `from` is 0 if the vCPU is in the guest, or if that is still
 * unknown. User space inserts the threads. */
MAP(absent, HASH, 1, __u32, struct absence);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} absences SEC(".maps");

struct shared shared = {};

static __always_inline struct here *this_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline __u32 flags_of(struct task_struct *task)
{
	__u32 flags = task->flags;

	return (flags & PF_VCPU ? GUEST : 0) | (flags & PF_KTHREAD ? KERNEL_THREAD : 0);
}

static __always_inline void names_of(struct task_struct *task, char *comm, char *process)
{
	bpf_probe_read_kernel(comm, 16, task->comm);
	bpf_probe_read_kernel(process, 16, task->group_leader->comm);
}

/* Adds the time since the last call to the CPU's current thread. Interrupts are off: nothing on this CPU intervenes. */
static __always_inline void account(struct here *here, struct task_struct *task, __u32 cpu, __u64 now)
{
	struct thread key = { .tid = task->pid };
	struct thread_time *time, fresh = {};
	__u64 since = here->since, took;

	if (now > shared.until)
		now = shared.until;
	if (since < shared.from)
		since = shared.from;
	if (now <= since)
		return;
	here->since = now;
	took = now - since;
	if (!key.tid)
		key.cpu = cpu;
	time = bpf_map_lookup_elem(&threads, &key);
	if (time) {
		time->ns += took;
		return;
	}
	fresh.ns = took;
	fresh.tgid = task->tgid;
	fresh.flags = flags_of(task);
	names_of(task, fresh.comm, fresh.process);
	if (bpf_map_update_elem(&threads, &key, &fresh, BPF_NOEXIST))
		here->unattributed += took;
	else
		__sync_fetch_and_add(&shared.threads, 1);
}

/* A vCPU's thread leaves its guest. If this is its first event, the vCPU has been in the guest since the window began.
 */
static __always_inline void leave_guest(struct here *here, __u32 tid, __u64 now)
{
	struct guest_time *time = bpf_map_lookup_elem(&guest_times, &tid);
	__u64 since;

	here->inside = 0;
	if (!time)
		return;
	since = time->since;
	if (now > shared.until)
		now = shared.until;
	if ((since || !time->seen) && since < shared.from)
		since = shared.from;
	if (since && now > since)
		time->ns += now - since;
	time->since = 0;
	time->seen = 1;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switched, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct here *here = bpf_map_lookup_elem(&cpus, &cpu);

	if (!here)
		return 0;
	/* KVM on AMD before Linux 6.5 and on ARM reports the exit only after this switch, so the switch counts as the exit. */
	if (here->inside)
		leave_guest(here, here->inside, bpf_ktime_get_ns());
	if (!here->watched)
		return 0;
	account(here, prev, cpu, bpf_ktime_get_ns());
	here->tid = next->pid;
	return 0;
}

/* The clock of each CPU (PERF_COUNT_SW_CPU_CLOCK), about 99 times per second. */
SEC("perf_event")
int sampled(struct bpf_perf_event_data *event)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0, frames;
	struct here *here = bpf_map_lookup_elem(&cpus, &cpu);
	struct sample *s = bpf_map_lookup_elem(&scratch, &zero);
	__u64 now = bpf_ktime_get_ns(), size;
	long got;

	if (!here || !s)
		return 0;
	/* Updates the CPU's time even if no switch ever occurs. */
	account(here, task, cpu, now);
	here->tid = task->pid;
	if (now < shared.from || now >= shared.until)
		return 0;
	s->t = now;
	s->cpu = cpu;
	s->tid = task->pid;
	s->tgid = task->tgid;
	s->flags = flags_of(task);
	names_of(task, s->comm, s->process);
	s->kernel = s->user = 0;
	/* In a guest, the registers only show where KVM handles this interrupt, so the sample has no call chain. */
	if (!(s->flags & GUEST)) {
		got = bpf_get_stack(event, s->frames, (FRAMES - 1) * 8, 0);
		frames = got > 0 ? (__u32)got / 8 : 0;
		BOUND(frames, FRAMES);
		s->kernel = frames;
		if (!(s->flags & KERNEL_THREAD)) {
			got = bpf_get_stack(event, s->frames + frames, (FRAMES - 1) * 8, BPF_F_USER_STACK);
			if (got > 0)
				s->user = (__u32)got / 8;
		}
	}
	frames = s->kernel + s->user;
	BOUND(frames, 2 * FRAMES);
	size = __builtin_offsetof(struct sample, frames) + frames * 8;
	/* User space polls: a wakeup for each sample would show in the profile. */
	if (bpf_ringbuf_output(&samples, s, size, BPF_RB_NO_WAKEUP))
		here->lost++;
	return 0;
}

#if defined(__TARGET_ARCH_x86)
#define IOCTL (16)
struct pt_regs___kernel {
	unsigned long si;
} __attribute__((preserve_access_index));
#define SECOND_ARGUMENT(regs) BPF_CORE_READ((struct pt_regs___kernel *)(regs), si)
#else
#define IOCTL (29)
struct user_pt_regs___kernel {
	__u64 regs[31];
} __attribute__((preserve_access_index));
#define SECOND_ARGUMENT(regs) BPF_CORE_READ((struct user_pt_regs___kernel *)(regs), regs[1])
#endif

SEC("tp_btf/sys_enter")
int BPF_PROG(call_begins, void *regs, long nr)
{
	__u64 both = bpf_get_current_pid_tgid();
	__u32 tid = both, tgid = both >> 32;
	struct open_call call = { .nr = nr & 0xffff };

	if (!bpf_map_lookup_elem(&called_by, &tgid))
		return 0;
	/* An ioctl's request distinguishes KVM_RUN from others. */
	if (nr == IOCTL)
		call.nr |= SECOND_ARGUMENT(regs) << 16;
	call.since = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&open_calls, &tid, &call, BPF_ANY))
		__sync_fetch_and_add(&shared.calls_lost, 1);
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(call_ends, void *regs, long ret)
{
	__u64 both = bpf_get_current_pid_tgid(), now, took;
	__u32 tid = both, tgid = both >> 32;
	struct open_call *open;
	struct call_time *time, fresh = {};
	struct call key = { .tid = tid, .tgid = tgid };

	if (!bpf_map_lookup_elem(&called_by, &tgid))
		return 0;
	open = bpf_map_lookup_elem(&open_calls, &tid);
	if (!open)
		return 0;
	now = bpf_ktime_get_ns();
	took = open->since < shared.from ? 0 : now - open->since;
	key.nr = open->nr;
	bpf_map_delete_elem(&open_calls, &tid);
	/* Counts only calls entirely in the window. */
	if (!took || now >= shared.until)
		return 0;
	time = bpf_map_lookup_elem(&calls, &key);
	if (!time) {
		bpf_get_current_comm(fresh.comm, sizeof(fresh.comm));
		if (!bpf_map_update_elem(&calls, &key, &fresh, BPF_NOEXIST))
			__sync_fetch_and_add(&shared.calls, 1);
		time = bpf_map_lookup_elem(&calls, &key);
		if (!time) {
			__sync_fetch_and_add(&shared.calls_lost, 1);
			return 0;
		}
	}
	time->count++;
	time->ns += took;
	if (took > time->longest)
		time->longest = took;
	if (ret < 0)
		time->failed++;
	return 0;
}

/* An ending thread is in exit or exit_group, which do not return. Its open call is deleted, because its TID may soon be
 * reused. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(caller_ends)
{
	__u32 tid = bpf_get_current_pid_tgid();

	bpf_map_delete_elem(&open_calls, &tid);
	return 0;
}

SEC("tp_btf/kvm_exit")
int BPF_PROG(guest_left)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct absence *absence = bpf_map_lookup_elem(&absent, &tid);
	struct here *here = this_cpu();
	__u64 now = bpf_ktime_get_ns();

	if (here)
		leave_guest(here, tid, now);
	if (absence)
		absence->from = now;
	return 0;
}

SEC("tp_btf/kvm_entry")
int BPF_PROG(guest_entered)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct absence *absence = bpf_map_lookup_elem(&absent, &tid);
	struct guest_time *time = bpf_map_lookup_elem(&guest_times, &tid);
	struct here *here = this_cpu();
	__u64 now = bpf_ktime_get_ns();

	if (time && here) {
		time->since = now;
		time->seen = 1;
		here->inside = tid;
	}
	if (!absence || !absence->from)
		return 0;
	absence->until = now;
	if (absence->until - absence->from >= SHORTEST_ABSENCE &&
	    bpf_ringbuf_output(&absences, absence, sizeof(*absence), BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&shared.absences_lost, 1);
	absence->from = 0;
	return 0;
}
