//! Loads and attaches the programs.

use crate::hooks;
use crate::layout::{PerCpu, Record, MAX_POINTS};
use crate::points::{IndexQueues, PointTable};
use crate::readers::NamedReaders;
use crate::remarks::Remarks;
use crate::skel::{OpenProbeSkel, ProbeSkelBuilder};
use latpath_bpf::{convert, BadStreams, Hooks, Mapped, Programs, Purpose, StartError, Table};
use latpath_model::{PointInfo, StreamSpec};
use libbpf_rs::skel::Skel;
use libbpf_rs::{MapHandle, OpenMapMut};
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Options of a probe.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the machine in its points.
    pub machine: String,
    /// Streams to follow; the index is the stream's ID.
    pub streams: Vec<StreamSpec>,
    /// Total memory of the rings of all CPUs, bytes.
    pub ring_bytes: usize,
    /// Selects the points to follow. A refused point has no cost and takes no index.
    pub accept: Accept,
    /// Whether to follow points in network namespaces of other user namespaces (rootless containers), which any user
    /// can create.
    pub other_users: bool,
    /// Names of reading threads with a reserved entry in the table of points; a final `*` matches any text.
    pub readers: Vec<String>,
    /// Whether to use NICs' timestamps of packets: they are enabled, and the NICs' settings are restored at the end.
    pub nic_times: bool,
}

/// Predicate that selects points.
#[derive(Clone)]
pub struct Accept(pub Arc<dyn Fn(&PointInfo) -> bool + Send + Sync>);

impl std::fmt::Debug for Accept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Accept")
    }
}

impl Options {
    /// Default memory of the rings, bytes.
    pub const RING_BYTES: usize = 16 << 20;

    /// Default options for these streams.
    pub fn new(machine: &str, streams: Vec<StreamSpec>) -> Self {
        Self {
            machine: machine.into(),
            streams,
            ring_bytes: Self::RING_BYTES,
            accept: Accept(Arc::new(|_| true)),
            other_users: false,
            readers: Vec::new(),
            nic_times: false,
        }
    }
}

const PURPOSE: Purpose = Purpose("see packets");

/// Why the programs cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The kernel refused the programs.
    #[error(transparent)]
    Programs(#[from] StartError),
    /// The streams cannot be followed.
    #[error(transparent)]
    Streams(#[from] BadStreams),
}

/// The attached programs: their links and the maps that user space reads.
pub(crate) struct Attached {
    /// The programs, which remain attached until this is dropped.
    pub programs: Programs,
    pub table: Table,
    pub percpu: Mapped<PerCpu>,
    pub points: PointTable,
    pub remarks: Remarks,
    pub ring: Mapped<Record>,
    pub ring_size: usize,
    pub cpus: usize,
}

/// Largest power of two not above `n`, but at least `least`.
fn power_of_two(n: usize, least: usize) -> usize {
    let n = n.max(least);
    1 << (usize::BITS - 1 - n.leading_zeros())
}

fn size(map: &mut OpenMapMut<'_>, entries: usize) -> libbpf_rs::Result<()> {
    map.set_max_entries(entries as u32)
}

/// Number of indexes reserved for user-named readers: several per name, because threads with the same name may read in
/// different namespaces.
fn reserved(readers: &NamedReaders) -> usize {
    const FOR_EACH: usize = 4;
    const MAX: usize = 64;
    (readers.len() * FOR_EACH).min(MAX)
}

/// Whether the kernel copies bytes outside a packet's linear part for the programs: `loads_fragments` in
/// bpf/fragments.h.
fn loads_fragments() -> bool {
    let release = latpath_linux::proc::kernel_release();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|n| n.parse().ok()).collect();
    numbers >= vec![6, 11]
}

/// Sets the programs' constants and the sizes of the maps for these options.
fn configure(
    skel: &mut OpenProbeSkel<'_>,
    options: &Options,
    table: &Table,
    cpus: usize,
    ring_size: usize,
) -> libbpf_rs::Result<()> {
    let consts = skel.maps.rodata_data.as_deref_mut().expect("the programs have constants");
    consts.selection = convert(&table.selection);
    consts.ring_shift = ring_size.ilog2();
    consts.other_users = options.other_users.into();
    consts.nic_stamps = options.nic_times.into();
    let readers = NamedReaders::new(&options.readers);
    consts.first_reserved = (MAX_POINTS - reserved(&readers)) as u32;
    consts.named_reader_count = readers.len() as u32;
    for (to, name) in consts.named_readers.iter_mut().zip(readers.words()) {
        *to = name;
    }
    let names = &mut skel.maps.bss_data.as_deref_mut().expect("the programs have variables").names_short;
    for (place, name) in &table.short {
        names[*place] = convert(name);
    }
    size(&mut skel.maps.percpu, cpus)?;
    size(&mut skel.maps.scratches, cpus * latpath_bpf::SCRATCHES)?;
    size(&mut skel.maps.fragment_copies, if loads_fragments() { cpus * latpath_bpf::SCRATCHES } else { 1 })?;
    size(&mut skel.maps.ring, cpus * ring_size)
}

/// Loads and attaches the programs for these options. Dropping the returned value detaches them. A program stays
/// attached only while its link's descriptor is open, so the kernel detaches it even after kill -9.
pub(crate) fn attach(options: &Options) -> Result<Attached, AttachError> {
    let table = Table::new(&options.streams)?;
    let mut hooks = hooks::find(table.is_over_ip(), options.nic_times).map_err(StartError::from)?;
    let cpus = libbpf_rs::num_possible_cpus().map_err(PURPOSE.refused("counting CPUs"))?;
    let ring_size = power_of_two(options.ring_bytes / size_of::<Record>() / cpus, 1 << 10);
    let configure = |open: &mut OpenProbeSkel<'_>, _: &Hooks| configure(open, options, &table, cpus, ring_size);
    let loaded = PURPOSE.load::<ProbeSkelBuilder, _>(&mut hooks, hooks::suffice, configure, |skel, hooks| {
        let maps = &skel.maps;
        table.load(&maps.streams, &maps.names_long).map_err(PURPOSE.refused("naming the streams"))?;
        let percpu = Mapped::<PerCpu>::new(&maps.percpu.as_fd(), cpus)?;
        for cpu in 0..cpus {
            percpu.set_field(cpu, offset_of!(PerCpu, cpu), cpu as u64);
        }
        let readers = NamedReaders::new(&options.readers);
        let first_reserved = MAX_POINTS - reserved(&readers);
        let queues = IndexQueues {
            free: &maps.free_points,
            reserved: &maps.reserved_points,
            permits: &maps.reader_permits,
            first_reserved,
        };
        let points = PointTable::new(&maps.points, &maps.point_of, &queues, readers)?;
        let remarks = MapHandle::try_from(&maps.remarks).map_err(PURPOSE.refused("reading remarks"))?;
        let ring = Mapped::new(&maps.ring.as_fd(), cpus * ring_size)?;
        Ok((hooks.attach(skel.object())?, percpu, points, Remarks::new(remarks), ring))
    });
    let (attached, percpu, points, remarks, ring) = loaded.map_err(|(error, _)| error)?;
    if !hooks::suffice(&hooks) {
        return Err(PURPOSE.refusal("attaching them", hooks::lines(&hooks.missing).join("; ")).into());
    }
    hooks.missing = hooks::missing_of(&hooks);
    let programs = Programs::new(attached, hooks, false).map_err(StartError::from)?;
    Ok(Attached { programs, table, percpu, points, remarks, ring, ring_size, cpus })
}
