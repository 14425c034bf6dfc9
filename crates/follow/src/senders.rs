//! Says that a stream has several senders, whose packets never meet, and how to follow another one.

use latpath_model::{PointId, PointInfo, PointKind, StreamSpec};
use latpath_stats::units::number_of;

/// Points that a flag names.
const NAMED: usize = 6;

/// The note on a stream: `route` is that of the packets that are followed, `others` has each further sender's points and sightings.
pub(crate) fn note(
    stream: &StreamSpec,
    points: &[PointInfo],
    route: &[PointId],
    others: &[(u64, u64)],
) -> Option<String> {
    let name = |p: usize| points.get(p).map_or_else(|| format!("point {p}"), |info| info.point.to_string());
    let of = |mask: u64| {
        let is_drop = move |p: &usize| points.get(*p).is_some_and(|info| info.point.kind == PointKind::Drop);
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
    let apart: Vec<String> =
        seen.iter().map(|(mask, n)| format!("{} ({})", first(*mask), number_of(*n, "sighting"))).collect();
    let followed = route.first().map_or_else(|| "the one seen first".into(), |p| name(usize::from(*p)));
    let flag = of(mask).take(NAMED).map(name).collect::<Vec<_>>().join(",");
    Some(format!(
        "{senders} senders of {stream}, whose packets never meet: those from {followed} are followed; in no journey are those from {}. To \
         follow these instead: --points {flag}",
        apart.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_model::Point;

    #[test]
    fn the_senders_and_the_flag_for_the_other_one_are_named() {
        let names = ["host/tx@pa", "host/nic-rx@hin", "host/drop@a2", "host/tx@p2", "host/nic-rx@a2"];
        let points: Vec<PointInfo> = names.iter().map(|name| name.parse::<Point>().unwrap().into()).collect();
        let stream = StreamSpec::svid("NW01");
        assert_eq!(note(&stream, &points, &[0, 1], &[]), None);
        assert_eq!(note(&stream, &points, &[0, 1], &[(0b11100, 0)]), None, "none of its packets was seen yet");
        assert_eq!(
            note(&stream, &points, &[0, 1], &[(0b11100, 1)]).unwrap(),
            "two senders of svid:NW01, whose packets never meet: those from host/tx@pa are followed; in no journey are those from \
             host/tx@p2 (1 sighting). To follow these instead: --points host/tx@p2,host/nic-rx@a2"
        );
        let three = note(&stream, &points, &[0], &[(0b01000, 5), (0b10000, 7)]).unwrap();
        assert!(
            three.starts_with("3 senders of svid:NW01") && three.contains("host/nic-rx@a2 (7 sightings)"),
            "{three}"
        );
    }
}
