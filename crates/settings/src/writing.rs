//! Writes settings, and reads each one back.

mod folder;

use crate::address::Address;
use crate::network;
use crate::nic::{Refusal, Written};
use crate::read::{devices, scheduling_of, PlacedValue, Source, Target};
use crate::setting::{Read, Scope, Setting, Write};
use latpath_linux::proc::{cpus_allowed, Stat};
use latpath_linux::{set_affinity, set_scheduling, writable_sysfs_of_own_netns, Cpus};
use latpath_net::{Inode, Netns};
use latpath_vms::{Policy, Thread};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

/// Whether and how a setting can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Writable {
    /// [`Setting::write`] changes it at once.
    Now,
    /// A parameter of the kernel's command line: requires a change of the boot loader's configuration and a reboot.
    NextBoot,
    /// An option of a kernel module: requires a file in /etc/modprobe.d, and loading the module again.
    ModuleLoad,
    /// Part of a virtual machine's definition: takes effect when the virtual machine is started.
    VmStart,
    /// The user changes it with a command.
    ByCommand,
    /// It cannot be set, or another program sets it.
    Never,
}

impl Writable {
    /// The name used in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::NextBoot => "next boot",
            Self::ModuleLoad => "module load",
            Self::VmStart => "VM start",
            Self::ByCommand => "by command",
            Self::Never => "never",
        }
    }
}

/// Why a setting was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// latpath does not write the setting.
    #[error("{setting}: latpath does not write it ({}); {hint}", writable.name())]
    NotNow {
        /// The setting.
        setting: Setting,
        /// How it can be changed.
        writable: Writable,
        /// The command to change it, or the program that sets it.
        hint: String,
    },
    /// The setting has no value at this address, or the address no longer exists.
    #[error("{setting} of {address}: {why}")]
    Missing {
        /// The setting.
        setting: Setting,
        /// The address.
        address: Address,
        /// The reason.
        why: String,
    },
    /// The device, its driver or this kernel lacks the option.
    #[error("{setting} of {address}: {why}")]
    NotOffered {
        /// The setting.
        setting: Setting,
        /// The address.
        address: Address,
        /// The response to the request.
        why: String,
    },
    /// The kernel or the device rejected the value.
    #[error("{setting} of {address}: cannot be set to {value:?}: {why}")]
    Refused {
        /// The setting.
        setting: Setting,
        /// The address.
        address: Address,
        /// The value that was to be set.
        value: String,
        /// The kernel's error, and the file.
        why: String,
    },
    /// The kernel accepted the value, but a reading returns another one.
    #[error("{setting} of {address}: set to {value:?}, but the kernel made {found:?} of it")]
    Differs {
        /// The setting.
        setting: Setting,
        /// The address.
        address: Address,
        /// The value that was written.
        value: String,
        /// The value that was read back.
        found: String,
    },
}

/// The file that holds a setting: relative to the root, or to the `class/net` of a network namespace.
enum SettingFile {
    OfRoot(String),
    OfDevice { netns: Inode, path: String },
}

impl Setting {
    /// Whether and how the setting can be written.
    pub fn writable(self) -> Writable {
        let info = self.info();
        match (info.write, info.read) {
            (Write::Same, Read::Boot(_)) => Writable::NextBoot,
            _ if info.scope == Scope::BootParameter => Writable::NextBoot,
            _ if info.scope == Scope::Vm => Writable::VmStart,
            (Write::Same | Write::SameBy(_) | Write::SameMade(..) | Write::File(_), _) => Writable::Now,
            (Write::Scheduling | Write::Affinity | Write::Files(..), _) => Writable::Now,
            (Write::Request(..) | Write::MadeRequest(..), _) => Writable::Now,
            (Write::ModuleOption(..), _) => Writable::ModuleLoad,
            (Write::Command(_) | Write::Made(..), _) => Writable::ByCommand,
            (Write::ReadOnly(_), _) => Writable::Never,
        }
    }

    /// Sets the setting to a value at an address as defined by the table, and reads the value back. If the machine is a
    /// directory tree, writes the value to its files. The caller must first store the old value ([`Source::value`]) in
    /// the journal.
    ///
    /// # Errors
    /// If latpath does not write the setting, the address no longer exists, the kernel rejects the value, or another
    /// value is read back.
    pub fn write(self, source: &Source, address: &Address, value: &str) -> Result<(), WriteError> {
        if self.writable() != Writable::Now {
            let hint = match self.info().write {
                Write::ReadOnly(who) => format!("{who} sets it"),
                _ => self.command(address, value).unwrap_or_default(),
            };
            return Err(WriteError::NotNow { setting: self, writable: self.writable(), hint });
        }
        let moved = match (self, address) {
            (Self::DeviceNamespace, Address::Device { name, netns }) => devices::identity(source, *netns, name),
            _ => None,
        };
        self.put(source, address, value).map_err(|refusal| match refusal {
            Refusal::NotOffered(why) => WriteError::NotOffered { setting: self, address: address.clone(), why },
            Refusal::Failed(why) => {
                WriteError::Refused { setting: self, address: address.clone(), value: value.into(), why }
            }
        })?;
        // The device is in another namespace now.
        let address = &match (moved, address) {
            (Some(identity), Address::Device { name, netns }) => match devices::locate(source, &identity, name, *netns)
            {
                Some((name, netns)) => Address::Device { name, netns },
                None => address.clone(),
            },
            _ => address.clone(),
        };
        let found = source.value(self, address)?;
        match self.is_met(&found, value) {
            true => Ok(()),
            false => Err(WriteError::Differs { setting: self, address: address.clone(), value: value.into(), found }),
        }
    }

    fn put(self, source: &Source, address: &Address, value: &str) -> Written {
        let failed = |why: String| Refusal::Failed(why);
        match (self.info().write, address) {
            (Write::Scheduling, _) => {
                let thread = self.thread(source, address).map_err(failed)?;
                source.set_scheduling(thread, value).map_err(failed)
            }
            (Write::Affinity, Address::Thread { tid, start_ticks }) => {
                source.set_affinity((*tid, *start_ticks), value).map_err(failed)
            }
            (Write::Files(_, _, put), _) => put(source, address, value),
            (Write::Request(_, write) | Write::MadeRequest(_, _, write), Address::Device { name, netns }) => {
                devices::request(source, *netns, name, |nic| write(nic, value))
            }
            (Write::Same, Address::Device { name, netns }) => match self.info().read {
                Read::DeviceSysctl(sysctl) => {
                    devices::request(source, *netns, name, |nic| network::set_sysctl(nic, sysctl, value))
                }
                _ => self.put_file(source, address, value),
            },
            _ => self.put_file(source, address, value),
        }
    }

    fn put_file(self, source: &Source, address: &Address, value: &str) -> Written {
        let file = self.file(address).ok_or_else(|| Refusal::Failed("not a place of this setting".into()))?;
        source.put(&file, self, value).map_err(|why| match address {
            // The kernel itself manages the affinity of some interrupts, e.g. of disk queues, and returns EIO
            // (kernel/irq/proc.c).
            Address::Interrupt { .. } if why.contains("(os error 5)") => {
                Refusal::NotOffered(format!("{why}: the kernel manages this interrupt's CPUs"))
            }
            _ => Refusal::Failed(why),
        })
    }

    /// The thread ID and start time of the thread at an address.
    fn thread(self, source: &Source, address: &Address) -> Result<(u32, u64), String> {
        match (self.info().read, address) {
            (_, Address::Thread { tid, start_ticks }) => Ok((*tid, *start_ticks)),
            (Read::CpuThread(name), Address::Cpu { cpu }) => {
                let name = format!("{name}/{cpu}");
                let mut all = source.kernel_threads().iter();
                let (tid, stat) = all.find(|(_, stat)| stat.comm == name).ok_or(format!("no thread {name}"))?;
                Ok((*tid, stat.start_ticks))
            }
            _ => Err("not a place of this setting".into()),
        }
    }

    /// The file of the setting at an address.
    fn file(self, address: &Address) -> Option<SettingFile> {
        let of_root = |path: String| Some(SettingFile::OfRoot(path));
        match (self.info().read, address) {
            (Read::Line(file) | Read::Choice(file), Address::Machine) => of_root(file.into()),
            (Read::Sysctl(name), Address::Machine) => of_root(format!("proc/sys/{}", name.replace('.', "/"))),
            (Read::Module(module, name), Address::Machine) => of_root(format!("sys/module/{module}/parameters/{name}")),
            (Read::EachCpu(file) | Read::EachCalledCpu(file), Address::Cpu { cpu }) => {
                of_root(format!("sys/devices/system/cpu/cpu{cpu}/{file}"))
            }
            (Read::Interrupt(file), Address::Interrupt { number }) => of_root(format!("proc/irq/{number}/{file}")),
            (Read::Device(file), Address::Device { name, netns }) => {
                Some(SettingFile::OfDevice { netns: *netns, path: format!("{name}/{file}") })
            }
            (Read::Queue(kind, file), Address::Queue { device, netns, queue }) if queue.starts_with(kind) => {
                Some(SettingFile::OfDevice { netns: *netns, path: format!("{device}/queues/{queue}/{file}") })
            }
            (Read::Group(file), Address::Group { path }) => of_root(format!("{}/{file}", path.trim_start_matches('/'))),
            (Read::Special(..), address) => match self.info().write {
                Write::File(file) => of_root(file.trim_start_matches('/').replace("{at}", &address.to_string())),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Source<'_> {
    /// The current value of a setting at an address, in the form used by a reading.
    ///
    /// # Errors
    /// If the address no longer exists, or the setting cannot be read there.
    pub fn value(&self, setting: Setting, address: &Address) -> Result<String, WriteError> {
        let missing = |why: String| WriteError::Missing { setting, address: address.clone(), why };
        let found: Vec<PlacedValue> = match (setting.info().read, address) {
            (Read::CpuThread(_), _) => {
                let (tid, start_ticks) = setting.thread(self, address).map_err(missing)?;
                return self.thread(tid, start_ticks, scheduling_of_thread).map_err(missing);
            }
            (Read::Thread(_, of), Address::Thread { tid, start_ticks }) => {
                return self.thread(*tid, *start_ticks, of).map_err(missing);
            }
            (_, Address::Thread { tid, start_ticks }) => {
                return self.thread(*tid, *start_ticks, scheduling_of_thread).map_err(missing);
            }
            (Read::EachCpu(file) | Read::EachCalledCpu(file), Address::Cpu { cpu }) => {
                self.each_cpu(&[*cpu].into_iter().collect(), file)
            }
            (Read::Interrupt(file), Address::Interrupt { number }) => {
                let text = self.line(&format!("proc/irq/{number}/{file}"));
                text.into_iter().map(|value| PlacedValue::named("", None, address.clone(), value)).collect()
            }
            (Read::Group(file), Address::Group { path }) => {
                let text = self.line(&format!("{}/{file}", path.trim_start_matches('/')));
                let value = text.map(|text| if text.is_empty() { NO_VALUE.into() } else { text });
                value.into_iter().map(|value| PlacedValue::named("", None, address.clone(), value)).collect()
            }
            (_, Address::Device { name, netns } | Address::Queue { device: name, netns, .. }) => {
                devices::of_device(self, setting, *netns, name).map_err(|e| missing(e.to_string()))?
            }
            _ => self.one(setting),
        };
        let is_it = |found: &PlacedValue| match address {
            Address::Device { .. } => true,
            // In a directory tree, device addresses have no namespace, so compare only the queue.
            Address::Queue { queue, .. } => matches!(&found.address, Address::Queue { queue: it, .. } if it == queue),
            Address::Cpu { cpu } => found.target == Target::Cpu(*cpu),
            other => found.address == *other,
        };
        match found.into_iter().find(is_it) {
            Some(found) => Ok(found.value),
            None => Err(missing("it does not exist, or cannot be read by this user".into())),
        }
    }

    fn thread(&self, tid: u32, start_ticks: u64, of: impl Fn(&Thread) -> Option<String>) -> Result<String, String> {
        let stat = self.stat_of(tid, start_ticks)?;
        let cpus_allowed = cpus_allowed(&self.root, &format!("proc/{tid}")).unwrap_or_default();
        let policy = Policy::from_number(stat.policy);
        let (rt_priority, nice) = (stat.rt_priority, stat.nice);
        let thread = Thread { tid, policy, rt_priority, nice, cpus_allowed, ..Thread::default() };
        of(&thread).ok_or_else(|| "it cannot be read".into())
    }

    /// The state of a thread, if it is still the one that started at `start_ticks`.
    pub(crate) fn stat_of(&self, tid: u32, start_ticks: u64) -> Result<Stat, String> {
        match Stat::read(&self.root, &format!("proc/{tid}")) {
            Some(stat) if stat.start_ticks == start_ticks => Ok(stat),
            Some(_) => Err("the thread has ended; another one has its number".into()),
            None => Err("the thread has ended".into()),
        }
    }

    fn set_scheduling(&self, (tid, start_ticks): (u32, u64), value: &str) -> Result<(), String> {
        let (policy, priority, nice) =
            parsed(value).ok_or("not a policy: fifo 1 to 99, rr 1 to 99, other, batch, idle")?;
        self.stat_of(tid, start_ticks)?;
        match self.is_live {
            true => set_scheduling(tid, policy, priority, nice).map_err(|e| e.to_string()),
            false => folder::set_scheduling(&self.root, tid, (policy, priority, nice)).map_err(|e| e.to_string()),
        }
    }

    fn set_affinity(&self, (tid, start_ticks): (u32, u64), value: &str) -> Result<(), String> {
        let cpus: Cpus = value.parse().map_err(|e| format!("{e}"))?;
        self.stat_of(tid, start_ticks)?;
        match self.is_live {
            true => set_affinity(tid, &cpus).map_err(|e| e.to_string()),
            false => folder::set_affinity(&self.root, tid, &cpus).map_err(|e| e.to_string()),
        }
    }

    fn put(&self, file: &SettingFile, setting: Setting, value: &str) -> Result<(), String> {
        let value = if matches!(setting.info().read, Read::Group(_)) && value == NO_VALUE { "" } else { value };
        let put = |path: &Path| match self.is_live {
            true => write_file(path, value),
            false => folder::write(path, setting, value),
        };
        let answered = |path: &str, answer: io::Result<()>| answer.map_err(|e| format!("/{path}: {e}"));
        match file {
            SettingFile::OfRoot(path) => answered(path, put(&self.root.path(path))),
            SettingFile::OfDevice { netns, path } => {
                let path = format!("sys/class/net/{path}");
                if !self.is_live {
                    return answered(&path, put(&self.root.path(&path)));
                }
                let own = Netns::own().map_err(|e| e.to_string())?.inode();
                let netns = if *netns == 0 { own } else { *netns };
                let usual = self.root.path(&path);
                let write = || -> io::Result<()> {
                    match writable_sysfs_of_own_netns() {
                        Ok(sysfs) => {
                            let inside = path.strip_prefix("sys/").unwrap_or(&path);
                            write_file(Path::new(&format!("/proc/self/fd/{}/{inside}", sysfs.as_raw_fd())), value)
                        }
                        // Without permission to mount, use the existing /sys for latpath's own namespace: it usually
                        // shows that one.
                        Err(_) if netns == own => write_file(&usual, value),
                        Err(error) => Err(error),
                    }
                };
                let entered = Netns::find(netns).and_then(|netns| netns.inside(write));
                entered.map_err(|e| e.to_string()).and_then(|answer| answered(&path, answer))
            }
        }
    }
}

/// The value that stands for an empty file of a control group.
const NO_VALUE: &str = "none";

fn scheduling_of_thread(thread: &Thread) -> Option<String> {
    Some(scheduling_of(thread.policy.name(), thread.rt_priority, thread.nice))
}

/// Writes a kernel file, which expects the value in a single write. Never creates a file.
fn write_file(path: &Path, value: &str) -> io::Result<()> {
    File::options().write(true).open(path)?.write_all(format!("{value}\n").as_bytes())
}

/// Parses a scheduling such as `fifo 50`, `other` or `other nice -5` into policy, priority and nice value.
fn parsed(value: &str) -> Option<(i32, i32, i32)> {
    let words: Vec<&str> = value.split_whitespace().collect();
    let number = |word: &str, from: i32, to: i32| word.parse().ok().filter(|n| (from..=to).contains(n));
    Some(match words.as_slice() {
        ["fifo", priority] => (libc::SCHED_FIFO, number(priority, 1, 99)?, 0),
        ["rr", priority] => (libc::SCHED_RR, number(priority, 1, 99)?, 0),
        [policy] => (plain(policy)?, 0, 0),
        [policy, "nice", nice] => (plain(policy)?, 0, number(nice, -20, 19)?),
        _ => return None,
    })
}

fn plain(policy: &str) -> Option<i32> {
    match policy {
        "other" => Some(libc::SCHED_OTHER),
        "batch" => Some(libc::SCHED_BATCH),
        "idle" => Some(libc::SCHED_IDLE),
        _ => None,
    }
}

/// Sets the runtime of a CPU's fair server while a thread of the fair class is queued on the CPU. To change the
/// runtime, the kernel stops the server only if it counts such a thread (`sched_fair_server_write`). But the server can
/// be active without one; then it would be changed while its bandwidth is in use. The kernel would warn
/// (`dl_rq->running_bw > dl_rq->this_bw`), and its bandwidth accounting would be wrong from then on.
pub(crate) fn fair_server(source: &Source, address: &Address, value: &str) -> Written {
    let Address::Cpu { cpu } = address else { return Err(Refusal::Failed("not a CPU".into())) };
    let file = SettingFile::OfRoot(format!("sys/kernel/debug/sched/fair_server/cpu{cpu}/runtime"));
    let put = || source.put(&file, Setting::FairServer, value).map_err(Refusal::Failed);
    match source.is_live {
        true => beside_fair_thread(*cpu, put),
        false => put(),
    }
}

/// Calls a function while a thread of the fair class is queued on the CPU. The thread is not joined, because real-time
/// threads may keep it from running; it ends when it next runs.
fn beside_fair_thread(cpu: u32, call: impl FnOnce() -> Written) -> Written {
    let (is_done, until) = (Arc::new(AtomicBool::new(false)), Instant::now() + Duration::from_secs(1));
    let (tell, told) = mpsc::channel();
    let queued = is_done.clone();
    let run = move || {
        // SAFETY: gettid takes no pointers.
        let _ = tell.send(unsafe { libc::gettid() } as u32);
        while !queued.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::yield_now();
        }
    };
    let failed = |why: String| Refusal::Failed(format!("a thread on CPU {cpu}: {why}"));
    std::thread::Builder::new().name("latpath-queued".into()).spawn(run).map_err(|e| failed(e.to_string()))?;
    let tid = told.recv().map_err(|e| failed(e.to_string()))?;
    let written = match set_affinity(tid, &[cpu].into_iter().collect()) {
        Ok(()) => call(),
        Err(why) => Err(failed(why.to_string())),
    };
    is_done.store(true, Ordering::Relaxed);
    written
}

/// Disables exactly the idle states of a CPU that are listed in the value: `none`, `1,2`.
pub(crate) fn idle_disabled(source: &Source, address: &Address, value: &str) -> Written {
    let Address::Cpu { cpu } = address else { return Err(Refusal::Failed("not a CPU".into())) };
    let numbers: Cpus = match value {
        "none" => Cpus::default(),
        numbers => numbers.parse().map_err(|e| Refusal::Failed(format!("{e}")))?,
    };
    let file = |n: u32| format!("sys/devices/system/cpu/cpu{cpu}/cpuidle/state{n}/disable");
    let states: Vec<u32> = (0..).take_while(|n| source.line(&file(*n)).is_some()).collect();
    if let Some(unknown) = numbers.iter().find(|n| !states.contains(n)) {
        return Err(Refusal::Failed(format!("the CPU has no idle state {unknown} (it has {})", states.len())));
    }
    for n in states {
        let value = if numbers.contains(n) { "1" } else { "0" };
        if source.line(&file(n)).as_deref() != Some(value) {
            source.put(&SettingFile::OfRoot(file(n)), Setting::CpuIdleDisabled, value).map_err(Refusal::Failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_linux::proc::Root;

    #[test]
    fn a_fair_thread_is_on_the_cpu_meanwhile() {
        for cpu in Root::of(Path::new("/")).cpus("online").iter() {
            let mut found = None;
            let call = || {
                let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
                let of = |name: &std::ffi::OsStr| {
                    std::fs::read_to_string(Path::new("/proc/self/task").join(name).join("stat"))
                };
                let stats = tasks.filter_map(|task| of(&task.file_name()).ok());
                let queued = stats.filter(|stat| stat.contains("(latpath-queued)"));
                // Field 39 of `stat` is the CPU; the name (field 2) contains no space. The threads of earlier calls may
                // still exist for a moment.
                let state = |stat: String| {
                    let fields: Vec<&str> = stat.split(' ').collect();
                    (fields[2] == "R", fields[38].parse::<u32>().unwrap())
                };
                found = Some(queued.map(state).any(|state| state == (true, cpu)));
                Ok(())
            };
            assert!(beside_fair_thread(cpu, call).is_ok());
            assert_eq!(found, Some(true), "CPU {cpu}");
        }
    }
}
