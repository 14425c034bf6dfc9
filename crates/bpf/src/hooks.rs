//! The tracepoints and functions at which programs stand, and which of them the running kernel has: an alternative where it refuses one, a note
//! where there is none.

use crate::{accused, attach_program, fentry_works, last_words, program_info};
use libbpf_rs::btf::types::{Func, Typedef};
use libbpf_rs::btf::Btf;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

/// One program.
pub struct Hook {
    /// Its name in bpf/.
    pub program: &'static str,
    /// The tracepoint, or the function.
    pub at: &'static str,
    /// It stands at a function's entry, where the kernel has trampolines; otherwise at a tracepoint.
    pub is_function: bool,
    /// The module that has it, where that need not be loaded: then nothing of its kind happens.
    pub module: Option<&'static str>,
    /// What stands in for it where the kernel refuses it.
    pub instead: Option<&'static str>,
    /// What is not recorded without it.
    pub shows: &'static str,
}

impl Hook {
    /// Its place's name in the kernel's type information.
    fn in_types(&self) -> String {
        match self.is_function {
            true => self.at.to_owned(),
            false => format!("btf_trace_{}", self.at),
        }
    }
}

/// A program at a tracepoint of the kernel itself.
pub const fn hook(program: &'static str, at: &'static str, shows: &'static str) -> Hook {
    Hook { program, at, is_function: false, module: None, instead: None, shows }
}

/// A program at a tracepoint of a module.
pub const fn module_hook(program: &'static str, at: &'static str, module: &'static str, shows: &'static str) -> Hook {
    Hook { module: Some(module), ..hook(program, at, shows) }
}

/// A program at the entry of a function, of a module or of the kernel itself.
pub const fn function_hook(
    program: &'static str,
    at: &'static str,
    module: Option<&'static str>,
    shows: &'static str,
) -> Hook {
    Hook { is_function: true, module, ..hook(program, at, shows) }
}

/// A program, and the one that stands in for it.
pub const fn or(hook: Hook, instead: &'static str) -> Hook {
    Hook { instead: Some(instead), ..hook }
}

/// Something that this kernel does not offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The tracepoint, or the function.
    pub tracepoint: &'static str,
    /// It is a function.
    pub is_function: bool,
    /// What is not recorded without it.
    pub lost: &'static str,
    /// Why: what the kernel said, or that it is not there.
    pub why: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_function { "function" } else { "tracepoint" };
        write!(f, "{place} {}: {}; not recorded: {}", self.tracepoint, self.why, self.lost)
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

/// Whether a loaded module's type information has this name.
fn module_has(module: &str, name: &str) -> bool {
    let found = |btf: Vec<u8>| btf.windows(name.len()).any(|w| w == name.as_bytes());
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

/// A program that stands, until this is dropped, also by kill -9.
pub struct Standing {
    /// Its name in bpf/.
    pub name: &'static str,
    /// The program itself.
    pub program: OwnedFd,
    _link: OwnedFd,
}

/// What programs have done, as the kernel counted it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    /// Runs, and their time in ns: both only while the kernel measures.
    pub cost: (u64, u64),
    /// Runs that the kernel left out because the same program was running already.
    pub missed: u64,
}

impl Ran {
    /// Of all these programs together.
    pub fn of(programs: &[Standing]) -> Self {
        let infos = programs.iter().filter_map(|standing| program_info(standing.program.as_fd()));
        infos.fold(Self::default(), |Self { cost: (runs, ns), missed }, info| Self {
            cost: (runs + info.run_cnt, ns + info.run_time_ns),
            missed: missed + info.recursion_misses,
        })
    }
}

impl Hooks {
    /// Asks the kernel's type information.
    pub fn find(table: &'static [Hook], btf: &Btf<'_>) -> Self {
        let mut found = Self { table, programs: Vec::new(), missing: Vec::new(), refused: Vec::new() };
        let function = |name: &str| btf.type_by_name::<Func<'_>>(name).map(|function| function.type_id().into());
        let fentry = table.iter().any(|hook| hook.is_function).then(|| fentry_works(&function));
        let is_built_in = |hook: &Hook| match hook.is_function {
            true => function(hook.at).is_some(),
            false => btf.type_by_name::<Typedef<'_>>(&hook.in_types()).is_some(),
        };
        for hook in table.iter().filter(|hook| !elsewhere(hook.at)) {
            // A substitute comes into play where the kernel refuses the other one.
            if table.iter().any(|h| h.instead == Some(hook.program)) {
                continue;
            }
            if let (true, Some(Err(why))) = (hook.is_function, &fentry) {
                found.misses(hook, format!("no program can stand at a function ({why})"));
                continue;
            }
            let substitute = table.iter().find(|h| hook.instead == Some(h.program)).filter(|h| is_built_in(h));
            if is_built_in(hook) {
                found.programs.push(hook.program);
            } else if let Some(module) = hook.module {
                if module_has(module, &hook.in_types()) {
                    found.programs.push(hook.program);
                }
            } else if let Some(substitute) = substitute {
                found.programs.push(substitute.program);
            } else {
                found.misses(hook, "this kernel does not have it".into());
            }
        }
        found
    }

    fn misses(&mut self, hook: &Hook, why: String) {
        self.missing.push(Missing { tracepoint: hook.at, is_function: hook.is_function, lost: hook.shows, why });
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

    /// Calls `load`, again with one program less for each that the kernel refuses, until it takes the rest. What `load` makes must not stand
    /// when it fails.
    ///
    /// # Errors
    /// With what the kernel said, where it refused something else, or nothing stands at `needed` any more.
    pub fn load<T, E>(
        &mut self,
        needed: &str,
        mut load: impl FnMut(&mut Self) -> Result<T, E>,
    ) -> Result<T, (E, String)> {
        loop {
            let error = match load(self) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => error,
            };
            let said = last_words();
            let refused = accused(&said).is_some_and(|program| self.without(program, said.clone()));
            if !refused || !self.stands_at(needed) {
                return Err((error, said));
            }
        }
    }

    /// Switches on those of an object's programs that are to be loaded, and no others.
    pub fn choose(&self, object: &mut libbpf_rs::OpenObject) {
        for mut program in object.progs_mut() {
            program.set_autoload(program.name().to_str().is_some_and(|name| self.has(name)));
        }
    }

    /// Attaches what was loaded; what the kernel does not let stand is missing.
    ///
    /// # Errors
    /// Where there is no descriptor left.
    pub fn attach(&mut self, object: &libbpf_rs::Object) -> std::io::Result<Vec<Standing>> {
        let mut standing = Vec::new();
        for program in object.progs_mut() {
            let Some(name) = self.programs.iter().copied().find(|p| program.name().to_str() == Some(p)) else {
                continue;
            };
            match attach_program(program.as_fd()) {
                Ok(link) => {
                    standing.push(Standing { name, program: program.as_fd().try_clone_to_owned()?, _link: link })
                }
                Err(e) => drop(self.without(name, e.to_string())),
            }
        }
        Ok(standing)
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
