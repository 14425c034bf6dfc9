//! Why a vCPU left its guest: the reasons' names, by the CPU vendors' manuals.

/// Intel, by number (SDM volume 3, appendix C).
const VMX: &[(u32, &str)] = &[
    (0, "exception or NMI"),
    (1, "external interrupt"),
    (7, "interrupt window"),
    (10, "CPUID"),
    (12, "HLT"),
    (18, "VMCALL"),
    (28, "control register"),
    (30, "I/O instruction"),
    (31, "RDMSR"),
    (32, "WRMSR"),
    (40, "PAUSE"),
    (44, "APIC access"),
    (45, "EOI"),
    (48, "EPT violation"),
    (49, "EPT misconfiguration"),
    (52, "preemption timer"),
    (54, "WBINVD"),
    (55, "XSETBV"),
    (56, "APIC write"),
];

/// AMD, by number (APM volume 2, appendix C).
const SVM: &[(u32, &str)] = &[
    (0x60, "external interrupt"),
    (0x61, "NMI"),
    (0x64, "interrupt window"),
    (0x72, "CPUID"),
    (0x77, "PAUSE"),
    (0x78, "HLT"),
    (0x7b, "I/O instruction"),
    (0x7c, "MSR"),
    (0x7f, "shutdown"),
    (0x81, "VMMCALL"),
    (0x8d, "XSETBV"),
    (0x400, "nested page fault"),
    (0x401, "AVIC incomplete IPI"),
    (0x402, "AVIC no acceleration"),
];

/// A reason's name; its number where it has none here.
pub(crate) fn exit_name(isa: u32, reason: Option<u32>) -> String {
    let Some(reason) = reason else { return "out of its guest".into() };
    let names = match isa {
        1 => VMX,
        2 => SVM,
        _ => &[],
    };
    // Above bit 15 Intel has flags.
    let number = if isa == 1 { reason & 0xffff } else { reason };
    match names.iter().find(|(n, _)| *n == number) {
        Some((_, name)) => format!("exit: {name}"),
        None => format!("exit: reason {reason}"),
    }
}
