//! The messages of one sender: repeated after each event, or at a constant rate.

use crate::Frames;
use latpath_linux::realtime;
use latpath_model::{Matcher, Ns};
use latpath_protocols::protocol::{FrameLink, Outgoing};
use latpath_wire::{Deadlines, Pace};

/// The schedule of messages.
#[derive(Clone, Copy, Debug)]
pub enum Pattern {
    /// At this rate; `None` for as fast as possible.
    Rate(Option<Pace>),
    /// Repeated after `first`, then each time after twice the previous interval, up to `longest` (IEC 61850-8-1,
    /// 18.1.2.5).
    Growing {
        /// Time from a new event to its first repetition, ns.
        first: Ns,
        /// Maximum time between two messages, ns.
        longest: Ns,
    },
}

/// Options of the messages.
#[derive(Clone, Debug)]
pub struct RepeatedOptions {
    /// The stream.
    pub stream: Matcher,
    /// The link layer.
    pub link: FrameLink,
    /// The schedule of messages.
    pub pattern: Pattern,
    /// Time between new events, ns; `None` for a single event.
    pub event_every: Option<Ns>,
}

/// An endless sequence of a stream's messages.
pub struct Repeated {
    o: RepeatedOptions,
    started: Ns,
    sent: u64,
    event: u32,
    event_due: Ns,
    number: u32,
    due: Ns,
}

impl Repeated {
    /// Prepares the messages.
    ///
    /// # Errors
    /// latpath cannot send such a stream; the error is a sentence.
    pub fn new(o: RepeatedOptions) -> Result<Self, String> {
        let repeated = Self { o, started: realtime(), sent: 0, event: 1, event_due: 0, number: 0, due: 0 };
        repeated.frame(1_000_000_000).map(|_| repeated)
    }

    /// Builds the next message. `next`: time to the message after it, ns, from which the interval that the message
    /// announces is derived.
    fn frame(&self, next: Ns) -> Result<Vec<u8>, String> {
        let event_time = self.started.saturating_add(self.event_due);
        let packet = Outgoing { event: self.event, number: self.number, event_time, next, value: false };
        let refused = || format!("{}: streams of this protocol are not sent", self.o.stream.protocol().info().prefix);
        self.o.stream.frame(&self.o.link, &packet).unwrap_or_else(|| Err(refused()))
    }
}

impl Frames for Repeated {
    fn next(&mut self, out: &mut Vec<u8>) -> Option<Ns> {
        let due = self.due;
        let after = match self.o.pattern {
            Pattern::Rate(pace) => pace.map_or(0, |p| p.due(self.sent + 1) - due),
            Pattern::Growing { first, longest } => first.saturating_mul(1 << self.number.min(30)).min(longest),
        };
        *out = self.frame(after).ok()?;
        self.sent += 1;
        self.number = self.number.wrapping_add(1);
        self.due = due.saturating_add(after);
        if let Some(every) = self.o.event_every.filter(|every| self.due >= self.event_due.saturating_add(*every)) {
            self.event_due = self.event_due.saturating_add(every);
            (self.event, self.number) = (self.event.wrapping_add(1), 0);
            if matches!(self.o.pattern, Pattern::Growing { .. }) {
                // A new event is sent at once, not at the next repetition of the previous event.
                self.due = self.event_due;
            }
        }
        Some(due)
    }

    fn deadlines(&self) -> Option<Deadlines> {
        match self.o.pattern {
            Pattern::Rate(pace) => pace.map(Pace::deadlines),
            Pattern::Growing { first, longest } => Some(Deadlines { interval: first, per_s: 1e9 / longest as f64 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_model::StreamSpec;
    use latpath_protocols::{goose, Header};

    const MS: Ns = 1_000_000;

    fn repeated(stream: &str, pattern: Pattern, event_every: Option<Ns>) -> Repeated {
        let stream = stream.parse::<StreamSpec>().unwrap().matcher;
        let link = FrameLink::default();
        Repeated::new(RepeatedOptions { stream, link, pattern, event_every }).unwrap()
    }

    /// Due time, ms, and key of each message.
    fn messages(frames: &mut Repeated, count: usize) -> Vec<(Ns, u32)> {
        let mut out = Vec::new();
        let mut next = || {
            let due = frames.next(&mut out).unwrap();
            (due / MS, Matcher::read(&out).unwrap().1[0].key)
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn an_event_is_repeated_after_growing_times_until_the_next() {
        let pattern = Pattern::Growing { first: 2 * MS, longest: 10 * MS };
        let mut frames = repeated("goose:trip", pattern, Some(30 * MS));
        let key = goose::key;
        let expected = [(0, 0), (2, 1), (6, 2), (14, 3), (24, 4)].map(|(t, n)| (t, key(1, n)));
        assert_eq!(messages(&mut frames, 5), expected);
        assert_eq!(messages(&mut frames, 3), [(30, key(2, 0)), (32, key(2, 1)), (36, key(2, 2))]);
    }

    #[test]
    fn at_a_rate_every_message_has_its_time_and_events_begin_between() {
        let pattern = Pattern::Rate(Some(Pace::per_second(1000)));
        let mut frames = repeated("goose:trip", pattern, Some(3 * MS));
        let key = goose::key;
        let expected = [key(1, 0), key(1, 1), key(1, 2), key(2, 0), key(2, 1), key(2, 2), key(3, 0)];
        assert_eq!(messages(&mut frames, 7), (0..).zip(expected).collect::<Vec<_>>());
        let mut frames = repeated("ptp:pdelay_req", pattern, None);
        assert_eq!(messages(&mut frames, 3), [(0, 0), (1, 1), (2, 2)]);
    }

    #[test]
    fn a_messages_lifetime_is_twice_the_next_interval() {
        let mut frames = repeated("goose:trip,appid=7", Pattern::Growing { first: 2 * MS, longest: 1000 * MS }, None);
        let mut out = Vec::new();
        for expected in [4, 8, 16] {
            frames.next(&mut out).unwrap();
            let message = goose::Message::parse(&out, out.len(), &Header::parse(&out).unwrap()).unwrap();
            let live = out.windows(2).position(|element| element == [0x81, 1]).unwrap();
            assert_eq!((out[live + 2], message.appid, message.goid), (expected, 7, Some(&b"trip"[..])));
        }
    }
}
