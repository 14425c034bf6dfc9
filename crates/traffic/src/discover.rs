//! Finds and lists the streams in traffic.

use crate::{Packet, WireTimes};
use latpath_histogram::Histogram;
use latpath_model::stream::format_mac;
use latpath_model::{Matcher, Ns, StreamSpec};
use latpath_protocols::sequence::Tracker;
use latpath_protocols::{Tag, UnreadFrames};
use latpath_wire::Received;
use std::collections::HashMap;

/// Maximum number of streams listed; frames of further streams are only counted.
const MAX: usize = 4096;

/// A stream in traffic.
#[derive(Clone, Debug)]
pub struct FoundStream {
    /// The stream, identified as exactly as its frames permit.
    pub stream: StreamSpec,
    /// Index of its interface in a file; 0 for a device.
    pub interface: usize,
    /// Innermost tag of the newest frame.
    pub tag: Option<Tag>,
    /// Source MAC of the newest frame.
    pub src: [u8; 6],
    /// The newest frame.
    pub newest: Vec<u8>,
    /// Number of frames.
    pub frames: u64,
    /// Losses in the sequence, and its wrap.
    pub tracker: Tracker,
    /// Time from the wire to the driver, measured from the NIC's receive timestamps, ns.
    pub wire_to_driver: Histogram,
    /// Time of the first frame, ns.
    pub first: Ns,
    /// Time of the newest frame, ns.
    pub last: Ns,
}

impl FoundStream {
    /// Frames per second, from the first to the newest; `None` with fewer than two frames. For display.
    pub fn frames_hz(&self) -> Option<f64> {
        let t = self.last - self.first;
        (self.frames > 1 && t > 0).then(|| (self.frames - 1) as f64 * 1e9 / t as f64)
    }

    /// Destination address; `None` in a Linux cooked capture.
    pub fn destination(&self) -> Option<String> {
        self.stream.link.dst.filter(|mac| *mac != [0; 6]).map(|mac| format_mac(&mac))
    }
}

/// Collects the streams to which frames belong.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    streams: HashMap<(StreamSpec, usize), FoundStream>,
    /// Number of frames.
    pub frames: u64,
    /// Frames of a listed protocol that could not be read.
    pub unread: UnreadFrames,
    /// Frames of protocols that are not listed.
    pub other_protocols: u64,
    /// Frames of streams beyond the limit of the list.
    pub beyond: u64,
}

impl Discovery {
    /// Adds a frame seen at `t` (by any clock); `stripped` is the tag that the kernel removed.
    pub fn note(&mut self, t: Ns, bytes: &[u8], stripped: Option<Tag>) {
        self.take((t, bytes.len(), 0), bytes, stripped, |_| {});
    }

    /// Adds a frame received by a socket, and queues it for the measurement by its NIC timestamp. Frames that this
    /// machine sends have none.
    pub fn note_received(&mut self, r: &Received<'_>, wire: &mut WireTimes<StreamSpec>) {
        let t = r.arrival.unwrap_or(r.had);
        self.take((t, r.frame.len(), 0), r.frame, r.tag, |stream| wire.push(stream.clone(), r.nic, r.arrival));
    }

    /// Reads the NIC's clock when a reading is due, and adds the times that are known by then. `is_last` means that no
    /// further frames follow.
    pub fn round(&mut self, wire: &mut WireTimes<StreamSpec>, is_last: bool) {
        wire.round(is_last, |stream, time| {
            if let Some(found) = self.streams.get_mut(&(stream, 0)) {
                found.wire_to_driver.record(time);
            }
        });
    }

    /// Adds a packet from a file. Streams of different interfaces are kept separate.
    pub fn note_packet(&mut self, packet: &Packet) {
        self.take((packet.t, packet.len, packet.interface), &packet.bytes, None, |_| {});
    }

    /// Adds a frame to its streams, and calls `each` with each of them.
    fn take(
        &mut self,
        (t, len, interface): (Ns, usize, usize),
        bytes: &[u8],
        stripped: Option<Tag>,
        mut each: impl FnMut(&StreamSpec),
    ) {
        self.frames += 1;
        let (header, found) = match Matcher::read_captured(bytes, len) {
            Ok(read) => read,
            Err(e) => {
                self.unread.count(e);
                self.other_protocols += u64::from(!e.is_malformed());
                return;
            }
        };
        // The innermost tag, because that is the one that `--stream …,vlan=` refers to.
        let tag = header.tags().last().copied().or(stripped);
        for found in found {
            let exact = (StreamSpec::exact(found.stream, header.dst, tag.map(Tag::vlan)), interface);
            if self.streams.len() >= MAX && !self.streams.contains_key(&exact) {
                self.beyond += 1;
                continue;
            }
            each(&exact.0);
            let stream = self.streams.entry(exact).or_insert_with_key(|(exact, interface)| FoundStream {
                stream: exact.clone(),
                interface: *interface,
                tag,
                src: header.src,
                newest: Vec::new(),
                frames: 0,
                tracker: Tracker::new(exact.key).expect("protocols that are listed have keys with an order"),
                wire_to_driver: Histogram::default(),
                first: t,
                last: t,
            });
            (stream.tag, stream.src, stream.last) = (tag, header.src, t);
            stream.frames += 1;
            stream.newest.clear();
            stream.newest.extend_from_slice(bytes);
            stream.tracker.note(t, found.key, found.step);
        }
    }

    /// Adds the streams found on another device, as streams of this interface.
    pub fn add(&mut self, other: Self, interface: usize) {
        for ((stream, _), found) in other.streams {
            if self.streams.len() >= MAX {
                self.beyond += found.frames;
                continue;
            }
            self.streams.insert((stream, interface), FoundStream { interface, ..found });
        }
        self.frames += other.frames;
        self.unread.add(&other.unread);
        self.other_protocols += other.other_protocols;
        self.beyond += other.beyond;
    }

    /// The streams, sorted by protocol, name and interface.
    pub fn streams(&self) -> Vec<&FoundStream> {
        let mut all: Vec<_> = self.streams.values().collect();
        all.sort_by_cached_key(|s| (s.stream.matcher.protocol() as u8, s.stream.to_string(), s.interface));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_protocols::protocol::{FrameLink, Value};
    use latpath_protocols::ptp::{Message, PortIdentity};
    use latpath_protocols::sv::{AsduSpec, FrameSpec};

    #[test]
    fn rate_samples_and_wrap_of_a_stream_with_six_asdus_are_found() {
        let mut found = Discovery::default();
        let link = FrameLink { tags: vec![Tag::new(7, 4)], ..FrameLink::default() };
        for n in 0..2401u32 {
            let asdus = (0..6).map(|k| AsduSpec {
                svid: b"MU".to_vec(),
                smp_cnt: ((n * 6 + k) % 14400) as u16,
                ..AsduSpec::default()
            });
            let spec = FrameSpec { asdus: asdus.collect(), link: link.clone(), ..FrameSpec::default() };
            found.note(i64::from(n) * 1_000_000_000 / 2400, &spec.build().unwrap(), None);
        }
        found.note(0, &[0xff; 30], None);
        let stream = found.streams()[0];
        assert_eq!(stream.tag, Some(Tag::new(7, 4)));
        assert_eq!(stream.stream.matcher.details(&stream.newest).newest[1].value, Value::PerFrame(6));
        assert_eq!(stream.frames_hz().map(f64::round), Some(2400.0));
        assert_eq!(stream.tracker.wrap(), Some(14400));
        assert_eq!((found.frames, found.unread.total(), found.other_protocols), (2402, 0, 1));
    }

    #[test]
    fn one_stream_on_two_devices_is_two_rows() {
        let frame =
            FrameSpec { asdus: vec![AsduSpec { svid: b"MU".to_vec(), ..AsduSpec::default() }], ..FrameSpec::default() };
        let mut all = Discovery::default();
        for interface in 0..2 {
            let mut found = Discovery::default();
            found.note(0, &frame.build().unwrap(), None);
            all.add(found, interface);
        }
        let rows: Vec<_> = all.streams().iter().map(|s| (s.stream.short(), s.interface, s.frames)).collect();
        assert_eq!(rows, [("MU".into(), 0, 1), ("MU".into(), 1, 1)]);
        assert_eq!(all.frames, 2);
    }

    #[test]
    fn of_two_tags_the_inner_one_is_listed() {
        let mut found = Discovery::default();
        let link = FrameLink { tags: vec![Tag::new(7, 4)], ..FrameLink::default() };
        let mut frame = FrameSpec { link, ..FrameSpec::default() };
        frame.asdus.push(AsduSpec { svid: b"QQ".to_vec(), ..AsduSpec::default() });
        let mut bytes = frame.build().unwrap();
        bytes.splice(12..12, [0x88, 0xa8, 0, 100]);
        found.note(0, &bytes, None);
        assert_eq!(found.streams()[0].stream.link.vlan, Some(7));
        // A tag removed by the NIC was the outermost, so it does not change the stream.
        found.note(0, &bytes, Some(Tag::new(9, 0)));
        assert_eq!(found.streams().len(), 1);
    }

    #[test]
    fn streams_of_all_protocols_are_distinguished() {
        let mut found = Discovery::default();
        for n in 0..20u16 {
            let t = i64::from(n) * 1_000_000;
            let asdus = vec![AsduSpec { svid: b"MU".to_vec(), smp_cnt: n, ..AsduSpec::default() }];
            found.note(t, &FrameSpec { asdus, ..FrameSpec::default() }.build().unwrap(), None);
            let goose = latpath_protocols::goose::Frame {
                goid: Some(b"trip"),
                // A new event after ten messages; one message is missing.
                st_num: 1 + u32::from(n / 10),
                sq_num: u32::from(n % 10 + n / 15),
                ..Default::default()
            };
            found.note(t, &goose.build(&FrameLink::default()).unwrap(), None);
            for port in [1, 2] {
                let source = PortIdentity { clock: [7; 8], port };
                let sync = Message { message: 0, domain: 0, source, sequence_id: n * port, log_interval: 0 };
                found.note(t, &sync.build(&FrameLink::default()), None);
            }
        }
        let rows: Vec<(String, u64, u64)> =
            found.streams().iter().map(|s| (s.stream.short(), s.frames, s.tracker.totals().lost)).collect();
        let ptp =
            |port: u16| format!("ptp:sync,source=070707.0707.070707-{port},domain=0,vlan=0,mac=01:1b:19:00:00:00");
        // For source 2, every second sequence number is missing: the tracker takes the step to be two.
        assert_eq!(rows, [("MU".into(), 20, 0), ("trip".into(), 20, 1), (ptp(1), 20, 0), (ptp(2), 20, 0)]);
    }
}
