//! An instrument's window in a guest. The guest runs the instrument in a separate thread; the host limits the size of
//! the result.

use crate::message::{Empty, Message};
use crate::work::{Inbound, Outbound, Worker};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Maximum size of an encoded observation, bytes.
pub const MAX_OBSERVATION: usize = 4 << 20;
/// Interval between [`Observer::step`] calls.
const EVERY: Duration = Duration::from_millis(50);

/// An instrument whose window has begun.
pub trait Observer {
    /// Processes the pending events. Called about twenty times a second.
    fn step(&mut self);
    /// Ends the window and returns the encoded observation; without delay if `stop` is set.
    fn end(self: Box<Self>, stop: &AtomicBool) -> Vec<u8>;
}

/// Constructor of an instrument's observer, called in the instrument's thread.
pub type MakeObserver = Box<dyn FnOnce() -> Result<Box<dyn Observer>, String> + Send>;

/// Report of the instrument's thread.
enum News {
    Begun,
    Ended(Result<Vec<u8>, String>),
}

/// The guest's side of an observation.
pub(crate) struct Observing {
    worker: Worker<News>,
    out: Outbound,
    /// The instrument has ended, or was not attached.
    ended: bool,
}

impl Observing {
    pub fn begin(make: MakeObserver) -> std::io::Result<Self> {
        let worker = Worker::start("lp-observe", move |orders, sender| {
            let mut observer = match make() {
                Ok(observer) => observer,
                Err(why) => return drop(sender.send(News::Ended(Err(why)))),
            };
            if sender.send(News::Begun).is_err() {
                return;
            }
            while !orders.is_stopped() {
                observer.step();
                std::thread::sleep(EVERY);
            }
            let encoded = observer.end(&orders.leave);
            let outcome = match encoded.len() {
                ..=MAX_OBSERVATION => Ok(encoded),
                long => Err(format!("the observation has {long} bytes (limit: {MAX_OBSERVATION})")),
            };
            let _ = sender.send(News::Ended(outcome));
        })?;
        Ok(Self { worker, out: Outbound::default(), ended: false })
    }

    /// Starts an observation that only reports why it was refused.
    pub fn refused(why: String) -> std::io::Result<Self> {
        Self::begin(Box::new(move || Err(why)))
    }

    /// Returns the message that the window has begun, once.
    pub fn tick(&mut self) -> Option<Message> {
        match self.worker.next()? {
            News::Begun => return Some(Message::Observing(Empty {})),
            News::Ended(outcome) => (self.out, self.ended) = (Outbound::reply(outcome), true),
        }
        None
    }

    pub fn has_chunks(&self) -> bool {
        self.out.waiting() > 0
    }

    /// Returns the next piece for the host.
    pub fn piece(&mut self) -> Option<Message> {
        self.out.chunk().map(Message::ObservationChunk)
    }

    /// Ends the window.
    pub fn stop(&self) {
        self.worker.stop();
    }

    /// Whether the instrument has ended and the whole reply has been handed over for sending.
    pub fn is_over(&self) -> bool {
        self.ended && !self.has_chunks()
    }
}

/// The host's side of an observation.
#[derive(Default)]
pub(crate) struct Observed {
    /// Whether the window has begun.
    pub begun: bool,
    /// The encoded observation, or the agent's error.
    pub outcome: Option<Result<Vec<u8>, String>>,
    inbound: Inbound,
}

impl Observed {
    /// Processes a message about the observation. The error describes invalid data.
    pub fn take(&mut self, message: Message) -> Result<(), String> {
        match message {
            Message::Observing(_) if !self.begun && self.outcome.is_none() => self.begun = true,
            Message::ObservationChunk(piece) if self.outcome.is_none() => {
                self.outcome = self.inbound.take(piece, MAX_OBSERVATION, "an observation")?;
                if matches!(self.outcome, Some(Ok(_))) && !self.begun {
                    return Err("the agent sent an observation of a window that it did not begin".into());
                }
            }
            _ => return Err("the agent sent an observation twice".into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Chunk;
    use proptest::prelude::*;

    /// An observer whose observation has this number of bytes.
    struct Counts(usize);

    impl Observer for Counts {
        fn step(&mut self) {}

        fn end(self: Box<Self>, _: &AtomicBool) -> Vec<u8> {
            vec![b'x'; self.0]
        }
    }

    /// Passes an instrument's observation from the guest's side to the host's.
    fn observed(make: MakeObserver) -> (Observing, Observed) {
        let (mut guest, mut host) = (Observing::begin(make).unwrap(), Observed::default());
        while !guest.is_over() {
            match guest.tick().or_else(|| guest.piece()) {
                Some(message) => host.take(message).unwrap(),
                None => std::thread::yield_now(),
            }
            if host.begun {
                guest.stop();
            }
        }
        (guest, host)
    }

    #[test]
    fn an_observation_comes_over_whole_and_one_that_is_too_long_says_so() {
        for bytes in [1, 100_000, MAX_OBSERVATION] {
            let (_, host) = observed(Box::new(move || Ok(Box::new(Counts(bytes)))));
            assert_eq!(host.outcome.map(|outcome| outcome.map(|encoded| encoded.len())), Some(Ok(bytes)));
        }
        let (_, host) = observed(Box::new(|| Ok(Box::new(Counts(MAX_OBSERVATION + 1)))));
        assert!(host.outcome.unwrap().unwrap_err().contains("limit: 4194304"));
    }

    #[test]
    fn an_instrument_that_cannot_be_attached_says_why() {
        let (_, host) = observed(Box::new(|| Err("no BTF\x1b[2J".into())));
        assert_eq!((host.begun, host.outcome), (false, Some(Err("no BTF?[2J".into()))));
    }

    #[test]
    fn lies_about_an_observation_are_refused() {
        let piece = |bytes: &[u8], last| Message::ObservationChunk(Chunk { bytes: bytes.to_vec(), last });
        let mut host = Observed::default();
        let mut endless = (0..40).map(|_| host.take(piece(&[7; 1 << 19], false)));
        assert!(endless.any(|taken| taken.is_err_and(|why| why.contains("too long"))));
        let mut begun = Observed::default();
        begun.take(Message::Observing(Empty {})).unwrap();
        assert!(begun.take(Message::Observing(Empty {})).is_err(), "twice");
        let whole = Outbound::reply(Ok(b"{}".to_vec())).chunk().unwrap();
        begun.take(Message::ObservationChunk(whole.clone())).unwrap();
        assert!(begun.take(Message::ObservationChunk(whole.clone())).is_err(), "a second reply");
        assert!(Observed::default().take(Message::ObservationChunk(whole)).unwrap_err().contains("did not begin"));
    }

    proptest! {
        #[test]
        fn no_piece_makes_the_host_panic(
            pieces in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..200), any::<bool>()), 0..6),
        ) {
            let mut host = Observed::default();
            for (bytes, last) in pieces {
                let _ = host.take(Message::ObservationChunk(Chunk { bytes, last }));
            }
        }
    }
}
