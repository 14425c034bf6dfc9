//! Work that the agent does for the host in a separate thread, and its reply, sent in parts after all other messages.

use crate::message::{printable, Chunk, Reply, MAX_TEXT};
use latpath_model::text::cut;
use prost::Message as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TryRecvError};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Maximum size of a part, bytes; small, so that time replies are not delayed.
pub(crate) const PIECE: usize = 8 << 10;
/// Maximum number of results waiting for the host; beyond it, the thread blocks.
const MAX_WAITING: usize = 16;

/// A thread that works until it is stopped. Dropping it stops it, and waits for its end.
pub(crate) struct Worker<T> {
    thread: Option<JoinHandle<()>>,
    orders: Arc<Orders>,
    /// `None` once the thread has ended and all its results have been taken.
    results: Option<Receiver<T>>,
}

/// Requests to a [`Worker`]'s thread.
#[derive(Default)]
pub(crate) struct Orders {
    /// Whether to end the work and send the remaining results.
    pub stop: AtomicBool,
    /// Whether to end at once, because nobody will receive the remaining results.
    pub leave: AtomicBool,
}

impl Orders {
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

impl<T: Send + 'static> Worker<T> {
    pub fn start(name: &str, work: impl FnOnce(&Orders, &SyncSender<T>) + Send + 'static) -> std::io::Result<Self> {
        let (sender, results) = sync_channel(MAX_WAITING);
        let orders = Arc::new(Orders::default());
        let heeded = orders.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&heeded, &sender))?;
        Ok(Self { thread: Some(thread), orders, results: Some(results) })
    }

    /// The next result, if there is one.
    pub fn next(&mut self) -> Option<T> {
        match self.results.as_ref()?.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.results = None;
                None
            }
        }
    }

    /// Asks the thread to end; its last results arrive until [`Self::is_over`].
    pub fn stop(&self) {
        self.orders.stop.store(true, Ordering::SeqCst);
    }

    pub fn is_over(&self) -> bool {
        self.results.is_none()
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.orders.leave.store(true, Ordering::SeqCst);
        self.orders.stop.store(true, Ordering::SeqCst);
        // Unblocks a send that is waiting for a free entry.
        self.results = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A reply that the agent is sending, and how many bytes of it have been sent.
#[derive(Default)]
pub(crate) struct Outbound {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbound {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, sent: 0 }
    }

    /// Creates a reply with this content or error.
    pub fn reply(outcome: Result<Vec<u8>, String>) -> Self {
        let reply = match outcome {
            Ok(content) => Reply { error: String::new(), content },
            Err(why) => Reply { error: cut(&why, MAX_TEXT).into(), content: Vec::new() },
        };
        Self::new(reply.encode_to_vec())
    }

    /// Number of bytes not yet sent.
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Returns the next piece, and whether it is the last.
    pub fn piece(&mut self) -> Option<(Vec<u8>, bool)> {
        let rest = &self.bytes[self.sent..];
        let piece = rest[..rest.len().min(PIECE)].to_vec();
        self.sent += piece.len();
        (!piece.is_empty()).then_some((piece, self.sent == self.bytes.len()))
    }

    pub fn chunk(&mut self) -> Option<Chunk> {
        self.piece().map(|(bytes, last)| Chunk { bytes, last })
    }
}

/// The host's side of a reply.
#[derive(Default)]
pub(crate) struct Inbound(Vec<u8>);

impl Inbound {
    /// Adds a part of a reply with at most `most` bytes of content; returns the reply after its last part. The error
    /// describes invalid data.
    pub fn take(&mut self, piece: Chunk, most: usize, what: &str) -> Result<Option<Result<Vec<u8>, String>>, String> {
        if self.0.len() + piece.bytes.len() > most + MAX_TEXT {
            return Err(format!("the agent sent {what} that is too long"));
        }
        self.0.extend(piece.bytes);
        if !piece.last {
            return Ok(None);
        }
        let bytes = std::mem::take(&mut self.0);
        let reply =
            Reply::decode(&bytes[..]).map_err(|e| format!("the agent sent {what} that cannot be read ({e})"))?;
        Ok(Some(match reply.error.is_empty() {
            true => Ok(reply.content),
            false => Err(printable(&reply.error)),
        }))
    }
}
