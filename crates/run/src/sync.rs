//! `sync.jsonl`: the programs that kept the host's clocks synchronised, and events of the clocks.

use crate::{lines, span::TimeSpan, RunError, SYNC};
use latpath_partstore::{Directory, StoreError};
use latpath_timesync::{SyncHistory, SyncRecord};
use std::{io::Write, path::Path};

/// Appends records; returns the number of bytes.
pub(crate) fn append(run: &Directory, records: &[SyncRecord]) -> Result<u64, RunError> {
    let lines = lines::of(records);
    let written = run.append(SYNC).and_then(|mut file| {
        file.write_all(&lines)?;
        file.sync_data()
    });
    written.map_err(StoreError::write(run.join(SYNC)))?;
    Ok(lines.len() as u64)
}

/// Loads the history; returns it with the number of damaged lines. A run of an earlier version has no history.
pub(crate) fn load(run: &Path, span: TimeSpan) -> Result<(SyncHistory, u64), RunError> {
    let mut history = SyncHistory::default();
    let damaged = lines::for_each(&run.join(SYNC), |record: SyncRecord| {
        let is_possible = match &record {
            SyncRecord::Sample(sample) => span.contains(sample.from_ns) && span.contains(sample.until_ns),
            SyncRecord::Event(event) => {
                let until = event.until_ns.unwrap_or(event.noticed_ns);
                [event.from_ns, event.noticed_ns, until].iter().all(|t| span.contains(*t))
            }
        };
        if is_possible {
            history.add(record);
        }
        is_possible
    })?;
    Ok((history, damaged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_timesync::{SyncEvent, SyncSample};

    #[test]
    fn records_are_read_back_and_damaged_or_impossible_ones_are_counted() {
        let place = tempfile::tempdir().unwrap();
        let run = Directory::open(place.path()).unwrap();
        assert_eq!(load(place.path(), TimeSpan::default()).unwrap(), (SyncHistory::default(), 0));
        let sample = SyncSample { clock: "ptp0 (eth0)".into(), until_ns: 5, readings: 1, ..SyncSample::default() };
        let event = SyncEvent { number: 1, text: "from a to b".into(), until_ns: Some(9), ..SyncEvent::default() };
        let impossible = SyncEvent { number: 2, from_ns: i64::MAX, ..SyncEvent::default() };
        let records =
            [SyncRecord::Sample(sample.clone()), SyncRecord::Event(event.clone()), SyncRecord::Event(impossible)];
        append(&run, &records).unwrap();
        append(&run, &records[..1]).unwrap();
        let (history, damaged) = load(place.path(), TimeSpan::default()).unwrap();
        assert_eq!((history.events, damaged), (vec![event], 1));
        assert_eq!(history.links, [SyncSample { readings: 2, ..sample }]);
    }
}
