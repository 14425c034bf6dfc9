//! The first screen: `latpath --help` shows the commands in groups, and `latpath` alone shows the next steps.

use clap::Command;

/// A group of commands: its heading, and the name and purpose of each command.
struct Group {
    heading: &'static str,
    commands: &'static [(&'static str, &'static str)],
}

const GROUPS: [Group; 4] = [
    Group {
        heading: "Packets of a stream",
        commands: &[
            ("streams", "List the streams that a network device carries"),
            ("live", "Watch where packets spend their time, on one screen"),
            ("record", "Keep the journey of every packet on disk"),
            ("report", "Show a recording: times, losses, worst packets"),
            ("explain", "Show what held late packets, and what fixes it"),
            ("compare", "Show what differs between recordings"),
            ("export", "Write a recording for Perfetto, Wireshark, pandas and others"),
            ("path", "Show the kernel functions that handle a packet"),
        ],
    },
    Group {
        heading: "Round trips and traffic",
        commands: &[
            ("ping", "Measure round trips, cut into segments"),
            ("publish", "Send a stream at an exact rate"),
            ("subscribe", "Receive a stream as an application does"),
        ],
    },
    Group {
        heading: "Virtual machines",
        commands: &[
            ("vms", "List virtual machines, their network devices and threads"),
            ("net", "Build a way from the wire into VMs, and remove it"),
            ("exits", "Show why vCPUs leave their guests, and where their time goes"),
            ("queues", "Show what passes virtqueues"),
            ("ladder", "Show each step of a transfer between guest and host"),
            ("profile", "Show where CPUs spend their time, host and guests in one profile"),
            ("study", "Compare ways into VMs, settings and loads by one plan"),
        ],
    },
    Group {
        heading: "This machine",
        commands: &[
            ("doctor", "Show faults of this machine, their cost, and how to fix them"),
            ("clocks", "Show who keeps this machine's clocks on time, and how well"),
            ("tune", "Give this machine the settings of a profile, and undo them"),
            ("demo", "Try all of latpath on this machine, with a guest"),
        ],
    },
];

/// Commands that most users do not need; `--help` only names them.
const MORE: [&str; 8] = ["agent", "completions", "gates", "import", "man", "mark", "schema", "segments"];

const OPTIONS: &str = "\
Options:
  -h, --help           Print help; latpath COMMAND --help: help of one command
  -V, --version        Print version
      --config <FILE>  Also read flags from this file (docs/config.md)
";

/// clap's template of `latpath --help`.
pub fn template() -> String {
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for Group { heading, commands } in GROUPS {
        text += &format!("{heading}:\n");
        commands.iter().for_each(|(name, what)| text += &format!("  {name:<10} {what}\n"));
        text += "\n";
    }
    text + &format!("More: {}\n{OPTIONS}", MORE.join(", "))
}

/// Groups of flags, for the `-h` of commands with more than [`MAX_IN_A_LIST`] flags.
const FLAGS: [(&str, &[&str]); 18] = [
    ("Recordings", &["against", "run"]),
    (
        "Streams",
        &[
            "all",
            "appid",
            "by-stream",
            "event-every",
            "first",
            "format",
            "loop",
            "match",
            "pair",
            "pcap",
            "profile",
            "replay",
            "smp-synch",
            "speed",
            "stream",
            "streams",
            "svid",
            "wrap",
        ],
    ),
    (
        "Devices and machines",
        &[
            "address",
            "agent-key",
            "bind",
            "ethernet",
            "group",
            "hsr",
            "in",
            "interface",
            "machine",
            "no-namespace",
            "other-users",
            "peer",
            "points",
            "port",
            "prp",
            "ready",
            "source",
            "vm",
        ],
    ),
    ("Frames", &["corrupt", "dscp", "dst", "pcp", "priority", "seed", "size", "src", "sv", "sweep-size", "vlan"]),
    (
        "Pace",
        &["batch", "burst", "delay", "flood", "lost-after", "rate", "sweep-rate", "sweep-rounds", "timeout", "warm-up"],
    ),
    (
        "Schedule",
        &["advance", "base-time", "cycle", "deadline", "schedule", "send-offset", "send-time", "slot", "txtime"],
    ),
    ("Reactions", &["react", "step", "trip", "trip-after", "trip-on"]),
    ("When to stop", &["count", "duration", "max-size", "record-for", "sessions", "warm-for"]),
    (
        "Studies",
        &[
            "dry-run",
            "guest-publisher",
            "into",
            "load",
            "out-of",
            "print-plan",
            "publish-on",
            "reader",
            "repeat-failed",
            "repetitions",
            "udp-load",
            "way",
        ],
    ),
    (
        "Clocks and timestamps",
        &[
            "clock",
            "clock-error",
            "estimate-offset",
            "no-ptp",
            "offset",
            "ptp-socket",
            "require-sync",
            "stamps",
            "start",
            "sync-timeout",
            "synchronised",
            "trace-offset",
        ],
    ),
    ("Journeys", &["buffer", "door", "exclude", "from", "only", "segment", "steps", "to", "window"]),
    (
        "Late packets",
        &[
            "capture-top",
            "capture-worst",
            "flight-budget",
            "flight-buffer",
            "hold",
            "keep-going",
            "no-flight",
            "no-snapshot",
            "on-spike",
            "spike-size",
            "spikes",
            "stop-on-spike",
            "threshold",
            "trace",
            "trace-buffer",
            "trace-cpus",
            "trace-events",
            "trace-file",
            "trace-instance",
            "tracer",
        ],
    ),
    ("Limits", &["junit", "limit", "limits"]),
    ("Figures", &["band", "bucket", "detail", "every", "function", "histogram", "overflow", "rows", "worst"]),
    (
        "Settings",
        &["app-cpu", "baseline", "confirm", "housekeeping", "irq-cpu", "isolated", "no-watch", "set", "settle", "yes"],
    ),
    ("Samples", &["cpus", "diff", "frequency", "syscalls"]),
    (
        "How the thread runs",
        &[
            "awake",
            "busy-poll",
            "busy-poll-budget",
            "bypass-qdisc",
            "cpu",
            "fifo",
            "hugepages",
            "name",
            "prefer-busy-poll",
            "ring",
            "spin",
            "wake-early",
            "xdp",
            "xdp-place",
            "zero-copy",
        ],
    ),
    (
        "Output",
        &[
            "asciidoc", "csv", "export", "firefox", "folded", "force", "html", "json", "log", "log-keep", "markdown",
            "note", "output", "perfetto", "plain", "quiet", "svg", "title", "why",
        ],
    ),
];

/// Maximum number of flags that a command's `-h` shows in one list.
const MAX_IN_A_LIST: usize = 12;

/// The commands; those with more than [`MAX_IN_A_LIST`] flags have them in groups.
pub fn in_groups(mut command: Command) -> Command {
    if command.get_arguments().filter(|arg| arg.get_long().is_some()).count() > MAX_IN_A_LIST {
        command = command.mut_args(|arg| match arg.get_long().and_then(heading) {
            Some(heading) => arg.help_heading(heading),
            None => arg,
        });
    }
    command.mut_subcommands(in_groups)
}

fn heading(flag: &str) -> Option<&'static str> {
    FLAGS.iter().find(|(_, flags)| flags.contains(&flag)).map(|(heading, _)| *heading)
}

/// The other commands in a command's group.
pub fn related(command: &str) -> impl Iterator<Item = &'static str> + use<'_> {
    let of_group = GROUPS.iter().map(|group| group.commands).find(|all| all.iter().any(|(name, _)| *name == command));
    of_group.into_iter().flatten().map(|(name, _)| *name).filter(move |name| *name != command)
}

/// Output of `latpath` without a command.
pub const NEXT_STEPS: &str = "\
latpath follows the packets of a time-critical stream through this host and its guests. Try:

  latpath doctor                          what is wrong with this machine
  latpath streams -i IF                   which streams a network device carries
  latpath live --stream svid:MU01         where the packets of one spend their time
  latpath record --stream svid:MU01 -o RUN, then
  latpath report RUN; latpath explain RUN figures, and what held late packets
  latpath --help                          all commands; latpath COMMAND --help about one
";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn each_command_is_in_one_group() {
        let commands = crate::commands();
        let all: BTreeSet<_> = commands.get_subcommands().map(|command| command.get_name()).collect();
        let grouped = GROUPS.iter().flat_map(|group| group.commands).map(|(name, _)| *name);
        let named: Vec<_> = grouped.chain(MORE).collect();
        assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(named.len(), all.len(), "a command in two groups");
    }

    fn walk(command: &Command, visit: &mut impl FnMut(&Command)) {
        visit(command);
        command.get_subcommands().for_each(|inner| walk(inner, visit));
    }

    #[test]
    fn many_flags_come_in_groups() {
        let mut used = BTreeSet::new();
        walk(&crate::commands(), &mut |command| {
            let flags: Vec<_> = command.get_arguments().filter(|arg| arg.get_long().is_some()).collect();
            if flags.len() <= MAX_IN_A_LIST {
                return;
            }
            let mut groups: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
            for flag in flags {
                let long = flag.get_long().unwrap();
                groups.entry(flag.get_help_heading()).or_default().push(long);
                used.extend(heading(long).map(|_| long.to_owned()));
            }
            let name = command.get_name();
            assert!(!groups.contains_key(&None), "{name}: no group has --{}", groups[&None].join(", --"));
            let large: Vec<_> = groups.values().filter(|flags| flags.len() > MAX_IN_A_LIST).collect();
            assert!(large.is_empty(), "{name}: too large: {large:?}");
        });
        let all: Vec<_> = FLAGS.iter().flat_map(|(_, flags)| *flags).map(ToString::to_string).collect();
        assert_eq!(all.iter().cloned().collect::<BTreeSet<_>>(), used, "flags of commands that have many");
        assert_eq!(all.len(), used.len(), "a flag in two groups");
    }

    #[test]
    fn the_help_fits_on_one_screen() {
        let help = crate::commands().term_width(80).render_long_help().to_string();
        let lines: Vec<_> = help.lines().collect();
        assert!(lines.len() <= 40, "{} lines:\n{help}", lines.len());
        let long: Vec<_> = lines.iter().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "longer than 80 columns: {long:#?}");
        assert!(NEXT_STEPS.lines().all(|line| line.chars().count() <= 100));
    }
}
