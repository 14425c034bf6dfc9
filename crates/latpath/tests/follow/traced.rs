//! `latpath import --trace` with the traces of perf and trace-cmd in addition to captures by tcpdump, as described in
//! docs/import.md.

use crate::{equal, own, until, LIMIT, LONG_WRAP};
use latpath_cause::Cause;
use latpath_clock::ClockTie;
use latpath_lab::{NIC, PUBLISHER, VETH};
use latpath_report::explanation::{CauseOfAll, PacketDocument};
use latpath_report::{ExplanationDocument, Report};
use latpath_testkit::{bench, latpath, need_tool, program, trial, Bench, Lack, Started};
use latpath_testkit::{Failed, Trial};
use latpath_tracefs::{Instance, Options as Traced};
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    let with = |tool| [needs, &[need_tool(tool), need_tool("tcpdump")]].concat();
    vec![
        trial("a_trace_of_perf_beside_two_captures_explains_late_packets", &with("perf"), || explained(&perf)),
        trial("a_trace_of_trace_cmd_explains_them_too", &with("trace-cmd"), || explained(&trace_cmd)),
    ]
}

const FRAMES: usize = 4000;

/// Starts tcpdump on a device in the hypervisor's namespace; it ends once all frames have passed.
fn dump(bench: &Bench, device: &str, direction: &str, file: &Path) -> Result<Started, Failed> {
    let mut command = Command::new("tcpdump");
    let words = format!(
        "-i {device} -Q {direction} -c {FRAMES} -s 512 -B 32768 --immediate-mode -Z root --time-stamp-precision nano"
    );
    command.args(words.split(' ')).arg("-w").arg(file).args(["ether", "proto", "0x88ba"]);
    let started = bench.start(&bench.path.hypervisor, command)?;
    until("tcpdump listens", || started.said().contains("listening on"))?;
    Ok(started)
}

/// Runs `latpath import` on both captures.
fn import(folder: &Path, run: &str, more: &[String]) -> Result<(), Failed> {
    let (from, to) = (format!("host/nic-rx@{NIC}=nic.pcap"), format!("host/tx@{VETH}=veth.pcap"));
    let mut command = latpath("import");
    let done = command.current_dir(folder).args([&from, &to]).args(["-o", run]).args(more).output()?;
    equal(&format!("import: {}", String::from_utf8_lossy(&done.stderr)), done.status.code(), Some(0))
}

fn json<T: DeserializeOwned>(folder: &Path, words: &str) -> Result<T, Failed> {
    let done = latpath(words).current_dir(folder).output()?;
    let why = |e| format!("{words}: {e}: {}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).map_err(|e| why(e).into())
}

/// Traces the machine while a command runs in the publisher's namespace, and returns the trace's text.
type Tracer = dyn Fn(&Bench, &str) -> Result<Vec<u8>, Failed>;

fn perf(bench: &Bench, publish: &str) -> Result<Vec<u8>, Failed> {
    let data = bench.lab.folder().join("perf.data");
    let mut perf = Command::new("perf");
    // A large buffer: perf loses events that its reader, an ordinary thread, does not fetch in time, and that happens
    // just when packets are late.
    perf.args(["record", "-q", "-a", "-k", "mono", "-m", "16M", "-o"]).arg(&data);
    perf.args(["-e", "sched:*,irq:*,power:cpu_idle,net:*,skb:skb_copy_datagram_iovec", "--"]).arg(program());
    perf.args(publish.split(' '));
    equal("perf record", bench.run(&bench.path.publisher, perf, LIMIT)?.code, Some(0))?;
    Ok(Command::new("perf").args(["script", "--ns", "-i"]).arg(data).output()?.stdout)
}

/// Traces the events that docs/import.md names for `trace-cmd record`; returns trace-cmd's report. trace-cmd extracts
/// the text from the kernel's own buffers: `record` would set up the function tracer, which not every kernel allows.
fn trace_cmd(bench: &Bench, publish: &str) -> Result<Vec<u8>, Failed> {
    let events = "sched irq power:cpu_idle net:netif_receive_skb net:net_dev_start_xmit skb:skb_copy_datagram_iovec";
    let events = events.split(' ').map(Into::into).collect();
    let options = Traced { events, buffer_kb: Some(16 << 10), ..Traced::default() };
    let instance = Instance::open_or_make(&own("traced"), &options)?;
    let mut publisher = latpath(publish);
    publisher.current_dir(bench.lab.folder());
    equal("publish", bench.run(&bench.path.publisher, publisher, LIMIT)?.code, Some(0))?;
    instance.stop()?;
    let folder = bench.lab.folder();
    let mut restore = Command::new("trace-cmd");
    restore.current_dir(folder).args(["restore", "-i", "head.dat", "-o", "trace.dat"]);
    for cpu in fs::read_dir(instance.path().join("per_cpu"))?.flatten() {
        let raw = folder.join(cpu.file_name());
        let mut pages =
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open(cpu.path().join("trace_pipe_raw"))?;
        match std::io::copy(&mut pages, &mut File::create(&raw)?) {
            Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e.into()),
            _ => restore.arg(raw),
        };
    }
    let run = |command: &mut Command| -> Result<Vec<u8>, Failed> {
        let done = command.current_dir(folder).output()?;
        equal(&String::from_utf8_lossy(&done.stderr), done.status.code(), Some(0))?;
        Ok(done.stdout)
    };
    run(Command::new("trace-cmd").args(["restore", "-c", "-o", "head.dat"]))?;
    run(&mut restore)?;
    run(Command::new("trace-cmd").args(["report", "-t", "-i", "trace.dat"]))
}

fn explained(tracer: &Tracer) -> Result<(), Failed> {
    let bench = bench()?;
    let (svid, folder) = (own("traced-all"), bench.lab.folder().to_owned());
    let mut dumps =
        [dump(&bench, NIC, "in", &folder.join("nic.pcap"))?, dump(&bench, VETH, "out", &folder.join("veth.pcap"))?];
    let tie = ClockTie::read();
    let publish = format!("publish -i {PUBLISHER} --svid {svid} --count {FRAMES} {LONG_WRAP}");
    std::fs::write(folder.join("trace.txt"), tracer(&bench, &publish)?)?;
    until("tcpdump has all frames", || dumps.iter_mut().all(|dump| !dump.runs()))?;
    // The threshold is the 90th percentile of the plain import, so one packet in ten is late on any machine.
    import(&folder, "plain", &[])?;
    let plain: Report = json(&folder, "report plain --json")?;
    let total = plain.summary.segments.iter().find(|segment| segment.name == "total");
    let late = total.ok_or("no total")?.times.p90_ns;
    let ahead = tie.monotonic_ns - tie.realtime_ns;
    let words = ["--trace", "host=trace.txt", "--trace-offset", &format!("host={ahead}ns±2us"), "--threshold"];
    let more: Vec<String> = words.into_iter().map(Into::into).chain([format!("{late}ns")]).collect();
    import(&folder, "traced", &more)?;

    let explained: ExplanationDocument = json(&folder, &format!("explain traced --json --worst {FRAMES}"))?;
    equal("late packets", explained.late > 0, true)?;
    let named = |row: &CauseOfAll| row.share.cause != Cause::Unexplained && row.packets > 0;
    equal(&format!("causes are named: {:?}", explained.causes), explained.causes.iter().any(named), true)?;
    let has_cpus = |packet: &PacketDocument| packet.points.iter().all(|point| point.cpu.is_some());
    equal(&format!("CPUs are known: {:?}", explained.packets), explained.packets.iter().any(has_cpus), true)
}
