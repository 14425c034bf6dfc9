//! A constant TSC for emulated real-time kernels. PREEMPT_RT refuses KVM on a CPU whose TSC may change its rate
//! (kvm_arch_init in arch/x86/kvm/x86.c), and QEMU cannot emulate a CPU with a constant TSC. So the feature bit is set
//! in the machine's memory, in its kernel's `boot_cpu_data`, before KVM is loaded. This serves tests of function only.

use crate::{
    debugger::Debugger,
    error::{Error, Result},
};
use libbpf_rs::btf::{types, Btf, TypeId};
use std::path::Path;

/// X86_FEATURE_CONSTANT_TSC, word 3 bit 8 (arch/x86/include/asm/cpufeatures.h), as byte and bit.
const BYTE: u64 = (3 * 32 + 8) / 8;
const BIT: u8 = 1 << (8 % 8);

/// Sets the bit through QEMU's debugger socket. `boot_cpu` is the address of `boot_cpu_data`, `types` a copy of the
/// kernel's BTF.
pub(crate) fn promise(debugger: &Path, boot_cpu: u64, types: &Path) -> Result<()> {
    let address = boot_cpu + capabilities(types)? + BYTE;
    let mut debugger = Debugger::connect(debugger)?;
    let old = debugger.read(address)?;
    debugger.write(address, old | BIT)?;
    let new = debugger.read(address)?;
    debugger.leave()?;
    if new & BIT == 0 {
        return Err(fail(format!("the byte at {address:#x} stays {new:#x}")));
    }
    Ok(())
}

fn fail(why: String) -> Error {
    Error::Command { command: "promise a constant TSC".into(), why }
}

/// Offset of `x86_capability` in `struct cpuinfo_x86`, in bytes.
fn capabilities(types: &Path) -> Result<u64> {
    let btf = Btf::from_path(types).map_err(|e| fail(format!("read the kernel's types: {e}")))?;
    let cpu = btf.type_by_name::<types::Struct>("cpuinfo_x86").ok_or_else(|| fail("no cpuinfo_x86".into()))?;
    let bits = offset(&btf, cpu.type_id(), "x86_capability").ok_or_else(|| fail("no x86_capability".into()))?;
    Ok(u64::from(bits / 8))
}

/// A member's offset in bits, in a structure or its anonymous members.
fn offset(btf: &Btf, within: TypeId, name: &str) -> Option<u32> {
    let composite: types::Composite = btf.type_by_id(within)?;
    (0..composite.len()).filter_map(|n| composite.get(n)).find_map(|member| {
        let (types::MemberAttr::Normal { offset: here } | types::MemberAttr::BitField { offset: here, .. }) =
            member.attr;
        match member.name.filter(|n| !n.is_empty()) {
            Some(found) => (found == name).then_some(here),
            None => offset(btf, member.ty, name).map(|inner| here + inner),
        }
    })
}
