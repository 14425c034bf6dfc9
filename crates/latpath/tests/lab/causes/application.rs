//! The application at the end of the route and other senders. They are part of the test program, so that the tests
//! can make them faulty.

use super::fault::{ns, print_injections, spin_until, Done, Injection, Rounds, Words};
use super::{
    stalls::{stall, Lock},
    storm,
};
use latpath_linux::monotonic;
use latpath_wire::{
    thread::{pin, set_fifo, set_name},
    Groups, Listen, PacketSocket, Received, Receiver,
};
use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
use std::{
    io::{self, IoSlice},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

static OVER: AtomicBool = AtomicBool::new(false);

extern "C" fn over(_: libc::c_int) {
    OVER.store(true, Ordering::Relaxed);
}

/// Reads until it is stopped. In rounds (`times=`, `busy=`, `every=`) it does something else (`stall=`), or one of
/// its threads holds a lock that it needs (`lock=`). Each frame costs it `work=` µs.
pub fn run(words: &Words) -> io::Result<()> {
    let end = SigAction::new(SigHandler::Handler(over), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler stores a flag and does nothing else.
        unsafe { sigaction(signal, &end)? };
    }
    set_name("relay");
    // The kernel refuses to pin a SCHED_DEADLINE thread.
    if words.get::<u64>("runtime").is_err() {
        pin(words.get("cpu")?).map_err(io::Error::other)?;
    }
    match words.get("fifo")? {
        0 => {
            let nice = words.get("nice")?;
            // SAFETY: takes only integers.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
        }
        priority => set_fifo(priority).map_err(io::Error::other)?,
    }
    let device: String = words.get("device")?;
    let socket =
        PacketSocket::open(&device, Listen::Delivered(latpath_protocols::ProtocolId::Sv)).map_err(io::Error::other)?;
    socket.join(&Groups::All).map_err(io::Error::other)?;
    let mut receiver = Receiver::new(socket, false).map_err(io::Error::other)?;
    let work = ns(Duration::from_micros(words.get("work")?));
    let rounds = Rounds::of(words)?;
    let after = Duration::from_secs(words.get("after")?);
    let (mut stall, mut lock) = (stall(words)?, Lock::of(words)?);
    let (passed, mut holder) = (lock.clone(), None);
    if let Ok(runtime) = words.time("runtime") {
        set_deadline(runtime, words.time("period")?)?;
    }
    // Rounds start with the first frame.
    let (mut injections, mut next, mut round) = (Vec::new(), None, 0);
    let least = words.time("least").map_or(0, ns);
    while !OVER.load(Ordering::Relaxed) {
        let mut take = |_: Received<'_>| {
            if work > 0 {
                spin_until(monotonic() + work);
            }
        };
        if receiver.receive(&mut take).map_err(io::Error::other)? == 0 {
            continue;
        }
        let due = *next.get_or_insert_with(|| Instant::now() + after);
        if let Some(lock) = lock.take_if(|_| Instant::now() >= due) {
            holder = Some(lock.hold(words)?);
        }
        if let Some(lock) = &passed {
            lock.pass()?;
            continue;
        }
        if round < rounds.times() && Instant::now() >= due {
            let begin = monotonic();
            stall(rounds.busy())?;
            // A shorter stall is not the intended fault: the work may have been split over two periods, for example.
            if monotonic() - begin >= least {
                injections.push(Injection::whole(begin, monotonic()));
            }
            round += 1;
            next = Some(Instant::now() + rounds.pause(round));
        }
    }
    match holder {
        Some(holder) => holder.join().map_err(|_| io::Error::other("the holder of the lock failed"))?,
        None => print_injections(&injections),
    }
}

/// Gives this thread `runtime` in each `period` (SCHED_DEADLINE).
fn set_deadline(runtime: Duration, period: Duration) -> io::Result<()> {
    // struct sched_attr, include/uapi/linux/sched/types.h
    let (runtime, period) = (runtime.as_nanos() as u64, period.as_nanos() as u64);
    let policy = 6; // SCHED_DEADLINE
    let attr: [u64; 6] = [48 | policy << 32, 0, 0, runtime, period, period];
    // SAFETY: the structure outlives the call, which reads the size that it contains.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, attr.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends bursts of frames that belong to no stream; each costs CPU time where it arrives (`at=`, `cost=`).
pub fn flood(words: &Words, rounds: &Rounds) -> io::Result<()> {
    set_name("flooder");
    pin(words.get("cpu")?).map_err(io::Error::other)?;
    let device: String = words.get("device")?;
    let mut socket = PacketSocket::open(&device, Listen::No).map_err(io::Error::other)?;
    let mut frame = vec![0u8; 64];
    frame[..6].fill(0xff);
    // A bridge drops frames without a source address.
    frame[6] = 2;
    // Ethertype for local experiments (IEEE 802).
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let frames: usize = words.get("frames")?;
    // Without `at=`, a frame has its ordinary cost.
    if let Ok(at) = words.get::<String>("at") {
        storm::make_costly(&at, words.time("cost")?)?;
    }
    rounds.each(|busy| {
        let end = monotonic() + ns(busy);
        for _ in 0..frames {
            socket.send(&[IoSlice::new(&frame)]).map_err(io::Error::other)?;
        }
        latpath_testkit::waits::fault_for(Duration::from_nanos((end - monotonic()).max(0) as u64));
        Ok(Done::Now)
    })
}
