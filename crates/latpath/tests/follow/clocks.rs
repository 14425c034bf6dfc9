//! `latpath clocks`, the gate of `--require-sync`, and the clocks of a recording, with a scripted ptp4l.

use crate::{latpath, publish, report, LIMIT};
use latpath_lab::PUBLISHER;
use latpath_run::Run;
use latpath_testkit::names::own;
use latpath_testkit::waits::{says, until};
use latpath_testkit::{bench, equal, need_root, need_tool, trial, Failed, Lack, PtpDaemon, PtpScript, Trial};
use latpath_timesync::chrony::ChronyAddress;
use latpath_timesync::{ClockReport, ClocksDocument, LinkState, SyncEventKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![
        trial("clocks_shows_a_ptp4l_and_its_grandmaster", &[], shown),
        trial("clocks_watches_and_reports_another_grandmaster", &[], watched),
        trial("a_real_ptp4l_is_read", &[needs, &[need_tool("ptp4l")]].concat(), real_ptp4l),
        trial("a_real_chronyd_is_read_by_udp_and_by_its_socket", &[need_root(), need_tool("chronyd")], real_chronyd),
        trial("a_gate_that_does_not_open_fails_with_the_reason", &[], closed),
        trial("a_recording_waits_for_the_clocks_and_marks_what_breaks_them", needs, recorded),
    ]
}

/// A directory for sockets, and a daemon that listens there.
struct Ptp {
    folder: PathBuf,
    daemon: PtpDaemon,
}

impl Ptp {
    fn start(name: &str, script: PtpScript) -> Result<Self, Failed> {
        let folder = std::env::temp_dir().join(own(name));
        std::fs::create_dir_all(&folder)?;
        let daemon = PtpDaemon::start(&folder.join("ptp4lro"), script);
        Ok(Self { folder, daemon })
    }

    fn socket(&self) -> String {
        self.daemon.path().display().to_string()
    }
}

impl Drop for Ptp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn clocks(command: &mut Command) -> Result<ClockReport, Failed> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn shown() -> Result<(), Failed> {
    let ptp = Ptp::start("clocks-shown", PtpScript::default())?;
    let report = clocks(&mut latpath(&format!("clocks --json --ptp-socket {}", ptp.socket())))?;
    let instance = &report.ptp[0];
    equal("domain", instance.domain, 24)?;
    equal("state", instance.state, LinkState::Following)?;
    equal("offset", instance.offset_ns, Some(40))?;
    equal("grandmaster", instance.grandmaster.to_string().as_str(), "020000.fffe.000009")?;
    let output = latpath(&format!("clocks --ptp-socket {}", ptp.socket())).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    for words in ["grandmaster 020000.fffe.000009", "domain 24", "clockClass 6", "SLAVE", "kernel (adjtimex)"] {
        equal(&format!("{words:?} in {text}"), text.contains(words), true)?;
    }
    Ok(())
}

fn watched() -> Result<(), Failed> {
    let ptp = Ptp::start("clocks-watched", PtpScript::default())?;
    let mut command = latpath(&format!("clocks --watch --duration 8s --json --ptp-socket {}", ptp.socket()));
    let child = command.stdout(Stdio::piped()).spawn()?;
    latpath_testkit::waits::fault_for(std::time::Duration::from_secs(3));
    ptp.daemon.set(|script| script.grandmaster = [3; 8]);
    let output = child.wait_with_output()?;
    let lines: Vec<ClocksDocument> = output
        .stdout
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(serde_json::from_slice)
        .collect::<Result<_, _>>()?;
    equal("a line per second", (6..=9).contains(&lines.len()), true)?;
    let kinds: Vec<SyncEventKind> = lines.iter().flat_map(|line| &line.events).map(|event| event.kind).collect();
    equal(&format!("{kinds:?} has the change"), kinds.contains(&SyncEventKind::GrandmasterChange), true)
}

fn closed() -> Result<(), Failed> {
    let ptp = Ptp::start("clocks-closed", PtpScript { port_state: 2, ..PtpScript::default() })?;
    let output =
        latpath(&format!("clocks --require-sync 1ns --sync-timeout 1s --ptp-socket {}", ptp.socket())).output()?;
    equal("exit code", output.status.code(), Some(1))?;
    let said = String::from_utf8_lossy(&output.stderr);
    equal(&format!("the reason in {said}"), said.contains("the clocks were not within 1 ns after 1s: "), true)
}

/// A process of this test, which is ended on drop.
struct Daemon(std::process::Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A chronyd that steers no clock.
fn real_chronyd() -> Result<(), Failed> {
    let place = std::env::temp_dir().join(own("clocks-chronyd"));
    latpath_linux::private_directory(&place)?;
    let (config, socket) = (place.join("chrony.conf"), place.join("chronyd.sock"));
    let port = 10_000 + std::process::id() as u16 % 20_000;
    let lines = [
        "local stratum 5".into(),
        "port 0".into(),
        format!("cmdport {port}"),
        format!("bindcmdaddress {}", socket.display()),
        format!("pidfile {}", place.join("pid").display()),
        "refclock SHM 7 refid PTP0".into(),
        "user root".into(),
    ];
    std::fs::write(&config, lines.join("\n"))?;
    let mut command = Command::new("chronyd");
    command.args(["-x", "-d", "-U", "-f"]).arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
    let _daemon = Daemon(command.spawn()?);
    let by_udp = ChronyAddress { port, socket: "/nowhere".into() };
    until("chronyd answers", || latpath_timesync::chrony::read(&by_udp).is_ok())?;
    let by_socket = ChronyAddress { port: 1, socket };
    for address in [by_udp, by_socket] {
        let chrony = latpath_timesync::chrony::read(&address)?;
        equal("stratum", chrony.stratum, 5)?;
        let names: Vec<_> =
            chrony.sources.iter().map(|s| (s.name.as_str(), s.is_reference_clock, s.selected)).collect();
        equal("sources", names, vec![("PTP0", true, false)])?;
    }
    std::fs::remove_dir_all(&place)?;
    Ok(())
}

/// Two ptp4l on a veth pair, which steer no clock.
fn real_ptp4l() -> Result<(), Failed> {
    let bench = bench()?;
    let place = bench.lab.folder().to_owned();
    let start = |name: &str, space: &latpath_lab::Namespace, device: &str, more: &str| -> Result<Daemon, Failed> {
        let config = place.join(format!("{name}.conf"));
        let socket = place.join(name);
        std::fs::write(
            &config,
            format!("[global]\nfree_running 1\ndomainNumber 24\nuds_address {}\n{more}", socket.display()),
        )?;
        // `ip netns exec` would also change the mount namespace, and latpath does not read files that a process in
        // another one names.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", space.name()));
        command.args(["ptp4l", "-S", "-2", "-i", device, "-f"]).arg(&config);
        Ok(Daemon(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    };
    let _master = start(
        "master",
        &bench.path.publisher,
        PUBLISHER,
        "priority1 10\nlogAnnounceInterval -2\nlogSyncInterval -3\n",
    )?;
    let _slave = start("slave", &bench.path.hypervisor, latpath_lab::NIC, "slaveOnly 1\nlogAnnounceInterval -2\n")?;
    let socket = place.join("slave");
    let words = format!("clocks --json --ptp-socket {}", socket.display());
    let mut last = ClockReport::default();
    let measured = until("the slave measures its master", || {
        last = clocks(&mut latpath(&words)).unwrap_or_default();
        last.ptp.first().is_some_and(|instance| instance.offset_ns.is_some())
    });
    measured.map_err(|e| Failed::from(format!("{}: {last:?}", e.message().unwrap_or_default())))?;
    let instance = &last.ptp[0];
    equal("state", instance.state, LinkState::FreeRunning)?;
    equal("device", instance.ports[0].device.as_str(), latpath_lab::NIC)?;
    equal("in hardware", instance.ports[0].in_hardware, Some(false))?;
    let own = instance.grandmaster == instance.identity;
    equal("the grandmaster is the other one", own, false)
}

fn recorded() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("clocks");
    let ptp = Ptp::start("clocks-recorded", PtpScript { offset_ns: 400_000, ..PtpScript::default() })?;
    let run = bench.lab.folder().join("run");
    let words = format!(
        "record --stream svid:{svid} --window 4s --require-sync 1us --ptp-socket {} -o {}",
        ptp.socket(),
        run.display()
    );
    let mut recorder = bench.start(&bench.path.hypervisor, latpath(&words))?;
    says(&mut recorder, "waiting for the clocks to be within")?;
    equal("a run before the clocks are synchronised", run.exists(), false)?;
    ptp.daemon.set(|script| script.offset_ns = 40);
    until("the recording begins", || Run::open(&run).is_ok() || !recorder.runs())?;
    publish(&bench, &format!("--svid {svid} --rate 1000 --wrap 65536 --count 6000"))?;
    ptp.daemon.set(|script| script.offset_ns = 90_000);
    says(&mut recorder, "step: the offset jumped: +90000 ns")?;
    let sent = publish(&bench, &format!("--svid {svid} --rate 1000 --wrap 65536 --count 500"))?;
    equal("sent while the offset is large", sent.frames_sent, 500)?;
    ptp.daemon.set(|script| script.offset_ns = 40);
    says(&mut recorder, "step: in order again")?;
    recorder.interrupt();
    let ended = recorder.finish(LIMIT)?;
    equal(&format!("exit code: {}", ended.stderr), ended.code, Some(3))?;
    let kinds: Vec<&str> = Run::open(&run)?.sync().events.iter().map(|event| event.kind.name()).collect();
    equal("events", kinds, vec!["step", "required bound broken"])?;
    let marks = Run::open(&run)?.marks().iter().map(|mark| mark.text.clone()).collect::<Vec<_>>();
    equal(&format!("marks: {marks:?}"), marks.iter().any(|text| text.contains("step: the offset jumped")), true)?;
    let figures = report(&run, "")?.summary;
    let clocks = figures.clocks.as_ref().ok_or("no figures of clocks")?;
    equal("the link", clocks.links[0].follows.as_str(), "grandmaster 020000.fffe.000009")?;
    let disordered = clocks.disordered.as_ref().map_or(0, |figures| figures.packets);
    let all = figures.journeys;
    let counts: Vec<_> = figures.streams.iter().map(|s| (s.complete, s.never_seen, s.duplicates)).collect();
    let packets = format!(
        "{disordered} of {all} packets were disordered, events {:?}, streams {counts:?}, notes {:?}",
        clocks.events, figures.notes
    );
    equal(&packets, disordered >= 400 && disordered + 3_000 < all, true)?;
    text(&run)
}

fn text(run: &Path) -> Result<(), Failed> {
    let output = latpath(&format!("report {}", run.display())).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    for words in
        ["Clocks", "system clock, step: the offset jumped", "Segments while clocks were in order and disordered"]
    {
        equal(&format!("{words:?} in {text}"), text.contains(words), true)?;
    }
    Ok(())
}
