//! For tests: runs the shared headers (bpf/streams.bpf.c) on frames supplied by the caller, with BPF_PROG_RUN.

use crate::skel::{types, StreamsSkelBuilder};
use crate::streams::Table;
use crate::{able, listen, with_last_words, Mapped, Plain};
use latpath_protocols::stream::StreamId;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Maximum length of a frame, bytes.
pub const MAX: usize = crate::constants::TRIAL_BYTES;

crate::plain!(types::trial);

/// Runs a loaded program once, with a context that the program may change. No packet is involved.
///
/// # Errors
/// If the kernel does not run the program, or the program does not return 0.
pub fn run<T: Plain>(program: &impl AsRawFd, context: &mut T) -> std::io::Result<()> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    if size_of::<T>() > 0 {
        (options.ctx_in, options.ctx_size_in) = (std::ptr::from_mut(context).cast(), size_of::<T>() as u32);
    }
    // SAFETY: ctx_in is a borrowed value of the given size; any bytes are a valid value.
    let ran = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    match (ran, options.retval) {
        (..0, _) => Err(std::io::Error::from_raw_os_error(-ran)),
        (_, 0) => Ok(()),
        (_, other) => Err(std::io::Error::other(format!("the program did not take the frame: it returned {other}"))),
    }
}

/// Result of the programs for one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialResult {
    /// The streams to which the frame belongs, each with the frame's key.
    pub streams: Vec<(StreamId, u32)>,
    /// Whether the frame is malformed for the protocol of its ethertype or port.
    pub malformed: bool,
    /// Results of the three fast paths: from fetched bytes, by direct loads, and by the layout of an earlier frame. The
    /// outer `None`: the frame takes the slow path; the inner one: it belongs to no stream.
    pub fast: [Option<Option<(StreamId, u32)>>; 3],
    /// smpSynch as read by the three fast paths and the slow path; `None` if not read.
    pub synch: [Option<u8>; 4],
    /// The LAN of a redundant network (`LAN_…` of include/redundancy.h; 0 if there is none): as read at the end of the
    /// linear part (on kernels with direct loads), and by the slow path.
    pub lan: [usize; 2],
    /// Hash of the first 128 bytes; 0 if the frame is shorter.
    pub hash: u32,
    /// Whether the frame is the first fragment of an IP packet.
    pub fragment: bool,
    /// A stream that the frame nearly matches: it has the same name, or the same source or destination, but differs
    /// otherwise. Stream, key and first difference (`DIFFERENCE_…` of include/streams.h).
    pub near: Option<(StreamId, u32, usize)>,
}

/// The loaded programs, set up for given streams.
pub struct Trial {
    program: OwnedFd,
    trial: Mapped<types::trial>,
    table: Table,
}

impl Trial {
    /// Loads the programs for the streams of a table.
    ///
    /// # Errors
    /// If the kernel refuses the programs or a map.
    pub fn load(table: Table) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        able()?;
        listen();
        let mut storage = MaybeUninit::uninit();
        let mut open = StreamsSkelBuilder::default().open(&mut storage).map_err(with_last_words)?;
        open.maps.rodata_data.as_deref_mut().expect("the programs have constants").selection = table.selection;
        let names = &mut open.maps.bss_data.as_deref_mut().expect("the programs have variables").names_short;
        for (place, name) in &table.short {
            names[*place] = *name;
        }
        let skel = open.load().map_err(with_last_words)?;
        table.load(&skel.maps.streams, &skel.maps.names_long).map_err(with_last_words)?;
        let program = skel.progs.try_frame.as_fd().try_clone_to_owned()?;
        Ok(Self { program, trial: Mapped::new(&skel.maps.trials.as_fd(), 1)?, table })
    }

    /// Runs the programs on a frame whose last `paged` bytes are in a page fragment.
    ///
    /// # Errors
    /// If the frame is longer than [`MAX`], or the kernel does not run the programs.
    pub fn run(&self, frame: &[u8], paged: usize) -> std::io::Result<TrialResult> {
        self.run_as(frame, paged, 0)
    }

    /// Runs the programs on a packet of this ethertype without an Ethernet header, as on IP-only devices.
    ///
    /// # Errors
    /// Like [`run`](Self::run).
    pub fn run_without_link(&self, packet: &[u8], paged: usize, ethertype: u16) -> std::io::Result<TrialResult> {
        self.run_as(packet, paged, ethertype)
    }

    fn run_as(&self, frame: &[u8], paged: usize, no_link: u16) -> std::io::Result<TrialResult> {
        if frame.len() > MAX || paged > frame.len() {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        let (len, paged) = (frame.len() as u32, paged as u32);
        let mut trial = types::trial { len, paged, no_link: no_link.into(), ..self.trial.get(0) };
        trial.frame[..frame.len()].copy_from_slice(frame);
        self.trial.set(0, trial);
        run(&self.program, &mut ())?;
        let trial = self.trial.get(0);
        let user = |stream: u32| self.table.user[stream as usize];
        let fast = |stream: i32, key: u32| match stream {
            0.. => Some(Some((user(stream as u32), key))),
            -1 => Some(None),
            _ => None,
        };
        let n = trial.found.n as usize;
        Ok(TrialResult {
            streams: trial.found.at[..n].iter().map(|f| (user(f.stream), f.key)).collect(),
            malformed: trial.bad != 0,
            fast: [
                fast(trial.fast, trial.fast_key),
                fast(trial.fast_direct, trial.fast_direct_key),
                fast(trial.known, trial.known_key),
            ],
            synch: trial.synch.map(|read| read.checked_sub(1).map(|value| value as u8)),
            lan: [trial.lan as usize, trial.lan_slow as usize],
            hash: trial.hash,
            fragment: trial.fragment != 0,
            near: (trial.found.near_difference != 0)
                .then(|| (user(trial.found.near_stream), trial.found.near_key, trial.found.near_difference as usize)),
        })
    }
}
