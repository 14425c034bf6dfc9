//! The terminal: acquired at the start; restored on drop, on panic, and while the process is suspended.

use crate::{
    keys::{Decoder, Key},
    system, ScreenError,
};
use nix::{
    errno::Errno,
    poll::{poll, PollFd, PollFlags, PollTimeout},
};
use ratatui::{
    backend::CrosstermBackend,
    crossterm::{
        cursor, execute,
        terminal::{disable_raw_mode, enable_raw_mode, EnterAlternateScreen, LeaveAlternateScreen},
    },
};
use signal_hook::{consts::signal, flag, SigId};
use std::{
    fs::File,
    io::{self, stdin, stdout, IsTerminal, Stdout, Write},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc, Once, OnceLock,
    },
    time::{Duration, Instant},
};

/// Width of the terminal at standard output, columns; `None` if it is not a terminal.
pub fn width() -> Option<usize> {
    let columns = || ratatui::crossterm::terminal::size().ok().map(|(columns, _)| usize::from(columns));
    std::io::stdout().is_terminal().then(columns).flatten().filter(|columns| *columns > 0)
}

/// Whether the terminal is in raw mode for the screen. Cleared when a panic in any thread restores the terminal.
static TAKEN: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// Maximum wait after an escape for the rest of a sequence, which may arrive in pieces over a slow line.
const ESCAPE_WAIT: Duration = Duration::from_millis(100);
/// Maximum time between checks for signals.
const SLICE: Duration = Duration::from_millis(100);

/// Input from the terminal or the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    Key(Key),
    /// A signal requests the end of the program.
    End,
    /// The size changed, or the program was continued: the whole screen must be redrawn.
    Redraw,
}

/// The terminal in raw mode on its alternate screen.
pub struct RawTerminal {
    pub screen: ratatui::Terminal<CrosstermBackend<Stdout>>,
    input: Option<File>,
    decoder: Decoder,
    waiting: std::collections::VecDeque<Key>,
    signals: Signals,
}

struct Signals {
    end: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    resume: Arc<AtomicBool>,
    resize: Arc<AtomicBool>,
    ids: Vec<SigId>,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        let new = || Arc::new(AtomicBool::new(false));
        let mut all = Self { end: new(), stop: new(), resume: new(), resize: new(), ids: Vec::new() };
        for (number, flag) in [
            (signal::SIGINT, &all.end),
            (signal::SIGTERM, &all.end),
            (signal::SIGHUP, &all.end),
            (signal::SIGTSTP, &all.stop),
            (signal::SIGCONT, &all.resume),
            (signal::SIGWINCH, &all.resize),
        ] {
            if !system::is_handled(number) {
                flag::register_conditional_default(number, closed().clone())?;
            }
            all.ids.push(flag::register(number, flag.clone())?);
        }
        closed().store(false, Ordering::SeqCst);
        Ok(all)
    }
}

/// The flag that is set while the screen is closed. Signals without another handler then have their default effect;
/// otherwise they would be ignored, because the signal crate never removes its handlers.
fn closed() -> &'static Arc<AtomicBool> {
    static CLOSED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    CLOSED.get_or_init(Arc::default)
}

impl Drop for Signals {
    fn drop(&mut self) {
        closed().store(true, Ordering::SeqCst);
        for id in self.ids.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, Ordering::SeqCst);
    execute!(stdout(), EnterAlternateScreen, cursor::Hide)
}

/// Restores the terminal if it is acquired. Errors are ignored, since the terminal may be gone.
fn leave() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
        let _ = stdout().flush();
    }
}

impl RawTerminal {
    /// Acquires the terminal of stdin and stdout.
    pub fn take() -> Result<Self, ScreenError> {
        if !stdout().is_terminal() {
            return Err(ScreenError::NoTerminal);
        }
        if std::env::var("TERM").is_ok_and(|t| t == "dumb") {
            return Err(ScreenError::Dumb);
        }
        let input =
            if stdin().is_terminal() { None } else { Some(File::open("/dev/tty").map_err(ScreenError::NoKeys)?) };
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                leave();
                before(info);
            }));
        });
        let signals = Signals::listen().map_err(ScreenError::Terminal)?;
        let taken = || {
            enter()?;
            ratatui::Terminal::new(CrosstermBackend::new(stdout()))
        };
        match taken() {
            Ok(screen) => Ok(Self { screen, input, decoder: Decoder::default(), waiting: Default::default(), signals }),
            Err(error) => {
                leave();
                Err(ScreenError::Terminal(error))
            }
        }
    }

    /// Whether the terminal is still acquired; a panic in another thread restores it.
    pub fn is_ours(&self) -> bool {
        TAKEN.load(Ordering::SeqCst)
    }

    /// Waits for a key or a signal until `deadline`.
    pub fn wait(&mut self, deadline: Instant) -> Result<Option<Input>, ScreenError> {
        loop {
            if let Some(event) = self.signal()? {
                return Ok(Some(event));
            }
            if let Some(key) = self.waiting.pop_front() {
                if key == Key::Suspend {
                    return self.suspend().map(Some);
                }
                return Ok(Some(Input::Key(key)));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let slice = if self.decoder.waits() { ESCAPE_WAIT } else { left.min(SLICE) };
            match self.read(slice)? {
                true => {}
                false if self.decoder.waits() => self.waiting.extend(self.decoder.pause()),
                false if left.is_zero() => return Ok(None),
                false => {}
            }
        }
    }

    fn signal(&mut self) -> Result<Option<Input>, ScreenError> {
        let came = |flag: &AtomicBool| flag.swap(false, Ordering::SeqCst);
        if came(&self.signals.end) {
            return Ok(Some(Input::End));
        }
        if came(&self.signals.stop) {
            return self.suspend().map(Some);
        }
        if came(&self.signals.resume) {
            // Continued after SIGSTOP, which cannot be caught: meanwhile the shell has changed the terminal's settings.
            return self.come_back().map(Some);
        }
        if came(&self.signals.resize) {
            return Ok(Some(Input::Redraw));
        }
        Ok(None)
    }

    /// Restores the terminal, stops the process as a shell expects, and acquires the terminal again when continued.
    fn suspend(&mut self) -> Result<Input, ScreenError> {
        leave();
        signal_hook::low_level::emulate_default_handler(signal::SIGTSTP).map_err(ScreenError::Terminal)?;
        self.signals.resume.store(false, Ordering::SeqCst);
        self.come_back()
    }

    fn come_back(&mut self) -> Result<Input, ScreenError> {
        // After SIGSTOP, crossterm's state still says raw mode, although the shell has disabled it. Disable and enable
        // it again.
        let _ = disable_raw_mode();
        enter().map_err(ScreenError::Terminal)?;
        self.screen.clear().map_err(ScreenError::Terminal)?;
        Ok(Input::Redraw)
    }

    fn input(&self) -> BorrowedFd<'_> {
        match &self.input {
            Some(file) => file.as_fd(),
            None => STDIN.get_or_init(stdin).as_fd(),
        }
    }

    /// Waits for bytes and decodes them into keys; returns false if none came.
    ///
    /// crossterm's reader is not used: it loops for ever once the terminal is gone, and blocks on an incomplete
    /// sequence.
    fn read(&mut self, timeout: Duration) -> Result<bool, ScreenError> {
        let mut fds = [PollFd::new(self.input(), PollFlags::POLLIN)];
        // Rounded up, so that a remainder below 1 ms does not cause a busy loop.
        let ms = u16::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
        let came = match poll(&mut fds, PollTimeout::from(ms)) {
            Ok(0) | Err(Errno::EINTR) => return Ok(false),
            Ok(_) => fds[0].revents().unwrap_or(PollFlags::empty()),
            Err(e) => return Err(ScreenError::Terminal(e.into())),
        };
        if came.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL) {
            return Err(ScreenError::Gone);
        }
        let mut bytes = [0; 256];
        match nix::unistd::read(self.input(), &mut bytes) {
            Ok(0) | Err(Errno::EIO) => Err(ScreenError::Gone),
            Ok(n) => {
                let keys = self.decoder.feed(&bytes[..n]);
                self.waiting.extend(keys);
                Ok(true)
            }
            Err(Errno::EINTR | Errno::EAGAIN) => Ok(false),
            Err(e) => Err(ScreenError::Terminal(e.into())),
        }
    }
}

static STDIN: OnceLock<io::Stdin> = OnceLock::new();

impl Drop for RawTerminal {
    fn drop(&mut self) {
        leave();
    }
}
