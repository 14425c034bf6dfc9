//! Debugging information by build-id from the servers of `DEBUGINFOD_URLS`, by elfutils' own library where it is
//! installed: then cache, timeouts, proxies and certificates are those of gdb and perf on the same machine, and
//! latpath itself speaks no HTTP and no TLS.

use libc::{c_char, c_int, c_long, c_uchar, c_void};
use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::Mutex;

const LIBRARY: &CStr = c"libdebuginfod.so.1";
/// Maximum bytes that are fetched for one profile: a guest names the files.
pub(crate) const MOST_BYTES: c_long = 2 << 30;
/// Bytes that were fetched, and bytes of the file in progress.
static FETCHED: AtomicI64 = AtomicI64::new(0);
static UNDER_WAY: AtomicI64 = AtomicI64::new(0);

pub(crate) fn is_too_much() -> bool {
    FETCHED.load(Ordering::SeqCst) + UNDER_WAY.load(Ordering::SeqCst) > MOST_BYTES
}

/// Whether the user wants debugging information to be fetched.
pub(crate) fn is_requested() -> bool {
    std::env::var_os("DEBUGINFOD_URLS").is_some_and(|urls| !urls.as_bytes().trim_ascii().is_empty())
}

/// Why there is no file.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// The servers have none.
    NotThere,
    /// The servers do not answer as they should.
    Server(io::Error),
}

/// Cancels the fetch that is in progress in this process.
static STOP: AtomicBool = AtomicBool::new(false);
/// One client at a time: an earlier one may still hang.
static CLIENT: Mutex<()> = Mutex::new(());

/// Cancels the fetch in progress and all that would follow.
pub(crate) fn stop() {
    STOP.store(true, Ordering::SeqCst);
}

/// Whether fetching was cancelled.
pub(crate) fn is_stopped() -> bool {
    STOP.load(Ordering::SeqCst)
}

/// Fetches from now on.
///
/// # Errors
/// If the library is missing, or too old.
pub(crate) fn with_client<T>(work: impl FnOnce(&Client) -> T) -> Result<T, String> {
    let Ok(_one) = CLIENT.try_lock() else { return Err("an earlier request to the servers has not ended".into()) };
    STOP.store(false, Ordering::SeqCst);
    FETCHED.store(0, Ordering::SeqCst);
    UNDER_WAY.store(0, Ordering::SeqCst);
    Ok(work(&Client::open()?))
}

pub(crate) struct Client {
    client: *mut c_void,
    find: Find,
    end: End,
}

type Begin = unsafe extern "C" fn() -> *mut c_void;
type End = unsafe extern "C" fn(*mut c_void);
type Find = unsafe extern "C" fn(*mut c_void, *const c_uchar, c_int, *mut *mut c_char) -> c_int;
type Progress = extern "C" fn(*mut c_void, c_long, c_long) -> c_int;
type SetProgress = unsafe extern "C" fn(*mut c_void, Progress);

/// The library calls it once a second or more while it waits: other than 0 ends that.
extern "C" fn progress(_: *mut c_void, bytes: c_long, of: c_long) -> c_int {
    UNDER_WAY.store(bytes.max(of), Ordering::SeqCst);
    (is_stopped() || is_too_much()).into()
}

impl Client {
    fn open() -> Result<Self, String> {
        let said = || {
            // SAFETY: it returns a string that lives until the next call of this thread, or null.
            let text = unsafe { libc::dlerror() };
            match text.is_null() {
                true => "no reason given".to_owned(),
                // SAFETY: not null, and as above.
                false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            }
        };
        // SAFETY: the name is a C string; the library's constructors are those of any program that is linked with it.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(said());
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library stays loaded as long as the process lives.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            if symbol.is_null() {
                Err(said())
            } else {
                Ok(symbol)
            }
        };
        let begin = symbol(c"debuginfod_begin")?;
        let end = symbol(c"debuginfod_end")?;
        let find = symbol(c"debuginfod_find_debuginfo")?;
        let set_progress = symbol(c"debuginfod_set_progressfn")?;
        // SAFETY: elfutils/debuginfod.h declares them so, since 0.178.
        let (begin, end, find, set_progress) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Begin>(begin),
                std::mem::transmute::<*mut c_void, End>(end),
                std::mem::transmute::<*mut c_void, Find>(find),
                std::mem::transmute::<*mut c_void, SetProgress>(set_progress),
            )
        };
        // SAFETY: no condition.
        let client = unsafe { begin() };
        if client.is_null() {
            return Err(format!("{}: no memory", LIBRARY.to_string_lossy()));
        }
        // SAFETY: the client was just made; the function lives for ever.
        unsafe { set_progress(client, progress) };
        Ok(Self { client, find, end })
    }

    /// The file of a build-id, from the cache or from a server.
    pub fn debug_file(&self, build_id: &[u8]) -> Result<PathBuf, FetchError> {
        // Of no bytes the library would take it for a string that ends with a 0.
        if build_id.is_empty() {
            return Err(FetchError::NotThere);
        }
        let mut path: *mut c_char = std::ptr::null_mut();
        // SAFETY: the client lives; the bytes and the place for the path do during the call.
        let fd = unsafe { (self.find)(self.client, build_id.as_ptr(), build_id.len() as c_int, &mut path) };
        if !is_too_much() {
            FETCHED.fetch_add(UNDER_WAY.swap(0, Ordering::SeqCst), Ordering::SeqCst);
        }
        if fd < 0 {
            return Err(match -fd {
                // The client returns the same error for a fetch that was cancelled.
                _ if is_too_much() => FetchError::Server(io::ErrorKind::FileTooLarge.into()),
                libc::ENOENT => FetchError::NotThere,
                error => FetchError::Server(io::Error::from_raw_os_error(error)),
            });
        }
        // SAFETY: it is ours now.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        if path.is_null() {
            return Err(FetchError::NotThere);
        }
        // SAFETY: a string that malloc made for us.
        let owned = unsafe { CStr::from_ptr(path) }.to_bytes().to_owned();
        // SAFETY: as above; it is not used any more.
        unsafe { libc::free(path.cast()) };
        Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&owned)))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: made by debuginfod_begin, and ended once.
        unsafe { (self.end)(self.client) };
    }
}
