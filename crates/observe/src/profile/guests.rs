//! Guests: their run times as measured by the host, and the samples taken by their agents.

use crate::{Scope, StartError};
use latpath_agent::{Address, Machine, Timeouts};
use latpath_linux::monotonic;
use latpath_linux::proc::{boot_id, tick_ns, Root, Stat};
use latpath_model::Ns;
use latpath_profile::{CausalityCheck, Guest, GuestTime, Recorder, Samples};
use latpath_vms::{Accel, Role, Vm};
use std::path::Path;
use std::time::{Duration, Instant};

/// Guest times of vCPUs, read periodically.
pub struct GuestTimes {
    root: Root,
    tick: Ns,
    times: Vec<GuestTime>,
}

impl GuestTimes {
    /// Prepares to read the guest times of the scope's VMs that run on KVM; the kernel accounts for no others.
    pub fn of(scope: &Scope) -> Self {
        let vcpus = |vm: &Vm| {
            let pid = vm.pid;
            let vcpus: Vec<_> = vm.threads.iter().filter(|thread| thread.role == Role::Vcpu).cloned().collect();
            vcpus.into_iter().map(move |thread| GuestTime {
                tid: thread.tid,
                pid,
                vcpu: thread.vcpu,
                readings: Vec::new(),
            })
        };
        let times = scope.vms().filter(|vm| vm.accel == Accel::Kvm).flat_map(vcpus).collect();
        Self { root: Root::of(Path::new("/")), tick: tick_ns() as Ns, times }
    }

    /// Thread ids of the vCPUs.
    pub fn threads(&self) -> Vec<u32> {
        self.times.iter().map(|time| time.tid).collect()
    }

    /// Reads the guest times: if KVM's entries are traced, the sum of the times from each entry to the next exit;
    /// otherwise the kernel's accounting (`guest_time` of /proc) in clock ticks. A vCPU that has ended keeps its last
    /// reading.
    pub fn read(&mut self, recorder: &Recorder) {
        for time in &mut self.times {
            if let Some(ns) = recorder.guest_time(time.tid) {
                time.readings.push((monotonic(), ns));
            } else if let Some(stat) = Stat::read(&self.root, &format!("proc/{}/task/{}", time.pid, time.tid)) {
                let ns = (stat.guest_ticks as Ns).saturating_mul(self.tick);
                let before = time.readings.last().map_or(0, |(_, ns)| *ns);
                time.readings.push((monotonic(), ns.max(before)));
            }
        }
    }

    /// Returns all readings; vCPUs without a reading are omitted.
    pub fn finish(self) -> Vec<GuestTime> {
        self.times.into_iter().filter(|time| !time.readings.is_empty()).collect()
    }
}

/// Agents in guests.
pub struct Guests {
    watched: Vec<Watched>,
    notes: Vec<String>,
}

/// A guest with an agent.
struct Watched {
    /// PID of the VM's process.
    pid: u32,
    machine: Machine,
    /// TID and index of each vCPU.
    vcpus: Vec<(u32, u32)>,
    causality: CausalityCheck,
}

impl Guests {
    /// Connects to the agents, and starts their samplers.
    ///
    /// # Errors
    /// If an agent cannot be reached, or its VM cannot be identified.
    pub fn connect(
        asked: &[(String, Address)],
        scope: &Scope,
        frequency: u32,
        one_by_one: bool,
    ) -> Result<Self, StartError> {
        let vms: Vec<&Vm> = scope.vms().collect();
        let mut watched: Vec<Watched> = Vec::new();
        for (name, address) in asked {
            let vm = vm_of(name, asked.len(), &vms)?;
            let mut machine = Machine::connect(name, address, Timeouts::default())?;
            if !machine.facts().boot_id.is_empty() && machine.facts().boot_id == boot_id() {
                return Err(StartError::Guest(format!(
                    "{name} ({address}): it runs on this machine's own kernel, which is sampled anyway: leave it out"
                )));
            }
            machine.start_profile(frequency, one_by_one)?;
            let vcpus = match vm.accel {
                Accel::Kvm => vm.threads.iter().filter_map(|thread| Some((thread.tid, thread.vcpu?))).collect(),
                Accel::Tcg | Accel::Unknown => Vec::new(),
            };
            watched.push(Watched { pid: vm.pid, machine, vcpus, causality: CausalityCheck::default() });
        }
        // A sampler is known to run once its first slice has arrived. Wait for it, because the whole window must be
        // sampled.
        let mut notes = Vec::new();
        for Watched { machine, .. } in &watched {
            let began = Instant::now();
            while machine.profiled_until().is_none() && machine.is_alive() && began.elapsed() < FIRST_SLICE {
                std::thread::sleep(Duration::from_millis(20));
            }
            if machine.profiled_until().is_none() && machine.is_alive() {
                notes.push(format!("{}: its agent had not begun to sample within {FIRST_SLICE:?}", machine.name()));
            }
        }
        Ok(Self { watched, notes })
    }

    /// Thread ids of the guests' vCPUs.
    pub fn vcpus(&self) -> Vec<u32> {
        self.watched.iter().flat_map(|watched| &watched.vcpus).map(|(tid, _)| *tid).collect()
    }

    /// Starts the causality checks at the beginning of the window.
    pub fn begin(&mut self, recorder: &Recorder) {
        for watched in &mut self.watched {
            watched.causality = CausalityCheck::new(watched.vcpus.iter().copied(), recorder.from());
        }
    }

    /// Checks the samples that have arrived against the times at which their vCPUs were outside the guest.
    pub fn check(&mut self, recorder: &mut Recorder) {
        // Take the samples before reading the absences: for later samples, the absences may be incomplete.
        let moments: Vec<_> = self.watched.iter_mut().map(|watched| watched.machine.take_moments()).collect();
        let Some((absences, until)) = recorder.absences().filter(|_| !self.watched.is_empty()) else { return };
        for (watched, moments) in self.watched.iter_mut().zip(moments) {
            watched.causality.absences(&absences);
            watched.causality.moments(moments);
            watched.causality.check_until(until);
        }
    }

    /// Stops the samplers, after waiting at most [`Timeouts::profile`] for the samples up to now. `window_end` is in
    /// the host's clock.
    pub fn end(&mut self, window_end: Ns, recorder: &mut Recorder) -> Vec<Guest> {
        let mut guests = Vec::new();
        self.watched.iter_mut().for_each(|watched| watched.machine.begin_stop());
        let mut ended = Vec::new();
        for Watched { machine, .. } in &mut self.watched {
            let clock = machine.clock();
            let fault = machine.stop().err().or_else(|| machine.fault()).map(|fault| fault.to_string());
            ended.push((clock, fault));
        }
        self.check(recorder);
        if recorder.absences_lost() > 0 {
            self.notes.push(format!(
                "times at which vCPUs were not in their guest, lost, so that causality violations there are not seen: {}",
                recorder.absences_lost()
            ));
        }
        for (Watched { pid, mut machine, causality, .. }, (clock, fault)) in self.watched.drain(..).zip(ended) {
            let (offset_ns, error_bound_ns) = (clock.offset_ns, clock.error_bound_ns);
            self.notes.extend(fault.clone());
            let name = machine.name().to_owned();
            match machine.take_profile() {
                Ok(samples) => {
                    let until = samples.span().map(|(_, until)| until - offset_ns);
                    self.notes.extend(missing(&name, &samples, until.map(|until| window_end - until - error_bound_ns)));
                    guests.push(Guest {
                        pid,
                        samples,
                        offset_ns,
                        error_bound_ns,
                        causality: causality.figures(),
                        fault,
                    });
                }
                Err(why) => self.notes.push(format!("{name}: nothing was sampled in the guest: {why}")),
            }
        }
        guests
    }

    /// Notes on the guests' samples, for the user.
    pub fn notes(&self, scope: &Scope, guests: &[Guest]) -> Vec<String> {
        let mut notes = self.notes.clone();
        for vm in scope.vms() {
            let inside = guests.iter().find(|guest| guest.pid == vm.pid);
            let is_checked = inside.is_none_or(|guest| guest.causality.is_some());
            match (vm.accel, inside) {
                (Accel::Kvm, Some(_)) if !is_checked => notes.push(format!(
                    "{}: causality was not checked: KVM did not show when the vCPUs ran",
                    vm.name
                )),
                (Accel::Kvm, None) => notes.push(format!(
                    "{}: no agent runs in the guest: its vCPUs are one frame each (--machine {}=ssh:root@guest, with latpath in it)",
                    vm.name, vm.name
                )),
                (Accel::Tcg, Some(_)) => notes.push(format!(
                    "{}: emulated (TCG): its guest's time cannot be separated from QEMU's own, so what its agent saw is not shown",
                    vm.name
                )),
                (Accel::Tcg, None) => {
                    notes.push(format!("{}: emulated (TCG): its guest's time cannot be separated from QEMU's own", vm.name))
                }
                _ => {}
            }
        }
        notes
    }
}

/// Notes on samples missing from a guest's profile. `short`: time from the guest's last sample to the end of the
/// window; `None` if no sample arrived.
fn missing(name: &str, samples: &Samples, short: Option<Ns>) -> Vec<String> {
    let mut notes = Vec::new();
    match short {
        None => notes.push(format!("{name}: no sample of the guest has come: its vCPUs are one frame each")),
        Some(short) if short > TOLERATED => notes.push(format!(
            "{name}: the guest's samples of the window's last {:.1} s have not come: its vCPUs' time then is [guest]",
            short as f64 / 1e9
        )),
        Some(_) => {}
    }
    if samples.lost > 0 {
        notes.push(format!(
            "{name}: samples lost in the guest: {}; times are exact, their call chains are less so",
            samples.lost
        ));
    }
    notes
}

/// Maximum time to wait for a sampler's first slice: the sampler reads its kernel's functions before it starts.
const FIRST_SLICE: Duration = Duration::from_secs(20);

/// Longest gap without samples at the end of the window that is not worth a note, ns.
const TOLERATED: Ns = 100_000_000;

/// The VM that a machine runs in: the VM with the same name, or the only VM if this is the only machine.
fn vm_of<'v>(name: &str, machines: usize, vms: &[&'v Vm]) -> Result<&'v Vm, StartError> {
    if let Some(vm) = vms.iter().copied().find(|vm| vm.name == name) {
        return Ok(vm);
    }
    match vms {
        [alone] if machines == 1 => Ok(*alone),
        [] => {
            let why = "no virtual machine runs here whose guest it could be (latpath vms lists them)";
            Err(StartError::Guest(format!("--machine {name}=…: {why}")))
        }
        _ => {
            let known: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
            let known = known.join(", ");
            Err(StartError::Usage(format!("--machine {name}=…: no VM is called so; take its name: {known}")))
        }
    }
}
