//! The traceable kernel functions that take an skb.

use crate::btf::{Positions, Types};
use crate::layout::constants::{FUNCTION_BEGINS, FUNCTION_FREES, FUNCTION_LAST};
use latpath_tracefs::Tracefs;
use std::collections::HashMap;
use std::fs;

/// A function that takes an skb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its module, if any.
    pub module: Option<String>,
    /// Its address.
    pub address: u64,
    /// Which of its arguments are skbs: bit n for argument n, from 0.
    pub positions: u8,
}

impl Function {
    /// Which of its arguments are skbs, counted from 1.
    pub fn arguments(&self) -> impl Iterator<Item = u32> {
        let positions = self.positions;
        (0..5).filter(move |i| positions >> i & 1 == 1).map(|i| i + 1)
    }
}

/// The traceable functions of this kernel.
#[derive(Debug, Default)]
pub(crate) struct Traceable {
    /// Functions, in order of address.
    pub functions: Vec<Function>,
    /// Reasons why functions are missing, if any are.
    pub notes: Vec<String>,
}

/// Name prefixes of functions that belong to tracing, not to the packet's path.
const TRACERS: [&str; 7] =
    ["__traceiter_", "__probestub_", "__bpf_trace_", "trace_event_", "trace_raw_output_", "perf_trace_", "bpf_prog_"];

/// Maximum number of functions with the same name. If there are more, all are excluded, because type information does
/// not distinguish them.
const MAX_NAMESAKES: usize = 8;

/// Lists of traceable functions in tracefs. The first one, with addresses, exists since Linux 6.5.
const LISTS: [&str; 2] = ["available_filter_functions_addrs", "available_filter_functions"];

fn list() -> Option<String> {
    let tracefs = Tracefs::open().ok()?;
    LISTS.iter().find_map(|file| tracefs.read(file).ok())
}

/// The kernel's list of traceable functions.
struct Listed<'a> {
    /// Traceable addresses in functions, ascending; empty if the list contains no addresses.
    addresses: Vec<u64>,
    names: HashMap<(&'a str, &'a str), usize>,
}

/// Maximum offset of a function's traceable address: it may follow the first instruction (endbr64, bti).
const PLACE_WITHIN: u64 = 16;

impl<'a> Listed<'a> {
    fn read(text: &'a str) -> Self {
        let mut listed = Self { addresses: Vec::new(), names: HashMap::new() };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let address = words.clone().next().filter(|w| w.len() == 16).and_then(|w| u64::from_str_radix(w, 16).ok());
            if let Some(address) = address {
                words.next();
                listed.addresses.push(address);
            }
            if let Some(name) = name_and_module(words) {
                *listed.names.entry(name).or_default() += 1;
            }
        }
        listed.addresses.sort_unstable();
        listed
    }

    /// Whether the list may contain this function.
    fn may_have(&self, name: &str, module: &str, address: u64) -> bool {
        if self.addresses.is_empty() {
            return self.names.contains_key(&(name, module));
        }
        let at = self.addresses.partition_point(|a| *a < address);
        self.addresses.get(at).is_some_and(|a| a - address < PLACE_WITHIN)
    }

    /// Whether the list contains all `n` functions with this name.
    fn has_all(&self, name: &str, module: &str, n: usize) -> bool {
        !self.addresses.is_empty() || self.names.get(&(name, module)).is_some_and(|listed| n <= *listed)
    }
}

/// Functions that take an skb, in the kernel and its loaded modules, by name and module (`""` for the kernel).
fn with_skbs() -> HashMap<(String, String), Positions> {
    let mut found = HashMap::new();
    let Ok(kernel) = fs::read("/sys/kernel/btf/vmlinux") else { return found };
    let Some(kernel) = Types::read(&kernel, None) else { return found };
    let mut add = |module: &str, types: &Types<'_>| {
        found.extend(types.skb_functions().into_iter().map(|(name, at)| ((name, module.to_string()), at)));
    };
    add("", &kernel);
    for entry in fs::read_dir("/sys/kernel/btf").into_iter().flatten().flatten() {
        let module = entry.file_name().to_string_lossy().into_owned();
        let bytes = if module == "vmlinux" { continue } else { fs::read(entry.path()) };
        if let Some(types) = bytes.as_ref().ok().and_then(|b| Types::read(b, Some(&kernel))) {
            add(&module, &types);
        }
    }
    found
}

/// Parses a line of a symbol list: the name, and the module in brackets.
fn name_and_module(mut words: std::str::SplitWhitespace<'_>) -> Option<(&str, &str)> {
    let name = words.next()?;
    let module = words.next().map_or("", |m| m.trim_start_matches('[').trim_end_matches(']'));
    Some((name, module))
}

/// Reads the traceable functions from the kernel.
pub(crate) fn traceable() -> Traceable {
    let mut found = Traceable::default();
    // The kernel takes long to produce each of the two lists, so they are read in parallel.
    let list = std::thread::spawn(list);
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let with_skbs = with_skbs();
    let list = list.join().ok().flatten();
    let listed = list.as_deref().map(Listed::read);
    if listed.is_none() {
        found.notes.push("the kernel does not say which functions can be traced (available_filter_functions)".into());
    }
    let mut namesakes: HashMap<(&str, &str), Vec<Function>> = HashMap::new();
    let mut hidden = true;
    for line in symbols.lines() {
        let mut words = line.split_whitespace();
        let address = words.next().and_then(|w| u64::from_str_radix(w, 16).ok()).unwrap_or(0);
        let kind = words.next().unwrap_or("");
        let Some((name, module)) = name_and_module(words) else { continue };
        hidden &= address == 0;
        if !matches!(kind, "t" | "T" | "w" | "W") || address == 0 || TRACERS.iter().any(|t| name.starts_with(t)) {
            continue;
        }
        // BTF describes the function as in the source, not the parts that the compiler split off from it.
        let Some(positions) = with_skbs.get(&(name.to_string(), module.to_string())) else { continue };
        if listed.as_ref().is_some_and(|l| !l.may_have(name, module, address)) {
            continue;
        }
        let function = Function {
            name: name.into(),
            module: (!module.is_empty()).then(|| module.to_string()),
            address,
            positions: *positions,
        };
        namesakes.entry((name, module)).or_default().push(function);
    }
    // If several functions have the same name, all of them must be traceable: a list without addresses does not
    // distinguish them.
    let fit = |(name, module): (&str, &str), n: usize| listed.as_ref().is_none_or(|l| l.has_all(name, module, n));
    for (key, functions) in namesakes {
        if functions.len() <= MAX_NAMESAKES && fit(key, functions.len()) {
            found.functions.extend(functions);
        }
    }
    if hidden {
        found.notes.push("the kernel hides where its functions are (sysctl kernel.kptr_restrict)".into());
    }
    found.functions.sort_by_key(|f| f.address);
    found.functions.dedup_by_key(|f| f.address);
    found
}

/// Functions on the paths of time-critical streams, in order of importance, for kernels on which only some can be
/// traced. A trailing `*` matches any suffix.
const FIRST: [&str; 75] = [
    "skb_release_head_state",
    "kfree_skbmem",
    "napi_gro_receive",
    "netif_receive_skb",
    "netif_receive_skb_internal",
    "netif_rx_internal",
    "enqueue_to_backlog",
    "__netif_receive_skb",
    "__netif_receive_skb_one_core",
    "br_handle_frame",
    "br_handle_frame_finish",
    "br_flood",
    "br_forward",
    "__br_forward",
    "br_forward_finish",
    "br_dev_queue_push_xmit",
    "br_pass_frame_up",
    "br_multicast_flood",
    "br_dev_xmit",
    "br_allowed_ingress",
    "netdev_frame_hook",
    "ovs_vport_receive",
    "ovs_dp_process_packet",
    "ovs_flow_key_extract",
    "ovs_flow_stats_update",
    "ovs_execute_actions",
    "do_execute_actions",
    "do_output",
    "ovs_vport_send",
    "output_userspace",
    "ovs_dp_upcall",
    "queue_userspace_packet",
    "ovs_packet_cmd_execute",
    "internal_dev_recv",
    "internal_dev_xmit",
    "netlink_unicast",
    "netlink_attachskb",
    "netlink_sendskb",
    "__netlink_sendskb",
    "dev_queue_xmit",
    "__dev_queue_xmit",
    "dev_queue_xmit_nit",
    "netdev_core_pick_tx",
    "validate_xmit_skb",
    "dev_hard_start_xmit",
    "sch_direct_xmit",
    "tun_net_xmit",
    "tap_handle_frame",
    "tun_put_user",
    "veth_xmit",
    "__dev_forward_skb",
    "__dev_forward_skb2",
    "dev_loopback_xmit",
    "macvlan_handle_frame",
    "macvlan_start_xmit",
    "macvlan_queue_xmit",
    "vlan_do_receive",
    "vlan_dev_hard_start_xmit",
    "packet_rcv",
    "tpacket_rcv",
    "packet_parse_headers",
    "eth_type_trans",
    "ip_rcv",
    "ip_rcv_finish",
    "ip_local_deliver",
    "ip_forward",
    "ip_output",
    "ip_finish_output2",
    "udp_rcv",
    "udp_queue_rcv_skb",
    "__udp_enqueue_schedule_skb",
    "skb_clone",
    "skb_copy_datagram_iter",
    "consume_skb",
    "start_xmit",
];

/// Modules on the paths of packets; their functions come after those in [`FIRST`].
const THEN: [&str; 14] = [
    "openvswitch",
    "bridge",
    "tun",
    "tap",
    "macvtap",
    "veth",
    "macvlan",
    "8021q",
    "vhost_net",
    "virtio_net",
    "br_netfilter",
    "vxlan",
    "ip_vs",
    "af_packet",
];

/// Sorts functions by importance, for kernels on which only some can be traced.
pub(crate) fn by_weight(functions: &[Function]) -> Vec<&Function> {
    let weight = |f: &Function| {
        let named = FIRST.iter().position(|name| *name == f.name);
        let module = || {
            let at = f.module.as_ref().and_then(|m| THEN.iter().position(|t| t == m));
            at.map_or(FIRST.len() + THEN.len(), |at| FIRST.len() + at)
        };
        named.unwrap_or_else(module)
    };
    let mut sorted: Vec<_> = functions.iter().collect();
    sorted.sort_by_key(|f| weight(f));
    sorted
}

/// Properties of a function from which the programs detect that an skb's address has been reused: whether it runs while
/// an skb is being freed (net/core/skbuff.c), which includes the skb's destructors.
pub(crate) fn role(name: &str) -> u32 {
    let role = match name {
        "kfree_skbmem" => FUNCTION_FREES | FUNCTION_LAST,
        "skb_release_head_state" => FUNCTION_FREES | FUNCTION_BEGINS,
        "skb_release_all"
        | "skb_release_data"
        | "skb_free_head"
        | "__kfree_skb"
        | "kfree_skb_reason"
        | "kfree_skb"
        | "kfree_skb_list_reason"
        | "consume_skb"
        | "__consume_stateless_skb"
        | "napi_consume_skb"
        | "__napi_kfree_skb"
        | "__kfree_skb_defer"
        | "napi_skb_cache_put"
        | "napi_skb_free_stolen_head"
        | "sk_skb_reason_drop"
        | "__sk_skb_reason_drop"
        | "__dev_kfree_skb_any"
        | "dev_kfree_skb_any_reason"
        | "skb_zcopy_clear"
        | "skb_clear_tstamp"
        | "sock_wfree"
        | "__sock_wfree"
        | "sock_rfree"
        | "sock_efree"
        | "sock_pfree"
        | "sock_edemux"
        | "tcp_wfree"
        | "sctp_wfree"
        | "tpacket_destruct_skb"
        | "netlink_skb_destructor"
        | "unix_destruct_scm"
        | "skb_queue_purge_reason"
        | "kfree_skb_partial"
        | "skb_pp_recycle"
        | "skb_pp_cow_data"
        | "skb_dst_drop"
        | "skb_ext_reset"
        | "nf_reset_ct"
        | "skb_kfree_head"
        | "napi_pp_put_page" => FUNCTION_FREES,
        _ => 0,
    };
    role as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, module: Option<&str>) -> Function {
        Function { name: name.into(), module: module.map(Into::into), address: 1, positions: 1 }
    }

    #[test]
    fn the_argument_with_the_packet_comes_first() {
        let all = [function("zzz", None), function("odd", Some("bridge")), function("br_handle_frame", Some("bridge"))];
        let names: Vec<_> = by_weight(&all).iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["br_handle_frame", "odd", "zzz"]);
    }

    #[test]
    fn traceable_functions_of_one_name_are_distinguished() {
        let by_name = Listed::read("f\nf\ng [m]\n");
        assert!(by_name.may_have("f", "", 1) && by_name.has_all("f", "", 2) && !by_name.has_all("f", "", 3));
        assert!(by_name.may_have("g", "m", 1) && !by_name.may_have("g", "", 1));
        let by_address = Listed::read("ffffffff81000004 f\nffffffff81000100 f\n");
        assert!(by_address.may_have("f", "", 0xffff_ffff_8100_0000));
        assert!(!by_address.may_have("f", "", 0xffff_ffff_8100_0010));
        assert!(!by_address.may_have("f", "", 0xffff_ffff_8100_0200));
        assert!(by_address.has_all("f", "", 1));
    }

    #[test]
    fn a_symbols_module_is_in_brackets() {
        assert_eq!(name_and_module("br_flood [bridge]".split_whitespace()), Some(("br_flood", "bridge")));
        assert_eq!(name_and_module("ip_rcv".split_whitespace()), Some(("ip_rcv", "")));
        assert_eq!(name_and_module("".split_whitespace()), None);
    }
}
