//! The walk.

use crate::Cause;
use latpath_flight::{Class, Doing};
use latpath_spike::{Packet, Scene, Seen};
use latpath_vms::Vm;
use latpath_words::{Ns, PointInfo};

/// What is known beside the scene.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// The run's points.
    pub points: &'a [PointInfo],
    /// The host's virtual machines.
    pub vms: &'a [Vm],
}

/// Who held a packet, or kept another from acting.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Who {
    /// As it is shown: `rustc (18491)`, `softirq NET_RX`.
    pub name: String,
    /// What it is.
    pub doing: Doing,
    /// How it was scheduled, where it is a thread and that is known.
    pub class: Option<Class>,
}

/// A part of the time between two sightings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Host's timeline.
    pub from: Ns,
    /// The next piece's `from`.
    pub to: Ns,
    /// What it was.
    pub cause: Cause,
    /// Whose hands the packet was in.
    pub actor: Option<Who>,
    /// Who kept it from acting: ran instead, interrupted it.
    pub by: Option<Who>,
    /// The machine, by its place in the scene.
    pub machine: usize,
    /// The CPU, where one is known.
    pub cpu: Option<u32>,
    /// A number that belongs to the cause: packets ahead, the exit's reason.
    pub number: Option<u64>,
    /// What the reader must know: why it is unexplained, or that two machines' times were joined.
    pub note: Option<String>,
}

/// Explains the packets of one scene.
pub struct Analyst<'a> {
    #[allow(dead_code)]
    scene: &'a Scene,
    #[allow(dead_code)]
    ground: Ground<'a>,
}

impl<'a> Analyst<'a> {
    /// Prepares all machines' rows.
    pub fn new(scene: &'a Scene, ground: Ground<'a>) -> Self {
        Self { scene, ground }
    }

    /// What held the packet between two of its sightings: pieces without a gap, from exactly `a.t` to exactly `b.t`; none
    /// where `b` is not later.
    pub fn explain(&self, _packet: &Packet, a: &Seen, b: &Seen) -> Vec<Piece> {
        if b.t <= a.t {
            return Vec::new();
        }
        vec![Piece {
            from: a.t,
            to: b.t,
            cause: Cause::Unexplained,
            actor: None,
            by: None,
            machine: 0,
            cpu: None,
            number: None,
            note: None,
        }]
    }
}
