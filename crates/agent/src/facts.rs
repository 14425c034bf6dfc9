//! What an agent says about its machine.

use latpath_linux::proc;

/// What an agent says about its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// latpath's version.
    pub program: String,
    /// Kernel release.
    pub kernel: String,
    /// Host name.
    pub hostname: String,
    /// CPUs online.
    pub cpus: u32,
    /// What the kernel takes its time from (`kvm-clock`, `tsc`).
    pub clocksource: String,
    /// What the probe can and cannot do there, for people.
    pub capabilities: String,
    /// Its latpath has a flight recorder that can be asked for.
    pub records: bool,
}

impl Facts {
    /// The facts of this machine.
    pub fn of_this_machine() -> Self {
        let line =
            |path: &str| Some(proc::line(path)).filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".into());
        Self {
            program: env!("CARGO_PKG_VERSION").into(),
            kernel: line("/proc/sys/kernel/osrelease"),
            hostname: line("/proc/sys/kernel/hostname"),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            capabilities: String::new(),
            records: true,
        }
    }
}
