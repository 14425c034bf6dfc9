//! Reads `/proc`, which changes while it is read: a missing entry is `None`, never an error.

use crate::Cpus;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Maximum length of a file in /proc, bytes: command lines may be megabytes long; QEMU's takes some 20 kB.
const MAX_BYTES: u64 = 1 << 20;

/// Maximum length of the list of mounts, bytes; the administrator determines how many there are.
const MAX_MOUNTS: u64 = 8 << 20;

/// Flag of a vCPU that runs its guest (include/linux/sched.h has all of these flags).
pub const PF_VCPU: u64 = 0x1;
/// Flag of an io_uring worker; since Linux 6.4 such a thread is also a user worker.
pub const PF_IO_WORKER: u64 = 0x10;
/// Flag of a kernel thread inside a user process, such as vhost's workers since Linux 6.4. Before 5.17 the bit was
/// PF_USED_ASYNC, which is set only in threads that load modules.
pub const PF_USER_WORKER: u64 = 0x4000;
/// Flag of a kernel thread.
pub const PF_KTHREAD: u64 = 0x20_0000;

/// Root of the kernel's file systems (/proc, /sys), which tests replace.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// Uses the file systems under this directory; `/` for the running machine.
    pub fn of(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// Path of a file under the root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// The first `MAX_BYTES` of a text file; bytes that are not UTF-8 are replaced.
    pub fn text(&self, path: &str) -> Option<String> {
        read(&self.path(path)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A list of CPUs of `/sys/devices/system/cpu`: `online`, `isolated`, `nohz_full`. Empty if the kernel has none.
    pub fn cpus(&self, list: &str) -> Cpus {
        let text = self.text(&format!("sys/devices/system/cpu/{list}")).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }

    /// The CPUs that the running kernel isolates, and those whose tick it stops.
    pub fn isolated_cpus(&self) -> Cpus {
        let mut all = self.cpus("isolated");
        all.join(self.cpus("nohz_full"));
        all
    }

    /// Target of a symbolic link, as text.
    ///
    /// # Errors
    /// The link does not exist, or cannot be read.
    pub fn link(&self, path: &str) -> io::Result<String> {
        fs::read_link(self.path(path)).map(|target| target.to_string_lossy().into_owned())
    }

    /// At most `most` entries of a folder whose names are numbers, ascending: processes, threads, descriptors.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn numbers(&self, folder: &str, most: usize) -> io::Result<Vec<u32>> {
        let entries = fs::read_dir(self.path(folder))?.flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut numbers: Vec<u32> = numbers.take(most).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Names of at most `most` entries of a folder; empty if the folder cannot be read.
    pub fn names(&self, folder: &str, most: usize) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).take(most).collect()
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Some fields of a thread's `stat` (proc_pid_stat(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Name of the thread.
    pub comm: String,
    /// State; `Z` or `X` if it is dead.
    pub state: char,
    /// PID of the parent process.
    pub parent: u32,
    /// `PF_*`.
    pub flags: u64,
    /// Nice value.
    pub nice: i32,
    /// Start time, clock ticks since boot.
    pub start_ticks: u64,
    /// CPU on which the thread last ran.
    pub cpu: u32,
    /// Real-time priority; 0 for none.
    pub rt_priority: u32,
    /// `SCHED_*`.
    pub policy: u32,
    /// Time spent running a guest, clock ticks.
    pub guest_ticks: u64,
}

impl Stat {
    /// Reads the `stat` file of a folder such as `proc/7/task/8`.
    pub fn read(root: &Root, folder: &str) -> Option<Self> {
        Self::parse(&root.text(&format!("{folder}/stat"))?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name is in parentheses and may contain spaces and parentheses.
        let (before, after) = text.rsplit_once(')')?;
        let comm = before.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = after.split_ascii_whitespace().collect();
        // The first of these fields is field 3 in the manual.
        let field = |number: usize| fields.get(number - 3);
        Some(Self {
            comm,
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            flags: field(9)?.parse().ok()?,
            nice: field(19)?.parse().ok()?,
            start_ticks: field(22)?.parse().ok()?,
            cpu: field(39)?.parse().ok()?,
            rt_priority: field(40)?.parse().ok()?,
            policy: field(41)?.parse().ok()?,
            guest_ticks: field(43)?.parse().ok()?,
        })
    }
}

/// Start time of a process, clock ticks since boot; `None` if no living process has this PID. PID and start time
/// together identify a process until the next boot.
pub fn start_ticks(root: &Root, pid: u32) -> Option<u64> {
    let stat = Stat::read(root, &format!("proc/{pid}"))?;
    (!matches!(stat.state, 'Z' | 'X')).then_some(stat.start_ticks)
}

/// CPU time since boot (`/proc/stat`, proc_stat(5)), ns, in steps of a clock tick, usually 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuAccount {
    /// User space, including nice threads and guests.
    pub user: u64,
    /// In the kernel, including interrupts and softirqs.
    pub system: u64,
    /// Idle, including time in which only disks are waited for.
    pub idle: u64,
    /// Stolen by this machine's hypervisor.
    pub steal: u64,
    /// Running guests; included in `user`.
    pub guest: u64,
}

impl CpuAccount {
    /// Reads the accounts of each CPU.
    pub fn of_each(root: &Root) -> Option<BTreeMap<u32, Self>> {
        Some(Self::parse(&root.text("proc/stat")?, tick_ns()))
    }

    /// Reads the sum of the accounts of `cpus`.
    pub fn read(root: &Root, cpus: &Cpus) -> Option<Self> {
        Some(Self::sum(&Self::of_each(root)?, cpus))
    }

    fn sum(all: &BTreeMap<u32, Self>, cpus: &Cpus) -> Self {
        all.iter().filter(|(cpu, _)| cpus.contains(**cpu)).fold(Self::default(), |sum, (_, one)| Self {
            user: sum.user + one.user,
            system: sum.system + one.system,
            idle: sum.idle + one.idle,
            steal: sum.steal + one.steal,
            guest: sum.guest + one.guest,
        })
    }

    fn parse(text: &str, tick: u64) -> BTreeMap<u32, Self> {
        let one = |line: &str| {
            let (cpu, fields) = line.strip_prefix("cpu")?.split_once(' ')?;
            let fields: Vec<u64> = fields.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
            let ns = |numbers: &[usize]| -> u64 { numbers.iter().filter_map(|n| fields.get(*n)).sum::<u64>() * tick };
            let (user, system, idle) = (ns(&[0, 1]), ns(&[2, 5, 6]), ns(&[3, 4]));
            Some((cpu.parse().ok()?, Self { user, system, idle, steal: ns(&[7]), guest: ns(&[8, 9]) }))
        };
        text.lines().filter_map(one).collect()
    }
}

/// Number of context switches, interrupts and softirqs on all CPUs since boot (`/proc/stat`, proc_stat(5)).
pub fn activity(root: &Root) -> Option<u64> {
    let text = root.text("proc/stat")?;
    let total = |line: &str| {
        let (name, fields) = line.split_once(' ')?;
        let counts = ["ctxt", "intr", "softirq"].contains(&name);
        counts.then(|| fields.split(' ').next()?.parse::<u64>().ok()).flatten()
    };
    Some(text.lines().filter_map(total).fold(0, u64::wrapping_add))
}

/// Length of the clock tick in which /proc counts times, ns.
pub fn tick_ns() -> u64 {
    // SAFETY: reads a constant of the system.
    let hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    1_000_000_000 / hz.max(1) as u64
}

/// A mount of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mounted part of the file system: `/` for all of it.
    pub root: String,
    /// The mount point.
    pub at: PathBuf,
    /// Type of the file system.
    pub kind: String,
}

impl Mount {
    /// All mounts visible to a process (`self`, `thread-self` or a PID); empty if they cannot be read.
    pub fn all_of(process: &str) -> Vec<Self> {
        let mut text = String::new();
        let file = File::open(format!("/proc/{process}/mountinfo"));
        match file.and_then(|file| file.take(MAX_MOUNTS).read_to_string(&mut text)) {
            Ok(_) => text.lines().filter_map(Self::parse).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Parses a line of mountinfo (proc_pid_mountinfo(5)), which encodes space, tab, newline and backslash as three
    /// octal digits.
    fn parse(line: &str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut words = mount.split(' ').skip(3);
        let (root, at) = (words.next()?, words.next()?);
        let at = [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")]
            .into_iter()
            .fold(at.to_owned(), |text, (code, letter)| text.replace(code, letter));
        Some(Self { root: root.into(), at: at.into(), kind: kind.split(' ').next()?.into() })
    }
}

/// The process's effective capabilities, one bit each; 0 if they cannot be read.
pub fn capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&status, "CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

/// The CPUs on which a thread may run.
pub fn cpus_allowed(root: &Root, folder: &str) -> Option<Cpus> {
    field(&root.text(&format!("{folder}/status"))?, "Cpus_allowed_list")?.parse().ok()
}

/// Content of a one-line file, without the line's end; empty if the file cannot be read.
pub fn line(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// The value of the first line `NAME: value`, the format of `status`, `meminfo` and `cpuinfo`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value =
        |line: &'a str| line.split_once(':').filter(|(key, _)| key.trim_end() == name).map(|(_, value)| value.trim());
    text.lines().find_map(value)
}

/// The number in a line `NAME: value`, e.g. 16 for `MemTotal: 16 kB`.
pub fn number(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.split(' ').next()?.parse().ok()
}

/// Release of the running kernel, as printed by `uname -r`; empty if it cannot be read.
pub fn kernel_release() -> String {
    line("/proc/sys/kernel/osrelease")
}

/// The kernel's identifier of this boot; empty if it cannot be read.
pub fn boot_id() -> String {
    line("/proc/sys/kernel/random/boot_id")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_has_a_start_and_a_dead_one_has_none() {
        let root = Root::of(Path::new("/"));
        assert!(start_ticks(&root, std::process::id()).is_some());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(start_ticks(&root, pid), None);
    }

    #[test]
    fn a_busy_vcpu_of_a_recorded_guest_is_read() {
        let text = "188 (qemu-system-x86) R 136 135 0 0 -1 138412225 1761 0 0 0 4704 215 0 0 20 0 3 0 742 366362624 36719 \
            18446744073709551615 94871848407040 94871854267477 140723230595184 0 0 0 2147219511 4096 16963 0 0 0 -1 1 50 1 \
            0 4591 0 94871857379576 94871862583728 94871995047936 140723230596388 140723230596847 140723230596847 \
            140723230597084 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.comm.as_str(), stat.flags & PF_VCPU, stat.guest_ticks), ("qemu-system-x86", PF_VCPU, 4591));
        assert_eq!((stat.cpu, stat.rt_priority, stat.policy), (1, 50, 1));
        assert_eq!((stat.state, stat.parent, stat.start_ticks), ('R', 136, 742));
    }

    #[test]
    fn a_name_with_parentheses_does_not_move_the_fields() {
        let text = format!("7 (a) R 1) S {}", (4..=43).map(|n| n.to_string()).collect::<Vec<_>>().join(" "));
        let stat = Stat::parse(&text).unwrap();
        assert_eq!((stat.comm.as_str(), stat.flags, stat.cpu, stat.guest_ticks), ("a) R 1", 9, 39, 43));
        for cut in [0, 5, 30, text.len() - 3] {
            assert_eq!(Stat::parse(&text[..cut]), None);
        }
    }

    #[test]
    fn a_lines_value_is_found_by_its_whole_name() {
        let text = "MemTotalX:\t1 kB\nMemTotal:      16303312 kB\nmodel name\t: A: B\nName:\t\n";
        assert_eq!(
            (number(text, "MemTotal"), number(text, "Name"), number(text, "Total")),
            (Some(16_303_312), None, None)
        );
        assert_eq!((field(text, "model name"), field(text, "Name")), (Some("A: B"), Some("")));
    }

    #[test]
    fn the_account_of_some_cpus_is_their_sum() {
        let text =
            "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 10 1 20 300 4 5 6 7 8 9\ncpu1 1 0 0 0\ncpu12 1 1 1 1 1 1 1 1 1 1\nintr 5\n";
        let account = CpuAccount::sum(&CpuAccount::parse(text, 10), &"0-3".parse().unwrap());
        assert_eq!(account, CpuAccount { user: 120, system: 310, idle: 3040, steal: 70, guest: 170 });
    }

    #[test]
    fn mounts_are_read_with_their_names_unescaped() {
        let mount = |line| Mount::parse(line).map(|m| (m.root, m.at, m.kind));
        let read = |root: &str, at: &str, kind: &str| Some((root.to_owned(), PathBuf::from(at), kind.to_owned()));
        let namespace = "312 28 0:4 net:[4026532281] /run/netns/a\\040b rw shared:12 - nsfs nsfs rw";
        assert_eq!(mount(namespace), read("net:[4026532281]", "/run/netns/a b", "nsfs"));
        let tracefs = "31 24 0:13 / /sys/kernel/tracing rw shared:9 master:2 - tracefs nodev rw";
        assert_eq!(mount(tracefs), read("/", "/sys/kernel/tracing", "tracefs"));
        assert_eq!((mount("broken"), mount(""), mount("1 2 3 / - tracefs")), (None, None, None));
    }

    proptest::proptest! {
        #[test]
        fn no_stat_makes_it_panic(text in "[0-9 ()a-z-]{0,200}") {
            let _ = Stat::parse(&text);
        }
    }
}
