//! Who is asked.

use crate::cmd::subscribe::mac;
use latpath_ping::udp::PORT;
use latpath_words::stream::format_mac;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Where a reflector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// At an address, by UDP.
    Udp(SocketAddr),
    /// At a MAC address, by frames.
    Ethernet([u8; 6]),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(mac) = mac(text) {
            return Ok(Self::Ethernet(mac));
        }
        // An IPv6 address has colons too, so a bare address comes first. %IF names the link of a link-local one.
        let (text, scope) = match text.split_once('%') {
            Some((ip, device)) => {
                let index = nix::net::if_::if_nametoindex(device).map_err(|_| format!("{device}: no such device"))?;
                (ip, index)
            }
            None => (text, 0),
        };
        let address = match text.parse::<IpAddr>() {
            Ok(ip) => Some(SocketAddr::new(ip, PORT)),
            Err(_) => text.parse::<SocketAddr>().ok(),
        };
        match address {
            Some(SocketAddr::V6(mut six)) => {
                six.set_scope_id(scope);
                Ok(Self::Udp(six.into()))
            }
            Some(four) => Ok(Self::Udp(four)),
            None => Err("write an address as 10.0.0.2, 10.0.0.2:7000, fd00::1, [fd00::1]:7000 or fe80::1%eth0, or a MAC address".into()),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
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
        assert_eq!(text("fe80::1%lo").unwrap(), format!("[fe80::1%1]:{PORT}"));
        assert_eq!(text("02:00:00:00:00:0A").unwrap(), "02:00:00:00:00:0a");
        assert!(text("10.0.0").is_err() && text("fe80::1%nothing").is_err());
    }
}
