//! Why vCPUs leave their guests, by the CPUs' vendors' numbers. Names are the kernel's, as `perf kvm stat` prints them.

/// A reason's name. `isa` as KVM's tracepoint gives it: 1 is Intel's VMX, 2 AMD's SVM, 3 ARM.
pub fn name(isa: u32, reason: u32) -> Option<&'static str> {
    match isa {
        1 => vmx(reason & 0xffff),
        2 => svm(reason),
        3 => arm(reason),
        _ => None,
    }
}

/// Whether the guest had nothing to do.
pub(crate) fn is_halt(isa: u32, reason: u32) -> bool {
    matches!(name(isa, reason), Some("HLT" | "WFx"))
}

/// arch/x86/include/uapi/asm/vmx.h
fn vmx(reason: u32) -> Option<&'static str> {
    Some(match reason {
        0 => "EXCEPTION_NMI",
        1 => "EXTERNAL_INTERRUPT",
        7 => "INTERRUPT_WINDOW",
        8 => "NMI_WINDOW",
        10 => "CPUID",
        12 => "HLT",
        14 => "INVLPG",
        16 => "RDTSC",
        18 => "VMCALL",
        28 => "CR_ACCESS",
        30 => "IO_INSTRUCTION",
        31 => "MSR_READ",
        32 => "MSR_WRITE",
        36 => "MWAIT_INSTRUCTION",
        40 => "PAUSE_INSTRUCTION",
        43 => "TPR_BELOW_THRESHOLD",
        44 => "APIC_ACCESS",
        45 => "EOI_INDUCED",
        48 => "EPT_VIOLATION",
        49 => "EPT_MISCONFIG",
        52 => "PREEMPTION_TIMER",
        54 => "WBINVD",
        55 => "XSETBV",
        56 => "APIC_WRITE",
        62 => "PML_FULL",
        _ => return None,
    })
}

/// arch/x86/include/uapi/asm/svm.h
fn svm(reason: u32) -> Option<&'static str> {
    Some(match reason {
        0x040..=0x05f => "EXCEPTION",
        0x060 => "INTR",
        0x061 => "NMI",
        0x064 => "VINTR",
        0x06e => "RDTSC",
        0x072 => "CPUID",
        0x074 => "IRET",
        0x077 => "PAUSE",
        0x078 => "HLT",
        0x079 => "INVLPG",
        0x07b => "IOIO",
        0x07c => "MSR",
        0x07f => "SHUTDOWN",
        0x081 => "VMMCALL",
        0x089 => "WBINVD",
        0x08b => "MWAIT",
        0x08d => "XSETBV",
        0x400 => "NPF",
        0x401 => "AVIC_INCOMPLETE_IPI",
        0x402 => "AVIC_UNACCELERATED_ACCESS",
        _ => return None,
    })
}

/// arch/arm64/include/asm/esr.h: exception classes.
fn arm(class: u32) -> Option<&'static str> {
    Some(match class {
        0x01 => "WFx",
        0x16 => "HVC64",
        0x17 => "SMC64",
        0x18 => "SYS64",
        0x20 => "IABT_LOW",
        0x24 => "DABT_LOW",
        _ => return None,
    })
}
