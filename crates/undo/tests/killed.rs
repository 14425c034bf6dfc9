//! Tests the journal after `kill -9` at every step, with concurrent processes and other programs, when damaged, and
//! from other boots.

use latpath_testkit::{equal, trial, Failed};
use latpath_undo::{Entry, Journal, Kind, Lifetime, LockedJournal, Outcome, Owner, Undo, Undoer};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
};
use tempfile::TempDir;

type Test = Result<(), Failed>;

const FOLDER: &str = "LATPATH_TEST_FOLDER";
const STOP_AT: &str = "LATPATH_TEST_STOP_AT";
const SUBJECT: &str = "setting";

fn main() -> ExitCode {
    if let (Ok(folder), Ok(stop)) = (std::env::var(FOLDER), std::env::var(STOP_AT)) {
        victim(Path::new(&folder), stop.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    latpath_testkit::main(vec![
        trial("whatever_step_it_is_killed_at_the_old_value_comes_back", &[], every_step),
        trial("a_change_stays_until_the_last_process_that_needs_it_is_gone", &[], two_processes),
        trial("later_settings_of_other_programs_remain_and_are_reported", &[], others_change),
        trial("a_process_with_the_number_of_a_killed_one_is_not_taken_for_it", &[], reused_number),
        trial("an_entry_of_an_earlier_boot_undoes_nothing_and_goes", &[], other_boot),
        trial("a_damaged_entry_is_reported_and_changes_nothing", &[], damaged),
        trial("an_entry_of_a_kind_that_is_not_known_is_left_to_the_latpath_that_knows_it", &[], unknown_kind),
        trial("a_lifetime_says_when_a_change_is_undone", &[], lifetimes),
        trial("a_change_that_cannot_be_undone_is_tried_again", &[], tried_again),
        trial("without_a_journal_the_change_is_undone_by_the_process_itself", &[], no_journal),
        trial("an_entry_that_somebody_removes_is_written_again", &[], removed),
    ])
}

/// A file that represents a setting.
struct Setting(PathBuf);

#[derive(Debug, Serialize, Deserialize)]
struct Step {
    before: String,
    set: String,
}

impl Undo for Setting {
    const KIND: Kind = Kind::Lab;
    type Step = Step;

    fn undo(&self, subject: &str, steps: &[Step]) -> Outcome {
        assert_eq!(subject, SUBJECT);
        let now = fs::read_to_string(&self.0).unwrap();
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return Outcome::nothing() };
        let ours = |step: &Step| step.set == now || step.before == now;
        if now == first.before {
            return Outcome::nothing();
        }
        // After a kill before the last change, the setting still has the value before it.
        if !ours(last) {
            return Outcome::Undone { done: vec![], left_alone: vec![format!("setting: stays {now}")] };
        }
        match fs::write(&self.0, &first.before) {
            Ok(()) => Outcome::undone(format!("setting: put back to {}", first.before)),
            Err(error) => Outcome::Failed(vec![error.to_string()]),
        }
    }
}

/// A machine with one setting.
struct Machine(TempDir);

impl Machine {
    fn new() -> Result<Self, Failed> {
        let machine = Self(tempfile::tempdir()?);
        fs::write(machine.setting().0, "old")?;
        Ok(machine)
    }

    fn setting(&self) -> Setting {
        Setting(self.0.path().join("value"))
    }

    fn journal(&self) -> Journal {
        Journal::at(&self.0.path().join("journal"))
    }

    fn value(&self) -> String {
        fs::read_to_string(self.setting().0).unwrap()
    }

    fn sweep(&self) -> Vec<String> {
        self.journal().sweep(&[&self.setting()])
    }

    fn file(&self) -> PathBuf {
        self.journal().path().join("lab-setting")
    }

    fn entries(&self) -> usize {
        self.journal().entries().len()
    }

    /// Starts a process that makes a change step by step, and waits until it has reached step `stop_at`.
    fn victim(&self, stop_at: u32) -> Result<Child, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(FOLDER, self.0.path()).env(STOP_AT, stop_at.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
        equal("it has come to its step", line.trim(), &stop_at.to_string())?;
        Ok(child)
    }

    /// Leaves an entry behind: its process is killed after making the change.
    fn left(&self) -> Result<(), Failed> {
        kill(self.victim(LAST)?)
    }

    /// Edits the header in the entry's file.
    fn edit(&self, edit: impl FnOnce(Value) -> Value) -> Result<(), Failed> {
        let text = fs::read_to_string(self.file())?;
        let (header, steps) = text.split_once('\n').ok_or("no header")?;
        let header = edit(serde_json::from_str(header)?);
        Ok(fs::write(self.file(), format!("{header}\n{steps}"))?)
    }
}

fn kill(mut child: Child) -> Result<(), Failed> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Number of the victim's last step.
const LAST: u32 = 6;

/// Changes the setting step by step, and stops at step `stop_at`.
fn victim(folder: &Path, stop_at: u32) {
    let setting = Setting(folder.join("value"));
    let mut at = 0;
    let mut step = || {
        at += 1;
        if at == stop_at {
            println!("{at}");
            std::io::stdout().flush().unwrap();
            loop {
                thread::park();
            }
        }
    };
    let journal = Journal::at(&folder.join("journal"));
    let turn = journal.turn().unwrap();
    step(); // 1: locked
    let mut entry = match turn.needed(&setting, SUBJECT).unwrap() {
        Some(mut entry) => {
            entry.join(&turn).unwrap();
            entry
        }
        None => turn.begin::<Setting>(SUBJECT, Lifetime::Process, "a test").unwrap(),
    };
    step(); // 2: begun
    for (before, set) in [("old", "new"), ("new", "newer")] {
        entry.add_within(&turn, Step { before: before.into(), set: set.into() }).unwrap();
        step(); // 3, 5: recorded, not yet changed
        fs::write(&setting.0, set).unwrap();
        if set == "newer" {
            // Other processes may now lock the journal.
            drop(turn);
            step(); // 6: changed
            unreachable!("it is killed before");
        }
        step(); // 4: changed
    }
}

fn every_step() -> Test {
    for stop_at in 1..=LAST {
        let machine = Machine::new()?;
        let child = machine.victim(stop_at)?;
        equal("a living process's change stays", machine.value() != "old", stop_at >= 4)?;
        if stop_at >= 2 {
            equal("nothing is swept while it lives", machine.journal().entries()[0].is_ok(), true)?;
        }
        kill(child)?;
        let said = machine.sweep();
        equal(&format!("{stop_at}: {said:?}"), machine.value().as_str(), "old")?;
        equal(&format!("{stop_at}: {said:?}"), machine.entries(), 0)?;
        equal("it says so where it has done something", said.len(), usize::from(stop_at >= 4))?;
        equal("another sweep", machine.sweep().len(), 0)?;
    }
    Ok(())
}

fn two_processes() -> Test {
    for first_is_killed_first in [true, false] {
        let machine = Machine::new()?;
        let mut both = vec![machine.victim(LAST)?, machine.victim(2)?];
        if !first_is_killed_first {
            both.reverse();
        }
        let last = both.pop().ok_or("two")?;
        kill(both.pop().ok_or("two")?)?;
        equal("swept", machine.sweep(), Vec::<String>::new())?;
        equal("another still needs it", machine.value().as_str(), "newer")?;
        kill(last)?;
        equal("swept", machine.sweep(), vec!["setting: put back to old".to_owned()])?;
        equal("the oldest value", machine.value().as_str(), "old")?;
    }
    Ok(())
}

fn others_change() -> Test {
    let machine = Machine::new()?;
    machine.left()?;
    fs::write(machine.setting().0, "theirs")?;
    equal("swept", machine.sweep(), vec!["setting: stays theirs".to_owned()])?;
    equal("value and entries", (machine.value().as_str(), machine.entries()), ("theirs", 0))
}

fn reused_number() -> Test {
    let machine = Machine::new()?;
    machine.left()?;
    let this = Owner::this();
    let owners = |start| json!([{ "pid": this.pid, "start_ticks": start, "pid_namespace": this.pid_namespace }]);
    machine.edit(|mut header| {
        header["owners"] = owners(this.start_ticks);
        header
    })?;
    equal("it is this process's", machine.sweep(), Vec::<String>::new())?;
    machine.edit(|mut header| {
        header["owners"] = owners(this.start_ticks + 1);
        header
    })?;
    equal("it was another's with this number", machine.sweep().len(), 1)?;
    equal("value", machine.value().as_str(), "old")
}

fn other_boot() -> Test {
    let machine = Machine::new()?;
    machine.left()?;
    machine.edit(|mut header| {
        header["boot"] = "other".into();
        header
    })?;
    equal("nothing is undone", (machine.sweep(), machine.value()), (Vec::new(), "newer".to_owned()))?;
    equal("it is gone", machine.entries(), 0)
}

fn damaged() -> Test {
    let whole = {
        let machine = Machine::new()?;
        machine.left()?;
        fs::read_to_string(machine.file())?
    };
    let changed = |from: &str, to: &str| whole.replacen(from, to, 1).into_bytes();
    let cases: [(Vec<u8>, &str); 8] = [
        (Vec::new(), "no header"),
        (b"\0\0\0\n".to_vec(), "its header"),
        (vec![0xff; 100], "invalid utf-8"),
        (vec![b'x'; 5 << 20], "longer than"),
        (changed("\"version\":1", "\"version\":9"), "version 9"),
        (changed("\"subject\":\"setting\"", "\"subject\":\"../../etc/passwd\""), "another subject"),
        (changed("{\"before\":\"old\"", "{\"file\":\"/etc/passwd\""), "missing field"),
        (changed("{\"before\":\"old\"", "\"/etc/passwd\"{"), "step 1"),
    ];
    for (bytes, why) in cases {
        let machine = Machine::new()?;
        machine.left()?;
        fs::write(machine.file(), &bytes)?;
        let said = machine.sweep().join("\n");
        let is_clear = said.starts_with(&format!("{}: damaged (", machine.file().display()));
        equal(&said, (is_clear, said.contains(why)), (true, true))?;
        equal("nothing is changed", machine.value().as_str(), "newer")?;
        equal("it stays for a reader", fs::read(machine.file())?, bytes)?;
        let turn = machine.journal().turn()?;
        equal("nobody goes on with it", turn.needed(&machine.setting(), SUBJECT).is_err(), true)?;
    }
    // A path that is not a regular file must not be opened.
    let machine = Machine::new()?;
    machine.left()?;
    fs::remove_file(machine.file())?;
    let status = Command::new("mkfifo").arg(machine.file()).status()?;
    equal("mkfifo", status.success(), true)?;
    let said = machine.sweep().join("\n");
    equal(&said, said.contains("it is no file"), true)
}

fn unknown_kind() -> Test {
    let machine = Machine::new()?;
    machine.left()?;
    let file = machine.journal().path().join("later-setting");
    fs::write(&file, fs::read_to_string(machine.file())?.replace("\"kind\":\"lab\"", "\"kind\":\"later\""))?;
    equal("swept", machine.sweep().len(), 1)?;
    equal("it stays", file.exists(), true)
}

fn lifetimes() -> Test {
    let machine = Machine::new()?;
    for lifetime in [Lifetime::Request, Lifetime::Boot] {
        let journal = machine.journal();
        let turn = journal.turn()?;
        let mut entry = turn.begin::<Setting>(SUBJECT, lifetime, "a test")?;
        entry.add_within(&turn, Step { before: "old".into(), set: "new".into() })?;
        drop(turn);
        fs::write(machine.setting().0, "new")?;
        entry.abandon()?;
        equal("it outlives its process", (machine.sweep().len(), machine.value().as_str()), (0, "new"))?;
        let undone = journal.undo(&[&machine.setting()], |header| header.subject == SUBJECT);
        let (value, count) = if lifetime == Lifetime::Request { ("old", 1) } else { ("new", 0) };
        equal("undone on request", (machine.value().as_str(), undone.len()), (value, count))?;
    }
    equal("what lasts until the boot is listed", machine.entries(), 1)?;
    // A completed change may outlive the process that made it.
    let machine = Machine::new()?;
    let (setting, journal) = (machine.setting(), machine.journal());
    let mut entry = journal.turn()?.begin::<Setting>(SUBJECT, Lifetime::Process, "a test")?;
    entry.add(Step { before: "old".into(), set: "new".into() })?;
    fs::write(&setting.0, "new")?;
    entry.set_lifetime(Lifetime::Request)?;
    equal("it stays", (entry.leave(&setting)?, machine.value().as_str()), (Outcome::nothing(), "new"))?;
    equal("nothing is swept", machine.sweep().len(), 0)?;
    let ended = journal.turn()?.end(&setting, SUBJECT)?;
    equal("ended", ended, Some(Outcome::undone("setting: put back to old")))?;
    equal("value and entries", (machine.value().as_str(), machine.entries()), ("old", 0))?;
    equal("there is nothing to end", journal.turn()?.end(&setting, SUBJECT)?, None)
}

fn tried_again() -> Test {
    struct Stuck;
    impl Undo for Stuck {
        const KIND: Kind = Kind::Lab;
        type Step = Step;
        fn undo(&self, _: &str, _: &[Step]) -> Outcome {
            Outcome::Failed(vec!["it is stuck".into()])
        }
    }
    let machine = Machine::new()?;
    machine.left()?;
    let said = machine.journal().sweep(&[&Stuck as &dyn Undoer]);
    equal("said", said, vec!["lab setting: left by a latpath that was killed; it is stuck".to_owned()])?;
    let stuck = |turn: &LockedJournal| turn.needed(&Stuck, SUBJECT).map(|_| ()).unwrap_err().to_string();
    equal("it cannot be changed again", stuck(&machine.journal().turn()?).contains("it is stuck"), true)?;
    equal("swept", machine.sweep().len(), 1)?;
    equal("value", machine.value().as_str(), "old")
}

fn no_journal() -> Test {
    let machine = Machine::new()?;
    let nowhere = Journal::at(&machine.setting().0.join("journal"));
    let error = nowhere.turn().err().ok_or("a journal below a file")?.to_string();
    equal(&error, error.contains("Not a directory") && error.contains("undone after a kill"), true)?;
    equal("swept", nowhere.sweep(&[&machine.setting()]), Vec::<String>::new())?;
    let mut entry = Entry::in_memory::<Setting>(SUBJECT, "a test");
    entry.add(Step { before: "old".into(), set: "new".into() })?;
    fs::write(machine.setting().0, "new")?;
    equal("undone", entry.leave(&machine.setting())?, Outcome::undone("setting: put back to old"))?;
    equal("value", machine.value().as_str(), "old")
}

fn removed() -> Test {
    let machine = Machine::new()?;
    let journal = machine.journal();
    let mut entry = journal.turn()?.begin::<Setting>(SUBJECT, Lifetime::Process, "a test")?;
    entry.add(Step { before: "old".into(), set: "new".into() })?;
    fs::write(machine.setting().0, "new")?;
    fs::remove_file(machine.file())?;
    entry.add(Step { before: "new".into(), set: "newer".into() })?;
    fs::write(machine.setting().0, "newer")?;
    equal("both steps", fs::read_to_string(machine.file())?.lines().count(), 3)?;
    fs::remove_file(machine.file())?;
    equal("undone", entry.leave(&machine.setting())?, Outcome::undone("setting: put back to old"))?;
    equal("value and entries", (machine.value().as_str(), machine.entries()), ("old", 0))
}
