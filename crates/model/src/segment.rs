//! Kinds of segments of a route.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of a segment. Decisions depend on the kind; names are for people, and users may choose them.
///
/// The order is the order in tables: classic segments, named ones, single steps.
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
    /// From the first copy of a packet to the second, over redundant networks.
    Tskew,
    /// A user-defined segment.
    #[default]
    Named,
    /// From one point of a route to the next.
    Step,
}

impl SegmentKind {
    /// Name of a classic segment; `None` for other kinds.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Tmu => Some("Tmu"),
            Self::Tnet => Some("Tnet"),
            Self::Thyp => Some("Thyp"),
            Self::Tsub => Some("Tsub"),
            Self::Total => Some("total"),
            Self::Tupcall => Some("Tupcall"),
            Self::Tskew => Some("Tskew"),
            Self::Named | Self::Step => None,
        }
    }

    /// The classic segments.
    pub const CLASSIC: [Self; 7] =
        [Self::Tmu, Self::Tnet, Self::Thyp, Self::Tsub, Self::Total, Self::Tupcall, Self::Tskew];

    /// The classic segment with this name.
    pub fn classic(name: &str) -> Option<Self> {
        Self::CLASSIC.into_iter().find(|kind| kind.name() == Some(name))
    }

    /// Whether its times are counted per path through the host: it ends after the part in which paths differ.
    pub fn is_counted_by_path(self) -> bool {
        matches!(self, Self::Thyp | Self::Total)
    }
}
