//! Compares the kernel's interpreter of pcap filters with libpcap's on many frames.
//!
//! The program is run by BPF_PROG_RUN: no packet and no device is affected.

use latpath_path::try_filter::Interpreter;
use latpath_path::{Code, Instruction, Library};
use latpath_testkit::{need_root, trial, Failed};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use std::process::ExitCode;

fn main() -> ExitCode {
    let needs = [need_root(), Library::load().err().map(|e| e.to_string())];
    let trial = |name: &str, test: fn() -> Result<(), Failed>| trial(name, &needs, test);
    let tests = vec![
        trial("expressions_choose_the_frames_that_libpcap_chooses", expressions),
        trial("any_filter_returns_what_libpcap_returns", any_filter),
        trial("a_filter_of_the_greatest_length_runs_to_its_end", longest),
    ];
    latpath_testkit::main(tests)
}

/// Expressions from simple to unusual; each compiles with libpcap 1.10.
const EXPRESSIONS: [&str; 28] = [
    "ether proto 0x88ba",
    "ether proto 0x88ba and vlan 7",
    "vlan 7 and ether proto 0x88ba",
    "vlan and vlan",
    "not vlan",
    "ip",
    "ip6",
    "arp",
    "udp port 5000",
    "udp src port 53 or tcp dst port 80",
    "portrange 1000-2000",
    "host 10.0.0.2",
    "net 10.0.0.0/8 and not host 10.0.0.1",
    "ip6 host fe80::1",
    "icmp[icmptype] == icmp-echo",
    "tcp[tcpflags] & (tcp-syn|tcp-ack) != 0",
    "ip[8] < 5 and ip[2:2] > 100",
    "ether[0] & 1 = 1",
    "ether multicast and less 200",
    "greater 64",
    "ether broadcast or ether multicast",
    "ether host 01:0c:cd:04:00:01",
    "udp[8:4] * 3 + len % 7 == 5",
    "(ether[20:2] << 3) ^ 0x55 > ether[21] / 3",
    "-ether[15] == ether[16] | 1",
    "ip proto 17 and udp[4:2] >= 8",
    "mpls or udp",
    "vlan 5 and (udp or arp)",
];

/// Frames of the kinds that the expressions match, otherwise with arbitrary content.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let ethertype = prop_oneof![
        Just(0x88bau16),
        Just(0x0800),
        Just(0x0800),
        Just(0x86dd),
        Just(0x0806),
        Just(0x8847),
        Just(0x8864),
        any::<u16>()
    ];
    let tag = prop::collection::vec((prop_oneof![Just(0x8100u16), Just(0x88a8), Just(0x9100)], 0u16..10), 0..3);
    let ip = (0x44u8..0x48, prop_oneof![Just(17u8), Just(6), Just(1), any::<u8>()], 0u8..3, any::<bool>());
    let macs = prop_oneof![
        Just([1, 0x0c, 0xcd, 4, 0, 1, 2, 0, 0, 0, 0, 1]),
        Just([255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1]),
        any::<[u8; 12]>()
    ];
    let rest = prop::collection::vec(any::<u8>(), 0..300);
    (macs, tag, ethertype, ip, rest, 0usize..360).prop_map(|(macs, tags, ethertype, ip, mut rest, cut)| {
        let mut frame = macs.to_vec();
        for (proto, vid) in tags {
            frame.extend(proto.to_be_bytes());
            frame.extend(vid.to_be_bytes());
        }
        frame.extend(ethertype.to_be_bytes());
        if ethertype == 0x0800 && rest.len() >= 20 {
            let (version, proto, host, fragment) = ip;
            (rest[0], rest[9]) = (version, proto);
            if !fragment {
                (rest[6], rest[7]) = (0, 0);
            }
            rest[16..20].copy_from_slice(&[10, 0, 0, host]);
        }
        frame.extend(rest);
        frame.truncate(cut.max(1));
        frame
    })
}

/// Any program that passes the check: loads from any offset, all arithmetic operations, forward jumps, memory.
fn filter() -> impl Strategy<Value = Code> {
    let k = prop_oneof![0u32..64, 0u32..400, any::<u32>().prop_map(|k| k & 0x7fff_ffff)];
    let loads = [0x00, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x80, 0x01, 0x81, 0xb1];
    let memory = [0x60, 0x61, 0x02, 0x03];
    let alu = [0x04, 0x14, 0x24, 0x34, 0x44, 0x54, 0x64, 0x74, 0x84, 0x94, 0xa4];
    let jumps = [0x05, 0x15, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d];
    let code = prop_oneof![
        4 => prop::sample::select(loads.to_vec()),
        2 => prop::sample::select(memory.to_vec()),
        4 => prop::sample::select(alu.to_vec()),
        2 => prop::sample::select(alu.iter().filter(|c| **c != 0x84).map(|c| c | 8).collect::<Vec<u16>>()),
        3 => prop::sample::select(jumps.to_vec()),
        1 => prop::sample::select(vec![0x07, 0x87]),
        1 => prop::sample::select(vec![0x06, 0x16]),
    ];
    prop::collection::vec((code, any::<u8>(), any::<u8>(), k), 1..60).prop_map(|all| {
        let len = all.len() + 1;
        let mut instructions: Vec<Instruction> = Vec::new();
        // Write all memory cells first: libpcap's interpreter does not clear them.
        let begin = (0..16).map(|k| Instruction { code: 0x02, jt: 0, jf: 0, k });
        instructions.extend(begin);
        for (at, (code, jt, jf, k)) in all.into_iter().enumerate() {
            let left = (len - at - 1) as u32;
            let within = |n: u32| if left == 0 { 0 } else { n % left };
            let k = match code {
                0x02 | 0x03 | 0x60 | 0x61 => k % 16,
                0x05 => within(k),
                // libpcap's result for shifts by 32 or more depends on the processor; its compiler never generates such
                // shifts.
                0x64 | 0x74 => k % 32,
                0x34 | 0x94 => k.max(1),
                _ => k,
            };
            let (jt, jf) = (within(jt.into()) as u8, within(jf.into()) as u8);
            instructions.push(Instruction { code, jt, jf, k });
        }
        instructions.push(Instruction { code: 0x16, jt: 0, jf: 0, k: 0 });
        Code { instructions }
    })
}

fn check(runner: &mut TestRunner, code: &Code, library: &Library, interpreter: &Interpreter) -> Result<(), Failed> {
    let ran = runner.run(&frame(), |frame| {
        let ours = interpreter.run(code, &frame).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(ours, library.run(code, &frame));
        Ok(())
    });
    ran.map_err(|e| e.to_string().into())
}

fn expressions() -> Result<(), Failed> {
    let (library, interpreter) = (Library::load()?, Interpreter::load()?);
    let mut chosen = 0;
    for expression in EXPRESSIONS {
        let code = library.compile(expression).map_err(|e| e.to_string())?;
        let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
        check(&mut runner, &code, &library, &interpreter).map_err(|e| format!("{expression}: {e:?}"))?;
        let mut runner = TestRunner::deterministic();
        for _ in 0..100 {
            let frame = frame().new_tree(&mut runner)?.current();
            chosen += u32::from(library.run(&code, &frame) != 0);
        }
    }
    // The test is meaningless unless enough frames match.
    if chosen < 100 {
        return Err(format!("only {chosen} frames fit an expression").into());
    }
    Ok(())
}

fn any_filter() -> Result<(), Failed> {
    let (library, interpreter) = (Library::load()?, Interpreter::load()?);
    let mut runner = TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
    let ran = runner.run(&(filter(), frame()), |(code, frame)| {
        code.check("any").map_err(|e| TestCaseError::fail(e.to_string()))?;
        let ours = interpreter.run(&code, &frame).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(ours, library.run(&code, &frame), "{:?}", code);
        Ok(())
    });
    ran.map_err(|e| e.to_string().into())
}

fn longest() -> Result<(), Failed> {
    let interpreter = Interpreter::load()?;
    let add = Instruction { code: 0x04, jt: 0, jf: 0, k: 1 };
    let mut instructions = vec![add; 1023];
    instructions.push(Instruction { code: 0x16, jt: 0, jf: 0, k: 0 });
    let code = Code { instructions };
    code.check("long")?;
    let returned = interpreter.run(&code, &[0; 60])?;
    if returned != 1023 {
        return Err(format!("{returned} of 1023 additions").into());
    }
    Ok(())
}
