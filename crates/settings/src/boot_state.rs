//! Whether a parameter of the kernel's command line is in effect, now and after the next boot.

use crate::boot::NextBoot;
use crate::read::boot_parameter;
use crate::setting::{Read, Setting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a parameter of the kernel's command line has the requested value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BootState {
    /// The running kernel uses the value, and so does the next boot if its command line is known.
    Active,
    /// The running kernel uses another value; the next boot uses this one.
    Pending,
    /// The value is in `/etc/default/grub`, but not in the configuration that GRUB reads, because `update-grub` has not
    /// been run.
    NotGenerated,
    /// Neither the running kernel nor the next boot uses the value.
    Missing,
    /// The running kernel uses the value, but the next boot does not.
    NotKept,
}

impl BootState {
    /// Name of the state, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Pending => "pending: the next start uses it",
            Self::NotGenerated => "in /etc/default/grub, but update-grub was not run",
            Self::Missing => "missing",
            Self::NotKept => "active, but the next start loses it",
        }
    }
}

impl NextBoot {
    /// The state of a parameter of the kernel's command line with respect to a requested value; `None` for other
    /// settings. `running` is the running kernel's command line.
    pub fn state(&self, running: &str, setting: Setting, wanted: &str) -> Option<BootState> {
        let Read::Boot(name) = setting.info().read else { return None };
        let has = |line: &str| setting.is_met(&boot_parameter(line, name), wanted);
        let is_known = self.file.is_some();
        let is_next = is_known && has(&self.line);
        Some(match has(running) {
            true if is_next || !is_known => BootState::Active,
            true => BootState::NotKept,
            false if is_next => BootState::Pending,
            false if self.source.as_ref().is_some_and(|(_, line)| has(line)) => BootState::NotGenerated,
            false => BootState::Missing,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_active_pending_not_generated_missing_or_not_kept() {
        let next = NextBoot {
            file: Some("/boot/grub/grub.cfg".into()),
            line: "root=/dev/sda1 ro isolcpus=2-3 quiet".into(),
            source: Some(("/etc/default/grub".into(), "isolcpus=2-3 nohz_full=2-3".into())),
        };
        let running = "root=/dev/sda1 ro quiet idle=poll threadirqs";
        let state = |setting: Setting, value: &str| next.state(running, setting, value).unwrap();
        assert_eq!(state(Setting::BootIsolcpus, "2-3"), BootState::Pending);
        assert_eq!(state(Setting::BootNohzFull, "2,3"), BootState::NotGenerated);
        assert_eq!(state(Setting::BootRcuNocbs, "2-3"), BootState::Missing);
        assert_eq!(state(Setting::BootIdle, "poll"), BootState::NotKept);
        assert_eq!(next.state(running, Setting::Swappiness, "1"), None);
        let unknown = NextBoot::default();
        assert_eq!(unknown.state(running, Setting::BootThreadirqs, Setting::BARE), Some(BootState::Active));
        assert_eq!(unknown.state(running, Setting::BootIsolcpus, "2"), Some(BootState::Missing));
    }
}
