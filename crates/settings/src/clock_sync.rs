//! phc2sys(8) for one network device: a transient systemd unit that latpath starts and stops. A phc2sys started by
//! another program is never touched.

use crate::network;
use crate::nic::{Nic, Refusal, Written};
use crate::write::Place;
use latpath_linux::proc::Root;
use std::path::Path;
use std::process::Command;

/// File with the value, if the machine is a directory tree.
const FILE: &str = "netlink/clock-sync";
/// Prefix of the unit's name.
const UNIT: &str = "latpath-phc2sys-";
/// Directory in which systemd keeps the units created by systemd-run.
const TRANSIENT: &str = "run/systemd/transient";
/// Maximum number of processes to search.
const MAX_PROCESSES: usize = 4 << 20;
/// Programs that can set the clock of a network device.
const PROGRAMS: [&str; 3] = ["phc2sys", "ptp4l", "ts2phc"];

/// Direction in which phc2sys synchronises the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// The device's clock follows the system clock, without an offset.
    SystemToNic,
    /// The system clock follows the device's clock.
    NicToSystem,
}

impl Direction {
    const ALL: [Self; 2] = [Self::SystemToNic, Self::NicToSystem];

    fn name(self) -> &'static str {
        match self {
            Self::SystemToNic => "system-to-nic",
            Self::NicToSystem => "nic-to-system",
        }
    }

    /// Arguments for phc2sys without ptp4l: the clock that is set follows the other one, with no offset.
    fn words(self, device: &str) -> Vec<&str> {
        match self {
            Self::SystemToNic => vec!["-s", "CLOCK_REALTIME", "-c", device, "-O", "0", "-R", "16", "-l", "5", "-q"],
            Self::NicToSystem => vec!["-s", device, "-c", "CLOCK_REALTIME", "-O", "0", "-R", "16", "-l", "5", "-q"],
        }
    }
}

/// Name of the device's unit; `None` if the device's name is not valid in a unit name.
fn unit(device: &str) -> Option<String> {
    let is_plain = device.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    is_plain.then(|| format!("{UNIT}{device}.service"))
}

/// Whether a command's arguments contain the device or one of its clocks.
fn names(words: &[&str], device: &str, clocks: &[String]) -> bool {
    words.iter().any(|word| *word == device || clocks.iter().any(|clock| word.strip_prefix("/dev/") == Some(clock)))
}

/// How the device's clock and the system clock are synchronised: the direction of latpath's unit, `other` for another
/// program, or `none`; `None` if the device has no clock.
pub(crate) fn read(nic: &Nic) -> Option<String> {
    network::read(nic, FILE, |_| {
        let clocks = nic.sysfs().names(&format!("class/net/{}/device/ptp", nic.name()), 16);
        if clocks.is_empty() {
            return None;
        }
        let root = Root::of(Path::new("/"));
        if let Some(text) = unit(nic.name()).and_then(|unit| root.text(&format!("{TRANSIENT}/{unit}"))) {
            let is_it = |direction: &&Direction| text.contains(direction.name());
            if let Some(direction) = Direction::ALL.iter().find(is_it) {
                return Some(direction.name().into());
            }
        }
        let processes = root.numbers("proc", MAX_PROCESSES).unwrap_or_default();
        let is_its = |pid: &u32| {
            let name = root.text(&format!("proc/{pid}/comm")).unwrap_or_default();
            let line = root.text(&format!("proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&str> = line.split('\0').collect();
            PROGRAMS.contains(&name.trim()) && (words.contains(&"-a") || names(&words, nic.name(), &clocks))
        };
        Some(if processes.iter().any(is_its) { "other" } else { "none" }.into())
    })
}

fn run(command: &mut Command) -> Written {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|error| Refusal::NotOffered(format!("{name}: {error}")))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(Refusal::Failed(format!("{name}: {}", String::from_utf8_lossy(&done.stderr).trim()))),
    }
}

/// Starts or stops the device's unit.
pub(crate) fn write(nic: &Nic, value: &str) -> Written {
    let now = read(nic).unwrap_or_default();
    network::write(nic, FILE, value, |netns| {
        if now == "other" || value == "other" {
            let why = format!("another program sets the clock of {} (now {now}); latpath leaves it alone", nic.name());
            return Err(Refusal::Failed(why));
        }
        if !Path::new("/run/systemd/system").exists() {
            let command = shell(&Place::name(nic.name()), value);
            return Err(Refusal::NotOffered(format!("systemd does not run here; the same by hand: {command}")));
        }
        let unit = unit(nic.name()).ok_or_else(|| Refusal::Failed(format!("{}: no name of a unit", nic.name())))?;
        if now != "none" {
            run(Command::new("systemctl").args(["stop", &unit]))?;
        }
        let Some(direction) = Direction::ALL.into_iter().find(|direction| direction.name() == value) else {
            return match value {
                "none" => Ok(()),
                _ => Err(Refusal::Failed(format!("{value}: none of system-to-nic, nic-to-system, none"))),
            };
        };
        let mut command = Command::new("systemd-run");
        command.args(["--quiet", "--collect", &format!("--unit={unit}")]);
        command.arg(format!("--description=latpath: phc2sys {} {}", direction.name(), nic.name()));
        if let Some(path) = netns.path() {
            command.arg(format!("--property=NetworkNamespacePath={}", path.display()));
        }
        run(command.arg("phc2sys").args(direction.words(nic.name())))
    })
}

/// `systemd-run --unit=latpath-phc2sys-eth0.service phc2sys -s CLOCK_REALTIME -c eth0 …`
pub(crate) fn shell(at: &Place, value: &str) -> String {
    let unit = at.within(&format!("{UNIT}{{at}}.service"));
    match Direction::ALL.into_iter().find(|direction| direction.name() == value) {
        Some(direction) => {
            let words: Vec<String> = direction.words("{at}").iter().map(|word| at.within(word)).collect();
            format!("systemd-run --unit={unit} phc2sys {}", words.join(" "))
        }
        None => format!("systemctl stop {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_the_device_or_its_clock() {
        let clocks = ["ptp3".to_owned()];
        assert!(names(&["phc2sys", "-s", "eth0"], "eth0", &clocks));
        assert!(names(&["phc2sys", "-s", "/dev/ptp3"], "eth0", &clocks));
        assert!(!names(&["phc2sys", "-s", "/dev/ptp30", "eth01"], "eth0", &clocks));
        assert_eq!(unit("eth0.5").as_deref(), Some("latpath-phc2sys-eth0.5.service"));
        assert_eq!(unit("eth0;reboot"), None);
    }

    #[test]
    fn the_line_starts_and_stops_a_unit_of_the_devices_own() {
        let line = |value: &str| shell(&Place::name("eth0"), value);
        let start =
            "systemd-run --unit=latpath-phc2sys-eth0.service phc2sys -s CLOCK_REALTIME -c eth0 -O 0 -R 16 -l 5 -q";
        assert_eq!(line("system-to-nic"), start);
        assert_eq!(line("none"), "systemctl stop latpath-phc2sys-eth0.service");
    }
}
