//! The kernel has the features that the other tests require.

use crate::{Outcome, Scale, Test};
use anyhow::ensure;
use std::{fs, path::Path};

pub const TEST: Test = Test { name: "boots", smoke: true, only_whole: false, seconds: 30, run };

fn run(_: &Scale) -> Outcome {
    for (what, file) in [
        ("kprobes", "/sys/kernel/tracing/kprobe_events"),
        ("the kernel's types", "/sys/kernel/btf/vmlinux"),
        ("functions to attach to", "/sys/kernel/tracing/available_filter_functions"),
        ("Open vSwitch's datapath", "/sys/module/openvswitch"),
        ("vhost for networks", "/sys/module/vhost_net"),
        ("vhost's device", "/dev/vhost-net"),
        ("vhost for vsocks", "/dev/vhost-vsock"),
        ("KVM", "/dev/kvm"),
    ] {
        ensure!(Path::new(file).exists(), "no {what}: {file} is missing");
    }
    let kprobes = fs::read_to_string("/sys/kernel/debug/kprobes/enabled")?;
    ensure!(kprobes.trim() == "1", "kprobes are off");
    Ok(())
}
