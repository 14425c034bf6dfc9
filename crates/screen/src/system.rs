//! Direct calls to libc: the local time of day, and whether a signal has a handler.

use latpath_model::Ns;
use std::time::{SystemTime, UNIX_EPOCH};

/// The local time of day `ago` nanoseconds before now: `03:12:05`; with the date if that was 20 hours ago or more.
pub fn time_of_day(ago: Ns) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(0));
    let then = now.saturating_sub(ago / 1_000_000_000);
    // SAFETY: `tm` is plain old data for which all zeroes is a valid value; localtime_r writes into it, keeps no
    // pointer, and returns null without writing if the year does not fit.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&then, &mut tm).is_null() {
            return "?".into();
        }
        tm
    };
    let time = format!("{:02}:{:02}:{:02}", tm.tm_hour, tm.tm_min, tm.tm_sec);
    if ago < 20 * 3600 * 1_000_000_000 {
        time
    } else {
        format!("{:04}-{:02}-{:02} {time}", i64::from(tm.tm_year) + 1900, tm.tm_mon + 1, tm.tm_mday)
    }
}

/// Whether this signal's disposition differs from the default.
pub fn is_handled(signal: i32) -> bool {
    // SAFETY: `sigaction` is plain old data for which all zeroes is a valid value; with a null new action the call only
    // reads the current one into it.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now) != 0 || now.sa_sigaction != libc::SIG_DFL
    }
}
