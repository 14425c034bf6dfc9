//! Progress on stderr: on a terminal, a line that is overwritten once a second; otherwise a new line every ten seconds.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

pub struct Progress {
    quiet: bool,
    terminal: bool,
    began: Instant,
    next: Duration,
}

impl Progress {
    pub fn begin(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let mut progress = Self { quiet, terminal, began: Instant::now(), next: Duration::ZERO };
        progress.next = progress.step();
        progress
    }

    fn step(&self) -> Duration {
        Duration::from_secs(if self.terminal { 1 } else { 10 })
    }

    /// Prints the line if it is due.
    pub fn show<E>(&mut self, line: impl FnOnce(Duration) -> Result<String, E>) -> Result<(), E> {
        let elapsed = self.began.elapsed();
        if self.quiet || elapsed < self.next {
            return Ok(());
        }
        self.next = elapsed + self.step();
        let line = line(elapsed)?;
        let mut stderr = std::io::stderr();
        // A closed stderr is no error.
        let _ =
            if self.terminal { write!(stderr, "\r\x1b[Klatpath: {line}") } else { writeln!(stderr, "latpath: {line}") };
        let _ = stderr.flush();
        Ok(())
    }

    /// Time until the next line is due: a caller without other work can sleep until then.
    pub fn idle(&self) -> Duration {
        match self.quiet {
            true => Duration::from_secs(3600),
            false => self.next.saturating_sub(self.began.elapsed()),
        }
    }

    /// Clears the line for other output.
    pub fn end(&self) {
        if !self.quiet && self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
