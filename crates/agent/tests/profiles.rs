//! A guest's samples that arrive late or never.

mod fake;

use fake::{agent_sampling, patient, Agent};
use latpath_agent::{Machine, Sampler, Stream, Timeouts};
use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_profile::{FrameId, Mode, Seen, Slice, Stack, Thread};
use latpath_testkit::waits::until;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::Duration;

/// A sampler that returns a slice at each step, and the last one on request.
struct Slow {
    until: Ns,
    first: bool,
    go_on: Receiver<()>,
}

impl Slow {
    fn slice(&mut self) -> Slice {
        let (from, until) = (self.until, monotonic().max(self.until + 1));
        self.until = until;
        let seen = vec![Seen { t: from, cpu: 3, thread: 0, stack: 0 }];
        let slice = Slice { from, until, seen, ..Slice::default() };
        match std::mem::take(&mut self.first) {
            false => slice,
            true => Slice {
                names: vec!["main".into()],
                threads: vec![Thread::default()],
                stacks: vec![Stack { mode: Mode::User, frames: vec![FrameId::new(0, false)] }],
                ..slice
            },
        }
    }
}

impl Sampler for Slow {
    fn step(&mut self) -> Option<Slice> {
        Some(self.slice())
    }

    fn end(&mut self, _: &std::sync::atomic::AtomicBool) -> Slice {
        let _ = self.go_on.recv();
        self.slice()
    }
}

/// Connects to a machine that has started to send samples.
fn sampled(timeouts: Timeouts) -> (Machine, Agent, Sender<()>) {
    let (host, guest) = UnixStream::pair().unwrap();
    let (last, go_on) = channel();
    let make = move || Ok(Box::new(Slow { until: monotonic(), first: true, go_on }) as Box<dyn Sampler>);
    let agent = agent_sampling(guest, Box::new(make));
    let mut machine = Machine::on_stream("guest0", "socket pair", Stream::new(host).unwrap(), timeouts).unwrap();
    machine.start_profile(99, false).unwrap();
    until("samples come", || machine.profiled_until().is_some()).unwrap();
    (machine, agent, last)
}

#[test]
fn the_host_waits_for_late_samples_and_exchanges_times_meanwhile() {
    let (mut machine, agent, last) = sampled(patient());
    machine.begin_stop();
    let before = machine.clock().exchanges;
    until("it answers while it works on its last samples", || machine.clock().exchanges > before + 20).unwrap();
    assert!(machine.is_alive());
    let requested = monotonic();
    last.send(()).unwrap();
    machine.stop().unwrap();
    agent.thread.join().unwrap().unwrap();
    let moments = machine.take_moments();
    let samples = machine.take_profile().unwrap();
    assert!(samples.span().unwrap().1 >= requested, "the last slice is missing");
    assert_eq!((moments.len() as u64, moments[0].cpu), (samples.samples, 3));
    // Host and guest share a clock, so the times can be compared.
    let off = moments.last().map(|last| (last.t - requested, last.error_bound_ns));
    assert!(off.is_some_and(|(off, bound)| off <= bound), "{off:?}");
}

#[test]
fn missing_last_samples_do_not_discard_earlier_ones() {
    let (mut machine, agent, last) = sampled(Timeouts { profile: Duration::from_millis(300), ..patient() });
    let why = machine.stop().unwrap_err().to_string();
    assert!(why.contains("did not hand over its last samples within 300ms"), "{why}");
    assert!(machine.take_profile().unwrap().samples > 0);
    last.send(()).unwrap();
    drop(machine);
    agent.thread.join().unwrap().unwrap();
}
