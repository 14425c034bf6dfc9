//! Minimal programs at a tracepoint, whose cost is the lower bound in benchmarks: an empty one, and one that reads the
//! clock once.

use libbpf_sys::*;
use std::ffi::CString;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

fn owned(fd: i32) -> Result<OwnedFd> {
    match fd {
        // SAFETY: a fresh descriptor that nothing else owns.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Error::from_raw_os_error(-fd)),
    }
}

/// Attaches the program. Dropping the returned descriptors (link and program) detaches it.
///
/// # Errors
/// If the kernel lacks the tracepoint, or refuses the program.
pub fn attach(tracepoint: &str, reads_clock: bool) -> Result<[OwnedFd; 2]> {
    let insn = |code: u32, imm: u32| bpf_insn { code: code as u8, imm: imm as i32, ..Default::default() };
    // r0 = ktime(); r0 = 0; exit
    let clock = insn(BPF_JMP | BPF_CALL, BPF_FUNC_ktime_get_ns);
    let code = [clock, insn(BPF_ALU64 | BPF_MOV | BPF_K, 0), insn(BPF_JMP | BPF_EXIT, 0)];
    let code = if reads_clock { &code[..] } else { &code[1..] };
    let place = CString::new(tracepoint)?;
    // SAFETY: names end with 0, the code has the given length, and the options have the size in their first field.
    unsafe {
        let mut options = bpf_prog_load_opts {
            sz: size_of::<bpf_prog_load_opts>() as _,
            expected_attach_type: BPF_TRACE_RAW_TP,
            attach_btf_id: u32::try_from(libbpf_find_vmlinux_btf_id(place.as_ptr(), BPF_TRACE_RAW_TP))
                .map_err(|_| Error::other(format!("{tracepoint}: no such tracepoint")))?,
            ..Default::default()
        };
        let (kind, length) = (BPF_PROG_TYPE_TRACING, code.len() as _);
        let program =
            owned(bpf_prog_load(kind, c"floor".as_ptr(), c"GPL".as_ptr(), code.as_ptr(), length, &mut options))?;
        Ok([owned(bpf_raw_tracepoint_open(std::ptr::null(), program.as_raw_fd()))?, program])
    }
}
