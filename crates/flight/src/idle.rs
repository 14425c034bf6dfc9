//! Names of the idle states of each CPU, from its driver: their numbers differ between machines.

use latpath_model::text::{cut, printable};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Maximum number of states of a CPU. The kernel has at most ten (include/linux/cpuidle.h).
pub(crate) const MAX_STATES: usize = 16;
/// Maximum length of a name, bytes. Names in the kernel have at most sixteen.
const MAX_NAME: usize = 32;
/// Maximum number of CPUs.
const MAX_CPUS: usize = 4096;

/// The idle states of a machine's CPUs, e.g. `POLL`, `C1E`, `C6`, `haltpoll`, `WFI`. Empty if the kernel has no cpuidle
/// driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleStates {
    /// Names by state, for this CPU and the following ones up to the next entry. The name of an unreadable state is
    /// empty.
    pub(crate) from: BTreeMap<u32, Vec<String>>,
}

impl IdleStates {
    /// Reads the states from this machine's kernel, in some 10 µs per state and CPU.
    pub fn of_this_machine() -> Self {
        Self::read(Path::new("/sys/devices/system/cpu"))
    }

    /// Reads the states from a directory with the layout of /sys/devices/system/cpu. Unreadable states have no name.
    pub fn read(directory: &Path) -> Self {
        let Ok(entries) = directory.read_dir() else { return Self::default() };
        let number = |name: &str| {
            let digits = name.strip_prefix("cpu")?;
            digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
        };
        let mut cpus: Vec<u32> =
            entries.flatten().filter_map(|e| number(e.file_name().to_str()?)).take(MAX_CPUS).collect();
        cpus.sort_unstable();
        Self::named(cpus.into_iter().map(|cpu| (cpu, states(&directory.join(format!("cpu{cpu}/cpuidle"))))))
    }

    /// Creates the table from each CPU's names by state, in ascending order of CPUs.
    pub fn named(cpus: impl IntoIterator<Item = (u32, Vec<String>)>) -> Self {
        let mut from: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        let mut last = Vec::new();
        for (cpu, names) in cpus {
            if names != last {
                from.insert(cpu, names.clone());
                last = names;
            }
        }
        Self { from }
    }

    /// The name of a CPU's state, if known.
    pub fn name(&self, cpu: u32, state: u32) -> Option<&str> {
        let (_, names) = self.from.range(..=cpu).next_back()?;
        names.get(usize::try_from(state).ok()?).map(String::as_str).filter(|name| !name.is_empty())
    }
}

/// Reads the names of a CPU's states.
fn states(cpuidle: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for state in 0..MAX_STATES {
        match File::open(cpuidle.join(format!("state{state}/name"))) {
            Ok(file) => names.push(name(file)),
            Err(e) if e.kind() == ErrorKind::NotFound => break,
            Err(_) => names.push(String::new()),
        }
    }
    names
}

/// Reads a name, sanitised for tables.
fn name(file: File) -> String {
    let mut bytes = Vec::new();
    match file.take(MAX_NAME as u64).read_to_end(&mut bytes) {
        Ok(_) => cut(printable(String::from_utf8_lossy(&bytes).trim()).trim(), MAX_NAME).into(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(cpus: &[(&str, &[&str])]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (cpu, states) in cpus {
            fs::create_dir_all(directory.path().join(cpu)).unwrap();
            for (state, name) in states.iter().enumerate() {
                let state = directory.path().join(format!("{cpu}/cpuidle/state{state}"));
                fs::create_dir_all(&state).unwrap();
                fs::write(state.join("name"), name).unwrap();
            }
        }
        directory
    }

    fn read(cpus: &[(&str, &[&str])]) -> IdleStates {
        IdleStates::read(machine(cpus).path())
    }

    #[test]
    fn states_have_their_drivers_names_kept_once_where_cpus_are_alike() {
        let (large, small): (&[&str], &[&str]) = (&["POLL\n", "C1E\n", "C6\n"], &["POLL\n", "C1\n"]);
        let cpus = [("cpu0", large), ("cpu1", large), ("cpu2", small), ("cpu10", small), ("cpufreq", small)];
        let states = read(&cpus);
        assert_eq!((states.name(0, 0), states.name(1, 1), states.name(1, 2)), (Some("POLL"), Some("C1E"), Some("C6")));
        assert_eq!((states.name(2, 1), states.name(10, 1), states.name(10, 2)), (Some("C1"), Some("C1"), None));
        assert_eq!(states.from.keys().collect::<Vec<_>>(), [&0, &2]);
    }

    #[test]
    fn without_cpuidle_no_state_has_a_name() {
        assert_eq!(IdleStates::read(Path::new("/nowhere/at/all")), IdleStates::default());
        assert_eq!(read(&[("cpu0", &[]), ("cpu1", &[])]), IdleStates::default());
        let offline = read(&[("cpu0", &["C1"]), ("cpu1", &[]), ("cpu2", &["C1"])]);
        assert_eq!((offline.name(0, 0), offline.name(1, 0), offline.name(2, 0)), (Some("C1"), None, Some("C1")));
        assert_eq!(offline.name(0, u32::MAX), None);
    }

    #[test]
    fn names_cannot_control_or_fill_the_terminal() {
        let long = "x".repeat(100_000);
        let states = read(&[("cpu0", &["\x1b[2J\u{202e}C6\n\n", &long, "\n", &"é".repeat(31), "a\nb"])]);
        let names: Vec<_> = (0..5).map(|state| states.name(0, state)).collect();
        let cut = "é".repeat(16);
        assert!(names[0].unwrap().starts_with("?[2J") && !names[0].unwrap().contains(char::is_control));
        assert_eq!(names[1..], [Some(&long[..32]), None, Some(&cut), Some("a?b")]);
        let many: Vec<String> = (0..40).map(|n| format!("C{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let states = read(&[("cpu0", &many)]);
        assert_eq!((states.name(0, 15), states.name(0, 16)), (Some("C15"), None));
    }

    #[test]
    fn unreadable_files_have_no_name() {
        let directory = machine(&[("cpu0", &["POLL", "C1"]), ("cpu99999999999", &["C1"])]);
        let state = directory.path().join("cpu0/cpuidle/state0/name");
        fs::remove_file(&state).unwrap();
        fs::create_dir(&state).unwrap();
        let states = IdleStates::read(directory.path());
        assert_eq!((states.name(0, 0), states.name(0, 1)), (None, Some("C1")));
    }
}
