//! Stamps and errors in what comes beside a packet: pure functions over the bytes of a `msghdr`'s control data.
//!
//! The bytes are the kernel's; they are read as if they were anybody's.

use latpath_model::Ns;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `SO_TIMESTAMPING_NEW` of `asm-generic/socket.h`: its stamps have 64 bits everywhere, as the older ones have on 64-bit machines.
const SCM_TIMESTAMPING_NEW: i32 = 65;
/// `SCM_TIMESTAMPING_PKTINFO` of `asm-generic/socket.h`.
const SCM_TIMESTAMPING_PKTINFO: i32 = 58;
/// `PACKET_TX_TIMESTAMP` of `linux/if_packet.h`.
const PACKET_TX_TIMESTAMP: i32 = 16;
/// Types of `ee_info` in `linux/errqueue.h`.
const TSTAMP_SND: u32 = 0;
const TSTAMP_SCHED: u32 = 1;

/// When a packet was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxStamps {
    /// By the kernel, `CLOCK_REALTIME`.
    pub kernel: Option<Ns>,
    /// By the NIC, its own clock.
    pub nic: Option<Ns>,
    /// Index of the device that made the NIC's stamp, where the kernel says it.
    pub nic_device: Option<u32>,
}

/// Where a sent packet was stamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TxKind {
    /// Before the queueing discipline; `CLOCK_REALTIME`.
    Sched,
    /// As the driver hands it to the NIC; `CLOCK_REALTIME`.
    Driver,
    /// As the NIC sends it; the NIC's clock.
    Nic,
}

/// When a packet was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxStamp {
    /// Where it was stamped.
    pub kind: TxKind,
    /// The time, in the clock that the kind says.
    pub time: Ns,
    /// The kernel's counter, where `SOF_TIMESTAMPING_OPT_ID` is on; else 0.
    pub id: u32,
}

/// Who reports an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This machine.
    Local,
    /// Another, by ICMP or ICMPv6.
    Icmp,
    /// The queueing discipline that sends at set times (`SO_TXTIME`): the time was missed or wrong.
    TxTime,
    /// Another that latpath does not know.
    Other(u8),
}

/// An error of an earlier send, as for a peer that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedError {
    /// As in errno(3): `ECONNREFUSED`, `EHOSTUNREACH`, …
    pub errno: i32,
    /// Who reports it.
    pub origin: Origin,
    /// The machine that reports it.
    pub from: Option<IpAddr>,
}

impl fmt::Display for QueuedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", io::Error::from_raw_os_error(self.errno))?;
        match self.from {
            Some(from) => write!(f, ", says {from}"),
            None => Ok(()),
        }
    }
}

/// What stood in a socket's error queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// When a packet was sent.
    Stamp(TxStamp),
    /// An error of an earlier send.
    Error(QueuedError),
}

/// The stamps that came with a received packet. A stamp that is zero, impossible or cut off is none.
pub fn rx_stamps(control: &[u8]) -> RxStamps {
    let mut stamps = RxStamps::default();
    for (kind, data) in control_messages(control) {
        match kind {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING | SCM_TIMESTAMPING_NEW) => {
                (stamps.kernel, stamps.nic) = software_and_raw(data);
            }
            (libc::SOL_SOCKET, SCM_TIMESTAMPING_PKTINFO) => stamps.nic_device = u32_at(data, 0),
            _ => {}
        }
    }
    stamps
}

/// Where a datagram was sent to: this machine's address in it (`IP_PKTINFO`, `IPV6_RECVPKTINFO`), where the socket asked for it.
pub fn local_address(control: &[u8]) -> Option<IpAddr> {
    control_messages(control).find_map(|(kind, data)| match kind {
        // struct in_pktinfo: index, the address to answer from, the address in the packet.
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => data.get(4..)?.first_chunk::<4>().map(|a| Ipv4Addr::from(*a).into()),
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => data.first_chunk::<16>().map(|a| Ipv6Addr::from(*a).into()),
        _ => None,
    })
}

/// What a packet of the error queue (`MSG_ERRQUEUE`) of a UDP socket (IPv4, IPv6) or a packet socket says. `None` where it is
/// neither a stamp of a packet sent nor an error, or where the stamp in it is none.
pub fn from_error_queue(control: &[u8]) -> Option<Queued> {
    let (mut software, mut raw, mut said) = (None, None, None);
    for (kind, data) in control_messages(control) {
        match kind {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING | SCM_TIMESTAMPING_NEW) => {
                (software, raw) = software_and_raw(data);
            }
            (libc::SOL_IP, libc::IP_RECVERR)
            | (libc::SOL_IPV6, libc::IPV6_RECVERR)
            | (libc::SOL_PACKET, PACKET_TX_TIMESTAMP) => said = Said::read(data),
            _ => {}
        }
    }
    let said = said?;
    if said.errno != libc::ENOMSG || said.origin != libc::SO_EE_ORIGIN_TIMESTAMPING {
        return said.error().map(Queued::Error);
    }
    // One of the two: the kernel leaves the NIC's out of a message with the driver's (net/socket.c, skb_is_swtx_tstamp).
    let (kind, time) = match (said.info, software, raw) {
        (TSTAMP_SCHED, Some(time), _) => (TxKind::Sched, time),
        (TSTAMP_SND, Some(time), _) => (TxKind::Driver, time),
        (TSTAMP_SND, None, Some(time)) => (TxKind::Nic, time),
        _ => return None,
    };
    Some(Queued::Stamp(TxStamp { kind, time, id: said.data }))
}

/// `struct sock_extended_err` of `linux/errqueue.h`, and the address after it.
struct Said {
    errno: i32,
    origin: u8,
    info: u32,
    data: u32,
    from: Option<IpAddr>,
}

impl Said {
    fn read(bytes: &[u8]) -> Option<Self> {
        const LEN: usize = 16;
        let errno = i32_at(bytes, 0)?;
        let (info, data) = (u32_at(bytes, 8)?, u32_at(bytes, 12)?);
        Some(Self { errno, origin: bytes[4], info, data, from: address(&bytes[LEN..]) })
    }

    fn error(&self) -> Option<QueuedError> {
        let origin = match self.origin {
            libc::SO_EE_ORIGIN_LOCAL => Origin::Local,
            libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6 => Origin::Icmp,
            // SO_EE_ORIGIN_ZEROCOPY: a send has ended, well.
            5 => return None,
            6 => Origin::TxTime,
            other => Origin::Other(other),
        };
        (self.errno > 0).then_some(QueuedError { errno: self.errno, origin, from: self.from })
    }
}

/// A `sockaddr_in` or `sockaddr_in6`; the kernel writes neither where nobody else reports the error.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    match i32::from(family) {
        libc::AF_INET => Some(Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// `struct scm_timestamping`: three times, of which the second is no longer used.
fn software_and_raw(bytes: &[u8]) -> (Option<Ns>, Option<Ns>) {
    (time(bytes, 0), time(bytes, 32))
}

/// A timespec of two 64-bit numbers. All zeros means that there is none.
fn time(bytes: &[u8], at: usize) -> Option<Ns> {
    let word = |at| Some(i64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let (sec, nsec) = (word(at)?, word(at + 8)?);
    if sec < 0 || !(0..1_000_000_000).contains(&nsec) {
        return None;
    }
    sec.checked_mul(1_000_000_000)?.checked_add(nsec).filter(|ns| *ns != 0)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The control messages in some bytes, as cmsg(3) lays them out: level and type, and the data. Ends at the first whose length is
/// impossible.
pub fn control_messages(mut control: &[u8]) -> impl Iterator<Item = ((i32, i32), &[u8])> {
    const WORD: usize = size_of::<usize>();
    const HEADER: usize = (size_of::<libc::cmsghdr>()).next_multiple_of(WORD);
    std::iter::from_fn(move || {
        // cmsg_len is a size_t with glibc; with musl an int and its padding, which are the same bytes on 64-bit machines that
        // count them from the lowest.
        let len = usize::from_ne_bytes(*control.first_chunk()?);
        let kind = (i32_at(control, WORD)?, i32_at(control, WORD + 4)?);
        let data = control.get(HEADER..len)?;
        control = control.get(len.checked_next_multiple_of(WORD)?..).unwrap_or_default();
        Some((kind, data))
    })
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
        let expected =
            RxStamps { kernel: Some(1_700_000_000_000_000_005), nic: Some(12_000_000_034), nic_device: None };
        assert_eq!(rx_stamps(&both), expected);
        let device =
            message((libc::SOL_SOCKET, SCM_TIMESTAMPING_PKTINFO), &[9u32, 60, 0, 0].map(u32::to_ne_bytes).concat());
        let foreign = message((libc::SOL_IP, libc::IP_TTL), &64u32.to_ne_bytes());
        let all = [foreign, device, both].concat();
        assert_eq!(rx_stamps(&all), RxStamps { nic_device: Some(9), ..expected });
        let newer = message((libc::SOL_SOCKET, 65), &times((1_700_000_000, 5), (12, 34)));
        assert_eq!(rx_stamps(&newer), expected);
    }

    #[test]
    fn zero_and_impossible_times_are_no_stamps() {
        for bad in [(0, 0), (-1, 5), (5, -1), (5, 1_000_000_000), (i64::MAX, 0), (9_223_372_036, 999_999_999)] {
            let got = rx_stamps(&message(STAMPS, &times(bad, (0, 1))));
            assert_eq!(got, RxStamps { kernel: None, nic: Some(1), nic_device: None }, "{bad:?}");
            assert_eq!(from_error_queue(&sent(V4, TSTAMP_SND, bad, bad)), None);
        }
    }

    #[test]
    fn each_kind_of_stamp_is_told_from_the_others_in_every_family() {
        for family in [V4, V6, PACKET] {
            let got = |info, software, raw| match from_error_queue(&sent(family, info, software, raw)) {
                Some(Queued::Stamp(stamp)) => Some((stamp.kind, stamp.time, stamp.id)),
                other => panic!("{other:?}"),
            };
            assert_eq!(got(TSTAMP_SCHED, (3, 0), (0, 0)), Some((TxKind::Sched, 3_000_000_000, 7)));
            assert_eq!(got(TSTAMP_SND, (3, 1), (0, 0)), Some((TxKind::Driver, 3_000_000_001, 7)));
            assert_eq!(got(TSTAMP_SND, (0, 0), (3, 2)), Some((TxKind::Nic, 3_000_000_002, 7)));
        }
    }

    #[test]
    fn a_stamp_of_a_kind_that_latpath_does_not_know_is_none() {
        assert_eq!(from_error_queue(&sent(V4, 2, (3, 0), (0, 0))), None);
        assert_eq!(from_error_queue(&sent(V4, TSTAMP_SCHED, (0, 0), (3, 0))), None, "no NIC stamps before the queue");
    }

    #[test]
    fn a_real_error_is_an_error_and_never_a_stamp() {
        let mut refused = said(libc::ECONNREFUSED, libc::SO_EE_ORIGIN_ICMP, 0, 0);
        refused.extend([&(libc::AF_INET as u16).to_ne_bytes()[..], &[0, 0, 10, 0, 0, 2], &[0; 8]].concat());
        // An error's message carries the packet's own stamps as well.
        let control = [message(STAMPS, &times((3, 0), (3, 0))), message(V4, &refused)].concat();
        let Some(Queued::Error(error)) = from_error_queue(&control) else { panic!() };
        assert_eq!((error.errno, error.origin), (libc::ECONNREFUSED, Origin::Icmp));
        assert_eq!(error.to_string(), "Connection refused (os error 111), says 10.0.0.2");

        let mut unreachable = said(libc::EHOSTUNREACH, libc::SO_EE_ORIGIN_ICMP6, 0, 0);
        unreachable.extend([&(libc::AF_INET6 as u16).to_ne_bytes()[..], &[0; 6], &[0xfd; 16], &[0; 4]].concat());
        let Some(Queued::Error(error)) = from_error_queue(&message(V6, &unreachable)) else { panic!() };
        assert_eq!(error.from, Some("fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd".parse().unwrap()));

        let too_long = message(V4, &said(libc::EMSGSIZE, libc::SO_EE_ORIGIN_LOCAL, 1400, 0));
        let Some(Queued::Error(error)) = from_error_queue(&too_long) else { panic!() };
        assert_eq!(error.to_string(), "Message too long (os error 90)");

        let missed = message(PACKET, &said(libc::ECANCELED, 6, 0, 0));
        assert!(matches!(from_error_queue(&missed), Some(Queued::Error(QueuedError { origin: Origin::TxTime, .. }))));
        assert_eq!(from_error_queue(&message(V4, &said(0, 5, 0, 0))), None, "a zero-copy send has ended");
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

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            rx_stamps(&bytes);
            from_error_queue(&bytes);
        }

        /// Random bytes hardly ever make a message; a spoilt one goes deeper.
        #[test]
        fn any_spoilt_message_is_survived(
            info in 0u32..4, software in any::<(i64, i64)>(), raw in any::<(i64, i64)>(),
            at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = sent(V6, info, software, raw);
            let (at, cut) = (at.index(bytes.len()), cut.index(bytes.len() + 1));
            bytes[at] = byte;
            rx_stamps(&bytes[..cut]);
            if let Some(Queued::Stamp(stamp)) = from_error_queue(&bytes[..cut]) {
                prop_assert!(stamp.time > 0);
            }
        }
    }
}
