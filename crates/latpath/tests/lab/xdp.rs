//! XDP programs of a few instructions, and an application's AF_XDP socket, whose frames bypass the stack.

use anyhow::{ensure, Context, Result};
use latpath_lab::Namespace;
use libbpf_sys::bpf_insn;
use std::{
    io,
    mem::size_of,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
    sync::{
        atomic::{AtomicBool, AtomicU32, Ordering},
        Arc,
    },
    thread::JoinHandle,
};

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// In the device's driver, before an skb exists (native mode).
    Driver,
    /// In the stack, for any device (generic mode).
    Stack,
}

impl By {
    fn flags(self) -> u32 {
        match self {
            Self::Driver => libbpf_sys::XDP_FLAGS_DRV_MODE,
            Self::Stack => libbpf_sys::XDP_FLAGS_SKB_MODE,
        }
    }
}

fn index(device: &str) -> Result<i32> {
    let index = nix::net::if_::if_nametoindex(device).with_context(|| format!("device {device}"))?;
    Ok(index as i32)
}

/// Checks the result of a libbpf call.
fn checked(returned: i32, what: &str) -> Result<i32> {
    ensure!(returned >= 0, "{what}: {}", io::Error::from_raw_os_error(-returned));
    Ok(returned)
}

/// Checks the result of a system call.
fn done(returned: i32, what: &'static str) -> Result<i32> {
    if returned < 0 {
        return Err(io::Error::last_os_error()).context(what);
    }
    Ok(returned)
}

fn insn(code: u32, registers: (u8, u8), imm: i32) -> bpf_insn {
    let mut insn = bpf_insn { code: code as u8, imm, ..Default::default() };
    insn.set_dst_reg(registers.0);
    insn.set_src_reg(registers.1);
    insn
}

/// `register = value`
fn set(register: u8, value: i32) -> bpf_insn {
    insn(libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K, (register, 0), value)
}

/// `r0 = helper(r1, …); return r0`
fn end_with(helper: u32) -> [bpf_insn; 2] {
    let call = libbpf_sys::BPF_JMP | libbpf_sys::BPF_CALL;
    let exit = libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT;
    [insn(call, (0, 0), helper as i32), insn(exit, (0, 0), 0)]
}

/// Loads a program and attaches it to a device of this namespace, until the device is removed or the program
/// replaced.
fn put(device: &str, program: &[bpf_insn], by: By) -> Result<()> {
    // SAFETY: the pointers are to values that outlive the call and have the given lengths.
    let loaded = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            c"latpath_lab".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as libbpf_sys::size_t,
            ptr::null_mut(),
        )
    };
    // SAFETY: a new descriptor without another owner.
    let program = unsafe { OwnedFd::from_raw_fd(checked(loaded, "load an XDP program")?) };
    // SAFETY: takes only integers.
    let put = unsafe { libbpf_sys::bpf_xdp_attach(index(device)?, program.as_raw_fd(), by.flags(), ptr::null()) };
    checked(put, "attach an XDP program").map(drop)
}

/// Redirects all frames received on `from` to `to`.
pub fn redirect(space: &Namespace, from: &str, to: &str, by: By) -> Result<()> {
    space.inside(|| {
        let [call, exit] = end_with(libbpf_sys::BPF_FUNC_redirect);
        put(from, &[set(1, index(to)?), set(2, 0), call, exit], by)
    })?
}

/// Detaches the program.
pub fn leave(space: &Namespace, device: &str, by: By) -> Result<()> {
    space.inside(|| {
        // SAFETY: takes only integers.
        let off = unsafe { libbpf_sys::bpf_xdp_detach(index(device)?, by.flags(), ptr::null()) };
        checked(off, "detach an XDP program").map(drop)
    })?
}

const FRAMES: u32 = 1024;
const FRAME: u32 = 2048;

/// An application's AF_XDP socket in copy mode, which receives all frames of a device.
pub struct XdpSocket {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<u64>,
}

impl XdpSocket {
    /// Opens the socket on a device, and starts a thread that reads from it.
    pub fn open(space: &Namespace, device: &str, by: By) -> Result<Self> {
        let rings = space.inside(|| Rings::open(device, by))??;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let reader = std::thread::Builder::new().name("xsk".into()).spawn(move || rings.read(&stopped))?;
        Ok(Self { stop, reader })
    }

    /// Closes the socket; returns the number of frames received.
    pub fn close(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.reader.join().unwrap_or(0)
    }
}

/// The socket and the memory shared with the kernel.
struct Rings {
    socket: OwnedFd,
    _map: OwnedFd,
    _frames: Vec<u8>,
    received: Ring,
    free: Ring,
}

/// One of the socket's rings (linux/if_xdp.h), with as many entries as there are frames.
struct Ring {
    base: *mut u8,
    offsets: libc::xdp_ring_offset,
}

// SAFETY: the mapping is not tied to a thread, and only one thread uses it.
unsafe impl Send for Ring {}

impl Ring {
    fn map(socket: &OwnedFd, offsets: libc::xdp_ring_offset, place: usize, at: libc::off_t) -> Result<Self> {
        let len = offsets.desc as usize + FRAMES as usize * place;
        let (read, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping, which is never unmapped, so pointers into it remain valid.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, read, shared, socket.as_raw_fd(), at) };
        ensure!(base != libc::MAP_FAILED, "map a ring: {}", io::Error::last_os_error());
        Ok(Self { base: base.cast(), offsets })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the kernel's offset is within the mapping and aligned; both sides access it atomically.
        unsafe { &*self.base.add(self.offsets.producer as usize).cast() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.base.add(self.offsets.consumer as usize).cast() }
    }

    /// The ring's entry for index `n`.
    fn place<T>(&self, n: u32) -> *mut T {
        // SAFETY: the index is reduced to the ring's length, and the mapping covers all entries.
        unsafe { self.base.add(self.offsets.desc as usize).cast::<T>().add((n % FRAMES) as usize) }
    }
}

impl Rings {
    fn open(device: &str, by: By) -> Result<Self> {
        // SAFETY: takes only integers.
        let socket = done(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0) }, "open an AF_XDP socket")?;
        // SAFETY: a new descriptor without another owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // Aligned to a page, as the kernel requires.
        let frames = vec![0u8; (FRAMES * FRAME + 4096) as usize];
        let start = (frames.as_ptr() as u64).next_multiple_of(4096);
        let memory = libc::xdp_umem_reg {
            addr: start,
            len: u64::from(FRAMES * FRAME),
            chunk_size: FRAME,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        option(&socket, libc::XDP_UMEM_REG, &memory)?;
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
            option(&socket, ring, &FRAMES)?;
        }
        let none = || libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
        let mut offsets = libc::xdp_mmap_offsets { rx: none(), tx: none(), fr: none(), cr: none() };
        let mut len = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
        let into = ptr::from_mut(&mut offsets).cast();
        // SAFETY: the pointers are to values that outlive the call and have the given length.
        let got =
            unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, into, &mut len) };
        done(got, "ask for the rings' places")?;
        let received = Ring::map(&socket, offsets.rx, size_of::<libc::xdp_desc>(), libc::XDP_PGOFF_RX_RING)?;
        let free = Ring::map(&socket, offsets.fr, size_of::<u64>(), libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t)?;
        for n in 0..FRAMES {
            // SAFETY: an entry of the ring; the kernel reads it only after the producer index has advanced.
            unsafe { free.place::<u64>(n).write(u64::from(n * FRAME)) };
        }
        free.producer().store(FRAMES, Ordering::Release);
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: index(device)? as u32,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
        // SAFETY: the address outlives the call, and has the given length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), len) };
        done(bound, "bind an AF_XDP socket")?;
        let map = frames_go_to(&socket, device, by)?;
        Ok(Self { socket, _map: map, _frames: frames, received, free })
    }

    /// Receives frames and returns them to the kernel until it is stopped.
    fn read(self, stop: &AtomicBool) -> u64 {
        let mut count = 0;
        let (mut next, mut back) = (0u32, FRAMES);
        while !stop.load(Ordering::Relaxed) {
            let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: a single value, which outlives the call.
            unsafe { libc::poll(&mut poll, 1, 100) };
            let there = self.received.producer().load(Ordering::Acquire);
            while next != there {
                // SAFETY: the kernel has filled this entry, and does so again only after it is released.
                let frame = unsafe { self.received.place::<libc::xdp_desc>(next).read() };
                // SAFETY: there are as many entries as frames, so this one is free.
                unsafe { self.free.place::<u64>(back).write(frame.addr / u64::from(FRAME) * u64::from(FRAME)) };
                (next, back, count) = (next.wrapping_add(1), back.wrapping_add(1), count + 1);
            }
            self.received.consumer().store(next, Ordering::Release);
            self.free.producer().store(back, Ordering::Release);
        }
        count
    }
}

fn option<T>(socket: &OwnedFd, name: i32, value: &T) -> Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value outlives the call, and has the given length.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, name, ptr::from_ref(value).cast(), len) };
    done(set, "set up an AF_XDP socket").map(drop)
}

/// Attaches a program to the device that redirects all frames to the socket; returns its XSKMAP.
fn frames_go_to(socket: &OwnedFd, device: &str, by: By) -> Result<OwnedFd> {
    // SAFETY: the name outlives the call.
    let map = unsafe {
        libbpf_sys::bpf_map_create(libbpf_sys::BPF_MAP_TYPE_XSKMAP, c"latpath_lab".as_ptr(), 4, 4, 1, ptr::null())
    };
    // SAFETY: a new descriptor without another owner.
    let map = unsafe { OwnedFd::from_raw_fd(checked(map, "make an XSKMAP")?) };
    let (key, value) = (0u32, socket.as_raw_fd());
    let (key, value) = (ptr::from_ref(&key).cast(), ptr::from_ref(&value).cast());
    // SAFETY: key and value have the map's sizes, and outlive the call.
    checked(unsafe { libbpf_sys::bpf_map_update_elem(map.as_raw_fd(), key, value, 0) }, "fill the XSKMAP")?;
    // This instruction has two parts: r1 = the map.
    let load = libbpf_sys::BPF_LD | libbpf_sys::BPF_DW | libbpf_sys::BPF_IMM;
    let first = insn(load, (1, libbpf_sys::BPF_PSEUDO_MAP_FD as u8), map.as_raw_fd());
    let [call, exit] = end_with(libbpf_sys::BPF_FUNC_redirect_map);
    put(device, &[first, bpf_insn::default(), set(2, 0), set(3, 0), call, exit], by)?;
    Ok(map)
}
