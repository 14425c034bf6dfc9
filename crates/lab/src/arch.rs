//! The architectures of the lab's machines: this machine's own, and another one that is emulated on it.

/// Architecture of a machine's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// x86-64.
    X86,
    /// 64-bit ARM.
    Arm,
}

impl Arch {
    /// This machine's.
    pub const OWN: Self = if cfg!(target_arch = "aarch64") { Self::Arm } else { Self::X86 };

    pub(crate) const fn emulator(self) -> &'static str {
        match self {
            Self::X86 => "qemu-system-x86_64",
            Self::Arm => "qemu-system-aarch64",
        }
    }

    /// Debian's package of that.
    pub(crate) const fn package(self) -> &'static str {
        match self {
            Self::X86 => "qemu-system-x86",
            Self::Arm => "qemu-system-arm",
        }
    }

    /// The machine that the emulator makes where nothing more is asked for.
    pub(crate) fn machine(self) -> &'static str {
        match self {
            Self::X86 => "q35",
            Self::Arm => "virt",
        }
    }

    /// The machine and the CPU that can run guests of its own in emulation.
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

    /// Debian's name of it.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Arm => "arm64",
        }
    }
}
