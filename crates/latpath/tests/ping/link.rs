//! Two namespaces joined by a veth pair, the commands that run in them, and checks that hold for every session. Also
//! tests of a link that goes down, and of one that drops packets.

use latpath_lab::{Lab, Namespace};
use latpath_ping::document::{EmitDocument, ReflectDocument, SessionDocument, SessionEnd};
use latpath_ping::figures::Report;
use latpath_testkit::waits::{is_in_state, says, sent, until, LIMIT};
use latpath_testkit::{equal, Failed, Trial};
use latpath_testkit::{latpath, need_lab, need_root, need_tool, start, trial, Finished, Lack, Started};
use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;
use std::fs;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

/// Time limit of any command.
pub const ANSWER_WITHIN: Duration = LIMIT;
/// Default options of emitters: a reflector that stalls for seconds must not affect the tests.
const PATIENT: [(&str, &str); 2] = [("--lost-after", "10s"), ("--timeout", "60s")];

/// Requirements of these tests.
pub fn need() -> Vec<Lack> {
    vec![need_root(), need_lab()]
}

pub fn tests() -> Vec<Trial> {
    let needs = need();
    let tc = [need_root(), need_lab(), need_tool("tc"), no_drops_by_tc()];
    vec![
        trial("a_cable_that_is_pulled_at_the_reflector_loses_probes_and_the_run_goes_on", &needs, || pulled(false)),
        trial("a_device_that_is_down_for_a_while_refuses_probes_and_the_run_goes_on", &needs, || pulled(true)),
        trial("probes_that_tc_drops_are_lost_there_to_the_last_one", &tc, dropped),
    ]
}

/// A veth pair: `lpe` in namespace `here`, `lpr` in `there`.
pub struct Link {
    pub lab: Lab,
    pub here: Namespace,
    pub there: Namespace,
}

/// Splits a flag and its value in double quotes into two arguments.
fn unquoted(text: &str) -> Vec<String> {
    text.splitn(2, ' ').map(|word| word.trim_matches('"').to_owned()).collect()
}

/// A running reflector.
pub struct Reflector(pub Started);

impl Link {
    /// Creates the link. Addresses `here`: 10.77.0.1, fd77::1 and fe80::77:1; `there`: 10.77.0.2, fd77::2, fe80::77:2,
    /// and 10.77.0.3.
    pub fn new() -> Result<Self, Failed> {
        Self::with(true)
    }

    /// Like [`Link::new`] without IPv6, so that the only packets are those of the test and ARP.
    pub fn of_ipv4() -> Result<Self, Failed> {
        Self::with(false)
    }

    fn with(ipv6: bool) -> Result<Self, Failed> {
        let lab = Lab::new()?;
        let link = Self { here: lab.namespace("here")?, there: lab.namespace("there")?, lab };
        for space in [&link.here, &link.there].into_iter().filter(|_| ipv6) {
            space.inside(|| {
                // A kernel without IPv6 lacks these files, and its IPv6 tests fail by themselves.
                for scope in ["all", "default", "lo"] {
                    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "0");
                    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/accept_ra"), "0");
                    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/router_solicitations"), "0");
                }
            })?;
        }
        link.here.ip(&format!("link add lpe type veth peer name lpr netns {}", link.there.name()))?;
        for (space, device, n) in [(&link.here, "lpe", 1), (&link.there, "lpr", 2)] {
            space.ip(&format!("link set {device} addrgenmode none"))?;
            space.ip(&format!("addr add 10.77.0.{n}/24 dev {device}"))?;
            space.ip(&format!("link set {device} up"))?;
            for address in [format!("fd77::{n}"), format!("fe80::77:{n}")].iter().filter(|_| ipv6) {
                space.ip(&format!("addr add {address}/64 dev {device} nodad"))?;
            }
        }
        link.there.ip("addr add 10.77.0.3/24 dev lpr")?;
        link.passes()?;
        Ok(link)
    }

    /// Starts a reflector at the other end, and waits until it listens.
    pub fn reflect(&self, words: &str) -> Result<Reflector, Failed> {
        let mut started = start(&self.lab, &self.there, latpath(&format!("ping reflect --json {words}")))?;
        says(&mut started, "reflecting at")?;
        Ok(Reflector(started))
    }

    /// Like [`Link::reflect`], with a further flag whose value is in double quotes.
    pub fn reflect_words(&self, words: &str, quoted: &str) -> Result<Reflector, Failed> {
        let mut command = latpath(&format!("ping reflect --json {words}"));
        command.args(unquoted(quoted));
        let mut started = start(&self.lab, &self.there, command)?;
        says(&mut started, "reflecting at")?;
        Ok(Reflector(started))
    }

    /// Starts an emitter at this end with JSON output, with a further flag whose value is in double quotes.
    pub fn start_words(&self, words: &str, quoted: &str) -> Result<Started, Failed> {
        let mut command = latpath(&format!("ping emit --json {words} --lost-after 10s --timeout 60s"));
        command.args(unquoted(quoted));
        start(&self.lab, &self.here, command)
    }

    /// Starts an emitter at this end with JSON output.
    pub fn start_emit(&self, words: &str) -> Result<Started, Failed> {
        self.start_emitter(&format!("--json {words}"))
    }

    /// Runs an emitter at this end to completion.
    pub fn emit(&self, words: &str) -> Result<Finished, Failed> {
        self.start_emit(words)?.finish(ANSWER_WITHIN)
    }

    /// Like [`Link::emit`], with text output.
    pub fn emit_text(&self, words: &str) -> Result<Finished, Failed> {
        self.start_emitter(words)?.finish(ANSWER_WITHIN)
    }

    fn start_emitter(&self, words: &str) -> Result<Started, Failed> {
        let more = PATIENT.iter().filter(|(flag, _)| !words.contains(flag));
        let more: String = more.map(|(flag, value)| format!(" {flag} {value}")).collect();
        start(&self.lab, &self.here, latpath(&format!("ping emit {words}{more}")))
    }

    /// Waits until packets pass in both directions: a device whose peer comes up later drops its frames until the
    /// kernel has brought its link up.
    fn passes(&self) -> Result<(), Failed> {
        let open = |space: &Namespace, address: &str| -> Result<UdpSocket, Failed> {
            let socket = space.inside(|| UdpSocket::bind((address, 9)))??;
            socket.set_read_timeout(Some(Duration::from_millis(10)))?;
            Ok(socket)
        };
        let (here, there) = (open(&self.here, "10.77.0.1")?, open(&self.there, "10.77.0.2")?);
        until("packets pass in both directions", || {
            let asked = here.send_to(b"?", "10.77.0.2:9").and_then(|_| there.recv_from(&mut [0]));
            let answered = asked.and_then(|(_, from)| there.send_to(b"!", from)).and_then(|_| here.recv(&mut [0]));
            answered.is_ok()
        })
    }
}

/// Contents of a file in a process's /proc directory.
fn shown(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// Number of bytes queued at a reflector's socket, according to the kernel, which counts whole buffers.
fn waits_at(pid: u32) -> u64 {
    let port = format!(":{:04X}", latpath_ping::udp::PORT);
    let both = shown(pid, "net/udp") + &shown(pid, "net/udp6");
    let queue = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (_, received) = columns.get(4).filter(|_| columns[1].ends_with(&port))?.split_once(':')?;
        u64::from_str_radix(received, 16).ok()
    };
    both.lines().filter_map(queue).sum()
}

/// Number of messages that an emitter has tried to send, successfully or not, according to the UDP and IP counters of
/// its namespace.
fn tried(emitter: &Started) -> u64 {
    let all = shown(emitter.pid(), "net/snmp");
    let lines: Vec<Vec<&str>> = all.lines().map(|line| line.split_whitespace().collect()).collect();
    let counter = |protocol: &str, name: &str| {
        let of: Vec<_> = lines.iter().filter(|line| line[0] == protocol).collect();
        let at = of.first()?.iter().position(|n| *n == name)?;
        of.get(1)?.get(at)?.parse::<u64>().ok()
    };
    let counters = [("Udp:", "OutDatagrams"), ("Udp:", "SndbufErrors"), ("Ip:", "OutNoRoutes")];
    counters.iter().filter_map(|(protocol, name)| counter(protocol, name)).sum()
}

impl Reflector {
    /// Waits until the reflector has sent `frames` more frames. Nearly all of them are answers; the others are about 20
    /// welcomes, plus one for each 100 ms in which an emitter receives nothing.
    pub fn answers(&mut self, frames: u64) -> Result<(), Failed> {
        let pid = self.0.pid();
        let before = sent(pid, "lpr");
        until(&format!("{frames} answers come"), || sent(pid, "lpr") >= before + frames || !self.0.runs())?;
        is(&format!("it still runs: {}", self.0.said()), self.0.runs())
    }

    /// Stops the reflector with SIGSTOP, until [`Self::goes_on`].
    pub fn stands_still(&self) -> Result<(), Failed> {
        self.0.signal(Signal::SIGSTOP);
        is_in_state(self.0.pid(), 'T')
    }

    /// Resumes the reflector with SIGCONT.
    pub fn goes_on(&self) {
        self.0.signal(Signal::SIGCONT);
    }

    /// Waits until a message is queued for the reflector.
    pub fn is_waited_for(&self) -> Result<(), Failed> {
        until("a message waits for the reflector", || waits_at(self.0.pid()) > 0)
    }

    /// Stops the reflector with SIGINT; returns its output.
    pub fn ends(self) -> Result<Finished, Failed> {
        self.0.interrupt();
        self.0.finish(ANSWER_WITHIN)
    }

    /// Kills the reflector with SIGKILL.
    pub fn kill(self) -> Result<(), Failed> {
        self.0.signal(Signal::SIGKILL);
        self.0.finish(ANSWER_WITHIN).map(drop)
    }
}

/// Documents in a command's output, whatever its exit code.
pub trait Says {
    /// The whole output.
    fn document<T: DeserializeOwned>(&self) -> Result<T, Failed>;
    /// The only session of an emitter.
    fn session(&self) -> Result<SessionDocument, Failed>;
}

impl Says for Finished {
    fn document<T: DeserializeOwned>(&self) -> Result<T, Failed> {
        let document = serde_json::from_str(&self.stdout);
        document.map_err(|e| format!("{e} in {:?}; stderr: {}", self.stdout, self.stderr).into())
    }

    fn session(&self) -> Result<SessionDocument, Failed> {
        let mut sessions = self.document::<EmitDocument>()?.sessions;
        match sessions.len() {
            1 => Ok(sessions.remove(0)),
            n => Err(format!("{n} sessions, should be one: {sessions:?}").into()),
        }
    }
}

/// Fails the test unless `holds` is true.
pub fn is(what: &str, holds: bool) -> Result<(), Failed> {
    match holds {
        true => Ok(()),
        false => Err(format!("not so: {what}").into()),
    }
}

/// Checks that hold for every session.
pub fn adds_up(session: &SessionDocument) -> Result<(), Failed> {
    let (report, counts) = (&session.report, &session.report.counts);
    equal("answered and lost", counts.answered + counts.lost, counts.sent)?;
    equal("round trips", report.round_trip.count, counts.answered)?;
    if let Some(reflector) = report.reflector {
        let (there, back) = report.lost_there.zip(report.lost_back).ok_or("no losses by direction")?;
        equal("lost in either direction, or late", there + back + counts.late, counts.lost)?;
        equal("received there", reflector.received, counts.sent - there)?;
    }
    for worst in &report.worst {
        let parts: Option<i64> = worst.segments_ns.iter().copied().sum();
        equal("parts of one of the worst", parts.unwrap_or(worst.round_trip_ns), worst.round_trip_ns)?;
    }
    // The means are rounded; with incomplete transactions, parts would have different counts.
    if counts.incomplete == 0 && counts.answered > 0 {
        let sum: i64 = report.segments.iter().map(|s| s.times.mean_ns).sum();
        let off = (sum - report.round_trip.mean_ns).abs();
        is(&format!("means sum to the round trip's mean; off by {off} ns"), off <= report.segments.len() as i64)?;
    }
    let histogram: u64 = report.histogram.iter().map(|bucket| bucket.count).sum();
    equal("histogram", histogram + report.overflown, counts.answered)
}

/// Takes the link down at one end. Each step waits for its condition, so the test does not depend on the machine's
/// speed.
fn pulled(here: bool) -> Result<(), Failed> {
    let link = Link::of_ipv4()?;
    // Let the kernel queue at most one probe while it resolves the reflector's address. Otherwise the queued probes
    // would be sent once the link is up again, and would not be lost.
    link.here.inside(|| fs::write("/proc/sys/net/ipv4/neigh/lpe/unres_qlen_bytes", "0"))??;
    let mut reflector = link.reflect("")?;
    let (space, device) = if here { (&link.here, "lpe") } else { (&link.there, "lpr") };
    let emitter = link.start_emit("10.77.0.2 --rate 500 --lost-after 5s --timeout 10m")?;
    reflector.answers(300)?;
    space.ip(&format!("link set {device} down"))?;
    let before = tried(&emitter);
    until("the emitter tries 200 times without a link", || tried(&emitter) >= before + 200)?;
    space.ip(&format!("link set {device} up"))?;
    reflector.answers(300)?;
    emitter.interrupt();
    let said = emitter.finish(ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(0))?;
    let session = said.session()?;
    adds_up(&session)?;
    let counts = &session.report.counts;
    // Some of the 200 messages were hellos.
    let gone = if here { counts.refused } else { counts.lost + counts.refused };
    is(&format!("most of those are lost, or refused: {session:?}"), gone > 100)?;
    let interval = session.report.elapsed_ns / (counts.sent + counts.refused - 1) as i64;
    is(&format!("none is tried twice: {session:?}"), interval >= 2_000_000)?;
    is(&format!("answers come again when the link is there again: {session:?}"), counts.answered > 400)?;
    equal("ended", session.ended, SessionEnd::Stopped)
}

/// tc options that drop exactly the probes whose sequence number ends in the bits 00111.
const DROPS: [&str; 2] = [
    "protocol ip u32 match ip protocol 17 0xff match ip dport 6185 0xffff match u8 0 0xff at 31 match u8 7 0x1f at 43 action drop",
    // The same for kernels without actions; each group of four numbers is an instruction of classic BPF.
    "protocol ip bpf direct-action bytecode 13,40 0 0 12,21 0 9 2048,48 0 0 23,21 0 7 17,40 0 0 36,21 0 5 6185,\
     48 0 0 45,21 0 3 0,48 0 0 57,84 0 0 31,21 1 0 7,6 0 0 4294967295,6 0 0 2",
];

/// Makes tc drop probes that arrive at the reflector.
fn make_tc_drop(space: &Namespace, device: &str) -> Result<(), Failed> {
    let tc = |words: Vec<&str>| -> Result<(), Failed> {
        let output = Command::new("tc").args(["-n", space.name()]).args(&words).output()?;
        let error = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        if output.status.success() {
            Ok(())
        } else {
            Err(error.into())
        }
    };
    tc(vec!["qdisc", "add", "dev", device, "ingress"])?;
    let mut last = Ok(());
    for filter in DROPS {
        let (filter, bytecode) = filter.split_once(" bytecode ").map_or((filter, None), |(f, code)| (f, Some(code)));
        let mut words = vec!["filter", "add", "dev", device, "parent", "ffff:"];
        words.extend(filter.split(' '));
        words.extend(bytecode.into_iter().flat_map(|code| ["bytecode", code]));
        last = tc(words);
        if last.is_ok() {
            break;
        }
    }
    last
}

fn no_drops_by_tc() -> Lack {
    let try_it = || -> Result<(), Failed> {
        let lab = Lab::new()?;
        let space = lab.namespace("tc")?;
        space.ip("link add lptc type veth peer name lptd")?;
        make_tc_drop(&space, "lptc")
    };
    try_it().err().map(|e| format!("needs tc's filters: {}", e.message().unwrap_or("?")))
}

fn dropped() -> Result<(), Failed> {
    let link = Link::new()?;
    let reflector = link.reflect("")?;
    make_tc_drop(&link.there, "lpr")?;
    let session = link.emit("10.77.0.2 --rate 4000 --count 3200 --lost-after 5s")?.session()?;
    adds_up(&session)?;
    let Report { counts, lost_there, lost_back, reflector: seen, .. } = session.report;
    equal("lost, there, back", (counts.lost, lost_there, lost_back), (100, Some(100), Some(0)))?;
    equal("received", seen.map(|seen| seen.received), Some(3100))?;
    let reflected: ReflectDocument = reflector.ends()?.json()?;
    equal("received", reflected.sessions[0].received, 3100)
}
