//! Architectures of the lab's machines: this machine's own, and another one, which is emulated.

/// Architecture of a machine's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// x86-64.
    X86,
    /// 64-bit ARM.
    Arm,
}

impl Arch {
    /// This machine's architecture.
    pub const OWN: Self = if cfg!(target_arch = "aarch64") { Self::Arm } else { Self::X86 };

    pub(crate) const fn emulator(self) -> &'static str {
        match self {
            Self::X86 => "qemu-system-x86_64",
            Self::Arm => "qemu-system-aarch64",
        }
    }

    /// Debian package of the emulator.
    pub(crate) const fn package(self) -> &'static str {
        match self {
            Self::X86 => "qemu-system-x86",
            Self::Arm => "qemu-system-arm",
        }
    }

    /// QEMU machine type, except for machines that run nested guests.
    pub(crate) fn machine(self) -> &'static str {
        match self {
            Self::X86 => "q35",
            Self::Arm => "virt",
        }
    }

    /// QEMU machine and CPU types that can run nested guests in emulation.
    pub(crate) fn nesting(self) -> (&'static str, &'static str) {
        match self {
            Self::X86 => ("q35", "EPYC,+svm,+npt"),
            Self::Arm => ("virt,virtualization=on,gic-version=3", "max"),
        }
    }

    pub(crate) fn console(self) -> &'static str {
        match self {
            Self::X86 => "ttyS0",
            Self::Arm => "ttyAMA0",
        }
    }

    /// Name of the architecture in Debian.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Arm => "arm64",
        }
    }
}
