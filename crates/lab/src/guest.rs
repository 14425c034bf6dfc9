//! The guest: booted, asked to run scripts, and gone with its handle.

use crate::{
    acceleration::Acceleration,
    arch::Arch,
    devices::{GUEST_ADDRESS, GUEST_DEVICE, PUBLISHER, PUBLISHER_ADDRESS, TAP},
    emulator::Emulator,
    error::{Doing, Error, Result},
    files::tail,
    image, kernel,
    layers::{LabKernel, Layers},
    machine::Machine,
    qemu::{Files, Start},
    Lab, LabPath, Namespace, Output, Progress, Stop,
};
use latpath_net::{Change, Statistics};
use std::{
    fs,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    time::Duration,
};

/// A guest that only one acceleration may boot is given this long: its host may itself be emulated.
const PATIENT: Duration = Duration::from_secs(180);

/// What a guest needs for a vsock, and the hypervisor's clock with it.
const VSOCK: [&str; 2] = ["vmw_vsock_virtio_transport", "ptp_kvm"];

/// By which means a guest's packets and interrupts go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NicService {
    /// vhost with MSI where the acceleration has it, else QEMU.
    #[default]
    Default,
    /// QEMU, also where vhost could.
    Qemu,
    /// The same, by packed rings.
    Packed,
    /// As the default, without MSI: QEMU relays vhost's interrupts.
    Relayed,
}

#[derive(Clone, Debug)]
pub struct GuestPlan {
    /// Its name: in QEMU's thread names and in the names of its files.
    pub name: String,
    /// Programs to put into it: the file here, the path there. Their shared libraries come along.
    pub programs: Vec<(PathBuf, String)>,
    pub cpus: u32,
    /// Memory beside that for its root.
    pub memory_mib: u64,
    /// Only this, tried twice; `None` takes what this machine can do.
    pub acceleration: Option<Acceleration>,
    /// Its context id on a vsock served by the host's kernel; needs vhost_vsock.
    pub vsock: Option<u32>,
    /// By which means its NIC's packets and interrupts go.
    pub service: NicService,
    /// Where its serial console is written; `None` is a file that goes with the lab.
    pub console: Option<PathBuf>,
    /// Its kernel; `None` takes this machine's, or Debian's.
    pub kernel: Option<LabKernel>,
}

impl Default for GuestPlan {
    fn default() -> Self {
        Self {
            name: "guest0".into(),
            programs: Vec::new(),
            cpus: 2,
            memory_mib: 512,
            acceleration: None,
            vsock: None,
            service: NicService::Default,
            console: None,
            kernel: None,
        }
    }
}

/// A running guest. It ends with this value.
#[derive(Debug)]
pub struct Guest {
    machine: Machine,
    agent: PathBuf,
    monitor: PathBuf,
    acceleration: Acceleration,
    failed_boot: Option<String>,
    // Holds the folder of its sockets.
    _lab: Lab,
}

impl Deref for Guest {
    type Target = Machine;
    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl DerefMut for Guest {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }
}

impl Guest {
    /// Boots a guest on the path's tap. Acceleration is tried first; a guest that does not come up is tried once more,
    /// with the kernel's messages on.
    pub fn boot(lab: &Lab, path: &LabPath, plan: &GuestPlan, progress: Progress, stop: Stop) -> Result<Self> {
        let kernel = match plan.kernel {
            Some(kernel) => Layers::of(kernel, progress, stop)?.kernel()?,
            None => kernel::find(progress, stop)?,
        };
        let image = image::build(&kernel, plan.vsock.map_or(&[], |_| &VSOCK), &plan.programs)?;
        let image_mib = (image.len() as u64).div_ceil(1 << 20);
        let initramfs = lab.folder().join(format!("{}.initramfs", plan.name));
        fs::write(&initramfs, &image).doing(format!("write {}", initramfs.display()))?;
        drop(image);
        let mut files = Files::of(lab.folder(), &plan.name);
        if let Some(console) = &plan.console {
            files.console = console.clone();
        }
        let tries = match plan.acceleration {
            Some(only) => vec![(only, false), (only, true)],
            None => {
                let mut tries: Vec<_> = Acceleration::to_try().into_iter().map(|a| (a, false)).collect();
                tries.extend(tries.last().map(|(a, _)| (*a, true)));
                tries
            }
        };
        let mut failures = Vec::new();
        for (acceleration, verbose) in tries {
            let emulator = Emulator::fit_for(acceleration, progress, stop)?;
            progress(&format!("booting Linux {} under QEMU, {acceleration}", kernel.release));
            let start = Start {
                emulator: &emulator,
                name: &plan.name,
                namespace: Some(&path.hypervisor),
                acceleration,
                arch: Arch::OWN,
                nesting: None,
                kernel: &kernel.image,
                initramfs: &initramfs,
                cpus: plan.cpus,
                // The archive and what is unpacked from it are both in memory for a while.
                memory_mib: plan.memory_mib + 2 * image_mib,
                append: "ipv6.disable=1",
                devices: devices(plan, acceleration),
                files: &files,
                verbose,
            };
            let limit = if plan.acceleration.is_some() { PATIENT } else { acceleration.boot_limit() };
            match Machine::boot(&start, limit, stop) {
                Ok(machine) => {
                    if plan.acceleration.is_none() {
                        acceleration.remember();
                    }
                    let _ = fs::remove_file(&initramfs);
                    let Files { agent, monitor, .. } = files;
                    // Only a second attempt is verbose.
                    let failed_boot = failures.pop().filter(|_| verbose);
                    return Ok(Self { machine, agent, monitor, acceleration, failed_boot, _lab: lab.clone() });
                }
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => {
                    progress(&format!("{acceleration} does not boot a guest here: {error}"));
                    failures.push(format!("{acceleration}: {error}"));
                }
            }
        }
        Err(Error::Boot { why: failures.join("; "), console: tail(&files.console, 20) })
    }

    pub fn acceleration(&self) -> Acceleration {
        self.acceleration
    }

    /// Why it did not come up when it was booted first, if it had to be booted a second time by the same means.
    pub fn failed_boot(&self) -> Option<&str> {
        self.failed_boot.as_deref()
    }

    /// The unix socket behind the guest's port `/dev/virtio-ports/latpath.agent`.
    pub fn agent_socket(&self) -> &Path {
        &self.agent
    }

    /// The unix socket at which its QEMU is asked, in QEMU's machine protocol (QMP), by one at a time.
    pub fn monitor_socket(&self) -> &Path {
        &self.monitor
    }

    /// Gives the publisher of the path and the guest addresses ([`PUBLISHER_ADDRESS`], [`GUEST_ADDRESS`]), so that neither asks for the other's.
    /// Returns their MAC addresses.
    pub fn lay_addresses(&mut self, publisher: &Namespace, stop: Stop) -> Result<[&'static str; 2]> {
        let [host, guest] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
        let address = |text: &str| text.parse().expect("an address of the lab");
        let network = publisher.network()?;
        network.set(PUBLISHER, &[Change::Mac([2, 0, 0, 0, 0, 1])])?;
        network.add_address(PUBLISHER, address(PUBLISHER_ADDRESS), 24)?;
        network.add_neighbour(PUBLISHER, address(GUEST_ADDRESS), [2, 0, 0, 0, 0, 2])?;
        let script = format!(
            "ip link set {GUEST_DEVICE} down && ip link set {GUEST_DEVICE} address {guest} && ip link set {GUEST_DEVICE} up
             ip addr add {GUEST_ADDRESS}/24 dev {GUEST_DEVICE}
             arp -s {PUBLISHER_ADDRESS} {host}"
        );
        self.expect(&script, stop)?;
        Ok([host, guest])
    }

    /// Starts a command line that goes on after this call, under a name by which [`Guest::end`] and
    /// [`Guest::file`] find it. With `again` it is started again whenever it ends.
    pub fn start(&mut self, name: &str, command: &str, again: bool, stop: Stop) -> Result<()> {
        let around = if again { ("while :; do", "sleep 1; done") } else { ("", "") };
        let script = format!(
            "rm -f /run/{name}.pid /run/{name}.status
             ( {} {command} >/run/{name}.out 2>/run/{name}.err </dev/null & echo $! >/run/{name}.pid; wait $!
               echo $? >/run/{name}.status\n {} ) >/dev/null 2>&1 &
             tries=0; until [ -s /run/{name}.pid ]; do usleep 10000; tries=$((tries+1)); [ $tries -lt 500 ]; done",
            around.0, around.1
        );
        self.expect(&script, stop).map(drop)
    }

    /// Ends what [`Guest::start`] started, by SIGTERM, and gives what it printed on stdout and its exit status. Its
    /// stderr is in [`Guest::file`] `/run/NAME.err`.
    pub fn end(&mut self, name: &str, limit: Duration, stop: Stop) -> Result<Output> {
        let tenths = limit.as_millis() / 100;
        let script = format!(
            "kill -TERM $(cat /run/{name}.pid) 2>/dev/null
             tries=0; until [ -s /run/{name}.status ]; do
                 usleep 100000; tries=$((tries+1)); [ $tries -lt {tenths} ] || {{ echo still runs >&2; exit 124; }}
             done
             cat /run/{name}.out; exit $(cat /run/{name}.status)"
        );
        self.run(&script, limit + Duration::from_secs(30), stop)
    }

    pub fn file(&mut self, path: &str, stop: Stop) -> Result<String> {
        self.expect(&format!("cat {path}"), stop)
    }

    /// Its kernel's counters of its device: packets, drops and errors.
    pub fn counters(&mut self, stop: Stop) -> Result<Statistics> {
        let names = ["rx_packets", "rx_dropped", "rx_errors", "tx_packets", "tx_dropped", "tx_errors"];
        let text =
            self.expect(&format!("cd /sys/class/net/{GUEST_DEVICE}/statistics && cat {}", names.join(" ")), stop)?;
        let numbers: Vec<u64> = text.lines().map_while(|l| l.trim().parse().ok()).collect();
        let [rx_packets, rx_dropped, rx_errors, tx_packets, tx_dropped, tx_errors] = numbers[..] else {
            return Err(self.fail(format!("{GUEST_DEVICE} has no counters: {text:?}")));
        };
        Ok(Statistics { rx_packets, rx_dropped, rx_errors, tx_packets, tx_dropped, tx_errors, ..Statistics::default() })
    }
}

/// Its NIC on the path's tap, the agent's port, and a vsock where the plan has one.
fn devices(plan: &GuestPlan, acceleration: Acceleration) -> Vec<String> {
    let is_vhost =
        acceleration == Acceleration::KvmVhost && !matches!(plan.service, NicService::Qemu | NicService::Packed);
    let vhost = if is_vhost { "on" } else { "off" };
    let options = match plan.service {
        NicService::Relayed => ",vectors=0",
        NicService::Packed => ",packed=on",
        NicService::Default | NicService::Qemu => "",
    };
    let mut devices = vec![
        format!("-netdev tap,id=net,ifname={TAP},script=no,downscript=no,vhost={vhost}"),
        format!("-device virtio-net-pci,netdev=net,romfile={options}"),
    ];
    devices.extend(plan.vsock.map(|cid| format!("-device vhost-vsock-pci,guest-cid={cid}")));
    devices
}
