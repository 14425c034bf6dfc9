//! Kinds of changes, and what undoes each.

use crate::Header;
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use serde_json::Value;

/// Defines [`Kind`], with all kinds in a list.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// A kind of change. Who undoes all kinds matches on it, so that a new kind does not compile until it is undone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// Its name in the journal.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// Instances of tracefs, made or changed. The subject is an instance's name.
    Tracefs = "tracefs",
    /// Timestamps of a NIC, switched on. The subject is NAMESPACE-IFINDEX.
    NicTimestamps = "nic-timestamps",
    /// Namespaces and files of a lab. The subject is the lab's name.
    Lab = "lab",
}

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing of it is left to undo.
    Undone {
        /// What was undone, as a user is shown it.
        done: Vec<String>,
        /// What stays as it is because another program has set it since.
        left_alone: Vec<String>,
    },
    /// Why it could not be undone. The entry stays, and the next start tries again.
    Failed(Vec<String>),
    /// Its target cannot be reached from here. The entry stays.
    OutOfReach,
}

impl Outcome {
    /// Something was undone.
    pub fn undone(what: impl Into<String>) -> Self {
        Self::Undone { done: vec![what.into()], left_alone: Vec::new() }
    }

    /// There was nothing to undo.
    pub fn nothing() -> Self {
        Self::Undone { done: Vec::new(), left_alone: Vec::new() }
    }
}

/// Undoes the changes of one kind.
pub trait Undo {
    /// The kind.
    const KIND: Kind;

    /// One change, with the old value and the value set.
    type Step: Serialize + DeserializeOwned;

    /// Undoes the steps of an entry, the last one first. The process that made them may have been killed before, during or after
    /// the last change. The subject and the steps are input: check that they name a target of this kind.
    fn undo(&self, subject: &str, steps: &[Self::Step]) -> Outcome;
}

/// [`Undo`] of any kind.
pub trait Undoer: Sync {
    /// The kind.
    fn kind(&self) -> Kind;

    /// Undoes an entry whose steps were read.
    ///
    /// # Errors
    /// Where a step is none of this kind.
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
