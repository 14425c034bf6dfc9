//! The JSON document of `latpath clocks`.

use crate::events::SyncEvent;
use crate::state::ClockReport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Output of `latpath clocks --json`; with `--watch`, one line of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClocksDocument {
    /// State of the clocks.
    #[serde(flatten)]
    pub clocks: ClockReport,
    /// With `--watch`: events that began or ended since the previous line.
    pub events: Vec<SyncEvent>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Link, PtpInstance, PtpPort};

    #[test]
    fn what_the_command_prints_is_read_as_it_was() {
        let ptp = PtpInstance { ports: vec![PtpPort::default()], ..PtpInstance::default() };
        let clocks = ClockReport {
            links: vec![Link::default()],
            grandmaster_time: Some(Default::default()),
            ptp: vec![ptp],
            phc2sys: vec![Default::default()],
            chrony: Some(Default::default()),
            virtual_clock: Some(Default::default()),
            ..ClockReport::default()
        };
        let document = ClocksDocument { clocks, events: vec![SyncEvent::default()] };
        let text = serde_json::to_string(&document).unwrap();
        assert_eq!(serde_json::from_str::<ClocksDocument>(&text).unwrap(), document);
    }
}
