//! Notes on an import for the reader of its run.

use super::Import;
use crate::clock::Clocks;
use crate::packets::FileEnd;
use crate::source::Source;
use latpath_model::point::Lan;
use latpath_stats::units::{duration, number_of};

impl Import<'_> {
    /// Notes on captures that contain copies from both LANs of redundant networks.
    fn lan_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (source, end) in self.ends() {
            let (path, point, [a, b]) = (source.path.display(), &source.point, end.copies);
            let has_other =
                self.options.sources.iter().any(|other| other.path == source.path && other.lan() != source.lan());
            match source.lan() {
                None if a > 0 && b > 0 => notes.push(format!(
                    "{path}: {} by LAN A, and {b} by LAN B: the second copies count as duplicates. To join them, name the \
                     file once per LAN: {point}:A={path} {point}:B={path}",
                    number_of(a, "frame")
                )),
                Some(lan) if end.copies[1 - lan as usize] > 0 && !has_other => notes.push(format!(
                    "{path}: left out: {} by LAN {}; to import them as well, name the file a second time, with the point of \
                     that LAN",
                    number_of(end.copies[1 - lan as usize], "frame"),
                    Lan::ALL[1 - lan as usize].name()
                )),
                _ => {}
            }
        }
        for (at, place) in self.places.iter().enumerate().filter(|(at, place)| at != *place) {
            let [one, other] = [*place, at].map(|file| (self.feeds[file].newest(), &self.options.sources[file]));
            let (early, late) = if one.0 <= other.0 { (one, other) } else { (other, one) };
            let by = late.0.saturating_sub(early.0);
            if by > self.options.window {
                notes.push(format!(
                    "{} ends {} before {}: later packets count as lost on the LAN of {}",
                    early.1.path.display(),
                    duration(by),
                    late.1.path.display(),
                    early.1.point
                ));
            }
        }
        notes
    }

    /// Notes for the reader.
    pub(super) fn notes(&self, clocks: &Clocks) -> Vec<String> {
        let mut notes = clocks.notes();
        if let (Some(_), None) = (self.joined.sampling.point(), self.options.clock_error) {
            notes.push(format!(
                "Tmu: nothing here shows how far the clock of {} is off UTC, and Tmu is wrong by that: --clock-error says it where \
                 you know",
                self.options.sources[0].point.machine
            ));
        }
        notes.extend(self.joined.sampling.notes(&self.streams.all));
        notes.extend(self.joined.order_notes());
        for (source, end) in self.ends() {
            notes.extend(end.notes.iter().cloned());
            let unread = end.unread.total();
            if unread > 0 {
                let (path, n, why) = (source.path.display(), number_of(unread, "frame"), &end.unread);
                notes.push(format!("{path}: {n} cannot be read: {why}"));
            }
        }
        for (at, (source, end)) in self.ends().enumerate() {
            let is_same = |(other, its): &(&Source, &FileEnd)| {
                (&its.file.sha256, &its.interface, other.lan()) == (&end.file.sha256, &end.interface, source.lan())
            };
            if let Some((other, _)) = self.ends().take(at).find(is_same) {
                notes.push(format!(
                    "{} and {} have the same packets, byte for byte: the same capture was given for two points",
                    other.point, source.point
                ));
            }
        }
        notes.extend(self.lan_notes());
        // Only notes on the user's segments are taken; the others are about limits of live recordings.
        notes.extend(self.joined.layout.own_notes.iter().cloned());
        for (stream, seen) in self.streams.all.iter().zip(&self.joined.seen) {
            let seen = seen & !(u64::MAX << self.feeds.len().min(63));
            if let (1, 2.., at) = (seen.count_ones(), self.feeds.len(), seen.trailing_zeros() as usize) {
                notes.push(format!("{stream} is in {} alone", self.options.sources[at].path.display()));
            }
        }
        if self.joined.outside > 0 {
            let n = number_of(self.joined.outside, "packet");
            notes.push(format!("left out: {n} at the beginning and the end, where not all files have packets"));
        }
        let beyond: u64 = self.feeds.iter().map(|feed| feed.beyond).sum::<u64>()
            + self.ends().map(|(_, end)| end.beyond).sum::<u64>();
        if beyond > 0 {
            let streams = self.streams.all.len();
            notes.push(format!(
                "left out: {} of all files together, of streams beyond the {streams} that a run can have: choose with --stream",
                number_of(beyond, "packet")
            ));
        }
        notes
    }
}
