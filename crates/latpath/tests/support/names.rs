//! Names that nobody else on this machine uses at the same time.

use std::sync::OnceLock;

/// An svID of this test program alone: probes see all namespaces, also those of containers that number their processes alike.
pub fn own(name: &str) -> String {
    static SINCE: OnceLock<i64> = OnceLock::new();
    let since = SINCE.get_or_init(latpath_linux::monotonic);
    format!("{name}.{}-{:06x}", std::process::id(), (since / 1000) & 0xff_ffff)
}
