//! Extracts windows from a trace, as the flight recorder would have kept them: each CPU's events in the window, and
//! some before it.

use super::events::{PacketLine, ParsedLine, Reader};
use crate::{source, ImportError};
use latpath_flight::{CpuRecord, Event, Window};
use latpath_model::Ns;
use latpath_tracefs::text::{lost, next_line, Line};
use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::BufReader,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

/// Number of events kept before a window, per CPU: they show the state at its beginning.
const BEFORE: usize = 1024;
/// Number of events kept after a window, per CPU, within `BEHIND_NS`: the next switch identifies a thread that ran
/// throughout.
const BEHIND: usize = 64;
const BEHIND_NS: Ns = 20_000_000;
/// Maximum number of events per window, and in all windows together (`MAX_OF_ALL`); bounds memory use for any trace.
const MAX: usize = 1 << 18;
const MAX_OF_ALL: usize = 4 << 20;
/// Maximum number of CPUs.
const MAX_CPUS: u32 = 1024;

/// An extracted window.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    pub window: Window,
    /// Packets reported in the window.
    pub packets: Vec<PacketLine>,
    /// Whether the window had more events than are kept.
    pub is_full: bool,
}

/// The extracted parts of a trace.
#[derive(Debug)]
pub(crate) struct CutOut {
    /// A window for each requested interval, in the order of the requests.
    pub cuts: Vec<Cut>,
    pub reader: Reader,
    /// Times of the first and the last event, on the run's timeline.
    pub span: Option<(Ns, Ns)>,
    /// Number of lines that are not events.
    pub no_events: u64,
    /// Number of events that the kernel or the recorder lost, according to the trace.
    pub lost: u64,
    pub whole_microseconds: bool,
}

/// State of a CPU while the trace is read.
#[derive(Debug)]
struct Cpu {
    recent: VecDeque<Event>,
    /// Time since which `recent` is complete.
    since: Ns,
}

struct Open {
    at: usize,
    to: Ns,
    events: usize,
    behind: BTreeMap<u32, usize>,
}

struct Cutter {
    /// Windows not yet open: index, start and end; the next one is last.
    waiting: Vec<(usize, Ns, Ns)>,
    open: Vec<Open>,
    cuts: Vec<Cut>,
    cpus: BTreeMap<u32, Cpu>,
    all: usize,
    newest: Ns,
}

/// Reads a trace and extracts the windows with these starts and ends. `ahead`: the trace's clock minus the run's
/// timeline, ns.
pub(crate) fn cut_out(path: &Path, times: &[(Ns, Ns)], ahead: Ns, stop: &AtomicBool) -> Result<CutOut, ImportError> {
    let broken = |cause| ImportError::Io { path: path.into(), cause };
    let (input, _) = source::open(File::open(path).map_err(broken)?).map_err(broken)?;
    let mut input = BufReader::with_capacity(1 << 16, input);
    let mut cutter = Cutter::new(times);
    let mut reader = Reader::default();
    let (mut span, mut no_events, mut lost_events) = (None::<(Ns, Ns)>, 0_u64, 0_u64);
    let mut whole_microseconds = true;
    let mut bytes = Vec::new();
    while next_line(&mut input, &mut bytes).map_err(broken)? && !stop.load(Ordering::Relaxed) {
        let text = String::from_utf8_lossy(&bytes);
        if let Some(n) = lost(&text) {
            lost_events = lost_events.saturating_add(n);
            cutter.forget(cpu_of_lost(&text));
            continue;
        }
        let Some(line) = Line::read(&text) else {
            no_events += u64::from(!text.trim().is_empty() && !text.starts_with('#'));
            continue;
        };
        whole_microseconds &= line.t % 1000 == 0;
        let t = line.t.saturating_sub(ahead);
        span = Some(span.map_or((t, t), |(first, last)| (first.min(t), last.max(t))));
        match reader.read(&line, t) {
            _ if line.cpu >= MAX_CPUS => {}
            ParsedLine::Event(event) => cutter.take(line.cpu, event),
            ParsedLine::Packet(packet) => cutter.take_packet(packet),
            ParsedLine::Nothing => {}
        }
    }
    let cuts = cutter.finish();
    Ok(CutOut { cuts, reader, span, no_events, lost: lost_events, whole_microseconds })
}

/// Parses the CPU in `CPU:3 [LOST …]`.
fn cpu_of_lost(text: &str) -> Option<u32> {
    let digits = text.trim().strip_prefix("CPU")?.trim_start_matches([':', ' ']);
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

impl Cutter {
    fn new(times: &[(Ns, Ns)]) -> Self {
        let mut waiting: Vec<_> = times.iter().enumerate().map(|(at, (from, to))| (at, *from, *to)).collect();
        waiting.sort_by_key(|(_, from, _)| std::cmp::Reverse(*from));
        let cut =
            |(from, to): &(Ns, Ns)| Cut { window: Window { from: *from, to: *to, cpus: Vec::new() }, ..Cut::default() };
        let cuts = times.iter().map(cut).collect();
        Self { waiting, open: Vec::new(), cuts, cpus: BTreeMap::new(), all: 0, newest: Ns::MIN }
    }

    /// Discards the state of a CPU, or that of all CPUs if the trace does not say which CPU lost events.
    fn forget(&mut self, cpu: Option<u32>) {
        for (_, known) in self.cpus.iter_mut().filter(|(number, _)| cpu.is_none_or(|cpu| cpu == **number)) {
            known.recent.clear();
            // Until the CPU's next event sets it.
            known.since = Ns::MAX;
        }
        for open in &self.open {
            let records = self.cuts[open.at].window.cpus.iter_mut();
            for record in records.filter(|record| cpu.is_none_or(|cpu| cpu == record.cpu)) {
                record.events.clear();
                record.since = Ns::MAX;
                record.overwritten += 1;
            }
        }
    }

    /// Opens and closes windows. All events before `t` must have been processed.
    fn turn(&mut self, t: Ns) {
        self.newest = self.newest.max(t);
        let newest = self.newest;
        while self.waiting.last().is_some_and(|(_, from, _)| *from <= newest) {
            let Some((at, _, to)) = self.waiting.pop() else { break };
            let cpus = &mut self.cuts[at].window.cpus;
            for (cpu, known) in self.cpus.iter().filter(|(_, known)| known.since != Ns::MAX) {
                let events: Vec<Event> = known.recent.iter().copied().collect();
                self.all += events.len();
                cpus.push(CpuRecord { cpu: *cpu, events, since: known.since, ..CpuRecord::default() });
            }
            let events = cpus.iter().map(|record| record.events.len()).sum();
            self.open.push(Open { at, to, events, behind: BTreeMap::new() });
        }
        self.open.retain(|open| newest <= open.to.saturating_add(BEHIND_NS));
    }

    fn take(&mut self, cpu: u32, event: Event) {
        self.turn(event.t);
        for open in &mut self.open {
            let cut = &mut self.cuts[open.at];
            let behind = open.behind.entry(cpu).or_default();
            if event.t >= open.to {
                *behind += 1;
            }
            if *behind > BEHIND || cut.is_full {
                continue;
            }
            if open.events >= MAX || self.all >= MAX_OF_ALL {
                cut.is_full = true;
                continue;
            }
            (open.events, self.all) = (open.events + 1, self.all + 1);
            match cut.window.cpus.iter_mut().find(|record| record.cpu == cpu) {
                Some(record) => {
                    if record.since == Ns::MAX {
                        record.since = event.t;
                    }
                    record.events.push(event);
                }
                None => {
                    let events = vec![event];
                    cut.window.cpus.push(CpuRecord { cpu, events, since: event.t, ..CpuRecord::default() });
                }
            }
        }
        let known = self.cpus.entry(cpu).or_insert_with(|| Cpu { recent: VecDeque::new(), since: event.t });
        if known.recent.len() == BEFORE {
            known.recent.pop_front();
            known.since = known.recent.front().map_or(event.t, |first| first.t);
        }
        if known.since == Ns::MAX {
            known.since = event.t;
        }
        known.recent.push_back(event);
    }

    fn take_packet(&mut self, packet: PacketLine) {
        self.turn(packet.t);
        for open in self.open.iter().filter(|open| packet.t <= open.to) {
            let packets = &mut self.cuts[open.at].packets;
            if packets.len() < MAX {
                packets.push(packet);
            }
        }
    }

    fn finish(mut self) -> Vec<Cut> {
        for cut in &mut self.cuts {
            // Lines of different CPUs may be slightly out of order; those of one CPU only if its clock went backwards.
            cut.window.cpus.iter_mut().for_each(|record| record.events.sort_by_key(|event| event.t));
            cut.window.cpus.sort_by_key(|record| record.cpu);
            cut.packets.sort_by_key(|packet| packet.t);
        }
        self.cuts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    const MS: Ns = 1_000_000;

    /// A trace of two CPUs that each switch threads once per millisecond, for `ms`; the second half a millisecond
    /// later.
    fn trace(ms: u32) -> String {
        let mut text = "# tracer: nop\n".to_owned();
        for n in 0..ms {
            for cpu in 0..2 {
                let (t, pid) = (n * 1000 + cpu * 500, 10 + cpu);
                let (from, to) = if n % 2 == 0 { ("busy", "swapper") } else { ("swapper", "busy") };
                let (prev, next) = if n % 2 == 0 { (pid, 0) } else { (0, pid) };
                writeln!(
                    text,
                    "  {from}-{prev} [00{cpu}] d..2. {}.{:06}: sched_switch: {from}:{prev} [120] S ==> {to}:{next} [120]",
                    t / 1_000_000,
                    t % 1_000_000
                )
                .unwrap();
            }
        }
        text
    }

    fn cut(text: &str, times: &[(Ns, Ns)], ahead: Ns) -> CutOut {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.txt");
        std::fs::write(&path, text).unwrap();
        cut_out(&path, times, ahead, &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn a_window_has_its_events_and_some_before_and_behind() {
        // The windows overlap and are not in order; the trace's clock is 1 s behind.
        let second = 1000 * MS;
        let found = cut(
            &trace(3000),
            &[(second + 2000 * MS, second + 2010 * MS), (second + 5 * MS, second + 2005 * MS)],
            -second,
        );
        assert_eq!((found.no_events, found.span), (0, Some((second, second + 2999 * MS + MS / 2))));
        let [late, early] = found.cuts.as_slice() else { panic!("{found:?}") };
        for record in &late.window.cpus {
            let in_window = record.events.iter().filter(|e| (late.window.from..late.window.to).contains(&e.t)).count();
            assert_eq!(in_window, 10);
            assert_eq!(record.events.iter().filter(|e| e.t < late.window.from).count(), BEFORE);
            assert!(record.events.iter().any(|e| e.t >= late.window.to));
            assert!(record.is_complete(late.window.from) && record.since == record.events[0].t);
        }
        assert_eq!(early.window.cpus[0].events[0].t, second, "a short trace is kept from its beginning");
        assert_eq!(found.reader.threads[&10].0, "busy");
    }

    #[test]
    fn lost_events_make_a_record_begin_later() {
        let mut text = trace(100);
        text += "CPU:0 [LOST 120 EVENTS]\n";
        text += &trace(300).lines().skip(1 + 200).map(|line| format!("{line}\n")).collect::<String>();
        let found = cut(&text, &[(50 * MS, 150 * MS), (200 * MS, 210 * MS)], 0);
        assert_eq!(found.lost, 120);
        let many = format!("CPU:0 [LOST {} EVENTS]\nCPU:0 [LOST 1 EVENTS]\n{text}", u64::MAX);
        assert_eq!(cut(&many, &[(50 * MS, 150 * MS)], 0).lost, u64::MAX);
        let record = |at: usize, cpu: usize| &found.cuts[at].window.cpus[cpu];
        assert!(record(0, 0).since >= 99 * MS && !record(0, 0).is_complete(50 * MS));
        assert!(record(0, 1).is_complete(50 * MS), "the other CPU lost nothing");
        assert!(record(1, 0).is_complete(200 * MS) && record(1, 0).since == 100 * MS);
    }
}
