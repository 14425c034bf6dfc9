//! A guest's TSC from KVM's files on this host: `tsc-offset` and `tsc-scaling-ratio` of the VM's first vCPU, in
//! debugfs.
//!
//! ```text
//! guest's TSC = (host's TSC × ratio >> fraction bits) + offset
//! ```
//!
//! The guest reads its TSC together with its clock. The host converts that TSC to its own, and then, by interpolating
//! between two of its own readings, to its clock. It need not know which VM is the guest: it takes the VM whose offset
//! agrees with the timed exchanges.

use crate::kernel;
use latpath_linux::monotonic;
use latpath_linux::proc::Root;
use latpath_model::Ns;

const KVM: &str = "sys/kernel/debug/kvm";
/// Maximum number of VMs that are examined.
const MAX_VMS: usize = 4096;
/// Number of readings; the tightest is kept.
const READINGS: usize = 4;
/// Time for which the list of VMs is valid, ns.
const REFRESH_INTERVAL: Ns = 1_000_000_000;
/// Maximum deviation of a clock's rate from its average between two readings, ppm: the limit of NTP's steering.
const STEERED_PPM: Ns = 500;
/// Maximum time between two readings for interpolation, ns.
const MAX_GAP: Ns = 10_000_000_000;

/// A simultaneous reading of a machine's TSC and its `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TscTie {
    /// The TSC.
    pub tsc: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: Ns,
    /// Maximum error of `monotonic_ns`, ns.
    pub uncertainty_ns: Ns,
}

impl TscTie {
    /// Reads the TSC and `CLOCK_MONOTONIC`; `None` if the CPU has no TSC.
    pub fn read() -> Option<Self> {
        Self::read_beside(&monotonic)
    }

    /// Reads the TSC together with another clock; `None` if the CPU has no TSC.
    pub fn read_beside(clock: &dyn Fn() -> Ns) -> Option<Self> {
        let one = || {
            let before = clock();
            let tsc = kernel::tsc()?;
            let width = clock().saturating_sub(before).max(0);
            Some(Self { tsc, monotonic_ns: before.saturating_add(width / 2), uncertainty_ns: (width + 1) / 2 })
        };
        (0..READINGS).map_while(|_| one()).min_by_key(|tie| tie.uncertainty_ns)
    }
}

/// Conversion of the host's TSC to a vCPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scaling {
    offset: u64,
    ratio: u64,
    fraction_bits: u32,
}

impl Scaling {
    fn read(root: &Root, vm: &str) -> Option<Self> {
        let text = |file: &str| root.text(&format!("{KVM}/{vm}/vcpu0/{file}"));
        let number = |file| text(file)?.trim().parse::<u64>().ok();
        let offset = text("tsc-offset")?.trim().parse::<i64>().ok()? as u64;
        // On CPUs without TSC scaling these files do not exist, and both TSCs have the same rate.
        let scale = number("tsc-scaling-ratio").zip(number("tsc-scaling-ratio-frac-bits"));
        let (ratio, bits) = scale.filter(|(ratio, bits)| *ratio > 0 && (1..64).contains(bits)).unwrap_or((1, 0));
        Some(Self { offset, ratio, fraction_bits: bits as u32 })
    }

    fn to_host(self, guest: u64) -> u64 {
        let scaled = u128::from(guest.wrapping_sub(self.offset)) << self.fraction_bits;
        (scaled / u128::from(self.ratio)) as u64
    }
}

/// Converts a guest's TSC to the host's time.
#[derive(Debug)]
pub struct HostTsc {
    root: Root,
    vms: Vec<String>,
    read_at: Option<Ns>,
    /// The VM whose offset agreed last.
    chosen: Option<String>,
    before: Option<TscTie>,
}

impl HostTsc {
    /// Creates a converter that looks for VMs in the file system at `root`.
    pub fn new(root: Root) -> Self {
        Self { root, vms: Vec::new(), read_at: None, chosen: None, before: None }
    }

    /// Converts a guest's reading to the host's time. `here` is the host's own reading, taken afterwards; `agrees`
    /// tests whether a host time with this maximum error is possible. Returns the time and its maximum error; `None` if
    /// no VM yields a possible time, or several yield different ones.
    pub fn host_time(&mut self, guest: &TscTie, here: TscTie, agrees: impl Fn(Ns, Ns) -> bool) -> Option<(Ns, Ns)> {
        let before = self.before.replace(here)?;
        let time_of = |vm: &str| {
            let scaling = Scaling::read(&self.root, vm)?;
            let (time, bound) = between(&before, &here, scaling.to_host(guest.tsc))?;
            let bound = bound.saturating_add(guest.uncertainty_ns.max(0));
            agrees(time, bound).then_some((time, bound))
        };
        if let Some(known) = self.chosen.as_deref().and_then(time_of) {
            return Some(known);
        }
        if self.read_at.is_none_or(|at| here.monotonic_ns - at >= REFRESH_INTERVAL) {
            self.read_at = Some(here.monotonic_ns);
            self.vms = self.root.names(KVM, MAX_VMS).into_iter().filter(|name| name.contains('-')).collect();
        }
        let mut agreeing = self.vms.iter().filter_map(|vm| Some((vm, time_of(vm)?)));
        let (vm, (time, bound)) = agreeing.next()?;
        if agreeing.any(|(_, (other, _))| (other - time).abs() > bound) {
            return None;
        }
        self.chosen = Some(vm.clone());
        Some((time, bound))
    }
}

/// The host's time at which its TSC was `tsc`, interpolated between two readings, and its maximum error.
fn between(a: &TscTie, b: &TscTie, tsc: u64) -> Option<(Ns, Ns)> {
    let all = i128::from(b.tsc.checked_sub(a.tsc).filter(|ticks| *ticks > 0)?);
    let part = i128::from(tsc as i64) - i128::from(a.tsc as i64);
    let span = b.monotonic_ns - a.monotonic_ns;
    if !(0..=all).contains(&part) || !(1..MAX_GAP).contains(&span) {
        return None;
    }
    let since = (part * i128::from(span) / all) as Ns;
    let to_nearer = since.min(span - since);
    let bound = a.uncertainty_ns.max(b.uncertainty_ns) + to_nearer * STEERED_PPM / 1_000_000 + 2;
    Some((a.monotonic_ns + since, bound))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn tie(tsc: u64, monotonic_ns: Ns) -> TscTie {
        TscTie { tsc, monotonic_ns, uncertainty_ns: 20 }
    }

    /// A host with these VMs: name, offset, ratio and bits.
    fn host(vms: &[(&str, i64, Option<(u64, u32)>)]) -> (tempfile::TempDir, HostTsc) {
        let dir = tempfile::tempdir().unwrap();
        for (vm, offset, scale) in vms {
            let vcpu = dir.path().join(KVM).join(vm).join("vcpu0");
            fs::create_dir_all(&vcpu).unwrap();
            fs::write(vcpu.join("tsc-offset"), format!("{offset}\n")).unwrap();
            if let Some((ratio, bits)) = scale {
                fs::write(vcpu.join("tsc-scaling-ratio"), format!("{ratio}\n")).unwrap();
                fs::write(vcpu.join("tsc-scaling-ratio-frac-bits"), format!("{bits}\n")).unwrap();
            }
        }
        let known = HostTsc::new(Root::of(dir.path()));
        (dir, known)
    }

    /// The host's TSC runs at 2 GHz and started together with its clock.
    fn host_tie(ns: Ns) -> TscTie {
        tie(ns as u64 * 2, ns)
    }

    #[test]
    fn the_vm_whose_offset_agrees_is_the_guest() {
        let (_dir, mut known) = host(&[("7-5", -1_000_000, None), ("8-5", -4_000_000, None)]);
        let guest = tie(3_000_000 - 1_000_000, 42);
        let near = |true_ns: Ns| move |t: Ns, _: Ns| (t - true_ns).abs() < 100_000;
        assert_eq!(known.host_time(&guest, host_tie(1_000_000), near(1_500_000)), None, "there is one reading only");
        let (at, bound) = known.host_time(&guest, host_tie(1_600_000), near(1_500_000)).unwrap();
        assert!((at - 1_500_000).abs() <= 1 && (40..200).contains(&bound), "{at} {bound}");
        assert_eq!(known.host_time(&guest, host_tie(1_700_000), near(9_000_000)), None, "of which neither is");
    }

    #[test]
    fn two_matching_vms_identify_no_guest() {
        let (_dir, mut known) = host(&[("7-5", -1_000_000, None), ("8-5", -1_001_000, None)]);
        let guest = tie(2_000_000, 42);
        known.host_time(&guest, host_tie(1_000_000), |_, _| true);
        assert_eq!(known.host_time(&guest, host_tie(1_600_000), |_, _| true), None);
        let (_dir, mut known) = host(&[("7-5", -1_000_000, None), ("8-5", -1_000_000, None), ("x", 0, None)]);
        known.host_time(&guest, host_tie(1_000_000), |_, _| true);
        assert!(
            known.host_time(&guest, host_tie(1_600_000), |_, _| true).is_some(),
            "the same offset is the same time"
        );
    }

    #[test]
    fn a_counter_outside_of_the_hosts_readings_has_no_time() {
        let (_dir, mut known) = host(&[("7-5", 0, None)]);
        for tsc in [0, 1, 4_000_000, u64::MAX, 1 << 63] {
            known.before = Some(host_tie(1_000_000));
            assert_eq!(known.host_time(&tie(tsc, 1), host_tie(1_600_000), |_, _| true), None, "{tsc}");
        }
        known.before = Some(host_tie(1_000_000));
        assert_eq!(known.host_time(&tie(2_000_001, 1), tie(1, 1_600_000), |_, _| true), None, "it went back");
    }

    proptest! {
        #[test]
        fn a_scaled_counter_is_turned_back(host in 0u64..1 << 55, offset in any::<i64>(), ratio in (1u64 << 30)..(1 << 34)) {
            let scaling = Scaling { offset: offset as u64, ratio, fraction_bits: 32 };
            let guest = ((u128::from(host) * u128::from(ratio)) >> 32) as u64;
            let back = scaling.to_host(guest.wrapping_add(offset as u64));
            prop_assert!(host - back <= (1 << 32) / ratio + 1, "{} became {}", host, back);
        }

        #[test]
        fn no_answer_of_a_guest_overflows(tsc in any::<u64>(), uncertainty_ns in any::<i64>(), offset in any::<i64>()) {
            let (_dir, mut known) = host(&[("7-5", offset, Some((u64::MAX, 63)))]);
            known.before = Some(host_tie(1_000_000));
            let guest = TscTie { tsc, monotonic_ns: 0, uncertainty_ns };
            known.host_time(&guest, host_tie(1_600_000), |_, _| true);
        }
    }

    #[test]
    fn the_time_between_two_readings_of_this_machine_is_within_its_bound() {
        let Some(first) = TscTie::read() else { return };
        for _ in 0..100 {
            let (middle, last) = (TscTie::read().unwrap(), TscTie::read().unwrap());
            let (at, bound) = between(&first, &last, middle.tsc).unwrap();
            assert!((at - middle.monotonic_ns).abs() <= bound + middle.uncertainty_ns, "{at} {bound} {middle:?}");
        }
    }
}
