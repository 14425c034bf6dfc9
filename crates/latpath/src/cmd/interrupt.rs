//! Signals that end a command early: Ctrl-C, kill, a closed terminal.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// A flag set by the first signal: the command ends with its results so far. A second signal ends the process at once.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        register_conditional_shutdown(signal, 1, Arc::clone(&stop)).context("catching signals")?;
        register(signal, Arc::clone(&stop)).context("catching signals")?;
    }
    Ok(stop)
}
