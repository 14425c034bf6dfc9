//! The context of a breach as text.

use super::Args;
use latpath_model::Ns;
use latpath_ping::breach::BreachedProbe;
use latpath_ping::breach_context::{Breach, BreachContext, ContextRecorder, RunTime, ThreadActivity};
use latpath_stats::{text::wrapped, units::duration};

/// Share of the window, in thousandths, above which a time is shown; a time that fills the window is always shown.
const MIN_PER_MILLE: Ns = 2;
/// Maximum number of columns of a line; longer lines continue on the next, indented.
const WIDTH: usize = 131;
const INDENT: usize = 15;

/// Starts the recorder if a threshold is set and the user does not refuse it. Prints a line if it cannot start.
pub fn record(args: &Args) -> Option<ContextRecorder> {
    if args.freeze.threshold.is_none() || args.no_flight {
        return None;
    }
    match ContextRecorder::start() {
        Ok(recorder) => {
            let mut missing: Vec<_> = recorder.missing().iter().map(|m| m.lost).collect();
            missing.dedup();
            if !missing.is_empty() {
                eprintln!("latpath: the context of a breach lacks, on this kernel: {}", missing.join("; "));
            }
            Some(recorder)
        }
        Err(e) => {
            eprintln!("latpath: a breach will have no context: {e}");
            None
        }
    }
}

/// The breach of a session to show: the worst with a complete context, otherwise the worst.
pub fn of_session(breaches: &[Breach], session: u32) -> Option<(&BreachedProbe, &BreachContext)> {
    let of_session = breaches.iter().filter(|breach| breach.probe.session == session);
    let explained = of_session.filter_map(|breach| Some((&breach.probe, breach.context.as_ref()?)));
    explained.max_by_key(|(probe, context)| (context.complete, probe.round_trip_ns))
}

/// The lines of the context.
pub fn lines(context: &BreachContext) -> Vec<String> {
    let mut lines = Vec::new();
    if !context.complete {
        lines.push("part of it was overwritten before it could be read".to_string());
    }
    lines.extend(context.threads.iter().map(|t| thread(t, context.window_ns)));
    lines.extend(context.cpus.iter().map(|c| format!("CPU {}: {}", c.cpu, list(&c.ran, context.window_ns))));
    let folded = lines.iter().enumerate().flat_map(|(at, line)| {
        let head = if at == 0 { "context" } else { "" };
        wrapped(format!("{head:11}"), INDENT, line, WIDTH, '…')
    });
    folded.collect()
}

/// Formats run times, e.g. `rustc (18491) 4.9 ms, irq 25 virtio0 18 µs`.
fn list(ran: &[RunTime], of: Ns) -> String {
    let worth = |r: &&RunTime| r.ns > of / 1000 * MIN_PER_MILLE || r.ns == of;
    ran.iter().filter(worth).map(|r| format!("{} {}", r.what, duration(r.ns))).collect::<Vec<_>>().join(", ")
}

/// The threads and interrupts that kept a thread waiting, with their scheduling.
fn behind(ran: &[RunTime], of: Ns) -> String {
    match ran {
        [] => "what is not known".into(),
        [only] => with_class(only),
        [first, rest @ ..] => {
            let rest = list(rest, of);
            let rest = if rest.is_empty() { rest } else { format!(", {rest}") };
            format!("{} {}{rest}", with_class(first), duration(first.ns))
        }
    }
}

fn with_class(ran: &RunTime) -> String {
    match (&ran.class, ran.what.strip_suffix(')')) {
        (Some(class), Some(what)) => format!("{what}, {class})"),
        _ => ran.what.clone(),
    }
}

fn thread(t: &ThreadActivity, of: Ns) -> String {
    let mut said = Vec::new();
    let mut say = |ns: Ns, what: String| {
        if ns > 0 {
            said.push((ns, what));
        }
    };
    let ready = duration(t.ready_ns);
    say(
        t.ready_ns,
        match t.throttled_ns {
            0 => format!("ready but not running for {ready} behind {}", behind(&t.behind, of)),
            _ => format!("ready but not running for {ready}: its control group had used up its CPU time"),
        },
    );
    let by = match &t.interrupted_by[..] {
        [first, rest @ ..] if list(rest, of).is_empty() => first.what.clone(),
        several => list(several, of),
    };
    say(t.interrupted_ns, format!("interrupted for {} by {by}", duration(t.interrupted_ns)));
    say(t.stopped_ns, format!("stopped for {}", duration(t.stopped_ns)));
    let woken = t.woken_by.as_ref().map_or(String::new(), |by| format!(", woken by {by}"));
    say(t.asleep_ns, format!("asleep for {}{woken}", duration(t.asleep_ns)));
    say(t.running_ns, format!("ran for {}", duration(t.running_ns)));
    say(t.unknown_ns, format!("not known for {}", duration(t.unknown_ns)));
    said.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
    let worth = said.iter().enumerate().filter(|(at, (ns, _))| *at == 0 || *ns > of / 1000 * MIN_PER_MILLE);
    let said: Vec<_> = worth.map(|(_, (_, what))| what.as_str()).collect();
    format!("{}: {}", t.thread, said.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(what: &str, class: Option<&str>, ns: Ns) -> RunTime {
        RunTime { what: what.into(), pid: None, class: class.map(str::to_string), ns }
    }

    fn late() -> ThreadActivity {
        ThreadActivity {
            thread: "ping-0 (4711)".into(),
            pid: 4711,
            running_ns: 50_000,
            ready_ns: 4_900_000,
            behind: vec![ran("rustc (18491)", Some("SCHED_OTHER"), 4_880_000), ran("irq 25 virtio0", None, 20_000)],
            asleep_ns: 200_000,
            woken_by: Some("softirq NET_RX in rustc (18491)".into()),
            unknown_ns: 1_000,
            ..ThreadActivity::default()
        }
    }

    #[test]
    fn the_longest_comes_first_and_trifles_are_left_out() {
        assert_eq!(
            thread(&late(), 5_151_000),
            "ping-0 (4711): ready but not running for 4.900 ms behind rustc (18491, SCHED_OTHER) 4.880 ms, irq 25 virtio0 20.00 µs; \
             asleep for 200.0 µs, woken by softirq NET_RX in rustc (18491); ran for 50.00 µs"
        );
    }

    #[test]
    fn a_used_up_control_group_is_the_reason() {
        let throttled = ThreadActivity { throttled_ns: 1, asleep_ns: 0, running_ns: 0, ..late() };
        let said = thread(&throttled, 5_000_000);
        assert!(said.ends_with("for 4.900 ms: its control group had used up its CPU time"), "{said}");
    }
}
