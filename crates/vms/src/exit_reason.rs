//! Names of VM exit reasons by vendor and number, as printed by the kernel and by `perf kvm stat`.

use std::{borrow::Cow, collections::HashMap, fs, path::Path, sync::OnceLock};

/// Instruction set to which a reason's number belongs, as in KVM's tracepoint: Intel VMX.
pub const VMX: u32 = 1;
/// Instruction set: AMD SVM.
pub const SVM: u32 = 2;
/// Instruction set: ARM, where reasons are exception classes. KVM's ARM tracepoint has no such field; latpath's
/// programs set it.
pub const ARM: u32 = 3;
/// Flag for ARM exits other than traps; the low bits are then the exception code.
const ARM_NO_TRAP: u32 = 0x100;
/// ARM exception code for a trap.
const ARM_TRAP: u32 = 2;
/// Maximum size of the kernel's description of its tracepoint, bytes.
const MAX_BYTES: u64 = 1 << 16;

/// Name of a reason, as of Linux 6.18.
pub fn name(isa: u32, reason: u32) -> Option<&'static str> {
    let table = match isa {
        VMX => VMX_NAMES,
        SVM => SVM_NAMES,
        ARM => ARM_NAMES,
        _ => return None,
    };
    table.iter().find(|(of, _)| *of == number(isa, reason)).map(|(_, name)| *name)
}

/// Name of a reason recorded on this or another machine. The numbers mean the same on all machines of a vendor, so the
/// running kernel's names are used for numbers newer than the table.
pub fn recorded_name(isa: u32, reason: u32) -> Option<&'static str> {
    static KERNEL: OnceLock<Names> = OnceLock::new();
    let newer = || KERNEL.get_or_init(Names::of_kernel).0.get(&(isa, number(isa, reason))).map(String::as_str);
    name(isa, reason).or_else(newer)
}

/// The reason without its upper bits, which on Intel describe a failed VM entry.
fn number(isa: u32, reason: u32) -> u32 {
    if isa == VMX {
        reason & 0xffff
    } else {
        reason
    }
}

/// Whether the reason is that the guest became idle.
pub fn is_halt(isa: u32, reason: u32) -> bool {
    matches!((isa, number(isa, reason)), (VMX, 12) | (SVM, 0x78 | 0xa6) | (ARM, 0x01))
}

/// Names of reasons from the running kernel; [`name`] supplies the others.
#[derive(Clone, Debug, Default)]
pub struct Names(HashMap<(u32, u32), String>);

impl Names {
    /// Reads the kernel's description of its tracepoint from a mounted tracefs.
    pub fn of_kernel() -> Self {
        let places = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
        let text = places.iter().find_map(|place| {
            let file = Path::new(place).join("events/kvm/kvm_exit/format");
            let small = fs::metadata(&file).is_ok_and(|file| file.len() <= MAX_BYTES);
            small.then(|| fs::read_to_string(file).ok()).flatten()
        });
        text.map_or_else(Self::default, |text| Self::parse(&text))
    }

    /// Parses a format like `REC->isa == 1) ? __print_symbolic(…, { 0, "EXCEPTION_NMI" }, …) : __print_symbolic(…, {
    /// 0x040 + 0, "DE excp" }, …)`; on ARM, like `__print_symbolic(REC->ret, { 0, "IRQ" }, …), …,
    /// __print_symbolic(REC->esr_ec, { (0x00), "UNKNOWN" }, …)`.
    fn parse(format: &str) -> Self {
        let mut names = HashMap::new();
        let lists = format.split("__print_symbolic(").skip(1);
        let is_arm = format.contains("REC->esr_ec");
        let number_in = |list: usize, number: u32| match (is_arm, list) {
            (false, 0) => Some((VMX, number)),
            (false, _) => Some((SVM, number)),
            // Traps are left out of the first list, because the second list names their exception classes.
            (true, 0) => (number != ARM_TRAP).then_some((ARM, ARM_NO_TRAP | number.min(0xff))),
            (true, _) => Some((ARM, number)),
        };
        for (at, list) in lists.take(2).enumerate() {
            for entry in list.split('{').skip(1) {
                let Some((number, rest)) = entry.split_once(',') else { continue };
                let name = rest.split('"').nth(1).filter(|name| !name.is_empty());
                let place = sum(number).and_then(|number| number_in(at, number));
                if let (Some(place), Some(name)) = (place, name) {
                    names.entry(place).or_insert_with(|| name.chars().filter(|c| !c.is_control()).collect());
                }
            }
        }
        Self(names)
    }

    /// Name of a reason; its number if the name is unknown.
    pub fn get(&self, isa: u32, reason: u32) -> Cow<'_, str> {
        match (self.0.get(&(isa, number(isa, reason))), name(isa, reason)) {
            (Some(name), _) => Cow::Borrowed(name),
            (None, Some(name)) => Cow::Borrowed(name),
            (None, None) => Cow::Owned(format!("{reason:#x}")),
        }
    }
}

/// Parses a number or sum, e.g. `0x040 + 1`, `12`, `-1`, `(0x3CUL)`.
fn sum(text: &str) -> Option<u32> {
    let number = |word: &str| match word.trim_matches(|c: char| c.is_whitespace() || "()UL".contains(c)) {
        word if word.starts_with("0x") => u32::from_str_radix(&word[2..], 16).ok(),
        word => word.parse::<i32>().ok().map(|n| n as u32),
    };
    text.split('+').map(number).try_fold(0_u32, |sum, n| sum.checked_add(n?))
}

/// Intel: arch/x86/include/uapi/asm/vmx.h, of Linux 6.18.
#[rustfmt::skip]
const VMX_NAMES: &[(u32, &str)] = &[
    (0, "EXCEPTION_NMI"), (1, "EXTERNAL_INTERRUPT"), (2, "TRIPLE_FAULT"), (3, "INIT_SIGNAL"), (4, "SIPI_SIGNAL"),
    (7, "INTERRUPT_WINDOW"), (8, "NMI_WINDOW"), (9, "TASK_SWITCH"), (10, "CPUID"), (12, "HLT"), (13, "INVD"),
    (14, "INVLPG"), (15, "RDPMC"), (16, "RDTSC"), (18, "VMCALL"), (19, "VMCLEAR"), (20, "VMLAUNCH"), (21, "VMPTRLD"),
    (22, "VMPTRST"), (23, "VMREAD"), (24, "VMRESUME"), (25, "VMWRITE"), (26, "VMOFF"), (27, "VMON"), (28, "CR_ACCESS"),
    (29, "DR_ACCESS"), (30, "IO_INSTRUCTION"), (31, "MSR_READ"), (32, "MSR_WRITE"), (33, "INVALID_STATE"),
    (34, "MSR_LOAD_FAIL"), (36, "MWAIT_INSTRUCTION"), (37, "MONITOR_TRAP_FLAG"), (39, "MONITOR_INSTRUCTION"),
    (40, "PAUSE_INSTRUCTION"), (41, "MCE_DURING_VMENTRY"), (43, "TPR_BELOW_THRESHOLD"), (44, "APIC_ACCESS"),
    (45, "EOI_INDUCED"), (46, "GDTR_IDTR"), (47, "LDTR_TR"), (48, "EPT_VIOLATION"), (49, "EPT_MISCONFIG"), (50, "INVEPT"),
    (51, "RDTSCP"), (52, "PREEMPTION_TIMER"), (53, "INVVPID"), (54, "WBINVD"), (55, "XSETBV"), (56, "APIC_WRITE"),
    (57, "RDRAND"), (58, "INVPCID"), (59, "VMFUNC"), (60, "ENCLS"), (61, "RDSEED"), (62, "PML_FULL"), (63, "XSAVES"),
    (64, "XRSTORS"), (67, "UMWAIT"), (68, "TPAUSE"), (74, "BUS_LOCK"), (75, "NOTIFY"), (77, "TDCALL"), (84, "MSR_READ_IMM"),
    (85, "MSR_WRITE_IMM"),
];

/// AMD: arch/x86/include/uapi/asm/svm.h, of Linux 6.18.
#[rustfmt::skip]
const SVM_NAMES: &[(u32, &str)] = &[
    (0x000, "read_cr0"), (0x002, "read_cr2"), (0x003, "read_cr3"), (0x004, "read_cr4"), (0x008, "read_cr8"),
    (0x010, "write_cr0"), (0x012, "write_cr2"), (0x013, "write_cr3"), (0x014, "write_cr4"), (0x018, "write_cr8"),
    (0x020, "read_dr0"), (0x021, "read_dr1"), (0x022, "read_dr2"), (0x023, "read_dr3"), (0x024, "read_dr4"),
    (0x025, "read_dr5"), (0x026, "read_dr6"), (0x027, "read_dr7"), (0x030, "write_dr0"), (0x031, "write_dr1"),
    (0x032, "write_dr2"), (0x033, "write_dr3"), (0x034, "write_dr4"), (0x035, "write_dr5"), (0x036, "write_dr6"),
    (0x037, "write_dr7"), (0x040, "DE excp"), (0x041, "DB excp"), (0x043, "BP excp"), (0x044, "OF excp"),
    (0x045, "BR excp"), (0x046, "UD excp"), (0x047, "NM excp"), (0x048, "DF excp"), (0x04a, "TS excp"), (0x04b, "NP excp"),
    (0x04c, "SS excp"), (0x04d, "GP excp"), (0x04e, "PF excp"), (0x050, "MF excp"), (0x051, "AC excp"), (0x052, "MC excp"),
    (0x053, "XF excp"), (0x060, "interrupt"), (0x061, "nmi"), (0x062, "smi"), (0x063, "init"), (0x064, "vintr"),
    (0x065, "cr0_sel_write"), (0x066, "read_idtr"), (0x067, "read_gdtr"), (0x068, "read_ldtr"), (0x069, "read_rt"),
    (0x06a, "write_idtr"), (0x06b, "write_gdtr"), (0x06c, "write_ldtr"), (0x06d, "write_rt"), (0x06e, "rdtsc"),
    (0x06f, "rdpmc"), (0x070, "pushf"), (0x071, "popf"), (0x072, "cpuid"), (0x073, "rsm"), (0x074, "iret"),
    (0x075, "swint"), (0x076, "invd"), (0x077, "pause"), (0x078, "hlt"), (0x079, "invlpg"), (0x07a, "invlpga"),
    (0x07b, "io"), (0x07c, "msr"), (0x07d, "task_switch"), (0x07e, "ferr_freeze"), (0x07f, "shutdown"), (0x080, "vmrun"),
    (0x081, "hypercall"), (0x082, "vmload"), (0x083, "vmsave"), (0x084, "stgi"), (0x085, "clgi"), (0x086, "skinit"),
    (0x087, "rdtscp"), (0x088, "icebp"), (0x089, "wbinvd"), (0x08a, "monitor"), (0x08b, "mwait"), (0x08d, "xsetbv"),
    (0x08f, "write_efer_trap"), (0x090, "write_cr0_trap"), (0x094, "write_cr4_trap"), (0x098, "write_cr8_trap"),
    (0x0a2, "invpcid"), (0x0a5, "buslock"), (0x0a6, "idle-halt"), (0x400, "npf"), (0x401, "avic_incomplete_ipi"),
    (0x402, "avic_unaccelerated_access"), (0x403, "vmgexit"), (0x80000001, "vmgexit_mmio_read"),
    (0x80000002, "vmgexit_mmio_write"), (0x80000003, "vmgexit_nmi_complete"), (0x80000004, "vmgexit_ap_hlt_loop"),
    (0x80000005, "vmgexit_ap_jump_table"), (0x80000010, "vmgexit_page_state_change"), (0x80000011, "vmgexit_guest_request"),
    (0x80000012, "vmgexit_ext_guest_request"), (0x80000013, "vmgexit_ap_creation"),
    (0x8000fffd, "vmgexit_hypervisor_feature"),
    (u32::MAX, "invalid_guest_state"),
];

/// ARM: arch/arm64/include/asm/kvm_arm.h (exception classes) and kvm_asm.h (other exits), of Linux 6.18.
#[rustfmt::skip]
const ARM_NAMES: &[(u32, &str)] = &[
    (0x00, "UNKNOWN"), (0x01, "WFx"), (0x03, "CP15_32"), (0x04, "CP15_64"), (0x05, "CP14_MR"), (0x06, "CP14_LS"),
    (0x07, "FP_ASIMD"), (0x08, "CP10_ID"), (0x09, "PAC"), (0x0c, "CP14_64"), (0x11, "SVC32"), (0x12, "HVC32"),
    (0x13, "SMC32"), (0x15, "SVC64"), (0x16, "HVC64"), (0x17, "SMC64"), (0x18, "SYS64"), (0x19, "SVE"), (0x1a, "ERET"),
    (0x20, "IABT_LOW"), (0x21, "IABT_CUR"), (0x22, "PC_ALIGN"), (0x24, "DABT_LOW"), (0x25, "DABT_CUR"),
    (0x26, "SP_ALIGN"), (0x28, "FP_EXC32"), (0x2c, "FP_EXC64"), (0x2f, "SERROR"), (0x30, "BREAKPT_LOW"),
    (0x31, "BREAKPT_CUR"), (0x32, "SOFTSTP_LOW"), (0x33, "SOFTSTP_CUR"), (0x34, "WATCHPT_LOW"), (0x35, "WATCHPT_CUR"),
    (0x38, "BKPT32"), (0x3a, "VECTOR32"), (0x3c, "BRK64"),
    (ARM_NO_TRAP, "IRQ"), (ARM_NO_TRAP + 1, "SERROR"), (ARM_NO_TRAP + 3, "ILLEGAL"), (ARM_NO_TRAP + 0xff, "HYP_GONE"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_those_of_the_kernel() {
        assert_eq!(
            [(VMX, 12), (SVM, 0x400), (ARM, 0x24)].map(|(isa, n)| name(isa, n)),
            [Some("HLT"), Some("npf"), Some("DABT_LOW")]
        );
        assert_eq!(name(VMX, 0x8000_0021), Some("INVALID_STATE"), "the bit of a failed entry is no part of the reason");
        assert_eq!((name(ARM, 0x100), name(ARM, 0x24 + 0x100), name(9, 1)), (Some("IRQ"), None, None));
        assert_eq!(
            [(SVM, 0x400), (VMX, 0x8000_0021)].map(|(isa, n)| recorded_name(isa, n)),
            [Some("npf"), Some("INVALID_STATE")]
        );
        assert_eq!(recorded_name(SVM, 0x7fff), None, "nobody has that number");
    }

    #[test]
    fn the_running_kernels_own_names_come_first() {
        let format = "print fmt: \"vcpu %u reason %s\", REC->vcpu_id, (REC->isa == 1) ? __print_symbolic(REC->exit_reason & 0xffff, \
            { 12, \"HALT\" }, { 99, \"NEWER\" }) : __print_symbolic(REC->exit_reason, { 0x040 + 14, \"PF excp\" }, { -1, \"bad\" })";
        let names = Names::parse(format);
        let got = [(VMX, 12), (VMX, 99), (VMX, 10), (SVM, 0x4e), (SVM, u32::MAX), (SVM, 0x400), (SVM, 0x999)];
        let got = got.map(|(isa, reason)| names.get(isa, reason).into_owned());
        assert_eq!(got, ["HALT", "NEWER", "CPUID", "PF excp", "bad", "npf", "0x999"]);
    }

    #[test]
    fn names_of_an_arm_kernel_are_those_of_its_own_two_lists() {
        let format = "print fmt: \"%s: HSR_EC: 0x%04x (%s), PC: 0x%016lx\", __print_symbolic(REC->ret, {0, \"IRQ\" }, {1, \"SERROR\" }, \
            {2, \"TRAP\" }, {3, \"IL\" }, {0xbad, \"HYP_GONE\" }), REC->esr_ec, __print_symbolic(REC->esr_ec, { (0x00), \"UNKNOWN\" }, \
            { ((0x01UL)), \"WFx\" }, { (0x24), \"DABT_LOW\" }, { (0x2D), \"NEWER\" }), REC->vcpu_pc";
        let names = Names::parse(format);
        let got = [0x100, 0x101, 0x103, 0x1ff, 0x00, 0x01, 0x02, 0x24, 0x2d, 0x18]
            .map(|code| names.get(ARM, code).into_owned());
        let own = ["IRQ", "SERROR", "IL", "HYP_GONE", "UNKNOWN", "WFx", "0x2", "DABT_LOW", "NEWER", "SYS64"];
        assert_eq!(got, own, "what is not listed there has the table's name");
        assert_eq!((names.get(VMX, 0x24), names.get(SVM, 0x24)), ("MWAIT_INSTRUCTION".into(), "read_dr4".into()));
    }

    #[test]
    fn this_kernel_names_reasons_as_the_table_does() {
        let names = Names::of_kernel();
        for ((isa, reason), kernels) in &names.0 {
            assert!(name(*isa, *reason).is_none_or(|ours| ours == kernels), "{isa} {reason:#x} is {kernels}");
        }
    }

    proptest! {
        #[test]
        fn no_description_is_too_strange(text in ".{0,200}", numbers in prop::collection::vec(any::<u32>(), 0..4)) {
            let list: String = numbers.iter().map(|n| format!("{{ {n:#x}, \"{text}\" }}")).collect();
            let names = Names::parse(&format!("__print_symbolic(x, {list}) : __print_symbolic({text}"));
            prop_assert!(numbers.iter().all(|n| !names.get(VMX, *n).is_empty()));
        }
    }
}
