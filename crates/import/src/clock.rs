//! Maps the clocks of the files to one timeline: that of the first file's machine.

use crate::ImportError;
use latpath_model::{Ns, PointInfo, HOST, MERGING_UNIT};
use latpath_run::{MachineFigures, MachineRecord};
use std::str::FromStr;

/// Offset of a machine's clock from the first file's, written `MACHINE=TIME` or `MACHINE=TIME±BOUND`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Name of the machine.
    pub machine: String,
    /// Its clock minus that of the first file's machine, ns.
    pub ns: Ns,
    /// Maximum error, ns, if known.
    pub bound_ns: Option<Ns>,
    /// Source of the offset.
    pub method: OffsetMethod,
}

/// Source of an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetMethod {
    /// Given by the user.
    Given,
    /// Estimated from the fastest packets.
    Estimated,
}

impl OffsetMethod {
    /// Name in results.
    fn name(self) -> &'static str {
        match self {
            Self::Given => "given by --offset",
            Self::Estimated => "estimated",
        }
    }
}

fn time(text: &str) -> Result<Ns, String> {
    let text = text.trim();
    let (sign, digits) = match text.strip_prefix(['-', '\u{2212}']) {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let time =
        humantime::parse_duration(digits).map_err(|error| format!("{text:?}: {error}; write a time, e.g. 120us"))?;
    Ns::try_from(time.as_nanos()).map(|ns| sign * ns).map_err(|_| format!("{text:?}: longer than 292 years"))
}

impl FromStr for Offset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("{text:?}: write MACHINE=TIME or MACHINE=TIME±BOUND, e.g. relay=-250us+-10us");
        let (machine, rest) = text.split_once('=').ok_or_else(form)?;
        let (offset, bound) = match rest.split_once('±').or_else(|| rest.split_once("+-")) {
            Some((offset, bound)) => (offset, Some(time(bound)?)),
            None => (rest, None),
        };
        if machine.is_empty() || bound.is_some_and(|bound| bound < 0) {
            return Err(form());
        }
        Ok(Self { machine: machine.into(), ns: time(offset)?, bound_ns: bound, method: OffsetMethod::Given })
    }
}

/// The clocks of the machines at whose points files were recorded.
#[derive(Debug)]
pub(crate) struct Clocks<'a> {
    points: &'a [PointInfo],
    offsets: &'a [Offset],
}

/// The error for an offset that cannot be applied. `machines`: those of the points, starting with the first file's.
pub(crate) fn not_named(machine: &str, machines: &[&str]) -> ImportError {
    let (machine, there) = (machine.to_owned(), machines.get(1..).unwrap_or_default().join(", "));
    match machines.first() {
        Some(first) if *first == machine => ImportError::FirstMachine { machine, there },
        _ => ImportError::NoMachine { machine, there },
    }
}

impl<'a> Clocks<'a> {
    pub fn new(points: &'a [PointInfo], offsets: &'a [Offset]) -> Result<Self, ImportError> {
        let clocks = Self { points, offsets };
        let machines = clocks.machines();
        match offsets.iter().find(|offset| !machines[1..].contains(&offset.machine.as_str())) {
            Some(Offset { machine, .. }) => Err(not_named(machine, &machines)),
            None => Ok(clocks),
        }
    }

    /// The machines, starting with the first file's.
    fn machines(&self) -> Vec<&'a str> {
        let mut machines: Vec<&str> = Vec::new();
        for info in self.points {
            if !machines.contains(&info.point.machine.as_str()) {
                machines.push(&info.point.machine);
            }
        }
        machines
    }

    fn of(&self, machine: &str) -> Option<&Offset> {
        self.offsets.iter().rfind(|offset| offset.machine == machine)
    }

    /// Offset to subtract from the times of a machine's files, ns.
    pub fn offset(&self, machine: &str) -> Ns {
        self.of(machine).map_or(0, |offset| offset.ns)
    }

    /// Whether the user gave the offset of this machine.
    pub fn is_given(&self, machine: &str) -> bool {
        self.of(machine).is_some_and(|offset| offset.method != OffsetMethod::Estimated)
    }

    /// A machine's clock minus that of the first file's machine, ns, and its maximum error if known.
    pub fn with_bound(&self, machine: &str) -> (Ns, Option<Ns>) {
        let is_firsts = self.machines().first() == Some(&machine);
        let bound = match self.of(machine) {
            Some(given) => given.bound_ns.or(is_firsts.then_some(0)),
            None => is_firsts.then_some(0),
        };
        (self.offset(machine), bound)
    }

    /// Records of the machines whose clock error is known. In reports, that of the others is unknown.
    pub fn records(&self) -> Vec<MachineRecord> {
        let machines = self.machines();
        let known = |(at, machine): (usize, &&str)| {
            let given = self.of(machine);
            let bound = if at == 0 { Some(given.and_then(|g| g.bound_ns).unwrap_or(0)) } else { given?.bound_ns };
            let method = if at == 0 { MachineFigures::SAME_CLOCK } else { given?.method.name() };
            let offset_ns = self.offset(machine);
            let clock = MachineFigures {
                machine: (*machine).into(),
                method: method.into(),
                offset_ns,
                error_bound_ns: bound?,
                ..MachineFigures::default()
            };
            Some(MachineRecord { clock, ..MachineRecord::default() })
        };
        machines.iter().enumerate().filter_map(known).collect()
    }

    /// Notes for the reader.
    pub fn notes(&self) -> Vec<String> {
        let machines = self.machines();
        let mut notes = Vec::new();
        for offset in self.offsets.iter().filter(|offset| offset.method == OffsetMethod::Estimated) {
            notes.push(format!(
                "clocks: the offset of {} is an estimate; it holds if the fastest packets take no longer than stated",
                offset.machine
            ));
        }
        let unknown: Vec<&str> = machines.iter().skip(1).copied().filter(|m| self.of(m).is_none()).collect();
        if let (Some(first), false) = (machines.first(), unknown.is_empty()) {
            notes.push(format!(
                "clocks: the times of {} and {first} are as their files have them: the offset between these clocks is unknown, and \
                 times between them are wrong by it",
                unknown.join(", ")
            ));
        }
        // In runs that are not imported, the timeline is the host's clock, so the difference needs a note.
        if machines.iter().skip(1).any(|m| *m == HOST) {
            notes.push(format!("clocks: the timeline is that of {}, the machine of the first file", machines[0]));
        }
        notes
    }
}

/// The clock of the samples, if the first file's machine has at most this error against UTC.
pub(crate) fn merging_unit(error_bound_ns: Ns) -> MachineRecord {
    let (machine, method) = (MERGING_UNIT.into(), "UTC as stated".into());
    let clock = MachineFigures { machine, method, error_bound_ns, ..MachineFigures::default() };
    MachineRecord { clock, ..MachineRecord::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_signed_and_may_have_a_bound() {
        let read = |text: &str| text.parse::<Offset>().map(|o| (o.ns, o.bound_ns));
        assert_eq!(read("relay=250us"), Ok((250_000, None)));
        assert_eq!(read("relay=-1ms 5us±10us"), Ok((-1_005_000, Some(10_000))));
        assert_eq!(read("relay=+37s+-20ns"), Ok((37_000_000_000, Some(20))));
        for wrong in ["relay", "=5us", "relay=5", "relay=5us±-1us", "relay="] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_unmeasured_clock_has_no_bound() {
        let points = ["pub/tx@a", "sub/app-read@b", "nic/nic-rx@c"]
            .map(|p| PointInfo::from(p.parse::<latpath_model::Point>().unwrap()));
        let offsets = ["sub=1ms±10us".parse().unwrap()];
        let clocks = Clocks::new(&points, &offsets).unwrap();
        let records: Vec<_> = clocks.records().into_iter().map(|r| (r.clock.machine, r.clock.error_bound_ns)).collect();
        assert_eq!(records, [("pub".to_owned(), 0), ("sub".to_owned(), 10_000)]);
        assert_eq!([clocks.offset("pub"), clocks.offset("sub")], [0, 1_000_000]);
        assert!(clocks.notes()[0].contains("the times of nic and pub"));
        let other = ["x=1ms".parse().unwrap()];
        assert!(Clocks::new(&points, &other).unwrap_err().to_string().contains("sub, nic"));
        let first = ["pub=1ms".parse().unwrap()];
        let error = Clocks::new(&points, &first).unwrap_err().to_string();
        assert!(error.contains("pub is the timeline") && error.contains("ahead of it: sub, nic"), "{error}");
        let error = Clocks::new(&points[..1], &first).unwrap_err().to_string();
        assert!(error.contains("points of one machine have one clock"), "{error}");
    }
}
