//! The kernel's counters against what was sent: queues and buffers that nobody reads, in namespaces of their own.
//!
//! Needs root, `ip` and `/dev/net/tun`.

use latpath_counters::{place_of_drop, Device, Difference, Netns, Place, Snapshot};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::{
    sched::{setns, CloneFlags},
    sys::socket::{
        recv, sendto, setsockopt, socket, sockopt, AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType,
        SockaddrIn, SockaddrLike,
    },
    unistd::geteuid,
};
use std::{
    fs::{self, File},
    net::UdpSocket,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
    process::{Command, ExitCode},
    str::FromStr,
    thread,
    time::Duration,
};

fn main() -> ExitCode {
    let lack = lack();
    let trial = |name: &'static str, lack: &Option<&str>, test: fn() -> Result<(), Failed>| {
        if let Some(lack) = lack {
            eprintln!("{name}: skipped, {lack}");
        }
        Trial::test(name, test).with_ignored_flag(lack.is_some())
    };
    let tests = vec![
        trial("a_taps_full_queue_is_what_was_sent_less_what_was_queued", &lack, full_tap),
        trial("a_macvtaps_full_queue_is_what_was_sent_less_what_was_queued", &lack.or(no_device_files()), full_macvtap),
        trial(
            "a_socket_that_is_not_read_drops_what_was_sent_less_what_is_read",
            &lack.or(no_packet_diag()),
            full_packet_socket,
        ),
        trial("a_udp_socket_that_is_not_read_drops_what_was_sent_less_what_is_read", &lack, full_udp_socket),
        trial("a_queueing_discipline_drops_what_it_has_no_room_for", &lack.or(no_tc()), full_qdisc),
        trial("frames_that_nobody_takes_are_counted_at_the_device", &lack, nobody_listens),
        trial("the_callers_thread_stays_in_its_namespace", &lack, stays),
        trial("a_namespace_that_only_a_process_holds_is_found", &lack, unnamed),
        trial("all_namespaces_are_looked_at_without_being_named", &lack, everywhere),
    ];
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn lack() -> Option<&'static str> {
    if !geteuid().is_root() {
        return Some("needs root");
    }
    if Command::new("ip").arg("-V").output().is_err() {
        return Some("needs ip, which is not installed");
    }
    (!Path::new("/dev/net/tun").exists()).then_some("needs /dev/net/tun")
}

/// The kernel makes `/dev/tapN` by itself only there.
fn no_device_files() -> Option<&'static str> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let there = mounts.lines().any(|line| line.contains(" /dev devtmpfs "));
    (!there).then_some("needs /dev to be a devtmpfs, for /dev/tapN")
}

fn no_tc() -> Option<&'static str> {
    Command::new("tc").arg("-V").output().is_err().then_some("needs tc, which is not installed")
}

/// docs/drops.md: without the module the kernel does not tell, and latpath loads none.
fn no_packet_diag() -> Option<&'static str> {
    let own = Netns::own().ok()?.inode();
    let taken = Snapshot::take(&[Device::name(own, "lo")]);
    let told = taken.namespaces.get(&own).is_some_and(|space| space.sockets.packet.is_some());
    (!told).then_some("needs the kernel's packet_diag (modprobe packet_diag)")
}

/// A namespace of this test; gone with this value.
struct Space {
    name: String,
}

impl Space {
    fn new(role: &str) -> Result<Self, Failed> {
        let space = Self { name: format!("latpath-counters-{}-{role}", std::process::id()) };
        ip(&["netns", "add", &space.name])?;
        for scope in ["all", "default"] {
            space.inside(|| {
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
            });
        }
        space.ip("link set lo up")?;
        Ok(space)
    }

    fn ip(&self, words: &str) -> Result<(), Failed> {
        let mut all = vec!["-n", &self.name];
        all.extend(words.split(' '));
        ip(&all)
    }

    fn file(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    fn inode(&self) -> u32 {
        fs::metadata(self.file()).map_or(0, |meta| meta.ino() as u32)
    }

    fn inside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.file()).expect("the namespace is there");
        thread::scope(|scope| {
            let enter = || {
                setns(&file, CloneFlags::CLONE_NEWNET).expect("root may enter it");
                call()
            };
            scope.spawn(enter).join().expect("no panic inside")
        })
    }

    fn ifindex(&self, device: &str) -> u32 {
        self.inside(|| nix::net::if_::if_nametoindex(device).expect("the device is there"))
    }

    /// What is counted on a device while `call` runs.
    fn counted(&self, device: &str, call: impl FnOnce() -> Result<(), Failed>) -> Result<Difference, Failed> {
        let devices = [Device::name(self.inode(), device)];
        let before = Snapshot::take(&devices);
        call()?;
        let difference = Snapshot::take(&devices).since(&before);
        if difference.unread.is_empty() {
            return Ok(difference);
        }
        Err(format!("not read: {:?}", difference.unread).into())
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(words: &[&str]) -> Result<(), Failed> {
    let output = Command::new("ip").args(words).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr)).into())
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Result<(), Failed> {
    if got == want {
        Ok(())
    } else {
        Err(format!("{what}: {got:?}, should be {want:?}").into())
    }
}

/// Sampled Values' ethertype.
const SV: u16 = 0x88ba;

fn packet_socket(protocol: u16) -> OwnedFd {
    let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).expect("root may");
    if protocol != 0 {
        bind(&fd, protocol, 0);
    }
    fd
}

/// struct sockaddr_ll
fn address(protocol: u16, ifindex: u32) -> LinkAddr {
    let all = nix::libc::sockaddr_ll {
        sll_family: nix::libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: ifindex as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    };
    let length = size_of_val(&all) as u32;
    // SAFETY: `all` is a whole sockaddr_ll, of the length given.
    unsafe { LinkAddr::from_raw((&raw const all).cast(), Some(length)) }.expect("it is a link address")
}

fn bind(fd: &OwnedFd, protocol: u16, ifindex: u32) {
    nix::sys::socket::bind(fd.as_raw_fd(), &address(protocol, ifindex)).expect("root may");
}

/// Sends so many frames by a device of the calling thread's namespace. What is refused on the way is sent all the same.
fn send_frames(device: &str, count: u64) {
    send_frames_to([1, 0x0c, 0xcd, 4, 0, 1], device, count);
}

fn send_frames_to(destination: [u8; 6], device: &str, count: u64) {
    let fd = packet_socket(0);
    let ifindex = nix::net::if_::if_nametoindex(device).expect("the device is there");
    let mut frame = [0; 120];
    frame[..6].copy_from_slice(&destination);
    frame[12..14].copy_from_slice(&SV.to_be_bytes());
    for _ in 0..count {
        // ENOBUFS tells of a drop.
        let _ = sendto(fd.as_raw_fd(), &frame, &address(SV, ifindex), MsgFlags::empty());
    }
}

/// A tap held open by a file of ours, as QEMU does it. nix has no name for the request.
fn tap(space: &Space, name: &str) -> File {
    nix::ioctl_write_ptr_bad!(set_iff, 0x4004_54ca, nix::libc::ifreq);
    space.inside(|| {
        let file = File::options().read(true).write(true).open("/dev/net/tun").expect("root may");
        // SAFETY: an ifreq of noughts is a valid one.
        let mut request: nix::libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as nix::libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (nix::libc::IFF_TAP | nix::libc::IFF_NO_PI) as i16;
        // SAFETY: TUNSETIFF reads an ifreq (include/uapi/linux/if_tun.h), and this is one.
        unsafe { set_iff(file.as_raw_fd(), &request) }.expect("the tap is made");
        file
    })
}

fn full_tap() -> Result<(), Failed> {
    let space = Space::new("tap")?;
    let _reader = tap(&space, "lptap0");
    // Without a queueing discipline: all that the tap refuses is refused by the tap.
    for words in ["link set lptap0 txqueuelen 16", "link set lptap0 up"] {
        space.ip(words)?;
    }
    let difference = space.counted("lptap0", || {
        space.inside(|| send_frames("lptap0", 100));
        Ok(())
    })?;
    let ifindex = space.ifindex("lptap0");
    let statistics = difference.device(space.inode(), ifindex).ok_or("the tap is not counted")?.statistics;
    equal("packets that the tap took", statistics.tx_packets, 0)?;
    equal("packets that it dropped", statistics.tx_dropped, 100 - 16)?;
    let place = place_of_drop("tun_net_xmit", "FULL_RING");
    equal("what the place counts", place.counted(&difference, space.inode(), ifindex), Some(100 - 16))
}

fn full_macvtap() -> Result<(), Failed> {
    let space = Space::new("macvtap")?;
    pair(&space)?;
    // The only one on its device, so that it gets everything.
    for words in
        ["link add link lpv1 name lpm1 type macvtap mode passthru", "link set lpm1 txqueuelen 16", "link set lpm1 up"]
    {
        space.ip(words)?;
    }
    let ifindex = space.ifindex("lpm1");
    let _reader = File::options().read(true).write(true).open(format!("/dev/tap{ifindex}"))?;
    let difference = space.counted("lpm1", || {
        space.inside(|| send_frames_to([2, 0, 0, 0, 0, 1], "lpv0", 100));
        settle();
        Ok(())
    })?;
    let statistics = difference.device(space.inode(), ifindex).ok_or("the macvtap is not counted")?.statistics;
    equal("packets that it dropped", (statistics.rx_dropped, statistics.tx_dropped), (100 - 16, 0))?;
    let place = place_of_drop("tap_handle_frame", "FULL_RING");
    equal("what the place counts", place.counted(&difference, space.inode(), ifindex), Some(100 - 16))
}

/// A veth pair: what is sent by lpv0 arrives at lpv1, at once, in the sender's context.
fn pair(space: &Space) -> Result<(), Failed> {
    space.ip("link add lpv0 type veth peer name lpv1")?;
    space.ip("link set lpv0 up")?;
    space.ip("link set lpv1 up")
}

/// What has been received and waits, counted.
fn waiting(fd: &OwnedFd) -> u64 {
    let mut buffer = [0; 2048];
    std::iter::from_fn(|| recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).ok()).count() as u64
}

/// The softirq that delivers may run a moment later.
fn settle() {
    thread::sleep(Duration::from_millis(200));
}

fn full_packet_socket() -> Result<(), Failed> {
    let space = Space::new("packet")?;
    pair(&space)?;
    let to = space.ifindex("lpv1");
    let slow = space.inside(|| {
        let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).expect("root may");
        setsockopt(&fd, sockopt::RcvBuf, &4096).expect("a small buffer is allowed");
        bind(&fd, SV, to);
        fd
    });
    let difference = space.counted("lpv1", || {
        space.inside(|| send_frames("lpv0", 200));
        settle();
        Ok(())
    })?;
    let received = waiting(&slow);
    if received == 0 || received == 200 {
        return Err(format!("the test shows nothing: {received} of 200 received").into());
    }
    let sockets =
        difference.namespaces[&space.inode()].sockets.packet.as_ref().ok_or("no packet sockets are listed")?;
    let socket = sockets.iter().find(|s| s.ifindex == to && s.protocol == SV).ok_or("our socket is not listed")?;
    equal("what the socket dropped", u64::from(socket.dropped), 200 - received)?;
    let place = place_of_drop("packet_rcv", "PACKET_SOCK_ERROR");
    equal("what the place counts", place.counted(&difference, space.inode(), to), Some(200 - received))
}

fn full_udp_socket() -> Result<(), Failed> {
    let space = Space::new("udp")?;
    let slow = space.inside(|| UdpSocket::bind("127.0.0.1:7400").expect("lo is up"));
    setsockopt(&slow, sockopt::RcvBuf, &4096)?;
    let difference = space.counted("lo", || {
        space.inside(|| {
            let fd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None::<SockProtocol>)
                .expect("a socket");
            for (port, count) in [(7400, 100), (7401, 7)] {
                let to = SockaddrIn::from_str(&format!("127.0.0.1:{port}")).expect("an address");
                for _ in 0..count {
                    // A port without listener is told of at the next call.
                    while sendto(fd.as_raw_fd(), &[0; 100], &to, MsgFlags::empty()).is_err() {}
                }
            }
        });
        settle();
        Ok(())
    })?;
    let received = waiting(&slow.into());
    let sockets = &difference.namespaces[&space.inode()].sockets;
    if received == 0 || received == 100 {
        return Err(format!("the test shows nothing: {received} of 100 received").into());
    }
    equal("datagrams without room", sockets.udp_buffer_full, 100 - received)?;
    equal("datagrams without listener", sockets.udp_no_listener, 7)
}

fn full_qdisc() -> Result<(), Failed> {
    let space = Space::new("qdisc")?;
    pair(&space)?;
    // A packet every 12 s: what is not queued is dropped.
    let words = "-n NAME qdisc add dev lpv0 root tbf rate 80bit burst 130 limit 1200";
    let words = words.replace("NAME", &space.name);
    let output = Command::new("tc").args(words.split(' ')).output()?;
    if !output.status.success() {
        return Err(format!("tc: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let difference = space.counted("lpv0", || {
        space.inside(|| send_frames("lpv0", 100));
        Ok(())
    })?;
    let ifindex = space.ifindex("lpv0");
    let device = difference.device(space.inode(), ifindex).ok_or("the device is not counted")?;
    let dropped = device.queueing.ok_or("it has a queueing discipline")?.dropped;
    // One may have gone at once, ten wait.
    let sent = device.statistics.tx_packets;
    equal("dropped, sent and waiting", u64::from(dropped) + sent + 1200 / 120, 100)?;
    equal("the place", Place::QueueingDiscipline.counted(&difference, space.inode(), ifindex), Some(dropped.into()))
}

fn nobody_listens() -> Result<(), Failed> {
    let space = Space::new("nobody")?;
    pair(&space)?;
    let difference = space.counted("lpv1", || {
        space.inside(|| send_frames("lpv0", 50));
        settle();
        Ok(())
    })?;
    let ifindex = space.ifindex("lpv1");
    let statistics = difference.device(space.inode(), ifindex).ok_or("not counted")?.statistics;
    equal("received", statistics.rx_packets, 50)?;
    equal("the place", Place::NoListener.counted(&difference, space.inode(), ifindex), Some(50))
}

fn stays() -> Result<(), Failed> {
    let space = Space::new("stay")?;
    let own = || fs::metadata("/proc/thread-self/ns/net").map(|meta| meta.ino());
    let before = own()?;
    let taken = Snapshot::take(&[Device::name(space.inode(), "lo")]);
    equal("devices read", taken.namespaces[&space.inode()].devices.len(), 1)?;
    equal("our namespace", own()?, before)
}

fn unnamed() -> Result<(), Failed> {
    let space = Space::new("unnamed")?;
    space.ip("link add lpdummy0 type veth peer name lpdummy1")?;
    let inode = space.inode();
    let mut holder = {
        let file = File::open(space.file())?;
        let mut command = Command::new("sleep");
        command.arg("60");
        let enter = move || setns(&file, CloneFlags::CLONE_NEWNET).map_err(Into::into);
        // SAFETY: setns is one system call, which is allowed between fork and exec.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, enter) };
        command.spawn()?
    };
    drop(space);
    let found = Netns::find(inode).and_then(|netns| latpath_counters::interfaces(&netns));
    holder.kill()?;
    holder.wait()?;
    let names: Vec<String> = found?.into_iter().map(|interface| interface.name).collect();
    equal("its device", names.iter().any(|name| name == "lpdummy0"), true)
}

fn everywhere() -> Result<(), Failed> {
    let (one, two) = (Space::new("one")?, Space::new("two")?);
    pair(&one)?;
    let before = Snapshot::everywhere();
    one.inside(|| send_frames("lpv0", 30));
    settle();
    let difference = Snapshot::everywhere().since(&before);
    let sent = difference.device(one.inode(), one.ifindex("lpv0")).map(|device| device.statistics.tx_packets);
    equal("sent in one", sent, Some(30))?;
    let idle = difference.namespaces.get(&two.inode()).map(|space| space.devices.len());
    equal("devices of the other", idle, Some(1))
}
