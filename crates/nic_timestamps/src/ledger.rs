//! Changes to this machine's devices, and the processes that need them: the last process restores the setting, even if
//! earlier ones were killed.

use crate::config::{Config, Settable};
use crate::StampError;
use latpath_linux::net::Device;
use latpath_net::{Inode, Netns};
use latpath_undo::{Entry, Journal, Kind, Lifetime, LockedJournal, Outcome, Undo};
use serde::{Deserialize, Serialize};
use std::io;

/// Identifies a device uniquely among all that have existed since boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceIdentity {
    pub(crate) device: String,
    pub(crate) ifindex: u32,
    /// Inode number of its network namespace.
    pub(crate) netns: Inode,
}

impl DeviceIdentity {
    /// The device's name in the journal.
    fn subject(&self) -> String {
        format!("{}-{}", self.netns, self.ifindex)
    }
}

/// A change of a device's setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    device: String,
    before: Config,
    /// The setting that the driver reports after the change; `None` before the driver has answered.
    after: Option<Config>,
}

/// Result of the search for a device to restore.
pub(crate) enum DeviceLookup<'a> {
    Here(Box<dyn Settable + 'a>),
    /// Its namespace contains no device with this name and index.
    Gone,
    /// Its namespace cannot be reached.
    OutOfReach,
}

/// Undoes changes to the devices that the function finds.
struct PutBack<'a>(&'a dyn Fn(&DeviceIdentity) -> DeviceLookup<'a>);

impl Undo for PutBack<'_> {
    const KIND: Kind = Kind::NicTimestamps;
    type Step = Step;

    fn undo(&self, subject: &str, steps: &[Step]) -> Outcome {
        let number = |(netns, ifindex): (&str, &str)| Some((netns.parse().ok()?, ifindex.parse().ok()?));
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return Outcome::nothing() };
        let Some((netns, ifindex)) = subject.split_once('-').and_then(number) else {
            return Outcome::Failed(vec!["it names no device".into()]);
        };
        let who = DeviceIdentity { device: last.device.clone(), ifindex, netns };
        match (self.0)(&who) {
            DeviceLookup::Here(device) => put_back(&who.device, first.before, last.after, &*device)
                .unwrap_or_else(|e| Outcome::Failed(vec![format!("{}: hardware stamps: {e}", who.device)])),
            DeviceLookup::Gone => Outcome::nothing(),
            DeviceLookup::OutOfReach => Outcome::OutOfReach,
        }
    }
}

/// Restores a device's setting, unless another program has changed it since.
fn put_back(name: &str, before: Config, after: Option<Config>, device: &dyn Settable) -> io::Result<Outcome> {
    let now = device.config()?;
    if now == before {
        return Ok(Outcome::nothing());
    }
    if after.is_some_and(|after| now != after) {
        let why = format!("{name}: hardware stamps stay at {now}: another program has set them since");
        return Ok(Outcome::Undone { done: Vec::new(), left_alone: vec![why] });
    }
    device.set_config(before)?;
    Ok(Outcome::undone(format!("{name}: hardware stamps put back to {before}, which an earlier run could not do")))
}

/// Restores the devices of this machine, in all its network namespaces.
pub struct NicTimestamps;

impl Undo for NicTimestamps {
    const KIND: Kind = Kind::NicTimestamps;
    type Step = Step;

    fn undo(&self, subject: &str, steps: &[Step]) -> Outcome {
        PutBack(&of_this_machine).undo(subject, steps)
    }
}

fn of_this_machine(who: &DeviceIdentity) -> DeviceLookup<'static> {
    let Ok(netns) = Netns::find(who.netns) else { return DeviceLookup::OutOfReach };
    let find = || match nix::net::if_::if_nametoindex(who.device.as_str()) {
        // A device with the same name but another index is not the one that was changed.
        Ok(ifindex) if ifindex == who.ifindex => Device::named(&who.device).ok(),
        _ => None,
    };
    match netns.inside(find) {
        Ok(Some(device)) => DeviceLookup::Here(Box::new(device)),
        Ok(None) => DeviceLookup::Gone,
        Err(_) => DeviceLookup::OutOfReach,
    }
}

/// The journal, of which only the entries for NICs are used.
#[derive(Clone, Debug)]
pub(crate) struct Ledger(pub(crate) Journal);

/// This process's share in a change to a device. [`Ledger::leave`] ends it.
pub(crate) type Share = Entry<Step>;

impl Ledger {
    /// The machine's own journal.
    pub(crate) fn of_this_machine() -> Self {
        Self(Journal::of_this_machine())
    }

    /// Changes a device's setting, and records the previous one. `wider` turns the current setting into the one that
    /// the caller needs; it returns `None` if the current one suffices. Returns the device's setting and, if latpath
    /// changed it, this process's share in the change.
    pub(crate) fn join(
        &self,
        who: &DeviceIdentity,
        device: &dyn Settable,
        wider: &dyn Fn(Config) -> Option<Config>,
    ) -> Result<(Config, Option<Share>), StampError> {
        let failed = |doing, cause| StampError::of(&who.device, doing, cause);
        let noting = |cause| StampError::NotNoted { device: who.device.clone(), cause };
        let turn = self.0.turn().map_err(noting)?;
        // The existing entry, if other processes still need the change. An entry that no process needs is undone first.
        let mut share =
            turn.needed(&PutBack(&|_| DeviceLookup::Here(Box::new(device))), &who.subject()).map_err(noting)?;
        let now = device.config().map_err(|e| failed("reading what it is set to (SIOCGHWTSTAMP)", e))?;
        if let Some(share) = &mut share {
            share.join(&turn).map_err(noting)?;
        }
        let Some(requested) = wider(now) else { return Ok((now, share)) };
        let mut share = match share {
            Some(share) => share,
            None => {
                let reason = format!("hardware timestamps of {}", who.device);
                turn.begin::<NicTimestamps>(&who.subject(), Lifetime::Process, &reason).map_err(noting)?
            }
        };
        let step = |after| Step { device: who.device.clone(), before: now, after };
        share.add_within(&turn, step(None)).map_err(noting)?;
        match device.set_config(requested) {
            Ok(after) => {
                // The setting as a later read will return it; the restore compares against it.
                let after = device.config().unwrap_or(after);
                share.add_within(&turn, step(Some(after))).map_err(noting)?;
                Ok((after, Some(share)))
            }
            Err(e) => {
                let _ = share.add_within(&turn, step(Some(now)));
                drop::<LockedJournal>(turn);
                let _ = self.leave(share, device);
                Err(failed("switching hardware stamps on (SIOCSHWTSTAMP)", e))
            }
        }
    }

    /// Ends a share; the device is restored when its last share ends.
    pub(crate) fn leave(&self, mut share: Share, device: &dyn Settable) -> latpath_undo::Result<Outcome> {
        share.leave(&PutBack(&|_| DeviceLookup::Here(Box::new(device))))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{RxFilter, TxType};
    use std::cell::Cell;
    use std::fs;

    pub(crate) struct Nic(pub Cell<Config>);

    impl Settable for Nic {
        fn config(&self) -> io::Result<Config> {
            Ok(self.0.get())
        }
        fn set_config(&self, config: Config) -> io::Result<Config> {
            self.0.set(config);
            Ok(config)
        }
    }

    const ALL: Config = Config { tx_type: TxType::ON, rx_filter: RxFilter::ALL, flags: 0 };
    const PTP: Config = Config { tx_type: TxType::ON, rx_filter: RxFilter(12), flags: 0 };

    fn who() -> DeviceIdentity {
        DeviceIdentity { device: "lp0".into(), ifindex: 4, netns: 77 }
    }

    fn to_all(now: Config) -> Option<Config> {
        (now != ALL).then_some(ALL)
    }

    fn ledger() -> (tempfile::TempDir, Ledger) {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger(Journal::at(dir.path()));
        (dir, ledger)
    }

    fn files(dir: &tempfile::TempDir) -> usize {
        fs::read_dir(dir.path()).unwrap().count()
    }

    fn put_back_to(before: Config) -> Outcome {
        Outcome::undone(format!("lp0: hardware stamps put back to {before}, which an earlier run could not do"))
    }

    /// Ends a share as if the process had been killed: without any undo.
    fn killed(share: Option<Share>) {
        share.unwrap().abandon().unwrap();
    }

    #[test]
    fn a_device_is_put_back_to_what_it_was() {
        for before in [Config::OFF, PTP] {
            let (dir, ledger) = ledger();
            let nic = Nic(Cell::new(before));
            let (now, share) = ledger.join(&who(), &nic, &to_all).unwrap();
            assert_eq!((now, nic.0.get(), files(&dir)), (ALL, ALL, 1));
            assert_eq!(ledger.leave(share.unwrap(), &nic).unwrap(), put_back_to(before));
            assert_eq!((nic.0.get(), files(&dir)), (before, 0));
        }
    }

    #[test]
    fn what_another_program_has_set_is_left_alone_when_it_suffices() {
        let (dir, ledger) = ledger();
        let nic = Nic(Cell::new(ALL));
        let (now, share) = ledger.join(&who(), &nic, &to_all).unwrap();
        assert!(share.is_none() && now == ALL && files(&dir) == 0);
    }

    #[test]
    fn what_another_program_sets_after_that_stays() {
        let (dir, ledger) = ledger();
        let nic = Nic(Cell::new(Config::OFF));
        let (_, share) = ledger.join(&who(), &nic, &to_all).unwrap();
        nic.0.set(PTP);
        let stays = format!("lp0: hardware stamps stay at {PTP}: another program has set them since");
        let left_alone = Outcome::Undone { done: vec![], left_alone: vec![stays] };
        assert_eq!(ledger.leave(share.unwrap(), &nic).unwrap(), left_alone);
        assert_eq!((nic.0.get(), files(&dir)), (PTP, 0));
    }

    #[test]
    fn of_several_the_last_one_out_puts_it_back_whoever_came_first() {
        for first_leaves_first in [true, false] {
            let (dir, ledger) = ledger();
            let nic = Nic(Cell::new(PTP));
            let (_, first) = ledger.join(&who(), &nic, &to_all).unwrap();
            let (_, second) = ledger.join(&who(), &nic, &to_all).unwrap();
            let mut order = [first.unwrap(), second.unwrap()];
            if !first_leaves_first {
                order.reverse();
            }
            let [one, other] = order;
            assert_eq!(ledger.leave(one, &nic).unwrap(), Outcome::nothing());
            assert_eq!((nic.0.get(), files(&dir)), (ALL, 1));
            assert_eq!(ledger.leave(other, &nic).unwrap(), put_back_to(PTP));
            assert_eq!((nic.0.get(), files(&dir)), (PTP, 0));
        }
    }

    #[test]
    fn after_a_crash_the_next_start_puts_it_back_and_begins_again() {
        let (dir, ledger) = ledger();
        let nic = Nic(Cell::new(Config::OFF));
        killed(ledger.join(&who(), &nic, &to_all).unwrap().1);
        assert_eq!(nic.0.get(), ALL);
        let nothing_more = ledger.join(&who(), &nic, &|_| None).unwrap();
        assert!(nothing_more.1.is_none());
        assert_eq!((nic.0.get(), files(&dir)), (Config::OFF, 0));
    }

    #[test]
    fn a_crash_leaves_nothing_while_another_one_still_needs_it() {
        let (_dir, ledger) = ledger();
        let nic = Nic(Cell::new(Config::OFF));
        let (_, killed) = ledger.join(&who(), &nic, &to_all).unwrap();
        let (_, other) = ledger.join(&who(), &nic, &to_all).unwrap();
        super::tests::killed(killed);
        let (_, third) = ledger.join(&who(), &nic, &to_all).unwrap();
        assert_eq!(nic.0.get(), ALL);
        assert_eq!(ledger.leave(other.unwrap(), &nic).unwrap(), Outcome::nothing());
        assert_eq!(ledger.leave(third.unwrap(), &nic).unwrap(), put_back_to(Config::OFF));
        assert_eq!(nic.0.get(), Config::OFF);
    }

    /// A machine with one device, of index 4; the flag is whether the device can be reached.
    struct Machine<'a>(&'a Nic, bool);

    impl Undo for Machine<'_> {
        const KIND: Kind = Kind::NicTimestamps;
        type Step = Step;
        fn undo(&self, subject: &str, steps: &[Step]) -> Outcome {
            let find = |who: &DeviceIdentity| match (who.netns, who.ifindex, who.device.as_str()) {
                _ if !self.1 => DeviceLookup::OutOfReach,
                (77, 4, "lp0") => DeviceLookup::Here(Box::new(self.0)),
                _ => DeviceLookup::Gone,
            };
            PutBack(&find).undo(subject, steps)
        }
    }

    fn sweep(ledger: &Ledger, machine: &Machine) -> Result<(), String> {
        let turn = ledger.0.turn().unwrap();
        for subject in ["77-4", "77-5"] {
            turn.needed(machine, subject).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    #[test]
    fn what_was_left_on_other_devices_is_put_back_too() {
        let (dir, ledger) = ledger();
        let nic = Nic(Cell::new(PTP));
        killed(ledger.join(&who(), &nic, &to_all).unwrap().1);
        assert!(sweep(&ledger, &Machine(&nic, false)).unwrap_err().contains("cannot be reached"));
        assert_eq!((nic.0.get(), files(&dir)), (ALL, 1));
        sweep(&ledger, &Machine(&nic, true)).unwrap();
        assert_eq!((nic.0.get(), files(&dir)), (PTP, 0));
    }

    #[test]
    fn a_new_device_of_an_old_name_is_not_touched() {
        let (dir, ledger) = ledger();
        let old = DeviceIdentity { ifindex: 5, ..who() };
        killed(ledger.join(&old, &Nic(Cell::new(PTP)), &to_all).unwrap().1);
        let new = Nic(Cell::new(ALL));
        sweep(&ledger, &Machine(&new, true)).unwrap();
        assert_eq!((new.0.get(), files(&dir)), (ALL, 0));
    }

    #[test]
    fn a_crash_while_a_device_is_being_set_is_put_back() {
        for reached in [PTP, ALL] {
            let (dir, ledger) = ledger();
            let turn = ledger.0.turn().unwrap();
            let mut share = turn.begin::<NicTimestamps>(&who().subject(), Lifetime::Process, "a test").unwrap();
            share.add_within(&turn, Step { device: "lp0".into(), before: PTP, after: None }).unwrap();
            drop(turn);
            share.abandon().unwrap();
            let nic = Nic(Cell::new(reached));
            ledger.join(&who(), &nic, &|_| None).unwrap();
            assert_eq!((nic.0.get(), files(&dir)), (PTP, 0));
        }
    }

    #[test]
    fn a_damaged_note_is_named_and_the_device_is_not_changed() {
        for text in ["", "\n", "{}", "\0\0\0", "{\"device\":\"lp0\"", "x".repeat(10_000).as_str()] {
            let (dir, ledger) = ledger();
            fs::write(dir.path().join("nic-timestamps-77-4"), text).unwrap();
            let nic = Nic(Cell::new(Config::OFF));
            let error = ledger.join(&who(), &nic, &to_all).unwrap_err().to_string();
            assert!(error.starts_with("lp0: ") && error.contains("nic-timestamps-77-4: damaged"), "{error}");
            assert_eq!((nic.0.get(), files(&dir)), (Config::OFF, 1));
        }
    }

    /// A device that rejects every change.
    struct Refuses(Config, i32);

    impl Settable for Refuses {
        fn config(&self) -> io::Result<Config> {
            Ok(self.0)
        }
        fn set_config(&self, _: Config) -> io::Result<Config> {
            Err(io::Error::from_raw_os_error(self.1))
        }
    }

    #[test]
    fn what_cannot_be_put_back_is_tried_again() {
        let (dir, ledger) = ledger();
        killed(ledger.join(&who(), &Nic(Cell::new(PTP)), &to_all).unwrap().1);
        for _ in 0..2 {
            let error = ledger.join(&who(), &Refuses(ALL, libc::EBUSY), &to_all).unwrap_err().to_string();
            assert!(error.starts_with("lp0: ") && error.contains("busy"), "{error}");
            assert_eq!(files(&dir), 1);
        }
    }

    #[test]
    fn a_refused_change_leaves_nothing_behind_and_names_the_device() {
        let (dir, ledger) = ledger();
        let error = ledger.join(&who(), &Refuses(Config::OFF, libc::ERANGE), &to_all).unwrap_err().to_string();
        assert!(error.starts_with("lp0: switching hardware stamps on (SIOCSHWTSTAMP): "), "{error}");
        assert_eq!(files(&dir), 0);
    }
}
