//! The socket filter, a classic BPF program, which prevents other frames from waking this process.

use super::framing::{OWN, SV, SVID};
use latpath_wire::filter::Program;
use libc::*;

/// Maximum number of addresses in a program, limited by the range of its jumps.
pub const MAX_ADDRESSES: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    /// Jump target: the instruction after the comparison with the address at this index.
    After(usize),
    /// Jump target if the frame's destination is one of the addresses.
    Addressed,
    Sv,
    /// Jump target for the short form of the BER length of the element at this index.
    Short(u8),
    Skipped(u8),
    Reject,
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, b| word << 8 | u32::from(*b))
}

/// Requires these bytes at X + `at`.
fn must_read(p: &mut Program<To>, mut at: u32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let (size, len) = match bytes.len() {
            4.. => (BPF_W, 4),
            2 | 3 => (BPF_H, 2),
            _ => (BPF_B, 1),
        };
        p.run(BPF_LD | size | BPF_IND, at);
        p.branch(BPF_JMP | BPF_JEQ, word(&bytes[..len]), None, Some(To::Reject));
        at += len as u32;
        bytes = &bytes[len..];
    }
}

/// Advances X from a BER element, whose length is at X + `at`, to its value. A length that takes more than three
/// further bytes leads to no match.
fn skip_length(p: &mut Program<To>, element: u8, at: u32) {
    p.run(BPF_LD | BPF_B | BPF_IND, at);
    p.branch(BPF_JMP | BPF_JSET, 0x80_u32, None, Some(To::Short(element)));
    p.run(BPF_ALU | BPF_AND, 3);
    p.branch(BPF_JMP | BPF_JSET, 0_u32, None, Some(To::Skipped(element)));
    p.here(To::Short(element));
    p.run(BPF_LD | BPF_IMM, 0);
    p.here(To::Skipped(element));
    p.run(BPF_ALU | BPF_ADD, at + 1);
    p.run(BPF_ALU | BPF_ADD | BPF_X, 0);
    p.run(BPF_MISC | BPF_TAX, 0);
}

/// The program that accepts frames to these addresses (the device's own, and groups; at most [`MAX_ADDRESSES`]) and, if
/// given, of this session. The kernel passes it frames from the destination address on, without the tag.
pub fn program(addresses: &[[u8; 6]], session: Option<u32>) -> Vec<sock_filter> {
    let mut p = Program::default();
    for (i, mac) in addresses.iter().take(MAX_ADDRESSES).enumerate() {
        p.run(BPF_LD | BPF_W | BPF_ABS, 0);
        p.branch(BPF_JMP | BPF_JEQ, word(&mac[..4]), None, Some(To::After(i)));
        p.run(BPF_LD | BPF_H | BPF_ABS, 4);
        p.branch(BPF_JMP | BPF_JEQ, word(&mac[4..]), Some(To::Addressed), None);
        p.here(To::After(i));
    }
    p.run(BPF_RET | BPF_K, 0);
    p.here(To::Addressed);
    p.run(BPF_LD | BPF_H | BPF_ABS, 12);
    p.branch(BPF_JMP | BPF_JEQ, SV, Some(To::Sv), None);
    p.branch(BPF_JMP | BPF_JEQ, OWN, None, Some(To::Reject));
    // After ethertype and length: magic, version, kind and session of the message.
    p.run(BPF_LDX | BPF_IMM, 16);
    must_read(&mut p, 0, b"LP");
    if let Some(session) = session {
        must_read(&mut p, 4, &session.to_be_bytes());
    }
    p.run(BPF_RET | BPF_K, u32::MAX);
    // After the ethertype: 8 bytes, savPdu, noASDU of 1, the sequence of ASDUs, the ASDU, and its svID.
    p.here(To::Sv);
    p.run(BPF_LDX | BPF_IMM, 22);
    must_read(&mut p, 0, &[0x60]);
    skip_length(&mut p, 0, 1);
    must_read(&mut p, 0, &[0x80, 1, 1, 0xa2]);
    skip_length(&mut p, 1, 4);
    must_read(&mut p, 0, &[0x30]);
    skip_length(&mut p, 2, 1);
    must_read(&mut p, 0, &[0x80]);
    must_read(&mut p, 2, SVID);
    if let Some(session) = session {
        must_read(&mut p, 2 + SVID.len() as u32, format!("{session:08x}").as_bytes());
    }
    p.run(BPF_RET | BPF_K, u32::MAX);
    p.here(To::Reject);
    p.run(BPF_RET | BPF_K, 0);
    p.finish()
}

#[cfg(test)]
mod tests {
    use super::super::framing::{write, Framing, Peer};
    use super::*;
    use crate::wire::{Header, Kind};
    use latpath_linux::net::set_option;
    use latpath_protocols::protocol::FrameLink;
    use latpath_protocols::sv::{AsduSpec, FrameSpec};
    use proptest::prelude::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const GROUP: [u8; 6] = [1, 0x0c, 0xcd, 4, 0, 1];

    /// Whether the kernel accepts the program and passes this frame.
    fn sees(program: &[sock_filter], frame: &[u8]) -> bool {
        let (from, to) = UnixDatagram::pair().unwrap();
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        set_option(to.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program).unwrap();
        to.set_nonblocking(true).unwrap();
        from.send(frame).unwrap();
        to.recv(&mut [0; 2048]).is_ok()
    }

    fn frame(to: [u8; 6], framing: Framing, session: u32, len: usize) -> Vec<u8> {
        let mut message = vec![0; len];
        Header { kind: Kind::Probe, session, sequence: 7, first: 1, second: 2 }.write(&mut message);
        let mut frame = vec![0; 2000];
        let len = write(&mut frame, &Peer { mac: to, framing, tag: None }, [2; 6], &message).unwrap();
        frame.truncate(len);
        frame
    }

    fn framing() -> impl Strategy<Value = Framing> {
        prop_oneof![Just(Framing::Own), Just(Framing::Sv { appid: 0x4000 })]
    }

    proptest! {
        #[test]
        fn the_filter_passes_the_requested_frames_only(
            framing in framing(), len in 32..1400usize, session: u32, asked in prop::option::of(any::<bool>()), to in 0..3usize
        ) {
            let mac = [OWN_MAC, GROUP, [2, 0, 0, 0, 0, 8]][to];
            let session_asked = asked.map(|same| if same { session } else { session ^ 0x10 });
            let program = program(&[OWN_MAC, GROUP], session_asked);
            prop_assert_eq!(sees(&program, &frame(mac, framing, session, len)), to < 2 && asked != Some(false));
        }
    }

    #[test]
    fn merging_units_and_other_experiments_are_not_seen() {
        let unit = AsduSpec { svid: b"latpath-pong-00000001".to_vec(), data: vec![0; 64], ..AsduSpec::default() };
        let several = vec![unit.clone(); 2];
        let all = program(&[GROUP, OWN_MAC], None);
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
        let p = program(&addresses, Some(5));
        for mac in [addresses[0], addresses[MAX_ADDRESSES - 1]] {
            assert!(sees(&p, &frame(mac, Framing::Own, 5, 32)));
            assert!(sees(&p, &frame(mac, Framing::Sv { appid: 1 }, 5, 300)));
        }
        assert!(!sees(&p, &frame([1, 0x0c, 0xcd, 4, 0, 200], Framing::Own, 5, 32)));
    }
}
