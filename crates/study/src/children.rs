//! The processes of a trial besides the recording: latpath's own children, and the command line of each process.

use crate::plan::{cpu_list, filled_in, Direction, Load, Publish, UdpStream, Variables};
use crate::process::Surroundings;
use latpath_linux::background::housekeeping;
use latpath_model::StreamSpec;
use latpath_protocols::stream::format_mac;
use latpath_protocols::{sv::Sv, Matcher};
use latpath_traffic::{receive_udp_stream, send_udp_stream, UdpStreamOptions, UdpStreamed};
use latpath_wire::Pace;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// Request from a study to a child process, which runs latpath's own program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildRequest {
    /// Send a UDP load.
    UdpStream {
        /// Address and port of the receiver.
        to: SocketAddr,
        /// Number of flows.
        streams: u16,
        /// Payload, bytes.
        size: u16,
        /// Packets per second per flow; `None` for as many as possible.
        rate: Option<u32>,
    },
    /// Receive a UDP load.
    UdpSink {
        /// Address and port on which to receive.
        at: SocketAddr,
    },
}

/// Sends or receives a UDP load until `stop` is set.
///
/// # Errors
/// If the sockets cannot be used.
pub fn udp_stream(request: ChildRequest, stop: &AtomicBool) -> io::Result<UdpStreamed> {
    match request {
        ChildRequest::UdpStream { to, streams, size, rate } => {
            let options = UdpStreamOptions { to, streams, size, pace: rate.map(Pace::per_second) };
            send_udp_stream(&options, stop)
        }
        ChildRequest::UdpSink { at } => receive_udp_stream(at, stop),
    }
}

/// A process to start: the name of its files in the trial's directory, its command line, and its surroundings.
pub struct Process {
    pub what: &'static str,
    pub words: Vec<OsString>,
    pub surroundings: Surroundings,
}

/// Values shared by all processes of a trial.
pub struct Common<'a> {
    /// Path of latpath's own program.
    pub program: &'a Path,
    /// Values that replace `{NAME}`.
    pub variables: &'a Variables,
    /// Environment variables for commands.
    pub environment: Vec<(String, String)>,
}

impl Common<'_> {
    fn fill(&self, text: &str) -> Result<String, String> {
        filled_in(text, self.variables)
    }

    fn surroundings(&self, namespace: Option<&str>, cpus: Option<&str>) -> Result<Surroundings, String> {
        let open = |name: &str| -> Result<_, String> {
            let name = self.fill(name)?;
            let opened = latpath_net::Netns::named(&name).and_then(|netns| netns.open());
            opened.map(Arc::new).map_err(|e| e.to_string())
        };
        let cpus = cpu_list(cpus)?.or_else(housekeeping);
        let namespace = namespace.map(open).transpose()?;
        Ok(Surroundings { variables: self.environment.clone(), namespace, cpus })
    }

    fn shell(&self, what: &'static str, command: &str, cpus: Option<&str>) -> Result<Process, String> {
        let words = ["sh", "-c", command].map(OsString::from).to_vec();
        Ok(Process { what, words, surroundings: self.surroundings(None, cpus)? })
    }

    /// The application that reads a stream, and its publisher.
    pub fn of_direction(&self, direction: &Direction, stream: &StreamSpec) -> Result<Vec<Process>, String> {
        let mut all = Vec::new();
        if let Some(command) = &direction.reader {
            all.push(self.shell("reader", command, None)?);
        }
        if let Some(command) = &direction.publisher {
            all.push(self.shell("publisher", command, None)?);
        }
        if let Some(publish) = &direction.publish {
            let words = publisher_words(self.program, &self.fill(&publish.device)?, publish, stream);
            let surroundings = self.surroundings(publish.namespace.as_deref(), publish.cpus.as_deref())?;
            all.push(Process { what: "publisher", words, surroundings });
        }
        Ok(all)
    }

    /// The processes of a load.
    pub fn of_load(&self, load: &Load) -> Result<Vec<Process>, String> {
        let cpus = load.cpus.as_deref();
        if let Some(udp) = &load.udp_stream {
            return self.of_udp_stream(udp, cpus);
        }
        let command = match (&load.iperf3, &load.stress_ng, &load.command) {
            // `--time 0`: no time limit. `--json`: iperf3 reports its rate when it is terminated.
            (Some(arguments), ..) => format!("exec iperf3 --time 0 --json {arguments}"),
            (_, Some(arguments), _) => format!("exec stress-ng {arguments}"),
            (.., Some(command)) => command.clone(),
            _ => return Ok(Vec::new()),
        };
        Ok(vec![self.shell("load", &command, cpus)?])
    }

    fn of_udp_stream(&self, udp: &UdpStream, cpus: Option<&str>) -> Result<Vec<Process>, String> {
        let to: SocketAddr = self.fill(&udp.to)?.parse().map_err(|e| format!("{}: {e}", udp.to))?;
        let child = |what, request: ChildRequest, namespace: Option<&str>| -> Result<Process, String> {
            let request = serde_json::to_string(&request).map_err(|e| e.to_string())?;
            let words = vec![self.program.into(), "study".into(), "child".into(), request.into()];
            Ok(Process { what, words, surroundings: self.surroundings(namespace, cpus)? })
        };
        let mut all = Vec::new();
        if let Some(sink) = &udp.sink {
            let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let at = SocketAddr::new(any, to.port());
            all.push(child("sink", ChildRequest::UdpSink { at }, Some(sink))?);
        }
        let UdpStream { streams, size, rate, .. } = *udp;
        let request = ChildRequest::UdpStream { to, streams, size, rate };
        all.push(child("load", request, udp.namespace.as_deref())?);
        Ok(all)
    }
}

/// Arguments of `latpath publish` that publish a stream.
fn publisher_words(program: &Path, device: &str, publish: &Publish, stream: &StreamSpec) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![program.into(), "publish".into(), "--interface".into(), device.into()];
    match &stream.matcher {
        Matcher::Sv(Sv { svid, appid }) => {
            words.extend(["--svid".into(), OsString::from_vec(svid.clone())]);
            if let Some(appid) = appid {
                words.extend(["--appid".into(), appid.to_string().into()]);
            }
            if let Some(vlan) = stream.link.vlan {
                words.extend(["--vlan".into(), vlan.to_string().into()]);
            }
            if let Some(dst) = stream.link.dst {
                words.extend(["--dst".into(), format_mac(&dst).into()]);
            }
        }
        _ => words.extend(["--stream".into(), stream.to_string().into()]),
    }
    words.push("--json".into());
    words.extend(publish.arguments.iter().map(OsString::from));
    words
}
