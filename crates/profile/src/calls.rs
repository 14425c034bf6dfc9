//! Names of system calls.

use std::borrow::Cow;
use syscalls::Sysno;

/// The number of `ioctl`.
const IOCTL: usize = Sysno::ioctl as usize;

/// Requests of KVM's that threads of a VM make while it runs (include/uapi/linux/kvm.h): the low half has type and
/// number.
const KVM_REQUESTS: [(u32, &str); 4] =
    [(0xae80, "KVM_RUN"), (0xaea5, "KVM_SIGNAL_MSI"), (0xae61, "KVM_IRQ_LINE"), (0xae67, "KVM_IRQ_LINE_STATUS")];

/// The name of a call, whose number stands in the lower half; an ioctl's request stands in the upper one.
pub(crate) fn name(packed: u32) -> String {
    let (number, request) = ((packed & 0xffff) as usize, packed >> 16);
    let name = Sysno::new(number).map_or_else(|| Cow::Owned(format!("syscall {number}")), |call| call.name().into());
    match (number, request) {
        (IOCTL, request) => match KVM_REQUESTS.iter().find(|(number, _)| *number == request) {
            Some((_, name)) => format!("ioctl({name})"),
            None => format!("ioctl({request:#x})"),
        },
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
        let names = [0xaea5, 0xae61, 0xae67].map(|request| name(number(Sysno::ioctl) | request << 16));
        assert_eq!(names, ["ioctl(KVM_SIGNAL_MSI)", "ioctl(KVM_IRQ_LINE)", "ioctl(KVM_IRQ_LINE_STATUS)"]);
        assert_eq!(name(number(Sysno::ioctl) | 0x5401 << 16), "ioctl(0x5401)");
        assert_eq!(name(60_000), "syscall 60000");
    }
}
