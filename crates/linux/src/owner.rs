//! Owner of a process: a systemd unit, a container, a pod or a virtual machine, derived from the names of its control
//! groups.
//!
//! [`Owner::parse`] needs only a /proc/PID/cgroup. [`Owner::label`] adds the names that users gave pods and containers,
//! from files that kubelet, Docker and Podman keep on this machine; no daemon is queried.

use crate::proc::Root;
use latpath_model::text::printable;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Maximum length of a name, bytes.
const MAX_NAME: usize = 255;
/// Maximum number of cached names of pods and containers.
const MAX_NAMES: usize = 1024;
/// Maximum number of pods on this machine whose directories are listed; kubelet's default limit is 110.
const MAX_PODS: usize = 4096;
/// Length of a container's identifier, and ([`SHORT_ID`]) of its short form, hexadecimal digits.
const ID: usize = 64;
const SHORT_ID: usize = 12;

/// The program that runs a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Runtime {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// containerd, for Kubernetes or nerdctl.
    Containerd,
    /// CRI-O.
    CriO,
    /// LXC, including Proxmox and Incus.
    Lxc,
    /// Another program.
    Other,
}

/// Prefixes of the names of scopes, before a container's identifier.
const SCOPES: [(&str, Runtime); 7] = [
    ("docker-", Runtime::Docker),
    ("libpod-conmon-", Runtime::Podman),
    ("libpod-", Runtime::Podman),
    ("cri-containerd-", Runtime::Containerd),
    ("nerdctl-", Runtime::Containerd),
    ("crio-conmon-", Runtime::CriO),
    ("crio-", Runtime::CriO),
];

impl Runtime {
    /// Name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Containerd => "containerd",
            Self::CriO => "cri-o",
            Self::Lxc => "lxc",
            Self::Other => "",
        }
    }
}

/// The owner of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A systemd unit: `sshd.service`.
    Unit(String),
    /// A container: its identifier, or its name if it has none, and the program that runs it.
    Container(String, Runtime),
    /// A Kubernetes pod: its UID, and the container of the process, if the process is in one.
    Pod(String, Option<(String, Runtime)>),
    /// A virtual machine of libvirt or systemd-machined: its name.
    Machine(String),
    /// Any other control group: the last component of its path.
    Group(String),
}

impl Owner {
    /// The owner of a running process.
    pub fn of(root: &Root, pid: u32) -> Option<Self> {
        Self::parse(&root.text(&format!("proc/{pid}/cgroup"))?)
    }

    /// Derives the owner from the text of a /proc/PID/cgroup, of version 1, 2 or both. Returns `None` for the root
    /// group, and for login sessions and systemd itself, whose processes are unrelated.
    pub fn parse(text: &str) -> Option<Self> {
        let lines = text.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            Some((fields.next()?, fields.next()?))
        });
        let known: Vec<(&str, &str)> = lines.filter(|(_, path)| path.len() > 1).collect();
        // Version 2, else systemd's own hierarchy, else any controller.
        let named = |controllers: &str| known.iter().find(|(of, _)| *of == controllers);
        let (_, path) = named("").or_else(|| named("name=systemd")).or(known.first())?;
        Self::of_path(path)
    }

    /// Derives the owner from a control group's path, or from the last part of one, as stored in recordings.
    pub fn of_path(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != "..").collect();
        let container = (0..parts.len()).rev().find_map(|at| container(&parts[..=at]));
        let pod = parts.iter().rev().find_map(|part| pod(part));
        match (pod, container) {
            (Some(uid), container) => return Some(Self::Pod(uid, container)),
            (None, Some((id, runtime))) => return Some(Self::Container(id, runtime)),
            (None, None) => {}
        }
        if let Some(name) = parts.iter().rev().find_map(|part| machine(part)) {
            return Some(Self::Machine(name));
        }
        let unit = |end: &str| parts.iter().rev().find(|part| part.ends_with(end) && !is_shared(part));
        if let Some(unit) = unit(".service").or_else(|| unit(".scope")) {
            return named(unit).map(Self::Unit);
        }
        let last = parts.last().filter(|part| !part.ends_with(".slice") && !is_shared(part))?;
        named(last).map(Self::Group)
    }

    /// The name that users gave the owner, e.g. `web`, `shop/web-0` or `sshd.service`; its identifier if the files on
    /// this machine contain no name or this user may not read them. The files of a container or pod are read once.
    pub fn name(&self) -> String {
        static NAMES: Mutex<Option<HashMap<Owner, String>>> = Mutex::new(None);
        if !matches!(self, Self::Container(..) | Self::Pod(..)) {
            return self.own_name();
        }
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let names = names.get_or_insert_default();
        if names.len() >= MAX_NAMES {
            names.clear();
        }
        names.entry(self.clone()).or_insert_with(|| self.name_under(&Root::of(Path::new("/")))).clone()
    }

    /// The kind of owner, with its [name](Self::name): `container web (docker)`, `pod shop/web-0`, `unit sshd.service`.
    pub fn label(&self) -> String {
        self.described(&self.name())
    }

    /// Like [`Self::label`], from the files under this root.
    pub fn described_under(&self, root: &Root) -> String {
        self.described(&self.name_under(root))
    }

    /// Like [`Self::name`], from the files under this root.
    pub fn name_under(&self, root: &Root) -> String {
        let known = match self {
            Self::Pod(uid, _) => pod_name(root, uid),
            Self::Container(id, Runtime::Docker) => docker_name(root, id),
            Self::Container(id, Runtime::Podman) => podman_name(root, id),
            _ => None,
        };
        known.unwrap_or_else(|| self.own_name())
    }

    /// The name in the control group; identifiers are shortened.
    fn own_name(&self) -> String {
        match self {
            Self::Container(id, _) if is_id(id) => id[..SHORT_ID].into(),
            Self::Unit(name) | Self::Container(name, _) | Self::Pod(name, _) => name.clone(),
            Self::Machine(name) | Self::Group(name) => name.clone(),
        }
    }

    fn described(&self, name: &str) -> String {
        match self {
            Self::Unit(_) => format!("unit {name}"),
            Self::Container(_, Runtime::Other) => format!("container {name}"),
            Self::Container(_, runtime) => format!("container {name} ({})", runtime.name()),
            Self::Pod(..) => format!("pod {name}"),
            Self::Machine(_) => format!("VM {name}"),
            Self::Group(_) => format!("group {name}"),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.described(&self.own_name()))
    }
}

/// The name with unprintable characters replaced; `None` if it is empty or too long.
fn named(name: &str) -> Option<String> {
    Some(printable(name)).filter(|name| !name.is_empty() && name.len() <= MAX_NAME)
}

fn is_shared(part: &str) -> bool {
    part.starts_with("user@") || part.starts_with("session-") || part == "init.scope"
}

fn is_id(text: &str) -> bool {
    text.len() == ID && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The container that the last of these parts of a path names.
fn container(parts: &[&str]) -> Option<(String, Runtime)> {
    let (part, above) = parts.split_last()?;
    for (start, runtime) in SCOPES {
        let id = part.strip_prefix(start).map(|id| id.strip_suffix(".scope").unwrap_or(id));
        if let Some(id) = id.filter(|id| is_id(id)) {
            return Some((id.into(), runtime));
        }
    }
    // runc with a systemd path but without systemd: `SLICE:cri-containerd:ID`.
    if let [.., prefix, id] = part.split(':').collect::<Vec<_>>()[..] {
        let runtime = SCOPES.iter().find(|(start, _)| start.strip_suffix('-') == Some(prefix));
        if let Some((_, runtime)) = runtime.filter(|_| is_id(id)) {
            return Some((id.into(), *runtime));
        }
    }
    for start in ["lxc.payload.", "lxc.monitor."] {
        if let Some(name) = part.strip_prefix(start).and_then(named) {
            return Some((name, Runtime::Lxc));
        }
    }
    match above.last() {
        Some(&"docker") if is_id(part) => Some(((*part).into(), Runtime::Docker)),
        Some(&("lxc" | "lxc.payload" | "lxc.monitor")) => named(part).map(|name| (name, Runtime::Lxc)),
        _ if is_id(part) => Some(((*part).into(), Runtime::Other)),
        _ => None,
    }
}

/// The UID of the pod that a part of a path names: `pod1b2c…`, `kubepods-burstable-pod1b2c….slice`.
fn pod(part: &str) -> Option<String> {
    let part = part.split(':').next()?;
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let uid = match name.rsplit_once("-pod") {
        Some((before, uid)) if before.contains("kubepods") => uid,
        Some(_) => return None,
        None => name.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    (digits == 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')).then_some(uid)
}

/// The virtual machine named by a systemd-machined scope: `machine-qemu\x2d3\x2dguest.scope`.
fn machine(part: &str) -> Option<String> {
    let name = unescaped(part.strip_prefix("machine-")?.strip_suffix(".scope")?);
    // libvirt puts its driver and the domain's number before the name.
    let domain = |driver: &str| {
        let (number, name) = name.strip_prefix(driver)?.split_once('-')?;
        (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
    };
    let domain = ["qemu-", "ch-", "xen-", "lxc-"].iter().find_map(|driver| domain(driver));
    named(domain.unwrap_or(&name))
}

/// Replaces systemd's escapes in the text (`\x2d` for a hyphen).
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text;
    while let Some((before, after)) = left.split_once("\\x") {
        bytes.extend(before.bytes());
        let byte = after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.extend(byte.map_or_else(|| b"\\x".to_vec(), |byte| vec![byte]));
        left = if byte.is_some() { &after[2..] } else { after };
    }
    bytes.extend(left.bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Namespace and name of a pod, from the directory of its logs: `NAMESPACE_NAME_UID`.
fn pod_name(root: &Root, uid: &str) -> Option<String> {
    let folders = root.names("var/log/pods", MAX_PODS);
    let of_pod = folders.iter().find_map(|folder| folder.strip_suffix(uid)?.strip_suffix('_'))?;
    let (namespace, name) = of_pod.split_once('_')?;
    named(&format!("{namespace}/{name}"))
}

/// The word after `start` in the text, if it can be a container's name.
fn name_after(text: &str, start: &str) -> Option<String> {
    let (_, rest) = text.split_once(start)?;
    let (name, _) = rest.split_once('"')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
    is_name.then(|| named(name)).flatten()
}

fn docker_name(root: &Root, id: &str) -> Option<String> {
    let config = root.text(&format!("var/lib/docker/containers/{id}/config.v2.json"))?;
    // Only the container's own name begins with a slash, so no other key "Name" matches.
    name_after(&config, "\"Name\":\"/")
}

fn podman_name(root: &Root, id: &str) -> Option<String> {
    let all = root.text("var/lib/containers/storage/overlay-containers/containers.json")?;
    let (_, rest) = all.split_once(&format!("\"id\":\"{id}\""))?;
    name_after(rest.split("\"id\":").next()?, "\"names\":[\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEX: &str = "3f2a91c04d5e6b7788990011223344556677889900aabbccddeeff0011223344";
    const UID: &str = "1b2c3d4e-0011-2233-4455-66778899aabb";

    fn shown(text: &str) -> String {
        let text = text.replace("HEX", HEX).replace("U_ID", &UID.replace('-', "_")).replace("UID", UID);
        Owner::parse(&text).map_or("-".into(), |owner| owner.to_string())
    }

    #[test]
    fn owners_by_control_groups_of_either_version() {
        let pod = format!("pod {UID}");
        for (text, owner) in [
            // systemd
            ("0::/system.slice/sshd.service", "unit sshd.service"),
            ("0::/user.slice/user-0.slice/user@0.service/app.slice/build.service", "unit build.service"),
            ("4:cpu:/x\n1:name=systemd:/system.slice/relay.service\n0::/", "unit relay.service"),
            (
                "0::/system.slice/system-serial\\x2dgetty.slice/serial-getty@ttyS0.service",
                "unit serial-getty@ttyS0.service",
            ),
            ("0::/user.slice/user-0.slice/session-3.scope", "-"),
            ("0::/init.scope", "-"),
            ("0::/user.slice", "-"),
            ("0::/", "-"),
            ("0::/lab/compilers", "group compilers"),
            ("", "-"),
            ("no group", "-"),
            // Docker: with systemd's and with its own groups, version 1, a unit in the container, another cgroup
            // namespace
            ("0::/system.slice/docker-HEX.scope", "container 3f2a91c04d5e (docker)"),
            ("0::/docker/HEX", "container 3f2a91c04d5e (docker)"),
            ("12:pids:/docker/HEX\n3:cpu,cpuacct:/docker/HEX\n0::/", "container 3f2a91c04d5e (docker)"),
            ("0::/system.slice/docker-HEX.scope/system.slice/cron.service", "container 3f2a91c04d5e (docker)"),
            ("0::/../docker-HEX.scope/init.scope", "container 3f2a91c04d5e (docker)"),
            ("0::/system.slice/docker.service", "unit docker.service"),
            // Podman, including a user's containers and the monitor
            ("0::/machine.slice/libpod-HEX.scope/container", "container 3f2a91c04d5e (podman)"),
            (
                "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-HEX.scope/container",
                "container 3f2a91c04d5e (podman)",
            ),
            ("0::/machine.slice/libpod-conmon-HEX.scope", "container 3f2a91c04d5e (podman)"),
            ("1:name=systemd:/libpod_parent/libpod-HEX", "container 3f2a91c04d5e (podman)"),
            // Kubernetes with containerd, CRI-O and Docker, for each QoS class and either cgroup driver
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/cri-containerd-HEX.scope",
                &pod,
            ),
            ("0::/kubepods.slice/kubepods-podU_ID.slice/crio-HEX.scope/container", &pod),
            ("11:memory:/kubepods/besteffort/podUID/HEX\n1:name=systemd:/kubepods/besteffort/podUID/HEX", &pod),
            ("0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podU_ID.slice/docker-HEX.scope", &pod),
            ("0::/system.slice/containerd.service/kubepods-burstable-podU_ID.slice:cri-containerd:HEX", &pod),
            ("0::/kubepods.slice/kubepods-besteffort.slice", "-"),
            ("0::/system.slice/nerdctl-HEX.scope", "container 3f2a91c04d5e (containerd)"),
            ("0::/system.slice/crio-HEX.scope", "container 3f2a91c04d5e (cri-o)"),
            ("0::/default/HEX", "container 3f2a91c04d5e"),
            // LXC
            ("0::/lxc.payload.web/system.slice/nginx.service", "container web (lxc)"),
            ("0::/lxc.monitor.web", "container web (lxc)"),
            ("8:freezer:/lxc/101/ns\n1:name=systemd:/lxc/101/ns/init.scope", "container 101 (lxc)"),
            // Virtual machines
            ("0::/machine.slice/machine-qemu\\x2d3\\x2dguest\\x2da.scope/libvirt/vcpu0", "VM guest-a"),
            ("0::/machine.slice/machine-ch\\x2d1\\x2dfast.scope", "VM fast"),
            ("0::/machine.slice/machine-debian.scope/payload", "VM debian"),
            ("1:name=systemd:/machine.slice/machine-qemu\\x2d12\\x2dx.scope\n2:cpuset:/machine.slice/y", "VM x"),
            // Names that only look like those above
            ("0::/system.slice/docker-short.scope", "unit docker-short.scope"),
            ("0::/system.slice/podman.service", "unit podman.service"),
            ("0::/pods/podium", "group podium"),
        ] {
            assert_eq!(shown(text), owner, "{text}");
        }
    }

    #[test]
    fn recordings_of_earlier_versions_have_the_last_part_of_a_path() {
        let of = |name: &str| Owner::of_path(name).map(|owner| owner.to_string());
        assert_eq!(of("builder.service").as_deref(), Some("unit builder.service"));
        assert_eq!(of(&format!("docker-{HEX}.scope")).as_deref(), Some("container 3f2a91c04d5e (docker)"));
        assert_eq!(of("compilers").as_deref(), Some("group compilers"));
    }

    #[test]
    fn local_files_name_pods_and_containers() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::of(folder.path());
        let write = |path: &str, text: &str| {
            let path = root.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let label = |owner: &Owner| owner.described_under(&root);
        let docker = Owner::Container(HEX.into(), Runtime::Docker);
        let podman = Owner::Container(HEX.into(), Runtime::Podman);
        let pod = Owner::Pod(UID.into(), None);
        assert_eq!(label(&docker), "container 3f2a91c04d5e (docker)", "without files");
        assert_eq!(label(&pod), format!("pod {UID}"));
        let config = r#"{"Config":{"Labels":{"Name":"x"}},"Name":"/web-1","MountPoints":{"/a":{"Name":""}}}"#;
        write(&format!("var/lib/docker/containers/{HEX}/config.v2.json"), config);
        let all = format!(
            r#"[{{"id":"{}","names":["other"]}},{{"id":"{HEX}","names":["db","alias"]}},{{"id":"1","names":["z"]}}]"#,
            HEX.replace('3', "4")
        );
        write("var/lib/containers/storage/overlay-containers/containers.json", &all);
        write(&format!("var/log/pods/shop_web-0_{UID}/app/0.log"), "");
        assert_eq!(label(&docker), "container web-1 (docker)");
        assert_eq!(label(&podman), "container db (podman)");
        assert_eq!(label(&pod), "pod shop/web-0");
        write(&format!("var/lib/docker/containers/{HEX}/config.v2.json"), "{\"Name\":\"/a\u{1b}[2J\"}");
        assert_eq!(label(&docker), "container 3f2a91c04d5e (docker)", "no name of a container");
    }

    proptest! {
        #[test]
        fn any_text_gives_an_owner_that_can_be_shown(text in any::<String>(), path in "(/[a-z0-9_.:\\\\@-]{0,70}){0,5}") {
            for text in [text, format!("0::{path}"), format!("1:name=systemd:{path}\n0::/")] {
                if let Some(owner) = Owner::parse(&text) {
                    let shown = owner.to_string();
                    prop_assert!(!shown.chars().any(char::is_control) && shown.len() <= MAX_NAME + 32, "{shown:?}");
                }
            }
        }

        #[test]
        fn a_container_is_found_at_any_depth(
            id in "[0-9a-f]{64}", above in "(/[a-k]{1,8}){0,4}", below in "(/[a-k]{1,8}){0,3}", which in 0..SCOPES.len(),
        ) {
            let (start, runtime) = SCOPES[which];
            let found = Owner::parse(&format!("0::{above}/{start}{id}.scope{below}"));
            prop_assert_eq!(found, Some(Owner::Container(id, runtime)));
        }

        #[test]
        fn names_are_escaped_as_systemd_does(name in "[a-zA-Z0-9_.-]{1,40}") {
            let escaped = name.replace('-', "\\x2d");
            let scope = format!("0::/machine.slice/machine-qemu\\x2d7\\x2d{escaped}.scope/libvirt");
            prop_assert_eq!(Owner::parse(&scope), Some(Owner::Machine(name)));
        }
    }
}
