//! Traces in the formats of trace-cmd and perf, written by hand.

use latpath_ladder::trace_text::{import, Imported, TextError};
use latpath_ladder::{Direction, MeansReport, Step, Variant};
use std::sync::atomic::AtomicBool;

fn read(text: &str) -> Result<Imported, TextError> {
    import(&mut text.as_bytes(), &AtomicBool::new(false))
}

/// A legacy PCI device without vhost on x86: PIO exits, the network stack's packet events, and MSI, in both directions.
const X86: &str = "\
cpus=2
       CPU 0/KVM-1240  [000]   100.000000: kvm_exit:             vcpu 0 reason io rip 0xffffffff8152d8c5 info1 c0500030 info2 0
       CPU 0/KVM-1240  [000]   100.000002: kvm_pio:              pio_write at 0xc050 size 2 count 1 val 0x1
       CPU 0/KVM-1240  [000]   100.000003: sched_waking:         comm=qemu-system-x86 pid=1234 prio=120 target_cpu=001
       CPU 0/KVM-1240  [000]   100.000004: kvm_entry:            vcpu 0, rip 0xffffffff8152d8c5
          <idle>-0     [001]   100.000010: sched_switch:         swapper/1:0 [120] R ==> qemu-system-x86:1234 [120]
 qemu-system-x86-1234  [001]   100.000030: netif_receive_skb:    dev=tap0 skbaddr=0xffff888001 len=84
 qemu-system-x86-1234  [001]   100.000040: kvm_msi_set_irq:      dst 0 vec 37 (Fixed|physical|edge)
 qemu-system-x86-1234  [001]   100.000041: kvm_apic_accept_irq:  apicid 0 vec 37 (Fixed|edge)
       CPU 0/KVM-1240  [000]   100.000050: kvm_exit:             vcpu 0 reason interrupt rip 0x1 info1 0 info2 0
       CPU 0/KVM-1240  [000]   100.000052: kvm_inj_virq:         IRQ 0x25
       CPU 0/KVM-1240  [000]   100.000053: kvm_entry:            vcpu 0, rip 0x1
       CPU 0/KVM-1240  [000]   100.000060: kvm_eoi:              apicid 0 vector 37
 qemu-system-x86-1234  [001]   100.000061: sched_switch:         qemu-system-x86:1234 [120] S ==> swapper/1:0 [120]
          <idle>-0     [001]   100.000100: net_dev_start_xmit:   dev=tap0 queue_mapping=0 skbaddr=0xffff888002 len=84
          <idle>-0     [001]   100.000101: sched_waking:         comm=qemu-system-x86 pid=1234 prio=120 target_cpu=001
          <idle>-0     [001]   100.000110: sched_switch:         swapper/1:0 [120] R ==> qemu-system-x86:1234 [120]
 qemu-system-x86-1234  [001]   100.000120: skb_copy_datagram_iovec: skbaddr=0xffff888002 len=84
 qemu-system-x86-1234  [001]   100.000130: kvm_msi_set_irq:      dst 0 vec 38 (Fixed|physical|edge)
 qemu-system-x86-1234  [001]   100.000131: kvm_apic_accept_irq:  apicid 0 vec 38 (Fixed|edge)
       CPU 0/KVM-1240  [000]   100.000140: kvm_exit:             vcpu 0 reason interrupt rip 0x1 info1 0 info2 0
       CPU 0/KVM-1240  [000]   100.000142: kvm_inj_virq:         IRQ 0x26
       CPU 0/KVM-1240  [000]   100.000150: kvm_eoi:              apicid 0 vector 38
";

fn microseconds(means: &MeansReport) -> Vec<(Step, i64)> {
    means.rungs.iter().map(|rung| (rung.step, rung.time.sum_ns / 1000)).collect()
}

fn expect_both(imported: &Imported) {
    let report = &imported.report;
    assert_eq!((report.figures.causality_violations, report.figures.queues.len()), (0, 2), "{report:#?}");
    let rungs = |direction: Direction| -> Vec<(Step, i64)> {
        let queue = report.figures.queues.iter().find(|queue| queue.direction == direction).expect("a queue");
        assert_eq!((queue.device.as_deref(), queue.ladders.len()), (Some("tap0"), 1), "{queue:#?}");
        assert_eq!(queue.ladders[0].variant, Variant::NoVhost);
        microseconds(&queue.ladders[0])
    };
    let rest = [(Step::Raised, 10), (Step::Reached, 10), (Step::Injected, 2), (Step::Handled, 8)];
    let from = [&[(Step::Woken, 3), (Step::Runs, 7), (Step::Packet, 20)][..], &rest].concat();
    let to = [&[(Step::Woken, 1), (Step::Runs, 9), (Step::Packet, 10)][..], &rest].concat();
    assert_eq!((rungs(Direction::FromGuest), rungs(Direction::ToGuest)), (from, to));
}

#[test]
fn a_trace_of_trace_cmd_gives_both_directions() {
    let imported = read(X86).expect("a trace");
    expect_both(&imported);
    assert_eq!((imported.lines, imported.no_events), (23, 1));
    assert_eq!(imported.report.figures.queues.iter().find_map(|q| q.doorbell.clone()).as_deref(), Some("port 0xc050"));
}

#[test]
fn perf_script_says_the_same() {
    let of_perf = |line: &str| {
        let line =
            line.replace("CPU 0/KVM-1240", "CPU 0/KVM 1234/1240").replace("qemu-system-x86-1234", "qemu 1234/1234");
        let line =
            line.replace("<idle>-0", "swapper 0/0").replace("kvm_", "kvm:kvm_").replace("sched_", "sched:sched_");
        let switched = [("swapper/1:0 [120] R ==> qemu-system-x86:1234 [120]", "prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=qemu next_pid=1234 next_prio=120"),
            ("qemu-system-x86:1234 [120] S ==> swapper/1:0 [120]", "prev_comm=qemu prev_pid=1234 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120")];
        switched.iter().fold(line, |line, (from, to)| line.replace(from, to)) + "\n"
    };
    let text: String = X86.lines().skip(1).map(of_perf).collect();
    expect_both(&read(&text).expect("a trace"));
}

/// Intel VMX with APICv, without vhost: the guest halts after its kick, so QEMU's posted interrupt wakes the vCPU.
const VMX_HALTED: &str = "\
cpus=2
       CPU 0/KVM-1240  [000]   100.000000: kvm_exit:             vcpu 0 reason PREEMPTION_TIMER rip 0xffffffff8152d8c5 info1 0x0000000000000000 info2 0x0000000000000000 intr_info 0x00000000 error_code 0x00000000
       CPU 0/KVM-1240  [000]   100.000001: kvm_entry:            vcpu 0, rip 0xffffffff8152d8c5
       CPU 0/KVM-1240  [000]   100.000010: kvm_exit:             vcpu 0 reason EPT_MISCONFIG rip 0xffffffff8152d8c5 info1 0x0000000000000000 info2 0x0000000000000000 intr_info 0x00000000 error_code 0x00000000
       CPU 0/KVM-1240  [000]   100.000012: sched_waking:         comm=qemu-system-x86 pid=1234 prio=120 target_cpu=001
       CPU 0/KVM-1240  [000]   100.000013: kvm_fast_mmio:        fast mmio at gpa 0xfe003000
       CPU 0/KVM-1240  [000]   100.000014: kvm_entry:            vcpu 0, rip 0xffffffff8152d8c8
       CPU 0/KVM-1240  [000]   100.000016: kvm_exit:             vcpu 0 reason HLT rip 0xffffffff81a3c1ea info1 0x0000000000000000 info2 0x0000000000000000 intr_info 0x00000000 error_code 0x00000000
       CPU 0/KVM-1240  [000]   100.000018: sched_switch:         CPU 0/KVM:1240 [120] S ==> swapper/0:0 [120]
          <idle>-0     [001]   100.000020: sched_switch:         swapper/1:0 [120] R ==> qemu-system-x86:1234 [120]
 qemu-system-x86-1234  [001]   100.000040: netif_receive_skb:    dev=tap0 skbaddr=0xffff888001 len=84
 qemu-system-x86-1234  [001]   100.000050: kvm_msi_set_irq:      dst 0 vec 37 (Fixed|physical|edge)
 qemu-system-x86-1234  [001]   100.000051: kvm_apic_accept_irq:  apicid 0 vec 37 (Fixed|edge)
 qemu-system-x86-1234  [001]   100.000052: kvm_apicv_accept_irq: apicid 0 vec 37 (Fixed|edge)
 qemu-system-x86-1234  [001]   100.000053: sched_waking:         comm=CPU 0/KVM pid=1240 prio=120 target_cpu=000
          <idle>-0     [000]   100.000060: sched_switch:         swapper/0:0 [120] R ==> CPU 0/KVM:1240 [120]
       CPU 0/KVM-1240  [000]   100.000063: kvm_entry:            vcpu 0, rip 0xffffffff81a3c1eb
 qemu-system-x86-1234  [001]   100.000071: sched_switch:         qemu-system-x86:1234 [120] S ==> swapper/1:0 [120]
";

/// The same with vhost and INTx: QEMU relays the interrupt to a vCPU that runs its guest, and the guest's handler reads
/// the device.
const VMX_RELAYED: &str = "\
cpus=3
       CPU 0/KVM-1240  [000]   100.000000: kvm_exit:             vcpu 0 reason EPT_MISCONFIG rip 0xffffffff8152d8c5 info1 0x0000000000000000 info2 0x0000000000000000 intr_info 0x00000000 error_code 0x00000000
       CPU 0/KVM-1240  [000]   100.000002: sched_waking:         comm=vhost-1234 pid=1244 prio=120 target_cpu=001
       CPU 0/KVM-1240  [000]   100.000003: kvm_fast_mmio:        fast mmio at gpa 0xfe003000
       CPU 0/KVM-1240  [000]   100.000004: kvm_entry:            vcpu 0, rip 0xffffffff8152d8c8
          <idle>-0     [001]   100.000010: sched_switch:         swapper/1:0 [120] R ==> vhost-1234:1244 [120]
      vhost-1234-1244  [001]   100.000030: netif_receive_skb:    dev=tap0 skbaddr=0xffff888001 len=84
      vhost-1234-1244  [001]   100.000035: sched_waking:         comm=qemu-system-x86 pid=1234 prio=120 target_cpu=002
      vhost-1234-1244  [001]   100.000036: sched_switch:         vhost-1234:1244 [120] S ==> swapper/1:0 [120]
          <idle>-0     [002]   100.000040: sched_switch:         swapper/2:0 [120] R ==> qemu-system-x86:1234 [120]
 qemu-system-x86-1234  [002]   100.000050: kvm_set_irq:          gsi 11 level 1 source 0
 qemu-system-x86-1234  [002]   100.000051: kvm_apic_accept_irq:  apicid 0 vec 37 (Fixed|level)
 qemu-system-x86-1234  [002]   100.000052: kvm_apicv_accept_irq: apicid 0 vec 37 (Fixed|level)
       CPU 0/KVM-1240  [000]   100.000060: kvm_exit:             vcpu 0 reason EPT_MISCONFIG rip 0xffffffff8152d8c5 info1 0x0000000000000000 info2 0x0000000000000000 intr_info 0x00000000 error_code 0x00000000
       CPU 0/KVM-1240  [000]   100.000062: kvm_mmio:             mmio unsatisfied-read len 4 gpa 0xfe004000 val 0x0
       CPU 0/KVM-1240  [000]   100.000064: kvm_entry:            vcpu 0, rip 0xffffffff8152d8c8
";

/// The same with vhost and MSI: KVM posts the interrupt signalled by vhost to a sleeping vCPU.
fn vmx_posted() -> String {
    VMX_HALTED
        .replace("qemu-system-x86 pid=1234", "vhost-1234 pid=1244")
        .replace("qemu-system-x86:1234", "vhost-1234:1244")
        .replace("qemu-system-x86-1234", "vhost-1234-1244")
}

#[test]
fn traces_of_vmx_with_apicv_give_each_variant() {
    let expect = |text: &str, variant, by_vhost, last: &[(Step, i64)]| {
        let report = read(text).expect("a trace").report;
        assert_eq!((report.figures.causality_violations, report.figures.queues.len()), (0, 1), "{report:#?}");
        let queue = &report.figures.queues[0];
        assert_eq!((queue.ladders[0].variant, queue.by_vhost, queue.ladders.len()), (variant, by_vhost, 1));
        assert_eq!(queue.doorbell.as_deref(), Some("0xfe003000"));
        assert_eq!(queue.ladders[0].exit_reasons[0].reason, "EPT_MISCONFIG");
        let rungs = microseconds(&queue.ladders[0]);
        assert_eq!(rungs[rungs.len() - last.len()..], *last);
    };
    let woken = [(Step::Raised, 10), (Step::Posted, 2), (Step::Reached, 8), (Step::Entered, 3)];
    expect(VMX_HALTED, Variant::NoVhost, false, &woken);
    expect(&vmx_posted(), Variant::Posted, true, &woken);
    expect(VMX_RELAYED, Variant::Relayed, true, &[(Step::Raised, 10), (Step::Posted, 2), (Step::Handled, 10)]);
}

#[test]
fn a_device_of_vhost_user_is_no_worker_of_vhost() {
    let text = VMX_HALTED.replace("qemu-system-x86", "vhost-device-n");
    let report = read(&text).expect("a trace").report;
    assert!(report.figures.queues.iter().all(|queue| !queue.by_vhost), "{report:#?}");
}

#[test]
fn lines_in_which_events_were_lost_end_what_goes_on() {
    let cut: Vec<&str> = X86.lines().collect();
    let text = [&cut[..8], &["CPU:0 [LOST 12 EVENTS]"], &cut[8..13]].concat().join("\n");
    let report = read(&text).expect("a trace").report;
    assert_eq!((report.lost_events, report.figures.ended_by_loss, report.figures.queues.len()), (12, 1, 0));
}

#[test]
fn files_without_what_a_ladder_needs_are_refused_with_the_next_step() {
    let said = |text: &str| read(text).map(|_| ()).expect_err("nothing to import").to_string();
    assert!(said("").contains("trace-cmd report > FILE"));
    assert!(said("no\nevents\n").contains("no line of it is an event"));
    assert!(said("a-1 [000] 1.0: sched_switch: a:1 [120] S ==> b:2 [120]\n").contains("no kvm_exit event"));
    assert!(said("a-1 [000] 1.0: kvm_exit: vcpu 0 reason io rip 0\n").contains("no sched_switch event"));
}

#[test]
fn a_line_without_an_end_takes_no_more_memory_than_a_long_one() {
    let text = format!("{}\n{X86}", "x".repeat(1 << 20));
    let imported = read(&text).expect("a trace");
    expect_both(&imported);
    assert_eq!(imported.no_events, 2);
}
