//! Addresses of agents.

use std::path::PathBuf;
use std::{fmt, str::FromStr};

/// Address of an agent, as the user writes it after `NAME=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `ssh:[user@]host[:port]`: starts an agent on that host.
    Ssh {
        /// Login name, if it differs from the user's own.
        user: Option<String>,
        /// Host name or address.
        host: String,
        /// Port, if not 22.
        port: Option<u16>,
    },
    /// `unix:PATH`: an agent's socket, or the socket behind a virtio-serial port of a QEMU guest.
    Unix(PathBuf),
    /// `vsock:CID:PORT`: an agent in the guest with this context identifier.
    Vsock {
        /// The guest's context identifier.
        cid: u32,
        /// The agent's port.
        port: u32,
    },
    /// `exec:COMMAND`: a shell command with an agent at its standard input and output.
    Exec(String),
}

/// Why a string is not an agent's address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?}: {why}; write ssh:[USER@]HOST[:PORT], unix:PATH, vsock:CID:PORT or exec:COMMAND")]
pub struct BadAddress {
    text: String,
    why: &'static str,
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(s: &str) -> Result<Self, BadAddress> {
        let bad = |why| BadAddress { text: s.into(), why };
        let (kind, rest) = s.split_once(':').ok_or_else(|| bad("not an agent's address"))?;
        match kind {
            "ssh" => ssh(rest).map_err(bad),
            "unix" if rest.is_empty() => Err(bad("the socket's path is missing")),
            "unix" => Ok(Self::Unix(rest.into())),
            "vsock" => {
                let numbers =
                    rest.split_once(':').and_then(|(cid, port)| Some((cid.parse().ok()?, port.parse().ok()?)));
                let (cid, port) = numbers.ok_or_else(|| bad("a vsock address is two numbers"))?;
                Ok(Self::Vsock { cid, port })
            }
            "exec" if rest.trim().is_empty() => Err(bad("the command is missing")),
            "exec" => Ok(Self::Exec(rest.into())),
            _ => Err(bad("not an agent's address")),
        }
    }
}

fn ssh(rest: &str) -> Result<Address, &'static str> {
    let (user, place) = match rest.rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, rest),
    };
    let port_of = |text: &str| text.parse::<u16>().ok().filter(|p| *p > 0).ok_or("a port is 1 to 65535");
    let (host, port) = match place.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(port_of(rest.strip_prefix(':').ok_or("a port follows a colon")?)?)),
        // More than one colon: a bare IPv6 address.
        None if place.matches(':').count() == 1 => {
            let (host, port) = place.split_once(':').ok_or("a port follows a colon")?;
            (host, Some(port_of(port)?))
        }
        None => (place, None),
    };
    // ssh would take a leading dash for an option.
    let plain =
        |s: &str| !s.is_empty() && !s.starts_with('-') && !s.contains(|c: char| c.is_whitespace() || c.is_control());
    if !plain(host) || !user.is_none_or(plain) {
        return Err("the host or user is missing or invalid");
    }
    Ok(Address::Ssh { user: user.map(Into::into), host: host.into(), port })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ssh { user, host, port } => {
                f.write_str("ssh:")?;
                if let Some(user) = user {
                    write!(f, "{user}@")?;
                }
                match (host.contains(':'), port) {
                    (true, Some(port)) => write!(f, "[{host}]:{port}"),
                    (true, None) => write!(f, "[{host}]"),
                    (false, Some(port)) => write!(f, "{host}:{port}"),
                    (false, None) => f.write_str(host),
                }
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
            Self::Exec(command) => write!(f, "exec:{command}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_written() {
        for text in [
            "ssh:guest",
            "ssh:root@guest",
            "ssh:root@guest:2222",
            "ssh:root@[fe80::1]:2222",
            "ssh:[::1]",
            "unix:/run/vm/agent.sock",
            "vsock:42:5000",
            "exec:ssh -J gateway root@guest latpath agent --stdio",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("ssh:::1".parse::<Address>().unwrap().to_string(), "ssh:[::1]");
    }

    #[test]
    fn invalid_addresses_are_refused_with_the_syntax() {
        for text in [
            "guest",
            "tcp:guest:5",
            "ssh:",
            "ssh:-oProxyCommand=x",
            "ssh:root@",
            "ssh:@host",
            "ssh:host:0",
            "ssh:host:99999",
            "ssh:a b",
            "unix:",
            "vsock:3",
            "vsock:-1:5",
            "exec: ",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("vsock:CID:PORT"), "{error}");
        }
    }
}
