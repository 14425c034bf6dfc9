//! Names may come from guests, from creators of devices, and from other users' runs. In a command for root, each name
//! must be one word with the same role as a harmless name.

use latpath_cause::{advise, Actor, Cause, CauseShare, RunContext};
use latpath_flight::{Class, Doing, Running};
use latpath_model::{Link, PointInfo, PointKind};
use latpath_vms::{Bridge, Role, Tap, Thread, Vm};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The words of a command, as a shell parses it. Operators are separate words that begin with a NUL. Only quotes and
/// words matter here, not expansions: `$` outside quotes is an ordinary character.
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
    namespace: String,
}

impl Names {
    fn of(names: [&str; 6]) -> Self {
        let [vm, tap, bridge, thread, device, namespace] = names.map(String::from);
        Self { vm, tap, bridge, thread, device, namespace }
    }

    fn all(&self) -> [&str; 6] {
        [&self.vm, &self.tap, &self.bridge, &self.thread, &self.device, &self.namespace]
    }
}

fn plain() -> Names {
    Names::of(["Nvm", "Ntap", "Nbridge", "Nthread", "Ndevice", "Nspace"])
}

/// Inode number of a network namespace, as assigned by a kernel. A namespace whose name is a number counts as unnamed.
const INODE: u32 = 4_026_532_007;

/// Network namespace of the devices.
#[derive(Clone, Copy)]
enum Space {
    Own,
    Named,
    Unnamed,
}

/// All commands for a cause. If `pids` is empty, a softirq had to act.
fn commands(cause: Cause, names: &Names, pids: Vec<u32>, space: Space) -> Vec<String> {
    let (device, netns) = match space {
        Space::Own => (names.device.clone(), 0),
        Space::Named => (format!("{}%{}", names.device, names.namespace), INODE),
        Space::Unnamed => (names.device.clone(), INODE),
    };
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
        point: latpath_model::Point { machine: "host".into(), kind, device: device.clone() },
        link: Link::Veth,
        netns,
        ifindex: 0,
        peer: 0,
        peer_netns: 0,
        error_bound_ns: 0,
        clock: String::new(),
    };
    let known = RunContext {
        vms: vec![vm].into(),
        points: vec![point(PointKind::NicRx), point(PointKind::Tx)],
        streams: vec!["svid:MU01,vlan=7,mac=01:0c:cd:04:00:01".parse().unwrap()],
        cpus: BTreeMap::from([("host".into(), "0-7".parse().unwrap())]),
        governors: vec!["powersave".into()],
        ..RunContext::default()
    };
    let class = Some(Class { prio: 120, policy: 0 });
    let actor = |pids: Vec<u32>| {
        let thread = |pid: &u32| Doing::Thread(Running { pid: *pid, class, guest: false, work: None });
        let doing = pids.first().map_or(Doing::Softirq(3), thread);
        Actor { name: names.thread.clone(), doing, class, pids, is_tool: false, process: None, threads: vec![] }
    };
    let by = if pids.is_empty() { vec![] } else { vec![6154] };
    let share = CauseShare {
        cause,
        machine: "host".into(),
        actor: Some(actor(pids)),
        time_ns: 10,
        excess_ns: 10,
        by: vec![(actor(by), 10)],
        cpus: vec![(4, 10)],
        hops: vec![((0, 1), 10)],
        number: None,
        state: None,
        waiter: None,
        notes: vec![],
    };
    advise(&share, Some(0), &known).into_iter().flat_map(|advice| advice.commands).collect()
}

/// Checks that words differ from the expected ones only in the names, including words inside scripts for shells.
fn check_words(expected: &str, found: &str, names: &Names) -> Result<(), TestCaseError> {
    let plain = plain();
    let expected_words = words(expected).map_err(TestCaseError::fail)?;
    let found_words = words(found).map_err(TestCaseError::fail)?;
    prop_assert_eq!(found_words.len(), expected_words.len(), "{}", found);
    for (at, (expected, found_word)) in expected_words.iter().zip(&found_words).enumerate() {
        if expected_words[..at].ends_with(&["sh".into(), "-c".into()]) {
            check_words(expected, found_word, names)?;
            continue;
        }
        let named = plain.all().into_iter().zip(names.all()).find(|(plain, _)| expected.contains(plain));
        let right = named.map_or(expected.clone(), |(plain, name)| expected.replace(plain, name));
        // The word for ovs-ofctl itself contains quotes.
        let is_flow = expected.contains("actions=");
        prop_assert!(*found_word == right || is_flow, "{}: {:?} is not {:?}", found, found_word, right);
    }
    Ok(())
}

fn check(names: &Names) -> Result<(), TestCaseError> {
    let mut seen = String::new();
    for cause in Cause::ALL {
        for pids in [vec![77], vec![77, 78], vec![5620], vec![6154], vec![]] {
            for space in [Space::Own, Space::Named, Space::Unnamed] {
                let [expected, found] = [&plain(), names].map(|names| commands(*cause, names, pids.clone(), space));
                prop_assert_eq!(expected.len(), found.len());
                expected.iter().zip(&found).try_for_each(|(expected, found)| check_words(expected, found, names))?;
                seen += &expected.concat();
            }
        }
    }
    for begin in ["ip netns exec Nspace sh -c", "ip netns exec Nspace tc", "unshare -m sh -c", "quit 2>/dev/null) tc"] {
        prop_assert!(seen.contains(begin), "no command with {}", begin);
    }
    Ok(())
}

#[test]
fn a_port_named_like_a_command_remains_a_name() {
    let evil = ["x';reboot;'", "$(reboot)", "a b", "`id`", "x;reboot", "a\"b", "a,drop", "a\\b", "'"];
    for name in evil {
        check(&Names::of([name; 6])).unwrap();
    }
    let evil = Names { tap: "a,drop'\"".into(), ..plain() };
    let upcall = commands(Cause::Upcall, &evil, vec![77], Space::Own);
    assert!(upcall[0].ends_with(r#"output:"a,drop'\''\""'"#), "{upcall:?}");
}

proptest! {
    #[test]
    fn each_name_is_one_word_of_each_command(
        vm in "[ -~]{1,12}", tap in "[ -~]{1,15}", bridge in "[ -~]{1,15}", thread in "[ -~]{1,15}", device in "[!-$&-~]{1,15}",
        namespace in "[ -~]{1,15}",
    ) {
        check(&Names { vm, tap, bridge, thread, device, namespace })?;
    }
}
