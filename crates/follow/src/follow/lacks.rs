//! Notes and deficiencies of a recording in progress.

use super::Follow;
use crate::{merge::Feed, senders, tables};
use latpath_journey::segments;
use latpath_model::{SenderAt, SourceNote, SourceNoteKind, StreamId};
use latpath_run::{Deficiency, DeficiencyKind, Manifest};
use latpath_stats::units::{duration, number_of};

impl Follow {
    /// Updates a manifest's notes and deficiencies.
    pub(super) fn describe_lacks(&mut self, manifest: &mut Manifest) {
        let (footnotes, of_sources): (Vec<_>, Vec<_>) =
            self.source_notes().into_iter().partition(|note| note.kind == SourceNoteKind::Footnote);
        let senders = self.other_senders();
        manifest.deficiencies = self.deficiencies(&of_sources, &senders);
        manifest.notes = self.notes(&of_sources, senders);
        manifest.footnotes = footnotes.into_iter().map(|note| note.text).collect();
        manifest.footnotes.extend(self.under_way());
    }

    /// Describes the packets at the beginning that are not counted in any figure.
    fn under_way(&self) -> Option<String> {
        (self.under_way > 0).then(|| {
            format!(
                "{} in the first {} were not seen where the route begins, and do not count: they may have been under way \
                 when the recording began",
                number_of(self.under_way, "packet"),
                duration(self.options.window)
            )
        })
    }

    /// Notes from the sources.
    fn source_notes(&mut self) -> Vec<SourceNote> {
        self.merge.feeds.iter_mut().flat_map(|feed| feed.origin.source_notes()).collect()
    }

    /// Notes on streams with several senders, whose packets never meet.
    fn other_senders(&mut self) -> Vec<String> {
        let ids = 0..self.options.packet_streams().len() as StreamId;
        let others: Vec<_> = ids.map(|id| (id, self.joiner.other_senders(id))).filter(|(_, o)| !o.is_empty()).collect();
        if others.is_empty() {
            return Vec::new();
        }
        let senders: Vec<SenderAt> = self.merge.feeds.iter_mut().flat_map(Feed::senders).collect();
        let note = |(id, others): (StreamId, Vec<(u64, u64)>)| {
            let stream = &self.options.streams[usize::from(id)];
            let own: Vec<SenderAt> = senders.iter().filter(|at| at.stream == id).copied().collect();
            senders::note(stream, &self.tables.points, self.layout.route.of_stream(id), &others, &own)
        };
        others.into_iter().filter_map(note).collect()
    }

    /// The current notes for the user.
    fn notes(&self, of_sources: &[SourceNote], senders: Vec<String>) -> Vec<String> {
        let mut notes = self.notes.clone();
        notes.extend(self.not_stopped.iter().cloned());
        notes.extend(self.layout.notes.iter().cloned());
        notes.extend(senders);
        notes.extend(self.sampling.notes(&self.options.streams));
        notes.extend(self.reactions.notes());
        notes.extend(of_sources.iter().map(|note| note.text.clone()));
        notes.extend(self.merge.feeds.iter().filter_map(|feed| feed.origin.fault()));
        for (feed, flight) in self.merge.feeds.iter().zip(self.flights()) {
            let name = feed.origin.name();
            match flight {
                Some(Err(why)) => notes
                    .push(format!("{name}: no flight recorder, so what it did to late packets is not known: {why}")),
                Some(Ok(figures)) => notes.extend(figures.left_out().map(|what| format!("{name}: {what}"))),
                None => {}
            }
        }
        notes.extend(self.left_out().into_iter().map(|one| one.text));
        notes
    }

    /// Deficiencies: points beyond the limit, sightings that arrived too late to be joined in order, and requested
    /// points that no packet passed through.
    fn left_out(&self) -> Vec<Deficiency> {
        let mut all = Vec::new();
        if self.tables.refused > 0 {
            let text = format!(
                "{} points beyond the {} that a run can have were left out: narrow with --points",
                self.tables.refused,
                tables::MAX_POINTS
            );
            all.push(Deficiency::new(DeficiencyKind::SightingsDropped, text));
        }
        if self.merge.overdue > 0 {
            let text = format!(
                "sightings of another machine that came too late to be joined in order: {}",
                self.merge.overdue
            );
            all.push(Deficiency::new(DeficiencyKind::NotJoined, text));
        }
        let unseen = |pattern| format!("--points {pattern}: no packet was seen at such a point");
        let unseen = self.unseen_points().into_iter().map(unseen);
        all.extend(unseen.map(|text| Deficiency::new(DeficiencyKind::PointNotSeen, text)));
        all
    }

    /// The current deficiencies.
    fn deficiencies(&self, of_sources: &[SourceNote], senders: &[String]) -> Vec<Deficiency> {
        let faults = self.merge.feeds.iter().filter_map(|feed| feed.origin.fault());
        let lost = self.not_stopped.iter().cloned().chain(faults);
        let lost = lost.map(|text| Deficiency::new(DeficiencyKind::MachineLost, text));
        let not_followed = senders.iter().map(|text| Deficiency::new(DeficiencyKind::SenderNotFollowed, text));
        let of_sources = of_sources.iter().filter_map(of_source);
        lost.chain(self.left_out()).chain(not_followed).chain(of_sources).collect()
    }

    /// Patterns of requested points at which no packet has been seen so far.
    pub fn unseen_points(&self) -> Vec<&str> {
        self.options.points.unmatched(&self.tables.points)
    }

    /// Those of the segments in `own`, each `NAME=FROM..TO`, for which no packet has been seen at both ends so far;
    /// empty until there is a route.
    pub fn unseen_segments<'a>(&'a self, own: &'a [String]) -> impl Iterator<Item = &'a String> {
        let (points, route) = (&self.tables.points, &self.layout.route);
        let is_seen = |text: &str| matches!(segments::parse(text, points, route), Ok(Some(_)));
        own.iter().filter(move |text| !route.points.is_empty() && !is_seen(text))
    }
}

/// The deficiency that corresponds to a source's note.
fn of_source(note: &SourceNote) -> Option<Deficiency> {
    let kind = match note.kind {
        SourceNoteKind::Note | SourceNoteKind::Footnote => return None,
        SourceNoteKind::Fragments => DeficiencyKind::Fragments,
        SourceNoteKind::Changed => DeficiencyKind::Changed,
        SourceNoteKind::SendersMeet => DeficiencyKind::SendersMixed,
    };
    Some(Deficiency::new(kind, &note.text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{merge::Origin, Options};
    use latpath_model::{Counters, DropNote, Ns, PointInfo, Sighting, Source, StreamSpec};

    /// A source without sightings that has a note of each kind.
    struct Noting;

    const KINDS: [SourceNoteKind; 5] = [
        SourceNoteKind::Note,
        SourceNoteKind::Footnote,
        SourceNoteKind::Fragments,
        SourceNoteKind::Changed,
        SourceNoteKind::SendersMeet,
    ];

    impl Source for Noting {
        fn points(&mut self) -> Vec<PointInfo> {
            Vec::new()
        }

        fn drop_notes(&mut self) -> Vec<DropNote> {
            Vec::new()
        }

        fn drain(&mut self, _: &mut Vec<Sighting>) -> Ns {
            latpath_linux::monotonic()
        }

        fn counters(&mut self) -> Counters {
            Counters::default()
        }

        fn source_notes(&mut self) -> Vec<SourceNote> {
            KINDS.map(|kind| SourceNote::new(kind, format!("{kind:?}"))).into()
        }
    }

    impl Origin for Noting {
        fn stop(&mut self) -> Result<(), String> {
            Ok(())
        }

        fn fault(&self) -> Option<String> {
            Some("it went away".into())
        }
    }

    #[test]
    fn notes_of_a_source_become_notes_footnotes_or_deficiencies() {
        let options =
            Options { window: 100_000_000, ring_bytes: 1 << 20, ..Options::new(vec![StreamSpec::svid("MU01")]) };
        let mut follow = Follow::over(options, |_| Ok(Noting)).unwrap();
        let mut manifest = Manifest::default();
        follow.describe(&mut manifest);
        assert_eq!(manifest.footnotes, ["Footnote"]);
        assert_eq!(manifest.notes, ["Note", "Fragments", "Changed", "SendersMeet", "it went away"]);
        use DeficiencyKind::{Changed, Fragments, MachineLost, SendersMixed};
        let found: Vec<_> = manifest.deficiencies.iter().map(|one| (one.kind, one.text.as_str())).collect();
        let of_sources = [(Fragments, "Fragments"), (Changed, "Changed"), (SendersMixed, "SendersMeet")];
        assert_eq!(found, [&[(MachineLost, "it went away")], &of_sources[..]].concat());
    }
}
