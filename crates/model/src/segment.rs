//! Kinds of segments of a route.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of a segment. Decisions depend on the kind; names are for people, and users may choose them.
///
/// The order is the order in tables: classic segments, named ones, single steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// From the sample to the first point.
    Tmu,
    /// From the planned send time in a packet to the first point.
    Tsend,
    /// From the publisher to the host's NIC.
    Tnet,
    /// From the host's NIC to the VM's.
    Thyp,
    /// From the VM's NIC to the application.
    Tsub,
    /// From the first point of a route to the last.
    Total,
    /// A reaction: from the incoming packet to the packet that the application sends because of it, both on the wire.
    Treact,
    /// The part of a reaction from the wire to the application.
    Tin,
    /// The part of a reaction in the application.
    Tapp,
    /// The part of a reaction from the application to the wire.
    Tout,
    /// The time spent with Open vSwitch's daemon.
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
            Self::Tsend => Some("Tsend"),
            Self::Tnet => Some("Tnet"),
            Self::Thyp => Some("Thyp"),
            Self::Tsub => Some("Tsub"),
            Self::Total => Some("total"),
            Self::Treact => Some("Treact"),
            Self::Tin => Some("Tin"),
            Self::Tapp => Some("Tapp"),
            Self::Tout => Some("Tout"),
            Self::Tupcall => Some("Tupcall"),
            Self::Tskew => Some("Tskew"),
            Self::Named | Self::Step => None,
        }
    }

    /// The classic segments.
    pub const CLASSIC: [Self; 12] = [
        Self::Tmu,
        Self::Tsend,
        Self::Tnet,
        Self::Thyp,
        Self::Tsub,
        Self::Total,
        Self::Treact,
        Self::Tin,
        Self::Tapp,
        Self::Tout,
        Self::Tupcall,
        Self::Tskew,
    ];

    /// The classic segment with this name.
    pub fn classic(name: &str) -> Option<Self> {
        Self::CLASSIC.into_iter().find(|kind| kind.name() == Some(name))
    }

    /// Whether the segment is a reaction or a part of one. Streams of reactions have only such segments and
    /// user-defined ones; other streams have no such segments.
    pub fn is_of_reactions(self) -> bool {
        matches!(self, Self::Treact | Self::Tin | Self::Tapp | Self::Tout)
    }

    /// Whether the packets of a stream can have times of this kind of segment. `reacts`: whether it is a stream of
    /// reactions.
    pub fn is_for(self, reacts: bool) -> bool {
        self == Self::Named || self.is_of_reactions() == reacts
    }

    /// Whether the segment covers the whole measured time of a packet or a reaction.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Total | Self::Treact)
    }

    /// Whether the segment's times are counted per path through the host, because it ends after the part in which paths
    /// differ.
    pub fn is_counted_by_path(self) -> bool {
        matches!(self, Self::Thyp | Self::Total)
    }
}
