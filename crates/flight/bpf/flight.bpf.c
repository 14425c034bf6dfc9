// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The flight recorder keeps the latest events of each CPU. Every program writes one event of 32 bytes into its CPU's
 * ring, which overwrites itself. User space reads the ring while it is written, and detects overwritten events by the
 * head. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "event.h"
#include "kernel.h"
#include "direct.h"
#include "kvm.h"
#include "map.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Base-2 logarithm of the number of events in each CPU's ring. */
const volatile __u32 ring_shift = 15;
/* For doors: of thread switches, record only those from servers, and do not read the reasons of guest exits. */
const volatile _Bool is_for_doors = 0;

SHARED_ARRAY(ring, 1, struct event);
SHARED_ARRAY(heads, 1, struct head);
SHARED_ARRAY(names, NAMES, struct name);
SHARED_ARRAY(allowance, 1, struct allowance);

/* For doors: TIDs of threads that serve queues or raise interrupts. */
MAP(servers, LRU_HASH, 4096, __u32, __u8);

/* Wakes the user-space thread that enforces the budget: gets one entry each time the budget is used up. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} stops SEC(".maps");

static __always_inline struct head *head_of(__u32 cpu)
{
	return bpf_map_lookup_elem(&heads, &cpu);
}

/* Reserves places for a CPU's next n events. */
static __always_inline __u64 take_places(struct head *head, __u32 n)
{
	return __sync_fetch_and_add(&head->next, n);
}

static __always_inline void write_event(__u32 cpu, __u64 at, __u64 now, __u16 kind, __u32 pid, __u64 b, __u64 c)
{
	__u32 place = (cpu << ring_shift) + (at & ((1u << ring_shift) - 1));
	struct event *e = bpf_map_lookup_elem(&ring, &place);

	if (!e)
		return;
	e->time = now;
	e->pid = pid;
	e->b = b;
	e->c = c;
#if defined(__TARGET_ARCH_x86)
	e->kind = kind;
	asm volatile("" ::: "memory");
	*(volatile __u16 *)&e->generation = at >> ring_shift;
#else
	/* An exchange is a full barrier. It writes kind and generation together, because they share a word. */
	__sync_lock_test_and_set((__u32 *)&e->kind, (__u32)kind | (__u32)(at >> ring_shift) << 16);
#endif
}

/* Takes a part of the budget for this CPU's next events. When the budget is used up, each CPU stops after its current
 * part, until user space permits recording again. User space is woken immediately, and detaches the programs, because
 * entering and leaving them takes time too. */
__noinline int take_part(struct head *head)
{
	__u32 zero = 0;
	struct allowance *all = bpf_map_lookup_elem(&allowance, &zero);
	__u64 now, used;

	if (!head || !all)
		return 0;
	if (*(volatile __u64 *)&all->stopped)
		goto refused;
	now = bpf_ktime_get_ns();
	used = *(volatile __u64 *)&all->used_until;
	if (used < now)
		__sync_val_compare_and_swap(&all->used_until, used, now);
	used = __sync_fetch_and_add(&all->used_until, all->part_ns);
	if (used <= now + all->burst_ns) {
		head->limit = head->next + BUDGET_EVENTS;
		return 1;
	}
	if (!__sync_val_compare_and_swap(&all->stopped, 0, now))
		bpf_ringbuf_output(&stops, &now, sizeof(now), BPF_RB_FORCE_WAKEUP);
refused:
	head->refused++;
	return 0;
}

/* The CPU, its ring, and the time of the event. */
struct here {
	struct head *head;
	__u64 now;
	__u32 cpu;
};

/* Returns false if nothing is to be recorded. The time is read before a place is taken: an interrupt between the two
 * gets an earlier place but has a later time, so user space sorts by time. The place is taken atomically, because
 * interrupts and NMIs record in between. Reading the clock is by far the most expensive part. */
static __always_inline _Bool is_here(struct here *here)
{
	here->cpu = bpf_get_smp_processor_id();
	here->head = head_of(here->cpu);
	if (!here->head)
		return 0;
	if (here->head->next >= here->head->limit && !take_part(here->head))
		return 0;
	here->now = bpf_ktime_get_ns();
	return 1;
}

static __always_inline void record_at(const struct here *here, __u16 kind, __u32 pid, __u64 b, __u64 c)
{
	write_event(here->cpu, take_places(here->head, 1), here->now, kind, pid, b, c);
	/* Measure the cost of one event in 64. */
	if ((here->now >> 5 & 63) == 0) {
		here->head->cost_ns += bpf_ktime_get_ns() - here->now;
		here->head->cost_samples++;
	}
}

static __always_inline int record(__u16 kind, __u32 pid, __u64 b, __u64 c)
{
	struct here here;

	if (is_here(&here))
		record_at(&here, kind, pid, b, c);
	return 0;
}

static __always_inline __u32 current_pid(void)
{
	return (__u32)bpf_get_current_pid_tgid();
}

static __always_inline int record_here(__u16 kind, __u64 b, __u64 c)
{
	return record(kind, current_pid(), b, c);
}

static __always_inline __u64 low_high(__u32 low, __u32 high)
{
	return low | (__u64)high << 32;
}

/* Stores a thread's name. If two CPUs write the same entry simultaneously, one of them gives up. */
static __always_inline void write_name(struct name *n, struct task_struct *p, __u32 pid, const void *comm)
{
	if (__sync_lock_test_and_set(&n->pid, BUSY) == BUSY)
		return;
	n->tgid = p->tgid;
	n->flags = p->flags;
	bpf_probe_read_kernel(n->comm, sizeof(n->comm), comm);
	__sync_lock_test_and_set(&n->pid, pid);
}

static __always_inline struct name *name_of(__u32 pid)
{
	__u32 place = pid & (NAMES - 1);

	return pid ? bpf_map_lookup_elem(&names, &place) : 0;
}

static __always_inline __u64 throttled(struct task_struct *p)
{
	struct cfs_rq *rq;

	if (bpf_core_field_exists(struct task_struct___throttled, throttled))
		return ((struct task_struct___throttled *)p)->throttled ? FLAG_THROTTLED : 0;
	if (!bpf_core_field_exists(struct cfs_rq, throttle_count))
		return 0;
	rq = UNTRUSTED(p)->se.cfs_rq;
	return rq && rq->throttle_count > 0 ? FLAG_THROTTLED : 0;
}

static __always_inline __u32 cpu_of(struct task_struct *p)
{
	if (bpf_core_field_exists(struct task_struct___with_cpu, cpu))
		return ((struct task_struct___with_cpu *)p)->cpu;
	return p->thread_info.cpu;
}

/* Whether a thread sleeps in TASK_UNINTERRUPTIBLE (include/linux/sched.h), except for the frequent TASK_IDLE (0x400)
 * and locks of PREEMPT_RT (0x1000). */
static __always_inline _Bool is_blocked(__u32 state)
{
	return (state & 0x1402) == 0x2;
}

/* Limits how many stacks are read: on busy machines many threads block briefly. */
static __always_inline _Bool may_read_stack(const struct here *here)
{
	struct head *head = here->head;

	if (here->now - head->stacks_since > STACKS_NS) {
		head->stacks_since = here->now;
		head->stacks = 0;
	}
	return head->stacks++ < STACKS;
}

/* Records where a thread blocks. Skips the first functions, which belong to this program, the tracepoint and the
 * scheduler. */
static __always_inline void blocked_at(void *ctx, const struct here *here, __u32 pid)
{
	__u64 at[SKIPPED + DEPTH] = {};
	int i;

	if (!may_read_stack(here) || bpf_get_stack(ctx, at, sizeof(at), 0) < 0)
		return;
	for (i = SKIPPED; i < SKIPPED + DEPTH; i += 2)
		if (at[i])
			record_at(here, BLOCKED_AT, pid, at[i], at[i + 1]);
}

/* Records the page faults of the thread that is switched out, and stores the current count of the next one. */
static __always_inline void count_faults(const struct here *here, struct task_struct *prev, struct task_struct *next)
{
	struct head *head = here->head;
	__u64 faults;
	_Bool known;

	/* The count at switch-in is unknown for the first thread on each CPU, and after a missed switch. */
	known = head->pid == prev->pid;
	faults = prev->min_flt + prev->maj_flt - head->faults;
	head->faults = next->min_flt + next->maj_flt;
	head->pid = next->pid;
	if (known && faults >= FEW_FAULTS && prev->pid)
		record_at(here, PAGE_FAULTS, prev->pid, faults, 0);
}

static __always_inline void learn_name(struct task_struct *p)
{
	__u32 pid = p->pid;
	struct name *n = name_of(pid);

	if (n && n->pid != pid)
		write_name(n, p, pid, p->comm);
}

static __always_inline int switched(void *ctx, _Bool preempt, struct task_struct *prev, struct task_struct *next,
				    __u32 state)
{
	__u32 from = prev->pid;
	struct here here;
	__u64 flags;

	learn_name(next);
	if (is_for_doors && !bpf_map_lookup_elem(&servers, &from))
		return 0;
	if (!is_here(&here))
		return 0;
	flags = (preempt ? FLAG_PREEMPTED : 0) | throttled(prev);
	count_faults(&here, prev, next);
	if (!preempt && is_blocked(state))
		blocked_at(ctx, &here, prev->pid);
	record_at(&here, SWITCH, from, low_high(next->pid, state),
		  (__u16)prev->prio | (__u64)(__u16)next->prio << 16 | (__u64)(__u8)prev->policy << 32 |
			  (__u64)(__u8)next->policy << 40 | flags << 48);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switch_with_state, _Bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int state)
{
	return switched(ctx, preempt, prev, next, state);
}

/* Linux 5.15 to 5.17 do not report the previous thread's state. */
SEC("tp_btf/sched_switch")
int BPF_PROG(switch_without_state, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	return switched(ctx, preempt, prev, next, prev->__state);
}

static __always_inline int woken(__u16 kind, struct task_struct *p)
{
	struct here here;

	if (is_here(&here))
		record_at(&here, kind, current_pid(), low_high(p->pid, cpu_of(p)),
			  (__u16)p->prio | (__u64)(__u8)p->policy << 32 | throttled(p) << 48);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(waking, struct task_struct *p)
{
	return woken(WAKING, p);
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(wakeup, struct task_struct *p)
{
	return woken(WAKEUP, p);
}

/* A new thread may reuse the TID of one that has ended. */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(wakeup_new, struct task_struct *p)
{
	__u32 pid = p->pid;
	struct name *n = name_of(pid);

	if (n)
		write_name(n, p, pid, p->comm);
	return woken(WAKEUP, p);
}

SEC("tp_btf/task_rename")
int BPF_PROG(rename, struct task_struct *p, const char *comm)
{
	__u32 pid = p->pid;
	struct name *n = name_of(pid);

	if (n)
		write_name(n, p, pid, comm);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(migrate, struct task_struct *p, int to)
{
	return record_here(MIGRATE, low_high(p->pid, to), cpu_of(p));
}

/* Defines the program for a tracepoint whose event has a single number, computed from its arguments. */
#define EVENT(name, tracepoint, kind, number, ...)                \
	SEC("tp_btf/" #tracepoint)                                \
	int BPF_PROG(name, ##__VA_ARGS__)                         \
	{                                                         \
		return record_here(kind, number, 0);              \
	}

EVENT(irq_entry, irq_handler_entry, IRQ_ENTRY, (__u32)irq, int irq)
EVENT(irq_exit, irq_handler_exit, IRQ_EXIT, (__u32)irq, int irq)
EVENT(softirq_raise, softirq_raise, SOFTIRQ_RAISE, vector, unsigned int vector)
EVENT(softirq_entry, softirq_entry, SOFTIRQ_ENTRY, vector, unsigned int vector)
EVENT(softirq_exit, softirq_exit, SOFTIRQ_EXIT, vector, unsigned int vector)
EVENT(cpu_idle, cpu_idle, IDLE, state, unsigned int state)
EVENT(hrtimer_entry, hrtimer_expire_entry, HRTIMER_ENTRY, (__u64)timer->function, struct hrtimer *timer)
EVENT(hrtimer_exit, hrtimer_expire_exit, HRTIMER_EXIT, 0)
EVENT(timer_entry, timer_expire_entry, TIMER_ENTRY, (__u64)timer->function, struct timer_list *timer)
EVENT(timer_exit, timer_expire_exit, TIMER_EXIT, 0)
EVENT(work_start, workqueue_execute_start, WORK_START, (__u64)work->func, struct work_struct *work)
EVENT(work_end, workqueue_execute_end, WORK_END, 0)
EVENT(reclaim_begin, mm_vmscan_direct_reclaim_begin, RECLAIM_BEGIN, 0)
EVENT(reclaim_end, mm_vmscan_direct_reclaim_end, RECLAIM_END, 0)
EVENT(group_reclaim_begin, mm_vmscan_memcg_reclaim_begin, RECLAIM_BEGIN, 0)
EVENT(group_reclaim_end, mm_vmscan_memcg_reclaim_end, RECLAIM_END, 0)
EVENT(kvm_inject, kvm_inj_virq, KVM_INJ_VIRQ, vector, unsigned int vector)

/* arch/x86/include/asm/trace/irq_vectors.h */
#define VECTOR(name, class)                                       \
	EVENT(name##_entry, name##_entry, VECTOR_ENTRY, class)    \
	EVENT(name##_exit, name##_exit, VECTOR_EXIT, class)

VECTOR(local_timer, LOCAL_TIMER)
VECTOR(reschedule, RESCHEDULE)
VECTOR(call_function, CALL_FUNCTION)
VECTOR(call_function_single, CALL_FUNCTION_SINGLE)
VECTOR(irq_work, IRQ_WORK)
VECTOR(x86_platform_ipi, PLATFORM_IPI)
VECTOR(thermal_apic, THERMAL)
/* include/trace/events/ipi.h: ARM */
VECTOR(ipi, IPI)

SEC("tp_btf/nmi_handler")
int BPF_PROG(nmi, void *handler, __s64 took)
{
	return record_here(NMI, took, (__u64)handler);
}

/* A poll without a device polls the CPU's own backlog. */
SEC("tp_btf/napi_poll")
int BPF_PROG(napi_poll, struct napi_struct *napi, int work, int budget)
{
	struct net_device *dev = UNTRUSTED(napi)->dev;
	__u64 at, name[2] = {};
	struct here here;
	__u32 pid;

	if (!is_here(&here))
		return 0;
	pid = current_pid();
	if (!dev) {
		record_at(&here, NAPI_WORK, pid, low_high(work, budget), 0);
		return 0;
	}
	bpf_probe_read_kernel(name, sizeof(name), dev->name);
	at = take_places(here.head, 2);
	write_event(here.cpu, at, here.now, NAPI_POLL, pid, name[0], name[1]);
	write_event(here.cpu, at + 1, here.now, NAPI_WORK, pid, low_high(work, budget), (__u32)dev->ifindex);
	return 0;
}

/* The vCPU's ID. The null check is for recent kernels, which assume that pointers passed to modules' tracepoints may be
 * null. */
static __always_inline __u32 number_of(struct kvm_vcpu *vcpu)
{
	return vcpu ? (__u32)vcpu->vcpu_id : UNKNOWN;
}

#if defined(__TARGET_ARCH_x86)
SEC("tp_btf/kvm_entry")
int BPF_PROG(kvm_entry, struct kvm_vcpu *vcpu)
{
	return record_here(KVM_ENTRY, number_of(vcpu), 0);
}

SEC("tp_btf/kvm_exit")
int BPF_PROG(kvm_exit, struct kvm_vcpu *vcpu, __u32 isa)
{
	__u32 reason = is_for_doors ? UNKNOWN : exit_reason(vcpu, isa);

	return record_here(KVM_EXIT, low_high(number_of(vcpu), reason), isa);
}

/* Linux 5.15 passes the reason. */
SEC("tp_btf/kvm_exit")
int BPF_PROG(kvm_exit_with_reason, unsigned int reason, struct kvm_vcpu *vcpu, __u32 isa)
{
	return record_here(KVM_EXIT, low_high(number_of(vcpu), reason), isa);
}
#else
/* arch/arm64/kvm/trace_arm.h: the tracepoints do not pass the vCPU. */
SEC("tp_btf/kvm_entry")
int BPF_PROG(kvm_entry)
{
	return record_here(KVM_ENTRY, UNKNOWN, 0);
}

SEC("tp_btf/kvm_exit")
int BPF_PROG(kvm_exit, int ret, unsigned int class)
{
	return record_here(KVM_EXIT, low_high(UNKNOWN, exit_reason(ret, class)), ISA_ARM);
}
#endif

SEC("tp_btf/kvm_halt_poll_ns")
int BPF_PROG(kvm_halt_poll, _Bool grow, unsigned int vcpu, unsigned int now, unsigned int before)
{
	return record_here(KVM_HALT_POLL, low_high(vcpu, now), before);
}

SEC("tp_btf/kvm_vcpu_wakeup")
int BPF_PROG(kvm_wakeup, __u64 ns, _Bool waited, _Bool valid)
{
	return record_here(KVM_VCPU_WAKEUP, ns, waited | valid << 1);
}

SEC("tp_btf/ovs_dp_upcall")
int BPF_PROG(ovs_upcall, void *dp, void *skb, void *key, struct dp_upcall_info *info)
{
	return record_here(OVS_UPCALL, info ? info->cmd : 0, 0);
}

#include "transfers.h"
