//! The receiving application: checks the frames that it receives.

use crate::{ArrivalClock, ArrivalOptions, Arrivals, WireTimes};
use latpath_histogram::Histogram;
use latpath_model::stream::MAX_STREAMS;
use latpath_model::{Matcher, Ns, StreamSpec};
use latpath_protocols::sequence::{Totals, Tracker};
use latpath_protocols::{ProtocolId, Tag, UnreadFrames};
use latpath_wire::Received;
use std::collections::HashMap;
use std::rc::Rc;

/// Maximum number of names of other streams that are kept, to help the user correct a mistyped name.
const OTHERS: usize = 32;
/// Maximum number of exact streams whose match is cached.
const REMEMBERED: usize = 4096;

/// A received stream.
#[derive(Clone, Debug)]
pub struct StreamReceived {
    /// The stream as the user named it, or its exact name.
    pub stream: StreamSpec,
    /// Losses, duplicates and reordering, by sequence numbers.
    pub tracker: Tracker,
    /// Samples of the stream in the newest frame; 0 if its frames contain none.
    pub samples: u16,
    /// Time between arrivals, by the kernel's receive timestamps, ns.
    pub interarrival: Histogram,
    /// Time from the kernel's reception to the application, ns.
    pub delay: Histogram,
    /// Time from the wire to the driver: from the NIC's timestamp to the kernel's reception, ns.
    pub wire_to_driver: Histogram,
    /// Arrival of the first frame, ns.
    pub first: Ns,
    /// Arrival of the newest frame, ns.
    pub last: Ns,
    /// Arrivals relative to the send times in the frames, if they are measured.
    pub arrivals: Option<Arrivals>,
}

/// The streams that an application receives.
pub struct Subscription {
    streams: Vec<StreamReceived>,
    /// Whether streams were named; otherwise all received streams are listed.
    named: bool,
    /// Cache: indices of the streams that include the exact stream of a frame.
    matches: HashMap<StreamSpec, Rc<[usize]>>,
    /// Frames that could not be read.
    pub unread: UnreadFrames,
    /// Frames of other streams, and of streams beyond the limit.
    pub others: u64,
    /// Names of the first few streams in those frames.
    pub other_names: Vec<String>,
    /// Frames of the requested streams.
    pub taken: u64,
    /// Frames without a receive timestamp from the kernel: they have no delay.
    pub unstamped: u64,
    /// How arrivals are measured by the send times in the frames, and the clock of the send times.
    send_times: Option<(ArrivalOptions, ArrivalClock)>,
    /// Measures the time from the wire to the driver, by index of the stream.
    wire: Option<WireTimes<usize>>,
}

impl StreamReceived {
    fn new(stream: StreamSpec) -> Self {
        Self {
            tracker: Tracker::new(stream.key).expect("protocols that are listed have keys with an order"),
            stream,
            samples: 0,
            interarrival: Histogram::default(),
            delay: Histogram::default(),
            wire_to_driver: Histogram::default(),
            first: 0,
            last: 0,
            arrivals: None,
        }
    }

    /// Counts of losses, duplicates and reordering.
    pub fn totals(&self) -> Totals {
        self.tracker.totals()
    }

    /// Frames per second, from the first to the newest; 0 with fewer than two frames.
    pub fn rate_hz(&self) -> f64 {
        let (n, t) = (self.totals().received, self.last - self.first);
        if n > 1 && t > 0 {
            (n - 1) as f64 * 1e9 / t as f64
        } else {
            0.0
        }
    }
}

impl Subscription {
    /// Subscribes to these streams, or to all if none is named.
    ///
    /// # Errors
    /// The protocol of a stream is not listed, or its key is not the protocol's own; the error is the first such
    /// stream.
    pub fn new(streams: &[StreamSpec]) -> Result<Self, StreamSpec> {
        let is_own =
            |s: &StreamSpec| s.matcher.protocol().info().is_listed && s.key == StreamSpec::new(s.matcher.clone()).key;
        if let Some(bad) = streams.iter().find(|s| !is_own(s)) {
            return Err(bad.clone());
        }
        Ok(Self {
            streams: streams.iter().cloned().map(StreamReceived::new).collect(),
            named: !streams.is_empty(),
            matches: HashMap::new(),
            unread: UnreadFrames::default(),
            others: 0,
            other_names: Vec::new(),
            taken: 0,
            unstamped: 0,
            send_times: None,
            wire: None,
        })
    }

    /// Enables measuring the time from the wire to the driver by the frames' NIC timestamps.
    pub fn measure_wire(&mut self, wire: WireTimes<usize>) {
        self.wire = Some(wire);
    }

    /// The measurement by NIC timestamps, if it is enabled.
    pub fn wire(&self) -> Option<&WireTimes<usize>> {
        self.wire.as_ref()
    }

    /// Reads the NIC's clock when a reading is due, and adds the times that are known by then. `is_last` means that no
    /// further frames follow.
    pub fn round(&mut self, is_last: bool) {
        if let Some(wire) = &mut self.wire {
            wire.round(is_last, |stream, time| self.streams[stream].wire_to_driver.record(time));
        }
    }

    /// Enables measuring arrivals by the send times in the frames.
    pub fn measure_arrivals(&mut self, options: ArrivalOptions, clock: ArrivalClock) {
        self.send_times = Some((options, clock));
        self.streams.iter_mut().for_each(|stream| stream.arrivals = Some(Arrivals::default()));
    }

    /// The clock of the send times; `None` if arrivals are not measured by send times.
    pub fn arrival_clock(&mut self) -> Option<&mut ArrivalClock> {
        self.send_times.as_mut().map(|(_, clock)| clock)
    }

    /// The protocols to receive: those of the named streams, or all listed ones.
    pub fn protocols(&self) -> Vec<ProtocolId> {
        let mut protocols = ProtocolId::listed();
        if self.named {
            protocols.retain(|p| self.streams.iter().any(|s| s.stream.matcher.protocol() == *p));
        }
        protocols
    }

    /// The named streams or, if none was named, the received ones in order of appearance.
    pub fn streams(&self) -> &[StreamReceived] {
        &self.streams
    }

    /// Adds a frame.
    pub fn note(&mut self, r: &Received<'_>) {
        let (header, found) = match Matcher::read(r.frame) {
            Ok(read) => read,
            Err(e) => {
                self.unread.count(e);
                return;
            }
        };
        let tag = header.tags().last().copied().or(r.tag);
        let vlan = tag.map(Tag::vlan);
        let timed = self.send_times.map(|(options, clock)| {
            let send_time = options.send_time.read(r.frame, header.tags().len());
            (options, send_time.zip(r.arrival.map(|arrival| clock.of(arrival))), tag)
        });
        let (mut taken, mut others) = (false, Vec::new());
        for found in found {
            let exact = StreamSpec::exact(found.stream, header.dst, vlan);
            let matches = self.find(&exact);
            for i in matches.iter() {
                let stream = &mut self.streams[*i];
                stream.take(r, found.key, found.step);
                if let Some(wire) = &mut self.wire {
                    wire.push(*i, r.nic, r.arrival);
                }
                if let Some((options, times, tag)) = timed {
                    stream.arrivals.get_or_insert_default().note(&options, times, found.key, tag);
                }
                taken = true;
            }
            if matches.is_empty() && self.other_names.len() < OTHERS {
                others.push(exact.short());
            }
        }
        if taken {
            self.taken += 1;
            self.unstamped += u64::from(r.arrival.is_none());
            return;
        }
        self.others += 1;
        for name in others {
            if !self.other_names.contains(&name) && self.other_names.len() < OTHERS {
                self.other_names.push(name);
            }
        }
    }

    /// Indices of the streams that include the exact stream of a frame.
    fn find(&mut self, exact: &StreamSpec) -> Rc<[usize]> {
        if let Some(known) = self.matches.get(exact) {
            return known.clone();
        }
        let includes = |(i, s): (usize, &StreamReceived)| s.stream.includes(exact).then_some(i);
        let mut found: Rc<[usize]> = self.streams.iter().enumerate().filter_map(includes).collect();
        if found.is_empty() && !self.named && self.streams.len() < MAX_STREAMS {
            found = [self.streams.len()].into();
            self.streams.push(StreamReceived::new(exact.clone()));
        }
        if self.matches.len() < REMEMBERED {
            self.matches.insert(exact.clone(), found.clone());
        }
        found
    }
}

impl StreamReceived {
    fn take(&mut self, r: &Received<'_>, key: u32, step: u16) {
        let arrival = r.arrival.unwrap_or(r.had);
        if self.totals().received == 0 {
            self.first = arrival;
        } else {
            self.interarrival.record(arrival - self.last);
        }
        self.last = arrival;
        if let Some(arrival) = r.arrival {
            self.delay.record(r.had - arrival);
        }
        self.samples = step;
        self.tracker.note(arrival, key, step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_protocols::{
        protocol::FrameLink,
        sv::{AsduSpec, FrameSpec},
        Tag,
    };

    fn frame(svids: &[&str], smp_cnt: u16) -> Vec<u8> {
        let asdus = svids.iter().enumerate().map(|(i, svid)| AsduSpec {
            svid: svid.as_bytes().to_vec(),
            smp_cnt: smp_cnt + i as u16,
            data: vec![0; 64],
            ..AsduSpec::default()
        });
        FrameSpec { asdus: asdus.collect(), ..FrameSpec::default() }.build().unwrap()
    }

    fn give(s: &mut Subscription, t: Ns, bytes: &[u8], tag: Option<Tag>) {
        s.note(&Received { frame: bytes, tag, arrival: Some(t), nic: None, had: t + 7 });
    }

    #[test]
    fn loss_duplicates_and_order_of_a_named_stream_are_counted_and_others_set_aside() {
        let mut s = Subscription::new(&[StreamSpec::svid("MU01")]).unwrap();
        for (i, count) in [0, 1, 2, 5, 4, 4, 6].into_iter().enumerate() {
            give(&mut s, i as Ns * 1000, &frame(&["MU01"], count), None);
            give(&mut s, i as Ns * 1000, &frame(&["MU02"], count), None);
        }
        let row = &s.streams()[0];
        let expected = Totals { received: 7, lost: 1, gaps: 1, duplicates: 1, out_of_order: 1, restarts: 0 };
        assert_eq!(row.totals(), expected);
        assert_eq!((s.others, s.other_names.as_slice()), (7, &["MU02".to_string()][..]));
        assert_eq!((row.delay.count(), row.delay.max(), row.interarrival.count()), (7, 7, 6));
    }

    #[test]
    fn a_stream_is_found_by_its_vlan_with_the_tag_removed_or_not() {
        let spec: StreamSpec = "svid:A,vlan=7".parse().unwrap();
        let mut s = Subscription::new(&[spec]).unwrap();
        let tagged = FrameSpec {
            link: FrameLink { tags: vec![Tag::new(7, 4)], ..FrameLink::default() },
            asdus: vec![AsduSpec { svid: b"A".to_vec(), smp_cnt: 1, ..AsduSpec::default() }],
            ..FrameSpec::default()
        };
        give(&mut s, 0, &frame(&["A"], 0), Some(Tag::new(7, 4)));
        give(&mut s, 1, &tagged.build().unwrap(), None);
        give(&mut s, 2, &frame(&["A"], 2), Some(Tag::new(8, 4)));
        give(&mut s, 3, &frame(&["A"], 2), None);
        assert_eq!((s.taken, s.others), (2, 2));
    }

    #[test]
    fn the_key_is_the_first_asdu_of_the_stream_and_samples_are_counted() {
        let mut s = Subscription::new(&[]).unwrap();
        for n in 0..10 {
            give(&mut s, n, &frame(&["A", "A", "B"], n as u16 * 2), None);
        }
        let names: Vec<String> = s.streams().iter().map(|r| r.stream.short()).collect();
        assert_eq!(names, ["A", "B"]);
        assert_eq!(s.streams()[0].samples, 2);
        assert_eq!(s.streams()[0].totals(), Totals { received: 10, ..Totals::default() });
    }

    #[test]
    fn a_flood_of_new_svids_fills_the_table_and_is_then_counted() {
        let mut s = Subscription::new(&[]).unwrap();
        for n in 0..2 * MAX_STREAMS {
            give(&mut s, n as Ns, &frame(&[&format!("S{n}")], 0), None);
        }
        assert_eq!((s.streams().len(), s.others as usize), (MAX_STREAMS, MAX_STREAMS));
    }

    #[test]
    fn unreadable_frames_count_as_malformed() {
        let mut s = Subscription::new(&[]).unwrap();
        give(&mut s, 0, &frame(&["A"], 0)[..40], None);
        give(&mut s, 0, &[0; 60], None);
        assert_eq!((s.unread.total(), s.taken), (1, 0));
    }
}
