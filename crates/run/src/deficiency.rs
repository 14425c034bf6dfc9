//! Deficiencies of a run: reasons why the run cannot be used to judge a limit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A deficiency of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Deficiency {
    /// Its kind.
    pub kind: DeficiencyKind,
    /// Description for the user, with names and numbers.
    pub text: String,
}

impl Deficiency {
    /// Creates a deficiency of this kind.
    pub fn new(kind: DeficiencyKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// Kinds of deficiencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeficiencyKind {
    /// A file of the run is damaged or unreadable.
    Damaged,
    /// Recorded parts or journeys are missing from the run.
    Missing,
    /// The recording is in progress, or was killed: its last seconds and the latest counts are missing.
    Unfinished,
    /// Sightings were lost because a buffer or table was full or a program did not run, or only a sample of packets was
    /// followed.
    SightingsDropped,
    /// Sightings were not joined with others of the same packet: they were too late, there were too many at a time, or
    /// too many had the same key.
    NotJoined,
    /// Another machine stopped reporting before the end.
    MachineLost,
    /// No packet was seen at a requested point.
    PointNotSeen,
    /// The route of a stream does not end at an application, so it is unknown which packets were read, and when.
    NoApplication,
    /// A machine's clock is known to be wrong by more than its error bound.
    Clock,
    /// The sequence numbers of a stream restarted: packets lost at that time are not counted.
    SequenceRestarted,
    /// Packets arrived in several IP fragments, of which only the first is followed: unless an application read the
    /// whole packet, it is unknown whether the other fragments arrived.
    Fragments,
    /// The VLAN tag or an address of packets changed on the route, so that the route ends before the change or begins
    /// after it.
    Changed,
    /// Packets of several senders of a stream met at a device: a journey may mix packets of two senders.
    SendersMixed,
    /// Packets of another sender of a stream are in no journey.
    SenderNotFollowed,
    /// Data that does not affect figures is missing: names of threads, marks, captures.
    ContextMissing,
    /// A kind defined by a newer version.
    #[serde(other)]
    Other,
}

/// The figures that a deficiency may make wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All figures.
    All,
    /// Times up to the end of the route, and counts of packets there.
    EndOfRoute,
    /// Times between two machines, and counts that depend on these times.
    BetweenMachines,
    /// Counts of packets that no point saw.
    SequenceNumbers,
    /// Times and counts at points that see only a packet's first fragment, i.e. all except applications.
    FirstFragment,
    /// Times that begin or end at an end of the route (but not steps and user-defined segments), and counts of packets
    /// there.
    RouteEnds,
    /// None; only explanations of figures.
    NoFigure,
}

impl DeficiencyKind {
    /// The figures that may be wrong.
    pub fn reach(self) -> Reach {
        match self {
            Self::Damaged | Self::Missing | Self::Unfinished | Self::SightingsDropped | Self::NotJoined => Reach::All,
            Self::MachineLost | Self::PointNotSeen | Self::Other => Reach::All,
            Self::SendersMixed | Self::SenderNotFollowed => Reach::All,
            Self::Fragments => Reach::FirstFragment,
            Self::Changed => Reach::RouteEnds,
            Self::ContextMissing => Reach::NoFigure,
            Self::NoApplication => Reach::EndOfRoute,
            Self::Clock => Reach::BetweenMachines,
            Self::SequenceRestarted => Reach::SequenceNumbers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_a_newer_latpath_reaches_all_figures() {
        let read: Deficiency = serde_json::from_str(r#"{"kind": "moon_phase", "text": "full"}"#).unwrap();
        assert_eq!((read.kind, read.kind.reach()), (DeficiencyKind::Other, Reach::All));
        let written = serde_json::to_string(&Deficiency::new(DeficiencyKind::NoApplication, "x")).unwrap();
        assert_eq!(written, r#"{"kind":"no_application","text":"x"}"#);
    }
}
