//! The kernel's reason for refusing a program. libbpf forwards the verifier's log line by line; its last lines contain
//! the reason.

use libbpf_rs::PrintLevel;
use std::sync::Mutex;

/// Log of the current load. libbpf has one print callback per process.
static LOG: Mutex<String> = Mutex::new(String::new());
/// Maximum size of the kept log, bytes. The verifier's log can be megabytes long; only its end contains the reason.
const MAX: usize = 64 << 10;
/// Number of lines of the verifier's log in an error.
const LINES: usize = 3;

fn print(level: PrintLevel, text: String) {
    tracing::debug!(target: "latpath_bpf::libbpf", "{}", text.trim_end());
    if level == PrintLevel::Warn {
        let mut log = LOG.lock().unwrap_or_else(|e| e.into_inner());
        log.push_str(&text);
        let cut = log.len().saturating_sub(MAX);
        let cut = (cut..=log.len()).find(|i| log.is_char_boundary(*i)).unwrap_or(0);
        log.drain(..cut);
    }
}

/// Starts collecting libbpf's log.
pub fn listen() {
    LOG.lock().unwrap_or_else(|e| e.into_inner()).clear();
    libbpf_rs::set_print(Some((PrintLevel::Debug, print)));
}

/// The kernel's most recent reason, on one line; empty if there is none.
pub fn last_words() -> String {
    reason(&LOG.lock().unwrap_or_else(|e| e.into_inner()))
}

/// An error, followed by the kernel's most recent reason if there is one.
pub fn with_last_words(error: impl std::fmt::Display) -> String {
    match last_words() {
        said if said.is_empty() => error.to_string(),
        said => format!("{error}: {said}"),
    }
}

/// The program that the kernel's reason names.
pub fn accused(said: &str) -> Option<&str> {
    said.split("program ").nth(1)?.split(':').next()
}

/// The program and the last meaningful lines of the verifier's log; if there is no such log, libbpf's last line.
fn reason(log: &str) -> String {
    let Some(end) = log.find("-- END PROG LOAD LOG --") else {
        return log.lines().last().map(|l| l.trim_start_matches("libbpf: ").trim().to_string()).unwrap_or_default();
    };
    let (said, then) = log.split_at(end);
    let program = then.split("prog '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap_or("?");
    // The start is missing if the log was longer than the limit.
    let said = said.rsplit_once("-- BEGIN PROG LOAD LOG --").map_or(said, |(_, said)| said);
    // The log ends with statistics, which are not part of the reason.
    let counts = ["processed ", "verification time ", "stack depth ", "insns_processed "];
    let said = said.lines().map(str::trim);
    let said: Vec<_> = said.filter(|l| !l.is_empty() && !counts.iter().any(|c| l.starts_with(c))).collect();
    format!("program {program}: {}", said[said.len().saturating_sub(LINES)..].join(" | "))
}

#[cfg(test)]
mod tests {
    use super::{accused, reason};

    #[test]
    fn the_program_that_was_refused_is_known_by_the_kernels_words() {
        assert_eq!(accused("program kvm_exit: 0: R1=ctx() | invalid access"), Some("kvm_exit"));
        assert_eq!(accused("map 'ring': failed to create"), None);
    }

    #[test]
    fn the_end_of_the_verifiers_log_is_the_reason() {
        let log = "libbpf: prog 'tx': BPF program load failed: -EACCES\nlibbpf: prog 'tx': -- BEGIN PROG LOAD LOG --\n\
                   0: R1=ctx()\n5: (85) call pc+3\ncombined stack size of 3 calls is 544. Too large\n\
                   verification time 60 usec\nstack depth 400+32\nprocessed 22 insns (limit 1000000)\n\
                   -- END PROG LOAD LOG --\nlibbpf: prog 'tx': failed to load: -EACCES\n\
                   libbpf: failed to load object 'probe_bpf'\n";
        assert_eq!(
            reason(log),
            "program tx: 0: R1=ctx() | 5: (85) call pc+3 | combined stack size of 3 calls is 544. Too large"
        );
    }

    #[test]
    fn without_a_verifiers_log_libbpfs_last_line_is_the_reason() {
        assert_eq!(
            reason("libbpf: one\nlibbpf: map 'ring': failed to create: -EPERM\n"),
            "map 'ring': failed to create: -EPERM"
        );
        assert_eq!(reason(""), "");
    }
}
