//! Linux built for real time refuses KVM on a CPU whose TSC may change its rate (kvm_arch_init in
//! arch/x86/kvm/x86.c), and QEMU cannot emulate one that promises otherwise. So the promise is written into the machine's
//! memory, where its kernel keeps what it knows of its CPU, before KVM is loaded. It is good for function and for nothing else.

use crate::error::{Doing, Error, Result};
use libbpf_rs::btf::{types, Btf, TypeId};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// X86_FEATURE_CONSTANT_TSC, word 3 bit 8 (arch/x86/include/asm/cpufeatures.h), as byte and bit.
const BYTE: u64 = (3 * 32 + 8) / 8;
const BIT: u8 = 1 << (8 % 8);

/// Sets it, by QEMU's debugger socket. `boot_cpu` is where `boot_cpu_data` is, `types` a copy of the kernel's BTF.
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

/// A member's offset in bits, in a structure or in the nameless ones within it.
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

/// A connection to QEMU's debugger, in GDB's remote serial protocol. The machine stands still until [`Debugger::leave`].
struct Debugger {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Debugger {
    fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).doing(format!("connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).doing("set a time limit on the debugger")?;
        let mut debugger = Self { stream, pending: Vec::new() };
        debugger.ask("?")?;
        Ok(debugger)
    }

    fn read(&mut self, address: u64) -> Result<u8> {
        let answer = self.ask(&format!("m{address:x},1"))?;
        u8::from_str_radix(&answer, 16)
            .map_err(|_| fail(format!("the byte at {address:#x} cannot be read: {answer:?}")))
    }

    fn write(&mut self, address: u64, byte: u8) -> Result<()> {
        match self.ask(&format!("M{address:x},1:{byte:02x}"))?.as_str() {
            "OK" => Ok(()),
            answer => Err(fail(format!("the byte at {address:#x} cannot be written: {answer:?}"))),
        }
    }

    fn leave(mut self) -> Result<()> {
        self.ask("D").map(drop)
    }

    fn ask(&mut self, request: &str) -> Result<String> {
        self.stream.write_all(&packet(request)).doing("write to the debugger")?;
        loop {
            let answer = self.packet()?;
            // The machine's stop, told when it pleases, is no answer but to the question for it.
            if request == "?" || !answer.starts_with('T') {
                return Ok(answer);
            }
        }
    }

    fn packet(&mut self) -> Result<String> {
        let mut buffer = [0; 4096];
        loop {
            if let Some((content, length)) = first_packet(&self.pending) {
                self.pending.drain(..length);
                self.stream.write_all(b"+").doing("write to the debugger")?;
                return Ok(content);
            }
            if self.pending.len() > 1 << 16 {
                return Err(fail("the debugger's answer has no end".into()));
            }
            match self.stream.read(&mut buffer).doing("read from the debugger")? {
                0 => return Err(fail("the debugger is gone".into())),
                n => self.pending.extend_from_slice(&buffer[..n]),
            }
        }
    }
}

/// `$content#checksum`.
fn packet(content: &str) -> Vec<u8> {
    let sum = content.bytes().fold(0u8, u8::wrapping_add);
    format!("${content}#{sum:02x}").into_bytes()
}

/// The first whole packet in these bytes, and where it ends; acknowledgements before it are passed by.
fn first_packet(bytes: &[u8]) -> Option<(String, usize)> {
    let start = bytes.iter().position(|b| *b == b'$')?;
    let end = start + bytes[start..].iter().position(|b| *b == b'#')?;
    (bytes.len() >= end + 3).then(|| (String::from_utf8_lossy(&bytes[start + 1..end]).into_owned(), end + 3))
}

#[cfg(test)]
mod tests {
    use super::{first_packet, packet};

    #[test]
    fn packets_are_written_and_read_as_gdb_has_them() {
        assert_eq!(packet("?"), b"$?#3f");
        assert_eq!(packet("m1000,1"), b"$m1000,1#8b");
        assert_eq!(first_packet(b"+$OK#9a$T05"), Some(("OK".into(), 7)));
        assert_eq!(first_packet(b"+$OK#9"), None);
    }
}
