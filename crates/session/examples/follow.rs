//! Follows a stream for some seconds, and prints typed events and figures as lines of JSON, as a daemon or a notebook
//! would read them. Run it as root: `follow svid:MU01 10`.

use latpath_follow::{FlightOptions, Options};
use latpath_session::{LiveOptions, LiveSession, Session, StopAfter};
use serde::Serialize;
use std::error::Error;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Interval at which the probes are read.
const PACE: Duration = Duration::from_millis(20);
const SHOW: Duration = Duration::from_secs(1);

fn print(value: &impl Serialize) {
    println!("{}", serde_json::to_string(value).expect("all keys are strings"));
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let stream = words.next().ok_or("name a stream and a number of seconds, as in: follow svid:MU01 10")?;
    let seconds = words.next().map_or(Ok(10), |seconds| seconds.parse())?;

    let mut follow = Options::new(vec![stream.parse()?]);
    follow.flight = Some(FlightOptions::over(follow.threshold));
    let mut options = LiveOptions::new(follow);
    options.stop_after = StopAfter { duration: Some(Duration::from_secs(seconds)), ..StopAfter::default() };
    let mut session = LiveSession::follow(options, None)?;

    let (never, mut due) = (AtomicBool::new(false), Instant::now() + SHOW);
    let why = session.run_until(&never, PACE, |session| {
        while let Some(event) = session.next_event() {
            print(&event);
        }
        if Instant::now() >= due {
            due += SHOW;
            print(&serde_json::json!({ "event": "figures", "figures": session.summary() }));
        }
        ControlFlow::Continue(())
    });
    print(&serde_json::json!({ "event": "over", "why": why, "figures": session.stop(SHOW) }));
    Ok(())
}
