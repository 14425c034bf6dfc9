//! The tracepoints at which packets are examined, in the order of `enum tracepoint` in bpf/event.h.

/// A tracepoint that reports an skb.
pub(crate) struct Tracepoint {
    /// Its system, as in /sys/kernel/tracing/events.
    pub system: &'static str,
    pub name: &'static str,
    /// Whether the search may lose track of packets if the tracepoint is missing.
    pub needed: bool,
}

const fn at(system: &'static str, name: &'static str, needed: bool) -> Tracepoint {
    Tracepoint { system, name, needed }
}

pub(crate) const TRACEPOINTS: [Tracepoint; 17] = [
    at("net", "net_dev_queue", true),
    at("net", "net_dev_start_xmit", true),
    at("net", "net_dev_xmit", false),
    at("net", "napi_gro_frags_entry", false),
    at("net", "napi_gro_receive_entry", false),
    at("net", "netif_receive_skb_entry", false),
    at("net", "netif_receive_skb_list_entry", false),
    at("net", "netif_rx_entry", false),
    at("net", "netif_receive_skb", true),
    at("net", "netif_rx", false),
    at("qdisc", "qdisc_enqueue", false),
    at("qdisc", "qdisc_dequeue", false),
    at("openvswitch", "ovs_dp_upcall", false),
    at("openvswitch", "ovs_do_execute_action", false),
    at("skb", "skb_copy_datagram_iovec", true),
    at("skb", "consume_skb", true),
    at("skb", "kfree_skb", true),
];

/// Functions that make an skb from another; their indexes are those in bpf/path.bpf.c.
pub(crate) const MAKERS: [&str; 8] = [
    "skb_clone",
    "skb_copy",
    "skb_realloc_headroom",
    "skb_expand_head",
    "__pskb_copy_fclone",
    "skb_copy_expand",
    "skb_morph",
    "skb_zerocopy",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::constants::ALL;

    /// Compares the lists in Rust with those in C.
    #[test]
    fn the_programs_number_tracepoints_and_makers_alike() {
        let mut numbered: Vec<_> = ALL.iter().filter(|(name, _)| name.starts_with("TP_")).collect();
        numbered.sort_by_key(|(_, number)| *number);
        let names: Vec<_> = TRACEPOINTS.iter().map(|t| format!("TP_{}", t.name.to_uppercase())).collect();
        assert_eq!(numbered.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
        let programs = include_str!("../bpf/path.bpf.c");
        for (i, name) in MAKERS.iter().enumerate() {
            let macros = format!("({name}, {i})");
            let written = programs.contains(&macros) || programs.contains(&format!("{name}, struct sk_buff *to"));
            assert!(written, "{name} is number {i}");
        }
    }
}
