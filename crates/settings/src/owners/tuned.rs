//! tuned: the settings in its active profiles and in the profiles that they include (tuned.conf(5)).

use super::{Owner, Subject};
use crate::setting::Setting;
use latpath_linux::proc::Root;
use std::collections::BTreeMap;

/// Profile directories, in order of descending precedence.
const FOLDERS: [&str; 4] = ["etc/tuned/profiles", "etc/tuned", "usr/lib/tuned/profiles", "usr/lib/tuned"];
/// Maximum number of profiles, including included ones.
const MAX_PROFILES: usize = 32;

/// A line of a profile.
#[derive(Clone, Debug)]
struct Line {
    file: String,
    value: String,
}

/// The merged lines of all profiles, by plugin instance and option.
#[derive(Default)]
struct Profile {
    lines: BTreeMap<(String, String), Line>,
    variables: BTreeMap<String, String>,
    seen: Vec<String>,
}

pub(super) fn claims(root: &Root) -> Vec<(Subject, Owner)> {
    let active = root.text("etc/tuned/active_profile").unwrap_or_default();
    let mut profile = Profile::default();
    active.split_whitespace().for_each(|name| profile.add(root, name));
    let mut claims = Vec::new();
    for ((instance, option), line) in &profile.lines {
        let of_instance = |key: &str| profile.lines.get(&(instance.clone(), key.into())).map(|l| l.value.as_str());
        if of_instance("enabled").is_some_and(|value| matches!(value, "0" | "false")) {
            continue;
        }
        let value = profile.expanded(&line.value);
        let devices = of_instance("devices").unwrap_or_default();
        for (subject, value) in subjects(of_instance("type").unwrap_or(instance), option, &value, devices) {
            let owner = Owner {
                program: "tuned".into(),
                file: Some(line.file.clone()),
                value: Some(value),
                note: format!(
                    "tuned sets it whenever it applies profile {}: change it in a profile of your own that includes this one",
                    active.trim()
                ),
            };
            claims.push((subject, owner));
        }
    }
    claims
}

impl Profile {
    /// Adds a profile's lines after those of the profiles that it includes, so that the profile's own take effect.
    fn add(&mut self, root: &Root, name: &str) {
        if self.seen.len() >= MAX_PROFILES || self.seen.iter().any(|seen| seen == name) || name.contains('/') {
            return;
        }
        self.seen.push(name.into());
        let file = |folder: &&str| {
            let path = format!("{folder}/{name}/tuned.conf");
            Some((path.clone(), root.text(&path)?))
        };
        let Some((path, text)) = FOLDERS.iter().find_map(file) else { return };
        for (section, key, value) in sections(&text) {
            if section == "main" && key == "include" {
                value.split([',', ';']).map(str::trim).for_each(|name| self.add(root, name.trim_start_matches('-')));
            }
        }
        for (section, key, value) in sections(&text) {
            match (section, key) {
                ("main", _) => {}
                ("variables", "include") => {
                    let text = root.text(value.trim_start_matches('/')).unwrap_or_default();
                    let pairs = text.lines().filter(|line| !line.starts_with('#')).filter_map(|l| l.split_once('='));
                    self.variables.extend(pairs.map(|(key, value)| (key.trim().into(), value.trim().into())));
                }
                ("variables", _) => {
                    self.variables.insert(key.into(), value.into());
                }
                _ => {
                    let line = Line { file: format!("/{path}"), value: value.into() };
                    self.lines.insert((section.into(), key.into()), line);
                }
            }
        }
    }

    /// Replaces variables; function calls are left as they are.
    fn expanded(&self, value: &str) -> String {
        let mut value = value.to_owned();
        // A variable's value may contain other variables.
        for _ in 0..8 {
            for (name, replacement) in &self.variables {
                value = value.replace(&format!("${{{name}}}"), replacement);
            }
            if !value.contains("${") || value.len() > 4096 {
                break;
            }
        }
        value
    }
}

/// Section, key and value of each line.
fn sections(text: &str) -> Vec<(&str, &str, &str)> {
    let mut section = "";
    let mut all = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => section = name,
            None => all.extend(line.split_once('=').map(|(key, value)| (section, key.trim(), value.trim()))),
        }
    }
    all
}

/// The subjects that a plugin's option sets, each with its value.
fn subjects(plugin: &str, option: &str, value: &str, devices: &str) -> Vec<(Subject, String)> {
    let one = |subject: Subject| vec![(subject, value.to_owned())];
    let all = |settings: &[Setting], at: &str| {
        settings.iter().map(|setting| (Subject::Setting(*setting, at.to_owned()), value.to_owned())).collect()
    };
    match (plugin, option) {
        ("sysctl", name) => one(Subject::Sysctl(name.replace('/', "."))),
        ("sysfs", path) if path.starts_with('/') => one(Subject::File(path.trim_start_matches('/').into())),
        ("bootloader", key) if key.starts_with("cmdline") => boot(value),
        ("scheduler", key) if key.starts_with("group.") => of_group(value).map_or_else(Vec::new, |s| all(&[s], "")),
        ("net", _) => {
            let settings = of_net(option);
            let names: Vec<&str> = devices.split([',', ' ']).filter(|name| !name.is_empty()).collect();
            let names = if names.is_empty() { vec![""] } else { names };
            names.into_iter().flat_map(|name| all(settings, name.trim_end_matches('*')) as Vec<_>).collect()
        }
        _ => all(of_plugin(plugin, option), ""),
    }
}

/// Settings affected by an option that contains neither their name nor their path.
fn of_plugin(plugin: &str, option: &str) -> &'static [Setting] {
    match (plugin, option) {
        ("vm", "transparent_hugepages" | "transparent_hugepage") => &[Setting::TransparentHugepages],
        ("vm", "transparent_hugepage.defrag") => &[Setting::HugepageDefrag],
        ("cpu", "governor") => &[Setting::CpuGovernor],
        ("cpu", "energy_performance_preference") => &[Setting::CpuEnergyPreference],
        ("cpu", "force_latency") => &[Setting::CpuLatencyLimit],
        ("cpu", "no_turbo") => &[Setting::IntelNoTurbo],
        ("cpu", "boost") => &[Setting::CpuBoost],
        ("cpu", "pm_qos_resume_latency_us") => &[Setting::CpuResumeLatency],
        ("scheduler", "isolated_cores") => &[Setting::IrqAffinity, Setting::DefaultIrqAffinity],
        ("scheduler", "default_irq_smp_affinity") => &[Setting::DefaultIrqAffinity],
        ("irq", "affinity") => &[Setting::IrqAffinity],
        ("selinux", "avc_cache_threshold") => &[Setting::SelinuxAvc],
        _ => &[],
    }
}

fn of_net(option: &str) -> &'static [Setting] {
    match option {
        "features" => &[Setting::DeviceGro, Setting::DeviceLro, Setting::DeviceTso, Setting::DeviceGso],
        "coalesce" => &[Setting::DeviceCoalescing],
        "pause" => &[Setting::DevicePause],
        "ring" => &[Setting::DeviceRings],
        "channels" => &[Setting::DeviceChannels],
        "mtu" => &[Setting::DeviceMtu],
        "txqueuelen" => &[Setting::DeviceQueueLength],
        _ => &[],
    }
}

/// The setting for the priority of a group's threads, from the pattern of their names: `0:f:2:*:^\[?ksoftirqd`.
fn of_group(value: &str) -> Option<Setting> {
    let pattern = value.rsplit(':').next()?;
    [
        ("ksoftirqd", Setting::KsoftirqdPriority),
        ("ktimers", Setting::KtimersPriority),
        ("rcuc", Setting::RcucPriority),
        ("irq/", Setting::IrqThreadPriority),
    ]
    .into_iter()
    .find_map(|(name, setting)| pattern.contains(name).then_some(setting))
}

/// Parameters of the kernel's command line: `+isolcpus=2-3 nosoftlockup`.
fn boot(value: &str) -> Vec<(Subject, String)> {
    let words = value.trim_start_matches(['+', '-']).split_whitespace();
    words.map(|word| (Subject::Boot(word.split('=').next().unwrap_or(word).into()), word.to_owned())).collect()
}
