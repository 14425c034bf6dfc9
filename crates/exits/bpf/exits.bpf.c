// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Accumulates each vCPU thread's time by state, and the reasons and durations of its exits. Nothing is sent to user
 * space, which reads the sums in the maps.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "kernel.h"
#include "kvm.h"
#include "map.h"
#include "vcpu_time.h"
#include "shared.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Whether to watch only the threads announced by user space. */
const volatile __u32 only_known = 0;
const volatile __u32 slots_max = 0;

MAP(cpus, ARRAY, 1, __u32, struct here);

/* Slot of a thread, from 1. */
MAP(slots, HASH, 1, __u32, __u32);
SHARED_ARRAY(vcpus, 1, struct vcpu);
SHARED_ARRAY(rows, 1, struct row);
SHARED_ARRAY(interrupts, 1, struct interrupts);

/* A global variable: needs no map lookup. */
struct shared shared = {};

static __always_inline struct here *this_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline struct vcpu *in_slot(__u32 slot)
{
	return slot ? bpf_map_lookup_elem(&vcpus, &slot) : 0;
}

static __always_inline struct row *row_of(__u32 slot, __u32 row)
{
	__u32 place = slot * REASONS + (row & (REASONS - 1));

	return bpf_map_lookup_elem(&rows, &place);
}

/* Begins the update of a vCPU; returns false if the event must not be counted. All programs use the same window. An
 * event in an interrupt is skipped if the interrupt hit a program while it updated the same vCPU. */
static __always_inline _Bool begin(struct vcpu *v, __u64 now)
{
	if (now < v->from || now >= v->until)
		return 0;
	if (v->seq & 1) {
		v->skipped++;
		return 0;
	}
#if defined(__TARGET_ARCH_x86)
	*(volatile __u32 *)&v->seq = v->seq + 1;
	asm volatile("" ::: "memory");
#else
	__sync_fetch_and_add(&v->seq, 1);
#endif
	return 1;
}

static __always_inline void end(struct vcpu *v)
{
#if defined(__TARGET_ARCH_x86)
	asm volatile("" ::: "memory");
	*(volatile __u32 *)&v->seq = v->seq + 1;
#else
	__sync_fetch_and_add(&v->seq, 1);
#endif
}

/* The word that contains a thread's mark. A thread whose TID has no mark is not a vCPU, which saves a map lookup. */
static __always_inline __u64 *mark_of(__u32 tid)
{
	__u32 word = tid >> 6;

	BOUND(word, MARKS);
	return &shared.marks[word];
}

static __always_inline __u32 slot_of(__u32 tid)
{
	__u32 *slot;

	if (!(*mark_of(tid) & 1ull << (tid & 63)))
		return 0;
	slot = bpf_map_lookup_elem(&slots, &tid);
	return slot ? *slot : 0;
}

static __noinline __u32 new_slot(__u32 tid, __u32 tgid, __u64 now)
{
	struct vcpu *v;
	__u32 slot;

	if (only_known)
		return 0;
	if (shared.next_slot >= slots_max) {
		__sync_fetch_and_add(&shared.no_room, 1);
		return 0;
	}
	slot = __sync_fetch_and_add(&shared.next_slot, 1);
	v = slot < slots_max ? in_slot(slot) : 0;
	if (!v)
		return 0;
	v->tid = tid;
	v->tgid = tgid;
	v->id = NO_ID;
	v->from = v->since = now > shared.from ? now : shared.from;
	v->until = shared.until;
	if (bpf_map_update_elem(&slots, &tid, &slot, BPF_ANY))
		return 0;
	__sync_fetch_and_or(mark_of(tid), 1ull << (tid & 63));
	return slot;
}

/* Slot of this CPU's current thread, which is in KVM_RUN. */
static __always_inline __u32 slot_in_run(struct here *here, __u64 now)
{
	__u64 both;

	if (here->slot)
		return here->slot;
	both = bpf_get_current_pid_tgid();
	here->slot = slot_of((__u32)both);
	if (!here->slot)
		here->slot = new_slot((__u32)both, both >> 32, now);
	return here->slot;
}

/* Row of a reason; rows are allocated in order of appearance. */
static __always_inline __u32 row_for(__u32 isa, __u32 reason)
{
	__u32 code = isa == ISA_VMX ? reason & 0xffff : reason, place = code ^ code >> 22, row;

	BOUND(place, CODES);
	row = shared.row_of_code[place];
	if (row)
		return row < REASONS && shared.reasons[row] == code ? row : NO_ROW;
	row = __sync_fetch_and_add(&shared.next_row, 1);
	if (row >= REASONS) {
		shared.next_row = REASONS;
		return NO_ROW;
	}
	shared.reasons[row] = code;
	shared.isa = isa;
	shared.row_of_code[place] = row;
	return row;
}

#if defined(__TARGET_ARCH_x86)
#define OF_VCPU(vcpu, field) ((vcpu)->field)
#else
/* The tracepoint does not pass the vCPU, but KVM is built in on this architecture and has a per-CPU variable that
 * points to the running vCPU (virt/kvm/kvm_main.c). Programs cannot access it in kernels without CONFIG_KALLSYMS_ALL.
 */
extern struct kvm_vcpu *kvm_running_vcpu __ksym __weak;

#define OF_VCPU(vcpu, field) BPF_CORE_READ(vcpu, field)

static __always_inline struct kvm_vcpu *running_vcpu(void)
{
	struct kvm_vcpu **running = &kvm_running_vcpu ? bpf_this_cpu_ptr(&kvm_running_vcpu) : 0;

	return running ? *running : 0;
}
#endif

/* The running thread's vCPU if its event may be counted; the update then lasts until end(). */
static __always_inline struct vcpu *begin_in_run(__u64 now, __u32 *slot)
{
	struct here *here = this_cpu();
	struct vcpu *v;

	if (!here)
		return 0;
	*slot = slot_in_run(here, now);
	v = in_slot(*slot);
	return v && begin(v, now) ? v : 0;
}

static __always_inline int entered(struct kvm_vcpu *vcpu)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 slot;
	struct vcpu *v = begin_in_run(now, &slot);
	struct row *row;

	if (!v)
		return 0;
	if (v->id == NO_ID && vcpu)
		v->id = OF_VCPU(vcpu, vcpu_id);
	v->window = vcpu ? OF_VCPU(vcpu, halt_poll_ns) : ~0ull;
	row = row_of(slot, v->row);
	if (row)
		on_entry(v, now, row);
	end(v);
	return 0;
}

static __always_inline int left(__u32 isa, __u32 reason)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 slot;
	struct vcpu *v = begin_in_run(now, &slot);
	struct row *row;

	if (!v)
		return 0;
	row = row_of(slot, v->row);
	if (row)
		on_exit(v, now, row_for(isa, reason), row);
	end(v);
	return 0;
}

#if defined(__TARGET_ARCH_x86)
SEC("tp_btf/kvm_entry")
int BPF_PROG(kvm_entry, struct kvm_vcpu *vcpu)
{
	return entered(vcpu);
}

SEC("tp_btf/kvm_exit")
int BPF_PROG(kvm_exit, struct kvm_vcpu *vcpu, __u32 isa)
{
	return left(isa, exit_reason(vcpu, isa));
}

/* Linux 5.15 passes the reason. */
SEC("tp_btf/kvm_exit")
int BPF_PROG(kvm_exit_with_reason, unsigned int reason, struct kvm_vcpu *vcpu, __u32 isa)
{
	return left(isa, reason);
}
#else
SEC("tp_btf/kvm_entry")
int BPF_PROG(kvm_entry)
{
	return entered(running_vcpu());
}

SEC("tp_btf/kvm_exit")
int BPF_PROG(kvm_exit, int ret, unsigned int class)
{
	return left(ISA_ARM, exit_reason(ret, class));
}
#endif

/* Used where the vCPU is not available: its ID and maximum polling time then remain unknown. */
SEC("tp_btf/kvm_entry")
int BPF_PROG(kvm_entry_of_any)
{
	return entered(0);
}

/* Applies `what` to the vCPU whose thread runs on this CPU, if any. */
#define TO_CURRENT(what)                                          \
	({                                                        \
		struct here *here = this_cpu();                   \
		struct vcpu *v = here ? in_slot(here->slot) : 0;  \
		__u64 now = v ? bpf_ktime_get_ns() : 0;           \
                                                                  \
		if (v && begin(v, now)) {                         \
			what;                                     \
			end(v);                                   \
		}                                                 \
		0;                                                \
	})

SEC("tp_btf/kvm_userspace_exit")
int BPF_PROG(user_exit)
{
	return TO_CURRENT(on_user_exit(v, now));
}

/* x86: the guest's registers are loaded when KVM_RUN begins. */
SEC("tp_btf/kvm_fpu")
int BPF_PROG(run, int load)
{
	return load ? TO_CURRENT(on_run(v, now)) : 0;
}

SEC("tp_btf/kvm_vcpu_wakeup")
int BPF_PROG(halt_end, __u64 ns, _Bool waited, _Bool valid)
{
	return TO_CURRENT(on_halt_end(v, now, ns, waited));
}

SEC("tp_btf/kvm_inj_virq")
int BPF_PROG(injected)
{
	return TO_CURRENT(v->injected++);
}

static __always_inline int accepted_somewhere(__u64 now)
{
	if (now >= shared.from && now < shared.until)
		__sync_fetch_and_add(&shared.accepted, 1);
	return 0;
}

#if defined(__TARGET_ARCH_x86)
static __always_inline _Bool is_posted(struct kvm_lapic *apic)
{
	struct kvm_vcpu___apicv *vcpu;

	if (bpf_core_field_exists(apic->apicv_active))
		return apic->apicv_active;
	vcpu = (void *)apic->vcpu;
	return BPF_CORE_READ(vcpu, arch.apicv_active);
}

/* A vCPU's virtual APIC accepts an interrupt from KVM, in any thread or interrupt context. This includes interrupts
 * that a CPU with APICv or AVIC then delivers by itself. KVM's tracepoint kvm_apic_accept_irq is in this function, but
 * does not report the vCPU. */
SEC("fentry/__apic_accept_irq")
int BPF_PROG(accepts, struct kvm_lapic *apic, int mode, int vector)
{
	__u32 tid = BPF_CORE_READ(apic, vcpu, pid, numbers[0].nr), slot = slot_of(tid), v = vector, m = mode >> 8;
	struct interrupts *taken = slot ? bpf_map_lookup_elem(&interrupts, &slot) : 0;
	__u64 now = bpf_ktime_get_ns();

	if (!taken)
		return accepted_somewhere(now);
	if (now < shared.from || now >= shared.until)
		return 0;
	BOUND(m, DELIVERY_MODES);
	__sync_fetch_and_add(&taken->modes[m], 1);
	if (m > 1)
		return 0;
	BOUND(v, VECTORS);
	__sync_fetch_and_add(&taken->accepted[v], 1);
	if (is_posted(apic))
		__sync_fetch_and_add(&taken->posted[v], 1);
	return 0;
}
#endif

/* Used where no program can attach to __apic_accept_irq. */
SEC("tp_btf/kvm_apic_accept_irq")
int BPF_PROG(accepted)
{
	return accepted_somewhere(bpf_ktime_get_ns());
}

static __always_inline int switched(_Bool preempt, struct task_struct *next, __u32 state)
{
	struct here *here = this_cpu();
	struct vcpu *from, *to;
	__u32 slot;
	__u64 now;

	if (!here)
		return 0;
	slot = slot_of(next->pid);
	if (!slot && !here->slot)
		return 0;
	now = bpf_ktime_get_ns();
	from = in_slot(here->slot);
	if (from && begin(from, now)) {
		on_switch_out(from, now, preempt || !state);
		end(from);
	}
	here->slot = slot;
	to = in_slot(slot);
	if (to && begin(to, now)) {
		on_switch_in(to, now);
		end(to);
	}
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switch_with_state, _Bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int state)
{
	return switched(preempt, next, state);
}

/* Linux 5.15 to 5.17 do not pass the state. */
SEC("tp_btf/sched_switch")
int BPF_PROG(switch_without_state, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	return switched(preempt, next, prev->__state);
}

/* Runs on the waker's CPU. If the woken thread still runs, its own events could race with this one, so the wakeup is
 * ignored. A sleeping thread has no events: the scheduler's lock is held both here and when a thread goes to sleep. */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(wakeup, struct task_struct *p)
{
	struct vcpu *v = in_slot(slot_of(p->pid));
	__u64 now;

	if (!v || !(v->state == ASLEEP || (v->state == NOT_KNOWN && !p->on_cpu)))
		return 0;
	now = bpf_ktime_get_ns();
	if (begin(v, now)) {
		on_wakeup(v, now);
		end(v);
	}
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(thread_end, struct task_struct *p)
{
	__u32 tid = p->pid;
	struct here *here = this_cpu();
	struct vcpu *v = in_slot(slot_of(tid));

	__u64 now;

	if (!v)
		return 0;
	now = bpf_ktime_get_ns();
	if (begin(v, now)) {
		on_thread_end(v, now);
		end(v);
	}
	bpf_map_delete_elem(&slots, &tid);
	if (here)
		here->slot = 0;
	return 0;
}

/* Defines programs for the tracepoints at the start and end of an interrupt. */
#define INTERRUPT(name)                                  \
	SEC("tp_btf/" #name "_entry")                    \
	int BPF_PROG(name##_entry)                       \
	{                                                \
		return TO_CURRENT(on_interrupt(v, now)); \
	}                                                \
	SEC("tp_btf/" #name "_exit")                     \
	int BPF_PROG(name##_exit)                        \
	{                                                \
		return TO_CURRENT(on_interrupt_end(v, now)); \
	}

INTERRUPT(irq_handler)
INTERRUPT(softirq)
INTERRUPT(local_timer)
INTERRUPT(reschedule)
INTERRUPT(call_function)
INTERRUPT(call_function_single)
INTERRUPT(irq_work)
INTERRUPT(x86_platform_ipi)
INTERRUPT(thermal_apic)
/* ARM */
INTERRUPT(ipi)
