//! Loading the programs and attaching them.

use crate::hooks::Abilities;
use crate::layout::{PerCpu, Record};
use crate::points::PointTable;
use crate::skel::{OpenProbeSkel, ProbeSkel, ProbeSkelBuilder};
use crate::tx_done::TxDone;
use latpath_bpf::{attach_program, convert, last_words, BadStreams, Because, Mapped, Table, Unable};
use latpath_model::{PointInfo, StreamSpec};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::OpenMapMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// What to attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine's name in its points.
    pub machine: String,
    /// The streams.
    pub streams: Vec<StreamSpec>,
    /// Memory for rings, all CPUs together, in bytes.
    pub ring_bytes: usize,
    /// Which points count; a refused one costs its packets nothing, and takes no place.
    pub accept: Accept,
    /// Whether points may be in network namespaces of other user namespaces, which any user can make: rootless containers.
    pub other_users: bool,
}

/// Whether a point counts.
#[derive(Clone)]
pub struct Accept(pub Arc<dyn Fn(&PointInfo) -> bool + Send + Sync>);

impl std::fmt::Debug for Accept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Accept")
    }
}

impl Options {
    /// Memory for rings where nothing else is asked for.
    pub const RING_BYTES: usize = 16 << 20;

    /// The defaults for these streams on this machine.
    pub fn new(machine: &str, streams: Vec<StreamSpec>) -> Self {
        Self {
            machine: machine.into(),
            streams,
            ring_bytes: Self::RING_BYTES,
            accept: Accept(Arc::new(|_| true)),
            other_users: false,
        }
    }
}

/// Why the programs are not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// This kernel or user cannot.
    #[error(transparent)]
    Unable(#[from] Unable),
    /// The streams cannot be followed.
    #[error(transparent)]
    Streams(#[from] BadStreams),
    /// The kernel refused a program or map.
    #[error(
        "kernel {release} refused the tracing programs ({step}): {source}; RUST_LOG=debug shows all that it said, which a \
         report of this needs"
    )]
    Refused {
        /// `uname -r`.
        release: String,
        /// What was being done.
        step: &'static str,
        /// What it said.
        source: Because,
    },
    /// The kernel took a program and would not let it stand at its place.
    #[error("kernel {release} refused to attach {program}: {source}")]
    Attach {
        /// `uname -r`.
        release: String,
        /// The program.
        program: String,
        /// What it said.
        source: std::io::Error,
    },
    /// A map could not be mapped.
    #[error("a table shared with the kernel could not be mapped: {0}")]
    Map(#[from] std::io::Error),
}

/// The attached programs: their links and the maps that user space reads.
pub(crate) struct Attached {
    /// Closing them detaches the programs.
    pub links: Vec<OwnedFd>,
    /// The programs themselves, which count how often they were left out.
    pub programs: Vec<OwnedFd>,
    /// See [`TxDone`].
    pub tx_done: Option<TxDone>,
    pub table: Table,
    pub abilities: Abilities,
    pub percpu: Mapped<PerCpu>,
    pub points: PointTable,
    pub ring: Mapped<Record>,
    pub ring_size: usize,
    pub cpus: usize,
}

/// Largest power of two not above `n`, at least `least`.
fn power_of_two(n: usize, least: usize) -> usize {
    let n = n.max(least);
    1 << (usize::BITS - 1 - n.leading_zeros())
}

fn size(map: &mut OpenMapMut<'_>, entries: usize) -> libbpf_rs::Result<()> {
    map.set_max_entries(entries as u32)
}

/// Sets the programs' constants and the tables' sizes for these options.
fn configure(
    skel: &mut OpenProbeSkel<'_>,
    options: &Options,
    table: &Table,
    abilities: &Abilities,
    cpus: usize,
) -> libbpf_rs::Result<usize> {
    let ring_size = power_of_two(options.ring_bytes / size_of::<Record>() / cpus, 1 << 10);
    let consts = skel.maps.rodata_data.as_deref_mut().expect("the programs have constants");
    consts.selection = convert(&table.selection);
    consts.ring_size = ring_size as u32;
    consts.other_users = options.other_users.into();
    let names = &mut skel.maps.bss_data.as_deref_mut().expect("the programs have variables").names_short;
    for (place, name) in &table.short {
        names[*place] = convert(name);
    }
    size(&mut skel.maps.percpu, cpus)?;
    size(&mut skel.maps.scratches, cpus * latpath_bpf::SCRATCHES)?;
    size(&mut skel.maps.ring, cpus * ring_size)?;
    for mut program in skel.open_object_mut().progs_mut() {
        program.set_autoload(program.name().to_str().is_some_and(|name| abilities.has(name)));
    }
    Ok(ring_size)
}

/// What an error of libbpf's means for the user.
fn refused(abilities: &Abilities, step: &'static str) -> impl FnOnce(libbpf_rs::Error) -> AttachError {
    let release = abilities.release.clone();
    move |source| AttachError::Refused { release, step, source: source.into() }
}

/// Loads the programs; also returns the records of one CPU's ring.
fn load<'s>(
    storage: &'s mut MaybeUninit<libbpf_rs::OpenObject>,
    options: &Options,
    table: &Table,
    abilities: &Abilities,
    cpus: usize,
) -> Result<(ProbeSkel<'s>, usize), AttachError> {
    let open = ProbeSkelBuilder::default().open(storage);
    let mut open = open.map_err(refused(abilities, "reading them"))?;
    let ring_size = configure(&mut open, options, table, abilities, cpus);
    let ring_size = ring_size.map_err(refused(abilities, "sizing their tables"))?;
    Ok((open.load().map_err(refused(abilities, "loading them"))?, ring_size))
}

/// Loads the programs for these options and attaches them. All goes with the returned value: a link's file descriptor is
/// what holds a program in place, so the kernel detaches it even after kill -9.
pub(crate) fn attach(options: &Options) -> Result<Attached, AttachError> {
    let table = Table::new(&options.streams)?;
    let abilities = Abilities::find(table.is_over_ip())?;
    attach_those(options, table, abilities)
}

/// The same with the programs that the kernel is able to run, and less where it refuses one.
fn attach_those(options: &Options, table: Table, mut abilities: Abilities) -> Result<Attached, AttachError> {
    latpath_bpf::listen();
    let cpus = libbpf_rs::num_possible_cpus().map_err(refused(&abilities, "counting CPUs"))?;
    let mut storage = MaybeUninit::uninit();
    let (skel, ring_size) = match load(&mut storage, options, &table, &abilities, cpus) {
        // Kernels differ more in their functions than in their tracepoints.
        Err(_) if abilities.without_refused(&last_words()) => return attach_those(options, table, abilities),
        loaded => loaded?,
    };
    let refused = |step| refused(&abilities, step);
    let maps = &skel.maps;
    table.load(&maps.streams, &maps.names_long).map_err(refused("naming the streams"))?;
    let percpu = Mapped::new(&maps.percpu.as_fd(), cpus)?;
    let points = PointTable::new(&maps.points, &maps.point_of, &maps.free_points)?;
    let ring = Mapped::new(&maps.ring.as_fd(), cpus * ring_size)?;
    let (mut links, mut programs, mut tx_done) = (Vec::new(), Vec::new(), None);
    for program in skel.object().progs_mut() {
        let Some(name) = program.name().to_str().filter(|name| abilities.has(name)) else { continue };
        let link = attach_program(program.as_fd()).map_err(|source| {
            tracing::debug!("{name}: {source}");
            AttachError::Attach { release: abilities.release.clone(), program: name.into(), source }
        })?;
        programs.push(program.as_fd().try_clone_to_owned()?);
        match name {
            "tx_done" => tx_done = Some(TxDone::new(program.as_fd().try_clone_to_owned()?, link)),
            _ => links.push(link),
        }
    }
    Ok(Attached { links, programs, tx_done, table, abilities, percpu, points, ring, ring_size, cpus })
}
