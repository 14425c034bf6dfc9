//! What was changed on the devices of this machine and by whom it is still needed: the last one out puts it back, also when those
//! before it were killed.
//!
//! A file per device says what it was set to before. Everyone who needs the change holds a shared lock on that file, which the
//! kernel releases however a process ends; so whoever gets the lock for itself alone is the last. Taking part and leaving happen
//! under a lock on the folder, held for as long as a request to a driver takes.

use crate::config::{Config, Settable};
use crate::StampError;
use latpath_linux::{private_directory, UNDO};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A driver may take this long: some bring the link up again.
const PATIENCE: Duration = Duration::from_secs(10);
const PREFIX: &str = "hwstamps-";

/// One device among all that the machine may have had since it booted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Who {
    pub(crate) device: String,
    pub(crate) ifindex: u32,
    /// Inode number of its network namespace.
    pub(crate) netns: u64,
}

/// What a device's file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    #[serde(flatten)]
    who: Who,
    /// What it was set to before.
    before: Config,
    /// What it was set to; not there while it is being set.
    after: Option<Config>,
    /// The process that set it, for those who read the file.
    pid: u32,
}

/// A folder of such files.
#[derive(Clone, Debug)]
pub(crate) struct Ledger(PathBuf);

/// That a device's change is needed. Not the change itself: who drops this without [`Ledger::leave`] leaves it to the next one.
#[derive(Debug)]
pub(crate) struct Share {
    file: Flock<File>,
    who: Who,
}

/// What was put back, because nobody was left who needed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PutBack {
    pub(crate) device: String,
    pub(crate) to: Config,
}

impl Ledger {
    /// The machine's own.
    pub(crate) fn of_this_machine() -> Self {
        Self(UNDO.into())
    }

    #[cfg(test)]
    pub(crate) fn at(folder: &Path) -> Self {
        Self(folder.into())
    }

    fn file(&self, who: &Who) -> PathBuf {
        self.0.join(format!("{PREFIX}{}-{}", who.netns, who.ifindex))
    }

    /// Waits for one's turn.
    fn turn(&self) -> io::Result<Flock<File>> {
        private_directory(&self.0)?;
        let mut file = File::open(&self.0)?;
        let limit = Instant::now() + PATIENCE;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < limit => file = back,
                Err((_, Errno::EWOULDBLOCK)) => {
                    let why = format!("another process holds the lock on {} for too long", self.0.display());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Err((_, e)) => return Err(e.into()),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sets a device so that it does at least what `wider` makes of its present setting, and notes what it was. `wider` returns
    /// `None` where the present one will do. Returns what the device is set to, and a share unless nothing was or is changed.
    pub(crate) fn join(
        &self,
        who: &Who,
        device: &dyn Settable,
        wider: &dyn Fn(Config) -> Option<Config>,
    ) -> Result<(Config, Option<Share>), StampError> {
        let failed = |doing, cause| StampError::of(&who.device, doing, cause);
        let noting = |cause| failed("noting in /run/latpath what it is set to, so that it can be put back", cause);
        let _turn = self.turn().map_err(noting)?;
        // Others that need a change, or the note of those that are gone.
        let shared =
            self.join_others(who, device).map_err(|e| failed("putting back what an earlier run has set", e))?;
        let now = device.config().map_err(|e| failed("reading what it is set to (SIOCGHWTSTAMP)", e))?;
        let Some(requested) = wider(now) else {
            return Ok((now, shared.map(|(file, _)| Share { file, who: who.clone() })));
        };
        let (mut file, before) = match shared {
            Some((file, note)) => (file, note.before),
            None => {
                let file = open(&self.file(who)).map_err(noting)?;
                (Flock::lock(file, FlockArg::LockSharedNonblock).map_err(|(_, e)| noting(e.into()))?, now)
            }
        };
        let mut note = Note { who: who.clone(), before, after: None, pid: std::process::id() };
        write(&mut file, &note).map_err(noting)?;
        match device.set_config(requested) {
            Ok(after) => {
                // As it will be read when it is to be put back.
                let after = device.config().unwrap_or(after);
                note.after = Some(after);
                write(&mut file, &note).map_err(noting)?;
                Ok((after, Some(Share { file, who: who.clone() })))
            }
            Err(e) => {
                note.after = Some(now);
                let _ = write(&mut file, &note);
                let _ = self.last_out(file, who, device);
                Err(failed("switching hardware stamps on (SIOCSHWTSTAMP)", e))
            }
        }
    }

    /// Takes part in a change that others still need. One that nobody needs any more is put back.
    fn join_others(&self, who: &Who, device: &dyn Settable) -> io::Result<Option<(Flock<File>, Note)>> {
        let mut file = match OpenOptions::new().read(true).write(true).open(self.file(who)) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let note = read(&mut file).filter(|note| note.who == *who);
        match (Flock::lock(file, FlockArg::LockExclusiveNonblock), note) {
            (Err((file, Errno::EWOULDBLOCK)), Some(note)) => {
                let file = Flock::lock(file, FlockArg::LockSharedNonblock).map_err(|(_, e)| io::Error::from(e))?;
                Ok(Some((file, note)))
            }
            (Err((_, Errno::EWOULDBLOCK)), None) => Err(io::Error::other(format!(
                "{} cannot be understood, and another process holds it",
                self.file(who).display()
            ))),
            (Err((_, e)), _) => Err(e.into()),
            (Ok(_alone), note) => {
                if let Some(note) = note {
                    put_back(&note, device)?;
                }
                fs::remove_file(self.file(who))?;
                Ok(None)
            }
        }
    }

    /// Ends a share; the last one out puts the device back. Returns what was put back.
    pub(crate) fn leave(&self, share: Share, device: &dyn Settable) -> io::Result<Option<PutBack>> {
        let _turn = self.turn()?;
        self.last_out(share.file, &share.who, device)
    }

    fn last_out(&self, file: Flock<File>, who: &Who, device: &dyn Settable) -> io::Result<Option<PutBack>> {
        let file = file.unlock().map_err(|(_, e)| io::Error::from(e))?;
        let mut alone = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(alone) => alone,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, e)) => return Err(e.into()),
        };
        let done = match read(&mut alone) {
            Some(note) if note.who == *who => put_back(&note, device)?,
            _ => None,
        };
        fs::remove_file(self.file(who))?;
        Ok(done)
    }

    /// Puts back what those that were killed have left on devices of this namespace. `present` finds a device by name. What
    /// cannot be put back keeps its note.
    pub(crate) fn tidy<D: Settable>(
        &self,
        netns: u64,
        present: &dyn Fn(&str) -> Option<(u32, D)>,
    ) -> io::Result<Vec<PutBack>> {
        let mut done = Vec::new();
        let files = self.left(netns)?;
        if files.is_empty() {
            return Ok(done);
        }
        let _turn = self.turn()?;
        for path in files {
            let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
            let Ok(mut alone) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
            if let Some(note) = read(&mut alone).filter(|note| note.who.netns == netns) {
                // A device of that name that is another one now has nothing to do with the note.
                let device = present(&note.who.device).filter(|(ifindex, _)| *ifindex == note.who.ifindex);
                match device.map(|(_, device)| put_back(&note, &device)) {
                    Some(Ok(back)) => done.extend(back),
                    Some(Err(_)) => continue,
                    None => {}
                }
            }
            fs::remove_file(&path)?;
        }
        Ok(done)
    }

    fn left(&self, netns: u64) -> io::Result<Vec<PathBuf>> {
        let of_this = format!("{PREFIX}{netns}-");
        match fs::read_dir(&self.0) {
            Ok(entries) => {
                let ours = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(&of_this);
                Ok(entries.flatten().filter(|e| ours(&e.file_name())).map(|e| e.path()).collect())
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }
}

/// Sets a device to what it was, unless somebody else has set it since.
fn put_back(note: &Note, device: &dyn Settable) -> io::Result<Option<PutBack>> {
    let now = device.config()?;
    if now == note.before || note.after.is_some_and(|after| now != after) {
        return Ok(None);
    }
    device.set_config(note.before)?;
    Ok(Some(PutBack { device: note.who.device.clone(), to: note.before }))
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// A note is one line; what stands after it is of a longer one before it.
fn write(file: &mut File, note: &Note) -> io::Result<()> {
    let line = serde_json::to_string(note)? + "\n";
    file.rewind()?;
    file.write_all(line.as_bytes())?;
    file.set_len(line.len() as u64)
}

fn read(file: &mut File) -> Option<Note> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(4096).read_to_string(&mut text).ok()?;
    serde_json::from_str(text.lines().next()?).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{RxFilter, TxType};
    use std::cell::Cell;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

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

    fn who() -> Who {
        Who { device: "lp0".into(), ifindex: 4, netns: 77 }
    }

    fn to_all(now: Config) -> Option<Config> {
        (now != ALL).then_some(ALL)
    }

    fn ledger() -> (tempfile::TempDir, Ledger) {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::at(dir.path());
        (dir, ledger)
    }

    fn files(dir: &tempfile::TempDir) -> usize {
        fs::read_dir(dir.path()).unwrap().count()
    }

    #[test]
    fn a_device_is_put_back_to_what_it_was() {
        for before in [Config::OFF, PTP] {
            let (dir, ledger) = ledger();
            let nic = Nic(Cell::new(before));
            let (now, share) = ledger.join(&who(), &nic, &to_all).unwrap();
            assert_eq!((now, nic.0.get(), files(&dir)), (ALL, ALL, 1));
            let back = ledger.leave(share.unwrap(), &nic).unwrap();
            assert_eq!(back, Some(PutBack { device: "lp0".into(), to: before }));
            assert_eq!((nic.0.get(), files(&dir)), (before, 0));
        }
    }

    #[test]
    fn others_cannot_enter_the_folder_and_hold_its_lock() {
        let (dir, ledger) = ledger();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        let nic = Nic(Cell::new(Config::OFF));
        let (_, share) = ledger.join(&who(), &nic, &to_all).unwrap();
        assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o700);
        ledger.leave(share.unwrap(), &nic).unwrap();
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
        assert_eq!(ledger.leave(share.unwrap(), &nic).unwrap(), None);
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
            assert_eq!(ledger.leave(one, &nic).unwrap(), None);
            assert_eq!((nic.0.get(), files(&dir)), (ALL, 1));
            assert!(ledger.leave(other, &nic).unwrap().is_some());
            assert_eq!((nic.0.get(), files(&dir)), (PTP, 0));
        }
    }

    #[test]
    fn after_a_crash_the_next_start_puts_it_back_and_begins_again() {
        let (dir, ledger) = ledger();
        let nic = Nic(Cell::new(Config::OFF));
        // The kernel releases the locks of a process that is killed, and does no more.
        drop(ledger.join(&who(), &nic, &to_all).unwrap());
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
        drop(killed);
        let (_, third) = ledger.join(&who(), &nic, &to_all).unwrap();
        assert_eq!(nic.0.get(), ALL);
        assert_eq!(ledger.leave(other.unwrap(), &nic).unwrap(), None);
        assert!(ledger.leave(third.unwrap(), &nic).unwrap().is_some());
        assert_eq!(nic.0.get(), Config::OFF);
    }

    #[test]
    fn what_was_left_on_other_devices_is_put_back_too() {
        let (dir, ledger) = ledger();
        let nic = Nic(Cell::new(PTP));
        drop(ledger.join(&who(), &nic, &to_all).unwrap());
        assert!(ledger.tidy(78, &|_| -> Option<(u32, Nic)> { panic!("another namespace") }).unwrap().is_empty());
        let back = ledger.tidy(77, &|name| (name == "lp0").then(|| (4, Nic(Cell::new(ALL))))).unwrap();
        assert_eq!(back, [PutBack { device: "lp0".into(), to: PTP }]);
        assert_eq!(files(&dir), 0);
    }

    #[test]
    fn a_new_device_of_an_old_name_is_not_touched() {
        let (dir, ledger) = ledger();
        drop(ledger.join(&who(), &Nic(Cell::new(PTP)), &to_all).unwrap());
        assert!(ledger.tidy(77, &|_| Some((5, Nic(Cell::new(ALL))))).unwrap().is_empty());
        assert_eq!(files(&dir), 0);
    }

    #[test]
    fn a_crash_while_a_device_is_being_set_is_put_back() {
        let (dir, ledger) = ledger();
        let note = Note { who: who(), before: PTP, after: None, pid: 1 };
        write(&mut open(&ledger.file(&who())).unwrap(), &note).unwrap();
        let nic = Nic(Cell::new(ALL));
        ledger.join(&who(), &nic, &|_| None).unwrap();
        assert_eq!((nic.0.get(), files(&dir)), (PTP, 0));
    }

    #[test]
    fn a_file_that_says_nothing_does_no_harm() {
        for text in ["", "\n", "{}", "\0\0\0", "{\"device\":\"lp0\"", "x".repeat(10_000).as_str()] {
            let (dir, ledger) = ledger();
            fs::write(ledger.file(&who()), text).unwrap();
            let nic = Nic(Cell::new(Config::OFF));
            let (_, share) = ledger.join(&who(), &nic, &to_all).unwrap();
            ledger.leave(share.unwrap(), &nic).unwrap();
            assert_eq!((nic.0.get(), files(&dir)), (Config::OFF, 0));
        }
    }

    /// A device that stays as it is.
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
        drop(ledger.join(&who(), &Nic(Cell::new(PTP)), &to_all).unwrap());
        let busy = || Refuses(ALL, libc::EBUSY);
        assert!(ledger.tidy(77, &|_| Some((4, busy()))).unwrap().is_empty());
        assert_eq!(files(&dir), 1);
        let error = ledger.join(&who(), &busy(), &to_all).unwrap_err().to_string();
        assert!(error.starts_with("lp0: putting back what an earlier run has set: "), "{error}");
    }

    #[test]
    fn a_refused_change_leaves_nothing_behind_and_names_the_device() {
        let (dir, ledger) = ledger();
        let error = ledger.join(&who(), &Refuses(Config::OFF, libc::ERANGE), &to_all).unwrap_err().to_string();
        assert!(error.starts_with("lp0: switching hardware stamps on (SIOCSHWTSTAMP): "), "{error}");
        assert_eq!(files(&dir), 0);
    }
}
