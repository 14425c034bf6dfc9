//! Machines as given by the user: `guest0=ssh:root@guest`, `relay@b=vsock:42:7000`.

use latpath_agent::Address;
use latpath_model::HOST;
use std::{collections::BTreeMap, str::FromStr};

/// Maximum length of a machine's name, bytes.
const MAX_NAME: usize = 32;

/// A machine of a run, as given by the user: `NAME[@HYPERVISOR]=ADDRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedMachine {
    /// Name of the machine.
    pub name: String,
    /// Name of the machine on which it runs, if it is a guest of a machine other than this host.
    pub hypervisor: Option<String>,
    /// Address of its agent.
    pub address: Address,
}

impl NamedMachine {
    /// The part before the address.
    pub fn names(&self) -> String {
        match &self.hypervisor {
            Some(hypervisor) => format!("{}@{hypervisor}", self.name),
            None => self.name.clone(),
        }
    }
}

impl FromStr for NamedMachine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (names, address) = text.split_once('=').ok_or("write NAME=ADDRESS, e.g. guest0=ssh:root@guest")?;
        let (name, hypervisor) = match names.split_once('@') {
            Some((name, hypervisor)) => (name, Some(hypervisor)),
            None => (names, None),
        };
        let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(letter) {
            return Err(format!("{name:?}: a machine's name has 1 to {MAX_NAME} letters, digits, - _ or ."));
        }
        // For a guest of this host, the hypervisor need not be named.
        let hypervisor = hypervisor.filter(|name| *name != HOST).map(str::to_owned);
        Ok(Self { name: name.into(), hypervisor, address: address.parse().map_err(|e| format!("{e}"))? })
    }
}

/// For each guest that runs on another machine of the run, the name of that machine.
///
/// # Errors
/// If that machine is not among these, a guest would run on itself, or two machines have the same name. The message
/// begins with the names.
pub fn hypervisors(machines: &[NamedMachine]) -> Result<BTreeMap<String, String>, String> {
    let of = |one: &NamedMachine| Some((one.name.clone(), one.hypervisor.clone()?));
    let all: BTreeMap<String, String> = machines.iter().filter_map(of).collect();
    let is_twice = |(at, one): &(usize, &NamedMachine)| machines[..*at].iter().any(|other| other.name == one.name);
    if let Some((_, one)) = machines.iter().enumerate().find(is_twice) {
        return Err(format!("{}: this machine is named twice", one.names()));
    }
    for (guest, hypervisor) in &all {
        if !machines.iter().any(|one| one.name == *hypervisor) {
            return Err(format!("{guest}@{hypervisor}: there is no machine {hypervisor:?}: also name it"));
        }
        // Without a cycle, a chain has at most as many machines as there are.
        let mut chain = std::iter::successors(Some(hypervisor), |machine| all.get(*machine));
        if chain.nth(all.len()).is_some() {
            return Err(format!("{guest}@{hypervisor}: {guest:?} cannot run on itself"));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(texts: &[&str]) -> Result<Vec<NamedMachine>, String> {
        texts.iter().map(|text| text.parse()).collect()
    }

    #[test]
    fn a_guest_of_this_host_needs_no_name_of_its_machine() {
        let machines = all(&["b=ssh:root@b", "relay@b=vsock:42:7000", "own@host=vsock:43:7000"]).unwrap();
        let names: Vec<_> = machines.iter().map(|one| (one.name.as_str(), one.hypervisor.as_deref())).collect();
        assert_eq!(names, [("b", None), ("relay", Some("b")), ("own", None)]);
        assert_eq!(hypervisors(&machines).unwrap(), BTreeMap::from([("relay".into(), "b".into())]));
    }

    #[test]
    fn wrong_names_are_refused() {
        for text in ["relay", "=vsock:42:7000", "a b=vsock:42:7000", "relay@b=nowhere:1"] {
            assert!(text.parse::<NamedMachine>().is_err(), "{text}");
        }
        for (texts, part) in [
            (&["relay@b=vsock:42:7000"][..], "relay@b: there is no machine \"b\""),
            (&["a@b=vsock:3:1", "b@a=vsock:4:1"], "cannot run on itself"),
            (&["a@a=vsock:3:1"], "cannot run on itself"),
            (&["a=vsock:3:1", "b=vsock:4:1", "a@b=vsock:5:1"], "a@b: this machine is named twice"),
        ] {
            let error = hypervisors(&all(texts).unwrap()).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
