//! Loads the programs, and attaches as many of them as the kernel permits.

use crate::btf::names_in;
use crate::functions::{role, traceable, Traceable};
use crate::links::{Links, Loaded};
use crate::names::Names;
use crate::options::{How, Options, With};
use crate::skel::{OpenPathSkel, PathMaps, PathSkelBuilder};
use crate::tracepoints::MAKERS;
use latpath_bpf::{able, convert, program_info, BadStreams, Purpose, StartError, Table};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ProgramAttachType, ProgramMut};
use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

/// Kernel function whose presence shows that one program can be attached to many functions.
const MULTI: &str = "register_fprobe_ips";
/// Enum of the reasons that `kfree_skb` reports.
const REASONS: &str = "skb_drop_reason";

/// Why a search cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The programs cannot be attached.
    #[error(transparent)]
    Programs(#[from] StartError),
    /// The streams cannot be followed.
    #[error(transparent)]
    Streams(#[from] BadStreams),
    /// The kernel lacks a requested feature.
    #[error("kernel {release} has no {what}; {instead}")]
    Lacks {
        /// Release of the kernel (`uname -r`).
        release: String,
        /// The feature.
        what: String,
        /// The alternative.
        instead: &'static str,
    },
    /// The programs' events cannot be read.
    #[error("the tracing programs' events cannot be read: {0}")]
    Reading(libbpf_rs::Error),
}

const PURPOSE: Purpose = Purpose("show the path of packets");

impl SearchError {
    pub(crate) fn refused(source: libbpf_rs::Error) -> Self {
        PURPOSE.refused("loading them")(source).into()
    }
}

pub(crate) struct Attached {
    pub events: MapHandle,
    pub counts: MapHandle,
    pub names: Names,
    /// Kept open, because the kernel empties a program array when its last descriptor is closed.
    _decider: MapHandle,
    programs: Vec<OwnedFd>,
    kprobes: usize,
    // Closing them detaches the programs.
    _links: Vec<Link>,
    _multi: Vec<OwnedFd>,
}

impl Attached {
    /// Number of kprobes that must be detached one by one.
    pub fn kprobes(&self) -> usize {
        self.kprobes
    }

    /// Number of runs that the kernel skipped because the program was already running on that CPU.
    pub fn recursion_misses(&self) -> u64 {
        self.programs.iter().filter_map(|p| program_info(p.as_fd())).map(|info| info.recursion_misses).sum()
    }
}

/// Whether the kernel supports kprobes.
fn has_kprobes() -> bool {
    Path::new("/sys/bus/event_source/devices/kprobe/type").exists()
}

/// Features of the kernel that can be determined before anything is attached, from the names in its type information.
struct Kernel {
    names: HashSet<&'static str>,
}

impl Kernel {
    fn read() -> Self {
        let asked: HashMap<&[u8], &'static str> =
            MAKERS.into_iter().chain([MULTI, REASONS]).map(|name| (name.as_bytes(), name)).collect();
        let types = std::fs::read("/sys/kernel/btf/vmlinux").unwrap_or_default();
        let names = names_in(&types).filter_map(|name| asked.get(name).copied()).collect();
        Self { names }
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Whether one program can be attached to many functions (CONFIG_FPROBE).
    fn has_multi(&self) -> bool {
        self.has(MULTI)
    }
}

fn lacks(what: &str, instead: &'static str) -> SearchError {
    SearchError::Lacks { release: latpath_bpf::release(), what: what.into(), instead }
}

/// Determines how to attach: in the requested way if the kernel supports it, by default in the best one.
fn choose(asked: Option<With>, kernel: &Kernel) -> Result<With, SearchError> {
    match asked {
        Some(With::Kprobes | With::KprobeMulti) if !has_kprobes() => {
            Err(lacks("kprobes (CONFIG_KPROBES)", "tracepoints work everywhere: --with tracepoints"))
        }
        Some(With::KprobeMulti) if !kernel.has_multi() => {
            Err(lacks("kprobe-multi (Linux 5.18 with CONFIG_FPROBE)", "single kprobes show part of it: --with kprobes"))
        }
        Some(asked) => Ok(asked),
        None if !has_kprobes() => Ok(With::Tracepoints),
        None if kernel.has_multi() => Ok(With::KprobeMulti),
        None => Ok(With::Kprobes),
    }
}

/// The best way of attaching that this kernel supports, as far as can be determined before anything is attached.
///
/// # Errors
/// If tracing is impossible.
pub fn best() -> Result<With, SearchError> {
    able().map_err(StartError::from)?;
    choose(None, &Kernel::read())
}

/// Sets the programs' constants and the sizes of the tables.
fn configure(
    skel: &mut OpenPathSkel<'_>,
    options: &Options,
    table: &Table,
    kernel: &Kernel,
    with: With,
    copies: bool,
) -> libbpf_rs::Result<()> {
    let cpus = libbpf_rs::num_possible_cpus()? as u32;
    let consts = skel.maps.rodata_data.as_deref_mut().expect("the programs have constants");
    consts.selection = convert(&table.selection);
    consts.has_streams = (!table.streams.is_empty()).into();
    consts.has_code = options.code.is_some().into();
    consts.requested = options.count;
    consts.same_ns = options.same as u64;
    consts.only_tracepoints = (with == With::Tracepoints).into();
    if let Some(device) = &options.device {
        let name = device.name.as_bytes();
        let len = name.len().min(consts.at_device.len() - 1);
        consts.at_device[..len].copy_from_slice(&name[..len]);
        consts.at_netns = device.netns.unwrap_or(0);
    }
    let names = &mut skel.maps.bss_data.as_deref_mut().expect("the programs have variables").names_short;
    for (place, name) in &table.short {
        names[*place] = convert(name);
    }
    for map in [&mut skel.maps.scratches, &mut skel.maps.captures] {
        map.set_max_entries(cpus * latpath_bpf::SCRATCHES as u32)?;
    }
    let reasons = kernel.has(REASONS);
    let open_vswitch = Path::new("/sys/kernel/btf/openvswitch").exists();
    for mut program in skel.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let maker = name.strip_prefix("after_").or(name.strip_prefix("into_"));
        let load = match (name.as_str(), maker) {
            ("kfree_skb", _) => reasons,
            ("kfree_skb_no_reason", _) => !reasons,
            ("ovs_dp_upcall" | "ovs_do_execute_action", _) => open_vswitch,
            ("first" | "second" | "third" | "fourth" | "fifth", _) => {
                if with == With::KprobeMulti {
                    program.set_attach_type(ProgramAttachType::KprobeMulti);
                }
                with != With::Tracepoints
            }
            ("try_filter", _) => false,
            (_, Some(maker)) => copies && kernel.has(maker),
            _ => true,
        };
        program.set_autoload(load);
    }
    Ok(())
}

/// Note for the user if functions cannot be traced.
const NO_FUNCTIONS: &str =
    "this kernel has no kprobes: functions between tracepoints are not shown, and copies of a packet are recognised by their \
     bytes, where they pass a tracepoint";

fn notes(with: With, asked: Option<With>, kernel: &Kernel, found: &Traceable, links: &Links) -> Vec<String> {
    let mut notes = Vec::new();
    match with {
        With::Tracepoints if asked.is_none() && !has_kprobes() => notes.push(NO_FUNCTIONS.into()),
        With::Tracepoints if asked.is_none() => {
            notes.push("functions between tracepoints are not shown: none can be traced here".into());
            notes.extend(found.notes.clone());
        }
        With::Tracepoints => {}
        With::Kprobes => notes.push(format!(
            "{} of {} functions are shown, those first that packets usually pass{}",
            links.functions.len(),
            found.functions.len(),
            if kernel.has_multi() { "" } else { ": this kernel has no kprobe-multi (Linux 5.18 with CONFIG_FPROBE)" },
        )),
        With::KprobeMulti => notes.extend(found.notes.clone()),
    }
    notes.extend(links.notes.clone());
    notes
}

/// Loads the programs and attaches them.
pub(crate) fn attach(options: &Options) -> Result<(Attached, How), SearchError> {
    let began = Instant::now();
    able().map_err(StartError::from)?;
    let table = if options.streams.is_empty() { Table::default() } else { Table::new(&options.streams)? };
    let kernel = Kernel::read();
    let mut with = choose(options.with, &kernel)?;
    // Read the kernel's long lists in the background while the programs are being verified.
    let functions = with != With::Tracepoints;
    let found = std::thread::spawn(move || if functions { traceable() } else { Traceable::default() });
    let mut copies = functions;
    let mut trouble = Vec::new();
    // If the reading thread panicked, the panic has already been reported. Without its lists, tracepoints can still be
    // used.
    let found = LazyCell::new(Box::new(|| found.join().unwrap_or_default()) as _);
    let job = Job { options, table: &table, kernel: &kernel, began, found };
    loop {
        match job.attempt(with, copies) {
            Ok((attached, mut how)) => {
                how.notes.extend(trouble);
                return Ok((attached, how));
            }
            // Some limits of the kernel become visible only when attaching.
            Err(Attempt::Multi(e)) if options.with.is_none() => {
                trouble.push(format!("the kernel refused kprobe-multi: {e}"));
                with = With::Kprobes;
            }
            Err(Attempt::Multi(e)) => {
                let what = format!("kprobe-multi that works ({e})");
                return Err(lacks(&what, "single kprobes show part of it: --with kprobes"));
            }
            Err(Attempt::NoFunctions) if options.with.is_none() => (with, copies) = (With::Tracepoints, false),
            Err(Attempt::NoFunctions) => {
                let what = format!("functions that can be traced ({})", job.found.notes.join("; "));
                return Err(lacks(&what, "tracepoints work everywhere: --with tracepoints"));
            }
            Err(Attempt::Load(error)) if copies => {
                tracing::debug!("without fexit: {error}");
                trouble.push("copies of a packet are recognised by their bytes: this kernel has no fexit".into());
                copies = false;
            }
            Err(Attempt::Load(error)) => return Err(error),
        }
    }
}

/// Why an attempt failed.
enum Attempt {
    Load(SearchError),
    Multi(std::io::Error),
    NoFunctions,
}

fn refused(source: libbpf_rs::Error) -> Attempt {
    Attempt::Load(SearchError::refused(source))
}

/// Input common to all attempts.
struct Job<'a> {
    options: &'a Options,
    table: &'a Table,
    kernel: &'a Kernel,
    began: Instant,
    /// The kernel's lists, read in the background.
    found: LazyCell<Traceable, Box<dyn FnOnce() -> Traceable>>,
}

impl Job<'_> {
    fn attempt(&self, with: With, copies: bool) -> Result<(Attached, How), Attempt> {
        let (options, began) = (self.options, self.began);
        latpath_bpf::listen();
        let mut storage = MaybeUninit::uninit();
        let mut open = PathSkelBuilder::default().open(&mut storage).map_err(refused)?;
        configure(&mut open, options, self.table, self.kernel, with, copies).map_err(refused)?;
        let skel = open.load().map_err(refused)?;
        tracing::debug!("programs loaded after {:?}", began.elapsed());
        let found = &*self.found;
        tracing::debug!("{} functions known after {:?}", found.functions.len(), began.elapsed());
        if with != With::Tracepoints && found.functions.is_empty() {
            return Err(Attempt::NoFunctions);
        }
        fill(&skel.maps, options, self.table, found).map_err(refused)?;

        let loaded = skel.object().progs_mut().filter(|p| p.autoload());
        let loaded: Loaded<'_> = loaded.map(|p| (p.name().to_string_lossy().into_owned(), p)).collect();
        let mut links = Links::default();
        links.copies(&loaded);
        match with {
            With::Tracepoints => {}
            With::Kprobes => links.some_functions(&loaded, &found.functions),
            With::KprobeMulti => links.all_functions(&loaded, &found.functions).map_err(Attempt::Multi)?,
        }
        links.tracepoints(&loaded);
        tracing::debug!("attached after {:?}", began.elapsed());

        let dup = |p: &ProgramMut<'_>| p.as_fd().try_clone_to_owned();
        let programs = loaded.values().map(dup).collect::<std::io::Result<Vec<_>>>().map_err(|e| refused(e.into()))?;
        let how = How {
            with,
            functions: links.functions.len(),
            functions_shown: (with == With::Kprobes).then(|| links.functions.clone()),
            functions_known: found.functions.len(),
            tracepoints: links.tracepoints,
            took: began.elapsed(),
            notes: notes(with, options.with, self.kernel, found, &links),
        };
        let attached = Attached {
            events: MapHandle::try_from(&skel.maps.events).map_err(refused)?,
            counts: MapHandle::try_from(&skel.maps.counts).map_err(refused)?,
            names: Names::new(&found.functions),
            _decider: MapHandle::try_from(&skel.maps.decider).map_err(refused)?,
            programs,
            kprobes: if with == With::Kprobes { links.functions.len() } else { 0 },
            _links: links.links,
            _multi: links.multi,
        };
        Ok((attached, how))
    }
}

/// Fills the tables of the loaded programs.
fn fill(maps: &PathMaps<'_>, options: &Options, table: &Table, found: &Traceable) -> libbpf_rs::Result<()> {
    table.load(&maps.streams, &maps.names_long)?;
    if let Some(code) = &options.code {
        maps.code.update(&0u32.to_ne_bytes(), &code.bytes(), MapFlags::ANY)?;
    }
    for f in &found.functions {
        let role = role(&f.name);
        if role != 0 {
            maps.functions.update(&f.address.to_ne_bytes(), &role.to_ne_bytes(), MapFlags::ANY)?;
        }
    }
    Ok(())
}
