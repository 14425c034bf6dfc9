//! A scripted ptp4l: answers management messages on a unix socket with whatever a test sets.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The daemon's answers.
#[derive(Clone, Debug)]
pub struct PtpScript {
    /// domainNumber; requests for other domains are ignored.
    pub domain: u8,
    /// transportSpecific; requests with another value are ignored.
    pub transport_specific: u8,
    /// Identity of the clock.
    pub identity: [u8; 8],
    /// Identity of the grandmaster.
    pub grandmaster: [u8; 8],
    /// State of the port: 9 SLAVE, 2 FAULTY, 4 LISTENING, 8 UNCALIBRATED, 6 MASTER.
    pub port_state: u8,
    /// Offset from the master, ns.
    pub offset_ns: i64,
    /// Mean path delay, ns.
    pub path_delay_ns: i64,
    /// Whether each answer contains a new measurement.
    pub measures: bool,
    /// The port's device.
    pub device: String,
    /// Whether the NIC takes the timestamps.
    pub in_hardware: bool,
    /// Whether the daemon answers at all.
    pub answers: bool,
    /// Bytes to send instead of each answer, for tests of hostile answers.
    pub garbage: Option<Vec<u8>>,
}

impl Default for PtpScript {
    /// A slave with software timestamps in domain 24, 40 ns from its master.
    fn default() -> Self {
        Self {
            domain: 24,
            transport_specific: 0,
            identity: [2, 0, 0, 0xff, 0xfe, 0, 0, 1],
            grandmaster: [2, 0, 0, 0xff, 0xfe, 0, 0, 9],
            port_state: 9,
            offset_ns: 40,
            path_delay_ns: 200,
            measures: true,
            device: "lo".into(),
            in_hardware: false,
            answers: true,
            garbage: None,
        }
    }
}

/// A running daemon; dropping it stops the daemon and removes its socket.
pub struct PtpDaemon {
    path: PathBuf,
    script: Arc<Mutex<PtpScript>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PtpDaemon {
    /// Binds the socket, and answers requests from now on.
    ///
    /// # Panics
    /// If the socket cannot be bound.
    pub fn start(path: &Path, script: PtpScript) -> Self {
        let socket = UnixDatagram::bind(path).expect("the daemon's socket");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let (script, stop) = (Arc::new(Mutex::new(script)), Arc::new(AtomicBool::new(false)));
        let (shared, ended) = (script.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut served = 0u64;
            while !ended.load(Ordering::Relaxed) {
                let mut request = [0; 256];
                let Ok((length, from)) = socket.recv_from(&mut request) else { continue };
                served += 1;
                let script = shared.lock().expect("no test panicked in it").clone();
                if let Some(answer) = answer(&request[..length], &script, served) {
                    let _ = socket.send_to_addr(&answer, &from);
                }
            }
        });
        Self { path: path.into(), script, stop, thread: Some(thread) }
    }

    /// Changes the answers from now on.
    ///
    /// # Panics
    /// If the daemon panicked.
    pub fn set(&self, change: impl FnOnce(&mut PtpScript)) {
        change(&mut self.script.lock().expect("the daemon runs"));
    }

    /// The path of its socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PtpDaemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The answer of ptp4l 3.1 to a GET, modelled on captured messages; `None` for messages that it ignores.
fn answer(request: &[u8], script: &PtpScript, served: u64) -> Option<Vec<u8>> {
    let head: [u8; 54] = request.get(..54)?.try_into().ok()?;
    let is_ours = head[0] == (script.transport_specific << 4 | 0xD) && head[4] == script.domain;
    if !is_ours || !script.answers {
        return None;
    }
    if let Some(garbage) = &script.garbage {
        return Some(garbage.clone());
    }
    let port_identity = [&script.identity[..], &[0, 1]].concat();
    let ingress = if script.measures { 1_000_000_000 + served as i64 } else { 1_000_000_000 };
    let scaled = |ns: i64| (ns << 16).to_be_bytes();
    let is_grandmaster = script.grandmaster == script.identity;
    let data: Vec<u8> = match u16::from_be_bytes([head[52], head[53]]) {
        0x2000 => [&[3, 0, 0, 1, 128, 248, 0xfe, 0xff, 0xff, 128][..], &script.identity, &[script.domain, 0]].concat(),
        0x2001 => [&[0, 1][..], &scaled(script.offset_ns), &scaled(script.path_delay_ns)].concat(),
        0x2002 => [
            &port_identity[..],
            &[0, 0, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 128, 6, 0x21, 0xff, 0xff, 128],
            &script.grandmaster,
        ]
        .concat(),
        0x2003 => vec![0, 37, 0x04 | 0x08 | 0x10, 0x20],
        0x2004 => [&port_identity[..], &[script.port_state, 0], &scaled(0), &[1, 3, 0, 1, 0, 2]].concat(),
        0xC000 => [
            &script.offset_ns.to_be_bytes()[..],
            &ingress.to_be_bytes(),
            &[0; 22],
            &u32::from(!is_grandmaster).to_be_bytes(),
            &script.grandmaster,
        ]
        .concat(),
        0xC004 => {
            let name = script.device.as_bytes();
            [&port_identity[..], &[script.port_state, script.in_hardware.into(), name.len() as u8], name].concat()
        }
        0xC005 => {
            let mut counters = [[0; 8]; 32];
            counters[0] = served.to_le_bytes();
            counters[17] = served.to_le_bytes();
            [&port_identity[..], &counters.concat()].concat()
        }
        _ => return Some(message(&head, 2, &[0, 2, head[52], head[53], 0, 0, 0, 0])),
    };
    Some(message(&head, 1, &[&head[52..54], &data].concat()))
}

/// A response with one TLV to the request that starts with `head`.
fn message(head: &[u8; 54], kind: u16, tlv: &[u8]) -> Vec<u8> {
    let mut message = head[..48].to_vec();
    message[46] = 2;
    message.extend(kind.to_be_bytes());
    message.extend((tlv.len() as u16).to_be_bytes());
    message.extend(tlv);
    let length = message.len() as u16;
    message[2..4].copy_from_slice(&length.to_be_bytes());
    message
}
