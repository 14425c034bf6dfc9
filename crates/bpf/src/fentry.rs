//! Tests whether this kernel can attach programs to functions, and attaches programs without libbpf's objects.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Candidate functions; every kernel has at least one of them.
const ANY: [&str; 3] = ["xdp_do_redirect", "skb_consume_udp", "__netif_receive_skb"];

/// Tries to load and attach a program of two instructions at the entry of a function. Whatever its version, a kernel
/// without trampolines refuses the program.
///
/// # Errors
/// The kernel has none of the functions, or refuses the program; the error gives the reason.
pub fn works(function: &dyn Fn(&str) -> Option<u32>) -> Result<(), String> {
    let Some(id) = ANY.iter().find_map(|name| function(name)) else {
        return Err("its type information names no functions".into());
    };
    // r0 = 0; exit
    let program = [
        libbpf_sys::bpf_insn { code: 0xb7, ..Default::default() },
        libbpf_sys::bpf_insn { code: 0x95, ..Default::default() },
    ];
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
        expected_attach_type: libbpf_sys::BPF_TRACE_FENTRY,
        attach_btf_id: id,
        ..Default::default()
    };
    // SAFETY: all pointers are to live values of the given types and lengths; the kernel copies them.
    let loaded = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_TRACING,
            c"latpath_try".as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            program.as_ptr(),
            program.len() as libbpf_sys::size_t,
            &mut options,
        )
    };
    if loaded < 0 {
        return Err(why_not(&std::io::Error::from_raw_os_error(-loaded)));
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    let program = unsafe { OwnedFd::from_raw_fd(loaded) };
    // Attaching is tested too: a kernel may load the program but lack a trampoline to attach it.
    attach(std::os::fd::AsFd::as_fd(&program)).map(drop).map_err(|e| why_not(&e))
}

/// The reason for a refusal. The error code alone is not enough: without trampolines, a kernel returns the same codes
/// as for missing permissions.
fn why_not(error: &std::io::Error) -> String {
    match crate::kernel::able() {
        Ok(()) => "this kernel has no trampolines for functions: it lacks CONFIG_FUNCTION_TRACER or \
                   CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS"
            .into(),
        Err(_) => format!("functions cannot be watched: {error}"),
    }
}

/// Attaches a loaded program to the target in its type information. Closing the descriptor detaches it.
///
/// # Errors
/// If the kernel refuses the attachment.
pub fn attach(program: BorrowedFd<'_>) -> std::io::Result<OwnedFd> {
    attach_at(program, None)
}

/// Attaches a loaded program: to `tracepoint` if it is a raw tracepoint program, otherwise to the target in its type
/// information.
pub(crate) fn attach_at(program: BorrowedFd<'_>, tracepoint: Option<&CStr>) -> std::io::Result<OwnedFd> {
    let name = tracepoint.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the name outlives the call, and may be null for a program with a target of its own. The descriptor is
    // open.
    let link = unsafe { libbpf_sys::bpf_raw_tracepoint_open(name, program.as_raw_fd()) };
    if link < 0 {
        return Err(std::io::Error::from_raw_os_error(-link));
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}
