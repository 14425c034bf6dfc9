//! The tests, a file each. A new one is a file and its name in the list.

use crate::Test;

mod boots;
mod counters;
mod linux_bridge;
mod ovs_fast_path;
mod vms;

/// In the order in which they run.
pub const ALL: &[Test] = &[boots::TEST, counters::TEST, linux_bridge::TEST, ovs_fast_path::TEST, vms::TEST];
