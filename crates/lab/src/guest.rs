//! The guest: boots on a path's tap, runs scripts, and ends when its handle is dropped.

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
    qemu::{Files, Start, MACVTAP_FD},
    Lab, LabPath, Namespace, Output, Progress, Stop,
};
use latpath_net::{Change, Statistics};
use std::{
    fs,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    time::Duration,
};

/// Maximum boot time of a guest with a fixed acceleration: its host may itself be emulated.
const PATIENT: Duration = Duration::from_secs(180);

/// Modules for a vsock and the hypervisor's clock.
const VSOCK: [&str; 2] = ["vmw_vsock_virtio_transport", "ptp_kvm"];

/// The service of a guest's NIC: the program that moves its packets and interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NicService {
    /// vhost with MSI if the acceleration has it, else QEMU.
    #[default]
    Default,
    /// QEMU, even if vhost is available.
    Qemu,
    /// QEMU with packed rings.
    Packed,
    /// Like the default, but without MSI: QEMU relays vhost's interrupts.
    Relayed,
}

/// Configuration of a guest.
#[derive(Clone, Debug)]
pub struct GuestPlan {
    /// The guest's name, used in QEMU's thread names and in file names.
    pub name: String,
    /// Programs to copy into the guest, with their shared libraries: file on the host, path in the guest.
    pub programs: Vec<(PathBuf, String)>,
    /// Number of vCPUs.
    pub cpus: u32,
    /// Memory in MiB, in addition to that of its root file system.
    pub memory_mib: u64,
    /// The only acceleration to try, twice; `None` tries those of this machine.
    pub acceleration: Option<Acceleration>,
    /// The context id of its vsock, which the host's kernel serves; needs vhost_vsock.
    pub vsock: Option<u32>,
    /// The service of its NIC.
    pub service: NicService,
    /// The file of its serial console; `None` for a file in the lab's folder.
    pub console: Option<PathBuf>,
    /// Its kernel; `None` for this machine's, or Debian's.
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

/// A running guest, which ends when this value is dropped.
#[derive(Debug)]
pub struct Guest {
    machine: Machine,
    agent: PathBuf,
    monitor: PathBuf,
    acceleration: Acceleration,
    failed_boot: Option<String>,
    // Keeps the folder of its sockets from being removed.
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
    /// Boots a guest on the path's tap, with the best acceleration first. If the last one fails, it is tried again with
    /// the kernel's messages enabled.
    ///
    /// # Errors
    /// If there is no kernel, no acceleration boots the guest, or the user requests a stop.
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
                // The archive and its unpacked files are temporarily both in memory.
                memory_mib: plan.memory_mib + 2 * image_mib,
                append: "ipv6.disable=1",
                devices: devices(plan, acceleration, path.macvtap.as_deref()),
                macvtap: path.macvtap.as_deref(),
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
                    // Only the second attempt is verbose.
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

    /// The acceleration that the guest runs with.
    pub fn acceleration(&self) -> Acceleration {
        self.acceleration
    }

    /// Why the first boot failed, if the guest was booted again with the same acceleration.
    pub fn failed_boot(&self) -> Option<&str> {
        self.failed_boot.as_deref()
    }

    /// The unix socket behind the guest's port `/dev/virtio-ports/latpath.agent`.
    pub fn agent_socket(&self) -> &Path {
        &self.agent
    }

    /// The unix socket of the QEMU Machine Protocol (QMP), for one client at a time.
    pub fn monitor_socket(&self) -> &Path {
        &self.monitor
    }

    /// Sets addresses and neighbour entries of the path's publisher and the guest ([`PUBLISHER_ADDRESS`],
    /// [`GUEST_ADDRESS`]), so that neither sends ARP requests. Returns their MAC addresses.
    ///
    /// # Errors
    /// If the kernel or the guest rejects an address.
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

    /// Starts a command line in the background, under a name for [`Guest::end`] and [`Guest::file`]. With `again`, it
    /// is restarted whenever it ends.
    ///
    /// # Errors
    /// If the guest does not answer, or the command does not start within 5 s.
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

    /// Ends a command that [`Guest::start`] started, by SIGTERM, and returns its standard output and exit status. Its
    /// standard error is in [`Guest::file`] `/run/NAME.err`.
    ///
    /// # Errors
    /// If the guest does not answer.
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

    /// Reads a text file from the guest.
    ///
    /// # Errors
    /// If the file does not exist, or the guest does not answer.
    pub fn file(&mut self, path: &str, stop: Stop) -> Result<String> {
        self.expect(&format!("cat {path}"), stop)
    }

    /// The guest kernel's counters of its device: packets, drops and errors.
    ///
    /// # Errors
    /// If the guest does not answer.
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

/// QEMU options: the NIC on the path's tap, the agent's port, and a vsock if the plan has one.
fn devices(plan: &GuestPlan, acceleration: Acceleration, macvtap: Option<&Path>) -> Vec<String> {
    let is_vhost =
        acceleration == Acceleration::KvmVhost && !matches!(plan.service, NicService::Qemu | NicService::Packed);
    let vhost = if is_vhost { "on" } else { "off" };
    let options = match plan.service {
        NicService::Relayed => ",vectors=0",
        NicService::Packed => ",packed=on",
        NicService::Default | NicService::Qemu => "",
    };
    let mut devices = vec![
        match macvtap {
            Some(_) => format!("-netdev tap,id=net,fd={MACVTAP_FD},vhost={vhost}"),
            None => format!("-netdev tap,id=net,ifname={TAP},script=no,downscript=no,vhost={vhost}"),
        },
        format!("-device virtio-net-pci,netdev=net,romfile={options}"),
    ];
    devices.extend(plan.vsock.map(|cid| format!("-device vhost-vsock-pci,guest-cid={cid}")));
    devices
}
