//! What a segment of a route is, beside its name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a segment is. Decisions are taken on this; a name is for people, and users may give any.
///
/// The order is the one in which tables show segments: the classic ones, named ones, single steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// From the sampling to the first point.
    Tmu,
    /// From the publisher to the host's NIC.
    Tnet,
    /// From the host's NIC to the VM's.
    Thyp,
    /// From the VM's NIC to the application.
    Tsub,
    /// From the first point of a route to the last.
    Total,
    /// The time with Open vSwitch's daemon.
    Tupcall,
    /// A segment that the user named.
    #[default]
    Named,
    /// From one point of a route to the next.
    Step,
}

impl SegmentKind {
    /// The name of a classic segment; `None` of those that have their own.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Tmu => Some("Tmu"),
            Self::Tnet => Some("Tnet"),
            Self::Thyp => Some("Thyp"),
            Self::Tsub => Some("Tsub"),
            Self::Total => Some("total"),
            Self::Tupcall => Some("Tupcall"),
            Self::Named | Self::Step => None,
        }
    }

    /// The classic segments.
    pub const CLASSIC: [Self; 6] = [Self::Tmu, Self::Tnet, Self::Thyp, Self::Tsub, Self::Total, Self::Tupcall];

    pub fn classic(name: &str) -> Option<Self> {
        Self::CLASSIC.into_iter().find(|kind| kind.name() == Some(name))
    }

    /// Whether its times are counted for each path through the host: it ends behind what paths differ in.
    pub fn is_counted_by_path(self) -> bool {
        matches!(self, Self::Thyp | Self::Total)
    }
}
