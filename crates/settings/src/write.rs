//! The commands that write settings, quoted for a shell.

use crate::address::Address;
use crate::setting::{Read, Setting, Write};
use crate::shell;
use latpath_model::text::quoted;
use std::fmt;

/// The owner of a setting, as named in a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The machine, or all of its CPUs.
    All,
    /// A name, a number or a path, which is quoted as one word of the command.
    Name(String),
    /// A shell expression that yields the place; it is inserted without quotes.
    Expression(String),
}

impl Place {
    /// A name, a number or a path.
    pub fn name(name: impl fmt::Display) -> Self {
        Self::Name(name.to_string())
    }

    /// A shell expression.
    pub fn expression(text: impl Into<String>) -> Self {
        Self::Expression(text.into())
    }

    /// The place as one word of a command.
    pub(crate) fn word(&self) -> String {
        self.within("{at}")
    }

    /// A word of a command, with `{at}` replaced by the place.
    pub(crate) fn within(&self, word: &str) -> String {
        match self {
            Self::All => quoted(&word.replace("{at}", "")),
            Self::Name(name) => quoted(&word.replace("{at}", name)),
            Self::Expression(text) => word.replace("{at}", text),
        }
    }
}

impl Setting {
    /// The command line that sets the setting to a value; for a boot parameter, the text to add to the kernel's command
    /// line. `None` if latpath only reads the setting.
    pub fn shell(self, at: &Place, value: &str) -> Option<String> {
        let info = self.info();
        let echo = |file: &str| format!("echo {} > {}", quoted(value), at.within(file));
        Some(match info.write {
            Write::ReadOnly(_) => return None,
            Write::SameBy(template) | Write::Request(template, _) | Write::Command(template) => {
                command(template, at, value)
            }
            Write::SameMade(_, make)
            | Write::Files(_, make, _)
            | Write::Made(_, make)
            | Write::MadeRequest(_, make, _) => make(at, value),
            Write::Scheduling => shell::chrt(at, value),
            Write::Affinity => command("taskset -cp {value} {at}", at, value),
            Write::Same => match info.read {
                Read::Line(file) | Read::Choice(file) => echo(&format!("/{file}")),
                Read::Sysctl(name) => format!("sysctl {}", quoted(&format!("{name}={value}"))),
                Read::Module(module, name) => echo(&format!("/sys/module/{module}/parameters/{name}")),
                Read::Boot(name) if value == Self::BARE => name.into(),
                Read::Boot(name) => quoted(&format!("{name}={value}")),
                Read::EachCpu(file) | Read::EachCalledCpu(file) => {
                    echo(&format!("/sys/devices/system/cpu/cpu{{at}}/{file}"))
                }
                Read::Interrupt(file) => echo(&format!("/proc/irq/{{at}}/{file}")),
                Read::Device(file) => echo(&format!("/sys/class/net/{{at}}/{file}")),
                Read::Queue(_, file) => echo(&format!("/sys/class/net/{{at}}/{file}")),
                Read::Group(file) => echo(&format!("{{at}}/{file}")),
                Read::DeviceSysctl(name) => {
                    let name = name.replace('/', ".").replace("{}", "{at}");
                    format!("sysctl -w {}={}", at.within(&name), quoted(value))
                }
                Read::CpuThread(_)
                | Read::Request(..)
                | Read::DeviceLink(_)
                | Read::Feature(_)
                | Read::Ethtool(..)
                | Read::Qdisc
                | Read::Thread(..)
                | Read::Vm(..)
                | Read::Special(..) => return None,
            },
            Write::File(file) => echo(file),
            Write::ModuleOption(module, name) => {
                let file = quoted(&format!("/etc/modprobe.d/latpath-{module}-{name}.conf"));
                format!("echo options {module} {} > {file}", quoted(&format!("{name}={value}")))
            }
        })
    }

    /// The command line that sets the setting to a value at an address: [`Setting::shell`], but a CPU's own kernel
    /// thread is found by its name.
    pub fn command(self, address: &Address, value: &str) -> Option<String> {
        match (self.info().read, address) {
            (Read::CpuThread(name), Address::Cpu { cpu }) => {
                self.shell(&Place::expression(format!("$(pgrep -x {name}/{cpu})")), value)
            }
            _ => self.shell(&address.place(), value),
        }
    }

    /// The value of a boot parameter that is given without a value.
    pub const BARE: &'static str = "set";
    /// The value of an absent boot parameter.
    pub const ABSENT: &'static str = "not set";
}

/// Fills in a command template. Each of its words remains one word, except `{words}`, which becomes all words of the
/// value.
fn command(template: &str, at: &Place, value: &str) -> String {
    let word = |word: &str| match word {
        "{value}" => quoted(value),
        "{words}" => value.split_whitespace().map(quoted).collect::<Vec<_>>().join(" "),
        word if word.contains("{at}") => at.within(word),
        word => word.into(),
    };
    template.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

impl Write {
    /// Text of the table's column that says where the value is written, or which program sets it.
    pub fn text(self, read: Read) -> String {
        match (self, read) {
            (Self::Same, Read::Sysctl(name)) => format!("sysctl {name}=VALUE"),
            (Self::Same, Read::DeviceSysctl(name)) => {
                format!("sysctl {}=VALUE", name.replace('/', ".").replace("{}", "AT"))
            }
            (Self::Same, Read::Boot(name)) => format!("the kernel's command line: {name}=VALUE"),
            (Self::Same, _) => "the same file".into(),
            (Self::File(file), _) => file.replace("{at}", "AT"),
            (Self::ModuleOption(module, name), _) => format!("/etc/modprobe.d: options {module} {name}=VALUE"),
            (Self::Command(template) | Self::SameBy(template) | Self::Request(template, _), _) => {
                template.replace("{at}", "AT").replace("{value}", "VALUE").replace("{words}", "VALUE")
            }
            (Self::Made(what, _) | Self::SameMade(what, _) | Self::Files(what, ..), _) => what.into(),
            (Self::MadeRequest(what, ..), _) => what.into(),
            (Self::Scheduling, _) => "chrt".into(),
            (Self::Affinity, _) => "taskset -cp VALUE AT".into(),
            (Self::ReadOnly(who), _) => format!("not by latpath, but by {who}"),
        }
    }
}

impl Read {
    /// Text of the table's column that says where the value is read.
    pub fn text(self) -> String {
        match self {
            Self::Line(file) | Self::Choice(file) => format!("/{file}"),
            Self::Sysctl(name) => format!("/proc/sys/{}", name.replace('.', "/")),
            Self::Module(module, name) => format!("/sys/module/{module}/parameters/{name}"),
            Self::Boot(_) => "/proc/cmdline".into(),
            Self::EachCpu(file) | Self::EachCalledCpu(file) => format!("/sys/devices/system/cpu/cpuN/{file}"),
            Self::CpuThread(name) => format!("/proc/N/stat of {name}/CPU"),
            Self::Interrupt(file) => format!("/proc/irq/N/{file}"),
            Self::Device(file) | Self::DeviceLink(file) => format!("/sys/class/net/DEVICE/{file}"),
            Self::Queue(queue, file) => format!("/sys/class/net/DEVICE/queues/{queue}-N/{file}"),
            Self::Feature(name) => format!("ethtool -k DEVICE: {name}"),
            Self::Ethtool(option, _) => format!("ethtool {option} DEVICE"),
            Self::Request(from, _) => from.into(),
            Self::DeviceSysctl(name) => format!("/proc/sys/{}", name.replace("{}", "DEVICE")),
            Self::Qdisc => "rtnetlink: RTM_GETQDISC".into(),
            Self::Group(file) => format!("/sys/fs/cgroup/GROUP/{file}"),
            Self::Thread(from, _) | Self::Vm(from, _) | Self::Special(from, _) => from.into(),
        }
    }
}
