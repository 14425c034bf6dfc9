//! Finds the Open vSwitch bridge of a port. The kernel has a single datapath for all bridges; which port belongs to
//! which bridge is known to ovsdb-server, which answers on a socket (RFC 7047).

use crate::text::plain;
use latpath_linux::proc::Root;
use serde_json::{json, Value};
use std::{
    collections::HashMap,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

const SOCKETS: [&str; 2] = ["run/openvswitch/db.sock", "var/run/openvswitch/db.sock"];
const LIMIT: Duration = Duration::from_millis(300);
/// Maximum size of an answer, bytes; a database with 10,000 ports takes a tenth of it.
const MAX_BYTES: usize = 16 << 20;

/// Bridge of each port, by device. Empty without Open vSwitch, or without an answer. As with Open vSwitch's own
/// programs, `OVS_RUNDIR` overrides the default directory.
pub fn bridges(root: &Root) -> HashMap<String, String> {
    let tables =
        [("Bridge", &["name", "ports"][..]), ("Port", &["_uuid", "interfaces"]), ("Interface", &["_uuid", "name"])];
    ask(root, &tables).map(|answer| read(&answer)).unwrap_or_default()
}

/// Configuration of Open vSwitch, as stored in its database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OvsConfig {
    /// Name and datapath type of each bridge: `system` for the kernel's datapath, `netdev` for that in user space.
    pub bridges: Vec<(String, String)>,
    /// `other_config` of the switch, e.g. `pmd-cpu-mask`, `dpdk-init` or `n-handler-threads`.
    pub other_config: Vec<(String, String)>,
}

/// Reads the configuration of Open vSwitch; `None` without Open vSwitch, without permission or without an answer
/// within 300 ms.
pub fn ovs_config(root: &Root) -> Option<OvsConfig> {
    let tables = [("Bridge", &["name", "datapath_type"][..]), ("Open_vSwitch", &["other_config"])];
    Some(config(&ask(root, &tables)?))
}

fn config(answer: &Value) -> OvsConfig {
    let rows = |table: usize| answer["result"][table]["rows"].as_array().into_iter().flatten();
    // RFC 7047, 5.1: ["map", [[key, value], …]]
    let pair = |pair: &Value| Some((plain(pair[0].as_str()?), plain(pair[1].as_str()?)));
    let bridge = |row: &Value| {
        let kind = row["datapath_type"].as_str().filter(|kind| !kind.is_empty()).unwrap_or("system");
        Some((plain(row["name"].as_str()?), plain(kind)))
    };
    let mut bridges: Vec<_> = rows(0).filter_map(bridge).collect();
    bridges.sort();
    let maps = rows(1).filter_map(|row| row["other_config"][1].as_array()).flatten();
    OvsConfig { bridges, other_config: maps.filter_map(pair).collect() }
}

/// Queries columns of tables from the first socket that answers.
fn ask(root: &Root, tables: &[(&str, &[&str])]) -> Option<Value> {
    let chosen = std::env::var_os("OVS_RUNDIR").map(|folder| Path::new(&folder).join("db.sock"));
    let defaults = SOCKETS.into_iter().map(|path| root.path(path));
    let mut paths = chosen.into_iter().chain(defaults);
    paths.find_map(|path| transact(UnixStream::connect(path).ok()?, tables))
}

fn transact(mut socket: UnixStream, tables: &[(&str, &[&str])]) -> Option<Value> {
    let select =
        |(table, columns): &(&str, &[&str])| json!({"op": "select", "table": table, "where": [], "columns": columns});
    let params: Vec<Value> = std::iter::once(json!("Open_vSwitch")).chain(tables.iter().map(select)).collect();
    let question = json!({"method": "transact", "id": 0, "params": params});
    let until = Instant::now() + LIMIT;
    socket.set_write_timeout(Some(LIMIT)).ok()?;
    socket.write_all(question.to_string().as_bytes()).ok()?;
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        socket.set_read_timeout(Some(left)).ok()?;
        let length = socket.read(&mut buffer).ok().filter(|n| *n > 0)?;
        answer.extend_from_slice(&buffer[..length]);
        if answer.len() > MAX_BYTES {
            return None;
        }
        // An answer has no end mark: it is complete if it ends with a brace and can be parsed.
        if answer.ends_with(b"}") {
            if let Ok(whole) = serde_json::from_slice::<Value>(&answer) {
                return Some(whole);
            }
        }
    }
}

/// Joins the tables of bridges, ports and interfaces.
fn read(answer: &Value) -> HashMap<String, String> {
    let rows = |table: usize| answer["result"][table]["rows"].as_array().into_iter().flatten();
    let id = |row: &'_ Value| ids(&row["_uuid"]).into_iter().next();
    let names: HashMap<String, &str> = rows(2).filter_map(|row| Some((id(row)?, row["name"].as_str()?))).collect();
    let ports: HashMap<String, Vec<String>> =
        rows(1).filter_map(|row| Some((id(row)?, ids(&row["interfaces"])))).collect();
    let mut bridges = HashMap::new();
    for (bridge, port) in rows(0).flat_map(|row| {
        let name = row["name"].as_str();
        ids(&row["ports"]).into_iter().filter_map(move |port| Some((name?, port)))
    }) {
        for name in ports.get(&port).into_iter().flatten().filter_map(|interface| names.get(interface)) {
            bridges.insert((*name).to_owned(), bridge.to_owned());
        }
    }
    bridges
}

/// Parses UUIDs (RFC 7047, 5.1): `["uuid", "…"]`, or `["set", [["uuid", "…"], …]]`.
fn ids(value: &Value) -> Vec<String> {
    let one = |value: &Value| (value[0] == "uuid").then(|| value[1].as_str().map(str::to_owned)).flatten();
    if value[0] == "set" {
        value[1].as_array().into_iter().flatten().filter_map(one).collect()
    } else {
        one(value).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_on_their_bridges() {
        let answer = json!({"id": 0, "error": null, "result": [
            {"rows": [
                {"name": "br-process", "ports": ["set", [["uuid", "p1"], ["uuid", "p2"]]]},
                {"name": "br-admin", "ports": ["uuid", "p3"]},
            ]},
            {"rows": [
                {"_uuid": ["uuid", "p1"], "interfaces": ["uuid", "i1"]},
                {"_uuid": ["uuid", "p2"], "interfaces": ["set", [["uuid", "i2"], ["uuid", "i3"]]]},
                {"_uuid": ["uuid", "p3"], "interfaces": ["uuid", "i4"]},
            ]},
            {"rows": [
                {"_uuid": ["uuid", "i1"], "name": "vnet0"},
                {"_uuid": ["uuid", "i2"], "name": "eno1"},
                {"_uuid": ["uuid", "i3"], "name": "eno2"},
                {"_uuid": ["uuid", "i4"], "name": "vnet1"},
            ]},
        ]});
        let bridges = read(&answer);
        let of = |port: &str| bridges.get(port).map(String::as_str);
        assert_eq!((of("vnet0"), of("eno2"), of("vnet1")), (Some("br-process"), Some("br-process"), Some("br-admin")));
    }

    #[test]
    fn datapath_types_and_the_switchs_options_are_read() {
        let answer = json!({"id": 0, "error": null, "result": [
            {"rows": [{"name": "br1", "datapath_type": "netdev"}, {"name": "br0", "datapath_type": ""}]},
            {"rows": [{"other_config": ["map", [["dpdk-init", "try"], ["pmd-cpu-mask", "6"]]]}]},
        ]});
        let read = config(&answer);
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(read.bridges, [pair("br0", "system"), pair("br1", "netdev")]);
        assert_eq!(read.other_config, [pair("dpdk-init", "try"), pair("pmd-cpu-mask", "6")]);
        assert_eq!(config(&json!({"error": "x"})), OvsConfig::default());
    }

    #[test]
    fn an_answer_of_another_shape_is_ignored() {
        for answer in [json!(null), json!({"result": [1, {"rows": [[], {}]}]}), json!({"error": "x"})] {
            assert!(read(&answer).is_empty());
        }
    }
}
