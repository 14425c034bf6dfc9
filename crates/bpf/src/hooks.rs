//! The tracepoints and functions that programs attach to. Determines which of them the running kernel has, substitutes
//! programs for those that it rejects, and notes missing attach points.

use crate::fentry::attach_at;
use crate::{able, accused, attach_program, fentry_works, last_words, measure, program_info, Unable};
use libbpf_rs::btf::types::{Func, Typedef};
use libbpf_rs::btf::Btf;
use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A program and its attach point.
#[derive(Clone, Copy)]
pub struct Hook {
    /// The program's name in bpf/.
    pub program: &'static str,
    /// The tracepoint, or the function.
    pub at: &'static str,
    /// Whether the attach point is a function's entry (needs trampolines in the kernel); otherwise it is a tracepoint.
    pub is_function: bool,
    /// Module that has the attach point. It need not be loaded; without it there are no events of this kind.
    pub module: Option<&'static str>,
    /// Whether the kernel may lack the attach point because it then has no events of this kind.
    pub is_optional: bool,
    /// Name of the substitute program, used if the kernel rejects this one.
    pub instead: Option<&'static str>,
    /// What is not recorded without the program.
    pub shows: &'static str,
}

impl Hook {
    /// Name of the attach point in the kernel's BTF.
    fn in_types(&self) -> String {
        match self.is_function {
            true => self.at.to_owned(),
            false => format!("btf_trace_{}", self.at),
        }
    }
}

/// Describes a program at a tracepoint of the kernel itself.
pub const fn hook(program: &'static str, at: &'static str, shows: &'static str) -> Hook {
    Hook { program, at, is_function: false, module: None, is_optional: false, instead: None, shows }
}

/// Describes a program at a module's tracepoint.
pub const fn module_hook(program: &'static str, at: &'static str, module: &'static str, shows: &'static str) -> Hook {
    Hook { module: Some(module), ..hook(program, at, shows) }
}

/// Describes a program at the entry of a function, in a module or the kernel itself.
pub const fn function_hook(
    program: &'static str,
    at: &'static str,
    module: Option<&'static str>,
    shows: &'static str,
) -> Hook {
    Hook { is_function: true, module, ..hook(program, at, shows) }
}

/// Adds a substitute to a program.
pub const fn or(hook: Hook, instead: &'static str) -> Hook {
    Hook { instead: Some(instead), ..hook }
}

/// Marks a program's attach point as one that the kernel may lack.
pub const fn optional(hook: Hook) -> Hook {
    Hook { is_optional: true, ..hook }
}

/// Programs at the entry and exit of each interrupt vector (x86) and IPI (ARM), named after their tracepoints. They
/// record the timer interrupt, interrupts from other CPUs, and the thermal interrupt.
pub const fn irq_vectors(tick: &'static str, ipi: &'static str, thermal: &'static str) -> [Hook; 16] {
    const fn at(tracepoint: &'static str, shows: &'static str) -> Hook {
        hook(tracepoint, tracepoint, shows)
    }
    [
        at("local_timer_entry", tick),
        at("local_timer_exit", tick),
        at("reschedule_entry", ipi),
        at("reschedule_exit", ipi),
        at("call_function_entry", ipi),
        at("call_function_exit", ipi),
        at("call_function_single_entry", ipi),
        at("call_function_single_exit", ipi),
        at("irq_work_entry", ipi),
        at("irq_work_exit", ipi),
        at("x86_platform_ipi_entry", ipi),
        at("x86_platform_ipi_exit", ipi),
        at("thermal_apic_entry", thermal),
        at("thermal_apic_exit", thermal),
        at("ipi_entry", ipi),
        at("ipi_exit", ipi),
    ]
}

/// Concatenates two tables of hooks; `N` must be `A + B`.
pub const fn joined<const A: usize, const B: usize, const N: usize>(a: [Hook; A], b: [Hook; B]) -> [Hook; N] {
    assert!(N == A + B);
    let mut all = [a[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < A { a[at] } else { b[at - A] };
        at += 1;
    }
    all
}

/// An attach point that this kernel does not offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Name of the tracepoint or function.
    pub tracepoint: &'static str,
    /// Whether the attach point is a function, not a tracepoint.
    pub is_function: bool,
    /// What is not recorded.
    pub lost: &'static str,
    /// The reason: the kernel's error, or a statement that the attach point does not exist.
    pub why: String,
}

impl Missing {
    fn of(hook: &Hook, why: String) -> Self {
        Self { tracepoint: hook.at, is_function: hook.is_function, lost: hook.shows, why }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_function { "function" } else { "tracepoint" };
        write!(f, "{place} {}: {}; not recorded: {}", self.tracepoint, self.why, self.lost)
    }
}

/// The programs that this kernel can load.
#[derive(Clone)]
pub struct Hooks {
    table: &'static [Hook],
    /// Names of the programs to load.
    pub programs: Vec<&'static str>,
    /// Missing attach points.
    pub missing: Vec<Missing>,
    /// Names of substitutes in use, each with the kernel's error for the program that it replaces.
    refused: Vec<(&'static str, String)>,
}

/// Whether a loaded module's BTF contains this name.
fn module_has(module: &str, name: &str) -> bool {
    let found = |btf: Vec<u8>| btf.windows(name.len()).any(|w| w == name.as_bytes());
    std::fs::read(format!("/sys/kernel/btf/{module}")).is_ok_and(found)
}

/// Whether this tracepoint or function exists only on another architecture.
fn elsewhere(at: &str) -> bool {
    let arm = at.starts_with("ipi_");
    let x86 = ["__apic_", "local_timer_", "reschedule_", "call_function_", "irq_work_", "x86_", "thermal_", "nmi_"];
    if cfg!(target_arch = "x86_64") {
        arm
    } else {
        x86.iter().any(|prefix| at.starts_with(prefix))
    }
}

/// A loaded program. It stays attached until this value is dropped or the process ends, even by kill -9.
pub struct AttachedProgram {
    /// The program's name in bpf/.
    pub name: &'static str,
    program: OwnedFd,
    /// Its tracepoint, unless the program's BTF type determines it.
    tracepoint: Option<CString>,
    /// Its link, while it is attached.
    link: Option<OwnedFd>,
}

impl AttachedProgram {
    /// Attaches a raw tracepoint program to the tracepoint with this name.
    ///
    /// # Errors
    /// If the kernel lacks the tracepoint, or refuses to attach the program.
    pub fn at_tracepoint(name: &'static str, program: BorrowedFd<'_>, tracepoint: CString) -> std::io::Result<Self> {
        let program = program.try_clone_to_owned()?;
        let mut attached = Self { name, program, tracepoint: Some(tracepoint), link: None };
        attached.attach()?;
        Ok(attached)
    }

    /// Whether the program is attached.
    pub fn is_attached(&self) -> bool {
        self.link.is_some()
    }

    /// Detaches the program but keeps its counts.
    pub fn detach(&mut self) {
        self.link = None;
    }

    /// Attaches the program again.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attach(&mut self) -> std::io::Result<()> {
        self.link = Some(attach_at(self.program.as_fd(), self.tracepoint.as_deref())?);
        Ok(())
    }

    /// The kernel's information on the program.
    pub fn info(&self) -> Option<libbpf_sys::bpf_prog_info> {
        program_info(self.program.as_fd())
    }
}

/// Attached programs, and the attach points that this kernel lacks.
pub struct Programs {
    /// The loaded programs.
    pub attached: Vec<AttachedProgram>,
    /// Missing attach points.
    pub missing: Vec<Missing>,
    /// Number of permanently missing attach points, which come first in `missing`. Programs of later entries may still
    /// be attached again.
    missing_for_good: usize,
    table: &'static [Hook],
    /// Descriptor that keeps the kernel's program statistics enabled.
    measuring: Option<OwnedFd>,
    /// Number of missed runs to add to those that the kernel counts; for tests, because the kernel rarely misses runs.
    #[doc(hidden)]
    pub more_missed: u64,
}

impl Programs {
    /// Keeps programs that were attached for `hooks`. With `measures`, the kernel also measures their cost, which adds
    /// two clock readings to each run.
    ///
    /// # Errors
    /// If the kernel cannot measure the cost.
    pub fn new(attached: Vec<AttachedProgram>, hooks: Hooks, measures: bool) -> std::io::Result<Self> {
        let measuring = measures.then(measure).transpose()?;
        let Hooks { table, missing, .. } = hooks;
        Ok(Self { attached, missing_for_good: missing.len(), missing, table, measuring, more_missed: 0 })
    }

    /// Attaches the needed programs that are detached, and detaches all others. A program that the kernel refuses to
    /// attach counts as missing until a later call attaches it.
    pub fn attach_only(&mut self, is_needed: impl Fn(&str) -> bool) {
        self.missing.truncate(self.missing_for_good);
        for program in &mut self.attached {
            if !is_needed(program.name) {
                program.detach();
            } else if let Err(error) = if program.is_attached() { Ok(()) } else { program.attach() } {
                let why = format!("the kernel refused to attach its program again: {error}");
                let hook = self.table.iter().find(|hook| hook.program == program.name);
                self.missing.extend(hook.map(|hook| Missing::of(hook, why)));
            }
        }
    }

    /// Whether the last [`Self::attach_only`] failed to re-attach some programs.
    pub fn lacks_some_for_now(&self) -> bool {
        self.missing.len() > self.missing_for_good
    }

    /// Whether a program is currently attached at this tracepoint.
    pub fn stands_at(&self, tracepoint: &str) -> bool {
        let is_there =
            |hook: &Hook| self.attached.iter().any(|there| there.name == hook.program && there.is_attached());
        self.table.iter().any(|hook| hook.at == tracepoint && is_there(hook))
    }

    /// Whether a program with this name was attached at the start.
    pub fn has(&self, name: &str) -> bool {
        self.attached.iter().any(|there| there.name == name)
    }

    /// Number of runs that the kernel skipped because the same program was already running.
    pub fn missed(&self) -> u64 {
        let missed = |info: libbpf_sys::bpf_prog_info| info.recursion_misses;
        self.attached.iter().filter_map(AttachedProgram::info).map(missed).sum::<u64>() + self.more_missed
    }

    /// Number of runs, and their total time, ns; `None` unless the kernel measures them.
    pub fn cost(&self) -> Option<(u64, u64)> {
        let add = |(runs, ns), info: libbpf_sys::bpf_prog_info| (runs + info.run_cnt, ns + info.run_time_ns);
        self.measuring.as_ref().map(|_| self.attached.iter().filter_map(AttachedProgram::info).fold((0, 0), add))
    }
}

impl Hooks {
    /// Keeps only the needed programs; the others do not count as missing.
    pub fn retain(&mut self, is_needed: impl Fn(&Hook) -> bool) {
        let table = self.table;
        let needed = |program: &str| table.iter().any(|hook| hook.program == program && is_needed(hook));
        self.programs.retain(|program| needed(program));
        let needed = |at: &str| table.iter().any(|hook| hook.at == at && is_needed(hook));
        self.missing.retain(|missing| needed(missing.tracepoint));
    }

    /// Determines the programs of the table that this kernel can load.
    ///
    /// # Errors
    /// If this kernel does not support tracing, or this user may not trace.
    pub fn of_kernel(table: &'static [Hook]) -> Result<Self, Unable> {
        able()?;
        Ok(Self::find(table, &Btf::from_vmlinux().map_err(Unable::BadBtf)?))
    }

    /// Looks for the attach points in the kernel's BTF.
    fn find(table: &'static [Hook], btf: &Btf<'_>) -> Self {
        let mut found = Self { table, programs: Vec::new(), missing: Vec::new(), refused: Vec::new() };
        let function = |name: &str| btf.type_by_name::<Func<'_>>(name).map(|function| function.type_id().into());
        let fentry = table.iter().any(|hook| hook.is_function).then(|| fentry_works(&function));
        let is_built_in = |hook: &Hook| match hook.is_function {
            true => function(hook.at).is_some(),
            false => btf.type_by_name::<Typedef<'_>>(&hook.in_types()).is_some(),
        };
        for hook in table.iter().filter(|hook| !elsewhere(hook.at)) {
            // Substitutes are skipped here: they are used only if their program cannot be.
            if table.iter().any(|h| h.instead == Some(hook.program)) {
                continue;
            }
            let cannot = |hook: &Hook| match &fentry {
                Some(Err(why)) if hook.is_function => Some(why),
                _ => None,
            };
            let has = |hook: &Hook| {
                is_built_in(hook) || hook.module.is_some_and(|module| module_has(module, &hook.in_types()))
            };
            let substitute = table.iter().find(|h| hook.instead == Some(h.program));
            let first = [Some(hook), substitute].into_iter().flatten().find(|h| cannot(h).is_none() && has(h));
            found.programs.extend(first.map(|first| first.program));
            if let Some(why) = cannot(hook) {
                found.misses(hook, why.clone());
            } else if first.is_none() && hook.module.is_none() && !hook.is_optional {
                found.misses(hook, "this kernel does not have it".into());
            }
        }
        found
    }

    fn misses(&mut self, hook: &Hook, why: String) {
        self.missing.push(Missing::of(hook, why));
    }

    /// Handles the kernel's rejection of a program; returns false if the program was not to be loaded.
    pub fn without(&mut self, program: &str, why: String) -> bool {
        let Some(at) = self.programs.iter().position(|p| *p == program) else { return false };
        self.programs.remove(at);
        if let Some(hook) = self.table.iter().find(|hook| hook.program == program) {
            if let Some(instead) = hook.instead {
                self.refused.push((instead, why));
                self.programs.push(instead);
                return true;
            }
            // If the kernel rejects both a program and its substitute, the program's error is reported: the substitute
            // is only the fallback for older kernels.
            let first = self.refused.iter().find(|(instead, _)| *instead == program);
            let why = first.map_or(why, |(_, first)| first.clone());
            self.misses(hook, why);
        }
        true
    }

    /// Calls `load` repeatedly, each time without the program that the kernel has just rejected, until it accepts the
    /// rest. If the kernel does not name the program, all programs at functions are omitted, because kernels differ
    /// more in their functions than in their tracepoints. A `load` that fails must leave no program attached.
    ///
    /// # Errors
    /// If the kernel rejects something else, or the remaining programs do not suffice; with the kernel's messages.
    pub fn load<T, E>(
        &mut self,
        suffices: impl Fn(&Self) -> bool,
        mut load: impl FnMut(&mut Self) -> Result<T, E>,
    ) -> Result<T, (E, String)> {
        loop {
            let error = match load(self) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => error,
            };
            let said = last_words();
            if !self.without_refused(&said) || !suffices(self) {
                return Err((error, said));
            }
        }
    }

    /// Omits the programs that the kernel has rejected with this message; returns false if none can be omitted.
    fn without_refused(&mut self, said: &str) -> bool {
        if let Some(program) = accused(said) {
            return self.without(program, said.into());
        }
        let is_function = |hook: &&Hook| hook.is_function && self.has(hook.program);
        let functions: Vec<&str> = self.table.iter().filter(is_function).map(|hook| hook.program).collect();
        for program in &functions {
            self.without(program, said.into());
        }
        !functions.is_empty()
    }

    /// Enables loading of those of an object's programs that are in this list, and disables the others.
    pub fn choose(&self, object: &mut libbpf_rs::OpenObject) {
        for mut program in object.progs_mut() {
            program.set_autoload(program.name().to_str().is_some_and(|name| self.has(name)));
        }
    }

    /// Attaches the loaded programs; those that the kernel refuses to attach become missing.
    ///
    /// # Errors
    /// If the process has no free file descriptors.
    pub fn attach(&mut self, object: &libbpf_rs::Object) -> std::io::Result<Vec<AttachedProgram>> {
        let mut attached = Vec::new();
        for program in object.progs_mut() {
            let Some(name) = self.programs.iter().copied().find(|p| program.name().to_str() == Some(p)) else {
                continue;
            };
            match attach_program(program.as_fd()) {
                Ok(link) => {
                    let program = program.as_fd().try_clone_to_owned()?;
                    attached.push(AttachedProgram { name, program, tracepoint: None, link: Some(link) })
                }
                Err(e) => _ = self.without(name, e.to_string()),
            }
        }
        Ok(attached)
    }

    /// Whether to load this program.
    pub fn has(&self, program: &str) -> bool {
        self.programs.contains(&program)
    }

    /// Whether a program for this tracepoint is to be loaded.
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

    #[test]
    fn a_program_that_is_refused_when_it_is_attached_again_is_missing_until_it_is_attached() {
        static TABLE: [Hook; 2] = [hook("switch", "sched_switch", "who ran"), hook("nmi", "nmi_handler", "NMIs")];
        let descriptor = || OwnedFd::from(std::fs::File::open("/dev/null").expect("a file"));
        // Stand-in descriptors: no kernel attaches a descriptor that is not a program.
        let program =
            |name| AttachedProgram { name, program: descriptor(), tracepoint: None, link: Some(descriptor()) };
        let hooks = Hooks { table: &TABLE, programs: Vec::new(), missing: Vec::new(), refused: Vec::new() };
        let mut programs = Programs::new(vec![program("switch"), program("nmi")], hooks, false).expect("programs");
        programs.attach_only(|name| name == "nmi");
        assert!(!programs.stands_at("sched_switch") && programs.stands_at("nmi_handler"));
        assert!(programs.missing.is_empty(), "nobody needs it now: {:?}", programs.missing);
        programs.attach_only(|_| true);
        assert!(!programs.stands_at("sched_switch") && programs.stands_at("nmi_handler"));
        assert!(programs.lacks_some_for_now());
        assert_eq!(programs.missing[0].lost, "who ran");
        assert!(programs.missing[0].why.starts_with("the kernel refused to attach its program again: "));
        programs.attached[0].link = Some(descriptor());
        programs.attach_only(|_| true);
        assert!(programs.stands_at("sched_switch") && !programs.lacks_some_for_now() && programs.missing.is_empty());
    }

    #[test]
    fn a_program_at_a_function_that_is_refused_costs_no_other() {
        static TABLE: [Hook; 3] = [
            hook("tx", "net_dev_start_xmit", "tx"),
            function_hook("udp_read", "skb_consume_udp", None, "readers of UDP"),
            function_hook("tap_xdp", "tun_xdp_xmit", Some("tun"), "frames that XDP takes"),
        ];
        let programs = vec!["tx", "udp_read", "tap_xdp"];
        let all = || Hooks { table: &TABLE, programs: programs.clone(), missing: Vec::new(), refused: Vec::new() };
        let mut old = all();
        assert!(old.without_refused("program tap_xdp: 5: (85) call bpf_get_func_arg#183 | unknown func"));
        assert_eq!(old.programs, ["tx", "udp_read"]);
        assert_eq!(old.missing[0].lost, "frames that XDP takes");
        let mut strange = all();
        assert!(strange.without_refused("failed to find kernel BTF"));
        assert_eq!((strange.programs.as_slice(), strange.missing.len()), (["tx"].as_slice(), 2), "nobody says which");
        assert!(!strange.without_refused("failed to find kernel BTF"));
    }
}
