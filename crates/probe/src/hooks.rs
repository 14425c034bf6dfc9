//! The places in the kernel at which the programs stand, and which of them this kernel has.

use libbpf_rs::btf::types::{Enum, Func, Typedef};
use libbpf_rs::btf::Btf;

/// What kind of place a program stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A tracepoint of the kernel itself.
    Tracepoint,
    /// A tracepoint of this module, which may not be loaded.
    Module(&'static str),
    /// A function's entry, where the kernel has trampolines.
    Function,
    /// The same in a module, which may be built in, or not loaded.
    ModuleFunction(&'static str),
}

impl Place {
    /// The module that it is in.
    fn module(self) -> Option<&'static str> {
        match self {
            Self::Module(module) | Self::ModuleFunction(module) => Some(module),
            Self::Tracepoint | Self::Function => None,
        }
    }
}

/// One program.
struct Hook {
    /// Its name in bpf/.
    program: &'static str,
    place: Place,
    /// The tracepoint or function.
    at: &'static str,
    /// What nobody sees without it.
    shows: &'static str,
}

const fn hook(program: &'static str, place: Place, at: &'static str, shows: &'static str) -> Hook {
    Hook { program, place, at, shows }
}

const HOOKS: &[Hook] = &[
    hook("tx", Place::Tracepoint, "net_dev_start_xmit", "tx"),
    hook("gro", Place::Tracepoint, "napi_gro_receive_entry", "nic-rx before GRO (seen in the stack instead)"),
    hook("stack_rx", Place::Tracepoint, "netif_receive_skb", "nic-rx and vm-write in the stack"),
    hook("copy_out", Place::Tracepoint, "skb_copy_datagram_iovec", "vm-read and app-read"),
    hook("drop", Place::Tracepoint, "kfree_skb", "drop"),
    hook("drop_no_reason", Place::Tracepoint, "kfree_skb", "drop"),
    hook("tx_done", Place::Tracepoint, "consume_skb", "tx-done"),
    hook("ovs_exec", Place::Module("openvswitch"), "ovs_do_execute_action", "ovs-exec and ovs-return"),
    hook("ovs_upcall", Place::Module("openvswitch"), "ovs_dp_upcall", "ovs-upcall and ovs-slow"),
    hook("udp_read", Place::Function, "skb_consume_udp", "app-read of most UDP"),
    hook("xdp_redirect", Place::Function, "xdp_do_redirect", "frames that XDP takes"),
    hook("xdp_generic", Place::Function, "xdp_do_generic_redirect", "frames that XDP takes"),
    hook("xsk_rx", Place::Function, "__xsk_map_redirect", "frames that XDP takes"),
    hook("xsk_generic", Place::Function, "xsk_generic_rcv", "frames that XDP takes"),
    hook("xdp_tx", Place::Function, "generic_xdp_tx", "frames that XDP takes"),
    hook("tap_xdp", Place::ModuleFunction("tun"), "tun_xdp_xmit", "frames that XDP takes"),
    hook("tap_xdp_read", Place::ModuleFunction("tun"), "tun_do_read", "frames that XDP takes"),
];

/// What this kernel offers of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hooks {
    /// Programs that can be loaded.
    pub programs: Vec<&'static str>,
    /// Tracepoints that the kernel lacks, with what is lost.
    pub missing: Vec<(&'static str, &'static str)>,
    /// Why no program can stand at a function, with what is lost.
    pub no_fentry: Option<(String, Vec<&'static str>)>,
    /// Whether `kfree_skb` gives a reason (5.17 and later).
    pub drop_reasons: bool,
}

/// Whether a loaded module has this tracepoint, or this function with a trampoline's place.
fn module_has(module: &str, name: &str) -> bool {
    let found = |btf: Vec<u8>| btf.windows(name.len()).any(|w| w == name.as_bytes());
    std::fs::read(format!("/sys/kernel/btf/{module}")).is_ok_and(found)
}

impl Hooks {
    /// Asks the kernel. `udp`: whether any stream is UDP, without which its readers are nobody's business.
    pub fn find(btf: &Btf<'_>, udp: bool) -> Self {
        let mut found =
            Self { drop_reasons: btf.type_by_name::<Enum<'_>>("skb_drop_reason").is_some(), ..Self::default() };
        let function = |name: &str| btf.type_by_name::<Func<'_>>(name).map(|f| f.type_id().into());
        let fentry = latpath_bpf::fentry_works(&function);
        for hook in HOOKS {
            let wanted = match hook.program {
                "drop" => found.drop_reasons,
                "drop_no_reason" => !found.drop_reasons,
                "udp_read" => udp,
                _ => true,
            };
            if !wanted {
                continue;
            }
            let tracepoint = format!("btf_trace_{}", hook.at);
            match (hook.place, &fentry) {
                (Place::Tracepoint, _) if btf.type_by_name::<Typedef<'_>>(&tracepoint).is_some() => {
                    found.programs.push(hook.program);
                }
                (Place::Tracepoint, _) => found.missing.push((hook.at, hook.shows)),
                // A module that is not loaded carries no packet.
                (Place::Module(module), _) => {
                    if module_has(module, &tracepoint) {
                        found.programs.push(hook.program);
                    }
                }
                (place, Ok(())) => {
                    let in_module = |module| module_has(module, hook.at);
                    // Kernels differ in what they have of these.
                    if function(hook.at).is_some() || place.module().is_some_and(in_module) {
                        found.programs.push(hook.program);
                    }
                }
                (_, Err(why)) => {
                    let (_, lost) = found.no_fentry.get_or_insert_with(|| (why.clone(), Vec::new()));
                    if !lost.contains(&hook.shows) {
                        lost.push(hook.shows);
                    }
                }
            }
        }
        found
    }

    /// Gives up the programs that stand at functions, which this kernel has refused. False if there was none.
    pub fn without_functions(&mut self, why: String) -> bool {
        let at_function = |h: &&Hook| matches!(h.place, Place::Function | Place::ModuleFunction(_));
        let given_up: Vec<&Hook> = HOOKS.iter().filter(at_function).filter(|h| self.has(h.program)).collect();
        let mut lost: Vec<_> = given_up.iter().map(|h| h.shows).collect();
        lost.dedup();
        self.programs.retain(|p| !given_up.iter().any(|h| h.program == *p));
        let some = !lost.is_empty();
        if some {
            self.no_fentry = Some((why, lost));
        }
        some
    }

    /// Whether this program can be loaded.
    pub fn has(&self, program: &str) -> bool {
        self.programs.contains(&program)
    }
}
