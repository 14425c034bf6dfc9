//! Traces as trace-cmd and perf print them, written by hand.

use latpath_ladder::trace_text::{import, Imported, TextError};
use std::sync::atomic::AtomicBool;

fn read(text: &str) -> Result<Imported, TextError> {
    import(&mut text.as_bytes(), &AtomicBool::new(false))
}

/// A legacy PCI device without vhost on x86: pio, a packet of the stack's, MSI, both ways.
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

fn expect_both(imported: &Imported) {
    let report = &imported.report;
    assert_eq!((report.causality_violations, report.queues.len()), (0, 2), "{report:#?}");
    let rungs = |direction: &str| -> Vec<(String, i64)> {
        let queue = report.queues.iter().find(|queue| queue.direction == direction).expect("a queue");
        assert_eq!((queue.device.as_deref(), queue.ladders.len()), (Some("tap0"), 1), "{queue:#?}");
        assert_eq!(queue.ladders[0].variant, "no_vhost");
        queue.ladders[0].rungs.iter().map(|rung| (rung.step.clone(), rung.time.sum_ns / 1000)).collect()
    };
    let named = |rungs: &[(&str, i64)]| rungs.iter().map(|(step, us)| ((*step).to_owned(), *us)).collect::<Vec<_>>();
    let rest = [("interrupt_raised", 10), ("vcpu_reached", 10), ("interrupt_injected", 2), ("guest_handler", 8)];
    let from = [&[("server_woken", 3), ("server_runs", 7), ("packet", 20)][..], &rest].concat();
    let to = [&[("server_woken", 1), ("server_runs", 9), ("packet", 10)][..], &rest].concat();
    assert_eq!((rungs("from_guest"), rungs("to_guest")), (named(&from), named(&to)));
}

#[test]
fn a_trace_of_trace_cmd_gives_both_directions() {
    let imported = read(X86).expect("a trace");
    expect_both(&imported);
    assert_eq!((imported.lines, imported.no_events), (23, 1));
    assert_eq!(imported.report.queues.iter().find_map(|q| q.doorbell.clone()).as_deref(), Some("port 0xc050"));
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

#[test]
fn lines_in_which_events_were_lost_end_what_goes_on() {
    let cut: Vec<&str> = X86.lines().collect();
    let text = [&cut[..8], &["CPU:0 [LOST 12 EVENTS]"], &cut[8..13]].concat().join("\n");
    let report = read(&text).expect("a trace").report;
    assert_eq!((report.lost_events, report.ended_by_loss, report.queues.len()), (12, 1, 0));
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
