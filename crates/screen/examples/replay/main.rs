//! Shows made-up figures, or those of a file that `latpath live --json` wrote, on the screen:
//! `cargo run --release --example replay -- [CAPTURES|FILE]`.

mod samples;

use latpath_screen::{Action, Screen};
use latpath_stats::Summary;
use samples::Capture;
use std::{
    error::Error,
    io::BufRead,
    time::{Duration, Instant},
};

/// All captures by name.
const CAPTURES: [(&str, Capture); 6] = [
    ("normal", Capture::Normal),
    ("waiting", Capture::Waiting),
    ("silent", Capture::Silent),
    ("trouble", Capture::Trouble),
    ("streams", Capture::Streams),
    ("no-guest", Capture::NoGuest),
];

fn main() -> Result<(), Box<dyn Error>> {
    let what = std::env::args().nth(1).unwrap_or_else(|| "normal".into());
    let capture = CAPTURES.iter().find(|(name, _)| *name == what).map(|(_, capture)| *capture);
    let file: Vec<Summary> = match capture {
        Some(_) => Vec::new(),
        None => {
            let names = CAPTURES.map(|(name, _)| name).join(", ");
            let file = std::fs::File::open(&what).map_err(|e| format!("{what}: {e} (captures: {names})"))?;
            let lines = std::io::BufReader::new(file).lines();
            lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect::<Result<_, Box<dyn Error>>>()?
        }
    };
    let mut screen = Screen::start()?;
    let mut second = 0;
    loop {
        second += 1;
        match capture {
            Some(capture) => screen.show(&samples::summary(capture, second))?,
            None => screen.show(&file[(second as usize - 1).min(file.len() - 1)])?,
        }
        if what == "silent" && second == 30 {
            panic!("a panic, to see that the terminal comes back");
        }
        let next = Instant::now() + Duration::from_secs(1);
        while Instant::now() < next {
            match screen.next_event(next.saturating_duration_since(Instant::now()))? {
                Some(Action::Quit) => return Ok(()),
                Some(Action::Reset) => second = 0,
                Some(Action::Pause(_)) | None => {}
            }
        }
    }
}
