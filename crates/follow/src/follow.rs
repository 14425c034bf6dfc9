//! Follows streams packet by packet: joins the sightings of all probes into journeys.

mod lacks;

use crate::counted::KernelCounters;
use crate::door::WithDoor;
use crate::early_completion::EarlyCompletion;
use crate::flight::{Flight, FlightOptions, MACHINE_TIMEOUT};
use crate::merge::{Feed, Merge, Origin};
use crate::reactions::AllReactions;
use crate::sampling::HostSampling;
use crate::tables::{PointFilter, Tables};
use latpath_agent::{Address, Hypervisor, Machine, MachineError, Meter, StartRequest, Timeouts};
use latpath_capture::{CaptureRequest, LateCounts, RankedCapture, RetentionPolicy};
use latpath_counters::Difference;
use latpath_flight::Figures;
use latpath_journey::{copies, segments, Joiner, Journey, Layout, RouteFinder, Span, Totals};
use latpath_linux::{background::Background, monotonic};
use latpath_model::{Counters, DropNote, Ns, PointInfo, StreamId, StreamSpec, SynchChange, HOST};
use latpath_net::namespace_names;
use latpath_probe::{Accept, AttachError, Options as ProbeOptions, Probe, RECORD_BYTES};
use latpath_run::{Manifest, ToolCost};
use latpath_settings::Reading;
use latpath_timesync::Monitor;
use latpath_vms::VmsByMachine;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Interval at which the route is searched until there is one, ns; later `ROUTE_EVERY` applies.
const SEARCH_EVERY: Ns = 100_000_000;
const ROUTE_EVERY: Ns = 1_000_000_000;

/// Time after attaching the probes in which journeys are dropped, ns: not all probes are attached at the same time.
const SETTLE: Ns = 100_000_000;
/// Time for which following continues at the end, ns, to determine which of the last packets are late.
const LAST: Ns = 100_000_000;
/// Interval between rounds at the end.
const ROUND: std::time::Duration = std::time::Duration::from_millis(5);
/// Maximum time to wait for captures at the end, ns.
const LAST_CAPTURES: Ns = 1_500_000_000;

/// Options for following.
#[derive(Clone, Debug)]
pub struct Options {
    /// The streams. Those of reactions come last; the streams of both their sides must be among the others.
    pub streams: Vec<StreamSpec>,
    /// Other machines by the names that the user gives them, which must be unique and differ from the host's.
    pub machines: Vec<(String, Address)>,
    /// For guests among these machines that run on another of them: the name of that machine, whose time of day their
    /// `ptp_kvm` reports.
    pub hypervisors: BTreeMap<String, String>,
    /// The requested points; see [`PointFilter`].
    pub points: PointFilter,
    /// Whether to follow network namespaces that belong to other user namespaces, e.g. of rootless containers.
    pub other_users: bool,
    /// Whether to use packet timestamps from the NICs of all machines; timestamping is switched on for the duration.
    pub nic_times: bool,
    /// User-defined segments: `NAME=FROM..TO`.
    pub segments: Vec<String>,
    /// Threshold above which times are counted as late, ns.
    pub threshold: Ns,
    /// Time after which sightings are no longer matched to a packet, ns.
    pub window: Ns,
    /// Whether to follow packets for virtual machines through their guests' doors: up to the interrupt, and to the vCPU
    /// that then runs.
    pub door: bool,
    /// Size of the probe's rings, bytes.
    pub ring_bytes: usize,
    /// Maximum error of this host's UTC as stated by the user, ns; `None` to use the kernel's value.
    pub clock_error: Option<Ns>,
    /// Options of the flight recorders; `None` to run none.
    pub flight: Option<FlightOptions>,
    /// Monitor of this host's clocks: machines whose system clocks follow the same grandmaster are tied by PTP.
    pub clocks: Option<Arc<Monitor>>,
    /// Whether the other machines report their settings ([`Follow::settings`]).
    pub settings: bool,
}

impl Options {
    /// Options to follow these streams at all points of this host, without the flight recorder. Packets over 200 us
    /// count as late, those over 1 s as lost.
    pub fn new(streams: Vec<StreamSpec>) -> Self {
        Self {
            streams,
            machines: Vec::new(),
            hypervisors: BTreeMap::new(),
            points: PointFilter::default(),
            other_users: false,
            nic_times: false,
            segments: Vec::new(),
            threshold: 200_000,
            window: 1_000_000_000,
            door: false,
            ring_bytes: 16 << 20,
            clock_error: None,
            flight: None,
            clocks: None,
            settings: false,
        }
    }

    /// The streams whose packets are followed: all except those of reactions.
    pub fn packet_streams(&self) -> &[StreamSpec] {
        let packets = self.streams.iter().take_while(|stream| stream.reaction.is_none()).count();
        &self.streams[..packets]
    }
}

/// Why following could not start.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// This machine's probe cannot be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The events of guests' doors cannot be recorded.
    #[error("--door: {0}")]
    Door(latpath_flight::StartError),
    /// Another machine cannot be followed.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// An agent runs on this machine's own kernel, so it would report each packet a second time.
    #[error(
        "{0} runs on this machine's own kernel (the boot ids are equal), whose network namespaces and containers are \
         followed already: leave out --machine {0}=…"
    )]
    SameKernel(String),
}

/// State when the layout changes.
#[derive(Clone, Copy, Debug)]
pub struct LayoutChange<'a> {
    /// The route and the segments.
    pub layout: &'a Layout,
    /// The points.
    pub points: &'a [PointInfo],
    /// Counts of the joiner so far, per stream.
    pub totals: &'a [Totals],
    /// Time up to which all sightings were processed, host's `CLOCK_MONOTONIC`, ns.
    pub now: Ns,
}

/// Receives the results of [`Follow`].
pub trait JourneySink {
    /// Called when the route or the segments become known or change, before the first journey that they apply to.
    fn layout(&mut self, _found: LayoutChange) {}

    /// Called with each finished journey. `points` contains all points that it refers to.
    fn journey(&mut self, journey: &Journey, points: &[PointInfo]);

    /// Called when the packets of a Sampled Values stream report a new clock state, before the first journey with it.
    fn synch(&mut self, _before: u8, _change: &SynchChange) {}
}

/// Follows streams on all machines. Dropping it detaches everything.
pub struct Follow {
    options: Options,
    merge: Merge,
    tables: Tables,
    joiner: Joiner,
    finder: RouteFinder,
    layout: Layout,
    sampling: HostSampling,
    /// Number of points when the layout was last computed.
    laid_out: usize,
    span: Span,
    /// Number of packets that are not counted because they may have been in flight at the start.
    under_way: u64,
    now: Ns,
    route_due: Ns,
    meter: Meter,
    counted: KernelCounters,
    notes: Vec<String>,
    /// Why machines could not be stopped, so that their last sightings are missing.
    not_stopped: Vec<String>,
    flight: Option<Flight>,
    early: EarlyCompletion,
    reactions: AllReactions,
    background: Option<Background>,
}

impl Follow {
    /// Connects to the machines, then attaches the probes: the host's last, because it sees packets first.
    ///
    /// # Errors
    /// A machine or the probe cannot be started.
    pub fn start(options: Options) -> Result<Self, FollowError> {
        let attach = |options: &Options| -> Result<Probe, FollowError> {
            let mut probe = ProbeOptions::new(HOST, options.packet_streams().to_vec());
            probe.ring_bytes = options.ring_bytes;
            probe.other_users = options.other_users;
            probe.nic_times = options.nic_times;
            probe.readers = options.points.readers(HOST);
            let filter = options.points.clone();
            probe.accept = Accept(Arc::new(move |point| filter.matches(point)));
            Ok(Probe::attach(probe)?)
        };
        match options.door {
            true => Self::over(options, |options| WithDoor::start(attach(options)?).map_err(FollowError::Door)),
            false => Self::over(options, attach),
        }
    }

    /// Like [`Self::start`], with another source of this machine's sightings.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn over<S: Origin + 'static>(
        options: Options,
        host: impl FnOnce(&Options) -> Result<S, FollowError>,
    ) -> Result<Self, FollowError> {
        let mut feeds = Vec::new();
        let hypervisors = options.hypervisors.values().map(|name| (name, Hypervisor::new(name)));
        let hypervisors: BTreeMap<&String, Hypervisor> = hypervisors.collect();
        for (name, address) in &options.machines {
            let timeouts = Timeouts { window: MACHINE_TIMEOUT, ..Timeouts::default() };
            let mut machine = match options.hypervisors.get(name).and_then(|name| hypervisors.get(name)) {
                Some(hypervisor) => Machine::connect_guest_of(hypervisor, name, address, timeouts)?,
                None => Machine::connect(name, address, timeouts)?,
            };
            if !machine.facts().boot_id.is_empty() && machine.facts().boot_id == latpath_linux::proc::boot_id() {
                return Err(FollowError::SameKernel(name.clone()));
            }
            let flight = options.flight.iter().flat_map(|f| {
                [
                    (StartRequest::FLIGHT, f.bytes_per_cpu.to_string()),
                    (StartRequest::FLIGHT_BUDGET, f.budget.to_string()),
                ]
            });
            let readers = StartRequest::names_of_readers(&options.points.readers(name));
            let settings = options.settings.then(|| (StartRequest::SETTINGS, "1".into()));
            let clocks = options.clocks.clone().map(|clocks| {
                machine.use_clocks(clocks);
                (StartRequest::GRANDMASTER, "1".into())
            });
            let time_of_day = hypervisors.get(name).map(|itself| {
                machine.publish_clock(itself);
                (StartRequest::TIME_OF_DAY, "1".into())
            });
            let nic_times = options.nic_times.then(|| (StartRequest::NIC_TIMES, "1".into()));
            let asked = flight
                .chain([StartRequest::NOTES, StartRequest::VMS].map(|name| (name, "1".into())))
                .chain(settings)
                .chain(clocks)
                .chain(time_of_day)
                .chain(nic_times);
            let named = asked.map(|(name, value)| (name.to_owned(), value)).chain(readers).collect();
            let request = StartRequest { streams: options.packet_streams().to_vec(), options: named };
            machine.start(&request)?;
            feeds.push(Feed::new(machine));
        }
        let mut flight = options.flight.as_ref().map(|f| Flight::start(f, options.window, options.streams.len()));
        let reactions = AllReactions::new(&options.streams);
        flight.iter_mut().for_each(|flight| flight.detector.set_reactions(reactions.late()));
        let counted = KernelCounters::begin();
        feeds.insert(0, Feed::new(host(&options)?));
        let joiner = joiner(&options);
        let tables = Tables { filter: options.points.clone(), ..Default::default() };
        let now = monotonic();
        Ok(Self {
            merge: Merge::new(feeds, now),
            tables,
            joiner,
            finder: RouteFinder::default(),
            layout: Layout::default(),
            sampling: HostSampling::new(options.clock_error),
            laid_out: 0,
            span: Span::new(now + SETTLE, now.saturating_add(options.window)),
            under_way: 0,
            now,
            route_due: now + SEARCH_EVERY,
            meter: Meter::new(),
            counted,
            notes: Vec::new(),
            not_stopped: Vec::new(),
            flight,
            early: EarlyCompletion::new(options.packet_streams().len()),
            reactions,
            background: None,
            options,
        })
    }

    /// Keeps the process in the background until [`Self::stop`], so that its threads do not delay packets.
    pub fn keep_background(&mut self, mut background: Background) {
        background.expect(self.options.ring_bytes / RECORD_BYTES);
        self.background = Some(background);
    }

    /// Does one round: collects the sightings from all probes, joins them, and hands over the finished journeys. Call
    /// it about a hundred times per second.
    pub fn step(&mut self, sink: &mut impl JourneySink) {
        self.find_route_before_the_first(sink);
        let no_route = self.layout.route.points.is_empty() && !self.is_route_due();
        let window = self.options.window;
        let Self {
            merge,
            tables,
            joiner,
            finder,
            span,
            under_way,
            flight,
            early,
            layout,
            sampling,
            background,
            reactions,
            ..
        } = self;
        let known = tables.points.len();
        // Journeys with the new state are still open, so they are handed over after this.
        for (before, change) in sampling.update(merge.synch_changes(), joiner, &mut tables.points) {
            sink.synch(before, &change);
        }
        self.now = merge.step(tables, background).1;
        // Must precede joining: if this process lags, journeys are handed over in the round in which they are read.
        sampling.plan(merge.planned_sends(), &mut tables.points);
        let sightings = merge.ready();
        copies::add_points(&mut tables.points, |netns| {
            namespace_names().remove(&netns).filter(|name| !name.is_empty())
        });
        if tables.points.len() != known {
            joiner.set_points(&tables.points);
        }
        let points = &tables.points;
        reactions.read(joiner, points);
        let mut done = |j: &Journey| {
            if span.counts(j, &layout.route) {
                finder.observe(j);
                reactions.take(j);
                if let Some(flight) = flight.as_mut().filter(|_| !early.was_reported(j)) {
                    sampling.with_send_time(j, |j| flight.take(j));
                }
                sampling.with_sample(j, |j| sink.journey(j, points));
            } else {
                *under_way += u64::from(span.was_under_way(j, &layout.route));
            }
        };
        for s in sightings {
            joiner.push(s, &mut done);
        }
        // Once the probes are detached, the watermark is at the end of time; but the windows of packets have only
        // passed up to the real end.
        let mut reached = self.now.min(span.end);
        if let Some(oldest) = joiner.oldest().filter(|_| no_route) {
            // After a stall, this round may have read more than a window. Stop within it, so that the next round can
            // determine the route of these packets first.
            reached = reached.min(oldest.saturating_add(window - 1));
        }
        joiner.advance(reached, &mut done);
        if let Some(flight) = flight {
            early.take(joiner, reached, &mut |j: &Journey| {
                if span.counts(j, &layout.route) {
                    sampling.with_send_time(j, |j| flight.take(j));
                }
            });
        }
        reactions.advance(joiner.reached(), &mut |j: &Journey| {
            flight.iter_mut().for_each(|flight| flight.take(j));
            sink.journey(j, points);
        });
        let changed = tables.points.len() != known;
        self.freeze();
        if self.now >= self.route_due || changed {
            self.update_route(sink);
            let every = if self.layout.segments.is_empty() { SEARCH_EVERY } else { ROUTE_EVERY };
            self.route_due = self.now.saturating_add(every);
        }
    }

    /// Does one round of captures.
    fn freeze(&mut self) {
        if let Some(flight) = &mut self.flight {
            flight.round(monotonic(), self.joiner.reached(), &mut self.merge.machines());
        }
    }

    /// The next complete capture of all machines. Each is returned once; call it each round.
    pub fn next_capture(&mut self) -> Option<RankedCapture> {
        self.flight.as_mut()?.next_capture()
    }

    /// The next spike for which a capture has been requested. Each is returned once.
    pub fn next_spotted(&mut self) -> Option<CaptureRequest> {
        self.flight.as_mut()?.next_spotted()
    }

    /// Counts of late packets; `None` without flight recorders.
    pub fn late(&self) -> Option<&LateCounts> {
        self.flight.as_ref().map(Flight::counted)
    }

    /// The policy that decides which captures are kept, shared with their store; `None` without a flight recorder.
    pub fn retention(&self) -> Option<RetentionPolicy> {
        self.flight.as_ref().map(|flight| flight.retention.clone())
    }

    /// Figures of each machine's flight recorder, or the reason why it does not run; `None` if not requested.
    pub fn flights(&self) -> Vec<Option<Result<Figures, String>>> {
        let others = self.merge.feeds.iter().skip(1).map(|feed| feed.origin.recorder());
        std::iter::once(self.flight.as_ref().map(Flight::figures)).chain(others).collect()
    }

    /// Captures the last late packets: whether a packet is late is only known some time after its arrival.
    fn freeze_the_last(&mut self, sink: &mut impl JourneySink) {
        if self.flight.is_none() {
            return;
        }
        // Sightings are delayed until the NICs' clocks and the events of guests' doors have been read.
        let last = if self.options.nic_times || self.options.door { 3 * LAST } else { LAST };
        let until = monotonic() + last;
        while monotonic() < until {
            std::thread::sleep(ROUND);
            self.step(sink);
        }
        let until = monotonic() + LAST_CAPTURES;
        if let Some(flight) = &mut self.flight {
            flight.finish(monotonic(), &mut self.merge.machines());
        }
        while self.flight.as_ref().is_some_and(|f| !f.is_idle()) && monotonic() < until {
            std::thread::sleep(ROUND);
            self.freeze();
        }
    }

    /// Stops following: detaches all probes and hands over the finished journeys. Packets still in flight are dropped.
    pub fn stop(&mut self, sink: &mut impl JourneySink) {
        self.freeze_the_last(sink);
        self.background.iter_mut().for_each(Background::hurry);
        let end = monotonic();
        self.span.end = end;
        for feed in &mut self.merge.feeds {
            self.not_stopped.extend(feed.origin.stop().err());
        }
        while self.now < end {
            let before = self.now;
            self.step(sink);
            if self.now == before {
                break;
            }
        }
        self.step(sink);
        if self.layout.route.points.is_empty() {
            // The measurement was shorter than the window. The route is needed here: without it, packets in flight
            // would count as lost.
            self.find_route_in_open_journeys(sink);
        }
        let Self { joiner, finder, span, under_way, tables, layout, sampling, reactions, .. } = self;
        joiner.finish(end, &mut |j: &Journey| {
            if span.counts(j, &layout.route) {
                finder.observe(j);
                reactions.take(j);
                sampling.with_sample(j, |j| sink.journey(j, &tables.points));
            } else {
                *under_way += u64::from(span.was_under_way(j, &layout.route));
            }
        });
        reactions.finish(end, &mut |j: &Journey| sink.journey(j, &tables.points));
        self.update_route(sink);
    }

    /// Determines the route before the first journeys are handed over, because it decides whether they are counted.
    fn find_route_before_the_first(&mut self, sink: &mut impl JourneySink) {
        if self.layout.route.points.is_empty() && self.is_route_due() {
            self.find_route_in_open_journeys(sink);
        }
    }

    /// Whether the window of the first journeys has passed.
    fn is_route_due(&self) -> bool {
        self.joiner.open() > 0 && self.joiner.reached().saturating_add(self.options.window) <= monotonic()
    }

    fn find_route_in_open_journeys(&mut self, sink: &mut impl JourneySink) {
        let oldest = self.joiner.open_journeys().filter_map(|j| j.first()).min().unwrap_or(Ns::MAX);
        let window = self.options.window.min(monotonic().saturating_sub(oldest));
        // Journeys in the middle began after all probes were attached, and are complete. A slow stream may have none
        // there; then use all.
        let middle = oldest.saturating_add(window / 3)..oldest.saturating_add(window / 3 * 2);
        let is_in = |j: &Journey| j.first().is_some_and(|t| middle.contains(&t));
        let any = self.joiner.open_journeys().any(|j| is_in(&j));
        let journeys = self.joiner.open_journeys().filter(|j| is_in(j) || !any);
        journeys.for_each(|j| self.finder.observe(&j));
        self.update_route(sink);
    }

    fn update_route(&mut self, sink: &mut impl JourneySink) {
        let points = &self.tables.points;
        let route = self.finder.route(points).with_reactions(&self.options.streams, points);
        let layout = segments::layout(route, points, &self.options.segments);
        if layout == self.layout && points.len() == self.laid_out {
            return;
        }
        self.laid_out = points.len();
        let totals = self.all_totals();
        sink.layout(LayoutChange { layout: &layout, points: &self.tables.points, totals: &totals, now: self.now });
        self.layout = layout;
        self.reactions.set_route(&self.layout.route);
        self.expect_routes();
        if let Some(flight) = &mut self.flight {
            let routes = self.layout.route.by_streams(self.options.streams.len());
            flight.detector.set_layout(&self.layout.segments, &routes);
        }
    }

    /// Sets the points at which the joiner expects each stream's packets.
    fn expect_routes(&mut self) {
        for stream in 0..self.options.packet_streams().len() as StreamId {
            self.joiner.set_route(stream, self.layout.route.of_stream(stream));
        }
    }

    /// From now on, follows one packet in `n` (a power of two), chosen by its key. Drops open journeys, and restarts
    /// the streams' counts from zero. Returns false if other machines are followed, since agents follow every packet.
    pub fn sample(&mut self, n: u32) -> bool {
        let [host] = &mut self.merge.feeds[..] else { return false };
        host.origin.sample(n);
        self.joiner = joiner(&self.options);
        self.joiner.set_points(&self.tables.points);
        self.expect_routes();
        self.early = EarlyCompletion::new(self.options.packet_streams().len());
        self.reactions = AllReactions::new(&self.options.streams);
        self.reactions.set_route(&self.layout.route);
        self.merge.leave_out_before(monotonic());
        true
    }

    /// The points found so far.
    pub fn points(&self) -> &[PointInfo] {
        &self.tables.points
    }

    /// The drop notes found so far.
    pub fn drop_notes(&self) -> &[DropNote] {
        &self.tables.notes
    }

    /// The route and the segments as currently known.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Counts per stream: those of the joiner, and of the reactions.
    pub fn all_totals(&self) -> Vec<Totals> {
        let mut totals: Vec<Totals> =
            (0..self.options.streams.len()).map(|id| self.joiner.totals(id as StreamId)).collect();
        self.reactions.add_totals(&mut totals);
        totals
    }

    /// Time up to which all sightings were processed, host's `CLOCK_MONOTONIC`, ns.
    pub fn now(&self) -> Ns {
        self.now
    }

    /// Time from which journeys are counted, ns.
    pub fn begin(&self) -> Ns {
        self.span.begin
    }

    /// Counters of each machine's probe, starting with the host's.
    pub fn counters(&mut self) -> Vec<Counters> {
        self.merge.feeds.iter_mut().map(|feed| feed.origin.counters()).collect()
    }

    /// The settings of other machines when their probes were attached; requires [`Options::settings`].
    pub fn settings(&self) -> Vec<(String, Reading)> {
        let feeds = self.merge.feeds.iter();
        feeds.filter_map(|feed| Some((feed.origin.name().to_owned(), feed.origin.settings()?))).collect()
    }

    /// This host's current virtual machines, and those of other machines when their probes were attached; and the
    /// reasons why some are unknown.
    pub fn vms(&self) -> (VmsByMachine, Vec<String>) {
        let (mut vms, mut unknown) = (VmsByMachine::default(), Vec::new());
        let found = latpath_vms::find();
        let here = found.map_or_else(|why| (Vec::new(), Some(why.to_string())), |found| (found.vms, None));
        let others = self.merge.feeds.iter().filter_map(|feed| Some((feed.origin.name(), feed.origin.vms()?)));
        for (machine, (found, missing)) in std::iter::once((HOST, here)).chain(others) {
            vms.set(machine, found);
            unknown.extend(missing.map(|why| format!("{machine}: {why}")));
        }
        (vms, unknown)
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Updates a manifest: points, route, machines and their clocks, counters, notes.
    pub fn describe(&mut self, manifest: &mut Manifest) {
        self.merge.feeds.iter_mut().for_each(|feed| feed.update_points(&mut self.tables));
        let counters = self.counters();
        let flights = self.flights();
        let machines = self.merge.feeds.iter().zip(&counters).zip(flights);
        let machines = machines.map(|((feed, counters), flight)| feed.record(*counters, flight));
        manifest.machines = machines.chain(self.sampling.records()).collect();
        let points = self.points();
        manifest.points = points.to_vec();
        manifest.set_layout(&self.layout);
        manifest.drop_notes = self.drop_notes().to_vec();
        manifest.counters = sum(&counters);
        manifest.joined = self.all_totals();
        manifest.reactions = self.reactions.records();
        manifest.tool = self.cost(&counters);
        manifest.named_points = self.options.points.named();
        self.describe_lacks(manifest);
    }

    /// Changes of this host's kernel counters since the start.
    pub fn counted(&self) -> Difference {
        self.counted.since(&self.tables.points, &self.tables.renewed)
    }

    /// The queueing disciplines of each of this host's devices at the start, by network namespace and index.
    pub fn qdiscs(&self) -> HashMap<(u32, u32), Vec<String>> {
        self.counted.qdiscs()
    }

    /// Adds a note for the user.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// The cost of latpath itself. `counters`: those of all machines, starting with the host's.
    fn cost(&self, counters: &[Counters]) -> ToolCost {
        let flight = self.flight.as_ref().and_then(|flight| flight.figures().ok());
        let all = sum(counters);
        ToolCost {
            sightings: all.sightings,
            sightings_dropped: all.dropped,
            ns_per_sighting: all.ns_per_sighting,
            cpu_percent: self.meter.read().percent(&counters[0], flight.as_ref()),
            max_rss_bytes: max_rss_bytes(),
        }
    }
}

/// Maximum resident memory of this process so far, bytes.
fn max_rss_bytes() -> u64 {
    // ru_maxrss is inherited across exec; VmHWM is this program's own.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    latpath_linux::proc::number(&status, "VmHWM").unwrap_or(0) * 1024
}

fn joiner(options: &Options) -> Joiner {
    let rules = options.packet_streams().iter().map(|s| s.key);
    Joiner::new(
        rules,
        latpath_journey::Options {
            window: options.window,
            late: options.threshold,
            separate_senders: options.points.is_all(),
            ..Default::default()
        },
    )
}

/// Sum of all machines' counters; `ns_per_sighting` is that of the first machine.
pub fn sum(all: &[Counters]) -> Counters {
    let mut total = Counters::default();
    all.iter().for_each(|c| total.add(c));
    total.ns_per_sighting = all.first().map_or(0, |c| c.ns_per_sighting);
    total
}
