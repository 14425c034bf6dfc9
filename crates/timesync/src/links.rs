//! The links between clocks, from the system clock to the root.

use crate::state::{ClockReport, Link, LinkState, PtpInstance, PtpTime, SYSTEM_CLOCK};
use crate::survey::phc_of;
use latpath_clock::phc::Reading;
use latpath_linux::proc::Root;
use latpath_model::Ns;
use std::collections::BTreeMap;
use std::path::Path;

const S: Ns = 1_000_000_000;
/// TAI − UTC since 2017, s; used if the grandmaster does not announce the offset.
const TAI_OFFSET_S: Ns = 37;

/// A reading of a PHC, compared with the system clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhcOffset {
    /// The system clock minus the PHC, both as UTC, ns.
    pub offset_ns: Ns,
    /// Maximum error of the offset, ns.
    pub error_ns: Ns,
    /// The PHC as UTC at [`Self::monotonic_ns`], ns.
    pub utc_ns: Ns,
    /// The PHC's own time at [`Self::monotonic_ns`], ns: TAI if it uses PTP's timescale.
    pub phc_ns: Ns,
    /// Time of the reading, `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: Ns,
}

impl PhcOffset {
    /// Compares a reading with the system clock. A PHC may run on TAI or UTC, so the candidate UTC offset that brings
    /// it closest to the system clock is subtracted.
    pub fn of(reading: &Reading, report: &ClockReport, utc_offset_s: Option<i16>) -> Self {
        let system = reading.monotonic_ns.saturating_add(report.utc_ns.saturating_sub(report.monotonic_ns));
        let seconds = [0, Ns::from(utc_offset_s.unwrap_or(0)), Ns::from(report.kernel.tai_offset_s), TAI_OFFSET_S];
        let utc = seconds.map(|s| reading.phc_ns.saturating_sub(s.saturating_mul(S)));
        let utc_ns = utc.into_iter().min_by_key(|utc| system.saturating_sub(*utc).saturating_abs()).unwrap_or_default();
        Self {
            offset_ns: system.saturating_sub(utc_ns),
            error_ns: reading.uncertainty_ns,
            utc_ns,
            phc_ns: reading.phc_ns,
            monotonic_ns: reading.monotonic_ns,
        }
    }
}

/// Adds the links, the root and the bound to a report that already contains the daemons' states.
pub(crate) fn assemble(report: &mut ClockReport, phcs: &BTreeMap<u32, PhcOffset>, others: &[&str]) {
    let mut used = None;
    let is_synchronised = report.chrony.as_ref().is_some_and(|chrony| chrony.synchronised);
    let chronyd = by_chronyd(report, &mut used);
    let system = match chronyd {
        Some(link) if is_synchronised => link,
        // chronyd may only monitor (-x) while another daemon steers the clock.
        idle => by_phc2sys(report, phcs, &mut used)
            .or_else(|| by_ptp4l(report, &mut used))
            .or(idle)
            .unwrap_or_else(|| by_kernel(report, others)),
    };
    let mut links = vec![system];
    if let Some(instance) = used.map(|i| &report.ptp[i]).filter(|instance| !instance.uses_system_clock()) {
        links.push(link_of(instance));
    }
    (report.root, report.system_bound_ns) = root(report, &links, used);
    let follows = used.map(|i| &report.ptp[i]).filter(|_| report.system_bound_ns.is_some());
    report.grandmaster = follows.map(|instance| instance.grandmaster);
    report.grandmaster_time = time_by_system(report).or_else(|| time_by_phc(report, phcs));
    let beside = report.ptp.iter().enumerate().filter(|(i, _)| Some(*i) != used);
    links.extend(beside.map(|(_, instance)| link_of(instance)));
    report.links = links;
}

/// The grandmaster's time, derived from the system clock if the system clock follows the grandmaster.
fn time_by_system(report: &ClockReport) -> Option<PtpTime> {
    let (grandmaster, bound) = report.grandmaster.zip(report.system_bound_ns)?;
    let bound_ns = bound.saturating_add(report.tie_error_ns);
    Some(PtpTime { grandmaster, monotonic_ns: report.monotonic_ns, utc_ns: report.utc_ns, bound_ns })
}

/// The grandmaster's time, derived from the most accurate PHC that follows it or is its clock. The system clock may be
/// wrong by seconds here, so the UTC offset is taken from the grandmaster alone.
fn time_by_phc(report: &ClockReport, phcs: &BTreeMap<u32, PhcOffset>) -> Option<PtpTime> {
    let time = |instance: &PtpInstance| {
        let is_kept = matches!(instance.state, LinkState::Following | LinkState::Master) && !instance.is_silent;
        let (phc, bound) = (phcs.get(&instance.phc().filter(|_| is_kept)?)?, instance.bound_ns?);
        let offset_s = if instance.is_ptp_timescale { instance.utc_offset_s.map_or(TAI_OFFSET_S, Ns::from) } else { 0 };
        Some(PtpTime {
            grandmaster: instance.grandmaster,
            monotonic_ns: phc.monotonic_ns,
            utc_ns: phc.phc_ns.saturating_sub(offset_s.saturating_mul(S)),
            bound_ns: bound.saturating_add(phc.error_ns),
        })
    };
    report.ptp.iter().filter_map(time).min_by_key(|time| time.bound_ns)
}

/// The link between the clock that a ptp4l instance steers and its master.
fn link_of(instance: &PtpInstance) -> Link {
    let follows = if instance.state == LinkState::Master { String::new() } else { instance.reference() };
    Link {
        clock: instance.clock(),
        follows,
        by: instance.name(),
        state: instance.state,
        offset_ns: instance.offset_ns,
        bound_ns: instance.bound_ns,
        age_ns: instance.age_ns,
    }
}

fn by_chronyd(report: &ClockReport, used: &mut Option<usize>) -> Option<Link> {
    let chrony = report.chrony.as_ref()?;
    let source = chrony.selected();
    let is_idle = !chrony.synchronised && chrony.sources.is_empty();
    if is_idle {
        return None;
    }
    let mut follows = source.map(|source| source.name.clone()).unwrap_or_default();
    if let Some(source) = source.filter(|source| source.is_reference_clock) {
        *used = reference_clock(report, &source.name);
        follows = match used.map(|i| report.ptp[i].clock()) {
            Some(clock) => format!("{clock}, as {}", source.name),
            None if report.virtual_clock.is_some() => format!("the host's clock (ptp_kvm), as {}", source.name),
            None => follows,
        };
    }
    let state = match (chrony.synchronised, source.is_some()) {
        (true, true) => LinkState::Following,
        (true, false) => LinkState::Holdover,
        (false, _) => LinkState::Acquiring,
    };
    Some(Link {
        clock: SYSTEM_CLOCK.into(),
        follows,
        by: "chronyd".into(),
        state,
        offset_ns: chrony.synchronised.then_some(chrony.offset_ns),
        bound_ns: chrony.synchronised.then_some(chrony.bound_ns),
        age_ns: source.map(|source| source.age_ns),
    })
}

/// The ptp4l instance behind a reference clock. timemaster uses the same number for both, e.g. `PTP0` and
/// `ptp4l.0.socket`.
fn reference_clock(report: &ClockReport, name: &str) -> Option<usize> {
    let number = name.strip_prefix("PTP")?;
    let is = |instance: &PtpInstance| {
        let socket = Path::new(&instance.socket).file_name().and_then(|name| name.to_str()).unwrap_or_default();
        socket.strip_suffix(".socket").and_then(|name| name.rsplit('.').next()) == Some(number)
    };
    report.ptp.iter().position(is).or((report.ptp.len() == 1).then_some(0))
}

fn by_phc2sys(report: &ClockReport, phcs: &BTreeMap<u32, PhcOffset>, used: &mut Option<usize>) -> Option<Link> {
    let phc2sys = report.phc2sys.iter().find(|p| p.sink == "CLOCK_REALTIME")?;
    let named = phc_of(&Root::of(Path::new("/")), &phc2sys.source);
    let is = |instance: &PtpInstance| match (named, phc2sys.source.as_str()) {
        (Some(phc), _) => instance.phc() == Some(phc),
        // With -a, phc2sys follows the port that ptp4l selects.
        (None, "") => instance.following_port().is_some() && !instance.uses_system_clock(),
        (None, device) => instance.ports.iter().any(|port| port.device == device),
    };
    *used = report.ptp.iter().position(is);
    let phc = named.or_else(|| report.ptp[(*used)?].phc());
    let clock = used.map(|i| report.ptp[i].clock());
    let follows = clock.or(phc.map(|phc| format!("ptp{phc}"))).unwrap_or_else(|| phc2sys.source.clone());
    let measured = phc.and_then(|phc| phcs.get(&phc));
    let bound_ns = measured.map(|m| m.offset_ns.saturating_abs().saturating_add(m.error_ns));
    // While the bound is a millisecond or more, phc2sys is still adjusting the clock.
    let is_close = bound_ns.is_none_or(|bound| bound < 1_000_000);
    Some(Link {
        clock: SYSTEM_CLOCK.into(),
        follows,
        by: format!("phc2sys (process {})", phc2sys.pid),
        state: if is_close { LinkState::Following } else { LinkState::Acquiring },
        offset_ns: measured.map(|m| m.offset_ns),
        bound_ns,
        age_ns: measured.map(|m| report.monotonic_ns.saturating_sub(m.monotonic_ns).max(0)),
    })
}

fn by_ptp4l(report: &ClockReport, used: &mut Option<usize>) -> Option<Link> {
    let steers = |p: &PtpInstance| p.uses_system_clock() && p.state != LinkState::FreeRunning;
    let rank = |i: &usize| (report.ptp[*i].state != LinkState::Following, *i);
    let best = (0..report.ptp.len()).filter(|i| steers(&report.ptp[*i])).min_by_key(rank)?;
    *used = Some(best);
    Some(link_of(&report.ptp[best]))
}

fn by_kernel(report: &ClockReport, others: &[&str]) -> Link {
    let state = if report.kernel.synchronised { LinkState::Following } else { LinkState::Unsynchronised };
    let by = match (report.kernel.synchronised, others.first(), &report.chrony) {
        (_, Some(name), _) => (*name).to_owned(),
        (true, None, _) => "an unknown daemon".into(),
        _ => String::new(),
    };
    let (is_known, bound) = (report.kernel.synchronised, report.kernel.max_error_ns);
    Link {
        clock: SYSTEM_CLOCK.into(),
        follows: if is_known { "UTC, as the kernel's record says".into() } else { String::new() },
        by,
        state,
        bound_ns: is_known.then_some(bound),
        ..Link::default()
    }
}

/// The end of the chain, and the sum of the links' bounds.
fn root(report: &ClockReport, links: &[Link], used: Option<usize>) -> (Option<String>, Option<Ns>) {
    let is_kept = |link: &Link| matches!(link.state, LinkState::Following | LinkState::Master);
    let mut bound = links.iter().map(|link| link.bound_ns.filter(|_| is_kept(link)));
    let bound = bound.try_fold(0, |sum: Ns, bound| Some(sum.saturating_add(bound?)));
    let root = match (used.map(|i| &report.ptp[i]), links.last()) {
        (Some(instance), _) if instance.is_grandmaster() => Some("this machine, as grandmaster".into()),
        (Some(instance), _) => Some(format!("{}, domain {}", instance.reference(), instance.domain)),
        (None, Some(link)) if !link.follows.is_empty() => Some(link.follows.clone()),
        _ => None,
    };
    match bound {
        Some(bound) if root.is_some() => (root, Some(bound)),
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chrony::{Chrony, ChronySource};
    use crate::management::{ClockIdentity, PortState};
    use crate::state::{KernelClock, Phc2sys, PtpPort};

    fn instance(socket: &str, device: &str, in_hardware: bool) -> PtpInstance {
        PtpInstance {
            socket: socket.into(),
            identity: ClockIdentity([1; 8]),
            grandmaster: ClockIdentity([9; 8]),
            state: LinkState::Following,
            offset_ns: Some(-40),
            bound_ns: Some(300),
            ports: vec![PtpPort {
                number: 1,
                device: device.into(),
                state: PortState::Slave,
                in_hardware: Some(in_hardware),
                phc: in_hardware.then_some(3),
                ..PtpPort::default()
            }],
            ..PtpInstance::default()
        }
    }

    fn chrony(name: &str, is_reference_clock: bool) -> Chrony {
        let source = ChronySource { name: name.into(), is_reference_clock, selected: true, ..ChronySource::default() };
        Chrony { synchronised: true, offset_ns: 10, bound_ns: 700, sources: vec![source], ..Chrony::default() }
    }

    fn clocks(report: &ClockReport) -> Vec<(&str, &str)> {
        report.links.iter().map(|link| (link.clock.as_str(), link.follows.as_str())).collect()
    }

    #[test]
    fn with_timemaster_the_system_clock_follows_the_instance_of_its_reference_clock() {
        let ptp = vec![
            instance("/run/timemaster/ptp4lro.1.socket", "eth1", true),
            instance("/run/timemaster/ptp4lro.0.socket", "eth0", true),
        ];
        let mut report = ClockReport { ptp, chrony: Some(chrony("PTP0", true)), ..ClockReport::default() };
        assemble(&mut report, &BTreeMap::new(), &[]);
        let grandmaster = "grandmaster 090909.0909.090909";
        let want =
            [("system clock", "ptp3 (eth0), as PTP0"), ("ptp3 (eth0)", grandmaster), ("ptp3 (eth1)", grandmaster)];
        assert_eq!(clocks(&report), want);
        assert_eq!(report.system_bound_ns, Some(1_000), "chronyd's and ptp4l's");
        assert_eq!(report.root.as_deref(), Some("grandmaster 090909.0909.090909, domain 0"));
        assert_eq!(report.grandmaster, Some(ClockIdentity([9; 8])));
    }

    #[test]
    fn phc2sys_is_measured_by_the_phc_and_the_offset_of_tai_is_removed() {
        let reading = Reading { phc_ns: 1_000 * S + TAI_OFFSET_S * S + 250, monotonic_ns: 10 * S, uncertainty_ns: 40 };
        let phc2sys = vec![Phc2sys { pid: 7, source: String::new(), sink: "CLOCK_REALTIME".into() }];
        let ptp = vec![instance("/run/ptp4l", "eth0", true)];
        let mut report =
            ClockReport { ptp, phc2sys, monotonic_ns: 11 * S, utc_ns: 1_001 * S, ..ClockReport::default() };
        let offset = PhcOffset::of(&reading, &report, None);
        assert_eq!((offset.offset_ns, offset.utc_ns), (-250, 1_000 * S + 250));
        assemble(&mut report, &BTreeMap::from([(3, offset)]), &[]);
        assert_eq!(clocks(&report)[0], ("system clock", "ptp3 (eth0)"));
        assert_eq!((report.links[0].offset_ns, report.system_bound_ns), (Some(-250), Some(290 + 300)));
    }

    /// The system clock is three seconds off, which does not affect PTP.
    #[test]
    fn without_phc2sys_the_grandmasters_time_is_that_of_the_phc() {
        let reading = Reading { phc_ns: 1_037 * S + 250, monotonic_ns: 10 * S, uncertainty_ns: 40 };
        let mut follower = instance("/run/ptp4l", "eth0", true);
        (follower.is_ptp_timescale, follower.utc_offset_s) = (true, Some(37));
        let mut report =
            ClockReport { ptp: vec![follower], monotonic_ns: 11 * S, utc_ns: 1_004 * S, ..ClockReport::default() };
        let phcs = BTreeMap::from([(3, PhcOffset::of(&reading, &report, Some(37)))]);
        assemble(&mut report, &phcs, &[]);
        let time = |bound_ns| {
            let grandmaster = ClockIdentity([9; 8]);
            Some(PtpTime { grandmaster, monotonic_ns: 10 * S, utc_ns: 1_000 * S + 250, bound_ns })
        };
        assert_eq!((report.system_bound_ns, report.grandmaster_time), (None, time(340)));
        // If the grandmaster does not know the offset, 37 s is assumed, as phc2sys does.
        report.ptp[0].utc_offset_s = None;
        assemble(&mut report, &phcs, &[]);
        assert_eq!(report.grandmaster_time, time(340));
        for spoil in
            [(|p| p.state = LinkState::Holdover) as fn(&mut PtpInstance), |p| p.is_silent = true, |p| p.bound_ns = None]
        {
            let mut report = report.clone();
            spoil(&mut report.ptp[0]);
            assemble(&mut report, &phcs, &[]);
            assert_eq!(report.grandmaster_time, None);
        }
        // phc2sys copies the PHC's time: the system clock is used once it is close.
        report.phc2sys = vec![Phc2sys { pid: 7, source: String::new(), sink: "CLOCK_REALTIME".into() }];
        assemble(&mut report, &phcs, &[]);
        assert_eq!(report.grandmaster_time, time(340));
        report.utc_ns = 1_001 * S;
        let phcs = BTreeMap::from([(3, PhcOffset::of(&reading, &report, Some(37)))]);
        assemble(&mut report, &phcs, &[]);
        assert_eq!(report.grandmaster_time.map(|time| (time.utc_ns, time.bound_ns)), Some((1_001 * S, 250 + 40 + 300)));
    }

    #[test]
    fn with_software_timestamps_ptp4l_steers_the_system_clock_itself() {
        let mut report = ClockReport { ptp: vec![instance("/run/ptp4l", "eth0", false)], ..ClockReport::default() };
        assemble(&mut report, &BTreeMap::new(), &[]);
        assert_eq!(report.links.len(), 1);
        assert_eq!((report.system_bound_ns, report.why_not_within(299).is_some()), (Some(300), true));
        assert!(report.is_within(300));
        report.ptp[0].state = LinkState::FreeRunning;
        assemble(&mut report, &BTreeMap::new(), &[]);
        assert_eq!((report.links.len(), report.system_bound_ns, &report.root), (2, None, &None));
        assert_eq!(report.why_not_within(1).as_deref(), Some("nobody steers the system clock"));
    }

    #[test]
    fn a_broken_link_leaves_no_bound_and_is_named() {
        let mut ptp = instance("/run/timemaster/ptp4l.0.socket", "eth0", true);
        ptp.state = LinkState::Faulty;
        let mut report = ClockReport { ptp: vec![ptp], chrony: Some(chrony("PTP0", true)), ..ClockReport::default() };
        assemble(&mut report, &BTreeMap::new(), &[]);
        assert_eq!(report.system_bound_ns, None);
        assert_eq!(report.why_not_within(S).as_deref(), Some("ptp3 (eth0) is faulty"));
    }

    #[test]
    fn without_ptp_the_kernels_record_is_the_bound() {
        let kernel = KernelClock { synchronised: true, max_error_ns: 5_000, ..KernelClock::default() };
        let mut report = ClockReport { kernel, ..ClockReport::default() };
        assemble(&mut report, &BTreeMap::new(), &["systemd-timesyn"]);
        assert_eq!((report.links[0].by.as_str(), report.system_bound_ns), ("systemd-timesyn", Some(5_000)));
        report.kernel.synchronised = false;
        assemble(&mut report, &BTreeMap::new(), &[]);
        assert_eq!((report.links[0].state, report.system_bound_ns), (LinkState::Unsynchronised, None));
    }
}
