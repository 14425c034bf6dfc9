//! Which processes count as readers of a packet: not its sender, nor a sniffer on the sender's device.

use crate::*;
use latpath_testkit::{bench, trial, Lack};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

pub fn trials(needs: &[Lack]) -> Vec<latpath_testkit::Trial> {
    vec![
        trial("a_sender_that_reads_its_own_timestamps_is_no_reader", needs, own_timestamps),
        trial("a_sender_that_reads_its_own_timestamps_of_a_tap_is_no_vm", needs, own_timestamps_of_a_tap),
        trial("a_sniffer_beside_the_sender_is_no_reader", needs, sniffer),
    ]
}

const ALL_PROTOCOLS: u16 = 3;
const SV: u16 = 0x88ba;
const FRAMES: u16 = 40;

/// Opens a packet socket on a device for packets of this protocol; with protocol 0 it receives none.
pub fn packet_socket(device: &str, protocol: u16) -> OwnedFd {
    let name = CString::new(device).expect("a name without NUL");
    // SAFETY: plain system calls; the descriptor is checked and owned from then on, the address is complete.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(protocol.to_be()));
        assert!(fd >= 0);
        let socket = OwnedFd::from_raw_fd(fd);
        let mut at: libc::sockaddr_ll = std::mem::zeroed();
        at.sll_family = libc::AF_PACKET as u16;
        at.sll_protocol = protocol.to_be();
        at.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        assert_eq!(libc::bind(fd, (&raw const at).cast(), size_of_val(&at) as u32), 0);
        socket
    }
}

/// Sets this thread's name, from which the reader's point gets its name.
pub fn call_me(name: &str) {
    let name = CString::new(name).expect("a name without NUL");
    // SAFETY: the name ends with NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Reads a frame from the socket's queue, or from its error queue with MSG_ERRQUEUE; returns its length.
pub fn take(socket: &OwnedFd, flags: i32) -> Option<usize> {
    let mut frame = [0u8; 16384];
    // SAFETY: the buffer has the given length.
    let got =
        unsafe { libc::recv(socket.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), flags | libc::MSG_DONTWAIT) };
    usize::try_from(got).ok().filter(|len| *len > 0)
}

/// Requests the stack's TX timestamps, both at the queueing layer and at the driver.
fn ask_for_timestamps(socket: &OwnedFd) {
    let flags: u32 = libc::SOF_TIMESTAMPING_TX_SOFTWARE
        | libc::SOF_TIMESTAMPING_TX_SCHED
        | libc::SOF_TIMESTAMPING_SOFTWARE
        | libc::SOF_TIMESTAMPING_OPT_ID;
    // SAFETY: the option is an int of the given length.
    let set = unsafe {
        let fd = socket.as_raw_fd();
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw const flags).cast(),
            size_of::<u32>() as u32,
        )
    };
    assert_eq!(set, 0);
}

/// Sends each frame, and reads it back with its two timestamps.
fn send_with_timestamps(device: &str, frames: &[Vec<u8>]) {
    call_me("sender");
    let socket = packet_socket(device, 0);
    ask_for_timestamps(&socket);
    for frame in frames {
        // SAFETY: the frame has the given length.
        let sent = unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize);
        let mut came = 0;
        let all = until("both timestamps", || {
            came += usize::from(take(&socket, libc::MSG_ERRQUEUE).is_some_and(|len| len >= frame.len()));
            came == 2
        });
        all.expect("the kernel gives a sent packet back with its timestamps");
    }
}

fn frames(stream: &str) -> Vec<Vec<u8>> {
    (0..FRAMES).map(|n| bytes(&frame(stream, n))).collect()
}

fn no_point(seen: &Seen, kind: &str) -> Result<(), Failed> {
    match seen.keys().into_iter().find(|(point, _)| point.contains(kind)) {
        Some((point, keys)) => Err(format!("{point} saw {} frames", keys.len()).into()),
        None => Ok(()),
    }
}

fn own_timestamps() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("stamps");
    let frames = frames(&stream);
    let probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    // A reader at the end of the route, which counts.
    let reader = bench.application().inside(|| packet_socket("lp-app", SV))?;
    bench.path.publisher.inside(|| send_with_timestamps(PUBLISHER, &frames))?;
    let read = bench.application().inside(|| {
        call_me("reader");
        std::iter::from_fn(|| take(&reader, 0)).count()
    })?;
    assert_eq!(read, frames.len());
    let seen = seen(&bench, probe, |seen| seen.at("host/app-read@reader").len() >= frames.len())?;
    let want: Vec<_> = (0..FRAMES).map(|n| (0, u32::from(n))).collect();
    assert_eq!(seen.at("host/app-read@reader"), want);
    expect_everywhere(&seen, &want)?;
    no_point(&seen, "@sender")
}

fn own_timestamps_of_a_tap() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("tapstamps");
    let frames = frames(&stream);
    let space = &bench.path.publisher;
    let tap = space.inside(|| taps::open(Path::new("/dev/net/tun"), "vnet9"))??;
    space.ip("link set vnet9 up")?;
    let probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    space.inside(|| send_with_timestamps("vnet9", &frames))?;
    let seen = seen(&bench, probe, |seen| seen.at("host/tx@vnet9").len() >= frames.len())?;
    drop(tap);
    assert_eq!(seen.at("host/tx@vnet9").len(), frames.len());
    no_point(&seen, "vm-read")?;
    no_point(&seen, "app-read")
}

fn sniffer() -> Result<(), Failed> {
    let bench = bench()?;
    let stream = own("sniffed");
    let frames = frames(&stream);
    let probe = Probe::attach(ProbeOptions::new("host", vec![StreamSpec::svid(&stream)]))?;
    let sniffer = bench.path.publisher.inside(|| packet_socket(PUBLISHER, ALL_PROTOCOLS))?;
    // A socket that receives incoming packets is a reader.
    let other = bench.application().inside(|| packet_socket("lp-app", ALL_PROTOCOLS))?;
    send(&bench, &frames)?;
    let read = |socket: &OwnedFd, name: &str| {
        call_me(name);
        std::iter::from_fn(|| take(socket, 0)).filter(|len| *len == frames[0].len()).count()
    };
    assert_eq!(bench.path.publisher.inside(|| read(&sniffer, "sniffer"))?, frames.len());
    assert_eq!(bench.application().inside(|| read(&other, "monitor"))?, frames.len());
    let seen = seen(&bench, probe, |seen| seen.at("host/app-read@monitor").len() >= frames.len())?;
    assert_eq!(seen.at("host/app-read@monitor").len(), frames.len());
    no_point(&seen, "@sniffer")
}
