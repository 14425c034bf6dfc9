//! Fetches debugging information by build-id from the servers of `DEBUGINFOD_URLS`, with elfutils' library if it is
//! installed: cache, timeouts, proxies and certificates are then those of gdb and perf on the same machine, and latpath
//! itself implements neither HTTP nor TLS.

use libc::{c_char, c_int, c_long, c_uchar, c_void};
use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::Mutex;

const LIBRARY: &CStr = c"libdebuginfod.so.1";
/// Maximum number of bytes fetched for one profile; guests choose the files.
pub(crate) const MAX_BYTES: c_long = 2 << 30;
/// Number of bytes of completely fetched files, and of the file in progress (`UNDER_WAY`).
static FETCHED: AtomicI64 = AtomicI64::new(0);
static UNDER_WAY: AtomicI64 = AtomicI64::new(0);

pub(crate) fn is_too_much() -> bool {
    FETCHED.load(Ordering::SeqCst) + UNDER_WAY.load(Ordering::SeqCst) > MAX_BYTES
}

/// Whether the user has set `DEBUGINFOD_URLS`, so that debugging information is fetched.
pub(crate) fn is_requested() -> bool {
    std::env::var_os("DEBUGINFOD_URLS").is_some_and(|urls| !urls.as_bytes().trim_ascii().is_empty())
}

/// Reasons for which no file is available.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// The servers do not have the file.
    NotThere,
    /// A server failed.
    Server(io::Error),
}

/// Whether fetching is cancelled in this process.
static STOP: AtomicBool = AtomicBool::new(false);
/// Held while a client exists, so that there is only one: an earlier client may still hang.
static CLIENT: Mutex<()> = Mutex::new(());

/// Cancels the fetch in progress and all later ones.
pub(crate) fn stop() {
    STOP.store(true, Ordering::SeqCst);
}

/// Whether fetching was cancelled.
pub(crate) fn is_stopped() -> bool {
    STOP.load(Ordering::SeqCst)
}

/// Runs `work` with a client.
///
/// # Errors
/// If the library is missing or too old.
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

/// The library's callback, called at least once per second while it waits; a nonzero result cancels the fetch.
extern "C" fn progress(_: *mut c_void, bytes: c_long, of: c_long) -> c_int {
    UNDER_WAY.store(bytes.max(of), Ordering::SeqCst);
    (is_stopped() || is_too_much()).into()
}

impl Client {
    fn open() -> Result<Self, String> {
        let said = || {
            // SAFETY: returns a string that is valid until this thread's next call, or null.
            let text = unsafe { libc::dlerror() };
            match text.is_null() {
                true => "no reason given".to_owned(),
                // SAFETY: not null, and as above.
                false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            }
        };
        // SAFETY: the name is a C string; the library's constructors run in any program linked with it.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(said());
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library stays loaded until the process ends.
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
        // SAFETY: the types are those of elfutils/debuginfod.h, since 0.178.
        let (begin, end, find, set_progress) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Begin>(begin),
                std::mem::transmute::<*mut c_void, End>(end),
                std::mem::transmute::<*mut c_void, Find>(find),
                std::mem::transmute::<*mut c_void, SetProgress>(set_progress),
            )
        };
        // SAFETY: the function has no preconditions.
        let client = unsafe { begin() };
        if client.is_null() {
            return Err(format!("{}: no memory", LIBRARY.to_string_lossy()));
        }
        // SAFETY: the client was just created; the function is static.
        unsafe { set_progress(client, progress) };
        Ok(Self { client, find, end })
    }

    /// Returns the file with a build-id's debugging information, from the cache or from a server.
    pub fn debug_file(&self, build_id: &[u8]) -> Result<PathBuf, FetchError> {
        // The library takes a build-id of length 0 for a hexadecimal string that ends with a NUL.
        if build_id.is_empty() {
            return Err(FetchError::NotThere);
        }
        let mut path: *mut c_char = std::ptr::null_mut();
        // SAFETY: the client is valid; the bytes and the path's variable outlive the call.
        let fd = unsafe { (self.find)(self.client, build_id.as_ptr(), build_id.len() as c_int, &mut path) };
        if !is_too_much() {
            FETCHED.fetch_add(UNDER_WAY.swap(0, Ordering::SeqCst), Ordering::SeqCst);
        }
        if fd < 0 {
            return Err(match -fd {
                // The client returns the same error for any cancelled fetch.
                _ if is_too_much() => FetchError::Server(io::ErrorKind::FileTooLarge.into()),
                libc::ENOENT => FetchError::NotThere,
                error => FetchError::Server(io::Error::from_raw_os_error(error)),
            });
        }
        // SAFETY: the descriptor is ours.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        if path.is_null() {
            return Err(FetchError::NotThere);
        }
        // SAFETY: a string from malloc, owned by the caller.
        let owned = unsafe { CStr::from_ptr(path) }.to_bytes().to_owned();
        // SAFETY: as above; the string is not used afterwards.
        unsafe { libc::free(path.cast()) };
        Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&owned)))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: created by debuginfod_begin, and ended only here.
        unsafe { (self.end)(self.client) };
    }
}
