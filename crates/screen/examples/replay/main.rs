//! Shows made-up figures, or those of a file that `latpath live --json` wrote, on the screen:
//! `cargo run --release --example replay -- [SCENE|FILE]`.

mod samples;

use latpath_screen::{Action, Screen};
use latpath_stats::Summary;
use samples::Scene;
use std::{
    error::Error,
    io::BufRead,
    time::{Duration, Instant},
};

/// All scenes by name.
const SCENES: [(&str, Scene); 6] = [
    ("normal", Scene::Normal),
    ("waiting", Scene::Waiting),
    ("silent", Scene::Silent),
    ("trouble", Scene::Trouble),
    ("streams", Scene::Streams),
    ("no-guest", Scene::NoGuest),
];

fn main() -> Result<(), Box<dyn Error>> {
    let what = std::env::args().nth(1).unwrap_or_else(|| "normal".into());
    let scene = SCENES.iter().find(|(name, _)| *name == what).map(|(_, scene)| *scene);
    let file: Vec<Summary> = match scene {
        Some(_) => Vec::new(),
        None => {
            let names = SCENES.map(|(name, _)| name).join(", ");
            let file = std::fs::File::open(&what).map_err(|e| format!("{what}: {e} (scenes: {names})"))?;
            let lines = std::io::BufReader::new(file).lines();
            lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect::<Result<_, Box<dyn Error>>>()?
        }
    };
    let mut screen = Screen::start()?;
    let mut second = 0;
    loop {
        second += 1;
        match scene {
            Some(scene) => screen.show(&samples::summary(scene, second))?,
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
