//! Names come from guests, from whoever makes devices, and from runs that others recorded: in a command that is advised to root each
//! is one word, and no more of the command than a plain name would be.

use latpath_cause::{advise, Actor, Cause, CauseShare, RunContext};
use latpath_flight::{Class, Doing, Running};
use latpath_model::{Link, PointInfo, PointKind};
use latpath_vms::{Bridge, Role, Tap, Thread, Vm};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What a command is to a shell: words, and operators as words of their own that begin with a NUL. The names that are looked for are
/// of quotes and words, not of expansions: `$` outside of quotes is a word's ordinary character here.
fn words(command: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut chars) = (Vec::new(), None::<String>, command.chars());
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return Err(format!("a quote stays open: {command}")),
                    }
                }
            }
            '\\' => word.get_or_insert_default().extend(chars.next()),
            ' ' | '\t' | '\n' => words.extend(word.take()),
            ';' | '|' | '&' | '<' | '>' | '`' | '"' | '#' => {
                words.extend(word.take());
                words.push(format!("\0{c}"));
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

struct Names {
    vm: String,
    tap: String,
    bridge: String,
    thread: String,
    device: String,
}

impl Names {
    fn all(&self) -> [&str; 5] {
        [&self.vm, &self.tap, &self.bridge, &self.thread, &self.device]
    }
}

fn plain() -> Names {
    let [vm, tap, bridge, thread, device] = ["Nvm", "Ntap", "Nbridge", "Nthread", "Ndevice"].map(String::from);
    Names { vm, tap, bridge, thread, device }
}

/// All commands of a cause.
fn commands(cause: Cause, names: &Names, pids: Vec<u32>) -> Vec<String> {
    let thread = |tid, role| Thread {
        tid,
        role,
        vcpu: Some(0),
        comm: names.thread.clone(),
        cpus_allowed: "0-7".parse().unwrap(),
        ..Thread::default()
    };
    let tap = Tap {
        device: names.tap.clone(),
        bridge: Some(Bridge { name: names.bridge.clone(), kind: "openvswitch".into() }),
        vhost: Some(true),
        ..Tap::default()
    };
    let vm = Vm {
        libvirt: true,
        name: names.vm.clone(),
        pid: 5600,
        taps: vec![tap],
        threads: vec![thread(5600, Role::MainLoop), thread(6154, Role::Vcpu), thread(5620, Role::Io)],
        ..Vm::default()
    };
    let point = |kind| PointInfo {
        point: latpath_model::Point { machine: "host".into(), kind, device: names.device.clone() },
        link: Link::Nic,
        netns: 0,
        ifindex: 0,
        peer: 0,
        clock: String::new(),
    };
    let known = RunContext {
        vms: vec![vm],
        points: vec![point(PointKind::NicRx), point(PointKind::Tx)],
        streams: vec!["svid:MU01,vlan=7,mac=01:0c:cd:04:00:01".parse().unwrap()],
        cpus: BTreeMap::from([("host".into(), "0-7".parse().unwrap())]),
        governors: vec!["powersave".into()],
        ..RunContext::default()
    };
    let class = Some(Class { prio: 120, policy: 0 });
    let actor = |pids: Vec<u32>| {
        let doing = Doing::Thread(Running { pid: pids[0], class, guest: false, work: None });
        Actor { name: names.thread.clone(), doing, class, pids, is_tool: false }
    };
    let share = CauseShare {
        cause,
        machine: "host".into(),
        actor: Some(actor(pids)),
        time_ns: 10,
        excess_ns: 10,
        by: vec![(actor(vec![6154]), 10)],
        cpus: vec![(4, 10)],
        hops: vec![((0, 1), 10)],
        number: None,
        state: None,
        waiter: None,
        notes: vec![],
    };
    advise(&share, Some(0), &known).into_iter().flat_map(|advice| advice.commands).collect()
}

fn check(names: &Names) -> Result<(), TestCaseError> {
    let plain = plain();
    for cause in Cause::ALL {
        for pids in [vec![77], vec![77, 78], vec![5620], vec![6154]] {
            let (expected, found) = (commands(*cause, &plain, pids.clone()), commands(*cause, names, pids));
            prop_assert_eq!(expected.len(), found.len());
            for (expected, found) in expected.iter().zip(&found) {
                let found_words = words(found).map_err(TestCaseError::fail)?;
                let expected_words = words(expected).map_err(TestCaseError::fail)?;
                prop_assert_eq!(found_words.len(), expected_words.len(), "{}", found);
                for (expected, found_word) in expected_words.iter().zip(&found_words) {
                    let named = plain.all().into_iter().zip(names.all()).find(|(plain, _)| expected.contains(plain));
                    let right = named.map_or(expected.clone(), |(plain, name)| expected.replace(plain, name));
                    // ovs-ofctl has quotes of its own within its word.
                    let is_flow = expected.contains("actions=");
                    prop_assert!(*found_word == right || is_flow, "{}: {:?} is not {:?}", found, found_word, right);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_port_that_would_reboot_the_machine_stays_a_name() {
    let evil = ["x';reboot;'", "$(reboot)", "a b", "`id`", "x;reboot", "a\"b", "a,drop", "a\\b", "'"];
    for name in evil {
        let [vm, tap, bridge, thread, device] = [name; 5].map(String::from);
        check(&Names { vm, tap, bridge, thread, device }).unwrap();
    }
    let evil = Names { tap: "a,drop'\"".into(), ..plain() };
    let upcall = commands(Cause::Upcall, &evil, vec![77]);
    assert!(upcall[0].ends_with(r#"output:"a,drop'\''\""'"#), "{upcall:?}");
}

proptest! {
    #[test]
    fn each_name_is_one_word_of_each_command(
        vm in "[ -~]{1,12}", tap in "[ -~]{1,15}", bridge in "[ -~]{1,15}", thread in "[ -~]{1,15}", device in "[!-$&-~]{1,15}",
    ) {
        check(&Names { vm, tap, bridge, thread, device })?;
    }
}
