//! Socket filters in classic BPF, including the filter for frames of given protocols, generated from the table of
//! protocols.

use latpath_protocols::{redundancy::HSR, ProtocolId};
use libc::*;

/// Maximum number of VLAN tags in a frame.
const TAGS: u32 = 2;
const TPIDS: [u16; 2] = [0x8100, 0x88a8];
/// Number of bytes added by an HSR tag.
const HSR_TAG: u32 = 6;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const UDP: u32 = 17;

/// Jump targets in the filter for protocols.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    /// Checks the ethertype after this many VLAN tags and, if the flag is set, an HSR tag.
    Tag(u32, bool),
    Ipv4,
    Ipv6,
    Port,
    Accept,
    Reject,
}

/// A classic BPF program (linux/bpf_common.h) with symbolic jumps. All jumps go forward, to a label or (`None`) to the
/// next instruction.
pub struct Program<To> {
    code: Vec<(u16, u32, Option<To>, Option<To>)>,
    places: Vec<(To, usize)>,
}

impl<To> Default for Program<To> {
    /// An empty program.
    fn default() -> Self {
        Self { code: Vec::new(), places: Vec::new() }
    }
}

impl<To: Copy + PartialEq> Program<To> {
    /// Labels the next instruction.
    pub fn here(&mut self, place: To) {
        self.places.push((place, self.code.len()));
    }

    /// Adds an instruction.
    pub fn run(&mut self, code: u32, k: u32) {
        self.code.push((code as u16, k, None, None));
    }

    /// Adds a comparison, with the jump targets if it is true and if it is false.
    pub fn branch(&mut self, code: u32, k: impl Into<u32>, yes: Option<To>, no: Option<To>) {
        self.code.push((code as u16, k.into(), yes, no));
    }

    /// Resolves the jumps to offsets, and returns the program.
    pub fn finish(self) -> Vec<sock_filter> {
        let jump = |from: usize, to: Option<To>| {
            let place = self.places.iter().find(|(place, _)| Some(*place) == to);
            let steps = place.map_or(0, |(_, at)| at - from - 1);
            u8::try_from(steps).expect("the program is short")
        };
        let all = self.code.iter().enumerate();
        all.map(|(i, (code, k, yes, no))| sock_filter { code: *code, jt: jump(i, *yes), jf: jump(i, *no), k: *k })
            .collect()
    }
}

/// Builds a filter that accepts frames of these protocols, with up to two VLAN tags that are still in the frame, and
/// optionally an HSR tag.
pub fn program(protocols: &[ProtocolId]) -> Vec<sock_filter> {
    let infos: Vec<_> = protocols.iter().map(|p| p.info()).collect();
    let ports: Vec<u16> = infos.iter().flat_map(|i| i.udp_ports).copied().collect();
    let mut p = Program::default();
    for (tags, is_hsr) in (0..=TAGS).flat_map(|tags| [(tags, false), (tags, true)]) {
        let more = 4 * tags + if is_hsr { HSR_TAG } else { 0 };
        p.here(To::Tag(tags, is_hsr));
        p.run(BPF_LD | BPF_H | BPF_ABS, 12 + more);
        // Sets the index register to the payload's offset, for later instructions.
        p.run(BPF_LDX | BPF_IMM, 14 + more);
        for ethertype in infos.iter().flat_map(|i| i.ethertypes) {
            let to = match *ethertype {
                IPV4 => To::Ipv4,
                IPV6 => To::Ipv6,
                _ => To::Accept,
            };
            p.branch(BPF_JMP | BPF_JEQ, *ethertype, Some(to), None);
        }
        let inner = if tags < TAGS && !is_hsr { To::Tag(tags + 1, false) } else { To::Reject };
        let hsr = if is_hsr { To::Reject } else { To::Tag(tags, true) };
        p.branch(BPF_JMP | BPF_JEQ, HSR, Some(hsr), None);
        p.branch(BPF_JMP | BPF_JEQ, TPIDS[0], Some(inner), None);
        p.branch(BPF_JMP | BPF_JEQ, TPIDS[1], Some(inner), Some(To::Reject));
    }
    p.here(To::Ipv4);
    p.run(BPF_LD | BPF_B | BPF_IND, 9);
    p.branch(BPF_JMP | BPF_JEQ, UDP, None, Some(To::Reject));
    // Fragments other than the first have no ports.
    p.run(BPF_LD | BPF_H | BPF_IND, 6);
    p.branch(BPF_JMP | BPF_JSET, 0x1fff_u32, Some(To::Reject), None);
    p.run(BPF_LD | BPF_B | BPF_IND, 0);
    p.run(BPF_ALU | BPF_AND, 15);
    p.run(BPF_ALU | BPF_LSH, 2);
    p.run(BPF_ALU | BPF_ADD | BPF_X, 0);
    p.run(BPF_MISC | BPF_TAX, 0);
    p.run(BPF_LD | BPF_H | BPF_IND, 2);
    // Acts as an unconditional jump: two bytes never equal this value.
    p.branch(BPF_JMP | BPF_JEQ, 0x1_0000_u32, Some(To::Reject), Some(To::Port));
    p.here(To::Ipv6);
    p.run(BPF_LD | BPF_B | BPF_IND, 6);
    p.branch(BPF_JMP | BPF_JEQ, UDP, None, Some(To::Reject));
    p.run(BPF_LD | BPF_H | BPF_IND, 40 + 2);
    p.here(To::Port);
    for port in ports {
        p.branch(BPF_JMP | BPF_JEQ, port, Some(To::Accept), None);
    }
    p.here(To::Reject);
    p.run(BPF_RET | BPF_K, 0);
    p.here(To::Accept);
    p.run(BPF_RET | BPF_K, 0x4_0000);
    p.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_linux::net::set_option;
    use latpath_protocols::{protocol::FrameLink, ptp, Matcher, StreamSpec, Tag};
    use proptest::prelude::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    /// A socket with the filter attached: the kernel verifies the program, and applies it to packets sent to the
    /// socket.
    struct Filtered(UnixDatagram, UnixDatagram);

    impl Filtered {
        fn new(protocols: &[ProtocolId]) -> Self {
            let (from, to) = UnixDatagram::pair().unwrap();
            let mut program = program(protocols);
            let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
            set_option(to.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program).unwrap();
            to.set_nonblocking(true).unwrap();
            Self(from, to)
        }

        fn passes(&self, frame: &[u8]) -> bool {
            self.0.send(frame).unwrap();
            self.1.recv(&mut [0; 2048]).is_ok()
        }
    }

    fn sync(sequence_id: u16) -> ptp::Message {
        let source = ptp::PortIdentity { clock: [1; 8], port: 1 };
        ptp::Message { message: 0, domain: 0, source, sequence_id, log_interval: 0 }
    }

    /// A PTP message over UDP, with this IP version, to this port.
    fn over_udp(version: u8, port: u16, tags: &[Tag]) -> Vec<u8> {
        let message = sync(7).build(&FrameLink::default());
        let mut out = message[..12].to_vec();
        tags.iter().for_each(|t| out.extend([t.tpid.to_be_bytes(), t.tci.to_be_bytes()].concat()));
        let mut ip = vec![0; if version == 4 { 24 } else { 40 }];
        if version == 4 {
            (ip[0], ip[9]) = (0x46, 17);
            out.extend([8, 0]);
        } else {
            (ip[0], ip[6]) = (0x60, 17);
            out.extend([0x86, 0xdd]);
        }
        out.extend(ip);
        out.extend([1, 63]);
        out.extend(port.to_be_bytes());
        out.extend([0; 4]);
        out.extend(&message[14..]);
        out
    }

    proptest! {
        #[test]
        fn the_filter_passes_the_frames_of_the_stream_only(
            protocols in prop::sample::subsequence(ProtocolId::listed(), 1..=ProtocolId::listed().len()),
            tags in prop::collection::vec((0_usize..2, 0_u16..4095), 0..=3),
            kind in any::<prop::sample::Index>(),
            cut in prop::option::of(0_usize..80),
        ) {
            let tags: Vec<Tag> = tags.iter().map(|(tpid, vlan)| Tag { tpid: TPIDS[*tpid], ..Tag::new(*vlan, 4) }).collect();
            let link = FrameLink { tags: tags.clone(), ..FrameLink::default() };
            // Each frame is paired with its protocol, as far as a filter can recognise it.
            let example = |protocol: &ProtocolId| {
                let stream: StreamSpec = protocol.info().example.parse().unwrap();
                (Some(*protocol), stream.matcher.rebuild(&link, 1).unwrap().unwrap())
            };
            let mut kinds: Vec<_> = ProtocolId::listed().iter().map(example).collect();
            for version in [4, 6] {
                kinds.push((Some(ProtocolId::Ptp), over_udp(version, ptp::EVENT_PORT, &tags)));
                kinds.push((None, over_udp(version, 320, &tags)));
            }
            kinds.push((None, vec![0xff; 100]));
            let (protocol, mut frame) = kinds.swap_remove(kind.index(kinds.len()));
            frame.truncate(cut.map_or(frame.len(), |cut| cut + 46));
            let expected = match Matcher::read(&frame) {
                Ok((_, found)) => protocols.contains(&found[0].stream.protocol()),
                // A truncated frame matches its protocol if it still contains the ports.
                Err(e) => e.is_malformed() && !matches!(e, latpath_protocols::FrameError::TooManyTags)
                    && protocol.is_some_and(|protocol| protocols.contains(&protocol)),
            };
            prop_assert_eq!(Filtered::new(&protocols).passes(&frame), expected, "{:02x?}", frame);
        }
    }

    #[test]
    fn later_fragments_have_no_ports() {
        let socket = Filtered::new(&[ProtocolId::Ptp]);
        let mut frame = over_udp(4, 319, &[]);
        assert!(socket.passes(&frame));
        frame[21] = 1;
        assert!(!socket.passes(&frame));
    }
}
