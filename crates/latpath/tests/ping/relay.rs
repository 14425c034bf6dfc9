//! A relay between emitter and reflector that drops, duplicates, delays and reorders messages and adds foreign ones:
//! the counts printed by `latpath ping` equal the relay's.

use crate::link::{adds_up, is, Link, Says, ANSWER_WITHIN};
use latpath_ping::document::ReflectDocument;
use latpath_ping::figures::Report;
use latpath_testkit::waits::until;
use latpath_testkit::{equal, Failed, Trial};
use latpath_testkit::{trial, Lack};
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub fn tests(needs: &[Lack]) -> Vec<Trial> {
    vec![trial("what_a_relay_loses_repeats_delays_reorders_and_adds_is_counted_to_the_last_message", needs, relayed)]
}

/// Fate of a probe or its answer at the relay. Each sequence number has one fate, so both ends' counts are known
/// beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Passes,
    Lost,
    Twice,
    /// Forwarded after the next message.
    Overtaken,
    /// Forwarded after the emitter has given up on it.
    Delayed,
    /// Followed by a foreign message.
    Followed,
}

const SEED: u64 = 61_850;
/// Timeout after which a message counts as lost; longer than any delay on a busy machine.
const LOST_AFTER: Duration = Duration::from_secs(4);
/// Sequence number below which some messages are delayed; the run continues until the emitter has given up on the last
/// of them.
const FIRST: u64 = 1000;

/// The fate of a number in one direction: 1 % each are dropped, duplicated, overtaken, or followed by a foreign
/// message.
fn fate(sequence: u64, there: bool) -> Fate {
    // splitmix64
    let mut z = (SEED + sequence).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    match ((z ^ (z >> 31)) % 100, there) {
        (0, true) | (1, false) => Fate::Lost,
        (2, true) | (3, false) => Fate::Twice,
        (4, true) | (5, false) => Fate::Overtaken,
        (6, true) | (7, false) => Fate::Followed,
        (8, false) if sequence < FIRST => Fate::Delayed,
        _ => Fate::Passes,
    }
}

/// Record of one direction.
#[derive(Default)]
struct Book {
    got: u64,
    /// Sequence numbers forwarded, in order, without those of delayed messages.
    passed: Vec<u64>,
    lost: u64,
    delayed: u64,
    foreign: u64,
}

/// State shared by both directions.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// The emitter's address, learnt from its first message.
    emitter: Mutex<Option<SocketAddr>>,
    /// Send times of the newest probe and of the one before it, by the emitter's clock.
    newest: AtomicI64,
    before: AtomicI64,
    /// The highest sequence number whose answer has arrived, and the number of messages still delayed.
    answered: AtomicU64,
    delayed: AtomicU64,
}

struct Direction {
    from: UdpSocket,
    to: UdpSocket,
    there: bool,
    shared: Arc<Shared>,
    book: Book,
    overtaken: Option<Vec<u8>>,
    /// Delayed answers, each with the send time of the newest probe at the moment when the relay received the answer.
    delayed: Vec<(i64, Vec<u8>)>,
}

fn sequence(message: &[u8]) -> u64 {
    message[8..16].try_into().map_or(0, u64::from_be_bytes)
}

impl Direction {
    fn run(mut self) -> Book {
        let (mut buffer, shared) = ([0; 2000], Arc::clone(&self.shared));
        while !shared.stop.load(Ordering::Relaxed) {
            if let Ok((len, from)) = self.from.recv_from(&mut buffer) {
                if self.there {
                    *shared.emitter.lock().expect("no panic") = Some(from);
                }
                self.take(&buffer[..len]);
            }
            // After each probe, the emitter gives up on older ones. It has certainly done so for the probe before the
            // newest.
            let given_up = shared.before.load(Ordering::Relaxed) - LOST_AFTER.as_nanos() as i64;
            let due: Vec<_> = self.delayed.extract_if(.., |(at, _)| *at < given_up).collect();
            due.iter().for_each(|(_, message)| self.send(message));
            shared.delayed.fetch_sub(due.len() as u64, Ordering::Relaxed);
        }
        self.book
    }

    fn send(&self, message: &[u8]) {
        // A message that cannot be sent is missing from the counts, which fails the test.
        let _ = match (self.there, *self.shared.emitter.lock().expect("no panic")) {
            (true, _) => self.to.send(message),
            (false, Some(emitter)) => self.to.send_to(message, emitter),
            (false, None) => Ok(0),
        };
    }

    fn pass(&mut self, message: &[u8]) {
        self.send(message);
        self.book.passed.push(sequence(message));
    }

    fn take(&mut self, message: &[u8]) {
        // Probes are of kind 0, answers of kind 1. Other messages are forwarded after any message that waits to be
        // overtaken: the last message of a run is one of them.
        if message.len() != 96 || message[3] > 1 {
            if let Some(before) = self.overtaken.take() {
                self.pass(&before);
            }
            return self.send(message);
        }
        self.book.got += 1;
        let shared = Arc::clone(&self.shared);
        if self.there {
            let t1 = message[16..24].try_into().map_or(0, i64::from_be_bytes);
            shared.before.store(shared.newest.swap(t1, Ordering::Relaxed), Ordering::Relaxed);
        } else {
            shared.answered.fetch_max(sequence(message), Ordering::Relaxed);
        }
        match fate(sequence(message), self.there) {
            Fate::Lost => {
                self.book.lost += 1;
                return;
            }
            Fate::Delayed => {
                self.book.delayed += 1;
                self.delayed.push((shared.newest.load(Ordering::Relaxed), message.to_vec()));
                shared.delayed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Fate::Overtaken if self.overtaken.is_none() => {
                self.overtaken = Some(message.to_vec());
                return;
            }
            Fate::Twice => {
                self.pass(message);
                self.pass(message);
            }
            Fate::Followed => {
                self.pass(message);
                self.book.foreign += 1;
                self.send(
                    &b"GOOSE from somewhere else, and long enough to be one of ours"
                        [..20 + self.book.foreign as usize % 40],
                );
            }
            _ => self.pass(message),
        }
        if let Some(before) = self.overtaken.take() {
            self.pass(&before);
        }
    }
}

/// The number of distinct sequence numbers, and of those that follow a higher one.
fn in_order(passed: &[u64]) -> (u64, u64) {
    let (mut known, mut highest, mut reordered) = (HashSet::new(), None, 0);
    for sequence in passed {
        if known.insert(*sequence) {
            reordered += u64::from(highest > Some(sequence));
            highest = highest.max(Some(sequence));
        }
    }
    (known.len() as u64, reordered)
}

fn relayed() -> Result<(), Failed> {
    let link = Link::new()?;
    let reflector = link.reflect("--bind 127.0.0.1")?;
    let (front, back) = link.there.inside(|| -> std::io::Result<_> {
        let (front, back) = (UdpSocket::bind("10.77.0.2:7000")?, UdpSocket::bind("127.0.0.1:0")?);
        back.connect("127.0.0.1:6185")?;
        for socket in [&front, &back] {
            socket.set_read_timeout(Some(Duration::from_millis(5)))?;
            setsockopt(socket, RcvBufForce, &(4 << 20))?;
        }
        Ok((front, back))
    })??;
    let shared = Arc::new(Shared::default());
    let start = |from: &UdpSocket, to: &UdpSocket, there| -> std::io::Result<JoinHandle<Book>> {
        let (from, to, shared) = (from.try_clone()?, to.try_clone()?, Arc::clone(&shared));
        let direction =
            Direction { from, to, there, shared, book: Book::default(), overtaken: None, delayed: Vec::new() };
        Ok(thread::spawn(move || direction.run()))
    };
    let directions = [start(&front, &back, true)?, start(&back, &front, false)?];
    // At this rate the emitter remembers its probes for more than 13 s.
    let emitter = link.start_emit(&format!("10.77.0.2:7000 --rate 300 --lost-after {}s", LOST_AFTER.as_secs()))?;
    let come = until("what was delayed comes", || {
        // A message is overtaken by fewer than 100 others.
        shared.answered.load(Ordering::Relaxed) > FIRST + 100 && shared.delayed.load(Ordering::Relaxed) == 0
    });
    emitter.interrupt();
    let said = emitter.finish(ANSWER_WITHIN);
    shared.stop.store(true, Ordering::Relaxed);
    let [there, back] = directions.map(|d| d.join().expect("the relay does not panic"));
    come?;
    let session = said?.session()?;
    adds_up(&session)?;

    let Report { counts, reflector: seen, lost_there, lost_back, .. } = session.report;
    let seen = seen.ok_or("no report of the reflector")?;
    let (received, reordered_there) = in_order(&there.passed);
    equal("all probes came to the relay", there.got, counts.sent)?;
    equal("received", seen.received, received)?;
    equal("twice there", seen.duplicates, there.passed.len() as u64 - received)?;
    equal("out of order there", seen.reordered, reordered_there)?;
    equal("foreign there", seen.foreign, there.foreign)?;
    equal("lost there", lost_there, Some(there.lost))?;
    let (answered, reordered) = in_order(&back.passed);
    equal("answered", counts.answered, answered)?;
    equal("late", counts.late, back.delayed)?;
    equal("twice", counts.duplicates, back.passed.len() as u64 - answered)?;
    equal("out of order", counts.reordered, reordered)?;
    equal("foreign", counts.foreign, back.foreign)?;
    equal("lost back", lost_back, Some(back.lost))?;
    let each = [there.lost, there.foreign, back.lost, back.foreign, back.delayed, reordered_there, reordered];
    is(&format!("there was some of everything: {each:?}"), each.iter().all(|n| *n > 5))?;

    let reflected: ReflectDocument = reflector.ends()?.json()?;
    equal("the reflector's own count", reflected.sessions[0].received, received)?;
    equal("and of foreign ones", reflected.sum.foreign, there.foreign)
}
