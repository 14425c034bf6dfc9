//! Switching a NIC's stamps on, and restoring its setting.

use crate::caps::{Caps, Current, RxHardware};
use crate::config::{Config, RxFilter, TxType};
use crate::ledger::{DeviceIdentity, Ledger, Share};
use crate::StampError;
use latpath_linux::net::Device;
use latpath_net::Netns;
use latpath_undo::Outcome;

/// A NIC that stamps packets until this value is dropped.
///
/// Only missing stamps are switched on, and another program's setting (e.g. ptp4l's) is never narrowed. Dropping the
/// value restores the NIC's setting, unless another latpath still needs it or another program has changed it since. If
/// latpath is killed, [`crate::NicTimestamps`] restores it later.
///
/// Some drivers restart their queues on a change and lose packets meanwhile, so switch the stamps on before a
/// measurement.
#[derive(Debug)]
pub struct HardwareStamps {
    device: Device,
    config: Config,
    share: Option<Share>,
    ledger: Ledger,
}

impl HardwareStamps {
    /// Switches on those stamps that the NIC claims to make and that are still off: for sent packets, and for all
    /// received packets if the NIC offers that. Returns `Ok(None)` if it claims neither.
    ///
    /// # Errors
    /// If the driver does not report the current setting, so that it could not be restored; if the journal cannot be
    /// written; or if the driver rejects the change.
    pub fn switch_on(caps: &Caps) -> Result<Option<Self>, StampError> {
        Self::switch_on_in(Ledger::of_this_machine(), caps)
    }

    fn switch_on_in(ledger: Ledger, caps: &Caps) -> Result<Option<Self>, StampError> {
        let failed = |doing, cause| StampError::of(&caps.device, doing, cause);
        let (tx, rx) = (caps.tx_nic(), caps.rx_nic() == RxHardware::AllFrames);
        if !tx && !rx {
            return Ok(None);
        }
        if let Current::Unknown(why) = &caps.current {
            return Err(StampError::NoWayBack { device: caps.device.clone(), why: why.clone() });
        }
        let netns = Netns::own().map_err(|e| failed("finding its namespace", std::io::Error::other(e)))?.inode();
        let device = Device::named(&caps.device).map_err(|e| failed("opening a socket", e))?;
        let who = DeviceIdentity { device: caps.device.clone(), ifindex: caps.ifindex, netns };
        let join = |rx| ledger.join(&who, &device, &|now| wider(now, tx, rx));
        let (config, share) = match join(rx) {
            // The driver advertises receive stamps but rejects the request; transmit stamps alone may still work.
            Err(StampError::Os { .. }) if tx && rx => join(false)?,
            joined => joined?,
        };
        Ok(Some(Self { device, config, share, ledger }))
    }

    /// The NIC's setting.
    pub fn config(&self) -> Config {
        self.config
    }

    /// Whether sent packets are stamped.
    pub fn tx(&self) -> bool {
        self.config.tx_type.stamps()
    }

    /// Whether all received packets are stamped.
    pub fn rx(&self) -> bool {
        self.config.rx_filter == RxFilter::ALL
    }

    /// Ends this process's share. Returns a message for each setting that was not restored. After an error, the entry
    /// remains and the next latpath tries again. A device that no longer exists needs no restoring.
    fn leave(&mut self) -> Vec<String> {
        let Some(share) = self.share.take() else { return Vec::new() };
        let stay =
            |why: String| format!("hardware stamps stay switched on, and the next latpath puts them back: {why}");
        match self.ledger.leave(share, &self.device) {
            Ok(Outcome::Undone { left_alone, .. }) => left_alone,
            Ok(Outcome::Failed(problems)) => vec![stay(problems.join("; "))],
            Ok(Outcome::OutOfReach) => Vec::new(),
            Err(error) => vec![stay(error.to_string())],
        }
    }
}

impl Drop for HardwareStamps {
    fn drop(&mut self) {
        self.leave().iter().for_each(|why| eprintln!("latpath: {why}"));
    }
}

/// The setting with which the NIC makes the requested stamps in addition to the present ones; `None` if it already
/// does.
fn wider(now: Config, tx: bool, rx: bool) -> Option<Config> {
    let tx_type = if tx && !now.tx_type.stamps() { TxType::ON } else { now.tx_type };
    let rx_filter = if rx { RxFilter::ALL } else { now.rx_filter };
    let then = Config { tx_type, rx_filter, flags: now.flags };
    (then != now).then_some(then)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::Nic;
    use latpath_undo::Journal;
    use std::cell::Cell;

    #[test]
    fn nothing_that_is_set_is_narrowed() {
        let set = |tx, rx| Config { tx_type: TxType(tx), rx_filter: RxFilter(rx), flags: 1 };
        assert_eq!(wider(set(0, 0), true, true), Some(set(1, 1)));
        assert_eq!(wider(set(0, 12), true, false), Some(set(1, 12)), "ptp4l's filter stays");
        assert_eq!(wider(set(2, 12), true, true), Some(set(2, 1)), "one-step stays");
        for (tx, rx) in [(1, 1), (3, 1)] {
            assert_eq!(wider(set(tx, rx), true, true), None);
        }
        assert_eq!(wider(set(1, 12), true, false), None);
        assert_eq!(wider(set(1, 1), false, false), None);
    }

    #[test]
    fn stamps_that_cannot_be_put_back_are_said_to_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, nic) = (Ledger(Journal::at(dir.path())), Nic(Cell::new(Config::OFF)));
        let who = DeviceIdentity { device: "lo".into(), ifindex: 1, netns: 77 };
        let (config, share) = ledger.join(&who, &nic, &|now| wider(now, true, true)).unwrap();
        let device = Device::named("lo").unwrap();
        // A loopback device has no timestamp setting, so restoring it fails.
        let said = HardwareStamps { device, config, share, ledger }.leave().join("\n");
        assert!(said.starts_with("hardware stamps stay switched on"), "{said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the note is for the next latpath");
    }

    #[test]
    fn a_device_without_hardware_stamps_has_none_to_switch_on() {
        let caps = Caps::of("lo").unwrap();
        assert!(HardwareStamps::switch_on(&caps).unwrap().is_none());
    }

    #[test]
    fn a_device_that_could_not_be_put_back_is_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let caps = Caps { socket_flags: u32::MAX, tx_types: 3, rx_filters: 3, ..Caps::of("lo").unwrap() };
        let error = HardwareStamps::switch_on_in(Ledger(Journal::at(dir.path())), &caps).unwrap_err().to_string();
        assert!(error.starts_with("lo: its hardware stamps stay as they are"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
