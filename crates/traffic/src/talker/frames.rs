//! The frames of a talker's streams: Sampled Values that contain the send time.

use latpath_model::Ns;
use latpath_protocols::sv::{AsduSpec, Frame, FrameSpec, Waveform, PHSMEAS1_LEN};
use latpath_protocols::BuildError;
use latpath_wire::TxTimeMode;

/// Length of the send time in a talker's frame, bytes: it follows the samples of PhsMeas1 as a ninth value, in ns by
/// the talker's clock, big-endian.
pub const SEND_TIME_LEN: usize = 8;

/// A stream of a talker.
#[derive(Clone, Debug)]
pub struct TalkerStream {
    /// The link layer and APPID; its ASDUs are ignored. If the source MAC is zero, the device's is used.
    pub header: FrameSpec,
    /// svID.
    pub svid: Vec<u8>,
    /// smpSynch.
    pub smp_synch: u8,
    /// smpCnt of the first frame; each later frame increments it.
    pub first: u16,
    /// The wrap of smpCnt, 1 to 65536.
    pub wrap: u32,
    /// Send time, relative to the start of the cycle, ns.
    pub offset: Ns,
    /// How long before its send time a frame is handed to the kernel, ns.
    pub advance: Ns,
    /// Priority (`SO_PRIORITY`), which selects the traffic class.
    pub priority: Option<u8>,
    /// Mode in which the send time is passed to the queueing discipline; `None` if it is not passed.
    pub txtime: Option<TxTimeMode>,
}

impl TalkerStream {
    /// The svID as text.
    pub(super) fn svid(&self) -> String {
        String::from_utf8_lossy(&self.svid).into_owned()
    }
}

/// The next frame of a stream.
pub(super) struct Template {
    pub(super) bytes: Vec<u8>,
    smp_cnt_at: usize,
    data_at: usize,
    wave: Waveform,
    first: u16,
    wrap: u32,
    cycle: Ns,
    number: u64,
    pub(super) send_time: Ns,
    pub(super) offset: Ns,
    pub(super) advance: Ns,
    pub(super) priority: Option<u8>,
    pub(super) txtime: Option<TxTimeMode>,
}

impl Template {
    pub(super) fn new(stream: TalkerStream, mac: [u8; 6]) -> Result<Self, BuildError> {
        assert!(stream.wrap > 0, "smpCnt wraps");
        let asdu = AsduSpec {
            svid: stream.svid,
            conf_rev: 1,
            smp_synch: stream.smp_synch,
            data: vec![0; PHSMEAS1_LEN + SEND_TIME_LEN],
            ..AsduSpec::default()
        };
        let mut spec = FrameSpec { asdus: vec![asdu], ..stream.header };
        if spec.link.src == [0; 6] {
            spec.link.src = mac;
        }
        let bytes = spec.build()?;
        let at = Frame::parse(&bytes).ok().and_then(|f| f.asdus().next().map(|a| (a.smp_cnt_at, a.data_at)));
        let (smp_cnt_at, data_at) = at.expect("what was built can be read");
        Ok(Self {
            bytes,
            smp_cnt_at,
            data_at,
            wave: Waveform::new(4000, 50),
            first: stream.first,
            wrap: stream.wrap,
            cycle: 1,
            number: 0,
            send_time: 0,
            offset: stream.offset,
            advance: stream.advance,
            priority: stream.priority,
            txtime: stream.txtime,
        })
    }

    /// Time at which the frame is to be handed to the kernel.
    pub(super) fn due(&self) -> Ns {
        self.send_time - self.advance
    }

    /// Writes smpCnt, samples and the send time into the frame.
    pub(super) fn fill(&mut self) {
        let count = ((u64::from(self.first) + self.number) % u64::from(self.wrap)) as u16;
        self.bytes[self.smp_cnt_at..self.smp_cnt_at + 2].copy_from_slice(&count.to_be_bytes());
        let samples = &mut self.bytes[self.data_at..][..PHSMEAS1_LEN + SEND_TIME_LEN];
        samples[..PHSMEAS1_LEN].copy_from_slice(self.wave.sample(self.number));
        samples[PHSMEAS1_LEN..].copy_from_slice(&self.send_time.to_be_bytes());
    }

    /// Advances to the frame of the next cycle.
    pub(super) fn advance_by(&mut self, cycle: Ns) {
        self.number += 1;
        self.cycle = cycle;
        self.send_time = self.send_time.saturating_add(cycle);
    }

    /// Whether `packet` ends with this stream's frame for this send time.
    pub(super) fn is(&self, packet: &[u8], send_time: Ns) -> bool {
        let Some(from) = packet.len().checked_sub(self.bytes.len()) else { return false };
        let (frame, at) = (&packet[from..], self.data_at + PHSMEAS1_LEN);
        frame[..self.smp_cnt_at] == self.bytes[..self.smp_cnt_at]
            && frame[at..at + SEND_TIME_LEN] == send_time.to_be_bytes()
    }

    /// Index, from 0, of the earlier frame with this send time.
    pub(super) fn number_of(&self, send_time: Ns) -> u64 {
        self.number.saturating_sub(((self.send_time - send_time) / self.cycle).unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_protocols::protocol::FrameLink;

    fn template(svid: &str) -> Template {
        let stream = TalkerStream {
            header: FrameSpec { link: FrameLink { src: [0; 6], ..FrameLink::default() }, ..FrameSpec::default() },
            svid: svid.into(),
            smp_synch: 2,
            first: 3,
            wrap: 5,
            offset: 10,
            advance: 4,
            priority: None,
            txtime: None,
        };
        Template::new(stream, [2, 0, 0, 0, 0, 9]).unwrap()
    }

    #[test]
    fn a_frame_has_its_number_and_send_time_and_is_known_by_them() {
        let (mut own, other) = (template("RT1"), template("RT2"));
        own.send_time = 1_700_000_000_000_000_010;
        let mut sent = Vec::new();
        for n in 0..7_u64 {
            own.fill();
            let frame = Frame::parse(&own.bytes).unwrap();
            assert_eq!(frame.header.src, [2, 0, 0, 0, 0, 9]);
            let asdu = frame.asdus().next().unwrap();
            assert_eq!(u64::from(asdu.smp_cnt), (3 + n) % 5);
            let data = asdu.data.unwrap();
            assert_eq!(data[64..], own.send_time.to_be_bytes());
            assert_eq!(own.due(), own.send_time - 4);
            sent.push((own.send_time, own.bytes.clone()));
            own.advance_by(500);
        }
        for (n, (send_time, bytes)) in sent.iter().enumerate() {
            let packet = [&[0xee; 3][..], bytes].concat();
            assert!(own.is(&packet, *send_time) && !own.is(&packet, send_time + 1) && !other.is(&packet, *send_time));
            assert_eq!(own.number_of(*send_time), n as u64);
        }
        assert!(!own.is(&sent[0].1[1..], sent[0].0), "truncated");
    }
}
