//! Profiles for the Firefox Profiler (profiler.firefox.com reads the file in the browser, and sends it nowhere).

use fxprof_processed_profile::{
    CategoryColor, CategoryPairHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Profile, ReferenceTimestamp,
    SamplingInterval, ThreadHandle, Timestamp,
};
use latpath_model::Ns;
use latpath_profile::{Header, Mode, Samples};
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

pub struct Machine<'s> {
    /// Its name; `None` of the host.
    pub guest: Option<String>,
    pub samples: &'s Samples,
    /// Its clock minus the host's.
    pub offset_ns: Ns,
}

/// Writes all samples but idle ones, each with its time on the host's timeline, the first machine's. A sample counts
/// 1: the tables have the exact times.
///
/// # Errors
/// As the writer has.
pub fn firefox(header: &Header, machines: &[Machine<'_>], out: impl Write) -> io::Result<()> {
    let begin = machines.first().and_then(|machine| machine.samples.span()).map_or(0, |(from, _)| from);
    let time = |t: Ns| Timestamp::from_nanos_since_reference((t - begin).max(0) as u64);
    let reference =
        ReferenceTimestamp::from_duration_since_unix_epoch(Duration::from_nanos(header.utc_ns.max(0) as u64));
    let interval = SamplingInterval::from_nanos(1_000_000_000 / u64::from(header.frequency.max(1)));
    let mut profile = Profile::new("latpath", reference, interval);
    let [user, kernel] = [("User", CategoryColor::Yellow), ("Kernel", CategoryColor::Orange)]
        .map(|(name, colour)| CategoryPairHandle::from(profile.add_category(name, colour)));
    for machine in machines {
        let samples = machine.samples;
        let (mut processes, mut threads) = (HashMap::new(), HashMap::<u32, ThreadHandle>::new());
        let mut seen: Vec<_> =
            samples.raw().iter().filter(|seen| samples.stack(seen.stack).mode != Mode::Idle).collect();
        seen.sort_by_key(|seen| seen.t);
        for seen in seen {
            let at = time(seen.t - machine.offset_ns);
            let thread = *threads.entry(seen.thread).or_insert_with(|| {
                let about = samples.thread(seen.thread);
                let process = *processes.entry(about.tgid).or_insert_with(|| {
                    let name = match &machine.guest {
                        Some(guest) => format!("{guest}: {}", about.process),
                        None => about.process.clone(),
                    };
                    profile.add_process(&name, about.tgid, at)
                });
                let thread = profile.add_thread(process, about.tid, at, about.tid == about.tgid);
                profile.set_thread_name(thread, &about.comm);
                thread
            });
            let stack = samples.stack(seen.stack);
            let mut names: Vec<(&str, bool)> =
                stack.frames.iter().rev().map(|frame| (samples.name(*frame), frame.in_kernel())).collect();
            if stack.mode == Mode::Guest {
                names.push(("[guest]", true));
            }
            let frames: Vec<FrameInfo> = names
                .into_iter()
                .map(|(name, in_kernel)| FrameInfo {
                    frame: Frame::Label(profile.intern_string(name)),
                    category_pair: if in_kernel { kernel } else { user },
                    flags: FrameFlags::empty(),
                })
                .collect();
            let stack = profile.intern_stack_frames(thread, frames.into_iter());
            profile.add_sample(thread, at, stack, CpuDelta::ZERO, 1);
        }
    }
    serde_json::to_writer(io::BufWriter::new(out), &profile).map_err(io::Error::from)
}
