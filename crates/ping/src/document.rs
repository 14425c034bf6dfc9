//! The JSON documents of `latpath ping emit` and `latpath ping reflect`.

use crate::breach_context::Breach;
use crate::emit::{EndReason, Pacing};
use crate::figures::Report;
use crate::fixed_width::{FixedWidthHistogram, SingleTime};
use crate::log::Summary;
use crate::reflect::Reflected;
use crate::sequenced::SequencedFigures;
use crate::session::Session;
use crate::session_number;
use crate::table::Counts;
use crate::timeline::Disturbance;
use crate::transaction::{Source, Stamp};
use crate::turnaround::{outermost, AllTurnarounds, Turnaround, Turnarounds};
use latpath_model::Ns;
use latpath_stats::{Bucket, TimeFigures};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of these documents.
pub const VERSION: u32 = 1;

/// Output of `latpath ping emit --json`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EmitDocument {
    /// Version of the document, 1.
    pub version: u32,
    /// Sessions, in the order of the addresses.
    pub sessions: Vec<SessionDocument>,
    /// Round trips over the threshold, as known when their answers arrived: the worst 20 that have a context, or,
    /// without a flight recorder, the first 100 of a trace.
    pub breaches: Vec<Breach>,
    /// Files of the trace that a breach stopped.
    pub trace: Vec<PathBuf>,
    /// Runs of the `--on-spike` command; null without the flag.
    pub on_spike: Option<CommandRuns>,
}

/// A session of an emitter with one reflector.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionDocument {
    /// Address of the reflector: IP address and port, or MAC address.
    pub target: String,
    /// Session number, in hexadecimal.
    #[serde(with = "session_number")]
    #[schemars(with = "String")]
    pub session: u32,
    /// Device through which probes are sent; null if unknown.
    pub device: Option<String>,
    /// `udp`, `ethernet`, `sv`, `ethernet_xdp` or `sv_xdp`.
    pub transport: String,
    /// Size of a probe, bytes.
    pub size_bytes: usize,
    /// How the probes are paced.
    pub pacing: SessionPacing,
    /// Stamps that both ends take, in the order of the route.
    pub stamps: Vec<Stamp>,
    /// Device that the reflector uses exclusively, empty if there is none; null if the reflector never answered.
    pub reflector_device: Option<String>,
    /// Why the session ended.
    pub ended: SessionEnd,
    /// Description of the failure; null if the session succeeded.
    pub error: Option<String>,
    /// Number of restarts of the reflector during the session.
    pub reflector_restarts: u64,
    /// Number of answers dropped by the emitter's kernel because the socket buffer was full.
    pub dropped_here: u64,
    /// Log of single transactions; null without `--log`.
    pub log: Option<Summary>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Figures of the session.
    #[serde(flatten)]
    pub report: Report,
}

/// How the probes of a session are paced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionPacing {
    /// Each probe follows the answer to the previous one.
    AsAnswersCome,
    /// As fast as the kernel accepts probes.
    Flood,
    /// A fixed rate.
    #[serde(untagged)]
    Rate {
        /// Probes per second.
        rate_hz: f64,
    },
}

impl From<Pacing> for SessionPacing {
    fn from(pacing: Pacing) -> Self {
        match pacing {
            Pacing::AsAnswersCome => Self::AsAnswersCome,
            Pacing::Flood => Self::Flood,
            Pacing::Every(pace) => Self::Rate { rate_hz: pace.hz() },
        }
    }
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionEnd {
    /// The requested number of probes, or the requested duration, was reached.
    Done,
    /// The user stopped the session.
    Stopped,
    /// A round trip exceeded the threshold.
    Breach,
    /// No answer within `--timeout`.
    Dead,
    /// The peer's kernel reported a closed port.
    NobodyListens,
    /// No answer to the first hello.
    NobodyAnswers,
    /// The reflector uses another version of the probe format.
    OtherVersion,
    /// Sending or receiving failed.
    Failed,
}

impl From<&Result<EndReason, String>> for SessionEnd {
    fn from(why: &Result<EndReason, String>) -> Self {
        match why {
            Ok(EndReason::Done) => Self::Done,
            Ok(EndReason::Stopped) => Self::Stopped,
            Ok(EndReason::Breach) => Self::Breach,
            Ok(EndReason::Dead) => Self::Dead,
            Ok(EndReason::NobodyListens) => Self::NobodyListens,
            Ok(EndReason::NobodyAnswers) => Self::NobodyAnswers,
            Ok(EndReason::OtherVersion(_)) => Self::OtherVersion,
            Err(_) => Self::Failed,
        }
    }
}

/// Runs of the `--on-spike` command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandRuns {
    /// Number of starts of the command.
    pub started: u64,
    /// Number of starts that failed, and of runs with an exit status other than 0.
    pub failed: u64,
    /// Number of late packets for which the command was not started, because it was running or had been started less
    /// than a second before.
    pub not_started: u64,
    /// The first failure, or null.
    pub first_failure: Option<String>,
}

/// Output of `latpath ping emit --sweep-size … --sweep-rate … --json`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SweepDocument {
    /// Version of the document, 1.
    pub version: u32,
    /// Address of the reflector: IP address and port, or MAC address.
    pub target: String,
    /// Requested number of rounds.
    pub rounds: u16,
    /// One cell for each size and rate, ordered by size, then by rate.
    pub cells: Vec<SweepCell>,
    /// Why the sweep ended early, or null.
    pub error: Option<String>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// One size and rate of a sweep, over all rounds.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SweepCell {
    /// Size of a probe, bytes.
    pub size_bytes: usize,
    /// Requested rate, probes per second; null if each probe follows the previous answer.
    pub rate_hz: Option<f64>,
    /// Number of rounds that measured the cell.
    pub rounds: u16,
    /// Duration of these rounds, ns.
    pub elapsed_ns: Ns,
    /// Probes sent per second.
    pub sent_hz: f64,
    /// The emitter's counts.
    pub counts: Counts,
    /// Time from T1 app to T4 app.
    pub round_trip: TimeFigures,
}

/// Output of `latpath ping reflect --json`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReflectDocument {
    /// Version of the document, 1.
    pub version: u32,
    /// Sessions in the order in which they ended: the first 10,000.
    pub sessions: Vec<ReflectedSession>,
    /// Number of further sessions.
    pub sessions_not_listed: u64,
    /// Counts of messages that got no answer, and whether a probe exceeded the threshold.
    #[serde(flatten)]
    pub sum: Reflected,
    /// Disturbances of the clocks of the reflector's machine.
    pub disturbances: Vec<Disturbance>,
    /// The first 100 probes whose time at the reflector exceeded `--threshold`.
    pub held: Vec<HeldProbe>,
    /// Times of all sessions.
    #[serde(flatten)]
    pub times: ReflectedTimes,
    /// Runs of the `--on-spike` command; null without the flag.
    pub on_spike: Option<CommandRuns>,
}

/// A session of a reflector.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReflectedSession {
    /// Address of the emitter.
    pub peer: String,
    /// Session number, in hexadecimal.
    #[serde(with = "session_number")]
    #[schemars(with = "String")]
    pub session: u32,
    /// Number of received probes, excluding duplicates but including the warm-up.
    pub received: u64,
    /// Number of duplicate probes.
    pub duplicates: u64,
    /// Number of probes received after a later one.
    pub reordered: u64,
    /// Number of answers that the reflector's kernel refused to send.
    pub refused: u64,
    /// Number of round trips over the emitter's threshold, as reported by the emitter.
    pub breaches: u64,
    /// Number of probes whose time at the reflector exceeded the reflector's threshold.
    pub over_threshold: u64,
    /// Times at the reflector.
    #[serde(flatten)]
    pub times: TurnaroundFigures,
}

impl ReflectedSession {
    /// Builds the document of a session with the emitter `peer`.
    pub fn of(peer: String, session: &Session) -> Self {
        let seen = session.seen;
        Self {
            peer,
            session: session.number,
            received: seen.received,
            duplicates: seen.duplicates,
            reordered: seen.reordered,
            refused: seen.refused,
            breaches: session.breaches,
            over_threshold: session.times.over,
            times: (&session.times).into(),
        }
    }
}

/// Times of probes at the reflector, by the clock that took their stamps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnaroundFigures {
    /// Time from T2 nic to T3 nic, measured by the PHC; null without such stamps.
    pub nic_turnaround: Option<SequencedFigures>,
    /// Time from T2 kernel to the kernel's last stamp on the answer; null without such stamps.
    pub kernel_turnaround: Option<SequencedFigures>,
    /// Time from T2 app to T3 app; null without probes.
    pub turnaround: Option<SequencedFigures>,
}

impl From<&Turnarounds> for TurnaroundFigures {
    fn from(times: &Turnarounds) -> Self {
        Self {
            nic_turnaround: times.nic.some_figures(),
            kernel_turnaround: times.kernel.some_figures(),
            turnaround: times.app.some_figures(),
        }
    }
}

/// A probe whose time at the reflector exceeded the reflector's threshold.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HeldProbe {
    /// Address of the emitter.
    pub peer: String,
    /// Session number, in hexadecimal.
    #[serde(with = "session_number")]
    #[schemars(with = "String")]
    pub session: u32,
    /// Source of both stamps.
    pub clock: Source,
    /// The probe, its stamps and its time.
    #[serde(flatten)]
    pub held: Turnaround,
}

/// Times of all sessions of a reflector.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReflectedTimes {
    /// The times by clock.
    #[serde(flatten)]
    pub figures: TurnaroundFigures,
    /// Which times are compared with the threshold, those nearest to the wire: `nic_turnaround`, `kernel_turnaround` or
    /// `turnaround`.
    pub judged: String,
    /// Number of probes whose time, as named by `judged`, exceeded the threshold.
    pub over_threshold: u64,
    /// Non-empty buckets of the judged times: of equal width with `--bucket`, otherwise about ten per decade.
    pub histogram: Vec<Bucket>,
    /// End of the fixed-width histogram, ns; null without one.
    pub overflow_from_ns: Option<Ns>,
    /// Number of judged times beyond the end.
    pub overflown: u64,
    /// Judged times beyond the end, longest first; at most 10,000.
    pub overflow: Vec<SingleTime>,
}

impl From<&AllTurnarounds> for ReflectedTimes {
    fn from(all: &AllTurnarounds) -> Self {
        let [nic, kernel, app] = all.times.all();
        let (_, judged, times) = match outermost(all.taken) {
            Source::Nic => nic,
            Source::Kernel => kernel,
            Source::App => app,
        };
        let drawn = all.drawn.as_ref();
        Self {
            figures: (&all.times).into(),
            judged: judged.into(),
            over_threshold: all.times.over,
            histogram: drawn.map_or_else(|| times.times().buckets(), FixedWidthHistogram::buckets),
            overflow_from_ns: drawn.map(FixedWidthHistogram::end),
            overflown: drawn.map_or(0, FixedWidthHistogram::overflown),
            overflow: drawn.map_or(Vec::new(), FixedWidthHistogram::overflow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breach::BreachedProbe;
    use crate::figures::{FigureOptions, Figures};
    use crate::fixed_width::HistogramAxis;
    use crate::table::End;
    use crate::timeline::{Relation, Timeline};
    use crate::transaction::{Route, Transaction};
    use latpath_testkit::misfits;
    use serde::de::DeserializeOwned;
    use serde_json::{json, Value};

    /// Prints a document, validates it against its schema, and parses it.
    fn printed<T: Serialize + DeserializeOwned + JsonSchema>(document: &T) -> Value {
        let value = serde_json::to_value(document).unwrap();
        let schema = schemars::generate::SchemaSettings::draft2020_12().for_serialize().into_generator();
        let schema = schema.into_root_schema_for::<T>().to_value();
        assert_eq!(misfits(&schema, &value), [""; 0]);
        let read: T = serde_json::from_str(&value.to_string()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), value);
        value
    }

    fn transaction() -> Transaction {
        let mut t = Transaction { sequence: 3, ..Transaction::default() };
        Stamp::ALL.into_iter().for_each(|stamp| t.mapped.set(stamp, 100 * stamp as Ns));
        t.raw = t.mapped;
        t
    }

    fn session(pacing: SessionPacing, ended: SessionEnd) -> SessionDocument {
        let axis = HistogramAxis { bucket: 10, end: 20 };
        let mut figures =
            Figures::new(&FigureOptions { drawn: Some(axis), threshold: Some(1), worst: 1, ..Default::default() });
        figures.set_route(u16::MAX);
        figures.add(&transaction(), End::Answered);
        let timeline = Timeline::new(Relation::SameKernel);
        SessionDocument {
            target: "10.0.0.2:6185".into(),
            session: 0xabc,
            device: None,
            transport: "udp".into(),
            size_bytes: 96,
            pacing,
            stamps: Stamp::ALL.into(),
            reflector_device: Some(String::new()),
            ended,
            error: None,
            reflector_restarts: 0,
            dropped_here: 0,
            log: Some(Summary { files: vec!["log.csv".into()], ..Summary::default() }),
            notes: Vec::new(),
            report: figures.report(&Counts::default(), Some(Default::default()), &timeline, (1, 2)),
        }
    }

    #[test]
    fn what_an_emitter_prints_is_read_as_it_was() {
        let breach = BreachedProbe::of(0xabc, &transaction(), &Route::of_seven(u16::MAX), &[]);
        let paces = [SessionPacing::AsAnswersCome, SessionPacing::Flood, SessionPacing::Rate { rate_hz: 1000.0 }];
        let value = printed(&EmitDocument {
            version: VERSION,
            sessions: paces.map(|pacing| session(pacing, SessionEnd::NobodyAnswers)).into(),
            breaches: vec![breach.into()],
            trace: Vec::new(),
            on_spike: Some(CommandRuns::default()),
        });
        let of = |key: &str| value["sessions"].as_array().unwrap().iter().map(|s| s[key].clone()).collect::<Vec<_>>();
        assert_eq!(of("pacing"), [json!("as_answers_come"), json!("flood"), json!({ "rate_hz": 1000.0 })]);
        assert_eq!(of("session")[0], "00000abc");
        assert_eq!(of("ended")[0], "nobody_answers");
        assert_eq!(of("overflow")[0][0], json!({ "round_trip_ns": 1300, "sequence": 3 }));
        assert!(value["breaches"][0].get("context").is_none());
    }

    #[test]
    fn what_a_reflector_prints_is_read_as_it_was() {
        let mut all = AllTurnarounds::new(Stamp::T2Kernel.bit(), Some(HistogramAxis { bucket: 10, end: 20 }));
        all.record(Source::Kernel, 7, 50);
        let held = Turnaround { sequence: 7, from: Stamp::T2Kernel, to: Stamp::T3App, time_ns: 50 };
        let value = printed(&ReflectDocument {
            version: VERSION,
            sessions: vec![ReflectedSession::of("10.0.0.1:9".into(), &Session::new(7, 0, None, 0))],
            sessions_not_listed: 0,
            sum: Reflected { sessions: 1, ..Reflected::default() },
            disturbances: Vec::new(),
            held: vec![HeldProbe { peer: "10.0.0.1:9".into(), session: 7, clock: held.clock(), held }],
            times: (&all).into(),
            on_spike: None,
        });
        assert_eq!(
            (&value["judged"], &value["kernel_turnaround"]["max_ns"]),
            (&json!("kernel_turnaround"), &json!(50))
        );
        assert_eq!((&value["turnaround"], &value["overflow"][0]["sequence"]), (&Value::Null, &json!(7)));
        assert_eq!(value["held"][0]["from"], "t2_kernel");
        assert!(value["sessions"].is_array());
    }
}
