use super::*;
use crate::slice::{FrameId, Seen, Slice};
use crate::{spent, Spent};
use latpath_vms::Thread as VmThread;
use proptest::prelude::*;

const SECOND: Ns = 1_000_000_000;
const QEMU: u32 = 100;

fn thread(tid: u32, tgid: u32, process: &str, is_kernel: bool) -> Thread {
    Thread { tid, tgid, process: process.into(), comm: process.into(), is_kernel, ..Thread::default() }
}

/// A slice with names 0 and 1, the given threads, and four call chains: 0 is idle, 1 is in user space, 2 is in the
/// kernel below user space, 3 is in a guest.
fn slice(threads: Vec<Thread>) -> Slice {
    let (user, kernel) = (FrameId::new(0, false), FrameId::new(1, true));
    let stack = |mode, frames: &[FrameId]| Stack { mode, frames: frames.to_vec() };
    Slice {
        until: SECOND,
        names: vec!["main".into(), "tun_get_user".into()],
        threads,
        stacks: vec![
            stack(Mode::Idle, &[]),
            stack(Mode::User, &[user]),
            stack(Mode::Kernel, &[kernel, user]),
            stack(Mode::Guest, &[]),
        ],
        ..Slice::default()
    }
}

fn seen(cpu: u32, thread: u32, stack: u32, count: usize, t: Ns) -> Vec<Seen> {
    vec![Seen { t, cpu, thread, stack }; count]
}

fn samples(slices: impl IntoIterator<Item = Slice>) -> Samples {
    let mut samples = Samples::new(false);
    slices.into_iter().for_each(|slice| samples.take(slice).unwrap());
    samples
}

fn lines(profile: &Profile) -> Vec<String> {
    profile.folded().collect()
}

fn vm() -> Vm {
    let vhost = VmThread { tid: 300, role: Role::Vhost, ..VmThread::default() };
    Vm { name: "relay".into(), pid: QEMU, program: "qemu".into(), threads: vec![vhost], ..Vm::default() }
}

#[test]
fn a_threads_time_is_shared_among_its_samples_and_nothing_is_lost() {
    let idle = Thread { cpu: 0, ..thread(0, 0, "swapper/0", true) };
    let threads =
        vec![idle, thread(7, 7, "app", false), thread(8, 8, "kworker/0:1-mm", true), thread(9, 9, "short", false)];
    let mut slice = slice(threads);
    slice.times = vec![(0, 400_000_001), (1, 300_000_000), (2, 299_999_998), (3, 1)];
    slice.seen = [seen(0, 0, 0, 30, 1), seen(0, 1, 1, 20, 1), seen(0, 1, 2, 10, 1), seen(0, 2, 2, 9, 1)].concat();
    let profile = weigh(&samples([slice]), &[], &[], &[], Header::default());
    assert_eq!(
        lines(&profile),
        [
            "app;main 200000000",
            "app;main;tun_get_user_[k] 100000000",
            "kworker;main;tun_get_user_[k] 299999998",
            "short;[not sampled] 1",
        ]
    );
    assert_eq!((profile.header.idle_ns, profile.total()), (400_000_001, SECOND));
}

#[test]
fn short_processes_of_one_name_share_their_samples() {
    let threads: Vec<Thread> = (0..100).map(|n| thread(1000 + n, 1000 + n, "sh", false)).collect();
    let mut slice = slice(threads);
    slice.times = (0..100).map(|n| (n, 2_000_000)).collect();
    slice.seen = [seen(0, 3, 1, 1, 1), seen(0, 50, 2, 3, 1)].concat();
    let profile = weigh(&samples([slice]), &[], &[], &[], Header::default());
    assert_eq!(lines(&profile), ["sh;main 50000000", "sh;main;tun_get_user_[k] 150000000"]);
}

/// A host with a vCPU that ran its guest for 600 of 700 ms in each of two seconds.
fn host() -> (Samples, Vec<GuestTime>) {
    let mut first = slice(vec![thread(101, QEMU, "qemu", false), thread(300, QEMU, "qemu", false)]);
    first.times = vec![(0, 700_000_000), (1, 50_000_000)];
    first.seen = [seen(0, 0, 3, 60, 1), seen(0, 0, 2, 10, 1), seen(1, 1, 1, 9, 1)].concat();
    let again = Slice { names: vec![], threads: vec![], stacks: vec![], seen: vec![], ..first.clone() };
    let second = Slice { from: SECOND, until: 2 * SECOND, ..again };
    let readings = vec![(0, 5), (SECOND, 600_000_005), (2 * SECOND, 1_200_000_005)];
    (samples([first, second]), vec![GuestTime { tid: 101, pid: QEMU, vcpu: Some(0), readings }])
}

#[test]
fn without_an_agent_a_guest_is_one_frame_by_vcpu() {
    let (host, times) = host();
    let profile = weigh(&host, &times, &[], &[vm()], Header::default());
    let of_vm = |(frames, _): &(&Vec<Frame>, &Ns)| crate::is_of_vm(&frames[0], &vm());
    assert_eq!(profile.stacks.iter().filter(of_vm).count(), 3, "its process and its vhost worker are the VM's");
    assert_eq!(
        lines(&profile),
        [
            "relay (qemu);[guest relay vCPU 0] 1200000000",
            "relay (qemu);main;tun_get_user_[k] 200000000",
            "vhost of relay;main 100000000",
        ]
    );
}

/// A guest whose clock is an hour ahead. `did`: by second, the time that threads 1 and 2 worked, ns; the guest is idle
/// for the rest of each second.
fn guest(did: &[(Ns, Ns)]) -> Guest {
    const HOUR: Ns = 3600 * SECOND;
    let idle = thread(0, 0, "swapper/0", true);
    let mut slices = Vec::new();
    for (n, (a, b)) in (0..).zip(did) {
        let from = HOUR + n * SECOND;
        let new = slice(vec![idle.clone(), thread(5, 5, "iperf3", false), thread(6, 6, "sshd", false)]);
        let mut slice = Slice { from, until: from + SECOND, ..if n == 0 { new } else { Slice::default() } };
        slice.times = vec![(0, SECOND - a - b), (1, *a), (2, *b)];
        let met = |ns: Ns| (ns / 10_000_000) as usize;
        slice.seen =
            [seen(0, 0, 0, met(SECOND - a - b), from), seen(0, 1, 2, met(*a), from), seen(0, 2, 1, met(*b), from)]
                .concat();
        slices.push(slice);
    }
    Guest { pid: QEMU, samples: samples(slices), offset_ns: HOUR, error_bound_ns: 9, causality: None, fault: None }
}

#[test]
fn a_guests_call_chains_take_the_place_of_its_vcpus_time_second_by_second() {
    let (host, times) = host();
    // All work of the first second was done by iperf3, that of the second by sshd.
    let inside = guest(&[(800_000_000, 0), (0, 800_000_000)]);
    let profile = weigh(&host, &times, &[inside], &[vm()], Header::default());
    assert_eq!(
        lines(&profile),
        [
            "relay (qemu);[guest relay];iperf3;main;tun_get_user_[k] 600000000",
            "relay (qemu);[guest relay];sshd;main 600000000",
            "relay (qemu);main;tun_get_user_[k] 200000000",
            "vhost of relay;main 100000000",
        ]
    );
    assert_eq!(profile.header.guests[0].samples, 200);
}

#[test]
fn a_guest_that_had_less_work_than_the_vcpu_was_in_it_polled() {
    let (host, times) = host();
    let inside = guest(&[(300_000_000, 0), (300_000_000, 0)]);
    let profile = weigh(&host, &times, &[inside], &[vm()], Header::default());
    assert_eq!(
        lines(&profile)[..2],
        [
            "relay (qemu);[guest relay];idle;idle loop_[k] 600000000",
            "relay (qemu);[guest relay];iperf3;main;tun_get_user_[k] 600000000"
        ]
    );
}

#[test]
fn of_times_of_which_the_guest_says_nothing_its_frame_stays() {
    let (host, times) = host();
    let profile = weigh(&host, &times, &[guest(&[(900_000_000, 0)])], &[vm()], Header::default());
    let in_guest = |what: Spent| -> Ns {
        profile.stacks.iter().filter(|(frames, _)| spent(frames) == what).map(|(_, ns)| ns).sum()
    };
    assert_eq!((in_guest(Spent::GuestSys), in_guest(Spent::GuestUnseen)), (600_000_000, 600_000_000));
}

proptest! {
    #[test]
    fn no_time_is_made_or_lost(
        times in prop::collection::vec(0i64..SECOND, 6), counts in prop::collection::vec(0usize..40, 12),
        did in prop::collection::vec((0i64..SECOND / 2, 0i64..SECOND / 2), 0..4), readings in prop::collection::vec(0i64..SECOND, 1..5),
    ) {
        let tids = [(0, 0, "swapper/0"), (101, QEMU, "qemu"), (300, QEMU, "qemu"), (7, 7, "a"), (8, 8, "a"), (9, 9, "b")];
        let mut slice = slice(tids.iter().map(|(tid, tgid, name)| thread(*tid, *tgid, name, *tid == 0)).collect());
        slice.times = (0..).zip(times.iter().copied()).collect();
        for (at, count) in counts.iter().enumerate() {
            let (thread, stack) = ((at % 6) as u32, [1, 2, 3][at % 3]);
            slice.seen.extend(seen(0, thread, if thread == 0 { 0 } else { stack }, *count, 1));
        }
        let mut ns = 0;
        let readings = (0..).zip(readings).map(|(n, more)| { ns += more; (n * SECOND / 4, ns) }).collect();
        let guest_time = GuestTime { tid: 101, pid: QEMU, vcpu: Some(0), readings };
        let guests: Vec<Guest> = if did.is_empty() { vec![] } else { vec![guest(&did)] };
        let profile = weigh(&samples([slice]), &[guest_time], &guests, &[vm()], Header::default());
        prop_assert_eq!(profile.total(), times.iter().sum::<Ns>());
        prop_assert!(profile.stacks.values().all(|ns| *ns > 0));
    }

    #[test]
    fn shares_sum_to_the_whole(whole in 0i64..i64::MAX / 2, weights in prop::collection::vec(0i64..i64::MAX / 64, 1..20)) {
        prop_assume!(weights.iter().any(|weight| *weight > 0));
        let shares: Vec<Ns> = share(whole, weights.iter().copied()).collect();
        prop_assert_eq!(shares.iter().sum::<Ns>(), whole);
        prop_assert!(shares.iter().all(|ns| *ns >= 0));
    }
}
