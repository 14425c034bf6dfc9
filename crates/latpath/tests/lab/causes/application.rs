//! The application at the end of the route, and others that send: parts of the test program itself, so that they can be faulty.

use super::fault::{ns, print_injections, spin_until, Done, Injection, Rounds, Words};
use super::storm;
use latpath_linux::monotonic;
use latpath_traffic::{
    kernel::{pin, set_fifo, set_name},
    Groups, Listen, PacketSocket, Received, Receiver,
};
use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
use std::{
    io::{self, IoSlice},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

static OVER: AtomicBool = AtomicBool::new(false);

extern "C" fn over(_: libc::c_int) {
    OVER.store(true, Ordering::Relaxed);
}

/// Reads until it is stopped; at times (`times=`, `busy=`, `every=`) it sleeps instead, and each frame costs it `work=` µs.
pub fn run(words: &Words) -> io::Result<()> {
    let end = SigAction::new(SigHandler::Handler(over), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler stores a flag and does nothing else.
        unsafe { sigaction(signal, &end)? };
    }
    set_name("relay");
    pin(words.get("cpu")?).map_err(io::Error::other)?;
    match words.get("fifo")? {
        0 => {
            let nice = words.get("nice")?;
            // SAFETY: takes numbers alone.
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
    // From the first frame on.
    let (mut injections, mut next) = (Vec::new(), None);
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
        if (injections.len() as u32) < rounds.times() && Instant::now() >= due {
            let begin = monotonic();
            thread::sleep(rounds.busy());
            injections.push(Injection::whole(begin, monotonic()));
            next = Some(Instant::now() + rounds.pause(injections.len() as u32));
        }
    }
    print_injections(&injections)
}

/// Sends frames of no stream's in one go, each of which costs where it arrives.
pub fn flood(words: &Words, rounds: &Rounds) -> io::Result<()> {
    set_name("flooder");
    pin(words.get("cpu")?).map_err(io::Error::other)?;
    let device: String = words.get("device")?;
    let mut socket = PacketSocket::open(&device, Listen::No).map_err(io::Error::other)?;
    let mut frame = vec![0u8; 64];
    frame[..6].fill(0xff);
    // Local experiments: IEEE 802.
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let frames: usize = words.get("frames")?;
    let cost = Duration::from_micros(words.get("cost")?);
    storm::make_costly(&words.get::<String>("at")?, cost)?;
    rounds.each(|busy| {
        let end = monotonic() + ns(busy);
        for _ in 0..frames {
            socket.send(&[IoSlice::new(&frame)]).map_err(io::Error::other)?;
        }
        thread::sleep(Duration::from_nanos((end - monotonic()).max(0) as u64));
        Ok(Done::Now)
    })
}
