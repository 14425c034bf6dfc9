//! The attached programs, for one window.

use crate::figures::{Directions, Queue, QueueCounts, Queues, Side};
use crate::hooks::{HOOKS, NEEDED};
use crate::layout::{RawQueue, Shared, READS, VHOST, WRITES};
use crate::skel::{OpenQueuesSkel, QueuesSkel, QueuesSkelBuilder};
use latpath_bpf::{
    begin_window, end_window, release, AttachedProgram, Hooks, Mapped, Missing, Programs, Purpose, StartError,
};
use latpath_model::{text::printable, Ns};
use libbpf_rs::skel::Skel;
use libbpf_rs::Link;
use std::{mem::offset_of, os::fd::AsFd, path::Path};

/// The function with which vhost takes a buffer. It has seven arguments, so kprobes replace fexit before Linux 6.6.
const TAKEN: &str = "vhost_get_vq_desc";
/// Maximum number of queues, about 9 kB each.
const MAX: usize = 512;
/// Maximum number of outstanding buffers with a known posting time, about 100 bytes each.
const MAX_BUFFERS: u32 = 1 << 16;

const PURPOSE: Purpose = Purpose("watch virtqueues");

/// The error if there are no virtqueues, or if no program can attach to the required function `no_function`.
fn nothing_here(no_function: Option<&Missing>) -> StartError {
    let release = release();
    StartError::NothingHere(match no_function {
        None => format!(
            "there are no virtqueues to watch: this kernel ({release}) has loaded neither virtio's drivers (module virtio_ring: this \
             machine is no guest with virtio devices) nor vhost (modprobe vhost_net, before its VMs start)"
        ),
        Some(Missing { why, .. }) => format!(
            "virtqueues have no tracepoints, and functions cannot be watched here (kernel {release}): {why}. Debian's, Ubuntu's, Red Hat's \
             and SUSE's kernels for servers have these options"
        ),
    })
}

/// Watches virtqueues until [`Watch::end`].
pub struct Watch {
    programs: Programs,
    _kprobes: Vec<Link>,
    queues: Mapped<RawQueue>,
    shared: Mapped<Shared>,
    from: Ns,
}

impl Watch {
    /// Watches all virtqueues of this machine's drivers and vhost. Returns when the window has begun. With `measure`,
    /// the kernel also measures the programs' run time, which adds two clock readings to each run.
    ///
    /// # Errors
    /// If the kernel or the user's rights do not allow tracing, or there are no virtqueues.
    pub fn start(measure: bool) -> Result<Self, StartError> {
        let mut hooks = Hooks::of_kernel(&HOOKS)?;
        let Some(needed) = NEEDED.into_iter().find(|function| hooks.stands_at(function)) else {
            return Err(nothing_here(hooks.missing.iter().find(|missing| NEEDED.contains(&missing.tracepoint))));
        };
        let loaded =
            PURPOSE.load::<QueuesSkelBuilder, _>(&mut hooks, |hooks| hooks.stands_at(needed), configure, attach);
        let (attached, kprobes, queues, shared) = loaded.map_err(|(error, _)| error)?;
        let programs = Programs::new(attached, hooks, measure)?;
        let mut watch = Self { programs, _kprobes: kprobes, queues, shared, from: 0 };
        watch.from = begin_window(|from| watch.set(offset_of!(Shared, from), from), |until| watch.set_until(until));
        Ok(watch)
    }

    fn set(&self, border: usize, t: u64) {
        self.shared.set_field(0, border, t);
    }

    fn set_until(&self, t: u64) {
        self.set(offset_of!(Shared, until), t);
    }

    /// Hooks that this kernel lacks.
    pub fn missing(&self) -> &[Missing] {
        &self.programs.missing
    }

    /// Ends the window and returns its results, and that of `at_end`, which is called right after the window's end.
    pub fn end<T>(self, at_end: impl FnOnce() -> T) -> (Queues, T) {
        let (until, result) = end_window(|until| self.set_until(until), at_end);
        (self.read(until), result)
    }

    fn read(&self, until: Ns) -> Queues {
        let shared = self.shared.get(0);
        let taken = (shared.next as usize).min(self.queues.len());
        let all = (0..taken).map(|place| self.queues.get(place)).filter(|raw| raw.address != 0);
        Queues {
            window: self.programs.window(self.from, until),
            queues: all.map(|raw| queue(&raw)).collect(),
            no_room: shared.no_room,
            untimed: shared.no_room_time,
        }
    }
}

/// Whether kprobes can be attached by perf events, without the text interface of tracefs.
fn has_kprobes() -> bool {
    Path::new("/sys/bus/event_source/devices/kprobe/type").exists()
}

/// Sets the programs' constants and the sizes of their tables, and loads the kprobes that may replace fexit.
fn configure(open: &mut OpenQueuesSkel<'_>, hooks: &Hooks) -> libbpf_rs::Result<()> {
    let (maps, queues) = (&mut open.maps, MAX as u32);
    maps.rodata_data.as_deref_mut().expect("the programs have constants").queues_max = queues;
    maps.queues.set_max_entries(queues)?;
    maps.places.set_max_entries(queues)?;
    maps.eventfds.set_max_entries(2 * queues)?;
    maps.buffers.set_max_entries(MAX_BUFFERS)?;
    for program in [&mut open.progs.taken_begins, &mut open.progs.taken_ends] {
        program.set_autoload(has_kprobes() && hooks.has(TAKEN));
    }
    Ok(())
}

type Attached = (Vec<AttachedProgram>, Vec<Link>, Mapped<RawQueue>, Mapped<Shared>);

fn attach(skel: &QueuesSkel<'_>, hooks: &mut Hooks) -> Result<Attached, StartError> {
    let queues = Mapped::new(&skel.maps.queues.as_fd(), MAX)?;
    let shared = Mapped::new(&skel.maps.bss.as_fd(), 1)?;
    let is_requested = hooks.has(TAKEN);
    let programs = hooks.attach(skel.object())?;
    let mut kprobes = Vec::new();
    if is_requested && has_kprobes() && !hooks.has(TAKEN) {
        let begins = skel.progs.taken_begins.attach_kprobe(false, TAKEN);
        if let (Ok(begins), Ok(ends)) = (begins, skel.progs.taken_ends.attach_kprobe(true, TAKEN)) {
            kprobes.extend([begins, ends]);
            hooks.missing.retain(|missing| missing.tracepoint != TAKEN);
        }
    }
    Ok((programs, kprobes, queues, shared))
}

fn queue(raw: &RawQueue) -> Queue {
    let directions = raw.directions as usize;
    let ring = |index: crate::skel::types::ring_index| crate::Ring { moved: index.moved, counted: index.counted };
    let name: Vec<u8> = raw.name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    let side = if raw.side as usize == VHOST { Side::Vhost } else { Side::Driver };
    let counts = QueueCounts {
        size: raw.size,
        put_back_buffers: raw.put_back,
        refused_buffers: raw.refused,
        posted_read_bytes: raw.read_bytes,
        posted_write_bytes: raw.write_bytes,
        used_buffers: raw.used,
        written_bytes: raw.used_bytes,
        read_bytes: raw.done_bytes,
        index_resets: raw.resets,
        kicks: raw.kicks,
        kicks_suppressed: raw.kicks_suppressed,
        rounds: raw.rounds,
        interrupts: raw.interrupts,
        interrupts_suppressed: raw.interrupts_asked.saturating_sub(raw.interrupts),
        interrupts_empty: raw.interrupts_empty,
        interrupts_by_irqfd: raw.by_irqfd,
        interrupt: raw.interrupt.checked_sub(1),
    };
    Queue {
        side,
        device: raw.device,
        device_id: raw.device_id,
        netns: raw.netns,
        pid: raw.pid,
        handler: raw.handler,
        name: printable(&String::from_utf8_lossy(&name)),
        index: raw.index,
        is_packed: raw.packed != 0,
        directions: Directions { reads: directions & READS != 0, writes: directions & WRITES != 0 },
        gone: raw.gone != 0,
        posted: raw.posted,
        header: raw.header,
        packets: raw.packets,
        available: ring(raw.available),
        used_up: ring(raw.used_up),
        counts,
        waited: latpath_bpf::histogram!(raw.waited),
        occupied: latpath_bpf::histogram!(raw.occupied),
        per_kick: latpath_bpf::histogram!(raw.per_kick),
        per_interrupt: latpath_bpf::histogram!(raw.per_interrupt),
    }
}
