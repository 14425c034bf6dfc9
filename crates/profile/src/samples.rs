//! The sum of all slices of one machine. Slices of other machines are untrusted: everything is checked and bounded.

use crate::slice::*;
use latpath_model::text::{cut, printable};
use latpath_model::Ns;
use std::collections::HashMap;

/// Maximum number of slices of a machine; enough for more than a day.
const MAX_SLICES: usize = 1 << 17;
/// Maximum number of entries in `Samples::counts`: for this machine, and for another machine, which is untrusted.
const MAX_COUNTS: [usize; 2] = [1 << 22, 1 << 17];
/// Maximum number of samples stored with their times: for this machine, and for another machine.
const MAX_RAW: [usize; 2] = [1 << 22, 1 << 20];

/// The slice is invalid or exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TooMuch(pub &'static str);

/// The samples of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    pub(crate) names: Vec<String>,
    name_bytes: usize,
    unnamed: Vec<Unnamed>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) stacks: Vec<Stack>,
    frames: usize,
    /// Start and end of each slice.
    pub(crate) spans: Vec<(Ns, Ns)>,
    /// Number of samples, by index of slice, CPU, thread and call chain.
    pub(crate) counts: HashMap<(u32, u32, u32, u32), u32>,
    /// Run time, ns, by thread.
    pub(crate) times: HashMap<u32, Ns>,
    /// Sum of all run times, ns.
    total: Ns,
    /// Individual samples, if requested.
    raw: Option<Vec<Seen>>,
    /// Number of samples whose times were not stored because `MAX_RAW` was reached.
    pub raw_left_out: u64,
    /// Number of samples.
    pub samples: u64,
    /// Number of lost samples.
    pub lost: u64,
    /// Time of threads that did not fit into the table of threads, ns.
    pub unattributed: Ns,
    /// Error after which no more slices are accepted.
    refused: Option<TooMuch>,
    is_of_another: bool,
}

impl Samples {
    /// Creates an empty collection. With `one_by_one`, it also stores the times of individual samples: at most about
    /// four million, or one million for another machine.
    pub fn new(one_by_one: bool) -> Self {
        Self { raw: one_by_one.then(Vec::new), ..Self::default() }
    }

    /// Creates an empty collection for another machine, which is untrusted: its memory limits are lower.
    pub fn of_another(one_by_one: bool) -> Self {
        Self { is_of_another: true, ..Self::new(one_by_one) }
    }

    /// Individual samples; empty if not requested.
    pub fn raw(&self) -> &[Seen] {
        self.raw.as_deref().unwrap_or_default()
    }

    /// Number of samples in programs rather than in the kernel, and of those whose call chain is a single function.
    pub fn of_programs(&self) -> (u64, u64) {
        self.counts.iter().fold((0, 0), |(all, alone), ((_, _, _, stack), count)| match self.stack(*stack) {
            Stack { mode: Mode::User, frames } => {
                (all + u64::from(*count), alone + if frames.len() == 1 { u64::from(*count) } else { 0 })
            }
            _ => (all, alone),
        })
    }

    /// Functions without a name on their machine.
    pub fn unnamed(&self) -> &[Unnamed] {
        &self.unnamed
    }

    /// Renames the function whose name has this index.
    pub(crate) fn rename(&mut self, number: u32, name: &str) {
        if let Some(known) = self.names.get_mut(number as usize) {
            *known = name.replace(';', ":");
        }
    }

    /// The thread that a sample refers to by this index.
    pub fn thread(&self, number: u32) -> &Thread {
        &self.threads[number as usize]
    }

    /// The call chain that a sample refers to by this index.
    pub fn stack(&self, number: u32) -> &Stack {
        &self.stacks[number as usize]
    }

    /// The name of a frame's function.
    pub fn name(&self, frame: FrameId) -> &str {
        &self.names[frame.name()]
    }

    /// Start of the first slice, and end of the last.
    pub fn span(&self) -> Option<(Ns, Ns)> {
        Some((self.spans.first()?.0, self.spans.last()?.1))
    }

    /// Adds a slice. If the samples would take too much memory, adjacent slices are merged in pairs, which halves the
    /// resolution of time.
    ///
    /// # Errors
    /// If the slice is invalid or too large. No later slice is accepted then, because it may refer to indexes of the
    /// refused one.
    pub fn take(&mut self, slice: Slice) -> Result<(), TooMuch> {
        if self.refused.is_none() {
            let most = MAX_COUNTS[usize::from(self.is_of_another)];
            while self.counts.len() + slice.seen.len() > most && self.spans.len() > 1 {
                self.join_slices();
            }
            self.refused = self.check(&slice, most).err();
        }
        if let Some(why) = &self.refused {
            return Err(why.clone());
        }
        for name in slice.names {
            // Folded stacks are one line each, with `;` between frames.
            let name = printable(&name).replace(';', ":");
            self.name_bytes += name.len();
            self.names.push(name);
        }
        for mut thread in slice.threads {
            for name in [&mut thread.comm, &mut thread.process] {
                *name = cut(&printable(name), MAX_NAME).replace(';', ":");
                self.name_bytes += name.len();
            }
            self.threads.push(thread);
        }
        self.unnamed.extend(slice.unnamed);
        self.frames += slice.stacks.iter().map(|stack| stack.frames.len()).sum::<usize>();
        self.stacks.extend(slice.stacks);
        let span = self.spans.len() as u32;
        self.spans.push((slice.from, slice.until));
        for seen in &slice.seen {
            *self.counts.entry((span, seen.cpu, seen.thread, seen.stack)).or_default() += 1;
        }
        self.samples += slice.seen.len() as u64;
        for (thread, ns) in slice.times {
            self.total += ns;
            *self.times.entry(thread).or_default() += ns;
        }
        self.lost = self.lost.saturating_add(slice.lost);
        self.unattributed = self.unattributed.saturating_add(slice.unattributed);
        if let Some(raw) = &mut self.raw {
            let room = MAX_RAW[usize::from(self.is_of_another)] - raw.len();
            self.raw_left_out += slice.seen.len().saturating_sub(room) as u64;
            raw.extend(slice.seen.into_iter().take(room));
        }
        Ok(())
    }

    fn join_slices(&mut self) {
        let joined = |pair: &[(Ns, Ns)]| (pair[0].0, pair[pair.len() - 1].1);
        self.spans = self.spans.chunks(2).map(joined).collect();
        for ((span, cpu, thread, stack), count) in std::mem::take(&mut self.counts) {
            let sum = self.counts.entry((span / 2, cpu, thread, stack)).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    fn check(&self, slice: &Slice, most_counts: usize) -> Result<(), TooMuch> {
        let refuse = |is: bool, why| if is { Err(TooMuch(why)) } else { Ok(()) };
        let last = self.spans.last().map_or(Ns::MIN / 2, |(_, until)| *until);
        let is_time =
            slice.from >= last && slice.until >= slice.from && slice.until < Ns::MAX / 2 && slice.from > Ns::MIN / 2;
        refuse(!is_time, "a slice of its profile has an impossible time")?;
        refuse(self.spans.len() >= MAX_SLICES, "its profile is too long")?;
        let of_threads = slice.threads.iter().map(|thread| thread.comm.len() + thread.process.len());
        let bytes: usize = slice.names.iter().map(String::len).chain(of_threads).sum();
        refuse(slice.names.iter().any(|name| name.len() > MAX_NAME), "a name in its profile is too long")?;
        let is_full = self.name_bytes + bytes > MAX_NAME_BYTES || self.names.len() + slice.names.len() > MAX_NAMES;
        refuse(is_full, "its profile has too many names")?;
        refuse(self.threads.len() + slice.threads.len() > MAX_THREADS, "its profile has too many threads")?;
        refuse(self.stacks.len() + slice.stacks.len() > MAX_STACKS, "its profile has too many call chains")?;
        let frames: usize = slice.stacks.iter().map(|stack| stack.frames.len()).sum();
        refuse(self.frames + frames > MAX_FRAMES, "its profile has too many frames")?;
        let is_deep = slice.stacks.iter().any(|stack| stack.frames.len() > MAX_DEPTH);
        refuse(is_deep, "a call chain in its profile is too long")?;
        refuse(self.counts.len() + slice.seen.len() > most_counts, "its profile has too many samples")?;
        let names = self.names.len() + slice.names.len();
        let mut used = slice.stacks.iter().flat_map(|stack| &stack.frames);
        refuse(used.any(|frame| frame.name() >= names), "its profile uses a name that it did not send")?;
        refuse(self.unnamed.len() + slice.unnamed.len() > MAX_UNNAMED, "its profile has too many addresses")?;
        let is_sound =
            |place: &Unnamed| (place.name as usize) < names && (1..=MAX_BUILD_ID).contains(&place.build_id.len());
        refuse(!slice.unnamed.iter().all(is_sound), "its profile has an address of no file")?;
        let (threads, stacks) = (self.threads.len() + slice.threads.len(), self.stacks.len() + slice.stacks.len());
        let is_known = |thread: u32| (thread as usize) < threads;
        let is_sound = |seen: &Seen| is_known(seen.thread) && (seen.stack as usize) < stacks && seen.cpu < MAX_CPUS;
        refuse(!slice.seen.iter().all(is_sound), "its profile has a sample of nothing that it sent")?;
        let length = slice.until - slice.from;
        let is_late = |seen: &Seen| !(slice.from - SLACK..=slice.until + SLACK).contains(&seen.t);
        refuse(slice.seen.iter().any(is_late), "its profile has a sample of another time")?;
        // A thread runs on one CPU at a time; its time is read a few ms after the slice's end.
        let is_time = |(thread, ns): &(u32, Ns)| is_known(*thread) && (0..=length.saturating_add(SLACK)).contains(ns);
        let sum: i128 = slice.times.iter().map(|(_, ns)| i128::from(*ns)).sum();
        let is_time = slice.times.iter().all(is_time) && i128::from(self.total) + sum < i128::from(Ns::MAX / 8);
        refuse(!is_time, "its profile has a thread with more time than there was")?;
        refuse(slice.unattributed < 0, "its profile has a time below 0")
    }
}

/// Maximum time between a sample, or the reading of a thread's run time, and its slice, ns: the reader may have waited
/// for its CPU.
const SLACK: Ns = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slice(from: Ns) -> Slice {
        Slice {
            from,
            until: from + 100,
            names: vec!["f;\n".into()],
            unnamed: vec![Unnamed { name: 0, build_id: vec![7; 20], address: 64 }],
            threads: vec![Thread::default()],
            stacks: vec![Stack { mode: Mode::User, frames: vec![FrameId::new(0, false)] }],
            seen: vec![Seen { t: from, cpu: 0, thread: 0, stack: 0 }; 2],
            times: vec![(0, 100)],
            lost: 1,
            unattributed: 2,
        }
    }

    #[test]
    fn slices_add_up() {
        let mut samples = Samples::new(true);
        samples.take(slice(0)).unwrap();
        let again = Slice { names: vec![], unnamed: vec![], threads: vec![], stacks: vec![], ..slice(100) };
        samples.take(again).unwrap();
        assert_eq!((samples.samples, samples.lost, samples.unattributed), (4, 2, 4));
        assert_eq!((samples.times[&0], samples.raw().len(), samples.span()), (200, 4, Some((0, 200))));
        assert_eq!(samples.of_programs(), (4, 4));
        let (f, longer) = (FrameId::new(0, false), 1);
        let stacks =
            vec![Stack { mode: Mode::User, frames: vec![f, f] }, Stack { mode: Mode::Kernel, frames: vec![f] }];
        let seen = [longer, longer, longer + 1].map(|stack| Seen { t: 200, cpu: 0, thread: 0, stack }).to_vec();
        samples.take(Slice { from: 200, until: 300, stacks, seen, ..Slice::default() }).unwrap();
        assert_eq!(samples.of_programs(), (6, 4));
        assert_eq!(samples.name(FrameId::new(0, true)), "f:?");
        samples.rename(samples.unnamed()[0].name, "g");
        assert_eq!(samples.name(FrameId::new(0, false)), "g");
    }

    #[test]
    fn what_cannot_be_is_refused_as_a_whole() {
        type Spoil = fn(&mut Slice);
        let spoilt: [(&str, Spoil); 14] = [
            ("impossible time", |slice| slice.from = 50),
            ("too long", |slice| slice.names.push("x".repeat(257))),
            ("a name that it did not", |slice| slice.stacks[0].frames[0] = FrameId::new(9, true)),
            ("of no file", |slice| slice.unnamed[0].name = 9),
            ("of no file", |slice| slice.unnamed[0].build_id = vec![0; 65]),
            ("of no file", |slice| slice.unnamed[0].build_id.clear()),
            ("too many names", |slice| slice.names = vec![String::new(); MAX_NAMES]),
            ("too many addresses", |slice| slice.unnamed = vec![Unnamed::default(); MAX_UNNAMED]),
            ("too long", |slice| slice.stacks[0].frames = vec![FrameId::new(0, true); 257]),
            ("nothing that it sent", |slice| slice.seen[0].thread = 9),
            ("nothing that it sent", |slice| slice.seen[0].cpu = MAX_CPUS),
            ("another time", |slice| slice.seen[0].t = Ns::MAX / 4),
            ("more time", |slice| slice.times[0].1 = Ns::MAX),
            ("below 0", |slice| slice.unattributed = -1),
        ];
        for (why, spoil) in spoilt {
            let mut samples = Samples::new(false);
            samples.take(slice(0)).unwrap();
            let (before, mut bad) = (samples.clone(), slice(100));
            spoil(&mut bad);
            let refused = samples.take(bad).expect_err(why);
            assert!(refused.0.contains(why), "{refused} {why}");
            // Later slices refer to indexes of the refused slice, so their names would be wrong.
            assert_eq!(samples.take(slice(200)), Err(refused.clone()));
            assert_eq!(samples, Samples { refused: Some(refused), ..before });
        }
    }

    #[test]
    fn names_of_threads_count_among_all_names() {
        let mut samples = Samples::of_another(false);
        let thread = Thread { comm: "c".repeat(MAX_NAME), process: "p".repeat(MAX_NAME), ..Thread::default() };
        let threads = |count: usize| Slice { threads: vec![thread.clone(); count], ..Slice::default() };
        let most = MAX_NAME_BYTES / (2 * MAX_NAME);
        let later = Slice { names: vec!["f".into()], ..Slice::default() };
        samples.take(threads(most - 1)).unwrap();
        assert_eq!(samples.check(&threads(1), 1), Ok(()));
        assert_eq!(samples.check(&threads(2), 1), Err(TooMuch("its profile has too many names")));
        samples.take(threads(1)).unwrap();
        assert_eq!(samples.take(later), Err(TooMuch("its profile has too many names")));
    }

    #[test]
    fn more_samples_than_there_is_room_for_are_refused() {
        let mut samples = Samples::new(false);
        samples.take(slice(0)).unwrap();
        let more = |seen| Slice { seen: vec![Seen { t: 100, cpu: 0, thread: 0, stack: 0 }; seen], ..slice(100) };
        assert_eq!(samples.check(&more(1), 2), Ok(()));
        assert_eq!(samples.check(&more(2), 2), Err(TooMuch("its profile has too many samples")));
    }

    #[test]
    fn samples_of_more_slices_than_there_is_room_for_are_those_of_longer_ones() {
        let mut samples = Samples::of_another(false);
        let (seconds, each) = (20, MAX_COUNTS[1] / 8);
        let stacks = (0..each).map(|_| Stack { mode: Mode::Kernel, frames: vec![] }).collect();
        for second in 0..seconds {
            let seen = (0..each as u32).map(|stack| Seen { t: second * 100, cpu: 1, thread: 0, stack }).collect();
            let more = Slice { from: second * 100, until: second * 100 + 100, seen, times: vec![], ..Slice::default() };
            let more = match second {
                0 => Slice { stacks: Vec::clone(&stacks), threads: vec![Thread::default()], ..more },
                _ => more,
            };
            samples.take(more).unwrap();
            assert!(samples.counts.len() <= MAX_COUNTS[1]);
        }
        assert_eq!((samples.samples, samples.span()), (seconds as u64 * each as u64, Some((0, seconds * 100))));
        assert!(samples.spans.is_sorted_by(|a, b| a.1 == b.0), "{:?}", samples.spans);
        let of_spans =
            |span: u32| samples.counts.iter().filter(|(at, _)| at.0 == span).map(|(_, n)| *n as Ns).sum::<Ns>();
        let whole =
            (0..).zip(&samples.spans).all(|(n, (from, until))| of_spans(n) == (until - from) / 100 * each as Ns);
        assert!(whole && samples.spans.len() < 9, "{:?}", samples.spans);
        // Too many samples that cannot be merged any further are refused.
        let seen = vec![Seen { t: 2_000, cpu: 2, thread: 0, stack: 0 }; MAX_COUNTS[1]];
        let refused = samples.take(Slice { from: 2_000, until: 2_100, seen, ..Slice::default() });
        assert_eq!(refused, Err(TooMuch("its profile has too many samples")));
    }

    proptest! {
        #[test]
        fn no_slice_makes_it_panic(
            from in any::<Ns>(), until in any::<Ns>(), raw in prop::collection::vec(any::<u32>(), 0..6),
            seen in prop::collection::vec((any::<Ns>(), 0u32..9000, 0u32..3, 0u32..3), 0..6),
            times in prop::collection::vec((0u32..3, any::<Ns>()), 0..4), more in any::<Ns>(),
        ) {
            let mut samples = Samples::new(true);
            let stacks = vec![Stack { mode: Mode::Kernel, frames: raw.into_iter().map(FrameId::of_raw).collect() }];
            let seen = seen.into_iter().map(|(t, cpu, thread, stack)| Seen { t, cpu, thread, stack }).collect();
            let bad = Slice { from, until, stacks, seen, times, unattributed: more, ..slice(0) };
            let _ = samples.take(bad.clone());
            let _ = samples.take(bad);
        }
    }
}
