//! Timestamps, errors and tags in a packet's control messages: pure functions over the bytes of a `msghdr`'s control
//! data.
//!
//! The kernel writes the bytes, but they are parsed as untrusted input.

use latpath_linux::net::control_messages;
use latpath_model::Ns;
use latpath_protocols::Tag;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `SO_TIMESTAMPING_NEW` in `asm-generic/socket.h`: its timestamps have 64 bits on all machines; the older ones have 64
/// bits only on 64-bit machines.
const SCM_TIMESTAMPING_NEW: i32 = 65;
/// `PACKET_TX_TIMESTAMP` in `linux/if_packet.h`.
const PACKET_TX_TIMESTAMP: i32 = 16;
/// Values of `ee_info` in `linux/errqueue.h`.
const TSTAMP_SND: u32 = 0;
const TSTAMP_SCHED: u32 = 1;

/// Timestamps of a received packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxStamps {
    /// The kernel's timestamp, `CLOCK_REALTIME`.
    pub kernel: Option<Ns>,
    /// The NIC's timestamp, by its own clock.
    pub nic: Option<Ns>,
}

/// Where a sent packet was timestamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TxKind {
    /// Before the queueing discipline; `CLOCK_REALTIME`.
    Sched,
    /// When the driver passes it to the NIC; `CLOCK_REALTIME`.
    Driver,
    /// When the NIC sends it; the NIC's clock.
    Nic,
}

/// A timestamp of a sent packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxStamp {
    /// Where the timestamp was taken.
    pub kind: TxKind,
    /// Time by the clock of that kind, ns.
    pub time: Ns,
}

/// Finds the timestamps of a received packet. A timestamp that is zero, invalid or truncated counts as missing.
pub fn rx_stamps(control: &[u8]) -> RxStamps {
    let is_stamp = |kind| matches!(kind, (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING | SCM_TIMESTAMPING_NEW));
    let last = control_messages(control).filter(|(kind, _)| is_stamp(*kind)).last();
    let (kernel, nic) = last.map(|(_, data)| software_and_raw(data)).unwrap_or_default();
    RxStamps { kernel, nic }
}

/// The destination address of a datagram, which is one of this machine's (`IP_PKTINFO`, `IPV6_RECVPKTINFO`), if the
/// socket requested it.
pub fn local_address(control: &[u8]) -> Option<IpAddr> {
    control_messages(control).find_map(|(kind, data)| match kind {
        // struct in_pktinfo: device index, source address for answers, destination address in the packet.
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => data.get(4..)?.first_chunk::<4>().map(|a| Ipv4Addr::from(*a).into()),
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => data.first_chunk::<16>().map(|a| Ipv6Addr::from(*a).into()),
        _ => None,
    })
}

/// Finds the timestamp in a message from the error queue (`MSG_ERRQUEUE`) of a UDP socket (IPv4, IPv6) or packet
/// socket. `None` if the message does not contain a valid timestamp of a sent packet but, for example, the error of an
/// earlier send.
pub fn from_error_queue(control: &[u8]) -> Option<TxStamp> {
    let (mut software, mut raw, mut info) = (None, None, None);
    for (kind, data) in control_messages(control) {
        match kind {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING | SCM_TIMESTAMPING_NEW) => {
                (software, raw) = software_and_raw(data);
            }
            (libc::SOL_IP, libc::IP_RECVERR)
            | (libc::SOL_IPV6, libc::IPV6_RECVERR)
            | (libc::SOL_PACKET, PACKET_TX_TIMESTAMP) => info = stamp_info(data),
            _ => {}
        }
    }
    // Only one of the two timestamps is present: the kernel omits the NIC's from a message with the driver's
    // (net/socket.c, skb_is_swtx_tstamp).
    let (kind, time) = match (info?, software, raw) {
        (TSTAMP_SCHED, Some(time), _) => (TxKind::Sched, time),
        (TSTAMP_SND, Some(time), _) => (TxKind::Driver, time),
        (TSTAMP_SND, None, Some(time)) => (TxKind::Nic, time),
        _ => return None,
    };
    Some(TxStamp { kind, time })
}

/// Why a queueing discipline discarded a frame with a send time (`SO_EE_CODE_TXTIME_…` of `linux/errqueue.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTimeFault {
    /// The send time had passed when the frame arrived, or uses a different clock than the discipline.
    Invalid,
    /// The frame was still in the queue when its send time passed.
    Missed,
}

/// A frame that a queueing discipline discarded because of its send time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// The reason.
    pub fault: SendTimeFault,
    /// The frame's send time, ns.
    pub send_time: Ns,
}

/// Parses the report of a discarded frame in a message from the error queue; `None` for any other message.
pub fn discarded(control: &[u8]) -> Option<Discarded> {
    /// `SO_EE_ORIGIN_TXTIME`.
    const TXTIME: u8 = 6;
    let error = control_messages(control).find_map(|(kind, data)| {
        let is_error = matches!(
            kind,
            (libc::SOL_IP, libc::IP_RECVERR)
                | (libc::SOL_IPV6, libc::IPV6_RECVERR)
                | (libc::SOL_PACKET, PACKET_TX_TIMESTAMP)
        );
        (is_error && data.len() >= 16 && data[4] == TXTIME).then_some(data)
    })?;
    let fault = match error[6] {
        1 => SendTimeFault::Invalid,
        2 => SendTimeFault::Missed,
        _ => return None,
    };
    let send_time = u64::from(u32_at(error, 12)?) << 32 | u64::from(u32_at(error, 8)?);
    Some(Discarded { fault, send_time: Ns::try_from(send_time).ok()? })
}

/// The kind of timestamp in a `struct sock_extended_err` (`linux/errqueue.h`); `None` for an error.
fn stamp_info(bytes: &[u8]) -> Option<u32> {
    let is_stamp = u32_at(bytes, 0)? == libc::ENOMSG as u32 && *bytes.get(4)? == libc::SO_EE_ORIGIN_TIMESTAMPING;
    u32_at(bytes, 8).filter(|_| is_stamp && bytes.len() >= 16)
}

/// Parses `struct scm_timestamping`: three times; the second is obsolete.
fn software_and_raw(bytes: &[u8]) -> (Option<Ns>, Option<Ns>) {
    (time(bytes, 0), time(bytes, 32))
}

/// Parses a timespec of two 64-bit numbers. Zero means no timestamp.
fn time(bytes: &[u8], at: usize) -> Option<Ns> {
    let word = |at| Some(i64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let (sec, nsec) = (word(at)?, word(at + 8)?);
    if sec < 0 || !(0..1_000_000_000).contains(&nsec) {
        return None;
    }
    sec.checked_mul(1_000_000_000)?.checked_add(nsec).filter(|ns| *ns != 0)
}

/// The kernel's receive timestamp, from a frame's control messages.
pub(crate) fn arrival(control: &[u8]) -> Option<Ns> {
    let kind = (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS);
    let (_, data) = control_messages(control).find(|(found, _)| *found == kind)?;
    let word = |at: usize| data.get(at..)?.first_chunk().map(|b| i64::from_ne_bytes(*b));
    Some(word(0)? * 1_000_000_000 + word(8)?)
}

/// The 802.1Q tag that the kernel removed, from a frame's control messages (`struct tpacket_auxdata` of
/// linux/if_packet.h).
pub fn removed_tag(control: &[u8]) -> Option<Tag> {
    let (_, data) = control_messages(control).find(|(kind, _)| *kind == (libc::SOL_PACKET, libc::PACKET_AUXDATA))?;
    let half = |at: usize| data.get(at..)?.first_chunk().map(|b| u16::from_ne_bytes(*b));
    tag_of(u32::from_ne_bytes(*data.first_chunk()?), half(16)?, half(18)?)
}

/// The tag that the kernel removed, from its status, TCI and TPID; `None` if it removed none.
pub(crate) fn tag_of(status: u32, tci: u16, tpid: u16) -> Option<Tag> {
    let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { tpid } else { 0x8100 };
    (status & libc::TP_STATUS_VLAN_VALID != 0).then_some(Tag { tpid, tci })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAMPS: (i32, i32) = (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING);
    const V4: (i32, i32) = (libc::SOL_IP, libc::IP_RECVERR);
    const V6: (i32, i32) = (libc::SOL_IPV6, libc::IPV6_RECVERR);
    const PACKET: (i32, i32) = (libc::SOL_PACKET, PACKET_TX_TIMESTAMP);

    fn message(kind: (i32, i32), data: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + data.len()).to_ne_bytes().to_vec();
        bytes.extend([kind.0.to_ne_bytes(), kind.1.to_ne_bytes()].concat());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0xEE);
        bytes
    }

    fn times(software: (i64, i64), raw: (i64, i64)) -> Vec<u8> {
        [software.0, software.1, 0, 0, raw.0, raw.1].map(i64::to_ne_bytes).concat()
    }

    fn said(errno: i32, origin: u8, info: u32, data: u32) -> Vec<u8> {
        let words = [errno.to_ne_bytes(), [origin, 0, 0, 0], info.to_ne_bytes(), data.to_ne_bytes()];
        words.concat()
    }

    fn sent(kind: (i32, i32), info: u32, software: (i64, i64), raw: (i64, i64)) -> Vec<u8> {
        let stamp = said(libc::ENOMSG, libc::SO_EE_ORIGIN_TIMESTAMPING, info, 7);
        [message(STAMPS, &times(software, raw)), message(kind, &stamp)].concat()
    }

    #[test]
    fn a_received_packet_has_the_kernels_stamp_and_the_nics() {
        let both = message(STAMPS, &times((1_700_000_000, 5), (12, 34)));
        let expected = RxStamps { kernel: Some(1_700_000_000_000_000_005), nic: Some(12_000_000_034) };
        assert_eq!(rx_stamps(&both), expected);
        let foreign = message((libc::SOL_IP, libc::IP_TTL), &64u32.to_ne_bytes());
        assert_eq!(rx_stamps(&[foreign, both].concat()), expected);
        let newer = message((libc::SOL_SOCKET, 65), &times((1_700_000_000, 5), (12, 34)));
        assert_eq!(rx_stamps(&newer), expected);
    }

    #[test]
    fn zero_and_impossible_times_are_no_stamps() {
        for bad in [(0, 0), (-1, 5), (5, -1), (5, 1_000_000_000), (i64::MAX, 0), (9_223_372_036, 999_999_999)] {
            let got = rx_stamps(&message(STAMPS, &times(bad, (0, 1))));
            assert_eq!(got, RxStamps { kernel: None, nic: Some(1) }, "{bad:?}");
            assert_eq!(from_error_queue(&sent(V4, TSTAMP_SND, bad, bad)), None);
        }
    }

    #[test]
    fn each_kind_of_stamp_is_distinguished_in_every_family() {
        for family in [V4, V6, PACKET] {
            let got = |info, software, raw| match from_error_queue(&sent(family, info, software, raw)) {
                Some(stamp) => (stamp.kind, stamp.time),
                None => panic!("no stamp"),
            };
            assert_eq!(got(TSTAMP_SCHED, (3, 0), (0, 0)), (TxKind::Sched, 3_000_000_000));
            assert_eq!(got(TSTAMP_SND, (3, 1), (0, 0)), (TxKind::Driver, 3_000_000_001));
            assert_eq!(got(TSTAMP_SND, (0, 0), (3, 2)), (TxKind::Nic, 3_000_000_002));
        }
    }

    #[test]
    fn a_stamp_of_a_kind_that_latpath_does_not_know_is_none() {
        assert_eq!(from_error_queue(&sent(V4, 2, (3, 0), (0, 0))), None);
        assert_eq!(from_error_queue(&sent(V4, TSTAMP_SCHED, (0, 0), (3, 0))), None, "no NIC stamps before the queue");
    }

    #[test]
    fn an_error_is_never_a_stamp() {
        for (errno, origin) in [
            (libc::ECONNREFUSED, libc::SO_EE_ORIGIN_ICMP),
            (libc::EMSGSIZE, libc::SO_EE_ORIGIN_LOCAL),
            (libc::ENOMSG, libc::SO_EE_ORIGIN_LOCAL),
            (libc::ECANCELED, libc::SO_EE_ORIGIN_TIMESTAMPING),
            // SO_EE_ORIGIN_ZEROCOPY: a send has completed.
            (0, 5),
        ] {
            // A message that reports an error may also contain the packet's timestamps.
            let error = said(errno, origin, 0, 0);
            let control = [message(STAMPS, &times((3, 0), (3, 0))), message(V4, &error)].concat();
            assert_eq!(from_error_queue(&control), None);
        }
    }

    #[test]
    fn a_frame_that_was_discarded_is_reported_with_its_send_time_and_is_no_stamp() {
        let at: Ns = 1_700_000_000_123_456_789;
        for (code, fault) in [(1, Some(SendTimeFault::Invalid)), (2, Some(SendTimeFault::Missed)), (3, None)] {
            let (low, high) = (at as u32, (at >> 32) as u32);
            let words = [libc::ECANCELED.to_ne_bytes(), [6, 0, code, 0], low.to_ne_bytes(), high.to_ne_bytes()];
            let control = message(PACKET, &words.concat());
            assert_eq!(discarded(&control), fault.map(|fault| Discarded { fault, send_time: at }));
            assert_eq!(from_error_queue(&control), None);
            assert!((0..32).all(|len| discarded(&control[..len]).is_none()), "truncated");
        }
        assert_eq!(discarded(&sent(PACKET, TSTAMP_SND, (3, 1), (0, 0))), None);
    }

    #[test]
    fn what_is_cut_off_is_not_there() {
        let whole = sent(V4, TSTAMP_SND, (3, 1), (0, 0));
        let needed = whole.len() - 8;
        for len in 0..whole.len() {
            let got = from_error_queue(&whole[..len]);
            assert!(got.is_none() || len >= needed, "{len} of {} bytes: {got:?}", whole.len());
        }
    }

    #[test]
    fn impossible_lengths_end_the_walk() {
        let good = message(STAMPS, &times((3, 0), (0, 0)));
        for len in [0usize, 1, 15, 1 << 20, usize::MAX, usize::MAX - 7] {
            let bad = [&len.to_ne_bytes()[..], &[0; 8], &good].concat();
            assert_eq!(rx_stamps(&bad), RxStamps::default(), "{len}");
        }
    }

    fn auxdata(status: u32, tci: u16, tpid: u16) -> Vec<u8> {
        let data = [&status.to_ne_bytes()[..], &[0; 12], &tci.to_ne_bytes(), &tpid.to_ne_bytes()].concat();
        [&(16 + data.len()).to_ne_bytes()[..], &263i32.to_ne_bytes(), &8i32.to_ne_bytes(), &data, &[0xee; 4]].concat()
    }

    #[test]
    fn a_removed_tag_is_found_after_other_control_messages() {
        let other = [&24usize.to_ne_bytes()[..], &[1; 8], &[0; 8]].concat();
        let (valid, tpid_valid) = (libc::TP_STATUS_VLAN_VALID, libc::TP_STATUS_VLAN_TPID_VALID);
        let tag = |status| removed_tag(&[other.clone(), auxdata(status, 0x8007, 0x88a8)].concat());
        assert_eq!(tag(valid | tpid_valid), Some(Tag { tpid: 0x88a8, tci: 0x8007 }));
        assert_eq!(tag(valid), Some(Tag { tpid: 0x8100, tci: 0x8007 }));
        assert_eq!(tag(0), None);
        assert_eq!(removed_tag(&other), None);
    }

    proptest! {
        #[test]
        fn no_control_data_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), len: usize) {
            removed_tag(&bytes);
            let mut spoilt = auxdata(libc::TP_STATUS_VLAN_VALID, 1, 2);
            spoilt[..8].copy_from_slice(&len.to_ne_bytes());
            removed_tag(&spoilt);
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            rx_stamps(&bytes);
            from_error_queue(&bytes);
            discarded(&bytes);
        }

        /// Random bytes rarely form a message; a corrupted message reaches more code.
        #[test]
        fn any_spoilt_message_is_survived(
            info in 0u32..4, software in any::<(i64, i64)>(), raw in any::<(i64, i64)>(),
            at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = sent(V6, info, software, raw);
            let (at, cut) = (at.index(bytes.len()), cut.index(bytes.len() + 1));
            bytes[at] = byte;
            rx_stamps(&bytes[..cut]);
            if let Some(stamp) = from_error_queue(&bytes[..cut]) {
                prop_assert!(stamp.time > 0);
            }
        }
    }
}
