//! Open vSwitch: bridges and ports made with ovs-vsctl, and marked as the topology's in the same transaction.

use crate::{
    builder::{Builder, Event},
    devices::Host,
    file::{Guest, OvsOptions, TaggedBy, Topology, Way},
    guest::file,
    libvirt::Adopted,
    step::{Identity, Object, OvsSetting, Step},
    undo::Removed,
    up::Up,
    Error, Result,
};
use latpath_linux::die_with_parent;
use nix::sys::signal::Signal;
use std::process::Command;

/// Key in `external_ids` that marks a row as the topology's.
const MARK: &str = "latpath-topology";
/// Maximum wait for ovs-vswitchd, s.
const PATIENCE: u32 = 20;

/// Runs ovs-vsctl.
fn vsctl(database: Option<&str>, words: &[&str]) -> Result<String> {
    let mut command = Command::new("ovs-vsctl");
    command.args(database.map(|database| format!("--db={database}")));
    command.arg(format!("--timeout={PATIENCE}")).args(words);
    // If ovs-vsctl outlived a killed latpath, it could commit its transaction after the undo.
    die_with_parent(&mut command, Signal::SIGKILL);
    let line = || format!("ovs-vsctl {}", words.join(" "));
    let output = command.output().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::Command {
            command: "ovs-vsctl".into(),
            why: "not installed; try: apt-get install openvswitch-switch (vhost-user: openvswitch-switch-dpdk)".into(),
        },
        _ => Error::Command { command: line(), why: e.to_string() },
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(Error::Command { command: line(), why: last(&String::from_utf8_lossy(&output.stderr)) }),
    }
}

fn last(text: &str) -> String {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("failed without a message").trim().to_owned()
}

/// Makes the bridge with its ports.
pub(crate) fn build(
    builder: &mut Builder,
    topology: &Topology,
    host: &Host,
    adopted: &Adopted,
    bridge: &str,
    up: &mut Up,
) -> Result<()> {
    let options = topology.ovs.clone().unwrap_or_default();
    let database = options.database.clone();
    check_version(topology, &options)?;
    let switch = Switch { topology, database: database.clone(), bridge };
    if let Some(mask) = &options.pmd_cpu_mask {
        set(builder, database.clone(), "pmd-cpu-mask", mask)?;
    }
    let datapath = if topology.way == Way::Ovs { "system" } else { "netdev" };
    let mark = format!("external_ids:{MARK}={}", topology.name);
    let object = Object::OvsBridge { name: bridge.into(), database: database.clone() };
    builder.make(object, || {
        let db = database.as_deref();
        let kind = format!("datapath_type={datapath}");
        vsctl(db, &["--", "add-br", bridge, "--", "set", "Bridge", bridge, &kind, &mark])?;
        Ok(Identity::Uuid(vsctl(db, &["get", "Bridge", bridge, "_uuid"])?))
    })?;
    switch.uplink(builder, &options)?;
    for guest in &topology.guests {
        if topology.has_vhost_user() {
            adopted.refuse("a guest that runs cannot change to vhost-user: use its XML fragment")?;
            switch.vhost_user(builder, guest)?;
        } else {
            let tap = adopted.tap_or(guest, &host.netns, || host.tap(builder, guest))?;
            switch.guest(builder, &tap, &[])?;
        }
    }
    if topology.way == Way::OvsAfxdp && options.pmd_cpu_mask.is_none() {
        up.notes.push("ovs.pmd_cpu_mask is not set: Open vSwitch polls on one CPU of its choice per NUMA node".into());
    }
    Ok(())
}

/// Sets a key of `other_config`, unless it already has this value.
fn set(builder: &mut Builder, database: Option<String>, key: &str, value: &str) -> Result<()> {
    let before = other_config(database.as_deref(), key)?;
    if before.as_deref() == Some(value) {
        return Ok(());
    }
    builder.check_stop()?;
    let setting = OvsSetting { database, key: key.into(), before, set: value.into() };
    builder.note(Step::SetOvs(setting.clone()))?;
    builder.tell(Event::Waiting(&format!("setting {key} of Open vSwitch to {value}")));
    put(&setting, Some(value))
}

fn other_config(database: Option<&str>, key: &str) -> Result<Option<String>> {
    let words = ["--if-exists", "get", "Open_vSwitch", ".", &format!("other_config:{key}")];
    let text = vsctl(database, &words)?;
    Ok(Some(text.trim_matches('"').to_owned()).filter(|text| !text.is_empty()))
}

fn put(setting: &OvsSetting, value: Option<&str>) -> Result<()> {
    let (database, key) = (setting.database.as_deref(), &setting.key);
    match value {
        Some(value) => vsctl(database, &["set", "Open_vSwitch", ".", &format!("other_config:{key}={value}")])?,
        None => vsctl(database, &["remove", "Open_vSwitch", ".", "other_config", key])?,
    };
    Ok(())
}

/// Current value of a setting that the topology changed.
pub(crate) fn value_now(setting: &OvsSetting) -> std::result::Result<Option<String>, String> {
    other_config(setting.database.as_deref(), &setting.key).map_err(|e| e.to_string())
}

/// Restores a setting's old value, unless another program has changed it since.
pub(crate) fn restore(setting: &OvsSetting) -> std::result::Result<Removed, String> {
    let now = value_now(setting)?;
    if now == setting.before {
        return Ok(Removed::Absent);
    }
    if now.as_ref() != Some(&setting.set) {
        let now = now.as_deref().unwrap_or("not set").to_owned();
        return Ok(Removed::LeftAlone(format!("stays {now}, which another program has set")));
    }
    put(setting, setting.before.as_deref()).map(|()| Removed::Yes).map_err(|e| e.to_string())
}

struct Switch<'a> {
    topology: &'a Topology,
    database: Option<String>,
    bridge: &'a str,
}

impl Switch<'_> {
    fn uplink(&self, builder: &mut Builder, options: &OvsOptions) -> Result<()> {
        let mut interface = Vec::new();
        if self.topology.way == Way::OvsAfxdp {
            interface.push("type=afxdp".to_owned());
            interface.extend(options.n_rxq.map(|queues| format!("options:n_rxq={queues}")));
            interface.push(format!("options:xdp-mode={}", options.xdp_mode.as_deref().unwrap_or("best-effort")));
        }
        self.port(builder, &self.topology.uplink.device, &[], &interface)
    }

    fn guest(&self, builder: &mut Builder, port: &str, interface: &[String]) -> Result<()> {
        let vlan = self.topology.vlan.filter(|vlan| vlan.tagged_by == TaggedBy::Host);
        let tag: Vec<String> = vlan.map(|vlan| format!("tag={}", vlan.id)).into_iter().collect();
        self.port(builder, port, &tag, interface)
    }

    fn vhost_user(&self, builder: &mut Builder, guest: &Guest) -> Result<()> {
        let socket = file(&self.topology.name, &guest.name, "sock");
        let path = format!("options:vhost-server-path={}", socket.display());
        self.guest(builder, &guest.tap(), &["type=dpdkvhostuserclient".into(), path])
    }

    /// Adds a port in one transaction, with these columns in its Port and Interface rows.
    fn port(&self, builder: &mut Builder, name: &str, columns: &[String], interface: &[String]) -> Result<()> {
        let db = self.database.as_deref();
        let object = Object::OvsPort { name: name.into(), bridge: self.bridge.into(), database: self.database.clone() };
        builder.make(object, || {
            let mark = format!("external_ids:{MARK}={}", self.topology.name);
            let mut words = vec!["--", "add-port", self.bridge, name, "--", "set", "Port", name, &mark];
            words.extend(columns.iter().map(String::as_str));
            if !interface.is_empty() {
                words.extend(["--", "set", "Interface", name]);
                words.extend(interface.iter().map(String::as_str));
            }
            vsctl(db, &words)?;
            // If ovs-vswitchd could not open the device, it reports the reason here.
            let error = vsctl(db, &["get", "Interface", name, "error"])?;
            match error.trim_matches('"') {
                "[]" => Ok(Identity::Uuid(vsctl(db, &["get", "Port", name, "_uuid"])?)),
                why => Err(Error::Command { command: format!("ovs-vsctl {}", words.join(" ")), why: why.into() }),
            }
        })
    }
}

/// Fails if this Open vSwitch lacks a port type that the topology needs.
fn check_version(topology: &Topology, options: &OvsOptions) -> Result<()> {
    let db = options.database.as_deref();
    if topology.way != Way::OvsAfxdp {
        return Ok(());
    }
    // A daemon that has just started may not have written its port types yet.
    let known = vsctl(db, &["wait-until", "Open_vSwitch", ".", "iface_types!=[]"]);
    let types = known.and_then(|_| vsctl(db, &["get", "Open_vSwitch", ".", "iface_types"]))?;
    let has = |kind: &str| types.split(['[', ']', ',', ' ', '"']).any(|word| word == kind);
    let fail =
        |key: &str, why: &str| Err(Error::Invalid { name: topology.name.clone(), key: key.into(), why: why.into() });
    if !has("afxdp") {
        return fail("way", "this Open vSwitch is built without AF_XDP (its iface_types have no afxdp)");
    }
    if topology.has_vhost_user() && !has("dpdkvhostuserclient") {
        return fail(
            "ovs.guest_port",
            "this Open vSwitch has no vhost-user: it is not built with DPDK, or DPDK is not initialised \
             (apt-get install openvswitch-switch-dpdk; ovs-vsctl set Open_vSwitch . other_config:dpdk-init=true); or set \
             ovs.guest_port = \"tap\", where the host copies each packet",
        );
    }
    Ok(())
}

/// Whether the row has this topology's mark; `None` if the row does not exist.
fn is_ours(
    table: &str,
    name: &str,
    topology: &str,
    database: Option<&str>,
) -> std::result::Result<Option<bool>, String> {
    let shown = vsctl(database, &["--if-exists", "get", table, name, &format!("external_ids:{MARK}")]);
    match shown {
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => Ok(Some(text.trim_matches('"') == topology)),
        // The row exists, but has no mark.
        Err(Error::Command { why, .. }) if why.contains("no key") => Ok(Some(false)),
        Err(error) => Err(error.to_string()),
    }
}

/// Removes the bridge if it has the topology's mark.
pub(crate) fn remove_bridge(
    topology: &str,
    name: &str,
    database: Option<&str>,
) -> std::result::Result<Removed, String> {
    remove("Bridge", name, topology, database, &["--if-exists", "del-br", name])
}

/// Removes the port if it has the topology's mark.
pub(crate) fn remove_port(
    topology: &str,
    name: &str,
    bridge: &str,
    database: Option<&str>,
) -> std::result::Result<Removed, String> {
    remove("Port", name, topology, database, &["--if-exists", "del-port", bridge, name])
}

fn remove(
    table: &str,
    name: &str,
    topology: &str,
    database: Option<&str>,
    words: &[&str],
) -> std::result::Result<Removed, String> {
    match is_ours(table, name, topology, database)? {
        None => Ok(Removed::Absent),
        Some(false) => Ok(Removed::LeftAlone("another one has its name".into())),
        Some(true) => vsctl(database, words).map(|_| Removed::Yes).map_err(|e| e.to_string()),
    }
}

/// Whether a bridge or port of the topology exists.
pub(crate) fn exists(table: &str, name: &str, topology: &str, database: Option<&str>) -> bool {
    is_ours(table, name, topology, database) == Ok(Some(true))
}
