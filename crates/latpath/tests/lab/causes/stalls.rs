//! Activities of the application that delay its reading, and locks that other threads hold.

use super::{
    fault::{ns, spin_until, take_cpu_until, Done, Injection, Rounds, Words},
    scenario::ITS_CPU,
};
use latpath_linux::monotonic;
use latpath_wire::thread::{pin, set_fifo, set_name};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::{
        fs::{FileExt, OpenOptionsExt},
        net::UnixStream,
    },
    path::PathBuf,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

/// An activity that delays the reading, normally for at least this time.
pub type Stall = Box<dyn FnMut(Duration) -> io::Result<()>>;

/// Returns the stall that `stall=` names.
pub fn stall(words: &Words) -> io::Result<Stall> {
    let kind: String = words.get("stall").unwrap_or("sleep".into());
    Ok(match kind.as_str() {
        "sleep" => Box::new(|busy| {
            latpath_testkit::waits::fault_for(busy);
            Ok(())
        }),
        "spin" => Box::new(|busy| {
            spin_until(monotonic() + ns(busy));
            Ok(())
        }),
        "server" => {
            let (mut here, mut there) = UnixStream::pair()?;
            let busy = words.time("busy")?;
            thread::spawn(move || {
                beside_the_publisher("server");
                let mut request = [0];
                while there.read_exact(&mut request).is_ok() {
                    latpath_testkit::waits::fault_for(busy);
                    if there.write_all(&request).is_err() {
                        break;
                    }
                }
            });
            Box::new(move |_| {
                here.write_all(&[1])?;
                here.read_exact(&mut [0])
            })
        }
        "faults" => Box::new(|busy| until(busy, || touch_new_memory(1 << 20))),
        "reclaim" => {
            // Reading the file's holes fills pages of the page cache, which are charged to the control group.
            let (file, mut at, mut piece) = (nameless("reclaim", 0)?, 0, vec![0; 256 << 10]);
            file.set_len(WHOLE_FILE)?;
            Box::new(move |busy| {
                until(busy, || {
                    at = (at + piece.len() as u64) % WHOLE_FILE;
                    file.read_exact_at(&mut piece, at)
                })
            })
        }
        // The duration of a read depends on the control group's limit.
        "io" => {
            const PIECE: usize = 32 << 10;
            let file = nameless("io", libc::O_DIRECT)?;
            let memory = vec![0; 2 * PIECE];
            let begin = memory.as_ptr().align_offset(4096);
            file.write_all_at(&memory[begin..begin + PIECE], 0)?;
            let mut memory = memory;
            Box::new(move |_| file.read_exact_at(&mut memory[begin..begin + PIECE], 0))
        }
        other => return Err(io::Error::other(format!("{other}: no such stall"))),
    })
}

const WHOLE_FILE: u64 = 1 << 30;

/// Creates a file without a name, which is removed when this process ends.
fn nameless(name: &str, flags: i32) -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("latpath-{name}-{}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).custom_flags(flags).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

fn until(busy: Duration, mut piece: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let end = monotonic() + ns(busy);
    while monotonic() < end {
        piece()?;
    }
    Ok(())
}

/// Touches newly mapped memory: the first access to each page is a page fault.
fn touch_new_memory(bytes: usize) -> io::Result<()> {
    // SAFETY: a new mapping, unmapped before its address is dropped.
    unsafe {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let memory = libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0);
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE);
        (0..bytes).step_by(4096).for_each(|at| memory.cast::<u8>().add(at).write_volatile(1));
        libc::munmap(memory, bytes);
    }
    Ok(())
}

/// Makes the calling thread a real-time helper of the application on the publisher's CPU.
fn beside_the_publisher(name: &str) {
    set_name(name);
    pin(ITS_CPU).expect("the publisher is there too");
    set_fifo(60).expect("the application is in real time");
}

/// A lock that the application needs for each frame, and that another of its threads holds at times.
#[derive(Clone)]
pub enum Lock {
    /// A futex.
    Futex(Arc<Mutex<()>>),
    /// The lock of a file's inode, which writers hold.
    Kernel(Arc<File>),
}

impl Lock {
    /// Creates the lock that `lock=` names. [`Self::hold`] starts the thread that holds it.
    pub fn of(words: &Words) -> io::Result<Option<Self>> {
        let kind: String = words.get("lock").unwrap_or_default();
        Ok(match kind.as_str() {
            "" => None,
            "kernel" => {
                let path = PathBuf::from(format!("/dev/shm/latpath-lock-{}", std::process::id()));
                let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
                fs::remove_file(path)?;
                Some(Self::Kernel(Arc::new(file)))
            }
            _ => Some(Self::Futex(Arc::default())),
        })
    }

    /// Takes the lock and releases it.
    pub fn pass(&self) -> io::Result<()> {
        match self {
            Self::Futex(lock) => drop(lock.lock()),
            Self::Kernel(file) => drop(file.write_at(&[1], 0)?),
        }
        Ok(())
    }

    /// Starts a thread that takes the lock from time to time and works while it holds it. With `hog=1`, a real-time
    /// thread takes the CPU of that thread meanwhile.
    pub fn hold(self, words: &Words) -> io::Result<JoinHandle<io::Result<()>>> {
        let (rounds, is_hogged) = (Rounds::of(words)?, words.get("hog").unwrap_or(0) == 1);
        let after = matches!(self, Self::Kernel(_)).then_some(Duration::from_millis(1));
        let hog = is_hogged.then(|| Hog::new(words.time("busy").unwrap_or_default(), after.unwrap_or_default()));
        Ok(thread::spawn(move || {
            beside_the_publisher("holder");
            let memory = vec![1; 16 << 20];
            rounds.each(|busy| {
                let begin = monotonic();
                let wait = || match &hog {
                    Some(hog) => hog.begin(),
                    None => spin_until(begin + ns(busy)),
                };
                let held = match &self {
                    Self::Futex(lock) => {
                        let _held = lock.lock();
                        wait();
                        hog.as_ref().map(Hog::ended)
                    }
                    Self::Kernel(file) => {
                        wait();
                        file.write_all_at(&memory, 0)?;
                        let end = monotonic();
                        // If the hog ended after the lock was released, the injection does not count.
                        hog.as_ref().map(|hog| Some(hog.ended()).filter(|p| p.bounds().1 < end).unwrap_or_default())
                    }
                };
                Ok(held.map_or(Done::Now, Done::In))
            })
        }))
    }
}

/// Takes the publisher's CPU from every thread except the publisher.
struct Hog {
    thread: JoinHandle<()>,
    pieces: Arc<Mutex<Option<Injection>>>,
}

impl Hog {
    fn new(busy: Duration, after: Duration) -> Self {
        let pieces = Arc::new(Mutex::new(None));
        let found = pieces.clone();
        let thread = thread::spawn(move || {
            set_name("hog");
            pin(ITS_CPU).expect("the publisher is there too");
            set_fifo(90).expect("the application is in real time");
            loop {
                thread::park();
                latpath_testkit::waits::fault_for(after);
                let had = take_cpu_until(monotonic() + ns(busy), super::fault::GAP);
                *found.lock().expect("nothing fails while it is held") = Some(Injection::in_pieces(had));
            }
        });
        Self { thread, pieces }
    }

    fn begin(&self) {
        self.thread.thread().unpark();
    }

    /// Waits until the hog is done; returns the intervals in which it had the CPU.
    fn ended(&self) -> Injection {
        loop {
            if let Some(pieces) = self.pieces.lock().expect("nothing fails while it is held").take() {
                return pieces;
            }
            thread::yield_now();
        }
    }
}
