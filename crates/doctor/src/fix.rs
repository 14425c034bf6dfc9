//! Commands that fix a fault, and commands that undo the fix.

use crate::machine::Machine;
use latpath_model::text::quoted;
use latpath_settings::{Disturbance, NextBoot, Place, Read, Setting};

/// How a fault is fixed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fix {
    pub settings: Vec<Setting>,
    pub commands: Vec<String>,
    pub undo: Vec<String>,
    pub disturbs: Option<Disturbance>,
}

impl Fix {
    /// Creates the fix that sets a setting.
    pub fn set(setting: Setting, at: &Place, old: &str, new: &str) -> Self {
        let info = setting.info();
        if matches!(info.read, Read::Boot(_)) {
            // The commands depend on the machine's boot loader; callers that have the machine use `boot`.
            return Self { settings: vec![setting], disturbs: Some(info.disturbs), ..Self::default() };
        }
        Self {
            settings: vec![setting],
            commands: setting.shell(at, new).into_iter().collect(),
            undo: setting.shell(at, old).into_iter().collect(),
            disturbs: Some(info.disturbs),
        }
    }

    /// Creates the fix that sets a setting by commands of the program that owns it.
    pub fn commands<S: Into<String>>(
        setting: Setting,
        disturbs: Disturbance,
        commands: impl IntoIterator<Item = S>,
    ) -> Self {
        let commands = commands.into_iter().map(Into::into).collect();
        Self { settings: vec![setting], commands, undo: Vec::new(), disturbs: Some(disturbs) }
    }

    /// Adds commands that undo the fix.
    pub fn undone_by<S: Into<String>>(mut self, undo: impl IntoIterator<Item = S>) -> Self {
        self.undo.extend(undo.into_iter().map(Into::into));
        self
    }

    /// Adds the fix of another setting.
    pub fn and(mut self, other: Self) -> Self {
        self.settings.extend(other.settings);
        self.commands.extend(other.commands);
        // The last change is undone first.
        self.undo.splice(0..0, other.undo);
        self.disturbs = worst(self.disturbs, other.disturbs);
        self
    }

    /// Sets parameters of the kernel's command line in the files of this machine's boot loader. `value` is the
    /// setting's value: [`Setting::BARE`] for a parameter without one.
    pub fn boot(machine: &Machine, parameters: &[(Setting, &str)]) -> Self {
        let words: Vec<String> = parameters.iter().filter_map(|(s, value)| s.shell(&Place::All, value)).collect();
        let settings = parameters.iter().map(|(setting, _)| *setting).collect();
        let (commands, undo) = boot_commands(&machine.next_boot, &words);
        Self { settings, commands, undo, disturbs: Some(Disturbance::Reboot) }
    }
}

fn worst(a: Option<Disturbance>, b: Option<Disturbance>) -> Option<Disturbance> {
    let rank = |one: &Option<Disturbance>| match one {
        None => 0,
        Some(Disturbance::Nothing) => 1,
        Some(Disturbance::CpuStall) => 2,
        Some(Disturbance::LinkFlap) => 3,
        Some(Disturbance::VmRestart) => 4,
        Some(Disturbance::Reboot) => 5,
    };
    if rank(&b) > rank(&a) {
        b
    } else {
        a
    }
}

/// Commands that add words, already quoted for a shell, to the kernel's command line, and that remove them.
fn boot_commands(next: &NextBoot, words: &[String]) -> (Vec<String>, Vec<String>) {
    let plain: Vec<String> = words.iter().map(|word| word.trim_matches('\'').to_owned()).collect();
    let line = plain.join(" ");
    let file = next.file.as_deref().unwrap_or_default();
    if file.contains("/loader/entries/") {
        return (
            vec![format!("grubby --update-kernel=ALL --args={}", quoted(&line))],
            vec![format!("grubby --update-kernel=ALL --remove-args={}", quoted(&line))],
        );
    }
    if file == "/etc/kernel/cmdline" {
        let edit = quoted(&format!("s|$| {line}|"));
        let back = quoted(&format!("s| {line}$||"));
        let install = "kernel-install add \"$(uname -r)\" \"/boot/vmlinuz-$(uname -r)\"";
        return (
            vec![format!("sed -i {edit} {file} && {install}")],
            vec![format!("sed -i {back} {file} && {install}")],
        );
    }
    let names: Vec<&str> = plain.iter().map(|word| word.split('=').next().unwrap_or(word)).collect();
    let path = quoted(&format!("/etc/default/grub.d/latpath-{}.cfg", names.join("-")));
    let text = quoted(&format!("GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT {line}\""));
    (
        vec![format!("mkdir -p /etc/default/grub.d && echo {text} > {path} && update-grub")],
        vec![format!("rm {path} && update-grub")],
    )
}
