//! The hooks of the programs, and their availability in this kernel.

use latpath_bpf::{
    function_hook as function, hook, module_hook as module, optional, or, release, Hook, Hooks, Missing, Unable,
};
use latpath_model::{SourceNote, SourceNoteKind};

const XDP: &str = "frames that XDP takes";
const DROP: &str = "drop";
const DROP_REASONS: &str = "drop_no_reason";
const UDP_READ: &str = "udp_read";
const NIC_SENT: &str = "nic_sent";

static HOOKS: [Hook; 18] = [
    hook("tx", "net_dev_start_xmit", "tx"),
    hook("gro", "napi_gro_receive_entry", "nic-rx before GRO (seen in the stack instead)"),
    hook("stack_rx", "netif_receive_skb", "nic-rx and vm-write in the stack"),
    hook("copy_out", "skb_copy_datagram_iovec", "vm-read and app-read"),
    or(hook("drop", "kfree_skb", DROP), DROP_REASONS),
    hook(DROP_REASONS, "kfree_skb", DROP),
    hook("tx_done", "consume_skb", "tx-done"),
    module("ovs_exec", "ovs_do_execute_action", "openvswitch", "ovs-exec and ovs-return"),
    module("ovs_upcall", "ovs_dp_upcall", "openvswitch", "ovs-upcall and ovs-slow"),
    // Not every kernel has this function.
    optional(function(UDP_READ, "skb_consume_udp", None, "app-read of most UDP")),
    function(NIC_SENT, "skb_tstamp_tx", None, "nic-hw-tx"),
    optional(function("xdp_redirect", "xdp_do_redirect", None, XDP)),
    optional(function("xdp_generic", "xdp_do_generic_redirect", None, XDP)),
    optional(function("xsk_rx", "__xsk_map_redirect", None, XDP)),
    optional(function("xsk_generic", "xsk_generic_rcv", None, XDP)),
    optional(function("xdp_tx", "generic_xdp_tx", None, XDP)),
    // Access to an argument by number requires Linux 5.17.
    function("tap_xdp", "tun_xdp_xmit", Some("tun"), XDP),
    function("tap_xdp_read", "tun_do_read", Some("tun"), XDP),
];

/// Returns the hooks that this kernel supports. `udp`: whether any stream is UDP; otherwise the hook for UDP readers is
/// left out. `nic_times`: whether NIC timestamps are used.
pub(crate) fn find(udp: bool, nic_times: bool) -> Result<Hooks, Unable> {
    let mut hooks = Hooks::of_kernel(&HOOKS)?;
    hooks.retain(|hook| (udp || hook.program != UDP_READ) && (nic_times || hook.program != NIC_SENT));
    Ok(hooks)
}

/// Whether the hooks suffice: the only one required is that of `tx`.
pub(crate) fn suffice(hooks: &Hooks) -> bool {
    HOOKS.iter().filter(|hook| hook.at == "net_dev_start_xmit").all(|hook| hooks.stands_at(hook.at))
}

/// Returns one line for the user per feature that this kernel does not support.
///
/// # Errors
/// If this user or kernel cannot trace.
pub fn lacks() -> Result<Vec<String>, Unable> {
    Ok(lines(&missing_of(&find(false, true)?)))
}

/// One line per point or feature that the missing hooks make unavailable.
pub(crate) fn lines(missing: &[Missing]) -> Vec<String> {
    notes(missing, true).into_iter().map(|note| note.text).collect()
}

/// Returns the hooks that this kernel lacks, and drop reasons if the kernel does not report them.
pub(crate) fn missing_of(hooks: &Hooks) -> Vec<Missing> {
    let no_reasons = hooks.has(DROP_REASONS).then(|| Missing {
        tracepoint: "kfree_skb",
        is_function: false,
        lost: "reasons for drops",
        why: "it has none (new in 5.17)".into(),
    });
    hooks.missing.iter().cloned().chain(no_reasons).collect()
}

/// Whether a missing hook hides packets handled by XDP.
pub(crate) fn hides_xdp(missing: &[Missing]) -> bool {
    missing.iter().any(|one| one.lost == XDP)
}

/// Returns notes for the user on missing hooks. If no XDP program is loaded, the note on a missing hook for XDP is only
/// a footnote.
pub(crate) fn notes(missing: &[Missing], is_xdp_loaded: bool) -> Vec<SourceNote> {
    let release = release();
    let note = |one: &Missing| match one.lost == XDP && !is_xdp_loaded {
        true => {
            SourceNote::new(SourceNoteKind::Footnote, format!("kernel {release}: {one} (no XDP program is loaded)"))
        }
        false => SourceNote::new(SourceNoteKind::Note, format!("kernel {release}: {one}")),
    };
    // Several hooks may belong to one point, which gets one note.
    let is_first = |(at, one): &(usize, &Missing)| missing[..*at].iter().all(|before| before.lost != one.lost);
    missing.iter().enumerate().filter(is_first).map(|(_, one)| note(one)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_xdp_hook_is_a_footnote_unless_an_xdp_program_is_loaded() {
        let missing = |lost, at| Missing { tracepoint: at, is_function: true, lost, why: "it is not there".into() };
        let missing =
            [missing(XDP, "xdp_do_redirect"), missing(XDP, "tun_xdp_xmit"), missing("app-read of most UDP", "x")];
        let kinds = |is_loaded| notes(&missing, is_loaded).iter().map(|note| note.kind).collect::<Vec<_>>();
        assert_eq!(
            kinds(false),
            [SourceNoteKind::Footnote, SourceNoteKind::Note],
            "several places of one point are one"
        );
        assert_eq!(kinds(true), [SourceNoteKind::Note, SourceNoteKind::Note]);
    }
}
