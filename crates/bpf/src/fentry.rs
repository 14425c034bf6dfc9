//! Whether programs can stand at functions here, and the one attachment that libbpf's objects do not outlive.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Functions that any kernel has one of.
const ANY: [&str; 3] = ["xdp_do_redirect", "skb_consume_udp", "__netif_receive_skb"];

/// Tries to load a program of two instructions at a function's entry. A kernel without trampolines refuses it, whatever its
/// version.
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
    // SAFETY: all pointers are to live values of the types and lengths that are said; the kernel copies them.
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
    // What loads may still have no trampoline to stand on.
    attach(std::os::fd::AsFd::as_fd(&program)).map(drop).map_err(|e| why_not(&e))
}

/// What a refused program says of the kernel. One that has no trampolines refuses it with the errors of a missing right.
fn why_not(error: &std::io::Error) -> String {
    match crate::kernel::able() {
        Ok(()) => "this kernel has no trampolines for functions: it lacks CONFIG_FUNCTION_TRACER or \
                   CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS"
            .into(),
        Err(_) => format!("functions cannot be watched: {error}"),
    }
}

/// Attaches a loaded program where its type information says; closing the descriptor takes it off.
pub fn attach(program: BorrowedFd<'_>) -> std::io::Result<OwnedFd> {
    attach_at(program, None)
}

/// The same, of a program of the type raw tracepoint, which has no place of its own.
pub(crate) fn attach_at(program: BorrowedFd<'_>, tracepoint: Option<&CStr>) -> std::io::Result<OwnedFd> {
    let name = tracepoint.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the name lives on; none is needed for a program that carries its place. The descriptor is open.
    let link = unsafe { libbpf_sys::bpf_raw_tracepoint_open(name, program.as_raw_fd()) };
    if link < 0 {
        return Err(std::io::Error::from_raw_os_error(-link));
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}
