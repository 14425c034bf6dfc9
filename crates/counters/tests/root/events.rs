//! Checks that the kernel's event for each drop (tracepoint `skb:kfree_skb`) is attributed to the right place.

use crate::space::{
    pair, send_frames, send_frames_to, slow_qdisc, small_packet_socket, small_udp_socket, tap, waiting, SV,
};
use latpath_stats::{place_of_drop, DropPlace};
use latpath_testkit::waits::delivered;
use latpath_testkit::{equal, need_tool, Failed, Space};
use nix::{
    mount::{mount, umount, MsFlags},
    sched::{unshare, CloneFlags},
};
use std::{
    fs::{self, File},
    net::UdpSocket,
    path::PathBuf,
    thread,
};

/// A tracefs instance; tracefs is mounted only for the calling thread.
struct Trace {
    mount: tempfile::TempDir,
    instance: PathBuf,
}

impl Trace {
    /// Mounts tracefs. The calling thread gets its own mount namespace and stays in it, so it should end soon.
    fn start() -> nix::Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        const NONE: Option<&str> = None;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
        let folder = tempfile::tempdir().map_err(|_| nix::Error::EIO)?;
        mount(Some("latpath"), folder.path(), Some("tracefs"), MsFlags::empty(), NONE)?;
        let instance = folder.path().join(format!("instances/latpath-counters-{}", std::process::id()));
        fs::create_dir(&instance).map_err(|_| nix::Error::EIO)?;
        Ok(Self { mount: folder, instance })
    }

    fn set(&self, file: &str, value: &str) -> Result<(), Failed> {
        fs::write(self.instance.join(file), value).map_err(|e| format!("{file}: {e}").into())
    }

    /// Function and reason of each drop of a Sampled Values or IPv4 packet during `call`.
    fn drops(&self, call: impl FnOnce()) -> Result<Vec<(String, String)>, Failed> {
        self.set("trace", "")?;
        self.set("events/skb/kfree_skb/enable", "1")?;
        call();
        delivered()?;
        self.set("events/skb/kfree_skb/enable", "0")?;
        let text = fs::read_to_string(self.instance.join("trace"))?;
        Ok(text.lines().filter_map(drop_event).collect())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.instance);
        let _ = umount(self.mount.path());
    }
}

/// Parses an event such as `kfree_skb: skbaddr=… protocol=35002 location=tun_net_xmit+0x1a/0x3b reason: FULL_RING`.
fn drop_event(line: &str) -> Option<(String, String)> {
    let (_, event) = line.split_once("kfree_skb: ")?;
    let word = |name: &str| event.split(' ').find_map(|word| word.strip_prefix(name));
    let protocol: u16 = word("protocol=")?.parse().ok()?;
    let function = word("location=")?.split('+').next()?;
    let (_, reason) = event.split_once("reason: ")?;
    [SV, 0x0800].contains(&protocol).then(|| (function.to_owned(), reason.trim().to_owned()))
}

/// Requires function names in drop events: kernels up to about 6.4 print an address.
pub fn no_drop_events() -> latpath_testkit::Lack {
    let format = |trace: Trace| fs::read_to_string(trace.mount.path().join("events/skb/kfree_skb/format"));
    let format = thread::spawn(move || Trace::start().ok().and_then(|trace| format(trace).ok())).join().ok().flatten();
    match format {
        None => Some("needs tracefs".into()),
        Some(format) if !format.contains("location=%pS") => {
            Some("needs a kernel whose drop events name the function".into())
        }
        Some(_) => None,
    }
}

/// Causes each kind of drop, and checks the kernel's event.
pub fn places() -> Result<(), Failed> {
    let seen = thread::scope(|scope| scope.spawn(drops_of_all_kinds).join());
    seen.map_err(|_| Failed::from("a panic"))?
}

fn drops_of_all_kinds() -> Result<(), Failed> {
    // Create these namespaces before this thread gets its own mounts, in which later namespaces would not appear.
    let (of_tap, joined, queued) = (Space::new("place-tap")?, Space::new("place-net")?, Space::new("place-qdisc")?);
    let trace = Trace::start()?;
    let check = |what: &str, expected: DropPlace, count: u64, call: &dyn Fn()| -> Result<(), Failed> {
        let drops = trace.drops(call)?;
        let here = drops.iter().filter(|(function, reason)| place_of_drop(function, reason) == expected).count() as u64;
        if here == count {
            return Ok(());
        }
        let mut kinds: Vec<_> = drops.iter().map(|(f, r)| (place_of_drop(f, r), f, r)).collect();
        kinds.sort();
        kinds.dedup();
        Err(format!("{what}: {here} drops at \"{expected}\", should be {count}; seen: {kinds:?}").into())
    };

    let space = &of_tap;
    let reader = tap(space, "lptap0");
    space.ip("link set lptap0 txqueuelen 16")?;
    space.ip("link set lptap0 up")?;
    check("tap", DropPlace::TapQueueFull, 84, &|| space.inside(|| send_frames("lptap0", 100)))?;
    drop(reader);

    let space = &joined;
    pair(space)?;
    let to = space.ifindex("lpv1");
    check("nobody", DropPlace::NoListener, 30, &|| space.inside(|| send_frames("lpv0", 30)))?;

    let slow = small_packet_socket(space, to);
    let received = std::cell::Cell::new(Ok(0));
    let drops = trace.drops(|| {
        space.inside(|| send_frames("lpv0", 100));
        received.set(delivered().map(|()| waiting(&slow)));
    })?;
    let here = drops.iter().filter(|(f, r)| place_of_drop(f, r) == DropPlace::SocketBufferFull).count() as u64;
    equal("drops of the packet socket", here, 100 - received.replace(Ok(0))?)?;
    drop(slow);

    space.ip("link add link lpv1 name lpm1 type macvtap mode passthru")?;
    space.ip("link set lpm1 txqueuelen 16")?;
    space.ip("link set lpm1 up")?;
    let reader = File::options().read(true).write(true).open(format!("/dev/tap{}", space.ifindex("lpm1")));
    if let Ok(reader) = reader {
        let send = || space.inside(|| send_frames_to([2, 0, 0, 0, 0, 1], "lpv0", 100));
        check("macvtap", DropPlace::MacvtapQueueFull, 84, &send)?;
        drop(reader);
    }

    let space = &queued;
    pair(space)?;
    if need_tool("tc").is_none() {
        slow_qdisc(space, "lpv0")?;
        let drops = trace.drops(|| space.inside(|| send_frames("lpv0", 100)))?;
        let here = drops.iter().filter(|(f, r)| place_of_drop(f, r) == DropPlace::QueueingDiscipline).count();
        // Ten frames are queued; one may have been sent, and dropped without a receiver.
        equal("drops of the queueing discipline", here == 89 || here == 90, true)
            .map_err(|_| Failed::from(format!("{here} drops of 100 at the queueing discipline; seen: {drops:?}")))?;
    }

    let slow = small_udp_socket(space, "127.0.0.1:7400");
    let drops = trace.drops(|| {
        space.inside(|| {
            let sender = UdpSocket::bind("127.0.0.1:0").expect("lo is up");
            for _ in 0..100 {
                let _ = sender.send_to(&[0; 100], "127.0.0.1:7400");
            }
            for _ in 0..5 {
                let _ = sender.send_to(&[0; 100], "127.0.0.1:7401");
            }
        });
        received.set(delivered().map(|()| waiting(&slow)));
    })?;
    let at = |place| drops.iter().filter(|(f, r)| place_of_drop(f, r) == place).count() as u64;
    equal("drops of the UDP socket", at(DropPlace::SocketBufferFull), 100 - received.replace(Ok(0))?)?;
    if at(DropPlace::NoSocket) == 0 {
        return Err(format!("nothing is dropped where nobody listens; seen: {drops:?}").into());
    }
    Ok(())
}
