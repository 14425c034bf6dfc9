//! Guests: how long vCPUs run them, by the host's account, and what their agents see inside.

use super::super::Usage;
use anyhow::{bail, Result};
use latpath_agent::{Address, Machine, Timeouts};
use latpath_linux::monotonic;
use latpath_linux::proc::{boot_id, tick_ns, Root, Stat};
use latpath_model::Ns;
use latpath_profile::{Guest, GuestTime};
use latpath_vms::{Accel, Role, Vm};
use std::path::Path;
use std::time::{Duration, Instant};

/// Guest times of vCPUs, read again and again.
pub struct GuestTimes {
    root: Root,
    tick: Ns,
    times: Vec<GuestTime>,
}

impl GuestTimes {
    /// Of those VMs whose guest time the kernel accounts.
    pub fn of(vms: &[Vm]) -> Self {
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
        let times = vms.iter().filter(|vm| vm.accel == Accel::Kvm).flat_map(vcpus).collect();
        Self { root: Root::of(Path::new("/")), tick: tick_ns() as Ns, times }
    }

    /// Reads them; a vCPU that has ended keeps what it had.
    pub fn read(&mut self) {
        for time in &mut self.times {
            if let Some(stat) = Stat::read(&self.root, &format!("proc/{}/task/{}", time.pid, time.tid)) {
                let ns = (stat.guest_ticks as Ns).saturating_mul(self.tick);
                let before = time.readings.last().map_or(0, |(_, ns)| *ns);
                time.readings.push((monotonic(), ns.max(before)));
            }
        }
    }

    /// What was read.
    pub fn finish(self) -> Vec<GuestTime> {
        self.times.into_iter().filter(|time| !time.readings.is_empty()).collect()
    }
}

/// Agents in guests.
pub struct Guests {
    /// Each with the process of its VM.
    machines: Vec<(u32, Machine)>,
    notes: Vec<String>,
}

impl Guests {
    /// Reaches the agents, and has them begin to sample.
    ///
    /// # Errors
    /// Where one is not reached, or it is not known whose guest it is.
    pub fn connect(asked: &[(String, Address)], vms: &[Vm], frequency: u32, one_by_one: bool) -> Result<Self> {
        let mut machines: Vec<(u32, Machine)> = Vec::new();
        for (name, address) in asked {
            let vm = vm_of(name, asked.len(), vms)?;
            let mut machine = Machine::connect(name, address, Timeouts::default())?;
            if !machine.facts().boot_id.is_empty() && machine.facts().boot_id == boot_id() {
                bail!(
                    "{name} ({address}): it runs on this machine's own kernel, which is sampled anyway: leave it out"
                );
            }
            machine.start_profile(frequency, one_by_one)?;
            machines.push((vm.pid, machine));
        }
        // A sampler has begun when its first slice is there; nothing of the window is to be without.
        let mut notes = Vec::new();
        for (_, machine) in &machines {
            let began = Instant::now();
            while machine.profiled_until().is_none() && machine.is_alive() && began.elapsed() < FIRST_SLICE {
                std::thread::sleep(Duration::from_millis(20));
            }
            if machine.profiled_until().is_none() && machine.is_alive() {
                notes.push(format!("{}: its agent had not begun to sample within {FIRST_SLICE:?}", machine.name()));
            }
        }
        Ok(Self { machines, notes })
    }

    /// Waits until the guests' samples have come up to now, and ends them. `window_end`: the host's clock.
    pub fn end(&mut self, window_end: Ns) -> Vec<Guest> {
        let mut guests = Vec::new();
        for (pid, mut machine) in self.machines.drain(..) {
            let clock = machine.clock();
            let (offset_ns, error_bound_ns) = (clock.offset_ns, clock.error_bound_ns);
            let fault = machine.stop().err().or_else(|| machine.fault()).map(|fault| fault.to_string());
            if let Some(fault) = &fault {
                self.notes.push(format!("{fault}: from then on its vCPUs are [guest]"));
            }
            let name = machine.name().to_owned();
            match machine.take_profile() {
                Ok(samples) => {
                    let until = samples.span().map_or(Ns::MIN / 2, |(_, until)| until);
                    if fault.is_none() && until - offset_ns < window_end - error_bound_ns - TOLERATED {
                        self.notes.push(format!(
                            "{name}: its last samples are missing: its vCPUs' time from then on is [guest]"
                        ));
                    }
                    guests.push(Guest { pid, samples, offset_ns, error_bound_ns, fault });
                }
                Err(why) => self.notes.push(format!("{name}: nothing was sampled in the guest: {why}")),
            }
        }
        guests
    }

    /// What must be known of the guests' part.
    pub fn notes(&self, vms: &[Vm], guests: &[Guest]) -> Vec<String> {
        let mut notes = self.notes.clone();
        for vm in vms {
            let inside = guests.iter().find(|guest| guest.pid == vm.pid);
            match (vm.accel, inside) {
                (Accel::Kvm, None) => notes.push(format!(
                    "{}: nobody looked into the guest: its vCPUs are one frame each (--machine {}=ssh:root@guest, with latpath in the guest)",
                    vm.name, vm.name
                )),
                (Accel::Tcg, Some(_)) => notes.push(format!(
                    "{}: emulated (TCG): its guest's time is not told from QEMU's own, so that what its agent saw is not shown",
                    vm.name
                )),
                (Accel::Tcg, None) => {
                    notes.push(format!("{}: emulated (TCG): its guest's time is not told from QEMU's own", vm.name))
                }
                _ => {}
            }
        }
        notes
    }
}

/// How long a sampler may take to begin: it reads its kernel's functions first.
const FIRST_SLICE: Duration = Duration::from_secs(20);

/// So much of the end may be missing.
const TOLERATED: Ns = 100_000_000;

/// The VM that a machine is: the one of its name, or the only one.
fn vm_of<'v>(name: &str, machines: usize, vms: &'v [Vm]) -> Result<&'v Vm> {
    if let Some(vm) = vms.iter().find(|vm| vm.name == name) {
        return Ok(vm);
    }
    match vms {
        [alone] if machines == 1 => Ok(alone),
        [] => {
            bail!("--machine {name}=…: no virtual machine runs here whose guest it could be (latpath vms lists them)")
        }
        _ => {
            let known: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
            bail!(Usage(format!("--machine {name}=…: no VM is called so; take its name: {}", known.join(", "))))
        }
    }
}
