//! Manual pages: the text of `--help`, and sections that only a manual has.

use crate::help::related;
use clap::Command;
use clap_mangen::roff::{bold, roman, Roff};
use clap_mangen::Man;
use std::io::Write;
use std::path::Path;
use std::{fs, io};

/// A command, the name of its page in the documentation, and the page.
macro_rules! documented {
    ($command:literal) => {
        documented!($command, $command)
    };
    ($command:literal, $page:literal) => {
        ($command, $page, include_str!(concat!("../../../../../docs/", $page, ".md")))
    };
}

/// The page of each command in the documentation.
const DOCUMENTED: [(&str, &str, &str); 25] = [
    documented!("agent"),
    documented!("compare"),
    documented!("demo"),
    documented!("doctor"),
    documented!("exits"),
    documented!("explain"),
    documented!("export"),
    documented!("gates"),
    documented!("import"),
    documented!("ladder"),
    documented!("live"),
    documented!("mark", "record"),
    documented!("path"),
    documented!("ping"),
    documented!("profile"),
    documented!("publish"),
    documented!("queues"),
    documented!("record"),
    documented!("report"),
    documented!("schema", "json"),
    documented!("segments", "report"),
    documented!("streams"),
    documented!("study"),
    documented!("subscribe"),
    documented!("vms"),
];

const README: &str = include_str!("../../../../../README.md");

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

/// Maximum number of examples on a page.
const MAX_EXAMPLES: usize = 6;

/// Writes the page of a command, and those of its subcommands.
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

/// The sections after those of the flags.
fn more(path: &[&str], command: &Command) -> Roff {
    let mut roff = Roff::new();
    let list = |roff: &mut Roff, title: &str, rows: &[(&str, &str)]| {
        roff.control("SH", [title]);
        for (name, text) in rows {
            roff.control("TP", []).text([bold(*name)]).text([roman(*text)]);
        }
    };
    let page = DOCUMENTED.iter().find(|(name, ..)| path.get(1) == Some(name));
    let examples = examples(page.map_or(README, |(.., text)| text), &path.join(" "));
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
    let above = path.split_last().map(|(_, above)| above.join("-")).filter(|above| !above.is_empty());
    let beside = path.get(1).into_iter().flat_map(|command| related(command)).map(|name| format!("{}-{name}", path[0]));
    let below = inner.map(|inner| format!("{}-{inner}", path.join("-")));
    let mut all: Vec<_> = above.into_iter().chain(beside).chain(below).map(|name| name + "(1)").collect();
    all.extend(page.map(|(_, name, _)| format!("{name}.md in share/doc/latpath")));
    roff.text([roman(all.join(", "))]);
    roff
}

/// The lines in a page's code blocks that call this command.
fn examples(page: &str, command: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("    ")) {
        let line = line.trim_end().trim_start_matches(['$', '#', ' ']);
        let is_example = line.split_once(command).is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with(' '));
        if is_example && !line.ends_with('\\') && !found.iter().any(|known| known == line) {
            found.push(line.into());
        }
    }
    found.truncate(MAX_EXAMPLES);
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
    fn pages_refer_to_pages_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), crate::commands()).unwrap();
        let mut references = 0;
        for page in fs::read_dir(folder.path()).unwrap() {
            let text = fs::read_to_string(page.unwrap().path()).unwrap();
            let also = text.split(".SH \"SEE ALSO\"").nth(1).unwrap_or_else(|| panic!("no references: {text}"));
            for name in also.split("(1)").filter_map(|text| text.split([',', ' ', '\n']).next_back()) {
                let name = name.replace("\\-", "-");
                references += usize::from(!name.is_empty());
                assert!(name.is_empty() || folder.path().join(name.clone() + ".1").exists(), "{name}(1)");
            }
        }
        assert!(references > 100, "{references}");
    }

    #[test]
    fn each_documented_command_but_few_has_an_example() {
        let without: Vec<_> =
            DOCUMENTED.iter().filter(|(name, _, page)| examples(page, &format!("latpath {name}")).is_empty()).collect();
        assert!(without.is_empty(), "{:?}", without.iter().map(|(name, ..)| name).collect::<Vec<_>>());
    }
}
