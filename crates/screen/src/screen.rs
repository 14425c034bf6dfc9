//! The screen: figures in, keys out.

use crate::{
    model::Model,
    system,
    terminal::{Input, Taken},
    theme::Theme,
    view,
};
use latpath_stats::{LateFigures, Summary};
use std::{
    io,
    time::{Duration, Instant},
};

/// Why there is no screen, or no longer one.
#[derive(Debug, thiserror::Error)]
pub enum ScreenError {
    /// stdout leads to no terminal.
    #[error("stdout: not a terminal; without one, figures come as plain lines")]
    NoTerminal,
    /// The terminal cannot move its cursor.
    #[error(
        "TERM=dumb: this terminal cannot show a screen; set TERM to what it is, or pipe the output for plain lines"
    )]
    Dumb,
    /// stdin is no terminal, and there is no other to read keys from.
    #[error("/dev/tty: {0}; keys are read from it because stdin is not a terminal")]
    NoKeys(#[source] io::Error),
    /// The terminal was closed, or the connection to it broke.
    #[error("the terminal is gone")]
    Gone,
    /// A thread panicked and the terminal was given back, so that its message can be read.
    #[error("the screen was closed because a thread of latpath panicked; its message is on stderr")]
    Panicked,
    /// The terminal refused something.
    #[error("the terminal: {0}")]
    Terminal(#[source] io::Error),
}

/// What the user asked for that the screen cannot do itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// End: `q`, Ctrl-C, or one of SIGINT, SIGTERM, SIGHUP.
    Quit,
    /// Count from zero. The screen notices by itself when the figures start from zero.
    Reset,
    /// The figures on the screen stand still (`true`) or move again. Nothing has to be done: measuring goes on, and
    /// `show` is to be called as before, since the line of troubles stays live.
    Pause(bool),
}

/// The figures are redrawn at least this often, so that "no packets for N s" counts on.
const REDRAW: Duration = Duration::from_secs(1);

/// The terminal interface. While it lives the terminal is in raw mode on its alternate screen; dropping it gives the
/// terminal back as it was. So does a panic in any thread.
pub struct Screen {
    taken: Taken,
    model: Model,
    begun: Instant,
    drawn: Instant,
}

impl Screen {
    /// Takes the terminal of stdout. Letters, blocks and colours follow `LC_ALL`, `LC_CTYPE`, `LANG`, `TERM` and
    /// `NO_COLOR`.
    ///
    /// # Errors
    /// There is no terminal, or it cannot show a screen; nothing has been changed then.
    pub fn start() -> Result<Self, ScreenError> {
        let taken = Taken::take()?;
        let now = Instant::now();
        let mut screen =
            Self { taken, model: Model::new(Theme::from_env(), system::time_of_day), begun: now, drawn: now };
        screen.draw()?;
        Ok(screen)
    }

    /// Shows the next figures. To be called once a second, also while nothing comes and while paused.
    ///
    /// # Errors
    /// The terminal is gone or no longer ours.
    pub fn show(&mut self, summary: &Summary) -> Result<(), ScreenError> {
        self.model.feed(summary, self.begun.elapsed());
        self.draw()
    }

    /// Shows what held late packets, between two summaries: the user waits for it.
    ///
    /// # Errors
    /// The terminal is gone or no longer ours.
    pub fn show_late(&mut self, late: &LateFigures) -> Result<(), ScreenError> {
        self.model.feed_late(late);
        self.draw()
    }

    /// Waits up to `timeout` for something that the caller has to do; `None` if there was nothing. Keys that choose what
    /// is shown are dealt with inside, and signals are heard only here: call it in a loop, not only now and then.
    ///
    /// SIGTSTP and Ctrl-Z stop the process here, with the terminal given back, until it is continued.
    ///
    /// # Errors
    /// The terminal is gone or no longer ours.
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
