//! The attached probe, a source of sightings.

use crate::attach::{attach, AttachError, Attached, Options};
use crate::layout::PerCpu;
use crate::nic_times::NicTimes;
use crate::points::Points;
use crate::remarks::{Remark, RemarkKind};
use crate::ring::Reader;
use crate::send_times::SendTimes;
use crate::tx_done::{TxDone, TX_DONE};
use latpath_bpf::{is_xdp_loaded, AttachedProgram, Functions, Missing, Reasons};
use latpath_linux::monotonic;
use latpath_model::{
    Counters, DropNote, Ns, PlannedSend, PointInfo, SenderAt, Sighting, Source, SourceNote, SourceNoteKind,
    SynchChange, SynchWatch,
};
use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::Arc;

/// Maximum number of drop notes, one per place and reason; drops beyond it get none. A kernel has some 2,000 such
/// places.
const MAX_NOTES: usize = 1 << 14;

/// Places and reasons of drops. Names of functions and reasons are read at the first drop.
#[derive(Default)]
pub(crate) struct Notes {
    functions: Arc<Functions>,
    reasons: Option<Reasons>,
    by_place: HashMap<u64, u16>,
    notes: Vec<DropNote>,
}

impl Notes {
    /// Index + 1 of the note for a drop; 0 if the table is full. `place`, as encoded by the programs: drop reason in
    /// the top 16 bits, location in the low 48.
    pub fn note(&mut self, place: u64) -> u16 {
        if let Some(note) = self.by_place.get(&place) {
            return *note;
        }
        if self.notes.len() == MAX_NOTES {
            return 0;
        }
        // The functions are shared with the flight recorder, which may have read them again.
        self.functions = Functions::latest();
        let reasons = self.reasons.get_or_insert_with(Reasons::read);
        // Restores the top bits of the kernel address, of which 48 bits are kept.
        let function = self.functions.name(place | 0xffff << 48);
        self.notes.push(DropNote { reason: reasons.name((place >> 48) as u16), function, at: None });
        let note = self.notes.len() as u16;
        self.by_place.insert(place, note);
        note
    }
}

/// The attached programs of this machine. Dropping it detaches them.
pub struct Probe {
    pub(crate) attached: Attached,
    pub(crate) points: Points,
    pub(crate) notes: Notes,
    pub(crate) options: Options,
    /// The NICs whose timestamps are used; dropped after `attached`, whose programs use them.
    nic_times: Option<NicTimes>,
    reader: Reader,
    synch: SynchWatch,
    send_times: SendTimes,
    tx_done: TxDone,
    detached: bool,
    tidied: Ns,
    /// Time of the last search for loaded XDP programs, and whether one was found; used only if XDP cannot be followed.
    xdp: (Ns, bool),
}

/// Interval between searches for XDP programs, ns.
const LOOK_FOR_XDP: Ns = 10_000_000_000;

/// Interval at which released indexes are returned, ns.
const TIDY: Ns = 100_000_000;

impl Probe {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// If the kernel does not support tracing, the user may not trace, or the streams cannot be followed together.
    pub fn attach(options: Options) -> Result<Self, AttachError> {
        let nic_times = options.nic_times.then(|| NicTimes::begin(options.other_users));
        let attached = attach(&options)?;
        let reader = Reader::new(attached.cpus, attached.ring_size);
        Ok(Self {
            attached,
            points: Points::default(),
            notes: Notes::default(),
            options,
            nic_times,
            reader,
            synch: SynchWatch::default(),
            send_times: SendTimes::new(),
            tx_done: TxDone::default(),
            detached: false,
            tidied: 0,
            xdp: (Ns::MIN, false),
        })
    }

    /// Points that this kernel does not support.
    pub fn missing(&self) -> &[Missing] {
        &self.attached.programs.missing
    }

    /// Notes for the user: features that this kernel lacks, points left out in other users' network namespaces, the
    /// programs' remarks, and notes on taps, readers and NICs.
    pub fn notes(&self) -> Vec<String> {
        self.all_notes().into_iter().map(|note| note.text).collect()
    }

    fn all_notes(&self) -> Vec<SourceNote> {
        let mut notes = crate::hooks::notes(self.missing(), self.xdp.1);
        let percpu = &self.attached.percpu;
        let others: u64 = (0..percpu.len()).map(|cpu| percpu.get(cpu).points_of_others).sum();
        if others > 0 {
            let text = format!(
                "{others} points in network namespaces of other users, as those of rootless containers, were left out: \
                 --other-users follows them too"
            );
            notes.push(SourceNote::new(SourceNoteKind::Note, text));
        }
        notes.extend(self.attached.remarks.notes(&self.options.streams));
        let of_points = self.points.notes_of_taps().into_iter().chain(self.points.notes_of_readers());
        notes.extend(of_points.map(|text| SourceNote::new(SourceNoteKind::Note, text)));
        let of_driver: u64 = (0..percpu.len()).map(|cpu| percpu.get(cpu).stamps_of_driver).sum();
        let of_nics = self.nic_times.iter().flat_map(|times| times.notes(of_driver));
        notes.extend(of_nics.map(|text| SourceNote::new(SourceNoteKind::Note, text)));
        notes
    }

    /// The programs' remarks on the streams, at most half a second old.
    pub fn remarks(&self) -> &[Remark] {
        self.attached.remarks.known()
    }

    /// Samples one packet in `n`, a power of two, by key, so that all points see the same packets.
    pub fn sample(&mut self, n: u32) {
        let mask = u64::from(n.max(1).next_power_of_two() - 1);
        (0..self.attached.cpus)
            .for_each(|cpu| self.attached.percpu.set_field(cpu, offset_of!(PerCpu, sample_mask), mask));
    }

    /// Changes of smpSynch in Sampled Values since the last call.
    pub fn synch_changes(&mut self) -> Vec<SynchChange> {
        self.synch.take_changes()
    }

    /// Takes the send times found in packets since the last call.
    pub fn planned_sends(&mut self) -> Vec<PlannedSend> {
        self.send_times.take()
    }

    /// Counts `runs` more program runs as missed by the kernel; for tests.
    #[doc(hidden)]
    pub fn leave_out(&mut self, runs: u64) {
        self.attached.programs.more_missed = runs;
    }

    /// Detaches the programs. The next `drain` returns all remaining sightings.
    pub fn detach(&mut self) {
        self.attached.programs.attached.iter_mut().for_each(AttachedProgram::detach);
        self.detached = true;
        // Waits for programs that are still running: they end within the settling time.
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Returns the predicate that selects points. Points of NIC timestamps are accepted only at NICs whose timestamps are
/// used.
fn accept<'a>(options: &'a Options, nic_times: &'a Option<NicTimes>) -> impl Fn(&mut PointInfo) -> bool + 'a {
    move |info| {
        if info.point.kind.is_by_nic() {
            let Some(times) = nic_times.as_ref().filter(|times| times.has(info)) else { return false };
            times.describe(info);
        }
        (options.accept.0)(info)
    }
}

impl Source for Probe {
    fn points(&mut self) -> Vec<PointInfo> {
        let Self { points, attached, options, nic_times, .. } = self;
        points.refresh(&options.machine, &attached.points, &attached.percpu, monotonic(), &accept(options, nic_times));
        points.known().to_vec()
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        self.notes.notes.clone()
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        let Self {
            attached,
            points,
            notes,
            options,
            nic_times,
            reader,
            synch,
            send_times,
            tx_done,
            detached,
            tidied,
            ..
        } = self;
        send_times.follow(monotonic());
        let (mut fresh, before) = (false, out.len());
        let watermark = reader.drain(&attached.ring, &attached.percpu, *detached, |r| {
            let (index, t) = (usize::from(r.point), r.t as Ns);
            let mut point = points.id(index, t);
            if point.is_err() && !fresh {
                points.refresh(&options.machine, &attached.points, &attached.percpu, t, &accept(options, nic_times));
                fresh = true;
                point = points.id(index, t);
            }
            // Another CPU may have been stopped for long between assigning the index and writing its entry. The
            // sighting is lost.
            points.unknown += u64::from(point.is_err());
            let (Ok(Some(point)), Some(stream)) = (point, attached.table.user.get(usize::from(r.stream)).copied())
            else {
                return;
            };
            if r.synch > 0 {
                synch.see(point, SynchChange { stream, key: r.key, t, synch: r.synch - 1 });
            }
            if attached.remarks.compares() {
                attached.remarks.see(stream, r.key, t);
            }
            let sighting = Sighting { t, key: r.key, tid: r.tid, stream, point, cpu: r.cpu, note: 0 };
            match &points.known()[usize::from(point)] {
                info if info.point.kind.is_by_nic() => {
                    nic_times.iter_mut().for_each(|times| times.push(sighting, r.aux as Ns, info));
                }
                info if info.point.kind.is_drop() => {
                    out.push(Sighting { note: if r.aux == 0 { 0 } else { notes.note(r.aux) }, ..sighting });
                }
                _ => {
                    send_times.see(stream, r.key, t, r.aux);
                    out.push(sighting);
                }
            }
        });
        let mut reached = watermark;
        if let Some(times) = nic_times {
            let direct = out.len();
            reached = times.round(watermark, *detached, |sighting, bound| {
                points.widen(sighting.point, bound);
                out.push(sighting);
            });
            if out.len() > direct {
                out[before..].sort_by_key(|sighting| sighting.t);
            }
        }
        attached.remarks.update(&attached.table.user, latpath_linux::monotonic(), *detached);
        if *tidied + TIDY < watermark && !*detached {
            points.tidy(&attached.points, &attached.percpu, watermark);
            *tidied = watermark;
        }
        if !*detached {
            let is_needed = tx_done.is_needed(watermark, !out.is_empty(), points.nic_sends);
            attached.programs.attach_only(|program| program != TX_DONE || is_needed);
        }
        reached
    }

    fn counters(&mut self) -> Counters {
        let mut c = Counters::default();
        let (mut cost, mut samples) = (0, 0);
        for cpu in 0..self.attached.cpus {
            let p = self.attached.percpu.get(cpu);
            // The head of the ring counts the sightings.
            let sightings = p.head;
            c.sightings += sightings;
            c.dropped += p.dropped;
            c.malformed += p.malformed;
            c.points_overflow += p.points_overflow;
            c.unreadable += p.unreadable;
            c.left_out += p.left_out;
            c.packets_seen += sightings + p.dropped + p.others + p.left_out;
            cost += p.cost_ns;
            samples += p.cost_samples;
        }
        c.points_overflow += self.points.overflow;
        c.dropped += self.reader.lost + self.points.unknown;
        c.skipped = self.attached.programs.missed();
        c.ns_per_sighting = cost.checked_div(samples).unwrap_or(0);
        c
    }

    fn source_notes(&mut self) -> Vec<SourceNote> {
        let now = monotonic();
        // Once an XDP program has been found, later searches are unnecessary: it may have handled packets.
        if crate::hooks::hides_xdp(self.missing()) && !self.xdp.1 && now.saturating_sub(self.xdp.0) > LOOK_FOR_XDP {
            self.xdp = (now, is_xdp_loaded().unwrap_or(true));
        }
        self.all_notes()
    }

    /// The senders of the streams by source MAC, or by source address for IP. Frames of different senders may have
    /// equal keys.
    fn senders(&mut self) -> Vec<SenderAt> {
        let sender = |remark: &Remark| match remark.what {
            RemarkKind::Sender(sender) => {
                let point = self.points.of_device(remark.kind, remark.ifindex, remark.netns)?;
                Some(SenderAt { stream: remark.stream, sender, point })
            }
            _ => None,
        };
        self.remarks().iter().filter_map(sender).collect()
    }
}
