//! One attempt at a trial: sets up, lets the stream and the load warm up, records, and tears everything down.

use crate::children::Common;
use crate::engine::Phase;
use crate::plan::{filled_in, Variables};
use crate::process::{self, BackgroundProcess, Surroundings};
use crate::schedule::Trial;
use crate::Plan;
use latpath_agent::{Machine, Timeouts};
use latpath_follow::{hypervisors, FlightOptions, NamedMachine, Options, PointFilter};
use latpath_linux::background::Background;
use latpath_linux::Directory;
use latpath_model::StreamSpec;
use latpath_session::{RecordOptions, RecordSession, Session, StopAfter};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between reads of the probes' ring buffers, which hold many times what arrives in this time.
const ROUND: Duration = Duration::from_millis(5);
/// Interval at which the children are checked.
const CHECK: Duration = Duration::from_millis(100);

/// Timeout for an agent's answer in one connection attempt.
const ANSWER: Duration = Duration::from_secs(4);

/// An attempt at a trial.
pub struct Attempt<'a> {
    pub plan: &'a Plan,
    pub trial: Trial,
    /// The trial's directory.
    pub directory: &'a Directory,
    /// Directory of the plan; commands run in it.
    pub current: &'a Path,
    /// latpath's own program.
    pub program: &'a Path,
}

/// A complete recording.
#[derive(Debug, Default)]
pub struct Recorded {
    pub journeys: u64,
    pub load_bits_per_second: Option<f64>,
    pub notes: Vec<String>,
}

/// Why an attempt has no recording.
#[derive(Debug)]
pub enum NotRecorded {
    /// The user ended the study.
    Stopped,
    Failed(String),
}

impl From<String> for NotRecorded {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl Attempt<'_> {
    fn environment(&self, variables: &Variables) -> Vec<(String, String)> {
        let [direction, topology, settings, load] = self.trial.cell.names(self.plan);
        let own = [
            ("LATPATH_DIRECTION", direction),
            ("LATPATH_TOPOLOGY", topology),
            ("LATPATH_SETTINGS", settings),
            ("LATPATH_LOAD", load),
        ];
        let of_user = variables.iter().map(|(name, value)| (name.clone(), value.clone()));
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        of_user.chain(own).collect()
    }

    fn variables(&self) -> Variables {
        self.plan.variables_of(&self.plan.topologies[self.trial.cell.topology])
    }

    fn run(&self, what: &str, command: Option<&String>) -> Result<(), String> {
        let Some(command) = command else { return Ok(()) };
        let surroundings = Surroundings { variables: self.environment(&self.variables()), ..Surroundings::default() };
        process::run(what, command, &surroundings, (self.directory, self.current), self.plan.command_limit)
    }

    /// Sets up the topology, applies the settings and records; then restores the settings and tears the topology down,
    /// even after a failure. Returns the results of the recording and of the teardown.
    pub fn make(
        &self,
        stop: &AtomicBool,
        phase: &mut dyn FnMut(Phase),
    ) -> (Result<Recorded, NotRecorded>, Result<(), String>) {
        let recorded = self.set_up_and_record(stop, phase);
        phase(Phase::TakingDown);
        (recorded, self.take_down())
    }

    fn set_up_and_record(&self, stop: &AtomicBool, phase: &mut dyn FnMut(Phase)) -> Result<Recorded, NotRecorded> {
        phase(Phase::SettingUp);
        let cell = self.trial.cell;
        let (topology, settings) = (&self.plan.topologies[cell.topology], &self.plan.settings[cell.settings]);
        topology.up(stop)?;
        self.run("up", topology.up.as_ref())?;
        self.wait_for_agents(stop)?;
        self.wait_until_ready(stop)?;
        settings.apply(stop)?;
        self.run("apply", settings.apply.as_ref())?;
        if stop.load(Ordering::Relaxed) {
            return Err(NotRecorded::Stopped);
        }
        let mut beside = self.start_processes()?;
        phase(Phase::WarmingUp);
        let until = Instant::now() + self.plan.warm_up;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(NotRecorded::Stopped);
            }
            // Sleep at least once, so that a command that fails immediately is noticed.
            std::thread::sleep(until.saturating_duration_since(Instant::now()).clamp(ROUND, CHECK));
            all_run(&mut beside)?;
            if Instant::now() >= until {
                break;
            }
        }
        let mut recorded = self.record(&mut beside, stop, phase)?;
        // Signal all processes first, so that they end in parallel.
        beside.iter_mut().for_each(BackgroundProcess::ask_to_end);
        beside.iter_mut().for_each(BackgroundProcess::end);
        recorded.load_bits_per_second = self.load_rate();
        Ok(recorded)
    }

    /// Waits until the agents of the plan's machines answer: a guest that the topology has started may still be
    /// booting.
    fn wait_for_agents(&self, stop: &AtomicBool) -> Result<(), NotRecorded> {
        let until = Instant::now() + self.plan.command_limit;
        for NamedMachine { name, address, .. } in self.plan.named_machines()? {
            let timeouts = Timeouts { connect: ANSWER, ..Timeouts::default() };
            while let Err(error) = Machine::connect(&name, &address, timeouts) {
                if stop.load(Ordering::Relaxed) {
                    return Err(NotRecorded::Stopped);
                }
                if Instant::now() >= until {
                    let limit = self.plan.command_limit.as_secs();
                    return Err(format!("{error}; it did not answer within {limit} s (command_limit)").into());
                }
                // If the address refuses connections immediately, this limits the rate of attempts.
                std::thread::sleep(CHECK);
            }
        }
        Ok(())
    }

    /// Repeats the plan's `ready` command until it succeeds: a guest without an agent may still be booting.
    fn wait_until_ready(&self, stop: &AtomicBool) -> Result<(), NotRecorded> {
        let until = Instant::now() + self.plan.command_limit;
        while let Err(error) = self.run("ready", self.plan.ready.as_ref()) {
            if stop.load(Ordering::Relaxed) {
                return Err(NotRecorded::Stopped);
            }
            if Instant::now() >= until {
                let limit = self.plan.command_limit.as_secs();
                return Err(format!("{error}; it did not succeed within {limit} s (command_limit)").into());
            }
            std::thread::sleep(CHECK);
        }
        Ok(())
    }

    /// Undoes the settings and takes the topology down, even if they were only partly set up.
    pub fn take_down(&self) -> Result<(), String> {
        let cell = self.trial.cell;
        let (topology, settings) = (&self.plan.topologies[cell.topology], &self.plan.settings[cell.settings]);
        let undone = self.run("undo", settings.undo.as_ref()).and(settings.undo());
        let down = self.run("down", topology.down.as_ref()).and(topology.down());
        undone.and(down)
    }

    fn stream(&self) -> Result<StreamSpec, String> {
        let direction = &self.plan.directions[self.trial.cell.direction];
        filled_in(&direction.stream, &self.variables())?.parse().map_err(|e| format!("{e}"))
    }

    /// Starts the reader, the publisher and the load.
    fn start_processes(&self) -> Result<Vec<BackgroundProcess>, String> {
        let variables = self.variables();
        let environment = self.environment(&variables);
        let common = Common { program: self.program, variables: &variables, environment };
        let cell = self.trial.cell;
        let mut all = common.of_direction(&self.plan.directions[cell.direction], &self.stream()?)?;
        all.extend(common.of_load(&self.plan.loads[cell.load])?);
        let folder = (self.directory, self.current);
        all.iter().map(|one| BackgroundProcess::start(one.what, &one.words, &one.surroundings, folder)).collect()
    }

    fn record_options(&self) -> Result<RecordOptions, String> {
        let direction = &self.plan.directions[self.trial.cell.direction];
        let variables = self.variables();
        let fill = |text: &String| filled_in(text, &variables);
        let threshold = self.plan.threshold_ns();
        let machines = self.plan.named_machines()?;
        let follow = Options {
            hypervisors: hypervisors(&machines)?,
            machines: machines.into_iter().map(|one| (one.name, one.address)).collect(),
            points: PointFilter::new(direction.points.iter().map(fill).collect::<Result<_, _>>()?),
            segments: self.plan.segments.iter().map(fill).collect::<Result<_, _>>()?,
            threshold,
            clock_error: self.plan.clock_error()?,
            window: self.plan.window.as_nanos() as _,
            flight: self.plan.flight.then(|| FlightOptions::over(threshold)),
            ..Options::new(vec![self.stream()?])
        };
        let named_segments = follow.segments.clone();
        Ok(RecordOptions {
            named_segments,
            stop_after: StopAfter { duration: Some(self.plan.duration), packets: None },
            ..RecordOptions::new(follow, self.directory.join("run"))
        })
    }

    fn record(
        &self,
        beside: &mut [BackgroundProcess],
        stop: &AtomicBool,
        phase: &mut dyn FnMut(Phase),
    ) -> Result<Recorded, NotRecorded> {
        let mut session =
            RecordSession::start(self.record_options()?, Some(Background::begin())).map_err(|e| chain(&e))?;
        phase(Phase::Recording);
        let (mut ended, mut notes, mut checked) = (None, Vec::new(), Instant::now());
        session.run_until(stop, ROUND, |session| {
            while let Some(event) = session.next_event() {
                note(&event, &mut notes);
            }
            if checked.elapsed() >= CHECK {
                checked = Instant::now();
                ended = beside.iter_mut().find_map(BackgroundProcess::why_ended);
            }
            match ended {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        if let Some(why) = ended {
            return Err(why.into());
        }
        if stop.load(Ordering::Relaxed) {
            return Err(NotRecorded::Stopped);
        }
        let manifest = session.stop().map_err(|e| chain(&e))?;
        if manifest.journeys == 0 {
            return Err(format!("no packet of {} was seen", self.stream()?).into());
        }
        Ok(Recorded { journeys: manifest.journeys, load_bits_per_second: None, notes })
    }

    /// The rate that the load reports, bits per second: from the JSON of latpath's own UDP load or of iperf3.
    fn load_rate(&self) -> Option<f64> {
        let report = |what: &str| -> Option<Value> {
            let text = latpath_linux::read_text(&self.directory.join(format!("{what}.json")), 1 << 20).ok()?;
            serde_json::from_str(text.trim()).ok()
        };
        let load = report("load")?;
        let end = |key: &str| load["end"][key]["bits_per_second"].as_f64();
        let own = || load["bits_per_second"].as_f64();
        let rate = end("sum_received").or_else(|| end("sum")).or_else(own);
        rate.filter(|rate| rate.is_finite() && *rate >= 0.0)
    }
}

fn all_run(beside: &mut [BackgroundProcess]) -> Result<(), String> {
    beside.iter_mut().find_map(BackgroundProcess::why_ended).map_or(Ok(()), Err)
}

/// An error together with its causes, as a string.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text += &format!(": {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Adds a note if the event matters to the reader of the study.
fn note(event: &latpath_session::Event, notes: &mut Vec<String>) {
    use latpath_session::Event;
    match event {
        Event::PointUnseen { pattern, .. } => notes.push(format!("no packet was seen at the point {pattern}")),
        Event::SegmentUnseen { segment, .. } => notes.push(format!("no packet was seen at an end of {segment}")),
        _ => {}
    }
}
