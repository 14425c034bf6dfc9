//! Types shared by user space and the programs, generated from the programs' BTF (bpf/vcpu_time.h, bpf/shared.h).

pub(crate) use crate::skel::types::{interrupts as RawInterrupts, row as RawRow, shared as Shared, vcpu as RawVcpu};

mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}
pub(crate) use constants::{MARKS, NO_ROW, REASONS, TILES};

latpath_bpf::plain!(RawVcpu, RawRow, RawInterrupts, Shared);

/// Marks an unknown vCPU ID.
pub(crate) const NO_ID: u32 = constants::NO_ID as u32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VcpuState;

    #[test]
    fn tiles_are_numbered_as_the_programs_number_them() {
        assert_eq!(VcpuState::ALL.len(), TILES);
        let numbers = ["NOT_KNOWN", "GUEST", "KERNEL", "USER", "POLLING", "ASLEEP", "READY", "INTERRUPTED"];
        for (number, name) in numbers.into_iter().enumerate() {
            assert!(constants::ALL.contains(&(name, number)), "{name}");
        }
    }
}
