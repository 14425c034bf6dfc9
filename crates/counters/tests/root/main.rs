//! Checks the kernel's counters against the number of packets sent to queues and buffers without a reader, in separate
//! namespaces.
//!
//! Needs root, `ip` and `/dev/net/tun`.

mod events;
mod space;

use events::{no_drop_events, places};
use latpath_counters::Snapshot;
use latpath_net::Netns;
use latpath_stats::{place_of_drop, DropPlace};
use latpath_testkit::waits::delivered;
use latpath_testkit::{equal, need_root, need_tool, trial, Failed, Lack, Space};
use nix::sched::{setns, CloneFlags};
use space::{
    counted, pair, send_frames, send_frames_to, slow_qdisc, small_packet_socket, small_udp_socket, tap, waiting, SV,
};
use std::{
    fs::{self, File},
    net::UdpSocket,
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Command, ExitCode},
};

fn main() -> ExitCode {
    let lack = &[lack()];
    let or = |other: fn() -> Lack| [lack[0].clone().or_else(other)];
    let tests = vec![
        trial("a_taps_full_queue_is_what_was_sent_less_what_was_queued", lack, full_tap),
        trial("a_macvtaps_full_queue_is_what_was_sent_less_what_was_queued", &or(no_device_files), full_macvtap),
        trial(
            "a_socket_that_is_not_read_drops_what_was_sent_less_what_is_read",
            &or(no_packet_diag),
            full_packet_socket,
        ),
        trial("a_udp_socket_that_is_not_read_drops_what_was_sent_less_what_is_read", lack, full_udp_socket),
        trial("a_queueing_discipline_drops_what_does_not_fit", &or(|| need_tool("tc")), full_qdisc),
        trial("frames_that_nobody_takes_are_counted_at_the_device", lack, nobody_listens),
        trial("what_the_kernel_says_of_each_drop_means_the_place_where_it_happened", &or(no_drop_events), places),
        trial("the_callers_thread_stays_in_its_namespace", lack, stays),
        trial("a_namespace_that_only_a_process_holds_is_found", lack, unnamed),
        trial("all_namespaces_are_looked_at_without_being_named", lack, everywhere),
    ];
    latpath_testkit::main(tests)
}

fn lack() -> Lack {
    let tun = || (!Path::new("/dev/net/tun").exists()).then(|| "needs /dev/net/tun".into());
    need_root().or_else(|| need_tool("ip")).or_else(tun)
}

/// Requires devtmpfs, where the kernel creates `/dev/tapN`.
fn no_device_files() -> Lack {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let there = mounts.lines().any(|line| line.contains(" /dev devtmpfs "));
    (!there).then(|| "needs /dev to be a devtmpfs, for /dev/tapN".into())
}

/// Requires the module packet_diag, which latpath does not load (docs/drops.md).
fn no_packet_diag() -> Lack {
    let own = Netns::own().ok()?.inode();
    let taken = Snapshot::everywhere();
    let listed = taken.namespaces.get(&own).is_some_and(|space| space.sockets.packet.is_some());
    (!listed).then(|| "needs the kernel's packet_diag (modprobe packet_diag)".into())
}

fn full_tap() -> Result<(), Failed> {
    let space = Space::new("tap")?;
    let _reader = tap(&space, "lptap0");
    // The tap gets no queueing discipline, so that all drops are its own.
    for words in ["link set lptap0 txqueuelen 16", "link set lptap0 up"] {
        space.ip(words)?;
    }
    let difference = counted(&space, || {
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
    // In passthru mode it is the only macvtap on its device, and receives all frames.
    for words in
        ["link add link lpv1 name lpm1 type macvtap mode passthru", "link set lpm1 txqueuelen 16", "link set lpm1 up"]
    {
        space.ip(words)?;
    }
    let ifindex = space.ifindex("lpm1");
    let _reader = File::options().read(true).write(true).open(format!("/dev/tap{ifindex}"))?;
    let difference = counted(&space, || {
        space.inside(|| send_frames_to([2, 0, 0, 0, 0, 1], "lpv0", 100));
        delivered()?;
        Ok(())
    })?;
    let statistics = difference.device(space.inode(), ifindex).ok_or("the macvtap is not counted")?.statistics;
    equal("packets that it dropped", (statistics.rx_dropped, statistics.tx_dropped), (100 - 16, 0))?;
    let place = place_of_drop("tap_handle_frame", "FULL_RING");
    equal("what the place counts", place.counted(&difference, space.inode(), ifindex), Some(100 - 16))
}

fn full_packet_socket() -> Result<(), Failed> {
    let space = Space::new("packet")?;
    pair(&space)?;
    let to = space.ifindex("lpv1");
    let slow = small_packet_socket(&space, to);
    let difference = counted(&space, || {
        space.inside(|| send_frames("lpv0", 200));
        delivered()?;
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
    let slow = small_udp_socket(&space, "127.0.0.1:7400");
    let difference = counted(&space, || {
        space.inside(|| {
            let sender = UdpSocket::bind("127.0.0.1:0").expect("lo is up");
            for (port, count) in [(7400, 100), (7401, 7)] {
                for _ in 0..count {
                    // A port without a listener makes the next call fail, so it is retried.
                    while sender.send_to(&[0; 100], ("127.0.0.1", port)).is_err() {}
                }
            }
        });
        delivered()?;
        Ok(())
    })?;
    let received = waiting(&slow);
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
    slow_qdisc(&space, "lpv0")?;
    let difference = counted(&space, || {
        space.inside(|| send_frames("lpv0", 100));
        Ok(())
    })?;
    let ifindex = space.ifindex("lpv0");
    let device = difference.device(space.inode(), ifindex).ok_or("the device is not counted")?;
    let queueing = device.queueing.clone().ok_or("it has a queueing discipline")?;
    equal("its kinds", queueing.kinds, vec!["tbf".to_owned()])?;
    let dropped = queueing.dropped;
    // One frame may have been sent at once; ten are queued.
    let sent = device.statistics.tx_packets;
    equal("dropped, sent and waiting", u64::from(dropped) + sent + 1200 / 120, 100)?;
    equal("the place", DropPlace::QueueingDiscipline.counted(&difference, space.inode(), ifindex), Some(dropped.into()))
}

fn nobody_listens() -> Result<(), Failed> {
    let space = Space::new("nobody")?;
    pair(&space)?;
    let difference = counted(&space, || {
        space.inside(|| send_frames("lpv0", 50));
        delivered()?;
        Ok(())
    })?;
    let ifindex = space.ifindex("lpv1");
    let statistics = difference.device(space.inode(), ifindex).ok_or("not counted")?.statistics;
    equal("received", statistics.rx_packets, 50)?;
    equal("the place", DropPlace::NoListener.counted(&difference, space.inode(), ifindex), Some(50))
}

fn stays() -> Result<(), Failed> {
    let space = Space::new("stay")?;
    let own = || fs::metadata("/proc/thread-self/ns/net").map(|meta| meta.ino());
    let before = own()?;
    let taken = Snapshot::everywhere();
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
        // SAFETY: setns is a system call, which is allowed between fork and exec.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, enter) };
        command.spawn()?
    };
    drop(space);
    let found = Netns::find(inode).and_then(|netns| latpath_net::interfaces(&netns));
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
    delivered()?;
    let difference = Snapshot::everywhere().since(&before);
    let sent = difference.device(one.inode(), one.ifindex("lpv0")).map(|device| device.statistics.tx_packets);
    equal("sent in one", sent, Some(30))?;
    let idle = difference.namespaces.get(&two.inode()).map(|space| space.devices.len());
    equal("devices of the other", idle, Some(1))
}
