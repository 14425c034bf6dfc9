//! Passes arbitrary samples from an agent through all of the host's processing: samples on the host's timeline, a
//! profile of host and guest, the page, JSON, and the files for other tools. Checks that nothing panics, that the
//! host's exact times are unchanged, and that the output contains no control characters.
//!
//! Input: steps of one byte each. 0 to 4: the host requests the time. Above 4: a frame follows, whose length is encoded
//! as in the target `agent`. Each step takes 1 ms.

use crate::agent::{clean, say};
use crate::wire::{bytes, frame, list, number, zigzag};
use latpath_agent::Machine;
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_observe::profile::ProfileFigures;
use latpath_perfetto::{write_profile, SampledMachine};
use latpath_profile::{
    weigh, Absence, CausalityCheck, FrameId, Guest, GuestTime, Header, Mode, Profile, Samples, Seen, Slice, Stack,
    Thread,
};
use latpath_report::cpu_profile::{firefox, flame_graph, text, Machine as Shown};
use latpath_stats::units::CharacterSet;
use latpath_vms::Vm;

const MS: Ns = 1_000_000;
const SECOND: Ns = 1000 * MS;
/// Start of the guest's clock in the seeds.
const GUEST: Ns = 5_000_000 * MS;
/// QEMU's process ID on the host; `VCPU` is the TID of its vCPU thread.
const QEMU: u32 = 100;
const VCPU: u32 = 101;

/// The host's samples: one second of one CPU, starting at `from`, most of it in the guest.
fn host(from: Ns) -> (Samples, GuestTime) {
    let thread = |tid| Thread { tid, tgid: QEMU, comm: "qemu".into(), process: "qemu".into(), ..Thread::default() };
    let frame = |mode, frames| Stack { mode, frames };
    let slice = Slice {
        from,
        until: from + SECOND,
        names: vec!["main".into()],
        threads: vec![thread(VCPU), thread(QEMU)],
        stacks: vec![frame(Mode::Guest, vec![]), frame(Mode::User, vec![FrameId::new(0, false)])],
        seen: (0..90)
            .map(|n| Seen { t: from + n * 10 * MS, cpu: 0, thread: n as u32 / 80, stack: n as u32 / 80 })
            .collect(),
        times: vec![(0, 800 * MS), (1, 200 * MS)],
        ..Slice::default()
    };
    let mut samples = Samples::new(true);
    samples.take(slice).expect("the host's own samples are sound");
    let readings = vec![(from, 0), (from + SECOND / 2, 300 * MS), (from + SECOND, 700 * MS)];
    (samples, GuestTime { tid: VCPU, pid: QEMU, vcpu: Some(0), readings })
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let _ = follow(bytes);
}

fn follow(bytes: &[u8]) -> Profile {
    let (mut machine, mut agent) = Machine::scripted("guest0", 0);
    let begin = monotonic();
    let (mut now, mut rest) = (begin, bytes);
    let mut causality = CausalityCheck::new([(VCPU, 0)], begin);
    while let Some((step, tail)) = rest.split_first() {
        now += MS;
        rest = match step {
            ..5 => {
                agent.request_time(now);
                tail
            }
            length => say(&mut agent, *length, tail, now),
        };
        causality.absences(&[Absence { tid: VCPU, from: now - MS / 2, until: Some(now) }]);
        causality.moments(machine.take_moments());
        causality.check_until(now);
    }
    causality.check_until(Ns::MAX);
    clean(&machine.fault().map(|fault| fault.to_string()).unwrap_or_default());
    let clock = machine.clock();
    let figures = causality.figures();
    assert!(figures.is_none_or(|figures| figures.violations <= figures.checked));
    let (host, time) = host(begin);
    let guest = match machine.take_profile() {
        Ok(samples) => Guest {
            pid: QEMU,
            samples,
            offset_ns: clock.offset_ns,
            error_bound_ns: clock.error_bound_ns,
            causality: figures,
            fault: machine.fault().map(|fault| fault.to_string()),
        },
        Err(why) => {
            clean(&why);
            return Profile::default();
        }
    };
    let header = Header { frequency: 99, cpus: "0".parse().expect("a CPU"), ..Header::default() };
    let vm = Vm { name: "guest0".into(), pid: QEMU, program: "qemu".into(), ..Vm::default() };
    let guests = [guest];
    let profile = weigh(&host, &[time], &guests, &[vm], header);
    assert_eq!(profile.total(), SECOND, "time was made or lost");
    show(&profile, &host, &guests[0]);
    profile
}

fn show(profile: &Profile, host: &Samples, guest: &Guest) {
    let document = ProfileFigures::observe(profile, 0);
    clean(&text(&document, 20, &["main".into()], CharacterSet::Unicode.into()));
    clean(&serde_json::to_string_pretty(&document).expect("figures are JSON"));
    let kept = profile.kept();
    clean(&kept);
    let again = Profile::parse(kept.as_bytes(), "kept").expect("what was kept can be read");
    assert_eq!(again.total(), profile.total());
    let (mut out, offset_ns) = (Vec::new(), guest.offset_ns);
    let machines = [
        Shown { guest: None, samples: host, offset_ns: 0 },
        Shown { guest: Some("guest0".into()), samples: &guest.samples, offset_ns },
    ];
    firefox(&profile.header, &machines, &mut out).expect("memory takes all");
    let machines = [
        SampledMachine { samples: host, offset_ns: 0, prefix: String::new() },
        SampledMachine { samples: &guest.samples, offset_ns, prefix: "guest0:".into() },
    ];
    write_profile(99, &machines, &mut out).expect("memory takes all");
    // The flame graph is only drawn with guest samples, because it is slow; its input is the stored profile.
    if guest.samples.samples > 0 {
        clean(&flame_graph(profile).expect("a flame graph"));
    }
}

/// An agent that has been greeted and sends slices: whole, in pieces, with unnamed places, and with invalid contents.
pub fn seeds() -> Vec<Vec<u8>> {
    let guest = |ms: i64| zigzag(GUEST + ms * MS);
    let hello = frame(2, &[number(1, 1), bytes(2, b"0.1.0"), bytes(3, b"6.1.0"), number(10, 1)]);
    let reply = |id: u64, ms: i64| frame(10, &[number(1, id), number(2, guest(ms)), number(3, guest(ms) + 2)]);
    let greeted = [hello, vec![0, 0, 0], reply(1, 2), reply(2, 3), reply(3, 3), frame(4, &[])].concat();
    let packed = |from: i64, first: bool| {
        let names: [&[u8]; 3] = [b"busy;loop", b"do_syscall_64", b"[libc.so.6]"];
        let name = |name: &&[u8]| bytes(3, name);
        let idle = bytes(4, &[number(3, 0), bytes(4, b"swapper/0"), bytes(5, b"swapper/0"), number(6, 1)].concat());
        let busy = bytes(4, &[number(1, 7), number(2, 7), bytes(4, b"a\x1b[2J"), bytes(5, b"busy")].concat());
        let stack = |mode: u64, frames: &[u64]| bytes(5, &[number(1, mode), list(2, frames)].concat());
        let stacks = [stack(0, &[]), stack(1, &[0]), stack(2, &[3, 0, 4])].concat();
        let place = bytes(14, &[number(1, 2), bytes(2, &[0xab; 20]), number(3, 0x1234)].concat());
        let new = [names.iter().flat_map(name).collect(), idle, busy, stacks, place].concat();
        let seen = 40;
        let threads: Vec<u64> = (0..seen).map(|n| u64::from(n % 4 > 0)).collect();
        let stacks: Vec<u64> = (0..seen).map(|n| if n % 4 > 0 { 1 + n % 2 } else { 0 }).collect();
        let rows = [list(6, &vec![zigzag(10 * MS); seen as usize]), list(7, &vec![0; seen as usize])].concat();
        let times = [list(10, &[0, 1]), list(11, &[zigzag(100 * MS), zigzag(300 * MS)])].concat();
        let borders = [number(1, guest(from)), number(2, guest(from + 400))].concat();
        [borders, if first { new } else { vec![] }, rows, list(8, &threads), list(9, &stacks), times, number(12, 1)]
            .concat()
    };
    let piece = |content: &[u8], last: u64| frame(18, &[bytes(1, content), number(2, last)]);
    let whole = |slice: &[u8]| piece(&bytes(2, slice), 1);
    let (first, second) = (packed(10, true), packed(410, false));
    let (begin, end) = (bytes(2, &first), frame(14, &[]));
    let halves = [piece(&begin[..begin.len() / 2], 0), piece(&begin[begin.len() / 2..], 1)].concat();
    vec![
        [&greeted[..], &whole(&first), &whole(&second), &end].concat(),
        [&greeted[..], &halves, &[0], &whole(&second)].concat(),
        [&greeted[..], &whole(&second)].concat(),
        [&greeted[..], &piece(&bytes(1, b"no \x1b[2J BTF"), 1), &end].concat(),
        // A place in a file without a build ID; and empty names, which still take memory.
        [&greeted[..], &whole(&[packed(10, true), bytes(14, &number(1, 2))].concat()), &end].concat(),
        [&greeted[..], &whole(&[packed(10, true), [3 << 3 | 2, 0].repeat(4000)].concat()), &end].concat(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_profile::{spent, Spent};

    #[test]
    fn the_seeds_come_as_far_as_a_profile_of_host_and_guest() {
        let seeds = seeds();
        for seed in &seeds[..2] {
            let profile = follow(seed);
            let header = &profile.header.guests[0];
            assert!(header.causality.is_some_and(|causality| causality.checked > 0), "{header:?}");
            let in_guest = |(frames, _): &(&Vec<_>, &Ns)| matches!(spent(frames), Spent::GuestSys | Spent::GuestUsr);
            assert!(profile.stacks.iter().filter(in_guest).map(|(_, ns)| ns).sum::<Ns>() > 0, "{:?}", profile.stacks);
            assert_eq!(header.samples, 80);
        }
        assert_eq!(follow(&seeds[2]).header.guests[0].samples, 0, "samples of nothing that was sent");
    }
}
