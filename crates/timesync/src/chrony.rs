//! Reads chronyd's state over its monitoring protocol (`candm.h` of chrony, version 6): UDP port 323 on loopback, or
//! its unix socket, which only root may use.

use latpath_model::Ns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

const VERSION: u8 = 6;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const N_SOURCES: u16 = 14;
const SOURCE_DATA: u16 = 15;
const TRACKING: u16 = 33;
const REPLY_N_SOURCES: u16 = 2;
const REPLY_SOURCE_DATA: u16 = 3;
const REPLY_TRACKING: u16 = 5;
/// Length of a reply's header, bytes.
const HEADER: usize = 28;
/// Length of each request, bytes: chronyd ignores a request that is shorter than its reply.
const LENGTH: usize = 128;
/// Maximum number of sources read.
const MAX_SOURCES: u32 = 32;
/// Time to wait for an answer.
const ANSWER: Duration = Duration::from_millis(200);
/// chronyd's unix socket.
const SOCKET: &str = "/run/chrony/chronyd.sock";

/// Sockets on which chronyd answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChronyAddress {
    /// UDP port on loopback.
    pub port: u16,
    /// Its unix socket.
    pub socket: PathBuf,
}

impl Default for ChronyAddress {
    fn default() -> Self {
        Self { port: 323, socket: SOCKET.into() }
    }
}

/// State of chronyd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Chrony {
    /// Whether the system clock is synchronised to a source.
    pub synchronised: bool,
    /// The system clock minus chronyd's estimate of the true time, ns; chronyd corrects the difference by slewing.
    pub offset_ns: Ns,
    /// Maximum error of the system clock, ns: `offset_ns`, the root dispersion and half the root delay (RFC 5905).
    pub bound_ns: Ns,
    /// Offset that the last measurement found, ns.
    pub last_offset_ns: Ns,
    /// Time between the last two updates, ns.
    pub update_interval_ns: Ns,
    /// Stratum of this machine.
    pub stratum: u16,
    /// Its sources.
    pub sources: Vec<ChronySource>,
}

/// A source of chronyd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ChronySource {
    /// Address of a server, or the identifier of a reference clock, e.g. `PTP0`.
    pub name: String,
    /// Whether it is a reference clock on this machine, e.g. shared memory or a PHC.
    pub is_reference_clock: bool,
    /// Whether chronyd follows it.
    pub selected: bool,
    /// Why chronyd does not follow it: `falseticker`, `unreachable`, …; `selectable` if it could be followed.
    /// `selected` if it is followed.
    pub state: String,
    /// Time since its last sample, ns.
    pub age_ns: Ns,
    /// Its last measurement: this machine minus the source, ns.
    pub offset_ns: Ns,
    /// Maximum error of that measurement, ns.
    pub error_ns: Ns,
}

impl Chrony {
    /// The source that chronyd follows.
    pub fn selected(&self) -> Option<&ChronySource> {
        self.sources.iter().find(|source| source.selected)
    }
}

enum Line {
    Udp(UdpSocket),
    Unix(UnixDatagram, PathBuf),
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

impl Line {
    fn udp(port: u16) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect((Ipv4Addr::LOCALHOST, port))?;
        socket.set_read_timeout(Some(ANSWER))?;
        Ok(Self::Udp(socket))
    }

    /// Connects to chronyd's unix socket. The client's socket is in the same directory, because chronyd requires that.
    fn unix(server: &Path) -> io::Result<Self> {
        let directory = server.parent().unwrap_or(Path::new("/"));
        let path = directory.join(format!("latpath.{}.sock", std::process::id()));
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path)?;
        let line = Self::Unix(socket, path.clone());
        if let Self::Unix(socket, _) = &line {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
            socket.connect(server)?;
            socket.set_read_timeout(Some(ANSWER))?;
        }
        Ok(line)
    }

    fn send(&self, request: &[u8]) -> io::Result<usize> {
        match self {
            Self::Udp(socket) => socket.send(request),
            Self::Unix(socket, _) => socket.send(request),
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Udp(socket) => socket.recv(buffer),
            Self::Unix(socket, _) => socket.recv(buffer),
        }
    }

    fn ask(&self, command: u16, index: u32, reply: u16, sequence: u32) -> io::Result<Vec<u8>> {
        let mut request = [0; LENGTH];
        (request[0], request[1]) = (VERSION, REQUEST);
        request[4..6].copy_from_slice(&command.to_be_bytes());
        request[8..12].copy_from_slice(&sequence.to_be_bytes());
        request[20..24].copy_from_slice(&index.to_be_bytes());
        self.send(&request)?;
        let mut buffer = [0; 512];
        // Late replies to earlier requests are skipped.
        for _ in 0..4 {
            let length = self.receive(&mut buffer)?;
            if let Some(data) = reply_data(&buffer[..length], command, reply, sequence) {
                return Ok(data.to_vec());
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "chronyd answers in another version of its protocol"))
    }
}

/// Data of a successful reply to the request with this command and sequence number.
fn reply_data(bytes: &[u8], command: u16, reply: u16, sequence: u32) -> Option<&[u8]> {
    let head = bytes.get(..HEADER)?;
    let u16_at = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let is_ours = (head[0], head[1]) == (VERSION, REPLY) && (u16_at(4), u16_at(6), u16_at(8)) == (command, reply, 0);
    (is_ours && head[16..20] == sequence.to_be_bytes()).then_some(&bytes[HEADER..])
}

/// Reads chronyd's state.
///
/// # Errors
/// chronyd is not running, denies access, or sends an unexpected answer.
pub fn read(address: &ChronyAddress) -> io::Result<Chrony> {
    let by_udp = Line::udp(address.port).and_then(|line| read_over(&line));
    match by_udp {
        Err(_) if address.socket.exists() => read_over(&Line::unix(&address.socket)?),
        result => result,
    }
}

fn read_over(line: &Line) -> io::Result<Chrony> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "chronyd's reply is too short");
    let mut chrony = tracking(&line.ask(TRACKING, 0, REPLY_TRACKING, 1)?).ok_or_else(damaged)?;
    let sources = line.ask(N_SOURCES, 0, REPLY_N_SOURCES, 2)?;
    let sources = Fields(&sources).u32(0).ok_or_else(damaged)?.min(MAX_SOURCES);
    for index in 0..sources {
        chrony.sources.push(source(&line.ask(SOURCE_DATA, index, REPLY_SOURCE_DATA, 3 + index)?).ok_or_else(damaged)?);
    }
    Ok(chrony)
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }
    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }
    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_be_bytes)
    }
    /// chrony's floating-point number of seconds (7 bits of exponent, 25 of coefficient), as ns.
    fn ns(&self, at: usize) -> Option<Ns> {
        self.u32(at).map(float_ns)
    }
    /// An address, preceded by its family: 20 bytes.
    fn address(&self, at: usize) -> Option<String> {
        Some(match self.u16(at + 16)? {
            1 => Ipv4Addr::from(self.u32(at)?).to_string(),
            2 => Ipv6Addr::from(self.array::<16>(at)?).to_string(),
            _ => "unresolved".into(),
        })
    }
}

/// Converts a floating-point number of chrony's protocol to ns, saturating and rounding away from zero.
fn float_ns(bits: u32) -> Ns {
    const COEFFICIENT_BITS: u32 = 25;
    let exponent = (bits as i32) >> COEFFICIENT_BITS;
    let coefficient = ((bits << 7) as i32) >> 7;
    let seconds = f64::from(coefficient) * f64::from(exponent - COEFFICIENT_BITS as i32).exp2();
    let ns = seconds * 1e9;
    (if ns < 0.0 { ns.floor() } else { ns.ceil() }) as Ns
}

fn tracking(data: &[u8]) -> Option<Chrony> {
    const LEAP_UNSYNCHRONISED: u16 = 3;
    let f = Fields(data);
    let (correction, delay, dispersion) = (f.ns(40)?, f.ns(64)?, f.ns(68)?);
    let bound_ns = correction.saturating_abs().saturating_add(dispersion).saturating_add(delay / 2).saturating_add(1);
    Some(Chrony {
        synchronised: f.u32(0)? != 0 && f.u16(26)? != LEAP_UNSYNCHRONISED,
        stratum: f.u16(24)?,
        // In chrony's sign, the correction is positive if the clock is slow.
        offset_ns: correction.saturating_neg(),
        bound_ns: bound_ns.max(0),
        last_offset_ns: f.ns(44)?,
        update_interval_ns: f.ns(72)?,
        sources: Vec::new(),
    })
}

fn source(data: &[u8]) -> Option<ChronySource> {
    const REFERENCE_CLOCK: u16 = 2;
    const STATES: [&str; 6] = ["selected", "unreachable", "falseticker", "jittery", "not selected", "selectable"];
    let f = Fields(data);
    let is_reference_clock = f.u16(26)? == REFERENCE_CLOCK;
    let name = match is_reference_clock {
        // For a reference clock, the address field contains its four-letter name.
        true => f.array::<4>(0)?.into_iter().filter(u8::is_ascii_graphic).map(char::from).collect(),
        false => f.address(0)?,
    };
    let state = f.u16(24)?;
    Some(ChronySource {
        name,
        is_reference_clock,
        selected: state == 0,
        state: STATES.get(usize::from(state)).copied().unwrap_or("unknown").into(),
        age_ns: Ns::from(f.u32(32)?).saturating_mul(1_000_000_000),
        offset_ns: f.ns(40)?,
        error_ns: f.ns(44)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Replies of chronyd 4.3 with `local stratum 5` and `refclock SHM 7 refid PTP0`.
    const TRACKING_REPLY: &str = "060200000021000500000000000000000000000100000000000000007f7f01010000000000000000\
        00000000000000000000000000050000000000006b087c2237834cb700000000000000000000000000000000000000000000000000000000\
        0000000000000000";
    const SOURCE_REPLY: &str = "06020000000f000300000000000000000000000300000000000000005054503000000000000000000000\
        000000010000000400000001000200000000ffffffff000000000000000000000000";

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }

    #[test]
    fn replies_of_a_real_chronyd_are_read() {
        let reply = bytes(TRACKING_REPLY);
        let data = reply_data(&reply, TRACKING, REPLY_TRACKING, 1).unwrap();
        let found = tracking(data).unwrap();
        assert_eq!((found.synchronised, found.stratum, found.offset_ns, found.bound_ns), (true, 5, 0, 1));
        let reply = bytes(SOURCE_REPLY);
        let found = source(reply_data(&reply, SOURCE_DATA, REPLY_SOURCE_DATA, 3).unwrap()).unwrap();
        assert_eq!(
            (&*found.name, found.is_reference_clock, found.selected, &*found.state),
            ("PTP0", true, false, "unreachable")
        );
        assert_eq!(reply_data(&reply, SOURCE_DATA, REPLY_SOURCE_DATA, 4), None, "the reply to another request");
    }

    #[test]
    fn the_bound_is_the_offset_plus_dispersion_plus_half_the_delay() {
        // 2^-20 s = 953.67 ns: the coefficient is 2^23, the exponent -18 (the value is c * 2^(e - 25)).
        let float = |exponent: i32, coefficient: u32| ((exponent as u32) << 25) | (coefficient & 0x1FF_FFFF);
        let micro = float(-18, 1 << 23);
        assert_eq!(float_ns(micro), 954);
        assert_eq!(float_ns(float(-18, (1u32 << 23).wrapping_neg())), -954);
        let mut data = [0; 76];
        data[0] = 1;
        for at in [40, 64, 68] {
            data[at..at + 4].copy_from_slice(&micro.to_be_bytes());
        }
        let found = tracking(&data).unwrap();
        assert_eq!((found.offset_ns, found.bound_ns), (-954, 954 + 954 + 477 + 1));
    }

    proptest! {
        #[test]
        fn any_reply_is_handled(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            tracking(&bytes);
            source(&bytes);
            reply_data(&bytes, TRACKING, REPLY_TRACKING, 0);
        }
    }
}
