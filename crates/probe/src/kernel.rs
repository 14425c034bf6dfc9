//! What the running kernel offers, asked before anything is attached.

use libbpf_rs::btf::{types::Typedef, Btf};
use std::path::Path;

/// Why nothing can be attached at all.
#[derive(Debug, thiserror::Error)]
pub enum Unable {
    /// Not root.
    #[error("tracing needs root (or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN): run it with sudo")]
    NotRoot,
    /// No BTF.
    #[error(
        "this kernel ({0}) has no type information (/sys/kernel/btf/vmlinux): latpath needs a kernel built with \
         CONFIG_DEBUG_INFO_BTF=y, as Debian's, Ubuntu's, Red Hat's and SUSE's are"
    )]
    NoBtf(String),
    /// The type information cannot be read.
    #[error("/sys/kernel/btf/vmlinux cannot be read: {0}")]
    BadBtf(libbpf_rs::Error),
}

/// What this kernel offers.
#[derive(Clone, Debug, Default)]
pub struct Abilities {
    /// Kernel release, as `uname -r` says.
    pub release: String,
    /// Tracepoints that this kernel lacks, of those that latpath uses.
    pub missing: Vec<&'static str>,
    /// Whether `kfree_skb` gives a reason (5.17 and later).
    pub drop_reasons: bool,
}

/// Tracepoints that the programs stand at, and the points that are lost without them.
pub const TRACEPOINTS: [(&str, &str); 5] = [
    ("net_dev_start_xmit", "tx"),
    ("napi_gro_receive_entry", "nic-rx at GRO's door (the stack's is used)"),
    ("netif_receive_skb", "nic-rx at the stack's door"),
    ("skb_copy_datagram_iovec", "vm-read and app-read"),
    ("kfree_skb", "drop"),
];

/// The kernel's release.
pub fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_string()
}

/// Asks what this kernel offers.
///
/// # Errors
/// Where nothing can be traced at all.
pub fn abilities() -> Result<Abilities, Unable> {
    let release = release();
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(Unable::NoBtf(release));
    }
    // SAFETY: geteuid cannot fail and touches nothing.
    if unsafe { libc::geteuid() } != 0 && !has_capabilities() {
        return Err(Unable::NotRoot);
    }
    let btf = Btf::from_vmlinux().map_err(Unable::BadBtf)?;
    let has = |name: &str| btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}")).is_some();
    Ok(Abilities {
        release,
        missing: TRACEPOINTS.iter().map(|(name, _)| *name).filter(|name| !has(name)).collect(),
        drop_reasons: btf.type_by_name::<libbpf_rs::btf::types::Enum<'_>>("skb_drop_reason").is_some(),
    })
}

/// Whether the process has CAP_PERFMON and CAP_BPF (bits 38 and 39) without being root.
fn has_capabilities() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    bits >> 38 & 3 == 3
}

impl Abilities {
    /// What the user must know, a line each: points that this kernel cannot offer.
    pub fn notes(&self) -> Vec<String> {
        let lost = |name: &&str| TRACEPOINTS.iter().find(|(t, _)| t == name).map_or("", |(_, lost)| lost);
        let mut notes: Vec<String> = self
            .missing
            .iter()
            .map(|name| format!("kernel {} has no tracepoint {name}: not seen: {}", self.release, lost(name)))
            .collect();
        if !self.drop_reasons {
            notes.push(format!("kernel {} gives no reasons for drops (they came with 5.17)", self.release));
        }
        notes
    }
}
