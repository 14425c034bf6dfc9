//! Notes on streams with several senders whose packets never meet, and on how to follow another sender.

use latpath_model::{PointId, PointInfo, SenderAt, StreamSpec};
use latpath_stats::units::number_of;

/// Maximum number of points listed in the suggested flag.
const NAMED: usize = 6;
/// Maximum number of addresses named per sender.
const ADDRESSES: usize = 2;

/// The note on a stream. `route`: that of the followed packets; `others`: for each other sender, the points as bits and
/// the number of sightings; `known`: source addresses seen at points.
pub(crate) fn note(
    stream: &StreamSpec,
    points: &[PointInfo],
    route: &[PointId],
    others: &[(u64, u64)],
    known: &[SenderAt],
) -> Option<String> {
    let addresses = |mask: u64| {
        let at_points = known.iter().filter(|at| mask.checked_shr(at.point.into()).is_some_and(|bits| bits & 1 == 1));
        let mut all: Vec<_> = at_points.map(|at| at.sender).collect();
        all.sort_unstable();
        all.dedup();
        all.truncate(ADDRESSES);
        all.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let name = |p: usize| points.get(p).map_or_else(|| format!("point {p}"), |info| info.point.to_string());
    let of = |mask: u64| {
        let is_drop = move |p: &usize| points.get(*p).is_some_and(|info| info.point.kind.is_drop());
        (0..u64::BITS as usize).filter(move |p| mask >> p & 1 == 1 && !is_drop(p))
    };
    let first = |mask: u64| {
        let is_source =
            |p: &usize| points.get(*p).is_some_and(|i| i.point.kind.is_sending() || i.point.kind.is_entry());
        of(mask).find(is_source).map_or_else(String::new, name)
    };
    let seen: Vec<(u64, u64)> = others.iter().copied().filter(|(_, sightings)| *sightings > 0).collect();
    let (mask, _) = *seen.first()?;
    let senders = match seen.len() {
        1 => "two".to_owned(),
        n => (n + 1).to_string(),
    };
    let each = |(mask, n): &(u64, u64)| {
        let about = [addresses(*mask), vec![number_of(*n, "sighting")]].concat();
        format!("{} ({})", first(*mask), about.join(", "))
    };
    let apart: Vec<String> = seen.iter().map(each).collect();
    let followed = route.first().map_or_else(|| "the one seen first".into(), |p| name(usize::from(*p)));
    let own = addresses(route.iter().fold(0, |mask, p| mask | 1 << p));
    let own = if own.is_empty() { String::new() } else { format!(" ({})", own.join(", ")) };
    let flag = of(mask).take(NAMED).map(name).collect::<Vec<_>>().join(",");
    Some(format!(
        "{senders} senders of {stream}, whose packets never meet: those from {followed}{own} are followed; in no journey are those from {}. To \
         follow these instead: --points {flag}",
        apart.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_model::{Point, Sender};

    #[test]
    fn the_senders_and_the_flag_for_the_other_one_are_named() {
        let names = ["host/tx@pa", "host/nic-rx@hin", "host/drop@a2", "host/tx@p2", "host/nic-rx@a2"];
        let points: Vec<PointInfo> = names.iter().map(|name| name.parse::<Point>().unwrap().into()).collect();
        let stream = StreamSpec::svid("NW01");
        assert_eq!(note(&stream, &points, &[0, 1], &[], &[]), None);
        assert_eq!(note(&stream, &points, &[0, 1], &[(0b11100, 0)], &[]), None, "none of its packets was seen yet");
        assert_eq!(
            note(&stream, &points, &[0, 1], &[(0b11100, 1)], &[]).unwrap(),
            "two senders of svid:NW01, whose packets never meet: those from host/tx@pa are followed; in no journey are those from \
             host/tx@p2 (1 sighting). To follow these instead: --points host/tx@p2,host/nic-rx@a2"
        );
        let three = note(&stream, &points, &[0], &[(0b01000, 5), (0b10000, 7)], &[]).unwrap();
        assert!(
            three.starts_with("3 senders of svid:NW01") && three.contains("host/nic-rx@a2 (7 sightings)"),
            "{three}"
        );
    }

    #[test]
    fn the_senders_are_named_by_their_source_addresses_too() {
        let names = ["host/tx@pa", "host/nic-rx@hin", "host/tx@p2"];
        let points: Vec<PointInfo> = names.iter().map(|name| name.parse::<Point>().unwrap().into()).collect();
        let at = |point, last| SenderAt { stream: 0, sender: Sender::Mac([2, 0, 0, 0, 0, last]), point };
        let known = [at(0, 1), at(1, 1), at(2, 2), at(64, 3)];
        let note = note(&StreamSpec::svid("NW01"), &points, &[0, 1], &[(0b100, 9)], &known).unwrap();
        assert!(note.contains("those from host/tx@pa (02:00:00:00:00:01) are followed"), "{note}");
        assert!(note.contains("host/tx@p2 (02:00:00:00:00:02, 9 sightings)"), "{note}");
    }
}
