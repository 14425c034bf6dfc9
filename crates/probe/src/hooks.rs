//! The places in the kernel at which the programs stand, and which of them this kernel has.

use latpath_bpf::{able, accused, release, Unable};
use libbpf_rs::btf::types::{Enum, Func, Typedef};
use libbpf_rs::btf::Btf;

/// One program.
struct Hook {
    /// Its name in bpf/.
    program: &'static str,
    /// It stands at a function's entry, where the kernel has trampolines; otherwise at a tracepoint.
    is_function: bool,
    /// The module that it is in, which may be built in, or not loaded.
    module: Option<&'static str>,
    /// The tracepoint or function.
    at: &'static str,
    /// What nobody sees without it.
    shows: &'static str,
    /// It asks for an argument by its number: `bpf_get_func_arg`, Linux 5.17 and later.
    takes_arguments: bool,
}

const fn tracepoint(program: &'static str, at: &'static str, shows: &'static str) -> Hook {
    Hook { program, is_function: false, module: None, at, shows, takes_arguments: false }
}

const fn function(program: &'static str, at: &'static str, shows: &'static str) -> Hook {
    Hook { is_function: true, ..tracepoint(program, at, shows) }
}

const fn of_module(module: &'static str, hook: Hook) -> Hook {
    Hook { module: Some(module), ..hook }
}

const fn taking_arguments(hook: Hook) -> Hook {
    Hook { takes_arguments: true, ..hook }
}

const XDP: &str = "frames that XDP takes";

const HOOKS: &[Hook] = &[
    tracepoint("tx", "net_dev_start_xmit", "tx"),
    tracepoint("gro", "napi_gro_receive_entry", "nic-rx before GRO (seen in the stack instead)"),
    tracepoint("stack_rx", "netif_receive_skb", "nic-rx and vm-write in the stack"),
    tracepoint("copy_out", "skb_copy_datagram_iovec", "vm-read and app-read"),
    tracepoint("drop", "kfree_skb", "drop"),
    tracepoint("drop_no_reason", "kfree_skb", "drop"),
    tracepoint("tx_done", "consume_skb", "tx-done"),
    of_module("openvswitch", tracepoint("ovs_exec", "ovs_do_execute_action", "ovs-exec and ovs-return")),
    of_module("openvswitch", tracepoint("ovs_upcall", "ovs_dp_upcall", "ovs-upcall and ovs-slow")),
    function("udp_read", "skb_consume_udp", "app-read of most UDP"),
    function("xdp_redirect", "xdp_do_redirect", XDP),
    function("xdp_generic", "xdp_do_generic_redirect", XDP),
    function("xsk_rx", "__xsk_map_redirect", XDP),
    function("xsk_generic", "xsk_generic_rcv", XDP),
    function("xdp_tx", "generic_xdp_tx", XDP),
    taking_arguments(of_module("tun", function("tap_xdp", "tun_xdp_xmit", XDP))),
    taking_arguments(of_module("tun", function("tap_xdp_read", "tun_do_read", XDP))),
];

/// What the running kernel offers of them, asked before anything is attached.
#[derive(Clone, Debug, Default)]
pub struct Abilities {
    /// Kernel release, as `uname -r` says.
    pub release: String,
    /// Programs that can be loaded.
    programs: Vec<&'static str>,
    /// Tracepoints that the kernel lacks, with what is lost.
    missing: Vec<(&'static str, &'static str)>,
    /// Why no program can stand at a function, with what is lost.
    no_fentry: Option<(String, Vec<&'static str>)>,
    /// Whether `kfree_skb` gives a reason (5.17 and later).
    drop_reasons: bool,
}

/// Whether a loaded module has this tracepoint, or this function with a trampoline's place.
fn module_has(module: &str, name: &str) -> bool {
    let found = |btf: Vec<u8>| btf.windows(name.len()).any(|w| w == name.as_bytes());
    std::fs::read(format!("/sys/kernel/btf/{module}")).is_ok_and(found)
}

impl Abilities {
    /// Asks the kernel. `udp`: whether any stream is UDP, without which its readers are nobody's business. An error where nothing can
    /// be traced at all.
    pub fn find(udp: bool) -> Result<Self, Unable> {
        able()?;
        let btf = Btf::from_vmlinux().map_err(Unable::BadBtf)?;
        let drop_reasons = btf.type_by_name::<Enum<'_>>("skb_drop_reason").is_some();
        let mut found = Self { release: release(), drop_reasons, ..Self::default() };
        let function = |name: &str| btf.type_by_name::<Func<'_>>(name).map(|f| f.type_id().into());
        let fentry = latpath_bpf::fentry_works(&function);
        let helpers = btf.type_by_name::<Enum<'_>>("bpf_func_id");
        let has_arguments = helpers.is_some_and(|helpers| {
            helpers.iter().any(|helper| helper.name.is_some_and(|name| name == "BPF_FUNC_get_func_arg"))
        });
        for hook in HOOKS {
            let is_needed = match hook.program {
                "drop" => found.drop_reasons,
                "drop_no_reason" => !found.drop_reasons,
                "udp_read" => udp,
                _ => true,
            };
            if !is_needed {
                continue;
            }
            let tracepoint = format!("btf_trace_{}", hook.at);
            let name = if hook.is_function { hook.at } else { &tracepoint };
            let in_module = hook.module.is_some_and(|module| module_has(module, name));
            let is_there = match (hook.is_function, &fentry) {
                (false, _) => in_module || btf.type_by_name::<Typedef<'_>>(name).is_some(),
                (true, Ok(())) => in_module || function(name).is_some(),
                (true, Err(why)) => {
                    let (_, lost) = found.no_fentry.get_or_insert_with(|| (why.clone(), Vec::new()));
                    if !lost.contains(&hook.shows) {
                        lost.push(hook.shows);
                    }
                    continue;
                }
            };
            if is_there && hook.takes_arguments && !has_arguments {
                found.give_up(hook, "the helper bpf_get_func_arg came with 5.17");
            } else if is_there {
                found.programs.push(hook.program);
            } else if !hook.is_function && hook.module.is_none() {
                // A module that is not loaded carries no packet, and kernels differ in what they have of functions.
                found.missing.push((hook.at, hook.shows));
            }
        }
        Ok(found)
    }

    /// What the user must know, a line each: points that this kernel cannot offer.
    pub fn notes(&self) -> Vec<String> {
        let release = &self.release;
        let lacks =
            |(name, lost): &(&str, &str)| format!("kernel {release} has no tracepoint {name}: not seen: {lost}");
        let mut notes: Vec<String> = self.missing.iter().map(lacks).collect();
        if !self.drop_reasons {
            notes.push(format!("kernel {release} gives no reasons for drops (they came with 5.17)"));
        }
        if let Some((why, lost)) = &self.no_fentry {
            notes.push(format!(
                "kernel {release} does not let every program stand at a function ({why}): not seen: {}",
                lost.join(", ")
            ));
        }
        notes
    }

    fn give_up(&mut self, hook: &Hook, why: &str) {
        self.programs.retain(|program| *program != hook.program);
        let (_, lost) = self.no_fentry.get_or_insert_with(|| (why.into(), Vec::new()));
        if !lost.contains(&hook.shows) {
            lost.push(hook.shows);
        }
    }

    /// Gives up the program that the kernel has refused, as its words say, if it stands at a function; where they name none, all that
    /// do. False if there is nothing to give up.
    pub(crate) fn without_refused(&mut self, said: &str) -> bool {
        let program = accused(said);
        let given_up: Vec<&Hook> = HOOKS
            .iter()
            .filter(|h| h.is_function && self.has(h.program) && program.is_none_or(|refused| refused == h.program))
            .collect();
        given_up.iter().for_each(|hook| self.give_up(hook, said));
        !given_up.is_empty()
    }

    /// Whether this program can be loaded.
    pub(crate) fn has(&self, program: &str) -> bool {
        self.programs.contains(&program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_at_a_function_that_is_refused_costs_no_other() {
        let all = || Abilities { programs: vec!["tx", "udp_read", "tap_xdp"], ..Abilities::default() };
        let mut old = all();
        assert!(old.without_refused("program tap_xdp: 5: (85) call bpf_get_func_arg#183 | unknown func"));
        assert_eq!(old.programs, ["tx", "udp_read"]);
        let notes = old.notes().join("\n");
        assert!(notes.contains("not seen: frames that XDP takes") && !notes.contains("UDP"), "{notes}");
        assert!(!old.without_refused("program tx: invalid access"), "without it nothing is followed");
        let mut strange = all();
        assert!(strange.without_refused("failed to find kernel BTF"));
        assert_eq!(strange.programs, ["tx"], "nobody says which");
        assert!(!strange.without_refused("failed to find kernel BTF"));
    }
}
