//! The attached probe: a source of sightings.

use crate::attach::{attach, AttachError, Attached, Options};
use crate::layout::PerCpu;
use crate::points::Points;
use crate::remarks::{Remark, Remarked};
use crate::ring::Reader;
use crate::tx_done::{TxDone, TX_DONE};
use latpath_bpf::{is_xdp_loaded, Functions, Missing, Reasons, Standing};
use latpath_linux::monotonic;
use latpath_model::{
    Counters, DropNote, Ns, PointInfo, SenderAt, Sighting, Source, SourceNote, SourceNoteKind, SynchChange, SynchWatch,
};
use std::collections::HashMap;
use std::mem::offset_of;

/// Places and reasons of drops that are told apart; other drops have no reason. A kernel has some 2,000.
const MOST_NOTES: usize = 1 << 14;

/// Names of functions and reasons, read when the first drop is seen.
#[derive(Default)]
pub(crate) struct Notes {
    names: Option<(Functions, Reasons)>,
    by_place: HashMap<u64, u16>,
    notes: Vec<DropNote>,
}

impl Notes {
    /// Index plus one of the note for a place as the programs pack it: reason above 48 bits of location.
    pub fn note(&mut self, place: u64) -> u16 {
        if let Some(note) = self.by_place.get(&place) {
            return *note;
        }
        if self.notes.len() == MOST_NOTES {
            return 0;
        }
        let (functions, reasons) = self.names.get_or_insert_with(|| (Functions::read(), Reasons::read()));
        // Kernel addresses have their top bits set; 48 were kept.
        let function = functions.name(place | 0xffff << 48);
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
    reader: Reader,
    synch: SynchWatch,
    tx_done: TxDone,
    detached: bool,
    tidied: Ns,
    /// When XDP programs were last looked for, and whether one was loaded; only where XDP cannot be followed.
    xdp: (Ns, bool),
}

/// How often XDP programs are looked for.
const LOOK_FOR_XDP: Ns = 10_000_000_000;

/// How often indexes of points are given back.
const TIDY: Ns = 100_000_000;

impl Probe {
    /// Loads the programs and attaches them.
    pub fn attach(options: Options) -> Result<Self, AttachError> {
        let attached = attach(&options)?;
        let reader = Reader::new(attached.cpus, attached.ring_size);
        Ok(Self {
            attached,
            points: Points::default(),
            notes: Notes::default(),
            options,
            reader,
            synch: SynchWatch::default(),
            tx_done: TxDone::default(),
            detached: false,
            tidied: 0,
            xdp: (Ns::MIN, false),
        })
    }

    /// What this kernel does not offer of the points.
    pub fn missing(&self) -> &[Missing] {
        &self.attached.programs.missing
    }

    /// What the user must know: what this kernel lacks, points that do not count for want of leave, and what the programs remarked.
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
        notes
    }

    /// What the programs remarked of the streams, as of half a second ago at most.
    pub fn remarks(&self) -> &[Remark] {
        self.attached.remarks.known()
    }

    /// Follows one packet in `n` from now on, a power of two, chosen by its key: the same at all points.
    pub fn sample(&mut self, n: u32) {
        let mask = u64::from(n.max(1).next_power_of_two() - 1);
        (0..self.attached.cpus)
            .for_each(|cpu| self.attached.percpu.set_field(cpu, offset_of!(PerCpu, sample_mask), mask));
    }

    /// What Sampled Values said of the clock that they were sampled by, where that changed since the last call.
    pub fn synch_changes(&mut self) -> Vec<SynchChange> {
        self.synch.take_changes()
    }

    /// Has so many runs count as left out by the kernel.
    #[doc(hidden)]
    pub fn leave_out(&mut self, runs: u64) {
        self.attached.programs.more_missed = runs;
    }

    /// Takes the programs off. What they saw stays to be read; the next `drain` gives all of it.
    pub fn detach(&mut self) {
        self.attached.programs.standing.iter_mut().for_each(Standing::detach);
        self.detached = true;
        // A program that is running right now ends within the settling time.
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

impl Source for Probe {
    fn points(&mut self) -> Vec<PointInfo> {
        let Self { points, attached, options, .. } = self;
        points.refresh(&options.machine, &attached.points, &attached.percpu, monotonic(), &*options.accept.0).to_vec()
    }

    fn drop_notes(&mut self) -> Vec<DropNote> {
        self.notes.notes.clone()
    }

    fn drain(&mut self, out: &mut Vec<Sighting>) -> Ns {
        let Self { attached, points, notes, options, reader, synch, tx_done, detached, tidied, .. } = self;
        let mut fresh = false;
        let watermark = reader.drain(&attached.ring, &attached.percpu, *detached, |r| {
            let (index, t) = (usize::from(r.point), r.t as Ns);
            let mut point = points.id(index, t);
            if point.is_err() && !fresh {
                points.refresh(&options.machine, &attached.points, &attached.percpu, t, &*options.accept.0);
                fresh = true;
                point = points.id(index, t);
            }
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
            let note = if r.aux == 0 { 0 } else { notes.note(r.aux) };
            out.push(Sighting { t, key: r.key, tid: r.tid, stream, point, cpu: r.cpu, note });
        });
        attached.remarks.update(&attached.table.user, latpath_linux::monotonic(), *detached);
        if *tidied + TIDY < watermark && !*detached {
            points.tidy(&attached.points, &attached.percpu, watermark);
            *tidied = watermark;
        }
        if !*detached {
            let is_needed = tx_done.is_needed(watermark, !out.is_empty(), points.nic_sends);
            attached.programs.attach_only(|program| program != TX_DONE || is_needed);
        }
        watermark
    }

    fn counters(&mut self) -> Counters {
        let mut c = Counters::default();
        let (mut cost, mut samples) = (0, 0);
        for cpu in 0..self.attached.cpus {
            let p = self.attached.percpu.get(cpu);
            // The ring's head counts them.
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
        c.dropped += self.reader.lost;
        c.skipped = self.attached.programs.missed();
        c.ns_per_sighting = cost.checked_div(samples).unwrap_or(0);
        c
    }

    fn source_notes(&mut self) -> Vec<SourceNote> {
        let now = monotonic();
        // One that was loaded may have taken packets since.
        if crate::hooks::hides_xdp(self.missing()) && !self.xdp.1 && now.saturating_sub(self.xdp.0) > LOOK_FOR_XDP {
            self.xdp = (now, is_xdp_loaded().unwrap_or(true));
        }
        self.all_notes()
    }

    /// Frames of different senders, told by their source MAC, or source address for IP, may have the same keys.
    fn senders(&mut self) -> Vec<SenderAt> {
        let sender = |remark: &Remark| match remark.what {
            Remarked::Sender(sender) => {
                let point = self.points.of_device(remark.kind, remark.ifindex, remark.netns)?;
                Some(SenderAt { stream: remark.stream, sender, point })
            }
            _ => None,
        };
        self.remarks().iter().filter_map(sender).collect()
    }
}
