//! `latpath ping` compared with independent observations of the same packets: tcpdump and the kernel's counters.

use crate::link::{adds_up, is, need, Link, Says, ANSWER_WITHIN};
use latpath_clock::ClockTie;
use latpath_lab::Namespace;
use latpath_testkit::waits::until;
use latpath_testkit::{equal, Failed, Trial};
use latpath_testkit::{need_tool, start, trial, Started};
use pcap_file::pcap::PcapReader;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn tests() -> Vec<Trial> {
    let needs = need();
    let tcpdump: Vec<_> = need().into_iter().chain([need_tool("tcpdump")]).collect();
    let tshark: Vec<_> = tcpdump.iter().cloned().chain([need_tool("tshark")]).collect();
    vec![
        trial("tcpdump_sees_the_same_packets_at_times_that_fit_between_the_stamps", &tcpdump, times),
        trial("tshark_reads_probes_as_the_docs_describe_them", &tshark, bytes),
        trial("the_kernels_counters_count_the_same_packets", &needs, counters),
    ]
}

/// Starts tcpdump on a device, and waits until it listens.
fn tcpdump(link: &Link, space: &Namespace, device: &str) -> Result<(Started, PathBuf), Failed> {
    let file = link.lab.folder().join(format!("{device}.pcap"));
    let mut command = Command::new("tcpdump");
    command
        .args(["-i", device, "-n", "-U", "--immediate-mode", "--time-stamp-precision=nano"])
        // A buffer for 8192 packets, each of which takes the snapshot length, so that none is lost while tcpdump does
        // not run.
        .args(["-B", "16384", "-s", "2048", "-w"])
        .arg(&file);
    command.args(["udp", "and", "port", "6185"]);
    let started = start(&link.lab, space, command)?;
    until("tcpdump listens", || started.said().contains("listening on"))?;
    Ok((started, file))
}

/// Stops tcpdump once its file contains `count` probes and answers, and as many welcomes as hellos.
fn caught(tcpdump: Started, file: &Path, count: usize) -> Result<Seen, Failed> {
    // tcpdump writes each packet when it arrives; a file that ends within a packet is read again.
    let whole = until(&format!("{count} probes and answers, and hellos with welcomes"), || {
        seen(file).is_ok_and(|s| [s.probes.len(), s.answers.len()] == [count; 2] && s.hellos == s.welcomes)
    });
    tcpdump.interrupt();
    let said = tcpdump.finish(ANSWER_WITHIN)?;
    let seen = seen(file)?;
    let counts = (seen.probes.len(), seen.answers.len(), seen.hellos, seen.welcomes);
    whole.map_err(|e| format!("{e:?}, not {counts:?}; tcpdump says: {}", said.stderr))?;
    is(&said.stderr, said.stderr.contains("0 packets dropped by kernel"))?;
    Ok(seen)
}

/// Times of probes and answers by sequence number, in CLOCK_REALTIME, and the counts of other messages.
#[derive(Default)]
struct Seen {
    probes: HashMap<u64, i64>,
    answers: HashMap<u64, i64>,
    hellos: i64,
    welcomes: i64,
}

fn seen(file: &Path) -> Result<Seen, Failed> {
    let (mut reader, mut seen) = (PcapReader::new(File::open(file)?)?, Seen::default());
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        // Skips the Ethernet header, the IPv4 header without options, and the UDP header.
        let message = packet.data.get(42..).ok_or("a packet is too short")?;
        let sequence = u64::from_be_bytes(message[8..16].try_into()?);
        let time = packet.timestamp.as_nanos() as i64;
        let twice = match message[3] {
            0 => seen.probes.insert(sequence, time),
            1 => seen.answers.insert(sequence, time),
            2 => {
                seen.hellos += 1;
                None
            }
            3 => {
                seen.welcomes += 1;
                None
            }
            kind => return Err(format!("a message of kind {kind}").into()),
        };
        is("no packet is seen twice", twice.is_none())?;
    }
    Ok(seen)
}

fn times() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("")?;
    let (here, here_file) = tcpdump(&link, &link.here, "lpe")?;
    let (there, there_file) = tcpdump(&link, &link.there, "lpr")?;
    let log = link.lab.folder().join("log.csv");
    let session = link.emit(&format!("10.77.0.2 --rate 1000 --count 500 --log {}", log.display()))?.session()?;
    adds_up(&session)?;
    equal("answered", session.report.counts.answered, 500)?;
    let (here, there) = (caught(here, &here_file, 500)?, caught(there, &there_file, 500)?);
    for (whose, seen) in [("here", &here), ("there", &there)] {
        is(&format!("{whose}: {} hellos", seen.hellos), seen.hellos >= 16)?;
    }
    let text = std::fs::read_to_string(log)?;
    let mut rows = text.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = rows.next().ok_or("an empty log")?.split(',').collect();
    let column =
        |name: &str| names.iter().position(|n| *n == name).ok_or_else(|| format!("no column {name} in {names:?}"));
    let columns =
        ["sequence", "t1_app_ns", "t1_driver_ns", "t2_kernel_ns", "t3_driver_ns", "t4_kernel_ns", "t4_app_ns"];
    let at: Vec<usize> = columns.iter().map(|name| column(name)).collect::<Result<_, _>>()?;
    let (ahead, ahead_slack) = realtime_ahead();
    let mut compared = 0;
    for row in rows {
        let cells: Vec<&str> = row.split(',').collect();
        let values: Result<Vec<i64>, _> = at.iter().map(|i| cells[*i].parse::<i64>()).collect();
        // The stamps of the very last answers may not have been returned.
        let Ok([sequence, t1_app, t1_driver, t2_kernel, t3_driver, t4_kernel, t4_app]) = values.as_deref() else {
            continue;
        };
        let number = *sequence as u64;
        let [left, back] = [here.probes[&number], here.answers[&number]];
        let [came, left_there] = [there.probes[&number], there.answers[&number]];
        // tcpdump sees an outgoing packet before the driver does, and an incoming one when the kernel receives it. All
        // differences are within one clock; stamps of CLOCK_REALTIME may be off by the error of their conversion.
        let slack = 1_000;
        let left_at = left - ahead;
        let fits = [
            ("the application, then tcpdump", *t1_app <= left_at + ahead_slack),
            ("then the driver", left_at <= *t1_driver + ahead_slack),
            ("the round trip at tcpdump is within ours", back - left <= t4_app - t1_app),
            ("and around the kernel's", back - left + slack >= t4_kernel - t1_driver),
            ("the reflector's is within that", left_there - came <= back - left),
            ("and its driver has the answer after tcpdump", left_there - came <= t3_driver - t2_kernel + slack),
            ("to the reflector", came - left + slack >= t2_kernel - t1_driver),
            ("from the reflector", back - left_there + slack >= t4_kernel - t3_driver),
            ("the kernel's stamp of an answer is tcpdump's", (back - came - (t4_kernel - t2_kernel)).abs() <= slack),
        ];
        for (what, so) in fits {
            is(&format!("probe {sequence}: {what}: {row}; tcpdump {left} {came} {left_there} {back}"), so)?;
        }
        compared += 1;
    }
    is(&format!("nearly all were compared, not {compared}"), compared >= 490)
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC, and the error of this difference, including the clock's slewing over some
/// seconds.
fn realtime_ahead() -> (i64, i64) {
    let tie = (0..100).map(|_| ClockTie::read()).min_by_key(|tie| tie.uncertainty_ns).expect("a hundred readings");
    (tie.realtime_ns - tie.monotonic_ns, tie.uncertainty_ns + 1_000)
}

fn bytes() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("")?;
    let (here, file) = tcpdump(&link, &link.here, "lpe")?;
    let session = link.emit("10.77.0.2 --count 20 --size 128 --dscp 46")?.session()?;
    caught(here, &file, 20)?;
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(&file).args(["-T", "fields"]);
    for field in ["udp.dstport", "udp.length", "ip.dsfield.dscp", "data.data"] {
        command.args(["-e", field]);
    }
    let said = start(&link.lab, &link.here, command)?.finish(ANSWER_WITHIN)?;
    let name = format!("{:08x}", session.session);
    let mut kinds = [0; 4];
    for line in said.stdout.lines() {
        let cells: Vec<&str> = line.split('\t').collect();
        let [port, length, dscp, data] = cells[..] else { return Err(format!("{line:?} of {}", said.stderr).into()) };
        let kind: usize = data[6..8].parse()?;
        kinds[kind] += 1;
        is(line, data.starts_with("4c5001") && data[8..16] == name)?;
        let from_emitter = kind == 0 || kind == 2;
        equal("to the reflector", port == "6185", from_emitter)?;
        equal("DSCP", dscp, if from_emitter { "46" } else { "0" })?;
        equal("length", length, if kind < 2 { "136" } else { "248" })?;
    }
    equal("probes and answers", [kinds[0], kinds[1]], [20, 20])?;
    is("hellos and welcomes", kinds[2] == kinds[3] && kinds[2] > 0)
}

/// Frames and bytes sent and received by a device.
fn counted(space: &Namespace, device: &str) -> Result<[u64; 4], Failed> {
    let counters = space.counters_of(device)?;
    Ok([counters.tx_packets, counters.tx_bytes, counters.rx_packets, counters.rx_bytes])
}

fn counters() -> Result<(), Failed> {
    let link = Link::of_ipv4()?;
    let _reflector = link.reflect("")?;
    // Resolves the address beforehand, which takes packets of its own.
    link.emit("10.77.0.2 --count 1")?.session()?;
    let count = || Ok::<_, Failed>([counted(&link.here, "lpe")?, counted(&link.there, "lpr")?]);
    let before = count()?;
    let session = link.emit("10.77.0.2 --count 1000")?.session()?;
    adds_up(&session)?;
    let since = || -> Result<[[u64; 4]; 2], Failed> {
        let now = count()?;
        Ok([0, 1].map(|end| [0, 1, 2, 3].map(|at| now[end][at] - before[end][at])))
    };
    // A welcome that answers one of the last hellos may arrive after the emitter has ended.
    until("each message has its answer", || since().is_ok_and(|[[sent, _, got, _], _]| sent == got))?;
    let [here, there] = since()?;
    equal("what leaves here arrives there", [here[0], here[1]], [there[2], there[3]])?;
    equal("what leaves there arrives here", [there[0], there[1]], [here[2], here[3]])?;
    let sent = session.report.counts.sent;
    equal("sent", sent, 1000)?;
    // Ethernet, IPv4 and UDP headers precede messages of 96 and 240 bytes.
    let hellos = here[0] - sent;
    is(&format!("hellos: {hellos}"), hellos >= 17)?;
    equal("and their bytes", here[1], sent * (42 + 96) + hellos * (42 + 240))?;
    equal("as many come back", here[3], here[1])
}
