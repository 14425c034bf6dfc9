//! The first screen: `latpath --help` shows the commands in groups, and `latpath` alone says what to do next.

/// What a command is for, below the heading of its group.
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
            ("exits", "Show why vCPUs leave their guests, and where their time goes"),
            ("queues", "Show what passes virtqueues"),
            ("ladder", "Show each step of a transfer between guest and host"),
            ("profile", "Show where CPUs spend their time, host and guests in one profile"),
            ("study", "Compare configurations of a virtual machine under one load"),
        ],
    },
    Group {
        heading: "This machine",
        commands: &[
            ("caps", "Show what latpath can measure here, and what is missing"),
            ("demo", "Try all of latpath on this machine, with a guest"),
        ],
    },
];

/// Commands that most users do not need; `--help` only names them.
const MORE: [&str; 7] = ["agent", "completions", "import", "man", "mark", "schema", "segments"];

const OPTIONS: &str = "\
Options:
  -h, --help           Print help; latpath COMMAND --help: of one command
  -V, --version        Print version
      --config <FILE>  Take flags from this file too (docs/config.md)
";

/// The template of `latpath --help`, for clap.
pub fn template() -> String {
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for Group { heading, commands } in GROUPS {
        text += &format!("{heading}:\n");
        commands.iter().for_each(|(name, what)| text += &format!("  {name:<10} {what}\n"));
        text += "\n";
    }
    text + &format!("More: {}\n\n{OPTIONS}", MORE.join(", "))
}

/// What `latpath` alone prints.
pub const NEXT_STEPS: &str = "\
latpath follows the packets of a time-critical stream through this host and its guests. Try:

  latpath caps                            what can be measured on this machine
  latpath streams -i IF                   which streams a network device carries
  latpath live --stream svid:MU01         where the packets of one spend their time
  latpath record --stream svid:MU01 -o RUN, then
  latpath report RUN; latpath explain RUN figures, and what held late packets
  latpath --help                          all commands; latpath COMMAND --help about one
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    #[test]
    fn each_command_is_in_one_group() {
        let commands = Cli::command();
        let all: BTreeSet<_> = commands.get_subcommands().map(|command| command.get_name()).collect();
        let grouped = GROUPS.iter().flat_map(|group| group.commands).map(|(name, _)| *name);
        let named: Vec<_> = grouped.chain(MORE).collect();
        assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(named.len(), all.len(), "a command in two groups");
    }

    #[test]
    fn the_help_fits_on_one_screen() {
        let help = Cli::command().term_width(80).render_long_help().to_string();
        let lines: Vec<_> = help.lines().collect();
        assert!(lines.len() <= 40, "{} lines:\n{help}", lines.len());
        let long: Vec<_> = lines.iter().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "longer than 80 columns: {long:#?}");
        assert!(NEXT_STEPS.lines().all(|line| line.chars().count() <= 100));
    }
}
