//! Attaches the loaded programs.

use crate::functions::{by_weight, Function};
use crate::tracepoints::{MAKERS, TRACEPOINTS};
use libbpf_rs::{Link, ProgramMut};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

pub(crate) type Loaded<'a> = HashMap<String, ProgramMut<'a>>;

/// Maximum time for attaching individual kprobes, each of which takes a few milliseconds.
const PATIENCE: Duration = Duration::from_millis(2500);
/// Maximum number of individual kprobes: detaching takes as long as attaching.
const MAX_KPROBES: usize = 150;

/// Attaches a program to many functions with one link.
fn attach_multi(program: BorrowedFd<'_>, addresses: &[u64]) -> std::io::Result<OwnedFd> {
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    options.__bindgen_anon_1.kprobe_multi = libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_2 {
        cnt: addresses.len() as u32,
        addrs: addresses.as_ptr().cast(),
        ..Default::default()
    };
    // SAFETY: `addresses` is an array of `cnt` numbers, which the kernel copies; the program is loaded.
    let link =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, libbpf_sys::BPF_TRACE_KPROBE_MULTI, &options) };
    if link < 0 {
        return Err(std::io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Maximum number of attempts to find the addresses that the kernel rejects.
const MAX_TRIES: usize = 100;

/// Whether the kernel rejected one of the addresses, rather than the kind of attachment.
fn is_about_one(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT | libc::ESRCH | libc::EBUSY))
}

/// Names of the programs for functions, by the position of the skb among the arguments.
const BY_PLACE: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];

/// The attachments that succeeded.
#[derive(Default)]
pub(crate) struct Links {
    pub links: Vec<Link>,
    pub multi: Vec<OwnedFd>,
    pub tracepoints: usize,
    pub functions: Vec<String>,
    pub notes: Vec<String>,
}

impl Links {
    pub fn tracepoints(&mut self, programs: &Loaded<'_>) {
        for at in &TRACEPOINTS {
            let names: &[&str] =
                if at.name == "kfree_skb" { &["kfree_skb", "kfree_skb_no_reason"] } else { &[at.name] };
            let Some(program) = names.iter().find_map(|n| programs.get(*n)) else { continue };
            match program.attach_raw_tracepoint(at.name) {
                Ok(link) => {
                    self.links.push(link);
                    self.tracepoints += 1;
                }
                Err(e) if at.needed => {
                    self.notes.push(format!("tracepoint {}:{} is not there ({e})", at.system, at.name));
                }
                Err(e) => tracing::debug!("{}: {e}", at.name),
            }
        }
    }

    pub fn copies(&mut self, programs: &Loaded<'_>) {
        for maker in MAKERS {
            let Some(program) =
                programs.get(&format!("after_{maker}")).or_else(|| programs.get(&format!("into_{maker}")))
            else {
                continue;
            };
            match program.attach_trace() {
                Ok(link) => self.links.push(link),
                Err(e) => self.notes.push(format!("copies made by {maker} are recognised by their bytes only ({e})")),
            }
        }
    }

    /// Attaches to all functions, as many at a time as the kernel accepts.
    pub fn all_functions(&mut self, programs: &Loaded<'_>, functions: &[Function]) -> std::io::Result<()> {
        let mut refused = HashSet::new();
        for (place, name) in BY_PLACE.iter().enumerate() {
            let addresses: Vec<u64> =
                functions.iter().filter(|f| f.positions >> place & 1 == 1).map(|f| f.address).collect();
            let Some(program) = programs.get(*name).filter(|_| !addresses.is_empty()) else { continue };
            // A single untraceable address makes the whole call fail; find it by bisection.
            let (mut left, mut tries) = (vec![&addresses[..]], 0);
            while let Some(some) = left.pop() {
                tries += 1;
                match attach_multi(program.as_fd(), some) {
                    Ok(link) => self.multi.push(link),
                    Err(e) if !is_about_one(&e) || tries > MAX_TRIES => return Err(e),
                    Err(_) if some.len() == 1 => drop(refused.insert(some[0])),
                    Err(_) => {
                        let (first, second) = some.split_at(some.len() / 2);
                        left.extend([second, first]);
                    }
                }
            }
        }
        let (no, yes): (Vec<_>, Vec<_>) = functions.iter().partition(|f| refused.contains(&f.address));
        self.functions = yes.iter().map(|f| f.name.clone()).collect();
        if !no.is_empty() {
            let names = no.iter().map(|f| f.name.as_str()).collect::<Vec<_>>().join(", ");
            self.notes.push(format!("the kernel does not let these functions be traced: {names}"));
        }
        Ok(())
    }

    /// Attaches to functions one by one, the most important first, until [`MAX_KPROBES`] or the time limit is reached.
    pub fn some_functions(&mut self, programs: &Loaded<'_>, functions: &[Function]) {
        let began = Instant::now();
        for f in by_weight(functions) {
            if self.functions.len() >= MAX_KPROBES || began.elapsed() > PATIENCE {
                break;
            }
            let place = f.positions.trailing_zeros() as usize;
            let Some(program) = BY_PLACE.get(place).and_then(|name| programs.get(*name)) else { continue };
            // Some functions cannot be traced; skip them.
            match program.attach_kprobe(false, &f.name) {
                Ok(link) => {
                    self.links.push(link);
                    self.functions.push(f.name.clone());
                }
                Err(e) => tracing::debug!("{}: {e}", f.name),
            }
        }
    }
}
