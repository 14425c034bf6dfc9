//! The address of a reflector.

use crate::cmd::subscribe::mac;
use latpath_model::stream::format_mac;
use latpath_ping::udp::PORT;
use nix::net::if_::{if_indextoname, if_nametoindex};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// Address of a reflector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// UDP to this address.
    Udp(SocketAddr),
    /// Ethernet frames to this MAC address.
    Ethernet([u8; 6]),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(mac) = mac(text) {
            return Ok(Self::Ethernet(mac));
        }
        // %IF names the link of a link-local address: fe80::1%eth0, [fe80::1%eth0]:7000.
        let (text, device) = match text.split_once('%') {
            Some((ip, rest)) => {
                let (device, port) = rest.split_at(rest.find(']').unwrap_or(rest.len()));
                (format!("{ip}{port}"), Some(device))
            }
            None => (text.to_string(), None),
        };
        // An IPv6 address has colons too, so a bare address comes first.
        let address = match text.parse::<IpAddr>() {
            Ok(ip) => Some(SocketAddr::new(ip, PORT)),
            Err(_) => text.parse::<SocketAddr>().ok(),
        };
        match (address, device) {
            (Some(SocketAddr::V6(mut six)), Some(device)) => {
                six.set_scope_id(if_nametoindex(device).map_err(|_| format!("{device}: no such device"))?);
                Ok(Self::Udp(six.into()))
            }
            (Some(address), None) => Ok(Self::Udp(address)),
            (None, None) if is_name(&text) => resolve(&text).map(Self::Udp),
            _ => Err("write an address, e.g. 10.0.0.2, 10.0.0.2:7000, fd00::1, [fd00::1]:7000 or fe80::1%eth0, a host's name, or a MAC address".into()),
        }
    }
}

impl Target {
    /// The target on this device, if one is named; a link-local address needs one.
    pub fn on(self, device: Option<&str>) -> Result<Self, String> {
        match (self, device) {
            (Self::Udp(SocketAddr::V6(six)), None) if six.scope_id() == 0 && six.ip().is_unicast_link_local() => {
                let ip = six.ip();
                Err(format!("{ip} is an address of one link; name the device that leads to it: -i eth0, or {ip}%eth0"))
            }
            (Self::Udp(SocketAddr::V6(mut six)), Some(device))
                if six.scope_id() == 0 && six.ip().is_unicast_link_local() =>
            {
                six.set_scope_id(if_nametoindex(device).map_err(|_| format!("{device}: no such device"))?);
                Ok(Self::Udp(six.into()))
            }
            (target, _) => Ok(target),
        }
    }
}

/// Whether a text can be a host's name, with or without a port; a text without a letter is a mistyped address.
fn is_name(text: &str) -> bool {
    let name = text.split_once(':').map_or(text, |(name, _)| name);
    name.chars().any(|c| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

/// The first address of a host, from this machine's resolver.
fn resolve(text: &str) -> Result<SocketAddr, String> {
    let with_port = if text.contains(':') { text.to_string() } else { format!("{text}:{PORT}") };
    let found = with_port.to_socket_addrs().map_err(|e| format!("no address for this name: {e}"))?.next();
    found.ok_or_else(|| "no address for this name".into())
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Udp(SocketAddr::V6(six)) if six.scope_id() != 0 => {
                let device = if_indextoname(six.scope_id()).ok().and_then(|name| name.into_string().ok());
                let device = device.unwrap_or_else(|| six.scope_id().to_string());
                write!(f, "[{}%{device}]:{}", six.ip(), six.port())
            }
            Self::Udp(address) => address.fmt(f),
            Self::Ethernet(mac) => f.write_str(&format_mac(mac)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_port() {
        let text = |s: &str| s.parse::<Target>().map(|t| t.to_string());
        assert_eq!(text("10.0.0.2").unwrap(), format!("10.0.0.2:{PORT}"));
        assert_eq!(text("10.0.0.2:7").unwrap(), "10.0.0.2:7");
        assert_eq!(text("fd00::1").unwrap(), format!("[fd00::1]:{PORT}"));
        assert_eq!(text("[fd00::1]:7").unwrap(), "[fd00::1]:7");
        assert_eq!(text("fe80::1%lo").unwrap(), format!("[fe80::1%lo]:{PORT}"));
        assert_eq!(text("[fe80::1%lo]:7").unwrap(), "[fe80::1%lo]:7");
        let on = |s: &str, device| s.parse::<Target>().unwrap().on(device).map(|t| t.to_string());
        assert!(on("fe80::1", None).unwrap_err().contains("fe80::1%eth0"));
        assert_eq!(on("fe80::1", Some("lo")).unwrap(), format!("[fe80::1%lo]:{PORT}"));
        assert_eq!(on("10.0.0.2", Some("lo")), on("10.0.0.2", None));
        assert!(text("10.0.0.2%lo").is_err() && text("[fe80::1%lo").is_err());
        assert_eq!(text("02:00:00:00:00:0A").unwrap(), "02:00:00:00:00:0a");
        assert_eq!(text("localhost:7").map(|t| t.ends_with(":7")), Ok(true));
        assert!(text("no-such-host.invalid").unwrap_err().contains("no address for this name"));
        assert!(text("10.0.0").is_err() && text("fe80::1%nothing").is_err());
    }
}
