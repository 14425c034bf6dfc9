//! Handles an agent's messages on the host: checks each one, and maps times to the host's timeline. Neither waits nor
//! does I/O.

use crate::columns::{Decoder, Tables};
use crate::command::Commanded;
use crate::cost::Cost;
use crate::hypervisor::Hypervisor;
use crate::message::*;
use crate::observation::Observed;
use crate::profile::Profiled;
use crate::settings::MachineReading;
use crate::vms::ReportedVms;
use crate::windows::Windows;
use latpath_clock::{
    ChainedPairs, ClockTie, Exchange, HostTsc, HypervisorClock, PtpPair, RealtimeWatch, Timeline, TscTie,
};
use latpath_flight::Figures;
use latpath_linux::proc::Root;
use latpath_model::text::cut;
use latpath_model::{Counters, DropNote, Ns, PointInfo, SenderAt, Sighting, SourceNote};
use latpath_profile::Moment;
use latpath_timesync::{Monitor, PtpTime};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of pending time requests.
pub const MAX_TIME_REQUESTS: usize = 32;
/// Maximum time by which a sighting may be ahead of the host's clock, beyond the clock's error bound, ns; further
/// ahead, it is refused.
const FUTURE: Ns = 1_000_000_000;

/// Maximum number of unfetched sample times.
const MAX_MOMENTS: usize = 1 << 17;

/// Maximum time by which a sighting may precede the watermark, ns; older ones are refused. Not 0, because a guest's CPU
/// may be stopped between reading the clock and publishing the sighting.
const LATE: Ns = 2_000_000_000;

/// The host's state of one agent.
pub struct Inbox {
    machine: String,
    /// Number of requested streams; 0 before the start.
    pub streams: usize,
    pub facts: Option<Facts>,
    pub points: Vec<PointInfo>,
    pub notes: Vec<DropNote>,
    /// Notes that the source reports in addition to sightings.
    pub source_notes: Vec<SourceNote>,
    pub senders: Vec<SenderAt>,
    pub reports_notes: bool,
    /// Whether the machine's settings were requested.
    pub reports_settings: bool,
    /// The machine's settings, once it has reported them.
    pub settings: Option<MachineReading>,
    /// The virtual machines that the machine runs, if they were requested.
    pub vms: Option<ReportedVms>,
    pub counters: Counters,
    /// Cost of the agent on its machine; `None` before the first report.
    pub cost: Option<Cost>,
    /// Number of sightings refused because of an impossible time.
    pub refused: u64,
    pub timeline: Timeline,
    /// Whether the flight recorder was requested.
    pub records: bool,
    /// Figures of the flight recorder, or the reason for its absence; `None` before the first report.
    pub recorder: Option<Result<Figures, String>>,
    pub windows: Windows,
    pub profile: Option<Profiled>,
    /// Sample times that the caller has not fetched yet.
    pub moments: Vec<Moment>,
    /// Monitor of the host's clocks, if the agent was asked for the time of its grandmaster.
    pub clocks: Option<Arc<Monitor>>,
    /// The machine on which this guest runs, if it is not this host.
    pub hypervisor: Option<Hypervisor>,
    /// Where to publish the machine's clock for its guests, if its time of day was requested.
    pub published: Option<Hypervisor>,
    /// Pairs of the guest's clock with its hypervisor's time of day.
    pub chained: ChainedPairs,
    /// The requested command, if any.
    pub command: Option<Commanded>,
    /// The requested observation, if any.
    pub observation: Option<Observed>,
    /// Sightings that were not taken yet, on the host's timeline.
    pub fresh: Vec<Sighting>,
    /// Watermark on the host's timeline: no later sighting is older.
    pub watermark: Ns,
    /// Arrival time of the latest reply to a time request, in the host's clock.
    pub last_exchange: Ns,
    /// Whether the agent's probe is attached.
    pub started: bool,
    /// Whether the agent has said goodbye.
    pub ended: bool,
    decoder: Decoder,
    realtime: RealtimeWatch,
    tsc: HostTsc,
    /// Pending time requests: id and send time.
    time_requests: VecDeque<(u64, Ns)>,
    requested: u64,
}

impl Inbox {
    pub fn new(machine: &str) -> Self {
        Self {
            machine: machine.into(),
            streams: 0,
            facts: None,
            points: Vec::new(),
            notes: Vec::new(),
            source_notes: Vec::new(),
            senders: Vec::new(),
            reports_notes: false,
            reports_settings: false,
            settings: None,
            vms: None,
            counters: Counters::default(),
            cost: None,
            refused: 0,
            timeline: Timeline::new(),
            records: false,
            recorder: None,
            windows: Windows::default(),
            profile: None,
            moments: Vec::new(),
            clocks: None,
            hypervisor: None,
            published: None,
            chained: ChainedPairs::default(),
            command: None,
            observation: None,
            fresh: Vec::new(),
            watermark: Ns::MIN,
            last_exchange: 0,
            started: false,
            ended: false,
            decoder: Decoder::new(),
            realtime: RealtimeWatch::new(&ClockTie::read()),
            tsc: HostTsc::new(Root::of(Path::new("/"))),
            time_requests: VecDeque::new(),
            requested: 0,
        }
    }

    /// Returns the next time request, sent at `now`; `None` while too many are pending.
    pub fn request_time(&mut self, now: Ns) -> Option<TimeRequest> {
        if self.time_requests.len() >= MAX_TIME_REQUESTS {
            return None;
        }
        self.requested += 1;
        self.time_requests.push_back((self.requested, now));
        Some(TimeRequest { id: self.requested })
    }

    /// Returns the number of time requests sent so far, and how many of them are pending.
    pub fn requested(&self) -> (u64, usize) {
        (self.requested, self.time_requests.len())
    }

    /// Handles a message received at `now` (host's clock).
    ///
    /// # Errors
    /// The message is invalid; the error describes the problem.
    pub fn take(&mut self, message: Message, now: Ns) -> Result<(), String> {
        if self.ended {
            return Err("the agent sent a message after its goodbye".into());
        }
        match message {
            Message::Error(e) => return Err(format!("the agent gave up: {}", printable(&e.text))),
            Message::AgentHello(hello) if self.facts.is_none() => self.greeted(&hello)?,
            _ if self.facts.is_none() => return Err("the agent did not greet".into()),
            Message::TimeReply(reply) => self.answered(&reply, now)?,
            Message::Pair(pair) => self.paired(&pair),
            Message::GrandmasterTime(time) if self.clocks.is_some() => {
                let here = self.clocks.as_ref().and_then(|clocks| clocks.ptp_time());
                here.into_iter().for_each(|here| self.by_ptp(&time, here));
            }
            Message::TimeOfDay(time) if self.published.is_some() => self.time_of_day(time)?,
            Message::Bye(_) => self.ended = true,
            Message::Started(_) if (self.streams > 0 || self.profile.is_some()) && !self.started => self.started = true,
            Message::CommandChunk(piece) if self.command.is_some() => {
                self.command.as_mut().map_or(Ok(()), |command| command.take(piece))?;
            }
            Message::Observing(_) | Message::ObservationChunk(_) => {
                let observation = self.observation.as_mut();
                observation.ok_or("the agent sent an observation that was not asked for")?.take(message)?;
            }
            Message::Settings(settings) if self.reports_settings && self.settings.is_none() => {
                self.settings = Some(settings.bounded());
            }
            Message::Vms(part) if self.vms.is_some() => self.vms.as_mut().map_or(Ok(()), |vms| vms.take(part))?,
            _ if !self.started => return Err("the agent sent a message out of place".into()),
            Message::Points(points) => {
                if self.points.len() + points.points.len() > MAX_POINTS {
                    return Err(format!("the agent announced more than {MAX_POINTS} points"));
                }
                for point in points.points {
                    self.points.push(point.read(&self.machine).map_err(|e| format!("the agent announced {e}"))?);
                }
            }
            Message::DropNotes(notes) => {
                if self.notes.len() + notes.notes.len() > MAX_NOTES {
                    return Err(format!("the agent announced more than {MAX_NOTES} drop notes"));
                }
                self.notes.extend(notes.notes.into_iter().map(WireNote::read));
            }
            Message::SourceNotes(notes) if self.reports_notes => {
                let read = notes.read(&self.machine);
                let bounds;
                (self.source_notes, self.senders, bounds) = read.map_err(|e| format!("the agent reported {e}"))?;
                self.points.iter_mut().zip(bounds).for_each(|(info, bound)| info.error_bound_ns = bound);
                let (streams, points) = (self.streams, self.points.len());
                self.senders.retain(|at| usize::from(at.stream) < streams && usize::from(at.point) < points);
            }
            Message::Batch(batch) => self.batch(&batch, now)?,
            Message::Totals(totals) => {
                let Totals { process_ns, lasted_ns, .. } = totals;
                self.cost = (lasted_ns > 0).then_some(Cost { process_ns, lasted_ns }).or(self.cost);
                self.counters = totals.into();
            }
            Message::WindowReply(reply) => self.windows.take(reply, &mut self.timeline, now)?,
            Message::Recording(recording) if self.records => self.recording(recording)?,
            Message::ProfileChunk(piece) if self.profile.is_some() => {
                self.profile.as_mut().map_or(Ok(()), |profile| profile.take(piece))?;
                self.map_moments();
            }
            _ => return Err("the agent sent a message out of place".into()),
        }
        Ok(())
    }

    /// Maps sample times of a guest's CPUs to the host's timeline.
    fn map_moments(&mut self) {
        let moments = self.profile.as_mut().map_or(Vec::new(), |profile| std::mem::take(&mut profile.moments));
        let Some((from, to)) = moments
            .iter()
            .map(|(t, _)| *t)
            .fold(None, |range: Option<(Ns, Ns)>, t| Some(range.map_or((t, t), |(from, to)| (from.min(t), to.max(t)))))
        else {
            return;
        };
        self.timeline.advance(to);
        let Some((offset, error_bound_ns)) = self.timeline.offset_over(from, to) else { return };
        let room = MAX_MOMENTS.saturating_sub(self.moments.len());
        let moment = |(t, cpu): (Ns, u32)| Moment { t: t.saturating_sub(offset), error_bound_ns, cpu };
        self.moments.extend(moments.into_iter().take(room).map(moment));
    }

    fn greeted(&mut self, hello: &Facts) -> Result<(), String> {
        if !(OLDEST_VERSION..=VERSION).contains(&hello.version) {
            return Err(format!(
                "the agent (latpath {}) chose protocol {}, this latpath ({}) speaks {OLDEST_VERSION} to {VERSION}: install \
                 the same latpath on both",
                cut(&printable(&hello.program), 64),
                hello.version,
                env!("CARGO_PKG_VERSION")
            ));
        }
        self.facts = Some(hello.printable());
        Ok(())
    }

    fn recording(&mut self, recording: Recording) -> Result<(), String> {
        if recording.missing.len() > MAX_LINES {
            return Err(format!("the agent reported more than {MAX_LINES} missing features of its recorder"));
        }
        if !recording.error.is_empty() {
            self.recorder = Some(Err(printable(&recording.error)));
            return Ok(());
        }
        let known = self.recorder.take().and_then(Result::ok).unwrap_or_default();
        let missing = match known.missing.is_empty() {
            true => {
                recording.missing.iter().map(|line| cut(&printable(line).replace('\n', " "), MAX_NAME).into()).collect()
            }
            false => known.missing,
        };
        self.recorder = Some(Ok(Figures {
            events: recording.events,
            missed: recording.missed,
            bytes: recording.bytes,
            ns_per_event: (recording.ns_per_event > 0).then_some(recording.ns_per_event),
            budget_ppm: recording.budget_ppm,
            cost_ppm: recording.cost_ppm,
            reduced_ns: recording.reduced_ns,
            paused_ns: recording.paused_ns,
            windows: recording.windows,
            missing,
        }));
        Ok(())
    }

    fn answered(&mut self, reply: &TimeReply, now: Ns) -> Result<(), String> {
        let place = self.time_requests.iter().position(|(id, _)| *id == reply.id);
        let (_, sent) = place
            .and_then(|place| self.time_requests.remove(place))
            .ok_or("the agent answered a time request that was not sent")?;
        self.timeline.add(&Exchange { t1: sent, t2: reply.received, t3: reply.sent, t4: now });
        self.last_exchange = now;
        let tie = TscTie { tsc: reply.tsc, monotonic_ns: reply.tsc_at, uncertainty_ns: reply.tsc_uncertainty };
        // The host's KVM can convert the TSC of its own guests only.
        if let Some(here) = TscTie::read().filter(|_| tie.tsc != 0 && self.hypervisor.is_none()) {
            self.timeline.add_tsc(&tie, here, &mut self.tsc);
        }
        Ok(())
    }

    fn paired(&mut self, pair: &Pair) {
        let pair = PtpPair {
            guest_ns: pair.guest,
            host_realtime_ns: pair.host_realtime,
            uncertainty_ns: pair.uncertainty.max(0),
        };
        match &self.hypervisor {
            Some(hypervisor) => {
                self.chained.push(pair);
                let clock = hypervisor.clock();
                clock.iter().for_each(|clock| self.chained.apply(&mut self.timeline, clock));
            }
            None => {
                self.realtime.observe(&ClockTie::read());
                self.timeline.add_pair(&pair, &self.realtime);
            }
        }
    }

    /// Publishes the machine's clocks for its guests.
    fn time_of_day(&mut self, time: TimeOfDay) -> Result<(), String> {
        let clock = HypervisorClock::new(self.timeline.clone(), time.into());
        let clock = clock.ok_or("the agent reported an impossible time of day")?;
        self.published.iter().for_each(|published| published.publish(clock.clone()));
        Ok(())
    }

    /// Ties the agent's clock to the host's by PTP, if both system clocks follow the same grandmaster; `here` is this
    /// machine's reading.
    fn by_ptp(&mut self, time: &GrandmasterTime, here: PtpTime) {
        let moment = PtpTime::try_from(time).and_then(|theirs| here.moment_of(&theirs));
        match moment {
            Ok((at_host, bound)) => self.timeline.add_ptp(time.monotonic, at_host, bound),
            Err(why) => self.timeline.refuse_ptp(format!("PTP: {why}")),
        }
    }

    fn batch(&mut self, batch: &Batch, now: Ns) -> Result<(), String> {
        let tables = Tables { streams: self.streams, points: self.points.len(), notes: self.notes.len() };
        let from = self.fresh.len();
        self.decoder.unpack(batch, tables, &mut self.fresh).map_err(|e| format!("the agent sent {e}"))?;
        let timeline = &self.timeline;
        let future = |t: Ns| timeline.earliest_host(t).is_none_or(|host| host > now.saturating_add(FUTURE));
        let newest = self.fresh[from..].iter().map(|s| s.t).max();
        if newest.is_some_and(future) {
            let kept = self.fresh.split_off(from).into_iter().filter(|s| !future(s.t)).collect::<Vec<_>>();
            self.refused += (batch.context.len() - kept.len()) as u64;
            self.fresh.extend(kept);
        }
        let promise = Some(batch.watermark).filter(|t| !future(*t));
        let newest = self.fresh[from..].iter().map(|s| s.t).max().max(promise);
        let Some(newest) = newest else { return Ok(()) };
        if !self.timeline.advance(newest) {
            return Err("the agent sent sightings before its time was known".into());
        }
        let least = self.watermark.saturating_sub(LATE);
        let mut lies = 0;
        for s in &mut self.fresh[from..] {
            s.t = self.timeline.to_host(s.t).unwrap_or(s.t);
            lies += u64::from(s.t < least);
        }
        if lies > 0 {
            self.refused += lies;
            let kept: Vec<_> = self.fresh.drain(from..).filter(|s| s.t >= least).collect();
            self.fresh.extend(kept);
        }
        if let Some(promised) = promise.and_then(|t| self.timeline.to_host(t)) {
            self.watermark = self.watermark.max(promised.min(now));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::Encoder;
    use crate::source_notes::{WireSender, WireSourceNote};
    use crate::vms::VmList;
    use proptest::prelude::*;

    const NOW: Ns = 100_000_000_000;

    /// A started guest with one point and a clock one second ahead.
    fn started() -> Inbox {
        let mut inbox = Inbox::new("guest0");
        inbox.take(Message::AgentHello(Facts { version: VERSION, ..Facts::default() }), 0).unwrap();
        let request = inbox.request_time(NOW - 100_000).unwrap();
        let t = NOW - 50_000 + 1_000_000_000;
        inbox
            .take(Message::TimeReply(TimeReply { id: request.id, received: t, sent: t, ..TimeReply::default() }), NOW)
            .unwrap();
        (inbox.streams, inbox.records, inbox.reports_notes) = (1, true, true);
        inbox.vms = Some(ReportedVms::default());
        inbox.take(Message::Started(Empty {}), NOW).unwrap();
        let point = WirePoint { device: "eth0".into(), clock: "c".into(), ..WirePoint::default() };
        inbox.take(Message::Points(Points { points: vec![point] }), NOW).unwrap();
        inbox
    }

    fn batch(times: &[Ns], watermark: Ns) -> Message {
        let sightings: Vec<_> = times.iter().map(|&t| Sighting { t, ..Sighting::default() }).collect();
        Message::Batch(Encoder::new().pack(&sightings, watermark).0)
    }

    #[test]
    fn a_machine_with_the_same_grandmaster_is_tied_by_ptp_and_one_with_another_is_not() {
        let mut inbox = started();
        let identity = latpath_timesync::ClockIdentity([7; 8]);
        let here = PtpTime { grandmaster: identity, monotonic_ns: NOW, utc_ns: 5_000_000_000_000, bound_ns: 300 };
        // The guest's clock is one second ahead, and PTP is wrong by 90 ns.
        let time = |i: Ns, grandmaster: [u8; 8]| GrandmasterTime {
            grandmaster: grandmaster.to_vec(),
            monotonic: NOW + 1_000_000_000 + i,
            utc: 5_000_000_000_000 + i + 90,
            bound: 200,
        };
        (1..5).for_each(|i| inbox.by_ptp(&time(i * 1_000, [7; 8]), here));
        let state = inbox.timeline.state(NOW + 5_000);
        assert_eq!(state.method.name(), "PTP");
        assert!((state.offset_ns - 1_000_000_000).abs() <= state.error_bound_ns, "{state:?}");
        assert!((500..1_000).contains(&state.error_bound_ns), "the sum of both bounds: {state:?}");
        inbox.by_ptp(&time(6_000, [8; 8]), here);
        let state = inbox.timeline.state(NOW + 6_000);
        assert_eq!(state.method.name(), "timed exchanges");
        assert!(state.pairs_refused.is_some_and(|why| why.contains("080808.0808.080808")));
        let hostile = GrandmasterTime { grandmaster: vec![7; 8], monotonic: Ns::MAX, utc: Ns::MIN, bound: Ns::MIN };
        inbox.by_ptp(&hostile, here);
    }

    #[test]
    fn sightings_come_out_on_the_hosts_timeline() {
        let mut inbox = started();
        inbox.take(batch(&[NOW + 999_000_000, NOW + 999_500_000], NOW + 999_600_000), NOW).unwrap();
        let times: Vec<_> = inbox.fresh.iter().map(|s| s.t).collect();
        assert!((times[0] - (NOW - 1_000_000)).abs() < 60_000, "{times:?}");
        assert!((times[1] - times[0] - 500_000).abs() < 1000);
        assert!((inbox.watermark - (NOW - 400_000)).abs() < 60_000);
        assert_eq!(inbox.points[0].point.to_string(), "guest0/tx@eth0");
    }

    #[test]
    fn sightings_far_in_the_future_or_past_are_omitted_and_counted() {
        let mut inbox = started();
        inbox.take(batch(&[NOW + 999_000_000, NOW + 900_000_000_000, Ns::MAX / 2], Ns::MAX), NOW).unwrap();
        assert_eq!((inbox.fresh.len(), inbox.refused, inbox.watermark), (1, 2, Ns::MIN));
        inbox.take(batch(&[], NOW + 1_000_000_000), NOW).unwrap();
        let (late, too_late) = (NOW + 900_000_000, NOW - 1_500_000_000);
        inbox.take(batch(&[too_late, late, NOW + 1_001_000_000], NOW + 1_001_000_000), NOW + 1_000_000).unwrap();
        assert_eq!((inbox.fresh.len(), inbox.refused), (3, 3));
    }

    #[test]
    fn invalid_parts_are_refused_with_the_problem() {
        let lie = |message: Message| started().take(message, NOW).unwrap_err();
        let point = WirePoint { device: "d".into(), clock: "c".into(), ..WirePoint::default() };
        assert!(lie(Message::Points(Points { points: vec![point; 64] })).contains("more than 64 points"));
        assert!(lie(Message::DropNotes(DropNotes { notes: vec![WireNote::default(); 2000] })).contains("drop notes"));
        assert!(lie(Message::TimeReply(TimeReply { id: 77, ..TimeReply::default() })).contains("that was not sent"));
        assert!(lie(Message::Started(Empty {})).contains("out of place"));
        assert!(lie(Message::WindowReply(WindowReply::default())).contains("not requested"));
        let endless = Recording { missing: vec!["x".into(); 65], ..Recording::default() };
        assert!(lie(Message::Recording(endless)).contains("more than 64 missing features"));
        let notes = SourceNotes { notes: vec![WireSourceNote::default(); 65], ..SourceNotes::default() };
        assert!(lie(Message::SourceNotes(notes)).contains("65 notes"));
        let mut unasked = started();
        (unasked.records, unasked.reports_notes, unasked.vms) = (false, false, None);
        let notes = Message::SourceNotes(SourceNotes::default());
        assert!(unasked.take(notes, NOW).unwrap_err().contains("out of place"));
        assert!(unasked.take(Message::Recording(Recording::default()), NOW).unwrap_err().contains("out of place"));
        assert!(unasked.take(Message::Vms(VmList::default()), NOW).unwrap_err().contains("out of place"));
        assert!(lie(Message::HostHello(HostHello::default())).contains("out of place"));
        assert!(lie(Message::Error(ErrorText { text: "no BTF\x1b[0m".into() })).contains("gave up: no BTF?[0m"));
        let other_point = Sighting { point: 1, ..Sighting::default() };
        assert!(lie(Message::Batch(Encoder::new().pack(&[other_point], 0).0)).contains("point 1, there are 1"));
        let mut silent = Inbox::new("g");
        assert!(silent.take(batch(&[], 0), 0).unwrap_err().contains("did not greet"));
        let wrong = Facts { version: VERSION + 1, ..Facts::default() };
        assert!(silent.take(Message::AgentHello(wrong), 0).unwrap_err().contains("install the same latpath"));
        let mut over = started();
        over.take(Message::Bye(Empty {}), 0).unwrap();
        assert!(over.ended);
        assert!(over.take(batch(&[], 0), 0).unwrap_err().contains("after its goodbye"));
    }

    #[test]
    fn the_newest_notes_count_and_senders_at_unknown_points_are_omitted() {
        let mut inbox = started();
        let at = |stream, point| SenderAt { stream, point, sender: latpath_model::Sender::Mac([2; 6]) };
        let note = |text: &str| SourceNote::new(latpath_model::SourceNoteKind::Changed, text);
        for text in ["7 of its packets", "9 of its packets"] {
            let notes = SourceNotes::of(&[note(text)], &[at(0, 0), at(1, 0), at(0, 1)], &[]);
            inbox.take(Message::SourceNotes(notes), NOW).unwrap();
        }
        assert_eq!((inbox.source_notes, inbox.senders), (vec![note("guest0: 9 of its packets")], vec![at(0, 0)]));
    }

    /// Machine b, whose clock is two seconds ahead of this host's, and its guest `relay`, whose clock is one second
    /// ahead.
    fn b_and_relay() -> (Inbox, Inbox) {
        let hypervisor = Hypervisor::new("b");
        let (mut b, mut relay) = (started(), started());
        (b.timeline, relay.timeline) = (Timeline::new(), Timeline::new());
        (b.published, relay.hypervisor) = (Some(hypervisor.clone()), Some(hypervisor));
        for i in 0..40 {
            let t1 = NOW + i * 50_000_000;
            let exchange = |ahead: Ns, delay: Ns| Exchange {
                t1,
                t2: t1 + delay + ahead,
                t3: t1 + delay + ahead,
                t4: t1 + 2 * delay,
            };
            b.timeline.add(&exchange(2_000_000_000, 20_000));
            relay.timeline.add(&exchange(1_000_000_000, 3_000_000));
        }
        (b, relay)
    }

    /// b's time of day minus its monotonic time.
    const UTC: Ns = 1_700_000_000_000_000_000;

    fn report(at: Ns) -> Message {
        let (since, until) = (NOW - 1_000_000_000, at + 2_000_000_000);
        Message::TimeOfDay(TimeOfDay { low: UTC - 40, high: UTC + 40, since, until })
    }

    /// A reading of the hypervisor's time of day by `relay`. `utc` is that time of day minus the hypervisor's monotonic
    /// time.
    fn pair_of_relay(at: Ns, utc: Ns) -> Message {
        let (guest, host_realtime) = (at + 1_000_000_000, at + 2_000_000_000 + utc);
        Message::Pair(Pair { guest, host_realtime, uncertainty: 70 })
    }

    #[test]
    fn a_guest_of_another_machine_is_tied_through_it_within_the_sum_of_the_bounds() {
        let (mut b, mut relay) = b_and_relay();
        for i in 0..8 {
            let at = NOW + i * 250_000_000;
            relay.take(pair_of_relay(at, UTC), at).unwrap();
            b.take(report(at + 100_000_000), at).unwrap();
        }
        let state = relay.timeline.state(NOW + 2_000_000_000);
        assert_eq!((state.method.name(), state.causality_violations), ("ptp_kvm", 0));
        assert!((state.offset_ns - 1_000_000_000).abs() <= state.error_bound_ns, "{state:?}");
        assert!(
            (20_000..100_000).contains(&state.error_bound_ns),
            "that of b's exchanges, and not the guest's: {state:?}"
        );
        assert!(b.take(Message::TimeOfDay(TimeOfDay { low: 1, ..TimeOfDay::default() }), NOW).is_err());
        b.published = None;
        assert!(b.take(report(NOW), NOW).unwrap_err().contains("out of place"));
    }

    #[test]
    fn a_guest_of_another_machine_is_not_tied_to_this_hosts_time_of_day() {
        let (_, mut relay) = b_and_relay();
        // The user has not declared that this is a guest of b, whose time of day differs from this host's.
        relay.hypervisor = None;
        let this_hosts = relay.realtime.range().low - 2_000_000_000;
        for i in 0..8 {
            relay.take(pair_of_relay(NOW + i * 250_000_000, this_hosts + 5_000_000), NOW).unwrap();
        }
        let state = relay.timeline.state(NOW + 2_000_000_000);
        assert_eq!(state.method.name(), "timed exchanges");
        assert!(state.pairs_refused.is_some_and(|why| why.starts_with("ptp_kvm contradicts the timed exchanges by ")));
        assert!((state.offset_ns - 1_000_000_000).abs() <= state.error_bound_ns);
    }

    #[test]
    fn pending_time_requests_are_bounded() {
        let mut inbox = started();
        let taken = (0..100).filter(|i| inbox.request_time(NOW + i).is_some()).count();
        assert_eq!(taken, MAX_TIME_REQUESTS);
    }

    fn any_message() -> impl Strategy<Value = Message> {
        let small = || 0..70u32;
        prop_oneof![
            (small(), small(), prop::collection::vec((any::<i64>(), 0..3u32, any::<i32>()), 0..30), any::<i64>())
                .prop_map(|(point, note, rows, watermark)| Message::Batch(Batch {
                    watermark,
                    first: rows.first().map_or(0, |r| r.0),
                    contexts: vec![Context { point: point / 32, note: note / 32, ..Context::default() }],
                    context: rows.iter().map(|r| r.1 / 2).collect(),
                    later: rows.iter().map(|r| r.0 >> (r.1 * 20)).collect(),
                    key: rows.iter().map(|r| r.2).collect(),
                })),
            (0..4u64, any::<[i64; 4]>(), any::<u64>()).prop_map(
                |(id, [received, sent, tsc_at, tsc_uncertainty], tsc)| Message::TimeReply(TimeReply {
                    id,
                    received,
                    sent,
                    tsc,
                    tsc_at,
                    tsc_uncertainty
                })
            ),
            (any::<bool>(), any::<bool>(), ".{0,9}").prop_map(|(is_error, ended, error)| Message::CommandChunk(
                CommandChunk { bytes: vec![0x1b; 3], is_error, ended, code: 1, error }
            )),
            any::<[i64; 3]>().prop_map(|[guest, host_realtime, uncertainty]| Message::Pair(Pair {
                guest,
                host_realtime,
                uncertainty
            })),
            (small(), ".{0,20}", small()).prop_map(|(kind, device, link)| {
                let (kind, link) = (kind / 12, link / 12);
                let point = WirePoint { kind, device, link, clock: "c".into(), ..WirePoint::default() };
                Message::Points(Points { points: vec![point] })
            }),
            (0..4u64, prop::collection::vec(any::<u8>(), 0..20), any::<bool>(), 0..9u8).prop_map(
                |(id, chunk, last, error)| {
                    let error = if error == 0 { "no" } else { "" }.into();
                    Message::WindowReply(WindowReply { id, error, chunk, last })
                }
            ),
            (".{0,20}", prop::collection::vec(".{0,20}", 0..4), any::<u64>()).prop_map(|(error, missing, events)| {
                Message::Recording(Recording { error, missing, events, ..Recording::default() })
            }),
            any::<(u64, u64, u64)>().prop_map(|(dropped, process_ns, lasted_ns)| {
                Message::Totals(Totals { dropped, process_ns, lasted_ns, ..Totals::default() })
            }),
            (prop::collection::vec((any::<u32>(), ".{0,20}"), 0..4), any::<(u32, u32)>(), 0..20usize).prop_map(
                |(notes, (stream, point), len)| {
                    let notes = notes.into_iter().map(|(kind, text)| WireSourceNote { kind, text }).collect();
                    let address = vec![2; len];
                    let senders = vec![WireSender { stream, point, address }];
                    Message::SourceNotes(SourceNotes { notes, senders, bounds: vec![stream.into(); len] })
                }
            ),
            (prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..4), any::<bool>())
                .prop_map(|(vms, last)| Message::Vms(VmList { vms, last, ..VmList::default() })),
            any::<[i64; 4]>().prop_map(|[low, high, since, until]| {
                let t = |t: i64| t >> 3;
                Message::TimeOfDay(TimeOfDay { low: t(low), high: t(high), since: t(since), until: t(until) })
            }),
            Just(Message::DropNotes(DropNotes { notes: vec![WireNote { reason: "r".into(), function: "f".into() }] })),
        ]
    }

    #[test]
    fn an_agents_cost_is_known_if_it_measures_itself() {
        let mut inbox = started();
        let totals = Totals { sightings: 9, process_ns: 5, ..Totals::default() };
        inbox.take(Message::Totals(totals), NOW).unwrap();
        assert_eq!((inbox.counters.sightings, inbox.cost), (9, None), "one of before it did");
        inbox.take(Message::Totals(Totals { lasted_ns: 100, ..totals }), NOW).unwrap();
        assert_eq!(inbox.cost, Some(Cost { process_ns: 5, lasted_ns: 100 }));
    }

    proptest! {
        #[test]
        fn no_messages_make_it_panic_or_break_its_invariants(
            messages in prop::collection::vec(any_message(), 0..60), is_chained in any::<bool>(),
        ) {
            let mut inbox = started();
            let itself = Hypervisor::new("guest0");
            (inbox.published, inbox.hypervisor) = (Some(itself.clone()), is_chained.then_some(itself));
            let mut now = NOW;
            for message in messages {
                now += 1_000_000;
                inbox.request_time(now - 500_000);
                let Inbox { windows, timeline, .. } = &mut inbox;
                windows.request((now / 1_000_000) as u64 % 4, (now - 5_000_000, now), timeline, (now, 10_000_000));
                windows.expire(now);
                let before = inbox.watermark;
                inbox.fresh.clear();
                if inbox.take(message, now).is_err() {
                    break;
                }
                prop_assert!(inbox.watermark >= before && inbox.watermark <= now);
                prop_assert!(inbox.fresh.iter().all(|s| s.t >= before.saturating_sub(LATE) && usize::from(s.point) < inbox.points.len()));
                inbox.timeline.state(now);
            }
        }
    }
}
