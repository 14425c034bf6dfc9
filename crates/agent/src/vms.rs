//! Virtual machines of an agent's machine, sent before its probe is attached, if the host requests them.

use crate::message::{printable, MAX_NAME};
use latpath_model::text::{self, cut};
use latpath_vms::Vm;
use serde_json::Value;

/// Maximum number of virtual machines that an agent sends, and that a host keeps.
const MAX_VMS: usize = 1024;
/// Maximum size of the JSON of one virtual machine, bytes: some hundreds of threads.
const MAX_VM_BYTES: usize = 128 << 10;
/// Maximum size of the JSON of all virtual machines, bytes.
const MAX_BYTES: usize = 2 << 20;
/// Message size above which the next virtual machine starts a new message, bytes.
const MESSAGE_BYTES: usize = 256 << 10;

/// A part of the list of virtual machines.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VmList {
    /// The virtual machines, each as JSON like an element of `vms` of `latpath vms --json`.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub vms: Vec<Vec<u8>>,
    /// Whether this part completes the list.
    #[prost(bool, tag = "2")]
    pub last: bool,
    /// Number of virtual machines omitted because of the limits; set in the last part.
    #[prost(uint64, tag = "3")]
    pub omitted: u64,
    /// Why the machine's virtual machines are not known; set in the last part.
    #[prost(string, tag = "4")]
    pub error: String,
}

/// Encodes the list as messages, in order, within all limits.
pub fn messages(found: Result<Vec<Vm>, String>) -> Vec<VmList> {
    let (vms, error) = match found {
        Ok(vms) => (vms, String::new()),
        Err(why) => (Vec::new(), printable(&why)),
    };
    let (mut parts, mut part) = (Vec::new(), VmList::default());
    let (mut kept, mut bytes, mut filled, mut omitted) = (0, 0, 0, 0);
    for vm in &vms {
        let json = serde_json::to_vec(vm).expect("plain structs become JSON");
        if kept == MAX_VMS || json.len() > MAX_VM_BYTES || bytes + json.len() > MAX_BYTES {
            omitted += 1;
            continue;
        }
        if filled > MESSAGE_BYTES {
            parts.push(std::mem::take(&mut part));
            filled = 0;
        }
        (kept, bytes, filled) = (kept + 1, bytes + json.len(), filled + json.len());
        part.vms.push(json);
    }
    parts.push(VmList { last: true, omitted, error, ..part });
    parts
}

/// The virtual machines received so far.
#[derive(Debug, Default)]
pub struct ReportedVms {
    vms: Vec<Vm>,
    bytes: usize,
    /// Number of virtual machines that this version cannot parse.
    unread: u64,
    is_complete: bool,
    omitted: u64,
    error: String,
}

impl ReportedVms {
    /// Adds a part.
    ///
    /// # Errors
    /// If the list exceeds its limits, or was already complete.
    pub fn take(&mut self, part: VmList) -> Result<(), String> {
        if self.is_complete {
            return Err("the agent sent virtual machines after the end of their list".into());
        }
        for json in part.vms {
            self.bytes += json.len();
            if json.len() > MAX_VM_BYTES || self.bytes > MAX_BYTES || self.vms.len() == MAX_VMS {
                return Err(format!(
                    "the agent sent more than {MAX_VMS} virtual machines, or more than {MAX_BYTES} bytes about them"
                ));
            }
            // An agent of a later version may report roles that this version cannot parse.
            match serde_json::from_slice(&json).ok().and_then(|json| serde_json::from_value(harmless(json)).ok()) {
                Some(vm) => self.vms.push(vm),
                None => self.unread += 1,
            }
        }
        (self.is_complete, self.omitted, self.error) = (part.last, part.omitted, printable(&part.error));
        Ok(())
    }

    /// The list, and why virtual machines are missing from it (if any are); `None` until it is complete.
    pub fn complete(&self) -> Option<(Vec<Vm>, Option<String>)> {
        if !self.is_complete {
            return None;
        }
        let missing = match (self.omitted, self.unread) {
            _ if !self.error.is_empty() => Some(self.error.clone()),
            (0, 0) => None,
            (omitted, 0) => Some(format!("its agent left out {omitted}: it reports at most {MAX_VMS}")),
            (omitted, unread) => Some(format!(
                "{} of those that its agent reports cannot be read: install the same latpath on both",
                unread.saturating_add(omitted)
            )),
        };
        Some((self.vms.clone(), missing))
    }
}

/// A copy in which strings are truncated and contain no terminal control codes.
fn harmless(json: Value) -> Value {
    match json {
        // A list of CPUs may be longer than a name.
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit() || b"-,".contains(&byte)) => {
            Value::String(text)
        }
        Value::String(text) => Value::String(text::printable(cut(&text, MAX_NAME))),
        Value::Array(all) => all.into_iter().map(harmless).collect(),
        Value::Object(all) => all.into_iter().map(|(key, value)| (key, harmless(value))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_vms::{Role, Thread};

    fn vm(name: &str, threads: u32) -> Vm {
        let thread = |tid| Thread { tid, role: Role::Vcpu, comm: "CPU 0/KVM".into(), ..Thread::default() };
        Vm { name: name.into(), pid: 7, threads: (1..=threads).map(thread).collect(), ..Vm::default() }
    }

    fn taken(found: Result<Vec<Vm>, String>) -> (Vec<Vm>, Option<String>) {
        let mut taken = ReportedVms::default();
        for part in messages(found) {
            assert!(prost::Message::encoded_len(&part) < crate::frame::MAX_FRAME / 2);
            assert_eq!(taken.complete(), None);
            taken.take(part).unwrap();
        }
        taken.complete().unwrap()
    }

    #[test]
    fn a_list_of_any_length_survives_the_wire_within_the_limits() {
        assert_eq!(taken(Ok(Vec::new())), (Vec::new(), None));
        let several: Vec<Vm> = (0..300).map(|n| vm(&format!("guest{n}"), n % 20)).collect();
        assert_eq!(taken(Ok(several.clone())), (several, None));
        let (kept, missing) = taken(Ok((0..2_000).map(|n| vm(&format!("guest{n}"), 1)).collect()));
        assert_eq!((kept.len(), kept[1_023].name.as_str()), (1_024, "guest1023"));
        assert!(missing.unwrap().contains("left out 976"));
        let (kept, missing) = taken(Ok(vec![vm("huge", 5_000), vm("small", 3)]));
        assert_eq!((kept, missing.is_some()), (vec![vm("small", 3)], true));
        assert_eq!(taken(Err("no /proc".into())), (Vec::new(), Some("no /proc".into())));
    }

    #[test]
    fn names_that_a_terminal_would_obey_are_replaced() {
        let (kept, _) = taken(Ok(vec![vm(&format!("a\u{1b}[2J\n{}", "x".repeat(5_000)), 1)]));
        assert_eq!(kept[0].name, format!("a?[2J?{}", "x".repeat(MAX_NAME - 6)));
    }

    #[test]
    fn a_list_beyond_the_limits_ends_the_session_and_one_of_a_later_version_does_not() {
        let json = |vm: &Vm| serde_json::to_vec(vm).unwrap();
        let part = |vms: Vec<Vec<u8>>, last| VmList { vms, last, ..VmList::default() };
        let endless = || {
            (0..20).try_fold(ReportedVms::default(), |mut list, n| {
                list.take(part(vec![json(&vm(&n.to_string(), 1)); 100], false)).map(|()| list)
            })
        };
        assert!(endless().unwrap_err().contains("more than 1024 virtual machines"));
        let mut list = ReportedVms::default();
        assert!(list.take(part(vec![vec![b' '; MAX_VM_BYTES + 1]], true)).is_err());
        let mut list = ReportedVms::default();
        let later = String::from_utf8(json(&vm("new", 1))).unwrap().replace("\"vcpu\"", "\"quantum\"");
        list.take(part(vec![later.into_bytes(), b"[[[[".to_vec(), json(&vm("known", 1))], true)).unwrap();
        let (vms, missing) = list.complete().unwrap();
        assert_eq!(vms, [vm("known", 1)]);
        assert!(missing.unwrap().contains("2 of those that its agent reports cannot be read"));
        assert!(list.take(part(Vec::new(), true)).unwrap_err().contains("after the end"));
    }
}
