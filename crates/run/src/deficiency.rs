//! What a run lacks: the reasons for which a limit cannot be judged by it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One thing that a run lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Deficiency {
    pub kind: DeficiencyKind,
    /// The same for people, with names and numbers.
    pub text: String,
}

impl Deficiency {
    pub fn new(kind: DeficiencyKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// What kind of thing a run lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeficiencyKind {
    /// A file of the run is damaged, or cannot be read.
    Damaged,
    /// Parts or journeys that were recorded are not in the run.
    Missing,
    /// The recording goes on, or was killed: its last seconds and the latest counts are missing.
    Unfinished,
    /// Sightings were dropped or not made: in full buffers, tables and programs, or because one packet in many was followed.
    SightingsDropped,
    /// Sightings were not joined with all others of their packets: too late, too many at a time, or too many with one key.
    NotJoined,
    /// Another machine stopped reporting before the end.
    MachineLost,
    /// No packet was seen at a point that the user named.
    PointNotSeen,
    /// The route of a stream does not end at an application: nobody knows which packets were read, and when.
    NoApplication,
    /// A machine's clock is known to be wrong by more than its error bound.
    Clock,
    /// The sequence numbers of a stream began again: packets that were lost then are not counted.
    SequenceRestarted,
    /// Packets passed in several IP fragments, of which only the first is followed: unless an application read the whole packet, nobody
    /// knows whether the others arrived.
    Fragments,
    /// The VLAN tag or an address of packets changed on the way: the route ends before the change, or begins behind it.
    Changed,
    /// Packets of several senders of a stream met: a journey may be of two of them.
    SendersMixed,
    /// Packets of another sender of a stream are in no journey.
    SenderNotFollowed,
    /// Something of a run that no figure is made of: names of threads, marks, captures.
    ContextMissing,
    /// A kind that only a newer latpath knows.
    #[serde(other)]
    Other,
}

/// The figures that something which a run lacks may falsify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All figures.
    All,
    /// Times to the end of the route, and counts of packets at it.
    EndOfRoute,
    /// Times between two machines, and what is counted by them.
    BetweenMachines,
    /// Counts of packets that no point saw.
    SequenceNumbers,
    /// Times and counts at points that see a packet's first fragment alone: all but applications.
    FirstFragment,
    /// Times from the begin of the route or to its end (no step, and no segment that the user named), and counts of packets there.
    RouteEnds,
    /// None: only what is said of figures.
    NoFigure,
}

impl DeficiencyKind {
    /// Which figures may be other than they are shown.
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
