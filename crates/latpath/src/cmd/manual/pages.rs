//! Manual pages: what `--help` prints, and sections that only a manual has.

use clap::Command;
use clap_mangen::roff::{bold, roman, Roff};
use clap_mangen::Man;
use std::io::Write;
use std::path::Path;
use std::{fs, io};

/// The page of the documentation that each command has.
const DOCUMENTED: [(&str, &str); 21] = [
    ("agent", include_str!("../../../../../docs/agent.md")),
    ("caps", include_str!("../../../../../docs/caps.md")),
    ("compare", include_str!("../../../../../docs/compare.md")),
    ("demo", include_str!("../../../../../docs/demo.md")),
    ("exits", include_str!("../../../../../docs/exits.md")),
    ("explain", include_str!("../../../../../docs/explain.md")),
    ("export", include_str!("../../../../../docs/export.md")),
    ("import", include_str!("../../../../../docs/import.md")),
    ("ladder", include_str!("../../../../../docs/ladder.md")),
    ("live", include_str!("../../../../../docs/live.md")),
    ("path", include_str!("../../../../../docs/path.md")),
    ("ping", include_str!("../../../../../docs/ping.md")),
    ("profile", include_str!("../../../../../docs/profile.md")),
    ("publish", include_str!("../../../../../docs/publish.md")),
    ("queues", include_str!("../../../../../docs/queues.md")),
    ("record", include_str!("../../../../../docs/record.md")),
    ("report", include_str!("../../../../../docs/report.md")),
    ("streams", include_str!("../../../../../docs/streams.md")),
    ("study", include_str!("../../../../../docs/study.md")),
    ("subscribe", include_str!("../../../../../docs/subscribe.md")),
    ("vms", include_str!("../../../../../docs/vms.md")),
];

/// Exit codes of all commands.
const EXIT_STATUS: [(&str, &str); 4] = [
    ("0", "Done."),
    ("1", "Failed; the error is on standard error."),
    ("2", "Wrong usage."),
    ("3", "Measured, but a limit that the user set is broken or cannot be judged."),
];

const FILES: [(&str, &str); 4] = [
    ("~/.config/latpath/config.toml, /etc/latpath/config.toml", "Flags that are always given."),
    ("~/.cache/latpath, /var/cache/latpath", "Kernels and programs of the lab, fetched once."),
    ("/run/latpath", "What was changed on this machine, so that the next latpath can undo it after a kill."),
    ("share/doc/latpath", "The documentation, below the directory that latpath is installed to."),
];

/// Examples of a page, at most.
const MOST_EXAMPLES: usize = 6;

/// Writes a command's page, and those of the commands below it.
pub fn write(directory: &Path, mut commands: Command) -> io::Result<()> {
    commands = commands.disable_help_subcommand(true);
    commands.build();
    write_built(directory, &commands, &[])
}

fn write_built(directory: &Path, command: &Command, above: &[&str]) -> io::Result<()> {
    let path = [above, &[command.get_name()]].concat();
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write_built(directory, inner, &path)?;
    }
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    more(&path, command).to_writer(&mut page)?;
    fs::File::create(directory.join(path.join("-") + ".1"))?.write_all(&page)
}

/// The sections behind those of the flags.
fn more(path: &[&str], command: &Command) -> Roff {
    let mut roff = Roff::new();
    let list = |roff: &mut Roff, title: &str, rows: &[(&str, &str)]| {
        roff.control("SH", [title]);
        for (name, text) in rows {
            roff.control("TP", []).text([bold(*name)]).text([roman(*text)]);
        }
    };
    let page = DOCUMENTED.iter().find(|(name, _)| path.get(1) == Some(name));
    let examples = page.map_or(Vec::new(), |(_, text)| examples(text, &path.join(" ")));
    if !examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
        for example in examples {
            roff.control("PP", []).control("EX", []).text([roman(example)]).control("EE", []);
        }
    }
    list(&mut roff, "EXIT STATUS", &EXIT_STATUS);
    list(&mut roff, "FILES", &FILES);
    roff.control("SH", ["SEE ALSO"]);
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(|inner| inner.get_name());
    let others = match path {
        [_] | [] => Vec::new(),
        [above @ .., _] => vec![above.join("-")],
    };
    let mut all: Vec<_> = others.into_iter().chain(inner.map(|inner| format!("{}-{inner}", path.join("-")))).collect();
    all.iter_mut().for_each(|name| name.push_str("(1)"));
    all.extend(page.map(|(name, _)| format!("{name}.md in share/doc/latpath")));
    roff.text([roman(all.join(", "))]);
    roff
}

/// The lines of a page's code blocks that are commands of this name.
fn examples(page: &str, command: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("    ")) {
        let line = line.trim_end().trim_start_matches(['$', '#', ' ']);
        let is_example = line.split_once(command).is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with(' '));
        if is_example && !line.ends_with('\\') && !found.iter().any(|known| known == line) {
            found.push(line.into());
        }
    }
    found.truncate(MOST_EXAMPLES);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_what_only_a_manual_has() {
        let folder = tempfile::tempdir().unwrap();
        let inner = Command::new("record").about("Record").subcommand(Command::new("part"));
        write(folder.path(), Command::new("latpath").subcommand(inner)).unwrap();
        let page = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let record = page("latpath-record.1");
        for section in ["EXAMPLES", "EXIT STATUS", "FILES", "SEE ALSO"] {
            assert!(
                record.contains(&format!(".SH \"{section}\"")) || record.contains(&format!(".SH {section}")),
                "{record}"
            );
        }
        assert!(record.contains("latpath record ") && record.contains("record.md"), "{record}");
        assert!(page("latpath.1").contains("record(1)") && page("latpath-record-part.1").contains("EXIT STATUS"));
    }

    #[test]
    fn each_documented_command_but_few_has_an_example() {
        let without: Vec<_> =
            DOCUMENTED.iter().filter(|(name, page)| examples(page, &format!("latpath {name}")).is_empty()).collect();
        assert!(without.is_empty(), "{:?}", without.iter().map(|(name, _)| name).collect::<Vec<_>>());
    }
}
