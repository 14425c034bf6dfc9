//! Finds the events of a stream in its packets.

use crate::condition::{Condition, Level, Quantity};
use crate::{Matcher, Ns, StreamSpec, Tag};
use std::collections::VecDeque;

/// Time for which no sample may be beyond a level before the next one beyond it is an event, ns: longer than a cycle at
/// 45 Hz, because an alternating current is beyond a level only for a part of each cycle.
pub const REARM: Ns = 25_000_000;
/// Number of recent states whose repetitions are recognised.
const STATES: usize = 8;

/// Finds the events of one stream.
#[derive(Clone, Debug)]
pub struct Watch {
    stream: StreamSpec,
    condition: Condition,
    states: States,
    crossing: Crossing,
    /// The BOOLEAN of the latest message.
    value: Option<bool>,
    newest_key: Option<u32>,
}

/// The recent states (the low 16 bits of stNum) of a GOOSE stream, newest last.
#[derive(Clone, Debug, Default)]
struct States(VecDeque<u16>);

/// Finds samples that cross a level.
#[derive(Clone, Debug, Default)]
struct Crossing {
    /// Time of the latest sample beyond the level, or of the first sample.
    beyond: Option<Ns>,
    /// The latest samples' magnitudes, for a rise, and the last smpCnt.
    history: VecDeque<i64>,
    smp_cnt: Option<u16>,
}

impl Watch {
    /// Creates a watch for this stream.
    pub fn new(stream: StreamSpec, condition: Condition) -> Self {
        let (states, crossing) = (States::default(), Crossing::default());
        Self { stream, condition, states, crossing, value: None, newest_key: None }
    }

    /// The stream.
    pub fn stream(&self) -> &StreamSpec {
        &self.stream
    }

    /// Whether a packet with this key is an event, if [`Condition::is_by_key`]. Packets must be passed in order.
    /// Neither a repetition of a state nor the first known state is an event.
    pub fn is_event_by_key(&mut self, key: u32) -> bool {
        match self.condition {
            Condition::EachPacket => true,
            Condition::NewState => self.states.is_new(key),
            Condition::Becomes { .. } | Condition::Crosses(_) => false,
        }
    }

    /// Returns the key of a frame of the stream if the frame is an event. `t`: its time by any clock, ns; `tag`: the
    /// 802.1Q tag that the kernel removed. Frames must be passed in order; repeated frames are ignored.
    pub fn event_in(&mut self, t: Ns, frame: &[u8], tag: Option<Tag>) -> Option<u32> {
        let (header, found) = Matcher::read(frame).ok()?;
        let vlan = header.tags().last().copied().or(tag).map(Tag::vlan);
        let own = found.into_iter().find(|found| {
            let exact = StreamSpec::exact(found.stream.clone(), header.dst, vlan);
            self.stream.includes(&exact)
        })?;
        let is_event = match &self.condition {
            Condition::EachPacket | Condition::NewState => self.is_event_by_key(own.key),
            _ if self.newest_key == Some(own.key) => false,
            Condition::Becomes { path, value } => {
                let now = self.stream.matcher.boolean(frame, &header, path);
                let before = now.and_then(|now| self.value.replace(now));
                now == Some(*value) && before == Some(!*value)
            }
            Condition::Crosses(level) => self.crossing.note_frame(t, frame, &self.stream.matcher, level),
        };
        self.newest_key = Some(own.key);
        is_event.then_some(own.key)
    }
}

impl States {
    fn is_new(&mut self, key: u32) -> bool {
        let (state, number) = ((key >> 16) as u16, key as u16);
        let Some(newest) = self.0.back().copied() else {
            self.0.push_back(state);
            return false;
        };
        if self.0.contains(&state) {
            return false;
        }
        if self.0.len() == STATES {
            self.0.pop_front();
        }
        self.0.push_back(state);
        // A publisher that restarts counts its states from 1 again; its first message, with sqNum 0, is a new state.
        let is_later = (state.wrapping_sub(newest) as i16) > 0;
        is_later || number == 0
    }
}

impl Crossing {
    fn note_frame(&mut self, t: Ns, frame: &[u8], stream: &Matcher, level: &Level) -> bool {
        let mut is_event = false;
        stream.each_sample(frame, &mut |smp_cnt, sample| {
            if let Some(value) = level.channel.value(sample) {
                is_event |= self.note(t, smp_cnt, value.into(), level);
            }
        });
        is_event
    }

    fn note(&mut self, t: Ns, smp_cnt: u16, value: i64, level: &Level) -> bool {
        let follows = self.smp_cnt.replace(smp_cnt).is_none_or(|last| smp_cnt == last.wrapping_add(1) || smp_cnt == 0);
        let quantity = match level.quantity {
            Quantity::Value => Some(value),
            Quantity::Magnitude => Some(value.abs()),
            Quantity::Rise(samples) => self.rise(value.abs(), usize::from(samples), follows),
        };
        let Some(quantity) = quantity else { return false };
        let is_beyond = level.is_beyond(quantity);
        // The time before the first sample is unknown, so the level counts as crossed at the first sample.
        let before = *self.beyond.get_or_insert(t);
        if is_beyond {
            self.beyond = Some(t);
        }
        is_beyond && t.saturating_sub(before).saturating_abs() > REARM
    }

    /// Returns the increase since the sample that is `samples` samples earlier; `None` if that sample is unknown.
    fn rise(&mut self, magnitude: i64, samples: usize, follows: bool) -> Option<i64> {
        if !follows {
            self.history.clear();
        }
        self.history.push_back(magnitude);
        if self.history.len() <= samples {
            return None;
        }
        Some(magnitude - self.history.pop_front()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::parse;
    use crate::goose;
    use crate::protocol::FrameLink;
    use crate::sv::{AsduSpec, FrameSpec};
    use proptest::prelude::*;

    const MS: Ns = 1_000_000;

    fn watch(text: &str) -> Watch {
        let (stream, condition) = parse(text).unwrap();
        Watch::new(stream, condition)
    }

    /// Builds a frame of consecutive samples; `values` are those of the first channel, in A.
    fn samples(first: u16, values: &[i32]) -> Vec<u8> {
        let asdus = (first..).zip(values).map(|(smp_cnt, value)| {
            let mut data = vec![0; 64];
            data[..4].copy_from_slice(&(value * 1000).to_be_bytes());
            AsduSpec { svid: b"MU".to_vec(), smp_cnt, data, ..AsduSpec::default() }
        });
        FrameSpec { asdus: asdus.collect(), ..FrameSpec::default() }.build().unwrap()
    }

    /// Returns the numbers of the samples that are events; the samples are 1 ms apart.
    fn events(watch: &mut Watch, values: &[i32]) -> Vec<u32> {
        let each = (0..).zip(values);
        each.filter_map(|(n, value)| watch.event_in(Ns::from(n) * MS, &samples(n, &[*value]), None)).collect()
    }

    #[test]
    fn the_first_sample_beyond_a_level_is_an_event_and_those_of_the_next_cycles_are_not() {
        let mut values = vec![0; 40];
        values.extend([900, 1001, 0, -2000, 0, 1500]);
        values.extend([0; 26]);
        values.push(1200);
        assert_eq!(events(&mut watch("svid:MU[Ia] > 1000A"), &values), [41, 72]);
        assert_eq!(events(&mut watch("svid:MU[|Ia|] > 1500A"), &values), [43]);
        assert_eq!(events(&mut watch("svid:MU[Ia] < -1kA"), &values), [43]);
        assert_eq!(events(&mut watch("svid:MU[Ib] > 1000A"), &values), [0; 0]);
        assert_eq!(events(&mut watch("svid:OTHER[Ia] > 1000A"), &values), [0; 0]);
    }

    #[test]
    fn what_is_beyond_the_level_from_the_start_is_no_event() {
        assert_eq!(events(&mut watch("svid:MU[Ia] > 10A"), &[20; 60]), [0; 0]);
    }

    #[test]
    fn a_rise_is_measured_against_the_cycle_before() {
        let wave = |n: usize, peak: i32| if n.is_multiple_of(4) { peak } else { 0 };
        let values: Vec<i32> = (0..60).map(|n| wave(n, if n < 42 { 100 } else { 300 })).collect();
        // The first peak after the rise is an event; the fall at the end of a fault is not.
        assert_eq!(events(&mut watch("svid:MU[rise(Ia,4)] > 150A"), &values), [44]);
        assert_eq!(events(&mut watch("svid:MU[rise(Ia,4)] > 250A"), &values), [0; 0]);
        let back: Vec<i32> = (0..60).map(|n| wave(n, if n < 42 { 300 } else { 100 })).collect();
        assert_eq!(events(&mut watch("svid:MU[rise(Ia,4)] > 150A"), &back), [0; 0]);
    }

    #[test]
    fn of_a_frame_of_several_samples_the_frames_key_is_the_event() {
        let mut watch = watch("svid:MU[Ia] > 1000A");
        let frames = (0..40_u16).map(|n| (n, if n == 35 { [0, 2000, 0] } else { [0; 3] }));
        let found = frames.filter_map(|(n, values)| watch.event_in(Ns::from(n) * MS, &samples(n * 3, &values), None));
        assert_eq!(found.collect::<Vec<_>>(), [105]);
    }

    #[test]
    fn a_repeated_frame_is_no_event() {
        let mut watch = watch("svid:MU[Ia] > 1000A");
        events(&mut watch, &[0; 40]);
        let frame = samples(40, &[2000]);
        assert_eq!((watch.event_in(40 * MS, &frame, None), watch.event_in(90 * MS, &frame, None)), (Some(40), None));
    }

    #[test]
    fn a_new_state_is_an_event_and_its_repetitions_are_not() {
        let mut watch = watch("goose:TRIP");
        let mut is_event = |st_num, sq_num| watch.is_event_by_key(goose::key(st_num, sq_num));
        assert!(!is_event(7, 3) && !is_event(7, 4), "nothing is known of the time before");
        assert!(is_event(8, 0) && !is_event(8, 1));
        assert!(!is_event(7, 5) && !is_event(8, 2), "overtaken by the next state");
        assert!(is_event(9, 1), "the first message was lost");
        assert!(!is_event(1, 1) && is_event(2, 0), "the publisher began again");
        assert!(is_event(3, 0) && is_event(0xffff, 0) && is_event(0, 0), "the counter wraps");
    }

    #[test]
    fn a_boolean_that_changes_is_an_event() {
        let message = |sq_num: u32, trip: u8| {
            let all_data = [0x83, 1, 0, 0x83, 1, trip];
            let frame =
                goose::Frame { goid: Some(b"T"), sq_num, entries: 2, all_data: &all_data, ..Default::default() };
            frame.build(&FrameLink::default()).unwrap()
        };
        let found = |text: &str| -> Vec<u32> {
            let mut watch = watch(text);
            let trips = (0..).zip([1, 0, 0, 1, 1, 0]);
            trips.filter_map(|(n, trip)| watch.event_in(0, &message(n, trip), None)).map(|key| key & 0xffff).collect()
        };
        assert_eq!((found("goose:T[2]"), found("goose:T[2] = false")), (vec![3], vec![1, 5]));
        assert_eq!((found("goose:T[1]"), found("goose:T[*]")), (vec![], vec![0, 1, 2, 3, 4, 5]));
    }

    proptest! {
        /// Compares with the definition: a sample is an event if it is beyond the level, and no sample of the last 25
        /// ms was.
        #[test]
        fn events_are_the_first_samples_beyond_the_level(
            runs in prop::collection::vec((0..3_i32, 1..60_usize), 1..12), above in any::<bool>(),
        ) {
            let mut values = vec![if above { 0 } else { 2 }; 30];
            runs.iter().for_each(|(value, length)| values.extend(vec![*value; *length]));
            let is_beyond = |value: &i32| if above { *value > 1 } else { *value < 1 };
            let expected: Vec<u32> = (30..values.len())
                .filter(|n| is_beyond(&values[*n]) && !values[n - 25..*n].iter().any(is_beyond))
                .map(|n| n as u32)
                .collect();
            let text = if above { "svid:MU[Ia] > 1A" } else { "svid:MU[Ia] < 1A" };
            prop_assert_eq!(events(&mut watch(text), &values), expected);
        }
    }
}
