//! Encodes a message in an Ethernet frame, and decodes it.
//!
//! ```text
//! own:  dst(6) src(6) [8100 tci(2)] 88B5 length(2) message, zeros up to 60 bytes
//! SV:   dst(6) src(6) [8100 tci(2)] 88BA APPID(2) length(2) reserved(2+2) 60 { 80 01 01, A2 { 30 {
//!           80 svID, 82 smpCnt(2), 83 confRev(4), 85 smpSynch(1), 87 message } } }, zeros up to 60 bytes
//! ```
//! 0x88B5 is the first of the two ethertypes that IEEE Std 802 (9.2.4) reserves for experiments within one network.
//! `length` is that of the message, because frames may be padded. An SV frame has the layout that merging units use.
//! Its svID is `latpath-ping-` and the session in hexadecimal, followed by `-answer` for answers and by `-control` for
//! other messages that are not probes: each of the three is a separate stream, with the probe's number as smpCnt.

use crate::wire::{self, Kind};
use latpath_protocols::{stream::format_mac, sv::Frame, Tag};
use std::fmt;
use std::ops::Range;

/// Ethertype of messages without SV framing.
pub const OWN: u16 = 0x88B5;
/// Ethertype of Sampled Values.
pub const SV: u16 = latpath_protocols::sv::ETHERTYPE;
/// Prefix of every session's svID.
pub const SVID: &[u8; 13] = b"latpath-ping-";
/// Minimum length of a frame without its check sequence (IEEE 802.3, 4A.4.2), bytes.
const MIN_FRAME: usize = 60;
/// Length of two addresses and an ethertype, bytes.
const ETHERNET: usize = 14;
/// Maximum overhead of a frame around its message, bytes: a tag, and an SV frame with the longest svID.
pub const AROUND: usize = ETHERNET + 4 + 8 + 4 + 3 + 4 + 4 + 2 + SVID.len() + 16 + 4 + 6 + 3 + 4;

/// Framing of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// The ethertype [`OWN`], followed by the message.
    Own,
    /// The message as the sample of a Sampled Values frame.
    Sv {
        /// APPID of the frames.
        appid: u16,
    },
}

/// The peer: address, framing and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// MAC address of the peer, or of a group.
    pub mac: [u8; 6],
    /// Framing of its messages.
    pub framing: Framing,
    /// 802.1Q tag of its frames.
    pub tag: Option<Tag>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_mac(&self.mac))?;
        match self.tag {
            Some(tag) => write!(f, " in VLAN {}", tag.vlan()),
            None => Ok(()),
        }
    }
}

/// svID of messages of this kind in a session.
pub fn svid(session: u32, kind: Kind) -> String {
    let mut room = [0; 36];
    let len = put_svid(&mut room, session, kind as u8);
    String::from_utf8_lossy(&room[..len]).into_owned()
}

fn put_svid(out: &mut [u8], session: u32, kind: u8) -> usize {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out[..SVID.len()].copy_from_slice(SVID);
    let mut at = SVID.len();
    for nibble in (0..8).rev() {
        out[at] = HEX[(session >> (4 * nibble) & 15) as usize];
        at += 1;
    }
    let end: &[u8] = match kind {
        k if k == Kind::Probe as u8 => b"",
        k if k == Kind::Answer as u8 => b"-answer",
        _ => b"-control",
    };
    out[at..at + end.len()].copy_from_slice(end);
    at + end.len()
}

/// A cursor that writes bytes into a frame sequentially.
struct Pen<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Pen<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Writes the tag and length of a BER element.
    fn element(&mut self, tag: u8, len: usize) {
        self.put(&[tag]);
        match len {
            0..=0x7f => self.put(&[len as u8]),
            0x80..=0xff => self.put(&[0x81, len as u8]),
            _ => self.put(&[0x82, (len >> 8) as u8, len as u8]),
        }
    }
}

/// Total length of a BER element with `len` bytes of content.
fn element(len: usize) -> usize {
    len + match len {
        0..=0x7f => 2,
        0x80..=0xff => 3,
        _ => 4,
    }
}

/// Writes the frame that carries a message to the peer `to` into `out`, and returns its length; `None` if it does not
/// fit.
pub fn write(out: &mut [u8], to: &Peer, from: [u8; 6], message: &[u8]) -> Option<usize> {
    if out.len() < (message.len() + AROUND).max(MIN_FRAME) || message.len() > usize::from(u16::MAX) - AROUND {
        return None;
    }
    let mut pen = Pen { out, at: 0 };
    pen.put(&to.mac);
    pen.put(&from);
    if let Some(tag) = to.tag {
        pen.put(&tag.tpid.to_be_bytes());
        pen.put(&tag.tci.to_be_bytes());
    }
    match to.framing {
        Framing::Own => {
            pen.put(&OWN.to_be_bytes());
            pen.put(&(message.len() as u16).to_be_bytes());
        }
        Framing::Sv { appid } => sv_header(&mut pen, appid, message),
    }
    pen.put(message);
    let end = pen.at;
    let len = end.max(MIN_FRAME);
    out[end..len].fill(0);
    Some(len)
}

/// Writes the SV headers between the addresses and the message.
fn sv_header(pen: &mut Pen<'_>, appid: u16, message: &[u8]) {
    // svID and smpCnt are derived from the message's header; without a valid header they are zero.
    let header = (message.len() >= wire::HEADER).then_some(message);
    let kind = header.map_or(u8::MAX, |m| m[3]);
    let session = header.map_or(0, |m| u32::from_be_bytes([m[4], m[5], m[6], m[7]]));
    let sequence = header.and_then(|m| m[8..].first_chunk()).map_or(0, |s| u64::from_be_bytes(*s));
    let mut name = [0; 36];
    let name = {
        let len = put_svid(&mut name, session, kind);
        &name[..len]
    };
    let asdu = element(name.len()) + element(2) + element(4) + element(1) + element(message.len());
    let sequence_of = element(asdu);
    let pdu = element(1) + element(sequence_of);
    pen.put(&SV.to_be_bytes());
    pen.put(&appid.to_be_bytes());
    pen.put(&((8 + element(pdu)) as u16).to_be_bytes());
    pen.put(&[0; 4]);
    pen.element(0x60, pdu);
    pen.put(&[0x80, 1, 1]);
    pen.element(0xa2, sequence_of);
    pen.element(0x30, asdu);
    pen.element(0x80, name.len());
    pen.put(name);
    pen.put(&[0x82, 2]);
    pen.put(&(sequence as u16).to_be_bytes());
    pen.put(&[0x83, 4, 0, 0, 0, 1, 0x85, 1, 0]);
    pen.element(0x87, message.len());
}

/// Maximum length of a message in a frame, bytes, for this MTU, which excludes the Ethernet header.
pub fn room(framing: Framing, mtu: usize) -> usize {
    let around = match framing {
        Framing::Own => 2,
        Framing::Sv { .. } => AROUND - ETHERNET - 4,
    };
    mtu.min(usize::from(u16::MAX)).saturating_sub(around)
}

/// The sender of a malformed frame, with a placeholder for its framing.
pub fn sender(frame: &[u8], tag: Option<Tag>) -> Peer {
    let mac = frame.get(6..).and_then(|f| f.first_chunk()).copied().unwrap_or_default();
    Peer { mac, framing: Framing::Own, tag }
}

/// Finds the message in a frame; returns the sender and the message's range. `removed` is the tag that the kernel
/// removed. Frames with two tags are rejected, because the answer would not reach the sender.
pub fn read(frame: &[u8], removed: Option<Tag>) -> Option<(Peer, Range<usize>)> {
    let mac = *frame.get(6..)?.first_chunk()?;
    let number = |at: usize| frame.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b));
    let (mut at, mut tag) = (12, removed);
    let mut ethertype = number(at)?;
    if ethertype == 0x8100 || ethertype == 0x88a8 {
        if removed.is_some() {
            return None;
        }
        tag = Some(Tag { tpid: ethertype, tci: number(at + 2)? });
        at += 4;
        ethertype = number(at)?;
    }
    match ethertype {
        OWN => {
            let start = at + 4;
            let end = start + usize::from(number(at + 2)?);
            frame.get(start..end)?;
            Some((Peer { mac, framing: Framing::Own, tag }, start..end))
        }
        SV => {
            let parsed = Frame::parse(frame).ok()?;
            let asdu = parsed.asdus().next().filter(|a| a.svid.starts_with(SVID))?;
            let data = asdu.data.filter(|_| parsed.asdus().count() == 1)?;
            let peer = Peer { mac, framing: Framing::Sv { appid: parsed.link.appid }, tag };
            Some((peer, asdu.data_at..asdu.data_at + data.len()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Header;
    use latpath_protocols::protocol::FrameLink;
    use latpath_protocols::sv::{AsduSpec, FrameSpec};
    use proptest::prelude::*;

    const FROM: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn peer() -> impl Strategy<Value = Peer> {
        let framing = prop_oneof![Just(Framing::Own), any::<u16>().prop_map(|appid| Framing::Sv { appid })];
        let tag = prop::option::of((0..4095u16, 0..8u8).prop_map(|(vlan, priority)| Tag::new(vlan, priority)));
        (any::<[u8; 6]>(), framing, tag).prop_map(|(mac, framing, tag)| Peer { mac, framing, tag })
    }

    fn message(kind: Kind, session: u32, sequence: u64, len: usize) -> Vec<u8> {
        let mut message = vec![0xaa; len];
        Header { kind, session, sequence, first: 1, second: 2 }.write(&mut message);
        message
    }

    proptest! {
        #[test]
        fn a_message_is_found_again_however_long_and_its_frame_is_no_shorter_than_allowed(
            to in peer(), bytes in prop::collection::vec(any::<u8>(), 0..1500), removed: bool
        ) {
            let mut frame = [0xee; 2048];
            let len = write(&mut frame, &to, FROM, &bytes).unwrap();
            prop_assert!(len >= 60 && len <= bytes.len().max(60) + AROUND);
            // The kernel either removes the tag or leaves it in the frame.
            let mut seen = frame[..len].to_vec();
            let tag = to.tag.filter(|_| removed);
            if tag.is_some() {
                seen.drain(12..16);
            }
            let (from, at) = read(&seen, tag).unwrap();
            prop_assert_eq!(from, Peer { mac: FROM, ..to });
            prop_assert_eq!(&seen[at], &bytes[..]);
        }

        #[test]
        fn an_sv_frame_is_byte_for_byte_that_of_a_merging_unit(
            to in peer(), session: u32, sequence: u64, len in wire::HEADER..1400usize, appid: u16
        ) {
            let to = Peer { framing: Framing::Sv { appid }, ..to };
            let data = message(Kind::Probe, session, sequence, len);
            let mut frame = [0xee; 2048];
            let len = write(&mut frame, &to, FROM, &data).unwrap();
            let asdu = AsduSpec {
                svid: format!("latpath-ping-{session:08x}").into_bytes(),
                smp_cnt: sequence as u16,
                conf_rev: 1,
                data,
                ..AsduSpec::default()
            };
            let link = FrameLink { dst: Some(to.mac), src: FROM, tags: to.tag.into_iter().collect() };
            let spec = FrameSpec { link, appid, simulated: false, asdus: vec![asdu] };
            prop_assert_eq!(&frame[..len], &spec.build().unwrap()[..]);
        }

        #[test]
        fn messages_up_to_the_mtu_fit(to in peer(), mtu in 576..9000usize) {
            let message = vec![7; room(to.framing, mtu)];
            let mut frame = vec![0; 10_000];
            let len = write(&mut frame, &Peer { tag: None, ..to }, FROM, &message).unwrap();
            prop_assert!(len <= mtu + 14);
        }

        #[test]
        fn any_frame_is_read_without_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..4usize) {
            if let Some(place) = bytes.get_mut(12..14) {
                place.copy_from_slice(&[[0x88, 0xb5], [0x88, 0xba], [0x81, 0x00], [0x88, 0xa8]][kind]);
            }
            if let Some((_, at)) = read(&bytes, None) {
                prop_assert!(at.end <= bytes.len());
            }
        }

        #[test]
        fn a_spoilt_frame_is_read_within_its_bounds(to in peer(), at in 12..100usize, byte: u8, cut in 0..150usize) {
            let mut frame = [0; 512];
            let len = write(&mut frame, &to, FROM, &message(Kind::Probe, 1, 2, 96)).unwrap();
            frame[at] = byte;
            let frame = &frame[..len.min(cut)];
            if let Some((_, at)) = read(frame, None) {
                prop_assert!(at.end <= frame.len());
            }
        }
    }

    #[test]
    fn probes_answers_and_other_messages_are_separate_streams() {
        assert_eq!(svid(0xbad_cafe, Kind::Probe), "latpath-ping-0badcafe");
        assert_eq!(svid(0xbad_cafe, Kind::Answer), "latpath-ping-0badcafe-answer");
        assert_eq!(svid(0xbad_cafe, Kind::Hello), "latpath-ping-0badcafe-control");
        assert_eq!(svid(0xbad_cafe, Kind::Welcome), svid(0xbad_cafe, Kind::Breach));
    }

    #[test]
    fn other_frames_are_ignored() {
        let plain = |asdus| FrameSpec { asdus, ..FrameSpec::default() }.build().unwrap();
        let unit = AsduSpec { svid: b"MU01".to_vec(), ..AsduSpec::default() };
        let ping = AsduSpec { svid: b"latpath-ping-1".to_vec(), ..AsduSpec::default() };
        assert_eq!(read(&plain(vec![unit.clone()]), None), None);
        assert_eq!(read(&plain(vec![ping.clone(), unit]), None), None);
        assert!(read(&plain(vec![ping]), None).is_some());
        let mut own = [0; 60];
        own[12..16].copy_from_slice(&[0x88, 0xb5, 0, 45]);
        assert_eq!(read(&own, None), None, "a length beyond the frame's end");
        own[15] = 44;
        assert_eq!(read(&own, None).unwrap().1, 16..60);
        own[12] = 0x08;
        assert_eq!(read(&own, None), None);
    }

    #[test]
    fn a_frame_that_has_no_room_is_not_written() {
        let to = Peer { mac: FROM, framing: Framing::Own, tag: None };
        assert_eq!(write(&mut [0; 59], &to, FROM, &[]), None);
        assert_eq!(write(&mut [0; 1000], &to, FROM, &[0; 1000]), None);
    }
}
