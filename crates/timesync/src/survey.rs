//! Reads the state of this machine's clocks from the daemons and the kernel.

use crate::chrony::{self, ChronyAddress};
use crate::client::Client;
use crate::daemons::{usual_sockets, Configured, Daemon, DaemonSearch};
use crate::links;
use crate::management::{Content, DataSet, PortState};
use crate::state::{ClockReport, KernelClock, LinkState, Phc2sys, PtpInstance, PtpPort, VirtualClock};
use latpath_clock::phc::Reader as _;
use latpath_clock::ptp_kvm::{self, Reader as _};
use latpath_clock::{ClockTie, Phc};
use latpath_linux::proc::Root;
use latpath_linux::{monotonic, KernelTime};
use latpath_model::Ns;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

const S: Ns = 1_000_000_000;
/// Interval between searches for daemons and sockets, ns.
const SEARCH_EVERY: Ns = 5 * S;
/// Time over which the largest offset determines the bound, ns.
const BOUND_WINDOW: Ns = 10 * S;
/// Maximum number of offsets kept per instance: those within [`BOUND_WINDOW`] at 16 per second.
const MAX_OFFSETS: usize = 160;
/// Age beyond which a measurement is overdue, in Sync intervals; at least `OVERDUE` ns.
const OVERDUE_INTERVALS: Ns = 4;
const OVERDUE: Ns = 2 * S;
/// Drift that the bound of a clock in holdover allows for, ppb: that of a crystal calibrated by a servo.
const HOLDOVER_PPB: i64 = 1_000;
/// Maximum number of ptp4l instances.
const MAX_INSTANCES: usize = 16;

/// Sources to read instead of those in the usual places.
#[derive(Clone, Debug, Default)]
pub struct SurveyOptions {
    /// Sockets of ptp4l. If any are given, the usual places are not searched.
    pub sockets: Vec<PathBuf>,
    /// Sockets on which chronyd answers.
    pub chrony: ChronyAddress,
}

/// Reads the clocks repeatedly. It keeps its connections open; dropping it removes its sockets.
pub struct Survey {
    options: SurveyOptions,
    root: Root,
    instances: Vec<Instance>,
    daemons: DaemonSearch,
    phcs: BTreeMap<u32, Result<Phc, String>>,
    virtual_clock: Option<ptp_kvm::Device>,
    search_due: Ns,
    /// Notes from the last search.
    notes: Vec<String>,
}

/// A ptp4l instance that answers.
struct Instance {
    client: Client,
    /// Paths of its sockets that were tried; the first is used.
    paths: Vec<PathBuf>,
    free_running: bool,
    state: PtpInstance,
    /// Times and absolute values of the latest offsets.
    offsets: VecDeque<(Ns, Ns)>,
    measured_at: Option<Ns>,
    has_stats: bool,
}

impl Survey {
    /// Creates a survey; the first reading searches for the daemons.
    pub fn new(options: SurveyOptions) -> Self {
        Self {
            options,
            root: Root::of(Path::new("/")),
            instances: Vec::new(),
            daemons: DaemonSearch::default(),
            phcs: BTreeMap::new(),
            virtual_clock: ptp_kvm::Device::open(),
            search_due: Ns::MIN,
            notes: Vec::new(),
        }
    }

    /// Reads all clocks. It waits up to 0.2 s for each daemon that does not answer.
    pub fn read(&mut self) -> ClockReport {
        let before = self.instances.len();
        self.instances.retain_mut(|instance| instance.update().is_ok());
        if self.instances.len() < before || monotonic() >= self.search_due {
            self.search();
            self.search_due = monotonic().saturating_add(SEARCH_EVERY);
        }
        let tie = ClockTie::read();
        let kernel = KernelTime::read();
        let mut report = ClockReport {
            monotonic_ns: tie.monotonic_ns,
            utc_ns: tie.realtime_ns,
            tai_ns: tie.tai_ns,
            tie_error_ns: tie.uncertainty_ns,
            kernel: KernelClock {
                synchronised: kernel.synchronised,
                max_error_ns: kernel.max_error_ns,
                frequency_ppb: kernel.frequency_ppb,
                tai_offset_s: kernel.tai_offset_s,
            },
            ptp: self.instances.iter().map(|instance| instance.state.clone()).collect(),
            notes: self.notes.clone(),
            ..ClockReport::default()
        };
        report.phc2sys = self.daemons.found().iter().filter(|daemon| daemon.name == "phc2sys").map(phc2sys).collect();
        // If chronyd does not run, requests would only add traffic on loopback.
        let daemon = self.daemon("chronyd");
        if daemon.is_some() || self.options.chrony != ChronyAddress::default() {
            match chrony::read(&self.options.chrony) {
                Ok(chrony) => report.chrony = Some(chrony),
                Err(error) => report.notes.extend(daemon.map(|pid| chrony_note(pid, &error))),
            }
        }
        report.virtual_clock = self.virtual_clock.as_mut().map(|device| virtual_clock(device, &tie));
        let offsets = self.read_phcs(&mut report);
        links::assemble(&mut report, &offsets, &self.other_daemons());
        report
    }

    fn daemon(&self, name: &str) -> Option<u32> {
        self.daemons.found().iter().find(|daemon| daemon.name == name).map(|daemon| daemon.pid)
    }

    /// Daemons that update the kernel's record of the clock, but cannot be queried.
    fn other_daemons(&self) -> Vec<&str> {
        let others = ["ntpd", "systemd-timesyn"];
        self.daemons.found().iter().map(|daemon| daemon.name.as_str()).filter(|name| others.contains(name)).collect()
    }

    fn search(&mut self) {
        let daemons = self.daemons.search(&self.root, monotonic());
        self.notes.clear();
        self.phcs.retain(|_, phc| phc.is_ok());
        let processes = daemons.iter().filter(|daemon| daemon.name == "ptp4l");
        let configured: Vec<Configured> = processes.map(|daemon| Configured::of(&self.root, daemon)).collect();
        let mut candidates = self.options.sockets.clone();
        if candidates.is_empty() {
            candidates = configured.iter().flat_map(|c| c.sockets.clone()).chain(usual_sockets(&self.root)).collect();
        }
        let mut refused = Vec::new();
        for path in candidates {
            let is_known = self.instances.iter().any(|instance| instance.paths.contains(&path));
            if is_known || self.instances.len() >= MAX_INSTANCES {
                continue;
            }
            let is_of = |c: &&Configured| c.sockets.contains(&path);
            // A ptp4l without configured sockets uses those at the usual places.
            let of = configured.iter().find(is_of).or_else(|| configured.iter().find(|c| c.sockets.is_empty()));
            match Instance::open(&path, of) {
                Ok(new) => {
                    let key = |instance: &Instance| (instance.state.identity, instance.state.domain);
                    match self.instances.iter_mut().find(|other| key(other) == key(&new)) {
                        Some(same) => same.paths.push(path),
                        None => self.instances.push(new),
                    }
                }
                Err(error) => refused.push((path, error)),
            }
        }
        let is_given = !self.options.sockets.is_empty();
        let unread = configured.len().saturating_sub(self.instances.len());
        if unread > 0 || is_given {
            self.notes.extend(refused.iter().map(|(path, error)| socket_note(path, error)));
        }
        if unread > 0 && refused.is_empty() && !is_given {
            self.notes.push(format!("{unread} of {} ptp4l have no socket that is visible here", configured.len()));
        }
    }

    /// Reads the PHCs of all instances: offset from the system clock, in UTC, and maximum error.
    fn read_phcs(&mut self, report: &mut ClockReport) -> BTreeMap<u32, links::PhcOffset> {
        let of_phc2sys = report.phc2sys.iter().filter_map(|p| phc_of(&self.root, &p.source));
        let wanted: Vec<u32> = report.ptp.iter().filter_map(PtpInstance::phc).chain(of_phc2sys).collect();
        let mut offsets = BTreeMap::new();
        for index in wanted {
            let phc = self.phcs.entry(index).or_insert_with(|| Phc::open(index).map_err(|error| error.to_string()));
            match phc
                .as_mut()
                .map_err(|why| why.clone())
                .and_then(|phc| phc.read().map_err(|e| format!("/dev/ptp{index}: {e}")))
            {
                Ok(reading) => {
                    let utc = report.ptp.iter().find(|p| p.phc() == Some(index)).and_then(|p| p.utc_offset_s);
                    offsets.insert(index, links::PhcOffset::of(&reading, report, utc));
                }
                Err(why) if !report.notes.contains(&why) => report.notes.push(why),
                Err(_) => {}
            }
        }
        offsets
    }
}

fn socket_note(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("{path}: only its owner may ask this ptp4l: try with sudo, or set uds_ro_address (linuxptp 4)")
        }
        io::ErrorKind::ConnectionRefused => format!("{path}: its ptp4l has ended"),
        io::ErrorKind::NotFound => format!("{path}: no such socket"),
        io::ErrorKind::TimedOut => format!(
            "{path}: ptp4l does not answer: it may be kept from its CPU, or run in another network and mount namespace"
        ),
        _ => format!("{path}: {error}"),
    }
}

fn chrony_note(pid: u32, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ConnectionRefused => {
            format!("chronyd (process {pid}) does not answer on UDP port 323, and its unix socket needs root: try with sudo")
        }
        _ => format!("chronyd (process {pid}) does not answer: {error}"),
    }
}

fn phc2sys(daemon: &Daemon) -> Phc2sys {
    let value = |name: &str| daemon.option(name).unwrap_or_default().to_owned();
    let sink = Some(value("-c")).filter(|sink| !sink.is_empty() && sink != "CLOCK_REALTIME");
    Phc2sys { pid: daemon.pid, source: value("-s"), sink: sink.unwrap_or_else(|| "CLOCK_REALTIME".into()) }
}

fn virtual_clock(device: &mut ptp_kvm::Device, tie: &ClockTie) -> VirtualClock {
    let Ok(reading) = device.read() else { return VirtualClock::default() };
    let offset = reading.guest_realtime_ns.saturating_sub(reading.host_realtime_ns);
    VirtualClock { offset_ns: Some(offset), error_ns: Some(tie.uncertainty_ns) }
}

/// PHC index of a network device or of `/dev/ptpN`.
pub(crate) fn phc_of(root: &Root, source: &str) -> Option<u32> {
    if let Some(number) = source.strip_prefix("/dev/ptp") {
        return number.parse().ok();
    }
    let is_name = !source.is_empty() && !source.contains('/') && source != "CLOCK_REALTIME";
    let names = is_name.then(|| root.names(&format!("sys/class/net/{source}/device/ptp"), 8))?;
    let of_card = names.iter().find_map(|name| name.strip_prefix("ptp")?.parse().ok());
    // A port's PHC may belong to another function of the card; only the driver, on the running machine, can report it.
    let of_driver = || latpath_nic_timestamps::phc_of(source).ok().flatten();
    of_card.or_else(|| (root.path("") == Path::new("/")).then(of_driver).flatten())
}

impl Instance {
    fn open(path: &Path, configured: Option<&Configured>) -> io::Result<Self> {
        let client = Client::connect(path, configured.and_then(|c| c.domain))?;
        let domain = client.domain();
        let state = PtpInstance {
            socket: path.display().to_string(),
            domain: domain.number,
            transport_specific: domain.transport_specific,
            ..PtpInstance::default()
        };
        let free_running = configured.is_some_and(|c| c.free_running);
        let mut instance = Self {
            client,
            paths: vec![path.into()],
            free_running,
            state,
            offsets: VecDeque::new(),
            measured_at: None,
            has_stats: true,
        };
        instance.update_fixed()?;
        instance.update()?;
        Ok(instance)
    }

    /// Reads the data that do not change while ptp4l is running.
    fn update_fixed(&mut self) -> io::Result<()> {
        let mut ports = 1;
        for content in self.client.get(DataSet::Default, 1)? {
            if let Content::Default { ports: n, identity, .. } = content {
                (ports, self.state.identity) = (usize::from(n), identity);
            }
        }
        for content in self.client.get(DataSet::Port, ports)? {
            if let Content::Port { number, .. } = content {
                self.state.ports.push(PtpPort { number, ..PtpPort::default() });
            }
        }
        self.state.ports.sort_by_key(|port| port.number);
        let ports = self.state.ports.len();
        let root = Root::of(Path::new("/"));
        for content in self.client.get(DataSet::PortProperties, ports)? {
            if let Content::PortProperties { number, in_hardware, device } = content {
                if let Some(port) = self.port(number) {
                    port.phc = phc_of(&root, &device).filter(|_| in_hardware);
                    (port.device, port.in_hardware) = (device, Some(in_hardware));
                }
            }
        }
        for content in self.client.get(DataSet::PortHwClock, ports)? {
            if let Content::PortHwClock { number, phc } = content {
                self.port(number).into_iter().for_each(|port| port.phc = phc.or(port.phc));
            }
        }
        Ok(())
    }

    fn port(&mut self, number: u16) -> Option<&mut PtpPort> {
        self.state.ports.iter_mut().find(|port| port.number == number)
    }

    /// Reads the data that change.
    fn update(&mut self) -> io::Result<()> {
        let ports = self.state.ports.len();
        self.state.is_silent = false;
        for set in [DataSet::TimeStatus, DataSet::Parent, DataSet::Current, DataSet::TimeProperties, DataSet::Port] {
            let contents = self.client.get(set, if set == DataSet::Port { ports } else { 1 })?;
            if contents.is_empty() {
                // Each further request would time out too. The last state is kept, and ages.
                self.state.is_silent = true;
                self.judge();
                return Ok(());
            }
            contents.into_iter().for_each(|content| self.take(content));
        }
        if self.has_stats {
            let stats = self.client.get(DataSet::PortStats, ports)?;
            // linuxptp before 3.0 does not have this data set.
            self.has_stats = !stats.is_empty();
            stats.into_iter().for_each(|content| self.take(content));
        }
        for port in self.state.ports.iter_mut().filter(|port| !port.device.is_empty()) {
            let carrier = std::fs::read_to_string(format!("/sys/class/net/{}/carrier", port.device)).ok();
            port.has_carrier = carrier.map(|text| text.trim() == "1");
        }
        self.judge();
        Ok(())
    }

    fn take(&mut self, content: Content) {
        let now = monotonic();
        let state = &mut self.state;
        match content {
            Content::TimeStatus { offset_ns, ingress_ns, grandmaster } => {
                if grandmaster.is_some() && ingress_ns != 0 && ingress_ns != state.ingress_ns {
                    state.offset_ns = Some(offset_ns);
                    self.measured_at = Some(now);
                    self.offsets.push_back((now, offset_ns.saturating_abs()));
                    if self.offsets.len() > MAX_OFFSETS {
                        self.offsets.pop_front();
                    }
                }
                state.ingress_ns = ingress_ns;
            }
            Content::Parent { grandmaster, class, accuracy } => {
                state.grandmaster = grandmaster;
                (state.grandmaster_class, state.grandmaster_accuracy) = (class, accuracy);
            }
            Content::Current { steps_removed, path_delay_ns } => {
                (state.steps_removed, state.path_delay_ns) = (steps_removed, path_delay_ns);
            }
            Content::TimeProperties { utc_offset_s, is_ptp_timescale, time_traceable } => {
                state.utc_offset_s = utc_offset_s;
                (state.is_ptp_timescale, state.time_traceable) = (is_ptp_timescale, time_traceable);
            }
            Content::Port { number, state, log_sync_interval, is_peer_to_peer } => {
                if let Some(port) = self.port(number) {
                    port.state = state;
                    port.sync_interval_ns = interval_ns(log_sync_interval);
                    port.is_peer_to_peer = is_peer_to_peer;
                }
            }
            Content::PortStats { number, rx_sync, tx_delay_requests } => {
                if let Some(port) = self.port(number) {
                    (port.rx_sync, port.tx_delay_requests) = (Some(rx_sync), Some(tx_delay_requests));
                }
            }
            Content::Default { .. } | Content::PortProperties { .. } | Content::PortHwClock { .. } => {}
        }
    }

    /// Derives state, age and bound from the data read.
    fn judge(&mut self) {
        let now = monotonic();
        while self.offsets.front().is_some_and(|(at, _)| now.saturating_sub(*at) > BOUND_WINDOW) {
            self.offsets.pop_front();
        }
        let state = &mut self.state;
        state.age_ns = self.measured_at.map(|at| now.saturating_sub(at));
        let following = state.following_port();
        let interval = following.map_or(S, |port| port.sync_interval_ns);
        let overdue = interval.saturating_mul(OVERDUE_INTERVALS).max(OVERDUE);
        let has = |wanted| state.ports.iter().any(|port| port.state == wanted);
        let is_overdue = state.age_ns.is_none_or(|age| age > overdue);
        let next = match following.map(|port| port.state) {
            Some(PortState::Slave) if is_overdue => LinkState::Holdover,
            Some(PortState::Slave) => LinkState::Following,
            Some(_) if self.free_running => LinkState::FreeRunning,
            Some(_) => LinkState::Acquiring,
            None if has(PortState::Faulty) => LinkState::Faulty,
            None if state.is_grandmaster() && (has(PortState::Master) || has(PortState::PreMaster)) => {
                LinkState::Master
            }
            None => LinkState::Acquiring,
        };
        let largest = self.offsets.iter().map(|(_, offset)| *offset).max();
        let largest = largest.or(state.offset_ns.map(Ns::saturating_abs));
        let drifted = state.age_ns.map_or(0, |age| (age.saturating_sub(OVERDUE)).max(0) / (S / HOLDOVER_PPB));
        state.bound_ns = match next {
            LinkState::Master => Some(0),
            LinkState::Following | LinkState::Holdover | LinkState::FreeRunning => {
                largest.map(|largest| largest.saturating_add(state.path_delay_ns.max(0)).saturating_add(drifted))
            }
            _ => None,
        };
        if matches!(next, LinkState::Master) {
            (state.offset_ns, state.age_ns) = (None, None);
        }
        state.state = next;
    }
}

/// Converts an interval from a base-2 logarithm of seconds to ns.
fn interval_ns(log: i8) -> Ns {
    match log {
        0..=10 => S << log,
        -20..=-1 => S >> -log,
        _ => S,
    }
}
