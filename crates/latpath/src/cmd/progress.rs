//! How far long work has come, on stderr: a line that is written over once a second where a person looks at it, a line every ten
//! seconds elsewhere.

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

    /// Says the line, where it is time to.
    pub fn show<E>(&mut self, line: impl FnOnce(Duration) -> Result<String, E>) -> Result<(), E> {
        let elapsed = self.began.elapsed();
        if self.quiet || elapsed < self.next {
            return Ok(());
        }
        self.next = elapsed + self.step();
        let line = line(elapsed)?;
        let mut stderr = std::io::stderr();
        // Where stderr is gone, progress is not shown.
        let _ =
            if self.terminal { write!(stderr, "\r\x1b[Klatpath: {line}") } else { writeln!(stderr, "latpath: {line}") };
        let _ = stderr.flush();
        Ok(())
    }

    /// How long until there is something to say: whoever has nothing else to do need not wake before.
    pub fn idle(&self) -> Duration {
        match self.quiet {
            true => Duration::from_secs(3600),
            false => self.next.saturating_sub(self.began.elapsed()),
        }
    }

    /// Leaves the line to what comes next.
    pub fn end(&self) {
        if !self.quiet && self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
