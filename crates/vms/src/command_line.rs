//! Parses QEMU's command line: the guest's name and devices. The text comes from another process, so unknown parts are
//! skipped.

use crate::text::plain;
use serde_json::Value;

/// Maximum number of options of one kind.
const MAX: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    pub name: Option<String>,
    pub uuid: Option<String>,
    pub machine: Option<String>,
    /// Requested accelerators, in order of preference.
    pub accelerators: Vec<String>,
    pub memory_bytes: Option<u64>,
    pub vcpus: Option<u32>,
    pub netdevs: Vec<Netdev>,
    pub nics: Vec<Nic>,
    pub sockets: Vec<SocketChardev>,
    /// vsock context ID (CID) of the guest's vhost-vsock device.
    pub vsock_cid: Option<u32>,
    /// PCI addresses of passed-through devices, e.g. `0000:03:10.1`.
    pub passthrough: Vec<String>,
}

/// The host side of a guest's NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netdev {
    pub id: Option<String>,
    pub kind: String,
    pub device: Option<String>,
    pub fds: Vec<u32>,
    pub vhost: bool,
    pub vhost_fds: Vec<u32>,
    /// MAC address given with `-nic`.
    pub mac: Option<String>,
    /// ID of the character device that vhost-user uses.
    pub chardev: Option<String>,
    pub queues: Option<u32>,
}

/// A character device that is a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketChardev {
    pub id: String,
    pub path: String,
    /// Whether QEMU listens on the socket.
    pub listens: bool,
}

/// The guest side of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    pub netdev: String,
    pub mac: Option<String>,
}

/// Value of an option: `kind,key=value,…` or JSON.
struct Values(Vec<(String, String)>);

impl Values {
    fn parse(text: &str) -> Self {
        match text.trim_start().starts_with('{').then(|| serde_json::from_str::<Value>(text)) {
            Some(Ok(Value::Object(object))) => {
                let text = |value: Value| match value {
                    Value::String(text) => text,
                    Value::Bool(on) => if on { "on" } else { "off" }.into(),
                    other => other.to_string(),
                };
                Self(object.into_iter().take(MAX).map(|(key, value)| (key, text(value))).collect())
            }
            _ => Self(commas(text).into_iter().take(MAX).map(|part| pair(&part)).collect()),
        }
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Value of the first part if it has no key, otherwise the value of `key`.
    fn first(&self, key: &str) -> Option<&str> {
        match self.0.first() {
            Some((k, bare)) if k.is_empty() => Some(bare),
            _ => self.get(key),
        }
    }
}

/// The options of QEMU's command line (`/proc/PID/cmdline`) and their values as key-value pairs; a value without a key
/// has an empty key. Options without a value, and files that QEMU reads, are omitted.
pub fn qemu_options(text: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut found = Vec::new();
    let mut words = text.split('\0').skip(1).peekable();
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix("--").or(word.strip_prefix('-')) else { continue };
        let value = words.next_if(|value| !value.starts_with('-')).unwrap_or_default();
        if found.len() < MAX && !value.is_empty() {
            let pairs = Values::parse(value).0;
            found.push((plain(option), pairs.iter().map(|(key, value)| (plain(key), plain(value))).collect()));
        }
    }
    found
}

/// The guest's name on the command line of a program other than QEMU: `--id` for Firecracker, `--name` for crosvm and
/// kvmtool (`lkvm`). Cloud Hypervisor has no such option.
pub fn name_of_other(program: &str, text: &str) -> Option<String> {
    let option = match program {
        "firecracker" => "--id",
        "crosvm" | "lkvm" | "kvmtool" | "vm" => "--name",
        _ => return None,
    };
    let mut words = text.split('\0').skip(1);
    let value = words.find_map(|word| match word.strip_prefix(option) {
        Some("") => Some(None),
        Some(value) => value.strip_prefix('=').map(Some),
        None => None,
    })?;
    value.or_else(|| words.next()).map(plain).filter(|name| !name.is_empty())
}

fn pair(part: &str) -> (String, String) {
    match part.split_once('=') {
        Some((key, value)) => (key.into(), value.into()),
        None => (String::new(), part.into()),
    }
}

/// Splits an option at commas; a double comma is a literal comma.
fn commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == ',' && letters.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(letter);
        }
    }
    parts
}

impl CommandLine {
    /// Parses `/proc/PID/cmdline`: arguments terminated by NUL.
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        let mut words = text.split('\0');
        words.next();
        while let Some(word) = words.next() {
            let Some(option) = word.strip_prefix("--").or(word.strip_prefix('-')) else { continue };
            if matches!(option, "enable-kvm") {
                found.accelerators.push("kvm".into());
            }
            const TAKEN: [&str; 14] = [
                "name", "uuid", "machine", "M", "accel", "m", "smp", "netdev", "nic", "net", "device", "chardev",
                "kernel", "append",
            ];
            if let Some(option) = TAKEN.into_iter().find(|o| *o == option) {
                found.take(option, words.next().unwrap_or_default());
            }
        }
        found.accelerators.truncate(MAX);
        found.netdevs.truncate(MAX);
        found.nics.truncate(MAX);
        found.sockets.truncate(MAX);
        found
    }

    fn take(&mut self, option: &str, value: &str) {
        let values = Values::parse(value);
        match option {
            "name" => self.name = values.first("guest").map(plain),
            "uuid" => self.uuid = Some(plain(value)),
            "machine" | "M" => {
                self.machine = values.first("type").map(plain);
                self.accelerators.extend(values.get("accel").into_iter().flat_map(|a| a.split(':')).map(str::to_owned));
            }
            "accel" => self.accelerators.extend(values.first("accel").map(str::to_owned)),
            "m" => self.memory_bytes = values.first("size").and_then(memory),
            "smp" => self.vcpus = vcpus(&values),
            "netdev" => self.netdevs.extend(netdev(&values)),
            "nic" | "net" => self.netdevs.extend(netdev(&values).filter(|n| n.kind != "nic" && n.kind != "none")),
            "device" => self.device(&values),
            "chardev" => self.sockets.extend(socket(&values)),
            _ => {}
        }
    }

    fn device(&mut self, values: &Values) {
        if let Some(netdev) = values.get("netdev") {
            self.nics.push(Nic { netdev: netdev.into(), mac: values.get("mac").and_then(mac) });
        }
        if values.first("driver").is_some_and(|driver| driver.starts_with("vfio-pci")) {
            let of_sysfs = || values.get("sysfsdev")?.rsplit('/').next();
            // QEMU's host= may omit the domain 0000.
            let whole = |host: &str| if host.matches(':').count() == 1 { format!("0000:{host}") } else { host.into() };
            self.passthrough.extend(values.get("host").or_else(of_sysfs).map(whole));
        }
        if values.first("driver").is_some_and(|driver| driver.starts_with("vhost-vsock")) {
            self.vsock_cid = values.get("guest-cid").and_then(|cid| cid.parse().ok()).or(self.vsock_cid);
        }
    }

    /// MAC address of the guest's NIC that is connected to a netdev.
    pub fn mac_behind(&self, netdev: &Netdev) -> Option<String> {
        let by_id = || self.nics.iter().find(|nic| Some(&nic.netdev) == netdev.id.as_ref())?.mac.clone();
        netdev.mac.clone().or_else(by_id)
    }
}

fn netdev(values: &Values) -> Option<Netdev> {
    let numbers = |keys: [&str; 2]| -> Vec<u32> {
        let lists = keys.into_iter().filter_map(|key| values.get(key));
        lists.flat_map(|list| list.split(':')).filter_map(|fd| fd.parse().ok()).take(MAX).collect()
    };
    let vhost_fds = numbers(["vhostfd", "vhostfds"]);
    Some(Netdev {
        id: values.get("id").map(plain),
        kind: plain(values.first("type")?),
        device: values.get("ifname").map(str::to_owned),
        fds: numbers(["fd", "fds"]),
        vhost: !vhost_fds.is_empty() || values.get("vhost") == Some("on"),
        vhost_fds,
        mac: values.get("mac").and_then(mac),
        chardev: values.get("chardev").map(str::to_owned),
        queues: values.get("queues").and_then(|queues| queues.parse().ok()),
    })
}

fn socket(values: &Values) -> Option<SocketChardev> {
    let is_socket = values.first("backend") == Some("socket");
    // `server` without a value is an old form of `server=on`.
    let listens = values.get("server").is_some_and(|server| matches!(server, "on" | "true"))
        || values.0.iter().any(|(key, value)| key.is_empty() && value == "server");
    let path = values.get("path").filter(|_| is_socket)?;
    Some(SocketChardev { id: values.get("id")?.into(), path: path.into(), listens })
}

/// Parses a memory size to bytes: `512` (MiB), `4G`, `4194304k`.
fn memory(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "m" | "mib" => 20,
        "b" => 0,
        "k" | "kib" => 10,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// Parses the number of vCPUs: `2`, `2,maxcpus=4`, `cpus=2`, or the product of sockets, cores and threads.
fn vcpus(values: &Values) -> Option<u32> {
    if let Some(count) = values.first("cpus") {
        return count.parse().ok();
    }
    let factors = ["sockets", "dies", "clusters", "cores", "threads"].into_iter().filter_map(|key| values.get(key));
    factors.map(|factor| factor.parse::<u32>().ok()).try_fold(1, |product: u32, factor| product.checked_mul(factor?))
}

/// Normalises a MAC address to latpath's spelling; `None` for other text.
pub fn mac(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let bytes: Vec<&str> = text.split(':').collect();
    let good = bytes.len() == 6 && bytes.iter().all(|b| b.len() == 2 && u8::from_str_radix(b, 16).is_ok());
    good.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> CommandLine {
        CommandLine::parse(&words.split(' ').map(|w| format!("{w}\0")).collect::<String>())
    }

    #[test]
    fn a_guest_started_by_hand_is_read() {
        let read = parse(
            "qemu-system-x86_64 -name relay,debug-threads=on -accel kvm -machine q35 -smp 2 -m 512 -netdev \
             tap,id=net0,ifname=vnet0,script=no,vhost=on -device virtio-net-pci,netdev=net0,mac=52:54:00:0A:0B:0C -device \
             vhost-vsock-pci,guest-cid=42",
        );
        assert_eq!((read.name.as_deref(), read.machine.as_deref()), (Some("relay"), Some("q35")));
        assert_eq!((read.vcpus, read.memory_bytes, read.vsock_cid), (Some(2), Some(512 << 20), Some(42)));
        assert_eq!(read.accelerators, ["kvm"]);
        let netdev = &read.netdevs[0];
        assert_eq!((netdev.device.as_deref(), netdev.vhost), (Some("vnet0"), true));
        assert_eq!(read.mac_behind(netdev).as_deref(), Some("52:54:00:0a:0b:0c"));
    }

    #[test]
    fn a_guest_started_by_libvirt_is_read() {
        let read = parse(
            r#"/usr/bin/qemu-system-x86_64 -name guest=relay,debug-threads=on -machine pc-q35-7.2,usb=off,dump-guest-core=off -accel kvm -m size=4194304k -smp 4,sockets=1,cores=4 -uuid 6c8a1b52-63f5-4ae8-9b0f-d8ed90a2e001 -netdev {"type":"tap","fds":"30:31","vhost":true,"vhostfds":"32:33","id":"hostnet0"} -device {"driver":"virtio-net-pci","mq":true,"netdev":"hostnet0","id":"net0","mac":"52:54:00:dd:ee:ff"}"#,
        );
        assert_eq!((read.name.as_deref(), read.machine.as_deref()), (Some("relay"), Some("pc-q35-7.2")));
        assert_eq!((read.vcpus, read.memory_bytes), (Some(4), Some(4 << 30)));
        assert_eq!((read.netdevs[0].fds.as_slice(), read.netdevs[0].vhost), ([30, 31].as_slice(), true));
        assert_eq!(read.mac_behind(&read.netdevs[0]).as_deref(), Some("52:54:00:dd:ee:ff"));
    }

    #[test]
    fn options_are_pairs_in_both_notations() {
        let text = "qemu\0-nodefaults\0-device\0virtio-net-pci,netdev=n0,rx_queue_size=1024\0-device\0\
                    {\"driver\":\"virtio-balloon-pci\",\"id\":\"b\"}\0-overcommit\0mem-lock=on\0";
        let read = qemu_options(text);
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(read.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["device", "device", "overcommit"]);
        assert_eq!(read[0].1, [pair("", "virtio-net-pci"), pair("netdev", "n0"), pair("rx_queue_size", "1024")]);
        assert!(read[1].1.contains(&pair("driver", "virtio-balloon-pci")));
    }

    #[test]
    fn vhost_user_is_read_with_its_socket() {
        let read = parse(
            "qemu -chardev socket,id=c0,path=/run/vhost0,server=on -netdev vhost-user,id=n0,chardev=c0,queues=2 -device \
             virtio-net-pci,netdev=n0,mac=52:54:00:0a:0b:0c -chardev pty,id=c1 -chardev socket,id=c2,port=1 -chardev \
             socket,id=c3,path=/run/other,server,nowait",
        );
        let socket = |id: &str, path: &str, listens| SocketChardev { id: id.into(), path: path.into(), listens };
        assert_eq!(read.sockets, [socket("c0", "/run/vhost0", true), socket("c3", "/run/other", true)]);
        let [netdev] = &read.netdevs[..] else { panic!("one netdev") };
        assert_eq!(
            (netdev.kind.as_str(), netdev.chardev.as_deref(), netdev.queues),
            ("vhost-user", Some("c0"), Some(2))
        );
    }

    #[test]
    fn an_option_named_inside_anothers_value_is_none() {
        let read = parse("qemu -append -name -kernel -uuid -name a,,b");
        assert_eq!((read.name.as_deref(), read.uuid), (Some("a,b"), None));
    }

    #[test]
    fn nonsense_is_skipped() {
        for words in ["", "qemu -m", "qemu -m 9999999999999T -smp x -netdev {\"type\" -netdev , -device mac=1", "-name"]
        {
            let read = parse(words);
            assert_eq!((read.memory_bytes, read.vcpus, read.vsock_cid), (None, None, None), "{words}");
        }
        assert_eq!(parse("qemu -smp cores=4294967295,threads=9").vcpus, None);
        assert_eq!(parse("qemu -name guest=a\x1b[2Jb").name.as_deref(), Some("a\\u{1b}[2Jb"));
    }

    proptest::proptest! {
        #[test]
        fn no_command_line_is_too_strange(text in "(-(name|m|smp|netdev|device|machine|uuid|accel)\\x00|[^-]{0,12}|[,={}\":0-9\\x00]{0,8}){0,20}") {
            let read = CommandLine::parse(&text);
            let shown = [read.name, read.uuid, read.machine].into_iter().flatten().collect::<String>();
            assert!(!shown.chars().any(char::is_control));
        }
    }

    #[test]
    fn other_programs_name_their_guests_too() {
        let of = |words: &[&str]| name_of_other(words[0], &(words.join("\0") + "\0"));
        assert_eq!(of(&["firecracker", "--api-sock", "/a", "--id", "fc-7"]).as_deref(), Some("fc-7"));
        assert_eq!(of(&["firecracker", "--id=fc-8"]).as_deref(), Some("fc-8"));
        assert_eq!(of(&["crosvm", "run", "--names", "x", "--name", "arc\u{1b}"]).as_deref(), Some("arc\\u{1b}"));
        assert_eq!(of(&["lkvm", "run", "--name"]), None);
        assert_eq!(of(&["cloud-hypervisor", "--id", "x"]), None);
    }
}
