//! UDP flows, over IPv4 and IPv6.

use crate::protocol::{Contents, Info, KernelMatch, ProtocolBytes, Protocol};
use crate::options::{bad, BadStream, Options};
use std::{fmt, net::IpAddr};

/// A UDP flow; unspecified fields match any value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Udp {
    /// Source address; `None` for any.
    pub src: Option<IpAddr>,
    /// Source port; 0 for any.
    pub src_port: u16,
    /// Destination address; `None` for any.
    pub dst: Option<IpAddr>,
    /// Destination port; 0 for any.
    pub dst_port: u16,
}

/// Parses `ADDR:PORT`, `[V6]:PORT`, `ADDR`, `:PORT` or `*`.
fn parse_end(s: &str) -> Option<(Option<IpAddr>, u16)> {
    if s == "*" {
        return Some((None, 0));
    }
    if let Some(port) = s.strip_prefix(':').filter(|p| !p.contains(':')) {
        return Some((None, port.parse().ok()?));
    }
    if let Ok(addr) = s.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Some((Some(addr), 0));
    }
    let sock: std::net::SocketAddr = s.parse().ok()?;
    Some((Some(sock.ip()), sock.port()))
}

fn write_end(addr: Option<IpAddr>, port: u16) -> String {
    match (addr, port) {
        (None, 0) => "*".into(),
        (None, port) => format!(":{port}"),
        (Some(addr), 0) => addr.to_string(),
        (Some(addr), port) => std::net::SocketAddr::new(addr, port).to_string(),
    }
}

fn address(addr: Option<IpAddr>) -> [u8; 16] {
    let mut bytes = [0; 16];
    match addr {
        Some(IpAddr::V4(a)) => bytes[..4].copy_from_slice(&a.octets()),
        Some(IpAddr::V6(a)) => bytes = a.octets(),
        None => {}
    }
    bytes
}

impl Protocol for Udp {
    const INFO: Info = Info {
        prefix: "udp",
        title: "UDP",
        form: "udp:[SRC>]DST:PORT",
        example: "udp:10.0.0.2:5000",
        about: &[
            [
                "`udp:10.0.0.2:5000`, `udp:10.0.0.1:7000>10.0.0.2:5000`",
                "a UDP flow, IPv4 or IPv6 (`[fd00::2]:5000`)",
                "hash of the first 32 bytes of the payload",
            ],
            ["`udp:10.0.0.2:5000,seq=4:4`", "the same", "a big-endian number, 4 bytes at payload offset 4"],
        ],
        options: &[],
        ethertypes: &[0x0800, 0x86DD],
        udp_ports: &[],
        is_listed: false,
        contents: Contents::Nothing,
        key: None,
    };

    fn parse(name: &str, _: &mut Options<'_>) -> Result<Self, BadStream> {
        let (src, dst) = name.split_once('>').unwrap_or(("*", name));
        let why = "an end is ADDR:PORT, [V6]:PORT, ADDR, :PORT or *";
        let (src, src_port) = parse_end(src).ok_or_else(|| bad(src, why))?;
        let (dst, dst_port) = parse_end(dst).ok_or_else(|| bad(dst, why))?;
        if matches!((src, dst), (Some(a), Some(b)) if a.is_ipv4() != b.is_ipv4()) {
            return Err(bad(name, "both ends of a flow are IPv4, or both IPv6"));
        }
        Ok(Self { src, src_port, dst, dst_port })
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.src.is_some() || self.src_port != 0 {
            write!(f, "{}>", write_end(self.src, self.src_port))?;
        }
        write!(f, "{}", write_end(self.dst, self.dst_port))
    }

    fn kernel(&self) -> KernelMatch {
        let version = self.dst.or(self.src).map_or(0, |a| if a.is_ipv4() { 4 } else { 6 });
        let bytes = ProtocolBytes::default().put(&address(self.src)).put(&address(self.dst));
        let bytes = bytes.put(&self.src_port.to_ne_bytes()).put(&self.dst_port.to_ne_bytes());
        let bytes = bytes.put(&[version, self.src.is_some().into(), self.dst.is_some().into()]);
        KernelMatch { name: None, protocol_bytes: bytes }
    }

    fn flow(&self) -> String {
        let address = match self.dst {
            Some(IpAddr::V6(ip)) => format!("udp6,ipv6_dst={ip}"),
            Some(ip) => format!("udp,nw_dst={ip}"),
            None => "udp".into(),
        };
        match self.dst_port {
            0 => address,
            port => format!("{address},tp_dst={port}"),
        }
    }
}
