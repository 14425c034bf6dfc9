//! The screen: displays figures and returns keys.

use crate::{
    model::Model,
    system,
    terminal::{Input, RawTerminal},
    theme::Theme,
    view,
};
use latpath_stats::{LateFigures, Summary};
use std::{
    io,
    time::{Duration, Instant},
};

/// Why the screen cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum ScreenError {
    /// stdout is not a terminal.
    #[error("stdout: not a terminal; without one, figures come as plain lines")]
    NoTerminal,
    /// The terminal cannot move its cursor.
    #[error(
        "TERM=dumb: this terminal cannot show a screen; set TERM to the terminal's type, or pipe the output for plain lines"
    )]
    Dumb,
    /// stdin is not a terminal, and there is no other one to read keys from.
    #[error("/dev/tty: {0}; keys are read from it because stdin is not a terminal")]
    NoKeys(#[source] io::Error),
    /// The terminal was closed, or the connection to it broke.
    #[error("the terminal is gone")]
    Gone,
    /// A thread panicked, and the terminal was restored so that the panic message can be read.
    #[error("the screen was closed because a thread of latpath panicked; its message is on stderr")]
    Panicked,
    /// An operation on the terminal failed.
    #[error("the terminal: {0}")]
    Terminal(#[source] io::Error),
}

/// A user's request that the caller must handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// End: `q`, Ctrl-C, or one of SIGINT, SIGTERM, SIGHUP.
    Quit,
    /// Reset the figures to zero. The screen detects the reset by itself.
    Reset,
    /// The displayed figures were frozen (`true`) or released. No action is needed. Measuring continues, and `show`
    /// must still be called, because the line of troubles remains live.
    Pause(bool),
}

/// Maximum time between redraws, so that a displayed time such as "no packets for N s" stays current.
const REDRAW: Duration = Duration::from_secs(1);

/// The terminal interface. While it exists the terminal is in raw mode on its alternate screen; dropping it restores
/// the terminal, as does a panic in any thread.
pub struct Screen {
    taken: RawTerminal,
    model: Model,
    begun: Instant,
    drawn: Instant,
}

impl Screen {
    /// Acquires the terminal of stdout. Character set, blocks and colours follow `LC_ALL`, `LC_CTYPE`, `LANG`, `TERM`
    /// and `NO_COLOR`.
    ///
    /// # Errors
    /// There is no terminal, or it cannot show a screen; nothing has been changed.
    pub fn start() -> Result<Self, ScreenError> {
        let taken = RawTerminal::take()?;
        let now = Instant::now();
        let mut screen =
            Self { taken, model: Model::new(Theme::from_env(), system::time_of_day), begun: now, drawn: now };
        screen.draw()?;
        Ok(screen)
    }

    /// Shows the next figures. Call it once per second, even without packets and while paused.
    ///
    /// # Errors
    /// The terminal is gone, or was restored after a panic.
    pub fn show(&mut self, summary: &Summary) -> Result<(), ScreenError> {
        self.model.feed(summary, self.begun.elapsed());
        self.draw()
    }

    /// Shows newly found causes of late packets without waiting for the next summary.
    ///
    /// # Errors
    /// The terminal is gone, or was restored after a panic.
    pub fn show_late(&mut self, late: &LateFigures) -> Result<(), ScreenError> {
        self.model.feed_late(late);
        self.draw()
    }

    /// Waits up to `timeout` for a request that the caller must handle; `None` if there was none. Call it in a loop:
    /// keys that change the display and signals are only handled here.
    ///
    /// SIGTSTP and Ctrl-Z stop the process here, with the terminal restored, until it is continued.
    ///
    /// # Errors
    /// The terminal is gone, or was restored after a panic.
    pub fn next_event(&mut self, timeout: Duration) -> Result<Option<Action>, ScreenError> {
        let end = Instant::now() + timeout;
        loop {
            match self.taken.wait(end.min(self.drawn + REDRAW))? {
                Some(Input::End) => return Ok(Some(Action::Quit)),
                Some(Input::Redraw) => self.draw()?,
                Some(Input::Key(crate::keys::Key::Redraw)) => {
                    self.taken.screen.clear().map_err(ScreenError::Terminal)?;
                    self.draw()?;
                }
                Some(Input::Key(key)) => {
                    let action = self.model.key(key);
                    self.draw()?;
                    if action.is_some() {
                        return Ok(action);
                    }
                }
                None if self.drawn.elapsed() >= REDRAW => self.draw()?,
                None => {}
            }
            if Instant::now() >= end {
                return Ok(None);
            }
        }
    }

    fn draw(&mut self) -> Result<(), ScreenError> {
        if !self.taken.is_ours() {
            return Err(ScreenError::Panicked);
        }
        self.model.now = self.begun.elapsed();
        self.drawn = Instant::now();
        let model = &self.model;
        let draw = |frame: &mut ratatui::Frame<'_>| view::render(model, frame.area(), frame.buffer_mut());
        self.taken.screen.draw(draw).map(|_| ()).map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe => ScreenError::Gone,
            _ if e.raw_os_error() == Some(libc::EIO) => ScreenError::Gone,
            _ => ScreenError::Terminal(e),
        })
    }
}
