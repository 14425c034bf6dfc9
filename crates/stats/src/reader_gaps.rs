//! Reader gaps: intervals in which the application at the end of a route read none of the arriving packets, because it
//! had ended, had closed its socket, or had not started.

use crate::drop_place::{place_of_drop, DropPlace};
use crate::text::{date_time, short_stream};
use crate::units::number_of;
use latpath_clock::TimeOfDay;
use latpath_model::{DropNote, Ns, Point, HOST};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Minimum number of consecutive packets in a gap.
const MIN: u64 = 3;
/// Minimum duration of a reported gap, ns, unless the kernel reported that there was no listener: a reader may just be
/// busy.
const SHORTEST: Ns = 100_000_000;
/// Maximum number of gaps kept per stream; the largest are kept.
const MAX: usize = 256;
/// Maximum number of drop reasons counted per gap.
const REASONS: usize = 4;
/// Maximum number of streams named in a text.
const NAMED: usize = 3;

/// Consecutive packets of a stream that were not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unread {
    /// Number of the first packet, and the number after the last; includes packets that were lost earlier.
    numbers: (u64, u64),
    /// Number of packets that reached the last point before the reader.
    packets: u64,
    /// Arrival of the first and the last of these packets at that point.
    from: Ns,
    to: Ns,
    /// Drop notes of these packets, plus one, and the number of packets with each note; (0, 0) for an unused entry.
    notes: [(u16, u64); REASONS],
}

impl Unread {
    fn then(&mut self, next: &Self) {
        self.numbers.1 = next.numbers.1;
        self.packets += next.packets;
        (self.from, self.to) = (self.from.min(next.from), self.to.max(next.to));
        for (note, n) in next.notes.into_iter().filter(|(note, _)| *note > 0) {
            let place = self.notes.iter_mut().find(|(own, _)| *own == note || *own == 0);
            place.into_iter().for_each(|(own, count)| (*own, *count) = (note, *count + n));
        }
    }
}

/// The gaps of one stream's reader; packets may be added in any order.
#[derive(Clone, Debug)]
pub(crate) struct ReaderGaps {
    /// Times at which the reader read its first and its last packet.
    read: Option<(Ns, Ns)>,
    found: Vec<Unread>,
}

impl ReaderGaps {
    pub fn new() -> Self {
        Self { read: None, found: Vec::new() }
    }

    /// Adds a packet read at `t`.
    #[inline]
    pub fn read(&mut self, t: Ns) {
        self.read = Some(self.read.map_or((t, t), |(first, last)| (first.min(t), last.max(t))));
    }

    /// Adds packets read at these times.
    #[inline]
    pub fn read_all(&mut self, times: &[Ns]) {
        let extremes = |(first, last): (Ns, Ns), t: &Ns| (first.min(*t), last.max(*t));
        self.read = times.first().map(|t| times.iter().fold(self.read.unwrap_or((*t, *t)), extremes)).or(self.read);
    }

    /// Adds a packet that was not read. `came`: its arrival at the last point before the reader; `None` if it did not
    /// get there. `note`: its drop note plus one, or 0 for none.
    pub fn lost(&mut self, number: u64, came: Option<Ns>, note: u16) {
        let mut notes = [(0, 0); REASONS];
        if came.is_some() && note > 0 {
            notes[0] = (note, 1);
        }
        let one = Unread {
            numbers: (number, number.saturating_add(1)),
            packets: u64::from(came.is_some()),
            from: came.unwrap_or(Ns::MAX),
            to: came.unwrap_or(Ns::MIN),
            notes,
        };
        match self.found.last_mut() {
            Some(last) if last.numbers.1 == number => last.then(&one),
            _ => self.keep(one),
        }
    }

    fn keep(&mut self, one: Unread) {
        self.found.push(one);
        if self.found.len() >= 4 * MAX {
            self.join();
            if self.found.len() > MAX {
                self.found.select_nth_unstable_by_key(MAX - 1, |one| (std::cmp::Reverse(one.packets), one.numbers));
                self.found.truncate(MAX);
            }
        }
    }

    /// Joins adjacent gaps, because batches of packets may have been counted separately.
    fn join(&mut self) {
        self.found.sort_unstable_by_key(|one| one.numbers);
        self.found.dedup_by(|next, one| {
            let follows = next.numbers.0 == one.numbers.1;
            if follows {
                one.then(next);
            }
            follows
        });
    }

    /// Adds the gaps of other packets of the same stream.
    pub fn merge(&mut self, other: &Self) {
        other.read.into_iter().for_each(|(first, last)| {
            self.read(first);
            self.read(last);
        });
        other.found.iter().for_each(|one| self.keep(*one));
    }

    /// The gaps of a stream whose route ends with `before` and the reader. `reason` returns a drop note if it explains
    /// losses.
    pub fn figures<'a>(
        &self,
        stream: &str,
        (before, reader): (&Point, &Point),
        reason: impl Fn(u16) -> Option<&'a DropNote>,
        time_of_day: &TimeOfDay,
    ) -> Vec<ReaderGap> {
        let mut all = self.clone();
        all.join();
        let of = |one: Unread| {
            let of_notes = |is_such: &dyn Fn(&DropNote, DropPlace) -> bool| -> u64 {
                let known = one.notes.into_iter().filter_map(|(note, n)| Some((reason(note)?, n)));
                let such = known.filter(|(note, _)| is_such(note, place_of_drop(&note.function, &note.reason)));
                such.map(|(_, n)| n).sum()
            };
            // At its own device, a bridge drops its local copies for the same reason, so compare devices. A packet in a
            // socket's queue has no device.
            let is_here = |note: &DropNote| {
                let is_at =
                    |at: &Point| at.machine == before.machine && (at.device == before.device || at.device == "-");
                note.at.as_ref().is_none_or(is_at)
            };
            let unheard = of_notes(&|note, place| is_here(note) && is_without_listener(place));
            let other = of_notes(&|_, place| !is_without_listener(place) && place != DropPlace::Unknown);
            let is_closed = unheard > 0 && unheard >= one.packets / 2;
            let lasts = one.to.saturating_sub(one.from);
            // If most packets were dropped for another reason, the gap does not concern the reader.
            let counts = one.packets >= MIN && other <= one.packets / 2 && (is_closed || lasts >= SHORTEST);
            let gap = ReaderGap {
                reader: reader.to_string(),
                streams: vec![stream.to_owned()],
                from_ns: time_of_day.utc(one.from),
                to_ns: time_of_day.utc(one.to),
                packets: one.packets,
                has_read_before: all.read.is_some_and(|(first, _)| first < one.from),
                reads_again: all.read.is_some_and(|(_, last)| last > one.to),
                is_closed,
                text: String::new(),
            };
            counts.then_some(gap)
        };
        all.found.iter().copied().filter_map(of).collect()
    }
}

/// Whether drops at this place mean that no socket accepts the packets, or that their socket was closed.
fn is_without_listener(place: DropPlace) -> bool {
    matches!(place, DropPlace::NoListener | DropPlace::NoSocket | DropPlace::QueuePurged)
}

/// An interval in which the application at the end of a route read none of the arriving packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReaderGap {
    /// The application: the last point of the route.
    pub reader: String,
    /// The affected streams.
    pub streams: Vec<String>,
    /// Arrival of the first unread packet at the last point before the application, UTC, ns.
    pub from_ns: Ns,
    /// Arrival of the last unread packet there, UTC, ns.
    pub to_ns: Ns,
    /// Number of unread packets.
    pub packets: u64,
    /// Whether the application had read packets before.
    pub has_read_before: bool,
    /// Whether the application read packets afterwards.
    pub reads_again: bool,
    /// Whether the kernel dropped the packets because there was no listener: the application had ended, or its socket
    /// was closed.
    pub is_closed: bool,
    /// The gap as a sentence.
    pub text: String,
}

impl ReaderGap {
    fn is_alike(&self, other: &Self) -> bool {
        let of = |gap: &Self| (gap.reader.clone(), gap.has_read_before, gap.reads_again, gap.is_closed);
        of(self) == of(other) && self.from_ns <= other.to_ns && other.from_ns <= self.to_ns
    }

    /// Describes the gap; `named`: whether to name the streams.
    fn sentence(&self, named: bool) -> String {
        let reader = match self.reader.parse::<Point>() {
            Ok(Point { machine, device, .. }) if machine == HOST => device,
            Ok(Point { machine, device, .. }) => format!("{device} on {machine}"),
            Err(_) => self.reader.clone(),
        };
        let streams: Vec<String> = self.streams.iter().take(NAMED).map(|stream| short_stream(stream)).collect();
        let more = match self.streams.len().saturating_sub(NAMED) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let of = if named { format!(" of {}{more}", streams.join(", ")) } else { String::new() };
        let (from, to) = (time(self.from_ns), time(self.to_ns));
        let packets = format!("{}{of}", number_of(self.packets, "packet"));
        match (self.has_read_before, self.reads_again, self.is_closed) {
            (true, true, true) => {
                format!("{reader} ended (or closed its socket) at {from} and came back at {to}: nobody read {packets}")
            }
            (true, false, true) => format!("{reader} ended (or closed its socket) at {from} and has read nothing{of} since"),
            (true, true, false) => format!(
                "{reader} read none of the {packets} that came from {from} to {to}: it had ended, had closed its socket, or did not run"
            ),
            (true, false, false) => {
                format!("{reader} has read nothing{of} since {from}: it ended, closed its socket, or does not run")
            }
            (false, true, _) => format!("{reader} did not read before {to}: nobody read the {packets} that came until then"),
            (false, false, _) => format!("{reader} read none of the {packets} that came from {from} to {to}"),
        }
    }
}

/// Merges simultaneous gaps of the same reader; sorts the result by time, and adds the sentences. `several`: whether
/// there are several streams.
pub(crate) fn together(mut gaps: Vec<ReaderGap>, several: bool) -> Vec<ReaderGap> {
    gaps.sort_by_key(|gap| (gap.from_ns, gap.reader.clone()));
    let mut all: Vec<ReaderGap> = Vec::new();
    for gap in gaps {
        match all.iter_mut().find(|one| one.is_alike(&gap)) {
            Some(one) => {
                (one.from_ns, one.to_ns) = (one.from_ns.min(gap.from_ns), one.to_ns.max(gap.to_ns));
                one.packets += gap.packets;
                one.streams
                    .extend(gap.streams.into_iter().filter(|stream| !one.streams.contains(stream)).collect::<Vec<_>>());
            }
            None => all.push(gap),
        }
    }
    all.iter_mut().for_each(|gap| gap.text = gap.sentence(several));
    all
}

/// `2026-01-02 03:04:05.123 UTC`
fn time(utc: Ns) -> String {
    let mut text = date_time(utc);
    if let Some(point) = text.find('.') {
        text.truncate(point + 4);
    }
    text + " UTC"
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    /// Gaps for one packet per millisecond; those in `unread` are lost, with this drop note plus one.
    fn gaps(packets: u64, unread: &[(std::ops::Range<u64>, u16)]) -> ReaderGaps {
        let mut gaps = ReaderGaps::new();
        for number in 0..packets {
            match unread.iter().find(|(range, _)| range.contains(&number)) {
                Some((_, note)) => gaps.lost(number, Some(number as Ns * MS), *note),
                None => gaps.read(number as Ns * MS + 5),
            }
        }
        gaps
    }

    fn texts(gaps: &ReaderGaps) -> Vec<String> {
        let note =
            |reason: &str, function: &str| DropNote { reason: reason.into(), function: function.into(), at: None };
        let notes = [note("UNHANDLED_PROTO", "__netif_receive_skb_core"), note("SOCKET_RCVBUFF", "packet_rcv")];
        let points = ["host/nic-rx@eth0", "host/app-read@relay"].map(|point| point.parse::<Point>().unwrap());
        let reason = |note: u16| notes.get(usize::from(note).checked_sub(1)?);
        let found = gaps.figures("svid:MU01", (&points[0], &points[1]), reason, &TimeOfDay::new(0, 0, &[]));
        together(found, false).into_iter().map(|gap| gap.text).collect()
    }

    #[test]
    fn a_reader_that_ended_and_came_back_is_named_with_both_times() {
        assert_eq!(
            texts(&gaps(9000, &[(2000..5000, 1)])),
            ["relay ended (or closed its socket) at 1970-01-01 00:00:02.000 UTC and came back at 1970-01-01 00:00:04.999 UTC: nobody read 3000 packets"]
        );
    }

    #[test]
    fn ended_readers_and_late_ones_are_distinguished() {
        assert_eq!(
            texts(&gaps(9000, &[(0..500, 1), (8000..9000, 1)])),
            [
                "relay did not read before 1970-01-01 00:00:00.499 UTC: nobody read the 500 packets that came until then",
                "relay ended (or closed its socket) at 1970-01-01 00:00:08.000 UTC and has read nothing since",
            ]
        );
    }

    #[test]
    fn without_kernel_counters_nothing_is_claimed_and_a_full_buffer_is_no_gap() {
        let found = texts(&gaps(9000, &[(1000..1020, 0), (2000..2500, 0), (4000..6000, 2)]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("relay read none of the 500 packets that came from"), "{}", found[0]);
        assert!(found[0].ends_with("it had ended, had closed its socket, or did not run"), "{}", found[0]);
    }

    #[test]
    fn batches_in_any_order_give_the_same_gaps() {
        let whole = gaps(9000, &[(2000..5000, 1)]);
        let mut parts = [ReaderGaps::new(), ReaderGaps::new()];
        for number in (0..9000_u64).rev() {
            let part = &mut parts[(number / 7 % 2) as usize];
            match (2000..5000).contains(&number) {
                // Packet 3000 was lost before it reached the reader's device.
                true => part.lost(number, (number != 3000).then_some(number as Ns * MS), u16::from(number != 3000)),
                false => part.read(number as Ns * MS + 5),
            }
        }
        let mut merged = ReaderGaps::new();
        parts.iter().for_each(|part| merged.merge(part));
        assert_eq!(texts(&merged), [texts(&whole)[0].replace("3000 packets", "2999 packets")]);
    }

    #[test]
    fn streams_that_one_reader_did_not_read_at_one_time_share_a_sentence() {
        let gap = |stream: &str, from_ns, is_closed| ReaderGap {
            reader: "guest0/app-read@relay".into(),
            streams: vec![stream.into()],
            from_ns,
            to_ns: from_ns + 100 * MS,
            packets: 400,
            has_read_before: true,
            is_closed,
            ..ReaderGap::default()
        };
        let all = together(vec![gap("svid:B", MS, true), gap("svid:A", 0, true), gap("svid:C", 900 * MS, true)], true);
        let texts: Vec<_> = all.iter().map(|gap| gap.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "relay on guest0 ended (or closed its socket) at 1970-01-01 00:00:00.000 UTC and has read nothing of A, B since",
                "relay on guest0 ended (or closed its socket) at 1970-01-01 00:00:00.900 UTC and has read nothing of C since",
            ]
        );
    }
}
