//! Conditions on the machine under which a profile's line applies.

use crate::machine::Machine;
use crate::variables::Variables;
use std::fmt;
use std::str::FromStr;

/// A condition of a profile's line; a leading `!` negates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    is_negated: bool,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// `vms`: virtual machines run here.
    Vms,
    /// `guest`: the machine is a virtual machine.
    Guest,
    /// `cpu:intel`, `cpu:amd` or `cpu:arm`: the vendor of the CPU.
    Cpu(String),
    /// `driver:ice`: the place's network device has this driver.
    Driver(String),
    /// `kernel:6.12`: the kernel has this release or a later one.
    Kernel(u32, u32),
    /// `preempt-rt`: the kernel is PREEMPT_RT.
    PreemptRt,
    /// `numa`: the machine has several NUMA nodes.
    Numa,
    /// `set:NAME`: the user has set this variable.
    Set(String),
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (is_negated, name) = text.strip_prefix('!').map_or((false, text), |name| (true, name));
        let unknown = || {
            format!(
                "{text}: no such condition (vms, guest, cpu:intel|amd|arm, driver:NAME, kernel:6.12, preempt-rt, numa, \
                 set:VARIABLE; with ! for not)"
            )
        };
        let kind = match name.split_once(':') {
            None => match name {
                "vms" => Kind::Vms,
                "guest" => Kind::Guest,
                "preempt-rt" => Kind::PreemptRt,
                "numa" => Kind::Numa,
                _ => return Err(unknown()),
            },
            Some(("cpu", maker @ ("intel" | "amd" | "arm"))) => Kind::Cpu(maker.into()),
            Some(("driver", driver)) if !driver.is_empty() => Kind::Driver(driver.into()),
            Some(("set", variable)) if !variable.is_empty() => Kind::Set(variable.into()),
            Some(("kernel", release)) => {
                let (major, minor) = release_of(release).ok_or_else(unknown)?;
                Kind::Kernel(major, minor)
            }
            _ => return Err(unknown()),
        };
        Ok(Self { is_negated, kind })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_negated { "!" } else { "" })?;
        match &self.kind {
            Kind::Vms => f.write_str("vms"),
            Kind::Guest => f.write_str("guest"),
            Kind::Cpu(maker) => write!(f, "cpu:{maker}"),
            Kind::Driver(driver) => write!(f, "driver:{driver}"),
            Kind::Kernel(major, minor) => write!(f, "kernel:{major}.{minor}"),
            Kind::PreemptRt => f.write_str("preempt-rt"),
            Kind::Numa => f.write_str("numa"),
            Kind::Set(variable) => write!(f, "set:{variable}"),
        }
    }
}

impl Condition {
    /// Whether the condition depends on the network device to which the line applies.
    pub(crate) fn is_of_device(&self) -> bool {
        matches!(self.kind, Kind::Driver(_))
    }

    /// Whether the condition holds; `driver` is the driver of the network device to which the line applies.
    pub(crate) fn holds(&self, machine: &Machine, variables: &Variables, driver: Option<&str>) -> bool {
        let holds = match &self.kind {
            Kind::Vms => !machine.vms.is_empty(),
            Kind::Guest => machine.is_guest(),
            Kind::Cpu(maker) => machine.cpu_maker() == Some(maker.as_str()),
            Kind::Driver(wanted) => driver == Some(wanted.as_str()),
            Kind::Kernel(major, minor) => release_of(&machine.release()).is_some_and(|own| own >= (*major, *minor)),
            Kind::PreemptRt => machine.is_preempt_rt(),
            Kind::Numa => machine.numa_nodes() > 1,
            Kind::Set(variable) => variables.has(variable),
        };
        holds != self.is_negated
    }
}

/// Parses the major and minor release: `6.12.0-rt` is (6, 12).
fn release_of(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((major.parse().ok()?, rest[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_as_written() {
        for text in ["vms", "!guest", "cpu:intel", "driver:ice", "kernel:6.12", "preempt-rt", "!numa", "set:ptp"] {
            assert_eq!(text.parse::<Condition>().unwrap().to_string(), text);
        }
        for text in ["", "moon", "cpu:z80", "driver:", "kernel:six"] {
            assert!(text.parse::<Condition>().unwrap_err().contains("no such condition"), "{text}");
        }
        assert_eq!(release_of("6.12.0-rt"), Some((6, 12)));
    }
}
