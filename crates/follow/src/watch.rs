//! Figures of the moment, however they are come by.

use crate::follow::{FollowError, Options};
use crate::joined::Joined;
use crate::layout::Layout;
use crate::live::Live;
use latpath_capture::RankedCapture;
use latpath_model::PointInfo;
use latpath_stats::Summary;

/// Streams being watched. Dropping it detaches everything.
pub enum Watch {
    /// On this machine alone: the kernel joins and counts, nothing crosses to user space per packet.
    Kernel(Box<Live>),
    /// With other machines: every journey is joined here.
    Machines(Box<Joined>),
}

impl Watch {
    /// Attaches the programs and reaches the machines.
    ///
    /// # Errors
    /// Where a machine cannot be reached, this one cannot trace, or the streams cannot be followed.
    pub fn start(options: Options) -> Result<Self, FollowError> {
        Ok(if options.machines.is_empty() {
            Self::Kernel(Box::new(Live::start(options)?))
        } else {
            Self::Machines(Box::new(Joined::start(options)?))
        })
    }

    /// One round; call it some fifty times a second.
    pub fn step(&mut self) {
        match self {
            Self::Kernel(live) => live.step(),
            Self::Machines(joined) => joined.step(),
        }
    }

    /// All figures since the way was found, or since the last reset.
    pub fn summary(&mut self) -> Summary {
        match self {
            Self::Kernel(live) => live.summary(),
            Self::Machines(joined) => joined.summary(),
        }
    }

    /// Packets of each stream seen since the start.
    pub fn seen(&mut self) -> Vec<u64> {
        match self {
            Self::Kernel(live) => live.seen(),
            Self::Machines(joined) => joined.seen(),
        }
    }

    /// A capture that has been frozen around late packets, or as an example of the usual. Each is told once; take them each round.
    pub fn next_capture(&mut self) -> Option<RankedCapture> {
        match self {
            Self::Kernel(live) => live.next_capture(),
            Self::Machines(joined) => joined.follow().next_capture(),
        }
    }

    /// Late packets of each stream since the start; nothing where no flight recorder was asked for.
    pub fn late(&mut self) -> Option<Vec<u64>> {
        match self {
            Self::Kernel(live) => live.late().map(<[u64]>::to_vec),
            Self::Machines(joined) => joined.follow().late().map(|counted| counted.late.clone()),
        }
    }

    /// The points found so far: those that captures speak of.
    pub fn points(&mut self) -> Vec<PointInfo> {
        match self {
            Self::Kernel(live) => live.points(),
            Self::Machines(joined) => joined.follow().points().to_vec(),
        }
    }

    /// The route and the segments as they are known now.
    pub fn layout(&mut self) -> Layout {
        match self {
            Self::Kernel(live) => live.layout().clone(),
            Self::Machines(joined) => joined.follow().layout().clone(),
        }
    }

    /// Starts all figures anew.
    pub fn reset(&mut self) {
        match self {
            Self::Kernel(live) => live.reset(),
            Self::Machines(joined) => joined.reset(),
        }
    }

    /// Ends it; the figures stay.
    pub fn stop(&mut self) {
        match self {
            Self::Kernel(live) => live.detach(),
            Self::Machines(joined) => joined.stop(),
        }
    }
}
