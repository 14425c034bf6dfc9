//! Flags from a file, for flags that a user always passes to a command.
//!
//! The file has a table for each command, e.g. `[record]` or `[ping.emit]`, with its flags by their long names. The
//! command line takes precedence.

use anyhow::{bail, Context, Result};
use clap::parser::ValueSource;
use clap::{error::ErrorKind, Command};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};
use toml::Spanned;

/// The flag that names the file.
pub const FLAG: &str = "config";
/// Maximum size of the file, bytes; the rest is ignored.
const MAX_BYTES: u64 = 1 << 20;

/// Adds the flags of the file to the command line. The file is that of `--config FILE`, otherwise the user's, otherwise
/// the machine's.
///
/// # Errors
/// If the file cannot be read, or a key or value is not a valid flag; the text has the file's name and the line.
pub fn with_file(commands: &Command, args: Vec<OsString>) -> Result<Vec<OsString>> {
    let Ok(matches) = commands.clone().ignore_errors(true).try_get_matches_from(&args) else { return Ok(args) };
    let named = matches.get_one::<PathBuf>(FLAG).cloned();
    let is_named = named.is_some();
    let Some(path) = named.or_else(|| places().into_iter().find(|place| place.exists())) else { return Ok(args) };
    let mut text = String::new();
    let mut read = || -> std::io::Result<bool> {
        let file = std::fs::File::open(&path)?;
        let about = file.metadata()?;
        file.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(is_named || is_own(about.uid(), about.mode()))
    };
    if !read().with_context(|| format!("{}: cannot be read", path.display()))? {
        bail!(
            "{0}: belongs to another user, or others may write to it; latpath obeys it only where you name it: --config {0}",
            path.display()
        );
    }
    File { path: &path, text: &text }.apply(commands, &matches, args)
}

/// Whether only this user and root can have written a file, which is required because flags can name commands.
fn is_own(uid: u32, mode: u32) -> bool {
    (uid == 0 || uid == nix::unistd::geteuid().as_raw()) && mode & 0o022 == 0
}

/// Default paths of the file. They exclude the current directory: its owner could give root flags.
fn places() -> Vec<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = of("XDG_CONFIG_HOME").or_else(|| Some(of("HOME")?.join(".config")));
    own.into_iter().chain([PathBuf::from("/etc")]).map(|place| place.join("latpath/config.toml")).collect()
}

struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    fn apply(&self, commands: &Command, matches: &clap::ArgMatches, args: Vec<OsString>) -> Result<Vec<OsString>> {
        let file = match DeTable::parse(self.text) {
            Ok(file) => file,
            Err(e) => bail!("{}: {}", self.at(e.span().map_or(0, |span| span.start)), e.message()),
        };
        for (name, table) in file.get_ref() {
            if !matches!(table.get_ref(), DeValue::Table(_))
                || commands.find_subcommand(name.get_ref().as_ref()).is_none()
            {
                bail!(
                    "{}: {}: not a command; write flags below the name of one, e.g. [record]",
                    self.at(name.span().start),
                    name.get_ref()
                );
            }
        }
        // Descends through nested tables, as from `ping` to its `emit`.
        let (mut table, mut command, mut matches, mut behind) = (file.get_ref(), commands, matches, 1);
        while let Some((name, inner)) = matches.subcommand() {
            let place = args.iter().skip(behind).position(|arg| arg == name);
            let (Some(DeValue::Table(of_name)), Some(of_command), Some(place)) =
                (table.get(name).map(Spanned::get_ref), command.find_subcommand(name), place)
            else {
                return Ok(args);
            };
            (table, command, matches, behind) = (of_name, of_command, inner, behind + place + 1);
        }
        let with = |args: &[OsString], flags: &[OsString]| [&args[..behind], flags, &args[behind..]].concat();
        let wrong = |args: Vec<OsString>| commands.clone().try_get_matches_from(args).err();
        let mut all = args.clone();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            if matches!(value.get_ref(), DeValue::Table(_)) && command.find_subcommand(name).is_some() {
                continue;
            }
            let line = self.at(key.span().start);
            let Some(flag) = command.get_arguments().find(|arg| arg.get_long() == Some(name)) else {
                bail!("{line}: {} has no --{name}", command.get_name());
            };
            if matches.value_source(flag.get_id().as_str()) == Some(ValueSource::CommandLine) {
                continue;
            }
            let flags = self.flags(name, value).with_context(|| line.clone())?;
            match wrong(with(&all, &flags)) {
                // A flag on the command line excludes this one, which is therefore skipped.
                Some(e)
                    if e.kind() == ErrorKind::ArgumentConflict
                        && wrong(with(&args, &flags)).is_some_and(|e| e.kind() == ErrorKind::ArgumentConflict) => {}
                Some(e)
                    if !matches!(
                        e.kind(),
                        ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
                    ) =>
                {
                    bail!("{line}: {}", e.to_string().lines().next().unwrap_or_default().trim_start_matches("error: "))
                }
                _ => all = with(&all, &flags),
            }
        }
        Ok(all)
    }

    /// A key's value, or each of its values, as flags on the command line.
    fn flags(&self, name: &str, value: &Spanned<DeValue<'_>>) -> Result<Vec<OsString>> {
        let flag = |text: &str| vec![format!("--{name}={text}").into()];
        Ok(match value.get_ref() {
            DeValue::String(text) => flag(text),
            DeValue::Integer(_) | DeValue::Float(_) => flag(&self.text[value.span()]),
            DeValue::Boolean(true) => vec![format!("--{name}").into()],
            DeValue::Boolean(false) => Vec::new(),
            DeValue::Array(all) => {
                let each = all.iter().map(|value| self.flags(name, value)).collect::<Result<Vec<_>>>()?;
                each.concat()
            }
            DeValue::Datetime(_) | DeValue::Table(_) => {
                bail!("{name}: write a text, a number, true, or a list of these")
            }
        })
    }

    /// The position of a byte, as `FILE:LINE`.
    fn at(&self, byte: usize) -> String {
        let line = self.text.bytes().take(byte).filter(|b| *b == b'\n').count() + 1;
        format!("{}:{line}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn applied(text: &str, line: &str) -> Result<String, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        let mut args: Vec<OsString> = line.split(' ').map(Into::into).collect();
        args.extend(["--config".into(), path.clone().into()]);
        let all = with_file(&crate::Cli::command(), args)
            .map_err(|e| format!("{e:#}").replace(path.to_str().unwrap(), "FILE"))?;
        let text: Vec<_> = all.iter().take(all.len() - 2).map(|arg| arg.to_string_lossy()).collect();
        Ok(text.join(" "))
    }

    const RECORD: &str = "[record]\nstream = [\"svid:MU01\", \"svid:MU02\"]\nthreshold = \"150us\"\nno-flight = true\n";

    #[test]
    fn flags_of_the_command_come_from_its_table_and_the_command_line_wins() {
        let all = applied(RECORD, "latpath record -o r").unwrap();
        let from_file = "--stream=svid:MU01 --stream=svid:MU02 --threshold=150us --no-flight -o r";
        let mut words: Vec<_> = all.split(' ').skip(2).collect();
        let mut expected: Vec<_> = from_file.split(' ').collect();
        words.sort_unstable();
        expected.sort_unstable();
        assert_eq!(words, expected);
        for (line, without) in [
            ("latpath record -o r --stream svid:A", "--stream="),
            ("latpath record -o r -s svid:A", "--stream="),
            ("latpath record -o r --threshold 1ms", "--threshold="),
            ("latpath record -o r --capture-worst 3", "--no-flight"),
        ] {
            let all = applied(RECORD, line).unwrap();
            assert!(!all.contains(without) && all.contains("latpath record --"), "{all}");
        }
        assert_eq!(applied(RECORD, "latpath vms").unwrap(), "latpath vms");
        let ping = "[ping.emit]\ncount = 100\n";
        assert_eq!(applied(ping, "latpath ping emit 127.0.0.1").unwrap(), "latpath ping emit --count=100 127.0.0.1");
    }

    #[test]
    fn a_file_that_others_can_write_is_not_obeyed_unasked() {
        let me = nix::unistd::geteuid().as_raw();
        assert!(is_own(me, 0o100_644) && is_own(0, 0o100_600));
        assert!(!is_own(me, 0o100_664) && !is_own(me, 0o100_646) && !is_own(me + 1, 0o100_644));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, why) in [
            ("[record]\n\nstreams = \"svid:MU01\"\n", "FILE:3: record has no --streams"),
            ("[record]\nthreshold = \"soon\"\n", "FILE:2: invalid value 'soon' for '--threshold <TIME>'"),
            ("[record]\nno-flight = true\ncapture-worst = 3\n", "cannot be used with"),
            ("[recrod]\n", "FILE:1: recrod: not a command"),
            ("stream = \"svid:A\"\n", "FILE:1: stream: not a command"),
            ("[record]\nstream = 1979-05-27\n", "FILE:2: stream: write a text"),
            ("[record]\nstream = \n", "FILE:2: "),
        ] {
            let error = applied(text, "latpath record -o r").unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
