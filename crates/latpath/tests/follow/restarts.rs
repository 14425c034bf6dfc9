//! A VM that restarts again and again during a recording. libvirt gives its tap a new name each time.

use crate::{equal, own, report, until, Recorder, LIMIT, LONG_WRAP, PATIENT};
use latpath_lab::{BRIDGE, PUBLISHER, VETH};
use latpath_model::Point;
use latpath_run::{Manifest, Run};
use latpath_testkit::waits::pace;
use latpath_testkit::{bench, latpath, trial, Bench, Lack};
use latpath_testkit::{Failed, Trial};
use latpath_traffic::document::PublishDocument;
use nix::poll::{poll, PollFd, PollFlags};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub fn trials(needs: &[Lack]) -> Vec<Trial> {
    vec![trial("a_vm_that_restarts_a_hundred_times_under_new_names_of_its_tap_is_one_route", needs, restarts)]
}

const RESTARTS: u64 = 100;
const FIRST: u64 = 7;
const MAC: &str = "fe:54:00:12:34:56";
/// Minimum number of packets that each VM reads.
const EACH: u64 = 20;
/// Time between the end of one VM and the start of the next.
const AWAY: Duration = Duration::from_millis(15);

/// A thread in QEMU's place, which reads a tap. The tap ends with it.
struct Vm {
    thread: JoinHandle<Result<(), String>>,
    ends: Arc<AtomicBool>,
    read: Arc<AtomicU64>,
}

impl Vm {
    fn start(bench: &Bench, name: &str) -> Result<Self, Failed> {
        let space = &bench.path.hypervisor;
        let file = space.inside(|| latpath_linux::net::open_tun(Path::new("/dev/net/tun"), name, libc::IFF_TAP))??;
        space.ip(&format!("link set {name} address {MAC} master {BRIDGE} up"))?;
        let (ends, read) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let of_thread = (ends.clone(), read.clone());
        let thread = std::thread::Builder::new().name("vm".into());
        let thread = thread.spawn(move || take(file, &of_thread.0, &of_thread.1))?;
        Ok(Self { thread, ends, read })
    }

    fn reads_some(&self) -> Result<(), Failed> {
        until("the VM reads", || self.read.load(Relaxed) >= EACH)
    }

    /// Ends the thread; returns the number of Sampled Values frames that it read.
    fn end(self) -> Result<u64, Failed> {
        self.ends.store(true, Relaxed);
        self.thread.join().map_err(|_| "the VM panicked")??;
        Ok(self.read.load(Relaxed))
    }
}

fn take(mut file: File, ends: &AtomicBool, read: &AtomicU64) -> Result<(), String> {
    let mut buffer = [0; 2048];
    while !ends.load(Relaxed) {
        let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, 5_u8).map_err(|e| e.to_string())? == 0 {
            continue;
        }
        let length = file.read(&mut buffer).map_err(|e| e.to_string())?;
        let frame = &buffer[..length];
        let is_sv = [12, 16].iter().any(|at| frame.get(*at..at + 2) == Some(&[0x88, 0xba]));
        read.fetch_add(u64::from(is_sv), Relaxed);
    }
    Ok(())
}

/// Names of the points in the manifest, except drop points.
fn passed(manifest: &Manifest) -> BTreeSet<String> {
    let points = manifest.points.iter().map(|info| &info.point);
    points.filter(|point| !point.kind.is_drop()).map(Point::to_string).collect()
}

fn restarts() -> Result<(), Failed> {
    let bench = bench()?;
    let svid = own("restarts");
    bench.path.hypervisor.ip(&format!("link delete {VETH}"))?;
    let recorder = Recorder::start(&bench, "run", &format!("--stream svid:{svid} {PATIENT}"))?;
    let words = format!("publish -i {PUBLISHER} --json --svid {svid} --rate 1000 --duration 600s {LONG_WRAP}");
    let first = Vm::start(&bench, &format!("vnet{FIRST}"))?;
    let publisher = bench.start(&bench.path.publisher, latpath(&words))?;
    let manifest = || Run::open(&recorder.run).map(|run| run.manifest().clone());
    until("the route is known", || manifest().is_ok_and(|manifest| !manifest.route.is_empty()))?;
    let at_first = manifest()?;
    let mut read = first.end()?;
    let mut vm = None;
    for n in 1..=RESTARTS {
        pace(AWAY);
        let started = Vm::start(&bench, &format!("vnet{}", FIRST + n))?;
        started.reads_some()?;
        match n {
            RESTARTS => vm = Some(started),
            _ => read += started.end()?,
        }
    }
    publisher.interrupt();
    let sent = publisher.finish(LIMIT)?.json::<PublishDocument>()?.frames_sent;
    recorder.has(sent)?;
    let run = recorder.end()?;
    read += vm.ok_or("no VM is left")?.end()?;

    let manifest = Run::open(&run)?.manifest().clone();
    equal("route", &manifest.route, &at_first.route)?;
    let tap = format!("vnet{FIRST}");
    equal("the route's end", manifest.route.last().map(Point::to_string), Some(format!("host/vm-read@{tap}")))?;
    equal("points", passed(&manifest), passed(&at_first))?;
    let devices: BTreeSet<&str> = at_first.points.iter().map(|info| info.point.device_name()).collect();
    let drops = manifest.points.iter().map(|info| &info.point).filter(|point| point.kind.is_drop());
    let others: Vec<String> = drops.filter(|p| !devices.contains(p.device_name())).map(Point::to_string).collect();
    equal("points of drops at other devices", others, vec![])?;
    equal("points beyond the limits", manifest.counters.points_overflow, 0)?;

    let figures = report(&run, "")?.summary;
    let lost: u64 = figures.lost.iter().map(|loss| loss.count).sum();
    equal("complete", figures.complete, read)?;
    equal("complete, lost and never seen", figures.complete + lost + figures.streams[0].never_seen, sent)?;
    equal("never seen", figures.streams[0].never_seen, 0)?;
    let is_on_route = |place: &String| manifest.route.iter().any(|point| point.to_string() == *place);
    let elsewhere: Vec<_> = figures.lost.iter().filter(|loss| !is_on_route(&loss.place)).collect();
    equal(&format!("lost elsewhere: {elsewhere:?}"), elsewhere.len(), 0)?;
    equal(&format!("{lost} lost, {:?}", figures.lost), lost >= RESTARTS, true)?;

    let last = FIRST + RESTARTS;
    let note = format!("taps with the MAC address of {tap} ({MAC}) continued it {RESTARTS} times, lastly vnet{last}: ");
    let noted = figures.notes.iter().filter(|text| text.contains(MAC)).collect::<Vec<_>>();
    equal(&format!("{:?}", figures.notes), noted.len() == 1 && noted[0].starts_with(&note), true)?;
    let is_gone = figures.notes.iter().any(|text| text.contains("is gone"));
    equal(&format!("{:?}", figures.notes), is_gone, false)?;
    let counted = manifest.kernel.ok_or("no counters of the kernel")?;
    let devices = counted.namespaces.values().flat_map(|space| space.devices.values());
    let renewed: Vec<String> = devices.filter(|device| device.is_renewed).map(|device| device.name.clone()).collect();
    equal("devices that replaced others", renewed, vec![format!("vnet{last}")])
}
