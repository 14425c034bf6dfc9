//! The kernel's interface for AF_XDP (Documentation/networking/af_xdp.rst): memory for frames, four shared rings, and
//! the link of an XDP program. All unsafe code for AF_XDP is in this module; each block states why it is sound.
#![allow(unsafe_code)]

use latpath_linux::net::{check, get_option, set_option};
use latpath_linux::Map;
use latpath_model::Ns;
use libc::{c_int, socklen_t, xdp_desc};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Headroom before each received frame (XDP_PACKET_HEADROOM), bytes.
pub(super) const HEADROOM: usize = 256;
/// Size of a huge page, bytes.
const HUGE: usize = 2 << 20;

/// Size of the metadata that the XDP program writes before a frame (bpf/xsk.bpf.c): a mark and the time, bytes.
const STAMP: usize = 16;
const MARK: u64 = 0x006c_6174_7061_7468;

/// Attaches an XDP program to a device; closing the link detaches it.
pub(super) fn attach(program: BorrowedFd<'_>, ifindex: u32, generic: bool) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags: if generic { libbpf_sys::XDP_FLAGS_SKB_MODE } else { libbpf_sys::XDP_FLAGS_DRV_MODE },
        ..Default::default()
    };
    // SAFETY: the options are a live value of the stated size; the kernel copies the fields that it needs.
    let link =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex as c_int, libbpf_sys::BPF_XDP, &options) };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// This process's side of a ring shared with the kernel.
#[derive(Debug)]
struct Ring<T> {
    map: Map,
    /// Number of entries, a power of two.
    size: usize,
    offset: libc::xdp_ring_offset,
    /// Number of entries that this side has produced or consumed.
    mine: u32,
    entry: std::marker::PhantomData<T>,
}

/// Kind of ring: the option that creates it, and its mmap offset.
struct Kind {
    option: c_int,
    page: u64,
}

const FILL: Kind = Kind { option: libc::XDP_UMEM_FILL_RING, page: libc::XDP_UMEM_PGOFF_FILL_RING };
const SENT: Kind = Kind { option: libc::XDP_UMEM_COMPLETION_RING, page: libc::XDP_UMEM_PGOFF_COMPLETION_RING };
const RECEIVED: Kind = Kind { option: libc::XDP_RX_RING, page: libc::XDP_PGOFF_RX_RING as u64 };
const TO_SEND: Kind = Kind { option: libc::XDP_TX_RING, page: libc::XDP_PGOFF_TX_RING as u64 };

impl<T: Copy> Ring<T> {
    fn new(socket: BorrowedFd<'_>, kind: Kind, size: usize, offset: libc::xdp_ring_offset) -> io::Result<Self> {
        set_option(socket, libc::SOL_XDP, kind.option, &(size as c_int))?;
        let len = offset.desc as usize + size * size_of::<T>();
        let map = Map::new(len, libc::MAP_SHARED | libc::MAP_POPULATE, socket.as_raw_fd(), kind.page as i64)?;
        Ok(Self { map, size, offset, mine: 0, entry: std::marker::PhantomData })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel's offset points to a 32-bit index before the entries, inside the mapping, which lives as
        // long as `self`; both sides access the index atomically.
        unsafe { AtomicU32::from_ptr(self.map.at().as_ptr().add(offset as usize).cast()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.offset.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offset.consumer)
    }

    fn needs_wakeup(&self) -> bool {
        self.word(self.offset.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn entry(&self, number: u32) -> *mut T {
        let at = self.offset.desc as usize + (number as usize % self.size) * size_of::<T>();
        // SAFETY: `size` entries begin at `desc`, inside the mapping.
        unsafe { self.map.at().as_ptr().add(at).cast() }
    }

    /// As producer: adds an entry. The caller never has more frames in flight than the ring has entries.
    fn put(&mut self, value: T) {
        // SAFETY: user space owns the entry until it advances the producer index; the kernel aligned the entry.
        unsafe { self.entry(self.mine).write(value) };
        self.mine = self.mine.wrapping_add(1);
        // Release: the entry and its frame are written before the kernel can see them.
        self.producer().store(self.mine, Ordering::Release);
    }

    /// As producer: withdraws the last entry, unless the kernel has already consumed it. Returns whether it was
    /// withdrawn.
    fn take_back(&mut self) -> bool {
        let unread = self.consumer().load(Ordering::Acquire) != self.mine;
        if unread {
            self.mine = self.mine.wrapping_sub(1);
            self.producer().store(self.mine, Ordering::Release);
        }
        unread
    }

    /// As consumer: reads the next entry.
    #[inline]
    fn peek(&self) -> Option<T> {
        // Acquire: what the kernel wrote before it advanced the producer index is visible.
        if self.producer().load(Ordering::Acquire) == self.mine {
            return None;
        }
        // SAFETY: user space owns the entry until it advances the consumer index.
        Some(unsafe { self.entry(self.mine).read() })
    }

    /// As consumer: gives back the entry read by [`Self::peek`].
    fn done(&mut self) {
        self.mine = self.mine.wrapping_add(1);
        // Release: all reads of the entry happen before it is given back.
        self.consumer().store(self.mine, Ordering::Release);
    }
}

/// Number and size of a socket's frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frames {
    /// Size of a frame, bytes: 2048 or 4096.
    pub chunk: usize,
    /// Maximum number of frames received but not read yet: a power of two.
    pub incoming: usize,
    /// Maximum number of frames that are being sent: a power of two.
    pub outgoing: usize,
}

/// How frames are transferred between socket and NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bind {
    /// The kernel chooses.
    Any,
    /// The kernel copies the frames.
    Copy,
    /// The NIC reads and writes the frames itself.
    ZeroCopy,
}

/// An AF_XDP socket for one queue, with its own frames.
#[derive(Debug)]
pub(super) struct Socket {
    // Fields are dropped in order: the descriptor is closed before the rings and the frames are freed.
    fd: OwnedFd,
    fill: Ring<u64>,
    received: Ring<xdp_desc>,
    to_send: Ring<xdp_desc>,
    sent: Ring<u64>,
    frames: Map,
    /// Size of a frame, bytes.
    chunk: usize,
    /// Offsets of the frames that are free for sending.
    free: Vec<u64>,
    zero_copy: bool,
    /// Whether to call the kernel even if it does not request this, so that it busy-polls the NIC.
    pub polls: bool,
}

impl Socket {
    /// Opens a socket with these frames, optionally in huge pages. It is not bound to a queue yet.
    pub fn open(frames: Frames, huge: bool) -> io::Result<Self> {
        let Frames { chunk, incoming, outgoing } = frames;
        // SAFETY: no pointers are passed.
        let fd = check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: the descriptor is new and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = fd.as_fd();
        let used = (incoming + outgoing) * chunk;
        let (len, flags) = if huge { (used.next_multiple_of(HUGE), libc::MAP_HUGETLB) } else { (used, 0) };
        let frames = Map::new(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | flags, -1, 0)?;
        let memory = libc::xdp_umem_reg {
            addr: frames.at().as_ptr() as u64,
            len: used as u64,
            chunk_size: chunk as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &memory)?;
        // SAFETY: xdp_mmap_offsets consists of integers, so all zeros are valid.
        let mut at: libc::xdp_mmap_offsets = unsafe { zeroed() };
        // SAFETY: the struct consists of integers.
        if unsafe { get_option(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut at) }? != size_of_val(&at) {
            // Linux before 5.4 has no flags in its rings, so its struct is shorter.
            return Err(io::Error::from_raw_os_error(libc::ENOPROTOOPT));
        }
        let mut fill = Ring::new(socket, FILL, incoming, at.fr)?;
        let sent = Ring::new(socket, SENT, outgoing, at.cr)?;
        let received = Ring::new(socket, RECEIVED, incoming, at.rx)?;
        let to_send = Ring::new(socket, TO_SEND, outgoing, at.tx)?;
        (0..incoming).for_each(|i| fill.put((i * chunk) as u64));
        let free = (incoming..incoming + outgoing).map(|i| (i * chunk) as u64).collect();
        Ok(Self { fd, fill, received, to_send, sent, frames, chunk, free, zero_copy: false, polls: false })
    }

    /// Binds the socket to a queue.
    pub fn bind(&mut self, ifindex: u32, queue: u32, how: Bind) -> io::Result<()> {
        let how = match how {
            Bind::Any => 0,
            Bind::Copy => libc::XDP_COPY,
            Bind::ZeroCopy => libc::XDP_ZEROCOPY,
        };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: how | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let len = size_of::<libc::sockaddr_xdp>() as socklen_t;
        // SAFETY: `address` is a sockaddr_xdp of `len` bytes.
        check(unsafe { libc::bind(self.fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) })?;
        let mut options = libc::xdp_options { flags: 0 };
        // SAFETY: the struct consists of an integer.
        unsafe { get_option(self.fd.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS, &mut options) }?;
        self.zero_copy = options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0;
        Ok(())
    }

    /// Whether the NIC itself reads and writes the frames.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// The socket's descriptor, for options and for the XDP program's map.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The bytes of a frame.
    fn frame(&mut self, at: u64, len: usize) -> &mut [u8] {
        let at = (at as usize).min(self.frames.len());
        let len = len.min(self.frames.len() - at);
        // SAFETY: the range is inside the mapping. This side owns the frame from when it is read from one ring until it
        // is added to the next, which borrows `self`.
        unsafe { std::slice::from_raw_parts_mut(self.frames.at().as_ptr().add(at), len) }
    }

    /// Passes a received frame to `look`, with the XDP program's stamp (`CLOCK_MONOTONIC`, ns), if there is one.
    #[inline]
    pub fn take<R>(&mut self, look: impl FnOnce(&[u8], Option<Ns>) -> R) -> Option<R> {
        let descriptor = self.received.peek()?;
        // The stamp is at the end of the kernel's headroom, directly before the frame.
        let before = descriptor.addr.saturating_sub(STAMP as u64);
        let bytes = self.frame(before, descriptor.len as usize + STAMP);
        let (stamp, frame) = bytes.split_at_mut_checked(STAMP).unwrap_or_default();
        let word = |at: usize| stamp.get(at..)?.first_chunk().map(|b| u64::from_ne_bytes(*b));
        let time = word(0).filter(|mark| *mark == MARK).and_then(|_| Ns::try_from(word(8)?).ok());
        // Clear the stamp: the next frame in this memory may have none.
        stamp.fill(0);
        let result = look(frame, time);
        self.received.done();
        // Any address inside a frame identifies the frame (xp_aligned_extract_addr).
        self.fill.put(descriptor.addr - descriptor.addr % self.chunk as u64);
        Some(result)
    }

    /// Calls the kernel so that it receives frames, if necessary: with zero copy when the kernel requests this, and
    /// with busy polling always.
    #[inline]
    pub fn wake_kernel(&self) {
        if self.polls || (self.zero_copy && self.fill.needs_wakeup()) {
            let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT);
            // SAFETY: neither data nor an address is passed. The result is irrelevant, because frames arrive through
            // the ring.
            unsafe { libc::recvfrom(fd, std::ptr::null_mut(), 0, flags, std::ptr::null_mut(), std::ptr::null_mut()) };
        }
    }

    /// Sends a frame that `write` fills; `write` returns its length. Returns `Ok(None)` if no frame is free, and
    /// `Ok(Some(false))` if `write` returned `None`.
    #[inline]
    pub fn send(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> io::Result<Option<bool>> {
        while let Some(at) = self.sent.peek() {
            self.sent.done();
            self.free.push(at);
        }
        let Some(at) = self.free.pop() else {
            // Retry the frames that the driver refused earlier.
            self.kick()?;
            return Ok(None);
        };
        let chunk = self.chunk;
        let Some(len) = write(self.frame(at, chunk)) else {
            self.free.push(at);
            return Ok(Some(false));
        };
        self.to_send.put(xdp_desc { addr: at, len: len as u32, options: 0 });
        if self.zero_copy && !self.polls && !self.to_send.needs_wakeup() {
            return Ok(Some(true));
        }
        let kicked = self.kick();
        if kicked.is_err() && !self.zero_copy && self.to_send.take_back() {
            // In copy mode, the kernel reads the ring only during that call, so the frame is free again.
            self.free.push(at);
        }
        kicked.map(|()| Some(true))
    }

    /// Calls the kernel to send the frames in the ring.
    fn kick(&self) -> io::Result<()> {
        const TRIES: u32 = 3;
        for _ in 0..TRIES {
            let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT);
            // SAFETY: neither data nor an address is passed.
            let result = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
            if result >= 0 {
                return Ok(());
            }
            let cause = io::Error::last_os_error();
            match cause.raw_os_error() {
                Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => {}
                _ => return Err(cause),
            }
        }
        // The driver is busy: the frames in the ring will be sent together with the next frame.
        Ok(())
    }

    /// Number of frames dropped because a ring was full.
    pub fn dropped(&self) -> u64 {
        // SAFETY: xdp_statistics consists of integers, so all zeros are valid.
        let mut s: libc::xdp_statistics = unsafe { zeroed() };
        // SAFETY: the struct consists of integers.
        let got = unsafe { get_option(self.fd(), libc::SOL_XDP, libc::XDP_STATISTICS, &mut s) };
        got.map_or(0, |_| s.rx_dropped + s.rx_ring_full)
    }

    /// A pending error of the socket, e.g. because the device was removed.
    pub fn error(&self) -> Option<io::Error> {
        let noted = nix::sys::socket::getsockopt(&self.fd, nix::sys::socket::sockopt::SocketError);
        noted.ok().filter(|errno| *errno != 0).map(io::Error::from_raw_os_error)
    }
}

/// Waits up to `longest_ns` until one of the sockets has received a frame or has an error. A signal ends the wait
/// early.
pub(super) fn wait(sockets: &[Socket], longest_ns: i64) {
    // SAFETY: for pollfd, all zeros are valid.
    let mut polled: [libc::pollfd; super::MAX_QUEUES] = unsafe { zeroed() };
    let count = sockets.len().min(polled.len());
    for (poll, socket) in polled.iter_mut().zip(sockets) {
        *poll = libc::pollfd { fd: socket.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    }
    let timeout = libc::timespec { tv_sec: longest_ns / 1_000_000_000, tv_nsec: longest_ns % 1_000_000_000 };
    // SAFETY: the `count` pollfds and the timespec outlive the call; there is no signal mask. The result is irrelevant:
    // the caller checks its rings and its clock next.
    unsafe { libc::ppoll(polled.as_mut_ptr(), count as libc::nfds_t, &timeout, std::ptr::null()) };
}
