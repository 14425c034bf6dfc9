//! Parameters of the kernel's command line at the machine's next boot, from the boot loader's files.
//!
//! The files are read in this order: `/etc/kernel/cmdline` (systemd-boot, unified kernel images), the entries of the
//! Boot Loader Specification below `/boot/loader/entries`, and GRUB's `/boot/grub/grub.cfg`. `/etc/default/grub`
//! contains the parameters that the next `update-grub` will use.

use crate::read::boot_parameter;
use crate::setting::{Read, Setting};
use latpath_linux::proc::Root;
use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of entries that are read from a directory.
const MAX: usize = 1024;
/// Directories with entries of the Boot Loader Specification.
const ENTRIES: [&str; 3] = ["boot/loader/entries", "efi/loader/entries", "boot/efi/loader/entries"];
/// Paths of GRUB's environment, which names the entry to boot, and may contain variables used by the entries.
const ENVIRONMENTS: [&str; 2] = ["boot/grub2/grubenv", "boot/grub/grubenv"];
/// Paths of GRUB's configuration.
const GRUB: [&str; 2] = ["boot/grub/grub.cfg", "boot/grub2/grub.cfg"];

/// The kernel's command line at the next boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextBoot {
    /// The file that contains the command line; `None` if neither a boot loader's file nor `/etc/default/grub` can be
    /// read.
    pub file: Option<String>,
    /// The command line.
    pub line: String,
    /// File from which the boot loader's configuration is generated (`/etc/default/grub`), and the parameters in it;
    /// `None` if it cannot be read.
    pub source: Option<(String, String)>,
}

/// A parameter that differs between the running kernel and the next boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingParameter {
    /// The parameter's setting.
    pub setting: Setting,
    /// Its current value, in the form of [`Setting`]: [`Setting::ABSENT`] if it is not set.
    pub now: String,
    /// Its value after the next boot.
    pub next: String,
}

impl fmt::Display for PendingParameter {
    /// E.g. `+isolcpus=2-3`, `-nosmt`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Read::Boot(name) = self.setting.info().read else { return Ok(()) };
        let (sign, value) = if self.next == Setting::ABSENT { ("-", &self.now) } else { ("+", &self.next) };
        match value.as_str() {
            Setting::BARE => write!(f, "{sign}{name}"),
            value => write!(f, "{sign}{name}={value}"),
        }
    }
}

impl NextBoot {
    /// Reads the boot loader's files below a root directory.
    pub fn read(root: &Root) -> Self {
        let source = default_grub(root);
        let (file, line) = kernel_install(root).or_else(|| entry(root)).or_else(|| grub(root)).unzip();
        // Without a file of the boot loader, use `/etc/default/grub`: GRUB's file has not been generated yet, or only
        // root can read it.
        let (file, line) = match (file, &source) {
            (None, Some((path, line))) => (Some(path.clone()), line.clone()),
            (file, _) => (file, line.unwrap_or_default()),
        };
        Self { file, line, source }
    }

    /// Parameters of the settings table that differ between the running kernel's command line and the next one.
    pub fn pending(&self, running: &str) -> Vec<PendingParameter> {
        if self.file.is_none() {
            Vec::new()
        } else {
            differing(running, &self.line)
        }
    }

    /// Parameters that are in `/etc/default/grub`, but not yet in the configuration that GRUB reads, because
    /// `update-grub` has not been run.
    pub fn ungenerated(&self) -> Vec<PendingParameter> {
        let Some((path, source)) = &self.source else { return Vec::new() };
        if self.file.as_ref() == Some(path) {
            return Vec::new();
        }
        let mut all = differing(&self.line, source);
        // The generated file also contains parameters from elsewhere, so a parameter missing from the source is not a
        // difference.
        all.retain(|one| one.next != Setting::ABSENT);
        all
    }
}

fn differing(now: &str, next: &str) -> Vec<PendingParameter> {
    let one = |setting: &Setting| {
        let Read::Boot(name) = setting.info().read else { return None };
        let (now, next) = (boot_parameter(now, name), boot_parameter(next, name));
        (now != next).then_some(PendingParameter { setting: *setting, now, next })
    };
    Setting::ALL.iter().filter_map(one).collect()
}

fn kernel_install(root: &Root) -> Option<(String, String)> {
    // GRUB on Debian does not read this file, so it counts only if systemd-boot or unified kernel images are used.
    let is_used = root.path("boot/efi/EFI/systemd").exists() || root.path("efi/EFI/systemd").exists() || {
        !GRUB.iter().any(|file| root.path(file).exists())
    };
    let text = root.text("etc/kernel/cmdline").filter(|_| is_used)?;
    Some(("/etc/kernel/cmdline".into(), text.split_whitespace().collect::<Vec<_>>().join(" ")))
}

/// Variables of GRUB's environment.
fn environment(root: &Root) -> BTreeMap<String, String> {
    let text = ENVIRONMENTS.iter().find_map(|file| root.text(file)).unwrap_or_default();
    let pairs = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.into(), value.into())).collect()
}

/// The entry named in GRUB's environment, or else the last one in name order, which has the newest kernel.
fn entry(root: &Root) -> Option<(String, String)> {
    let variables = environment(root);
    ENTRIES.iter().find_map(|folder| {
        let mut names = root.names(folder, MAX);
        names.retain(|name| name.ends_with(".conf") && !name.contains("rescue"));
        names.sort();
        let saved = variables.get("saved_entry").map(|entry| format!("{entry}.conf"));
        let name = saved.filter(|saved| names.contains(saved)).or(names.pop())?;
        let text = root.text(&format!("{folder}/{name}"))?;
        let options = text.lines().filter_map(|line| line.strip_prefix("options"));
        let line: Vec<&str> = options.map(str::trim).collect();
        Some((format!("/{folder}/{name}"), expanded(&line.join(" "), &variables)))
    })
}

/// The first entry in GRUB's configuration, with its variables replaced.
fn grub(root: &Root) -> Option<(String, String)> {
    GRUB.iter().find_map(|file| {
        let mut variables = environment(root);
        for line in root.text(file)?.lines() {
            let line = line.trim();
            if let Some((key, value)) = line.strip_prefix("set ").and_then(|set| set.split_once('=')) {
                variables.insert(key.into(), unquoted(value).into());
            }
            let mut words = line.split_whitespace();
            if words.next().is_some_and(|word| matches!(word, "linux" | "linux16" | "linuxefi")) {
                let parameters: Vec<&str> = words.skip(1).collect();
                return Some((format!("/{file}"), expanded(&parameters.join(" "), &variables)));
            }
        }
        None
    })
}

/// `/etc/default/grub` and the files in `/etc/default/grub.d`: the parameters of a normal boot.
fn default_grub(root: &Root) -> Option<(String, String)> {
    const FILE: &str = "etc/default/grub";
    let mut texts = vec![root.text(FILE)?];
    let mut more = root.names("etc/default/grub.d", MAX);
    more.retain(|name| name.ends_with(".cfg"));
    more.sort();
    texts.extend(more.iter().filter_map(|name| root.text(&format!("etc/default/grub.d/{name}"))));
    let mut variables = BTreeMap::new();
    for (key, value) in texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.trim().split_once('=')) {
        let (key, is_added) = key.strip_suffix('+').map_or((key, false), |key| (key, true));
        if key.starts_with("GRUB_") {
            let value = expanded(unquoted(value), &variables);
            let known = variables.entry(key.to_owned()).or_insert_with(String::new);
            *known = if is_added { format!("{known}{value}") } else { value };
        }
    }
    let of = |key: &str| variables.get(key).cloned().unwrap_or_default();
    let line = format!("{} {}", of("GRUB_CMDLINE_LINUX"), of("GRUB_CMDLINE_LINUX_DEFAULT"));
    Some((format!("/{FILE}"), line.trim().into()))
}

/// A shell word, without enclosing quotes or a trailing comment.
fn unquoted(value: &str) -> &str {
    let value = value.trim();
    match value.chars().next() {
        Some(quote @ ('"' | '\'')) => value[1..].split(quote).next().unwrap_or_default(),
        _ => value.split_whitespace().next().unwrap_or_default(),
    }
}

/// Replaces `$name`, `${name}` and `${name:+...}` with their values; unknown variables are removed.
fn expanded(text: &str, variables: &BTreeMap<String, String>) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        out += before.strip_suffix('\\').unwrap_or(before);
        let (body, next) = match after.strip_prefix('{') {
            Some(braced) => braced.split_once('}').unwrap_or((braced, "")),
            None => after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len())),
        };
        let end = body.find(|c| !is_name(c)).unwrap_or(body.len());
        let value = variables.get(&body[..end]).map_or("", String::as_str);
        out += value;
        // `${name:+$name }` adds a separator after a value that is not empty.
        if body[end..].starts_with(":+") && !value.is_empty() {
            out.push(' ');
        }
        rest = next;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, NextBoot) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let next = NextBoot::read(&Root::of(dir.path()));
        (dir, next)
    }

    fn texts(all: &[PendingParameter]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }

    const GRUB_CFG: &str = "set timeout=5\nset tuned_params=\"skew_tick=1 isolcpus=managed_irq,domain,2-3\"\n\
        menuentry 'Debian' {\n\tlinux\t/vmlinuz-6.1 root=/dev/sda1 ro quiet $tuned_params\n}\n\
        menuentry 'old' {\n\tlinux\t/vmlinuz-5.10 root=/dev/sda1 isolcpus=7\n}\n";

    #[test]
    fn parameters_of_grubs_first_entry_are_pending_until_the_machine_starts_again() {
        let (_dir, next) = machine(&[("boot/grub/grub.cfg", GRUB_CFG)]);
        assert_eq!(next.file.as_deref(), Some("/boot/grub/grub.cfg"));
        let pending = next.pending("BOOT_IMAGE=/vmlinuz-6.1 root=/dev/sda1 ro quiet nosmt skew_tick=1");
        assert_eq!(texts(&pending), ["+isolcpus=managed_irq,domain,2-3", "-nosmt"]);
        assert!(next.pending("skew_tick=1 isolcpus=managed_irq,domain,2-3").is_empty());
    }

    #[test]
    fn what_update_grub_has_not_taken_over_is_reported() {
        let grub = "GRUB_CMDLINE_LINUX=\"\" # none\nGRUB_CMDLINE_LINUX_DEFAULT='quiet nohz_full=2-3'\n";
        let more = "GRUB_CMDLINE_LINUX_DEFAULT=\"${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }\\$tuned_params\"\n";
        let files =
            [("boot/grub/grub.cfg", GRUB_CFG), ("etc/default/grub", grub), ("etc/default/grub.d/00_t.cfg", more)];
        let (_dir, next) = machine(&files);
        assert_eq!(texts(&next.ungenerated()), ["+nohz_full=2-3"]);
    }

    #[test]
    fn entries_of_the_boot_loader_specification_have_variables() {
        let files = [
            ("boot/loader/entries/a-6.1.conf", "title A\noptions root=x isolcpus=1\n"),
            ("boot/loader/entries/a-6.12.conf", "title B\noptions root=x $tuned_params\n"),
            (
                "boot/grub2/grubenv",
                "# GRUB Environment Block\nsaved_entry=a-6.12\ntuned_params=rcu_nocbs=2-3 idle=poll\n",
            ),
        ];
        let (_dir, next) = machine(&files);
        assert_eq!(texts(&next.pending("root=x")), ["+rcu_nocbs=2-3", "+idle=poll"]);
    }

    #[test]
    fn a_command_line_of_kernel_install_counts_without_grub() {
        let (_dir, next) = machine(&[("etc/kernel/cmdline", "root=x\n nosmt\n")]);
        assert_eq!(texts(&next.pending("root=x")), ["+nosmt"]);
        let (_dir, next) = machine(&[("etc/kernel/cmdline", "root=x nosmt"), ("boot/grub/grub.cfg", GRUB_CFG)]);
        assert_eq!(next.file.as_deref(), Some("/boot/grub/grub.cfg"));
    }

    #[test]
    fn without_files_nothing_is_pending() {
        let (_dir, next) = machine(&[]);
        assert_eq!((next.file.clone(), next.pending("nosmt")), (None, vec![]));
    }

    #[test]
    fn strange_variables_end() {
        let none = BTreeMap::new();
        for text in ["$", "${", "${a", "a$b$", "\\$x y", "${a:+", "$$"] {
            assert!(expanded(text, &none).len() <= text.len(), "{text}");
        }
    }
}
