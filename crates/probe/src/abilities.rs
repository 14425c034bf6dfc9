//! What the running kernel offers, asked before anything is attached.

use crate::hooks::Hooks;
use latpath_bpf::{able, release, Unable};
use libbpf_rs::btf::Btf;

/// What this kernel offers.
#[derive(Clone, Debug, Default)]
pub struct Abilities {
    /// Kernel release, as `uname -r` says.
    pub release: String,
    pub(crate) hooks: Hooks,
}

/// Asks what this kernel offers. `udp`: whether any stream is UDP.
///
/// # Errors
/// Where nothing can be traced at all.
pub fn abilities(udp: bool) -> Result<Abilities, Unable> {
    able()?;
    let release = release();
    let btf = Btf::from_vmlinux().map_err(Unable::BadBtf)?;
    Ok(Abilities { release, hooks: Hooks::find(&btf, udp) })
}

impl Abilities {
    /// What the user must know, a line each: points that this kernel cannot offer.
    pub fn notes(&self) -> Vec<String> {
        let Self { release, hooks } = self;
        let lacks =
            |(name, lost): &(&str, &str)| format!("kernel {release} has no tracepoint {name}: not seen: {lost}");
        let mut notes: Vec<String> = hooks.missing.iter().map(lacks).collect();
        if !hooks.drop_reasons {
            notes.push(format!("kernel {release} gives no reasons for drops (they came with 5.17)"));
        }
        if let Some((why, lost)) = &hooks.no_fentry {
            notes.push(format!(
                "kernel {release} lets no program stand at a function ({why}): not seen: {}",
                lost.join(", ")
            ));
        }
        notes
    }
}
