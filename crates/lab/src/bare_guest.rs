//! A guest of about twenty bytes of code, whose exits are known in advance: KVM without a hypervisor process.

use latpath_linux::Map;
use std::{
    fs::{File, OpenOptions},
    io::{self, Error},
    os::fd::{AsRawFd, FromRawFd, RawFd},
};

// include/uapi/linux/kvm.h
const KVM_CREATE_VM: libc::c_ulong = 0xae01;
const KVM_GET_VCPU_MMAP_SIZE: libc::c_ulong = 0xae04;
const KVM_CREATE_VCPU: libc::c_ulong = 0xae41;
const KVM_CREATE_IRQCHIP: libc::c_ulong = 0xae60;
const KVM_SIGNAL_MSI: libc::c_ulong = 0x4020_aea5;
const KVM_SET_USER_MEMORY_REGION: libc::c_ulong = 0x4020_ae46;
const KVM_RUN: libc::c_ulong = 0xae80;
const KVM_SET_REGS: libc::c_ulong = 0x4090_ae82;
const KVM_GET_SREGS: libc::c_ulong = 0x8138_ae83;
const KVM_SET_SREGS: libc::c_ulong = 0x4138_ae84;
const KVM_GET_LAPIC: libc::c_ulong = 0x8400_ae8e;
const KVM_SET_LAPIC: libc::c_ulong = 0x4400_ae8f;
const KVM_EXIT_IO: u32 = 2;
const KVM_EXIT_HLT: u32 = 5;

const PAGE: usize = 4096;
/// Guest address of the code.
const CODE: u64 = 0x1000;

/// Interrupts that [`BareGuest::interrupt`] sends.
#[derive(Clone, Copy, Debug)]
pub enum Interrupt {
    /// A fixed interrupt with this vector.
    Vector(u8),
    /// A non-maskable interrupt.
    Nmi,
}

/// A guest with one vCPU, which ends when this value is dropped.
pub struct BareGuest {
    vm: File,
    vcpu: File,
    // `run` and `code` are shared with KVM and the guest. A mapped vCPU keeps its VM alive.
    run: Map,
    code: Map,
}

fn ioctl(fd: RawFd, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<RawFd> {
    // SAFETY: callers pass the argument of the request: a number, or the address of a live structure.
    match unsafe { libc::ioctl(fd, request, argument) } {
        -1 => Err(Error::last_os_error()),
        fd => Ok(fd),
    }
}

impl BareGuest {
    /// Creates a guest with one vCPU.
    ///
    /// # Errors
    /// If KVM is not available to this machine or user.
    pub fn new() -> io::Result<Self> {
        Self::make(false)
    }

    /// Creates a guest with interrupt controllers in the kernel. KVM handles its halts, so it can only be
    /// [entered](Self::enter).
    ///
    /// # Errors
    /// If KVM is not available to this machine or user.
    pub fn with_apic() -> io::Result<Self> {
        Self::make(true)
    }

    fn make(has_apic: bool) -> io::Result<Self> {
        let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm")?;
        let file = |fd: RawFd| {
            // SAFETY: a new descriptor without another owner.
            unsafe { File::from_raw_fd(fd) }
        };
        let vm = file(ioctl(kvm.as_raw_fd(), KVM_CREATE_VM, 0)?);
        let code = Map::new(PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)?;
        // struct kvm_userspace_memory_region: slot and flags, guest address, size, host address.
        let region: [u64; 4] = [0, CODE, PAGE as u64, code.at().as_ptr() as u64];
        ioctl(vm.as_raw_fd(), KVM_SET_USER_MEMORY_REGION, region.as_ptr() as libc::c_ulong)?;
        if has_apic {
            ioctl(vm.as_raw_fd(), KVM_CREATE_IRQCHIP, 0)?;
        }
        let vcpu = file(ioctl(vm.as_raw_fd(), KVM_CREATE_VCPU, 0)?);
        if has_apic {
            // struct kvm_lapic_state: the registers. An APIC that is not software-enabled (in its spurious vector
            // register) receives no messages.
            let mut registers = [0_u32; 256];
            ioctl(vcpu.as_raw_fd(), KVM_GET_LAPIC, registers.as_mut_ptr() as libc::c_ulong)?;
            registers[0xf0 / 4] |= 1 << 8;
            ioctl(vcpu.as_raw_fd(), KVM_SET_LAPIC, registers.as_ptr() as libc::c_ulong)?;
        }
        let bytes = ioctl(kvm.as_raw_fd(), KVM_GET_VCPU_MMAP_SIZE, 0)? as usize;
        let run = Map::new(bytes, libc::MAP_SHARED, vcpu.as_raw_fd(), 0)?;
        Ok(Self { vm, vcpu, run, code })
    }

    /// Runs code that writes to an I/O port `outs` times, executes CPUID `cpuids` times, and halts. Returns how many
    /// times KVM_RUN returned.
    ///
    /// # Errors
    /// If KVM reports an error.
    pub fn run(&mut self, outs: u16, cpuids: u16) -> io::Result<u32> {
        self.load(outs, cpuids)?;
        for returns in 1.. {
            match self.go_on()? {
                KVM_EXIT_IO => {}
                KVM_EXIT_HLT => return Ok(returns),
                other => return Err(Error::other(format!("the guest ended with KVM_EXIT {other}"))),
            }
        }
        unreachable!("it returns when the guest halts")
    }

    /// Runs the guest until its first write to the I/O port: from then on, the vCPU belongs to this thread.
    ///
    /// # Errors
    /// If KVM reports an error.
    pub fn enter(&mut self) -> io::Result<()> {
        self.load(1, 1)?;
        match self.go_on()? {
            KVM_EXIT_IO => Ok(()),
            other => Err(Error::other(format!("the guest ended with KVM_EXIT {other}"))),
        }
    }

    /// Sends the vCPU an interrupt like a device: as a message-signalled interrupt.
    ///
    /// # Errors
    /// If KVM reports an error.
    pub fn interrupt(&self, interrupt: Interrupt) -> io::Result<()> {
        let data = match interrupt {
            Interrupt::Vector(vector) => u32::from(vector),
            Interrupt::Nmi => 4 << 8,
        };
        // struct kvm_msi: the first local APIC's address, the message.
        let msi: [u32; 8] = [0xfee0_0000, 0, data, 0, 0, 0, 0, 0];
        ioctl(self.vm.as_raw_fd(), KVM_SIGNAL_MSI, msi.as_ptr() as libc::c_ulong).map(drop)
    }

    fn go_on(&mut self) -> io::Result<u32> {
        ioctl(self.vcpu.as_raw_fd(), KVM_RUN, 0)?;
        // SAFETY: struct kvm_run, filled by the kernel: exit_reason is at byte 8.
        Ok(unsafe { self.run.at().as_ptr().add(8).cast::<u32>().read_volatile() })
    }

    /// Writes the code into the stopped guest, and sets the instruction pointer to its start.
    fn load(&mut self, outs: u16, cpuids: u16) -> io::Result<()> {
        let [o, c] = [outs, cpuids].map(u16::to_le_bytes);
        // mov dx, 0x3f8; mov cx, outs; out dx, al; loop; mov si, cpuids; cpuid; dec si; jnz; hlt
        let code = [
            0xba, 0xf8, 0x03, 0xb9, o[0], o[1], 0xee, 0xe2, 0xfd, 0xbe, c[0], c[1], 0x0f, 0xa2, 0x4e, 0x75, 0xfb, 0xf4,
        ];
        // SAFETY: the page is ours and longer; the guest is stopped.
        unsafe { self.code.at().as_ptr().copy_from_nonoverlapping(code.as_ptr(), code.len()) };
        let fd = self.vcpu.as_raw_fd();
        // struct kvm_sregs: the first segment is CS, its base the first word, its selector at byte 12.
        let mut sregs = [0_u64; 39];
        ioctl(fd, KVM_GET_SREGS, sregs.as_mut_ptr() as libc::c_ulong)?;
        sregs[0] = 0;
        sregs[1] &= !(0xffff << 32);
        ioctl(fd, KVM_SET_SREGS, sregs.as_ptr() as libc::c_ulong)?;
        // struct kvm_regs: rip and rflags are the last two.
        let mut regs = [0_u64; 18];
        (regs[16], regs[17]) = (CODE, 2);
        ioctl(fd, KVM_SET_REGS, regs.as_ptr() as libc::c_ulong).map(drop)
    }
}
