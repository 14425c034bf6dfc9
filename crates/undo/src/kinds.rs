//! Kinds of changes, and how each is undone.

use crate::Header;
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use serde_json::Value;

/// Defines [`Kind`] and the list of all kinds.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// A kind of change. The code that undoes all kinds matches on it, so that a new kind does not compile until it
        /// can be undone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// The kind's name in the journal.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// tracefs instances that were created or changed. The subject is the instance's name.
    Tracefs = "tracefs",
    /// Timestamps that were enabled on a NIC. The subject is NAMESPACE-IFINDEX.
    NicTimestamps = "nic-timestamps",
    /// Namespaces and files of a lab. The subject is the lab's name.
    Lab = "lab",
    /// Settings that were changed. The subject is a profile with its network devices.
    Tuning = "tuning",
    /// Devices, programs and processes of a way into VMs. The subject is the topology's name.
    Topology = "topology",
    /// Gate schedules that were set. The subject is NAMESPACE-IFINDEX.
    Gates = "gates",
}

/// Result of undoing an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing remains to be undone.
    Undone {
        /// Messages for the user: changes that were undone.
        done: Vec<String>,
        /// Messages for the user: settings that were not restored because another program has changed them since.
        left_alone: Vec<String>,
    },
    /// The undo failed, for these reasons. The entry remains, and the next start tries again.
    Failed(Vec<String>),
    /// The target cannot be reached from this process. The entry remains.
    OutOfReach,
}

impl Outcome {
    /// The outcome if a single change was undone.
    pub fn undone(what: impl Into<String>) -> Self {
        Self::Undone { done: vec![what.into()], left_alone: Vec::new() }
    }

    /// The outcome if there was nothing to undo.
    pub fn nothing() -> Self {
        Self::Undone { done: Vec::new(), left_alone: Vec::new() }
    }
}

/// Undoes the changes of one kind.
pub trait Undo {
    /// The kind.
    const KIND: Kind;

    /// A change, with the old and the new value.
    type Step: Serialize + DeserializeOwned;

    /// Undoes an entry's steps in reverse order. The process that made them may have been killed before, during or
    /// after the last change. The subject and the steps are untrusted input: check that they name a target of this
    /// kind.
    fn undo(&self, subject: &str, steps: &[Self::Step]) -> Outcome;
}

/// [`Undo`] with the type of the step erased.
pub trait Undoer: Sync {
    /// The kind.
    fn kind(&self) -> Kind;

    /// Parses an entry's steps and undoes them.
    ///
    /// # Errors
    /// A step is not of this kind.
    fn undo_read(&self, header: &Header, steps: &[Value]) -> serde_json::Result<Outcome>;
}

impl<U: Undo + Sync> Undoer for U {
    fn kind(&self) -> Kind {
        U::KIND
    }

    fn undo_read(&self, header: &Header, steps: &[Value]) -> serde_json::Result<Outcome> {
        let steps: serde_json::Result<Vec<U::Step>> = steps.iter().map(U::Step::deserialize).collect();
        Ok(self.undo(&header.subject, &steps?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_row_in_the_page_and_a_name_of_its_own() {
        let page = include_str!("../../../docs/journal.md");
        for kind in Kind::ALL {
            assert!(
                page.contains(&format!("\n| `{}` |", kind.name())),
                "docs/journal.md has no row for {}",
                kind.name()
            );
            assert_eq!(Kind::ALL.iter().filter(|other| other.name() == kind.name()).count(), 1);
        }
    }
}
