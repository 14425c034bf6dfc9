//! The terminal interface of `latpath live`: takes a [`latpath_stats::Summary`] once a second and shows it.
//!
//! ```no_run
//! # fn next_summary() -> latpath_stats::Summary { Default::default() }
//! use latpath_screen::{Action, Screen};
//! use std::time::Duration;
//!
//! let mut screen = Screen::start()?;
//! loop {
//!     screen.show(&next_summary())?;
//!     match screen.next_event(Duration::from_secs(1))? {
//!         Some(Action::Quit) => break,
//!         Some(Action::Reset) => { /* count from zero */ }
//!         Some(Action::Pause(_)) | None => {}
//!     }
//! }
//! # Ok::<(), latpath_screen::ScreenError>(())
//! ```
//! Inside: `terminal` acquires and restores the terminal, `keys` decodes keys, `model` contains the figures and the
//! user's choices, `watch` and `trouble` detect faults, `view` assigns space to `header`, `table`, `histogram`,
//! `panels`, `streams`, `overlay`.

mod header;
mod histogram;
mod keys;
mod lines;
mod model;
mod names;
mod overlay;
mod panels;
mod screen;
mod streams;
mod system;
mod table;
mod terminal;
mod theme;
mod trouble;
mod view;
mod watch;

#[cfg(test)]
mod tests;

pub use screen::{Action, Screen, ScreenError};
pub use terminal::width;
pub use theme::has_colours;
