//! Detects clocks that are whole seconds apart, such as TAI and UTC. `smpCnt` restarts with each second, so packets of
//! such files would be joined with those of another second.

use crate::packets::{FileEnd, PacketId};
use latpath_model::Ns;

const SECOND: Ns = 1_000_000_000;
/// TAI minus UTC since 2017, ns.
const TAI_AHEAD: Ns = 37 * SECOND;
/// Maximum deviation from that difference at both ends of the files, ns; not 0, because loggers are started one after
/// the other.
const STARTED_WITHIN: Ns = SECOND / 2;
/// Maximum deviation at both ends of files that are another number of whole seconds apart, ns: the delay of packets.
const ON_THE_WAY: Ns = SECOND / 10;

/// Offset of a file's clock from the first file's, ns, if both ends of the files show that it is a number of whole
/// seconds. The known `offset` is subtracted first. `None` if the files may just cover different times.
pub(crate) fn whole_seconds(first: &FileEnd, other: &FileEnd, offset: Ns) -> Option<Ns> {
    let apart = |a: Ns, b: Ns| b.saturating_sub(offset).saturating_sub(a);
    let ends = [
        apart(first.file.first_utc_ns, other.file.first_utc_ns),
        apart(first.file.last_utc_ns, other.file.last_utc_ns),
    ];
    for tai in [TAI_AHEAD, -TAI_AHEAD] {
        if ends.iter().all(|apart| apart.abs_diff(tai) <= STARTED_WITHIN as u64) {
            return Some(tai);
        }
    }
    // If a script started and stopped the loggers some seconds apart, the files do not begin and end with the same
    // packets.
    let same = |a: &Option<PacketId>, b: &Option<PacketId>| a.is_some() && a == b;
    let whole = ends[0].saturating_add(SECOND / 2).div_euclid(SECOND).saturating_mul(SECOND);
    let is_near = |apart: &Ns| apart.abs_diff(whole) <= ON_THE_WAY as u64;
    (whole != 0 && ends.iter().all(is_near) && same(&first.first, &other.first) && same(&first.last, &other.last))
        .then_some(whole)
}

/// Whether this is the difference between TAI and UTC.
pub(crate) fn is_tai(ns: Ns) -> bool {
    ns.abs() == TAI_AHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_run::ImportedFile;

    fn file(first: Ns, last: Ns, keys: (u32, u32)) -> FileEnd {
        let named = |key| Some(("svid:MU01".parse().unwrap(), key));
        FileEnd {
            file: ImportedFile { first_utc_ns: first, last_utc_ns: last, ..ImportedFile::default() },
            first: named(keys.0),
            last: named(keys.1),
            ..FileEnd::default()
        }
    }

    #[test]
    fn whole_seconds_are_noticed_if_both_ends_show_them() {
        const MS: Ns = 1_000_000;
        let apart = |begin: Ns, end: Ns, keys| {
            let pair = [file(0, 600 * SECOND, (7, 9)), file(begin, 600 * SECOND + end, keys)];
            whole_seconds(&pair[0], &pair[1], 0)
        };
        let (same, other) = ((7, 9), (8, 9));
        for (begin, end, keys, found) in [
            // TAI: it does not matter with which packets the files begin and end.
            (37 * SECOND + 300 * MS, 36_600 * MS, other, Some(TAI_AHEAD)),
            (-37 * SECOND, -36_800 * MS, other, Some(-TAI_AHEAD)),
            (37 * SECOND, 36 * SECOND, other, None),
            // Any number of whole seconds, if the files begin and end with the same packets.
            (2 * SECOND + MS, 2 * SECOND + 90 * MS, same, Some(2 * SECOND)),
            (-SECOND + MS, -SECOND + MS, same, Some(-SECOND)),
            (2 * SECOND + MS, 2 * SECOND + 90 * MS, other, None),
            (2 * SECOND + MS, 3 * SECOND, same, None),
            (2500 * MS, 2500 * MS, same, None),
            (MS, 90 * MS, same, None),
        ] {
            assert_eq!(apart(begin, end, keys), found, "{begin} {end}");
        }
        let pair = [file(0, SECOND, (1, 2)), file(37 * SECOND, 38 * SECOND, (1, 2))];
        assert_eq!(whole_seconds(&pair[0], &pair[1], 37 * SECOND), None, "it is corrected");
    }
}
