//! The interfaces in a capture file; each saw packets at a different point.

use std::convert::Infallible;
use std::str::FromStr;

/// An interface of a capture. A pcap file has a single one, without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Index in its section, from 0: tshark's `frame.interface_id`.
    pub number: usize,
    /// Name, if the file has one.
    pub name: Option<String>,
    /// Link type (pcap-linktype(7)).
    pub link: u16,
}

impl std::fmt::Display for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.number),
        }
    }
}

/// Choice of a file's interface: its name or number, or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceChoice {
    /// All interfaces.
    All,
    /// The interface with this name or number.
    One(String),
}

impl FromStr for InterfaceChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "*" { Self::All } else { Self::One(text.into()) })
    }
}

/// Separator between a file's name and the choice of an interface.
const OPTION: &str = ",interface=";

impl InterfaceChoice {
    /// Splits `FILE` or `FILE,interface=NAME`.
    pub fn split(text: &str) -> (&str, Option<Self>) {
        match text.rsplit_once(OPTION) {
            Some((file, choice)) if !file.is_empty() && !choice.is_empty() => (file, choice.parse().ok()),
            _ => (text, None),
        }
    }
}

/// Error: several interfaces have packets, and none was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeveralInterfaces;

/// Selects the packets of one interface of a file: the chosen one, otherwise any whose name is among `names`, otherwise
/// the only one with packets.
#[derive(Clone, Debug)]
pub struct Selection {
    choice: Option<InterfaceChoice>,
    names: Vec<String>,
    /// Decisions, by the interface's index in the file.
    taken: Vec<Option<bool>>,
    only: Option<usize>,
}

impl Selection {
    /// Creates a selection by `choice`; if that is `None`, by `names`.
    pub fn new(choice: Option<InterfaceChoice>, names: Vec<String>) -> Self {
        Self { choice, names, taken: Vec::new(), only: None }
    }

    /// Whether packets of the interface with index `at` are selected.
    ///
    /// # Errors
    /// Several interfaces have packets, and none is chosen or named.
    pub fn takes(&mut self, interfaces: &[Interface], at: usize) -> Result<bool, SeveralInterfaces> {
        if self.taken.len() <= at {
            self.taken.resize(interfaces.len().max(at + 1), None);
        }
        if let Some(known) = self.taken[at] {
            return Ok(known);
        }
        let takes = self.decide(interfaces, at)?;
        self.taken[at] = Some(takes);
        Ok(takes)
    }

    fn decide(&mut self, interfaces: &[Interface], at: usize) -> Result<bool, SeveralInterfaces> {
        let Some(interface) = interfaces.get(at) else { return Ok(true) };
        match &self.choice {
            Some(InterfaceChoice::All) => return Ok(true),
            Some(InterfaceChoice::One(text)) => {
                let by_name = |i: &Interface| i.name.as_ref() == Some(text);
                let is_number = !interfaces.iter().any(by_name) && text.parse() == Ok(interface.number);
                return Ok(by_name(interface) || is_number);
            }
            None => {}
        }
        let is_named = |i: &Interface| i.name.as_ref().is_some_and(|name| self.names.contains(name));
        match self.only {
            None if is_named(interface) => Ok(true),
            None if interfaces.iter().any(is_named) => Ok(false),
            None => {
                self.only = Some(at);
                Ok(true)
            }
            Some(_) => Err(SeveralInterfaces),
        }
    }
}

/// Names of the interfaces for errors, e.g. `csin, vnet0`.
pub(super) fn list(interfaces: &[Interface]) -> String {
    const MAX: usize = 20;
    let mut names: Vec<String> = interfaces.iter().take(MAX).map(ToString::to_string).collect();
    if interfaces.len() > MAX {
        names.push("…".into());
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces(names: &[&str]) -> Vec<Interface> {
        let name = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
        names.iter().enumerate().map(|(number, n)| Interface { number, name: name(n), link: 1 }).collect()
    }

    #[test]
    fn the_named_interface_is_read_and_without_a_name_only_one_may_have_packets() {
        let takes = |choice: Option<&str>, names: &[&str], of: &[&str]| {
            let choice = choice.map(|c| c.parse().unwrap());
            let mut selection = Selection::new(choice, names.iter().map(ToString::to_string).collect());
            let list = interfaces(of);
            (0..of.len()).map(|at| selection.takes(&list, at).ok()).collect::<Vec<_>>()
        };
        let (yes, no, error) = (Some(true), Some(false), None);
        assert_eq!(takes(None, &["vnet0"], &["csin", "vnet0"]), [no, yes]);
        assert_eq!(takes(None, &["eth0"], &["csin", "vnet0"]), [yes, error]);
        assert_eq!(takes(None, &["eth0"], &["csin"]), [yes]);
        assert_eq!(takes(Some("csin"), &["vnet0"], &["csin", "vnet0"]), [yes, no]);
        assert_eq!(takes(Some("1"), &[], &["", ""]), [no, yes]);
        assert_eq!(takes(Some("1"), &[], &["1", "a"]), [yes, no], "a name before a number");
        assert_eq!(takes(Some("*"), &[], &["", ""]), [yes, yes]);
    }

    #[test]
    fn the_choice_follows_the_file_name() {
        assert_eq!(InterfaceChoice::split("a,b.pcap"), ("a,b.pcap", None));
        let one = |name: &str| Some(InterfaceChoice::One(name.into()));
        assert_eq!(InterfaceChoice::split("a.pcapng,interface=vnet0"), ("a.pcapng", one("vnet0")));
        assert_eq!(InterfaceChoice::split("a.pcapng,interface=*"), ("a.pcapng", Some(InterfaceChoice::All)));
    }
}
