//! The tracepoints at which programs stand, and which of them the running kernel has: an alternative where it refuses one, a note
//! where there is none.

use libbpf_rs::btf::types::Typedef;
use libbpf_rs::btf::Btf;
use std::fmt;

/// One program.
pub struct Hook {
    /// Its name in bpf/.
    pub program: &'static str,
    /// The tracepoint.
    pub at: &'static str,
    /// The module that has it, where that need not be loaded: then nothing of its kind happens.
    pub module: Option<&'static str>,
    /// What stands in for it where the kernel refuses it.
    pub instead: Option<&'static str>,
    /// What is not recorded without it.
    pub shows: &'static str,
}

/// A program at a tracepoint of the kernel itself.
pub const fn hook(program: &'static str, at: &'static str, shows: &'static str) -> Hook {
    Hook { program, at, module: None, instead: None, shows }
}

/// A program at a tracepoint of a module.
pub const fn module_hook(program: &'static str, at: &'static str, module: &'static str, shows: &'static str) -> Hook {
    Hook { program, at, module: Some(module), instead: None, shows }
}

/// A program, and the one that stands in for it.
pub const fn or(hook: Hook, instead: &'static str) -> Hook {
    Hook { instead: Some(instead), ..hook }
}

/// Something that this kernel does not offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The tracepoint.
    pub tracepoint: &'static str,
    /// What is not recorded without it.
    pub lost: &'static str,
    /// Why: what the kernel said, or that it is not there.
    pub why: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tracepoint {}: {}; not recorded: {}", self.tracepoint, self.why, self.lost)
    }
}

/// Which programs this kernel can have.
#[derive(Clone)]
pub struct Hooks {
    table: &'static [Hook],
    /// Programs that are to be loaded.
    pub programs: Vec<&'static str>,
    /// What is not there.
    pub missing: Vec<Missing>,
    /// Programs that have a substitute, and what the kernel said of them.
    refused: Vec<(&'static str, String)>,
}

/// Whether a loaded module has this tracepoint.
fn module_has(module: &str, tracepoint: &str) -> bool {
    let found = |btf: Vec<u8>| btf.windows(tracepoint.len()).any(|w| w == tracepoint.as_bytes());
    std::fs::read(format!("/sys/kernel/btf/{module}")).is_ok_and(found)
}

/// Whether the other architecture alone has this tracepoint.
fn elsewhere(at: &str) -> bool {
    let arm = at.starts_with("ipi_");
    let x86 = ["local_timer_", "reschedule_", "call_function_", "irq_work_", "x86_", "thermal_", "nmi_"];
    if cfg!(target_arch = "x86_64") {
        arm
    } else {
        x86.iter().any(|prefix| at.starts_with(prefix))
    }
}

impl Hooks {
    /// Asks the kernel's type information.
    pub fn find(table: &'static [Hook], btf: &Btf<'_>) -> Self {
        let mut found = Self { table, programs: Vec::new(), missing: Vec::new(), refused: Vec::new() };
        for hook in table.iter().filter(|hook| !elsewhere(hook.at)) {
            // A substitute comes into play where the kernel refuses the other one.
            if table.iter().any(|h| h.instead == Some(hook.program)) {
                continue;
            }
            let name = format!("btf_trace_{}", hook.at);
            if btf.type_by_name::<Typedef<'_>>(&name).is_some() {
                found.programs.push(hook.program);
            } else if let Some(module) = hook.module {
                if module_has(module, &name) {
                    found.programs.push(hook.program);
                }
            } else {
                found.misses(hook, "this kernel does not have it".into());
            }
        }
        found
    }

    fn misses(&mut self, hook: &Hook, why: String) {
        self.missing.push(Missing { tracepoint: hook.at, lost: hook.shows, why });
    }

    /// The kernel refused this program. False if it was not to be loaded.
    pub fn without(&mut self, program: &str, why: String) -> bool {
        let Some(at) = self.programs.iter().position(|p| *p == program) else { return false };
        self.programs.remove(at);
        if let Some(hook) = self.table.iter().find(|hook| hook.program == program) {
            if let Some(instead) = hook.instead {
                self.refused.push((instead, why));
                self.programs.push(instead);
                return true;
            }
            // Of two that were refused, the newer kernel's says more.
            let first = self.refused.iter().find(|(instead, _)| *instead == program);
            let why = first.map_or(why, |(_, first)| first.clone());
            self.misses(hook, why);
        }
        true
    }

    /// Whether this program is to be loaded.
    pub fn has(&self, program: &str) -> bool {
        self.programs.contains(&program)
    }

    /// Whether anything stands at this tracepoint.
    pub fn stands_at(&self, tracepoint: &str) -> bool {
        self.table.iter().any(|hook| hook.at == tracepoint && self.has(hook.program))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_program_has_its_substitute_or_is_missing() {
        static TABLE: [Hook; 2] = [
            or(hook("switch_with_state", "sched_switch", "who ran"), "switch_without_state"),
            hook("switch_without_state", "sched_switch", "who ran"),
        ];
        let programs = vec!["switch_with_state", "nmi"];
        let mut hooks = Hooks { table: &TABLE, programs, missing: Vec::new(), refused: Vec::new() };
        assert!(hooks.without("switch_with_state", "no fourth argument".into()));
        assert!(hooks.stands_at("sched_switch") && hooks.missing.is_empty());
        assert!(hooks.without("switch_without_state", "no state".into()));
        assert!(!hooks.stands_at("sched_switch"));
        assert_eq!(hooks.missing[0].to_string(), "tracepoint sched_switch: no fourth argument; not recorded: who ran");
        assert!(!hooks.without("waking", String::new()), "it was not to be loaded");
    }
}
