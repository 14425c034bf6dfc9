//! Names of system calls.

use std::borrow::Cow;
use syscalls::Sysno;

/// The number of `ioctl`.
const IOCTL: usize = Sysno::ioctl as usize;

/// `_IO(KVMIO, 0x80)`
const KVM_RUN: u32 = 0xae80;

/// The name of a call, whose number stands in the lower half; an ioctl's request stands in the upper one.
pub(crate) fn name(packed: u32) -> String {
    let (number, request) = ((packed & 0xffff) as usize, packed >> 16);
    let name = Sysno::new(number).map_or_else(|| Cow::Owned(format!("syscall {number}")), |call| call.name().into());
    match (number, request) {
        (IOCTL, KVM_RUN) => "ioctl(KVM_RUN)".into(),
        (IOCTL, request) => format!("ioctl({request:#x})"),
        _ => name.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_names_of_their_manual_pages() {
        let number = |call: Sysno| call as u32;
        assert_eq!(name(number(Sysno::writev)), "writev");
        assert_eq!(name(number(Sysno::ioctl) | 0xae80 << 16), "ioctl(KVM_RUN)");
        assert_eq!(name(number(Sysno::ioctl) | 0x5401 << 16), "ioctl(0x5401)");
        assert_eq!(name(60_000), "syscall 60000");
    }
}
