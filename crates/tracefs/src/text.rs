//! Parses the output of `trace-cmd report`, `perf script` and the kernel's `trace` file: one event per line.
//!
//! The text may come from any source: the length of lines is limited, and lines that are not events are ignored.

use latpath_model::Ns;
use std::io::{self, BufRead, Read};

/// Maximum length of a line, bytes; longer lines are truncated.
pub const LONGEST_LINE: usize = 4096;

/// Reads a line into `bytes`, truncated to [`LONGEST_LINE`]. Returns false at the end of the input.
///
/// # Errors
/// The input cannot be read.
pub fn next_line(mut input: &mut dyn BufRead, bytes: &mut Vec<u8>) -> io::Result<bool> {
    bytes.clear();
    if (&mut input).take(LONGEST_LINE as u64).read_until(b'\n', bytes)? == 0 {
        return Ok(false);
    }
    while !bytes.ends_with(b"\n") && bytes.len() >= LONGEST_LINE {
        // Skips the rest of a truncated line.
        let rest = input.fill_buf()?;
        let (used, is_end) = match rest.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (rest.len(), rest.is_empty()),
        };
        input.consume(used);
        if is_end {
            break;
        }
    }
    Ok(true)
}

/// The parsed line of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The source of the line: trace-cmd names the file or buffer at the start of each line if it reports several.
    pub source: Option<&'a str>,
    /// The thread's name.
    pub name: &'a str,
    /// The thread's TID; 0 while the CPU is idle.
    pub pid: u32,
    /// Its process ID, if the line contains it.
    pub process: Option<u32>,
    /// The CPU.
    pub cpu: u32,
    /// Time in the trace's clock, ns.
    pub t: Ns,
    /// Name of the event, without its system.
    pub event: &'a str,
    /// The event's arguments.
    pub args: &'a str,
}

impl<'a> Line<'a> {
    /// Parses `NAME-PID [CPU] TIME: EVENT: ARGS`, with optional flags before the time; or `NAME PID/TID [CPU] TIME:
    /// SYSTEM:EVENT: ARGS`.
    pub fn read(text: &'a str) -> Option<Self> {
        let text = text.trim_end();
        // A thread's name may itself contain brackets.
        text.match_indices('[').find_map(|(at, _)| Self::around(text, at))
    }

    fn around(text: &'a str, bracket: usize) -> Option<Self> {
        let (cpu, rest) = text.get(bracket + 1..)?.split_once(']')?;
        let cpu = number(cpu)?;
        let (name, pid, process) = who(text.get(..bracket)?.trim())?;
        let (source, name) = without_source(name);
        let (t, rest) = time(rest)?;
        let (event, args) = rest.trim_start().split_once(':')?;
        // perf puts the event's system before its name.
        let (event, args) = match args.split_once(':') {
            Some((second, rest)) if !second.is_empty() && !second.contains(' ') => (second, rest),
            _ => (event, args),
        };
        (!event.is_empty() && !event.contains(' ')).then_some(())?;
        Some(Self { source, name, pid, process, cpu, t, event, args: args.trim() })
    }
}

/// Parses an unsigned decimal number.
pub fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Parses `NAME-PID`, `NAME-PID (PROCESS)`, `NAME PID` or `NAME PROCESS/PID`.
fn who(text: &str) -> Option<(&str, u32, Option<u32>)> {
    let (text, in_brackets) = match text.strip_suffix(')').and_then(|text| text.rsplit_once('(')) {
        Some((before, process)) => (before.trim_end(), number(process.trim())),
        None => (text, None),
    };
    if let Some((name, last)) = text.rsplit_once(' ') {
        let (process, pid) = match last.split_once('/') {
            Some((process, pid)) => (number(process), number(pid)),
            None => (None, number(last)),
        };
        if let Some(pid) = pid {
            return Some((name.trim(), pid, process.or(in_brackets)));
        }
    }
    let (name, pid) = text.rsplit_once('-')?;
    Some((name, number(pid)?, in_brackets))
}

/// Maximum length of a thread's name without the terminating null: TASK_COMM_LEN - 1.
const LONGEST_NAME: usize = 15;

/// Splits off the source in `host.dat:            relay`, as printed by `trace-cmd report -i host.dat -i guest.dat`: no
/// thread's name is that long.
fn without_source(name: &str) -> (Option<&str>, &str) {
    match name.split_once(": ") {
        Some((source, name)) if source.len() + 2 + name.len() > LONGEST_NAME => (Some(source.trim()), name.trim()),
        _ => (None, name),
    }
}

/// Parses `SECONDS.FRACTION:`, preceded by at most one word of flags.
fn time(text: &str) -> Option<(Ns, &str)> {
    let mut rest = text.trim_start();
    for _ in 0..2 {
        let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
        if let Some(t) = word.strip_suffix(':').and_then(seconds) {
            return Some((t, behind));
        }
        rest = behind.trim_start();
    }
    None
}

fn seconds(text: &str) -> Option<Ns> {
    let (whole, fraction) = text.split_once('.')?;
    let digits = u32::try_from(fraction.len()).ok().filter(|digits| (1..=9).contains(digits))?;
    let (whole, fraction): (Ns, Ns) = (number(whole)?, number(fraction)?);
    whole.checked_mul(1_000_000_000)?.checked_add(fraction * 10_i64.pow(9 - digits))
}

/// Parses the number of lost events in `CPU:3 [LOST 120 EVENTS]` or `CPU:3 [120 EVENTS DROPPED]`.
pub fn lost(text: &str) -> Option<u64> {
    let (_, said) = text.trim().strip_prefix("CPU")?.split_once('[')?;
    let is_lost = said.contains("LOST") || said.contains("DROPPED");
    is_lost.then(|| said.split(|c: char| !c.is_ascii_digit()).find_map(number).unwrap_or(1))
}

/// A thread in a scheduler event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its TID; 0 for a CPU's idle thread.
    pub pid: u32,
    /// Its kernel priority: below 100 is real-time.
    pub prio: Option<i32>,
}

/// A `sched_switch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch<'a> {
    /// The thread that leaves the CPU.
    pub prev: Task<'a>,
    /// State of that thread, e.g. `R`, `R+`, `S` or `D`.
    pub state: &'a str,
    /// The thread that gets the CPU.
    pub next: Task<'a>,
}

impl<'a> Switch<'a> {
    /// Parses `NAME:PID [PRIO] STATE ==> NAME:PID [PRIO]`, or `prev_comm=NAME prev_pid=PID prev_prio=… prev_state=S ==>
    /// next_comm=…`.
    pub fn read(args: &'a str) -> Option<Self> {
        let (left, right) = args.split_once(" ==> ")?;
        let (prev, state) = match left.strip_prefix("prev_comm=") {
            Some(left) => {
                let (left, state) = left.rsplit_once(" prev_state=")?;
                (fields(left, " prev_pid=", "prev_prio=")?, state)
            }
            None => (short(left)?, left.rsplit(' ').next()?),
        };
        let next = match right.strip_prefix("next_comm=") {
            Some(right) => fields(right, " next_pid=", "next_prio=")?,
            None => short(right)?,
        };
        Some(Self { prev, state, next })
    }
}

impl<'a> Task<'a> {
    /// Parses the thread in a `sched_waking` or `sched_wakeup`: `NAME:PID [PRIO] …` or `comm=NAME pid=PID prio=…`.
    pub fn woken(args: &'a str) -> Option<Self> {
        match args.strip_prefix("comm=") {
            Some(args) => fields(args, " pid=", "prio="),
            None => short(args),
        }
    }
}

/// Parses `NAME PID=… PRIO=…`, where a name may contain spaces.
fn fields<'a>(text: &'a str, pid: &str, prio: &str) -> Option<Task<'a>> {
    let (name, rest) = text.rsplit_once(pid)?;
    let mut words = rest.split(' ');
    let pid = number(words.next()?)?;
    Some(Task { name, pid, prio: words.find_map(|word| word.strip_prefix(prio)).and_then(|prio| prio.parse().ok()) })
}

/// Parses `NAME:PID [PRIO] …`.
fn short(text: &str) -> Option<Task<'_>> {
    let (who, rest) = text.split_once(" [").unwrap_or((text, ""));
    let (name, pid) = who.rsplit_once(':')?;
    let prio = rest.split_once(']').and_then(|(prio, _)| prio.parse().ok());
    Some(Task { name, pid: number(pid)?, prio })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_trace_cmd_perf_and_the_kernel_say_the_same() {
        let lines = [
            "       CPU 0/KVM-1240  [003]  7593.923907: kvm_entry:            vcpu 0, rip 0x1",
            "       CPU 0/KVM-1240  (   1234) [003] d..2.  7593.923907: kvm_entry: vcpu 0, rip 0x1",
            "CPU 0/KVM  1234/1240  [003]  7593.923907:                    kvm:kvm_entry: vcpu 0, rip 0x1",
        ];
        for (line, process) in lines.into_iter().zip([None, Some(1234), Some(1234)]) {
            let read = Line::read(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((read.name, read.pid, read.process, read.cpu), ("CPU 0/KVM", 1240, process, 3), "{line}");
            assert_eq!((read.t, read.event), (7_593_923_907_000, "kvm_entry"), "{line}");
            assert_eq!(read.args, "vcpu 0, rip 0x1", "{line}");
        }
    }

    #[test]
    fn a_file_name_before_each_line_is_not_part_of_a_thread() {
        for (line, source, name) in [
            ("  host.dat:            relay-77    [001]  5.000001: sched_switch: x", Some("host.dat"), "relay"),
            (
                " guest.dat:  a thread of 15 b-77  [001] d..2. 5.000001: sched_switch: x",
                Some("guest.dat"),
                "a thread of 15 b",
            ),
            ("                hog: a b-77    [001]  5.000001: sched_switch: x", None, "hog: a b"),
            ("      kworker/u8:3-ev-77    [001]  5.000001: sched_switch: x", None, "kworker/u8:3-ev"),
        ] {
            let read = Line::read(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((read.source, read.name, read.pid), (source, name, 77), "{line}");
        }
    }

    #[test]
    fn invalid_lines_are_no_events() {
        let none =
            ["", "cpus=8", "# tracer: nop", "a-1 [x] 1.0: e: x", "a-1 [0] 1: e: x", "a [0] 1.0: e: x", "[", "a-1 [0]"];
        for text in none {
            assert_eq!(Line::read(text), None, "{text}");
        }
        assert_eq!(Line::read("a-1 [0] 9999999999999.0: e: x"), None, "a time that no clock has");
    }

    #[test]
    fn switches_and_wakings_of_trace_cmd_and_the_kernel_say_the_same() {
        let task = |name, pid, prio| Task { name, pid, prio: Some(prio) };
        let expected = Switch { prev: task("hog: a b", 7, 49), state: "R+", next: task("swapper/1", 0, 120) };
        for text in [
            "hog: a b:7 [49] R+ ==> swapper/1:0 [120]",
            "prev_comm=hog: a b prev_pid=7 prev_prio=49 prev_state=R+ ==> next_comm=swapper/1 next_pid=0 next_prio=120",
        ] {
            assert_eq!(Switch::read(text), Some(expected), "{text}");
        }
        for text in ["CPU 0/KVM:5 [-1]<CANT FIND FIELD success> CPU:001", "comm=CPU 0/KVM pid=5 prio=-1 target_cpu=001"]
        {
            assert_eq!(Task::woken(text), Some(task("CPU 0/KVM", 5, -1)), "{text}");
        }
        for text in ["", " ==> ", "a ==> b", "prev_comm=a prev_pid=x prev_state=S ==> next_comm=b next_pid=1"] {
            assert_eq!(Switch::read(text), None, "{text}");
        }
    }

    #[test]
    fn lost_events_are_counted_as_they_are_reported() {
        assert_eq!(lost("CPU:3 [LOST 120 EVENTS]"), Some(120));
        assert_eq!(lost("CPU:3 [EVENTS DROPPED]"), Some(1));
        assert_eq!(lost("a-1 [000] 1.0: print: [LOST 3 EVENTS]"), None);
    }
}
