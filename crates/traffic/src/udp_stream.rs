//! A UDP load like netperf's UDP_STREAM: flows of equal datagrams, paced or as fast as possible.

use latpath_linux::monotonic;
use latpath_model::Ns;
use latpath_wire::{thread::wait_until, Pace};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Maximum time between two checks whether the receiver is to stop.
const CHECK: Duration = Duration::from_millis(100);
/// Maximum length of a datagram, bytes.
const MAX_BYTES: usize = 1 << 16;

/// Options of [`send_udp_stream`].
#[derive(Clone, Copy, Debug)]
pub struct UdpStreamOptions {
    /// Address and port of the receiver.
    pub to: SocketAddr,
    /// Number of flows, each with its own socket and thread.
    pub streams: u16,
    /// Payload of each datagram, bytes.
    pub size: u16,
    /// Rate of each flow; `None` for as fast as possible.
    pub pace: Option<Pace>,
}

/// Counts of datagrams sent or received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpStreamed {
    /// Datagrams that the kernel accepted, or delivered.
    pub packets: u64,
    /// Payload of these datagrams, bytes.
    pub bytes: u64,
    /// Datagrams that the kernel refused because a queue was full or there is no receiver.
    pub refused: u64,
    /// Time from the start to the end, ns.
    pub elapsed_ns: Ns,
}

impl UdpStreamed {
    /// Payload rate, bits per second.
    pub fn bits_per_second(&self) -> f64 {
        self.bytes as f64 * 8e9 / self.elapsed_ns.max(1) as f64
    }

    fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.refused += other.refused;
    }
}

/// Sends until `stop` is set.
///
/// # Errors
/// A socket cannot be opened, or a datagram can never be sent: it is too long, or there is no route.
pub fn send_udp_stream(options: &UdpStreamOptions, stop: &AtomicBool) -> io::Result<UdpStreamed> {
    let began = monotonic();
    let any: SocketAddr = match options.to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(any)?;
        socket.connect(options.to)?;
        Ok(socket)
    };
    let sockets = (0..options.streams).map(|_| socket()).collect::<io::Result<Vec<_>>>()?;
    let flows: io::Result<Vec<UdpStreamed>> = thread::scope(|scope| {
        let each = |socket| {
            scope.spawn(move || {
                let sent = send_flow(socket, options, began, stop);
                if sent.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                sent
            })
        };
        let threads: Vec<_> = sockets.iter().map(each).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut all = UdpStreamed { elapsed_ns: monotonic() - began, ..UdpStreamed::default() };
    flows?.iter().for_each(|flow| all.add(flow));
    Ok(all)
}

fn send_flow(socket: &UdpSocket, options: &UdpStreamOptions, began: Ns, stop: &AtomicBool) -> io::Result<UdpStreamed> {
    let payload = vec![0x5a; options.size.into()];
    let mut sent = UdpStreamed::default();
    for number in 0.. {
        if let Some(pace) = options.pace {
            if wait_until(began.saturating_add(pace.due(number)), 0, stop).is_none() {
                break;
            }
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match socket.send(&payload) {
            Ok(bytes) => (sent.packets, sent.bytes) = (sent.packets + 1, sent.bytes + bytes as u64),
            Err(error) if is_refused(&error) => sent.refused += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// Whether an error affects only one datagram: a queue is full, or an ICMP message reported that there is no receiver.
fn is_refused(error: &io::Error) -> bool {
    let is_full = matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EPERM | libc::ENOMEM));
    is_full || matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Receives datagrams on an address and port until `stop` is set.
///
/// # Errors
/// The address is in use, or the socket fails.
pub fn receive_udp_stream(at: SocketAddr, stop: &AtomicBool) -> io::Result<UdpStreamed> {
    let socket = UdpSocket::bind(at)?;
    socket.set_read_timeout(Some(CHECK))?;
    let (mut buffer, mut received, began) = (vec![0; MAX_BYTES], UdpStreamed::default(), monotonic());
    while !stop.load(Ordering::Relaxed) {
        match socket.recv(&mut buffer) {
            Ok(bytes) => (received.packets, received.bytes) = (received.packets + 1, received.bytes + bytes as u64),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    received.elapsed_ns = monotonic() - began;
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(pace: Option<Pace>, enough: u64) -> (UdpStreamed, UdpStreamed) {
        // If another process takes the port in between, the receiver fails, and the test reports that.
        let at = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (stop, stop_sink) = (AtomicBool::new(false), AtomicBool::new(false));
        let options = UdpStreamOptions { to: at, streams: 3, size: 100, pace };
        thread::scope(|scope| {
            let sink = scope.spawn(|| receive_udp_stream(at, &stop_sink).unwrap());
            let sender = scope.spawn(|| send_udp_stream(&options, &stop).unwrap());
            let began = monotonic();
            while monotonic() - began < enough as Ns {
                thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Ordering::Relaxed);
            let sent = sender.join().unwrap();
            thread::sleep(Duration::from_millis(50));
            stop_sink.store(true, Ordering::Relaxed);
            (sent, sink.join().unwrap())
        })
    }

    #[test]
    fn paced_flows_send_no_more_than_their_rate() {
        let (sent, received) = stream(Some(Pace::per_second(100)), 200_000_000);
        let most = 3 * (sent.elapsed_ns / 10_000_000 + 1) as u64;
        assert!(sent.packets > 0 && sent.packets <= most, "{sent:?}");
        assert_eq!(sent.bytes, sent.packets * 100);
        assert!(received.packets <= sent.packets && received.bytes == received.packets * 100, "{received:?}");
    }

    #[test]
    fn without_a_rate_they_send_more() {
        let (sent, received) = stream(None, 100_000_000);
        assert!(sent.packets > 300 && received.packets > 0, "{sent:?} {received:?}");
        assert!(sent.bits_per_second() > 0.0);
    }

    #[test]
    fn a_datagram_that_no_network_carries_is_an_error() {
        let stop = AtomicBool::new(false);
        let options = UdpStreamOptions { to: "127.0.0.1:9".parse().unwrap(), streams: 2, size: u16::MAX, pace: None };
        assert_eq!(send_udp_stream(&options, &stop).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
    }
}
