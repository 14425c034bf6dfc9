//! What the kernel lets a socket see: a classic BPF program, so that no other frame wakes this process.

use super::framing::{Framing, OWN, SV, SVID};
use libc::sock_filter;

const LDW_ABS: u16 = 0x20;
const LDH_ABS: u16 = 0x28;
const LDW_IND: u16 = 0x40;
const LDH_IND: u16 = 0x48;
const LDB_IND: u16 = 0x50;
const LD_IMM: u16 = 0x00;
const LDX_IMM: u16 = 0x01;
const JA: u16 = 0x05;
const JEQ: u16 = 0x15;
const JSET: u16 = 0x45;
const AND: u16 = 0x54;
const ADD: u16 = 0x04;
const ADD_X: u16 = 0x0c;
const TAX: u16 = 0x07;
const RET: u16 = 0x06;

/// Addresses that a program can ask for, so that its jumps reach.
pub const MAX_ADDRESSES: usize = 32;

/// What a socket is to see.
#[derive(Clone, Debug)]
pub struct FrameSelector<'a> {
    /// Destinations: the device's own address, and groups; at most [`MAX_ADDRESSES`].
    pub addresses: &'a [[u8; 6]],
    /// This framing; both where it does not matter.
    pub framing: Option<Framing>,
    /// This session; any where it does not matter.
    pub session: Option<u32>,
}

fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Goes on where the accumulator is `k`, else the frame is not seen.
fn must_be(program: &mut Vec<sock_filter>, k: u32) {
    program.extend([jump(JEQ, k, 1, 0), op(RET, 0)]);
}

/// Moves X from a BER length to the value behind it. A form with more than two bytes leads to a place where nothing matches.
fn skip_length(program: &mut Vec<sock_filter>, at: u32) {
    program.extend([
        op(LDB_IND, at),
        jump(JSET, 0x80, 0, 2),
        op(AND, 3),
        op(JA, 1),
        op(LD_IMM, 0),
        op(ADD, at + 1),
        op(ADD_X, 0),
        op(TAX, 0),
    ]);
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, b| word << 8 | u32::from(*b))
}

/// The bytes at X + `at` must be these.
fn must_read(program: &mut Vec<sock_filter>, mut at: u32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let (code, len) = match bytes.len() {
            4.. => (LDW_IND, 4),
            2 | 3 => (LDH_IND, 2),
            _ => (LDB_IND, 1),
        };
        program.push(op(code, at));
        must_be(program, word(&bytes[..len]));
        at += len as u32;
        bytes = &bytes[len..];
    }
}

/// The program. It sees frames as the kernel hands them to packet sockets: from the destination address on, without the tag.
pub fn program(requested: &FrameSelector<'_>) -> Vec<sock_filter> {
    let mut p = Vec::new();
    let count = requested.addresses.len().min(MAX_ADDRESSES);
    for (i, mac) in requested.addresses[..count].iter().enumerate() {
        // To the end of the list: four for each address that is left, and one for the refusal.
        let rest = 4 * (count - 1 - i) as u8 + 1;
        p.extend([op(LDW_ABS, 0), jump(JEQ, word(&mac[..4]), 0, 2)]);
        p.extend([op(LDH_ABS, 4), jump(JEQ, word(&mac[4..]), rest, 0)]);
    }
    p.push(op(RET, 0));
    let own = own(requested.session);
    p.push(op(LDH_ABS, 12));
    match requested.framing {
        Some(Framing::Own) => must_be(&mut p, OWN.into()),
        Some(Framing::Sv { .. }) => must_be(&mut p, SV.into()),
        None => {
            p.push(jump(JEQ, SV.into(), own.len() as u8 + 2, 0));
            must_be(&mut p, OWN.into());
        }
    }
    if !matches!(requested.framing, Some(Framing::Sv { .. })) {
        p.extend(own);
    }
    if requested.framing != Some(Framing::Own) {
        p.extend(sv(requested.session));
    }
    p
}

/// Behind ethertype and length: the message's magic, its version and kind, its session.
fn own(session: Option<u32>) -> Vec<sock_filter> {
    let mut p = vec![op(LDH_ABS, 16)];
    must_be(&mut p, word(b"LP"));
    if let Some(session) = session {
        p.push(op(LDW_ABS, 20));
        must_be(&mut p, session);
    }
    p.push(op(RET, u32::MAX));
    p
}

/// Behind the ethertype: 8 bytes, savPdu, noASDU of 1, its list, the ASDU, and its svID.
fn sv(session: Option<u32>) -> Vec<sock_filter> {
    let mut p = vec![op(LDX_IMM, 22)];
    must_read(&mut p, 0, &[0x60]);
    skip_length(&mut p, 1);
    must_read(&mut p, 0, &[0x80, 1, 1, 0xa2]);
    skip_length(&mut p, 4);
    must_read(&mut p, 0, &[0x30]);
    skip_length(&mut p, 1);
    must_read(&mut p, 0, &[0x80]);
    must_read(&mut p, 2, SVID);
    if let Some(session) = session {
        must_read(&mut p, 2 + SVID.len() as u32, format!("{session:08x}").as_bytes());
    }
    p.push(op(RET, u32::MAX));
    p
}

#[cfg(test)]
mod tests {
    use super::super::framing::{write, Peer};
    use super::*;
    use crate::wire::{Header, Kind};
    use latpath_protocols::protocol::FrameLink;
    use latpath_protocols::sv::{AsduSpec, FrameSpec};
    use proptest::prelude::*;

    const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const GROUP: [u8; 6] = [1, 0x0c, 0xcd, 4, 0, 1];

    /// Runs a program as the kernel does (net/core/filter.c): a load beyond the frame ends it, and the frame is not seen.
    fn sees(program: &[sock_filter], frame: &[u8]) -> bool {
        let (mut pc, mut a, mut x) = (0usize, 0u32, 0u32);
        let load = |at: u32, len: usize| frame.get(at as usize..at as usize + len).map(word);
        loop {
            let i = program[pc];
            pc += 1;
            let loaded = match i.code {
                LDW_ABS => load(i.k, 4),
                LDH_ABS => load(i.k, 2),
                LDW_IND => load(x.wrapping_add(i.k), 4),
                LDH_IND => load(x.wrapping_add(i.k), 2),
                LDB_IND => load(x.wrapping_add(i.k), 1),
                LD_IMM => Some(i.k),
                AND => Some(a & i.k),
                ADD => Some(a.wrapping_add(i.k)),
                ADD_X => Some(a.wrapping_add(x)),
                LDX_IMM | TAX => {
                    x = if i.code == TAX { a } else { i.k };
                    continue;
                }
                JA => {
                    pc += i.k as usize;
                    continue;
                }
                JEQ | JSET => {
                    let yes = if i.code == JEQ { a == i.k } else { a & i.k != 0 };
                    pc += usize::from(if yes { i.jt } else { i.jf });
                    continue;
                }
                RET => return i.k != 0,
                code => panic!("{code:#x}"),
            };
            match loaded {
                Some(value) => a = value,
                None => return false,
            }
        }
    }

    fn frame(to: [u8; 6], framing: Framing, session: u32, len: usize) -> Vec<u8> {
        let mut message = vec![0; len];
        Header { kind: Kind::Probe, session, sequence: 7, first: 1, second: 2 }.write(&mut message);
        let mut frame = vec![0; 2000];
        let len = write(&mut frame, &Peer { mac: to, framing, tag: None }, [2; 6], 65536, &message).unwrap();
        frame.truncate(len);
        frame
    }

    fn framing() -> impl Strategy<Value = Framing> {
        prop_oneof![Just(Framing::Own), Just(Framing::Sv { appid: 0x4000 })]
    }

    proptest! {
        #[test]
        fn what_is_wanted_is_seen_and_no_more(
            framing in framing(), only in prop::option::of(framing()), len in 32..1400usize, session: u32,
            asked in prop::option::of(any::<bool>()), to in 0..3usize
        ) {
            let mac = [OWN_MAC, GROUP, [2, 0, 0, 0, 0, 8]][to];
            let session_asked = asked.map(|same| if same { session } else { session ^ 0x10 });
            let requested = FrameSelector { addresses: &[OWN_MAC, GROUP], framing: only, session: session_asked };
            let expected = to < 2 && only.is_none_or(|o| o == framing) && asked != Some(false);
            prop_assert_eq!(sees(&program(&requested), &frame(mac, framing, session, len)), expected);
        }

        #[test]
        fn any_frame_ends_the_program(mut bytes in prop::collection::vec(any::<u8>(), 0..100), sv: bool) {
            if let Some(place) = bytes.get_mut(12..14) {
                place.copy_from_slice(if sv { &[0x88, 0xba] } else { &[0x88, 0xb5] });
            }
            sees(&program(&FrameSelector { addresses: &[OWN_MAC], framing: None, session: Some(1) }), &bytes);
        }
    }

    #[test]
    fn merging_units_and_other_experiments_are_not_seen() {
        let unit = AsduSpec { svid: b"latpath-pong-00000001".to_vec(), data: vec![0; 64], ..AsduSpec::default() };
        let several = vec![unit.clone(); 2];
        let all = program(&FrameSelector { addresses: &[GROUP, OWN_MAC], framing: None, session: None });
        let link = FrameLink { dst: Some(GROUP), ..FrameLink::default() };
        for asdus in [vec![unit], several] {
            let frame = FrameSpec { link: link.clone(), asdus, ..FrameSpec::default() }.build().unwrap();
            assert!(!sees(&all, &frame));
        }
        let mut other = [0; 60];
        other[..6].copy_from_slice(&GROUP);
        other[12..14].copy_from_slice(&OWN.to_be_bytes());
        assert!(!sees(&all, &other), "another's experiment");
        other[16..18].copy_from_slice(b"LP");
        assert!(sees(&all, &other));
    }

    #[test]
    fn the_longest_program_reaches_its_end() {
        let addresses: Vec<[u8; 6]> = (0..MAX_ADDRESSES as u8).map(|i| [1, 0x0c, 0xcd, 4, 0, i]).collect();
        let p = program(&FrameSelector { addresses: &addresses, framing: None, session: Some(5) });
        for mac in [addresses[0], addresses[MAX_ADDRESSES - 1]] {
            assert!(sees(&p, &frame(mac, Framing::Own, 5, 32)));
            assert!(sees(&p, &frame(mac, Framing::Sv { appid: 1 }, 5, 300)));
        }
        assert!(!sees(&p, &frame([1, 0x0c, 0xcd, 4, 0, 200], Framing::Own, 5, 32)));
    }
}
