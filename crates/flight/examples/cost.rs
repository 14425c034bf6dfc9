//! What an event costs while two threads wake each other as fast as they can, on the CPU that this is run on:
//! `scripts/bench flight-cost`. The number of turns may be named.

use latpath_flight::Recorder;
use std::ffi::CString;
use std::io::{Error, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Without, with programs that do nothing, and with the recorder in turns, so that what else the machine does hits all.
const TURNS: usize = 25;
/// The fastest slice of a turn counts: a disturbance only ever adds.
const SLICES: usize = 15;
const SLICE: Duration = Duration::from_millis(10);
/// The tracepoints of a round.
const PLACES: [&str; 3] = ["sched_switch", "sched_waking", "sched_wakeup"];

/// Rounds of two wake-ups; ns for each, at best.
fn rounds() -> std::io::Result<(u64, f64)> {
    let (mut here, mut there) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
        });
        let (mut byte, mut rounds, mut best) = ([7], 0, f64::INFINITY);
        for _ in 0..SLICES {
            let (began, mut n) = (Instant::now(), 0);
            while began.elapsed() < SLICE {
                here.write_all(&byte)?;
                here.read_exact(&mut byte)?;
                n += 1;
            }
            best = best.min(began.elapsed().as_nanos() as f64 / n as f64);
            rounds += n;
        }
        drop(here);
        Ok((rounds, best))
    })
}

/// A program that returns at once, at a tracepoint; it goes with what this returns.
fn nothing_at(place: &str) -> Result<[OwnedFd; 2], Error> {
    // r0 = 0; exit
    let code = [0xb7u64, 0x95].map(|op| libbpf_sys::bpf_insn { code: op as u8, ..Default::default() });
    let place = CString::new(place)?;
    let owned = |fd: i32| match fd {
        // SAFETY: a fresh descriptor that nothing else owns.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Error::from_raw_os_error(-fd)),
    };
    // SAFETY: names end with 0, the code is as long as is said, and the options are of the size that they say.
    unsafe {
        let id = libbpf_sys::libbpf_find_vmlinux_btf_id(place.as_ptr(), libbpf_sys::BPF_TRACE_RAW_TP);
        let mut options = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
            expected_attach_type: libbpf_sys::BPF_TRACE_RAW_TP,
            attach_btf_id: id as u32,
            ..Default::default()
        };
        let kind = libbpf_sys::BPF_PROG_TYPE_TRACING;
        let program =
            libbpf_sys::bpf_prog_load(kind, c"nothing".as_ptr(), c"GPL".as_ptr(), code.as_ptr(), 2, &mut options);
        let program = owned(program)?;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&program);
        Ok([owned(libbpf_sys::bpf_raw_tracepoint_open(std::ptr::null(), fd))?, program])
    }
}

/// The lower quartile, the median, the upper one.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|n| values[(values.len() - 1) * n / 4])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let turns: usize = std::env::args().nth(1).map_or(Ok(TURNS), |text| text.parse())?;
    let (mut without, mut empty, mut wholes, mut events) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..turns {
        let alone = rounds()?.1;
        let nothing = PLACES.map(nothing_at).into_iter().collect::<Result<Vec<_>, _>>()?;
        let nothing_ns = rounds()?.1;
        drop(nothing);
        let recorder = Recorder::start(Recorder::BYTES_PER_CPU)?;
        let before = recorder.figures().events;
        let (n, ns) = rounds()?;
        let each = (recorder.figures().events - before) as f64 / n as f64;
        without.push(alone);
        empty.push((nothing_ns - alone) / each);
        wholes.push((ns - alone) / each);
        events.push(each);
    }
    let ([_, alone, _], [_, events, _]) = (quartiles(without), quartiles(events));
    let ([_, nothing, _], [low, each, high]) = (quartiles(empty), quartiles(wholes));
    println!("medians of {turns}: a round takes {alone:.0} ns without; {events:.1} events a round: {each:.0} ns each");
    println!("quartiles {low:.0} and {high:.0}; programs at the same places that do nothing: {nothing:.0} ns each");
    let recorder = Recorder::start(Recorder::BYTES_PER_CPU)?;
    let ping_pong = std::thread::spawn(|| rounds().map(drop));
    recorder.sample(SLICE * SLICES as u32);
    ping_pong.join().map_err(|_| "a panic")??;
    let each = recorder.figures().ns_per_event.unwrap_or(0);
    println!("by the kernel's own measure, which adds to it: {each} ns each");
    for program in recorder.programs().iter().filter(|p| p.runs > 1000) {
        println!("  {:28} {:>9} runs, {:>5} ns each", program.name, program.runs, program.ns / program.runs);
    }
    Ok(())
}
