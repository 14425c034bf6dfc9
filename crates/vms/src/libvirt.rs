//! Reads libvirt's status files of running guests, `/run/libvirt/qemu/NAME.xml`, which only root may read.

use crate::{command_line::mac, text::plain};
use latpath_linux::proc::Root;
use roxmltree::{Document, Node};
use std::collections::HashMap;

const FOLDER: &str = "run/libvirt/qemu";
/// Maximum number of guests.
const MAX: usize = 4096;

/// A libvirt guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    pub name: Option<String>,
    pub uuid: Option<String>,
    /// MAC addresses of the guest's NICs by host device, including hotplugged NICs.
    pub macs: HashMap<String, String>,
    /// vCPU number by TID.
    pub vcpus: HashMap<u32, u32>,
}

/// Running libvirt guests by process ID. Empty without libvirt or without permission.
pub fn domains(root: &Root) -> HashMap<u32, Domain> {
    let names = root.names(FOLDER, MAX).into_iter().filter(|name| name.ends_with(".xml"));
    names.filter_map(|name| domain(&root.text(&format!("{FOLDER}/{name}"))?)).collect()
}

/// Parses a status file (libvirt's src/qemu/qemu_domain.c, qemuDomainObjPrivateXMLFormat): a `domstatus` element that
/// contains `domain`.
fn domain(text: &str) -> Option<(u32, Domain)> {
    let document = Document::parse(text).ok()?;
    let status = document.root_element();
    let pid = status.attribute("pid")?.parse().ok()?;
    let domain = child(status, "domain")?;
    let word = |name| child(domain, name).and_then(|node| node.text()).map(plain);
    let mut found = Domain { name: word("name"), uuid: word("uuid"), ..Domain::default() };
    for vcpu in child(status, "vcpus").iter().flat_map(Node::children) {
        let number = |name| vcpu.attribute(name).and_then(|n| n.parse().ok());
        if let (Some(id), Some(tid)) = (number("id"), number("pid")) {
            found.vcpus.insert(tid, id);
        }
    }
    let devices = child(domain, "devices");
    let interfaces = devices.iter().flat_map(Node::children).filter(|node| node.has_tag_name("interface"));
    for interface in interfaces {
        let attribute = |element, name| child(interface, element).and_then(|node| node.attribute(name));
        if let (Some(device), Some(address)) = (attribute("target", "dev"), attribute("mac", "address").and_then(mac)) {
            found.macs.insert(device.to_owned(), address);
        }
    }
    Some((pid, found))
}

/// CPUs and priorities that libvirt assigns to a guest's threads at each start (`cputune` in its definition).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cputune {
    /// vCPU number, and CPUs in libvirt's notation.
    pub vcpus: Vec<(u32, String)>,
    /// CPUs of QEMU's other threads.
    pub emulator: Option<String>,
    /// vCPUs, and scheduler with priority: `0-1`, `fifo 1`.
    pub schedulers: Vec<(String, String)>,
    /// Whether the guest's memory is locked.
    pub locked: bool,
}

/// Reads the persistent definition of a guest, `/etc/libvirt/qemu/NAME.xml`, or else its status file; both are readable
/// only by root. `None` without libvirt, without permission, or if the name cannot be a file name.
pub fn cputune(root: &Root, name: &str) -> Option<Cputune> {
    if name.contains('/') {
        return None;
    }
    let folders = ["etc/libvirt/qemu", FOLDER];
    folders.iter().find_map(|folder| tuning(&root.text(&format!("{folder}/{name}.xml"))?))
}

fn tuning(text: &str) -> Option<Cputune> {
    let document = Document::parse(text).ok()?;
    let top = document.root_element();
    let domain = if top.has_tag_name("domain") { top } else { child(top, "domain")? };
    let mut found = Cputune {
        locked: child(domain, "memoryBacking").is_some_and(|backing| child(backing, "locked").is_some()),
        ..Cputune::default()
    };
    for node in child(domain, "cputune").iter().flat_map(Node::children) {
        let word = |name| node.attribute(name).map(plain);
        match node.tag_name().name() {
            "vcpupin" => {
                let number = node.attribute("vcpu").and_then(|n| n.parse().ok());
                found.vcpus.extend(number.zip(word("cpuset")));
            }
            "emulatorpin" => found.emulator = word("cpuset"),
            "vcpusched" => {
                let scheduler = word("scheduler").map(|s| word("priority").map_or(s.clone(), |p| format!("{s} {p}")));
                found.schedulers.extend(word("vcpus").zip(scheduler));
            }
            _ => {}
        }
    }
    Some(found)
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|child| child.has_tag_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = r"<!-- generated -->
<domstatus state='running' reason='booted' pid='4711'>
  <monitor path='/var/lib/libvirt/qemu/domain-1-relay/monitor.sock' type='unix'/>
  <vcpus><vcpu id='0' pid='4720'/><vcpu id='1' pid='4721'/></vcpus>
  <domain type='kvm' id='1'>
    <name>relay</name>
    <uuid>6c8a1b52-63f5-4ae8-9b0f-d8ed90a2e001</uuid>
    <devices>
      <disk type='file'><target dev='vda' bus='virtio'/></disk>
      <interface type='bridge'><mac address='52:54:00:AA:bb:cc'/><source bridge='br0'/><target dev='vnet7'/></interface>
    </devices>
  </domain>
</domstatus>";

    #[test]
    fn a_status_file_tells_name_nics_and_vcpus() {
        let (pid, domain) = domain(STATUS).unwrap();
        assert_eq!((pid, domain.name.as_deref()), (4711, Some("relay")));
        assert_eq!(domain.macs, HashMap::from([("vnet7".to_string(), "52:54:00:aa:bb:cc".to_string())]));
        assert_eq!(domain.vcpus, HashMap::from([(4720, 0), (4721, 1)]));
    }

    #[test]
    fn pinning_and_priorities_are_those_of_the_definition() {
        let text = "<domain><memoryBacking><locked/></memoryBacking><cputune><vcpupin vcpu='0' cpuset='2'/>\
                    <vcpupin vcpu='1' cpuset='3'/><emulatorpin cpuset='0-1'/>\
                    <vcpusched vcpus='0-1' scheduler='fifo' priority='1'/></cputune></domain>";
        let read = tuning(text).unwrap();
        assert_eq!(read.vcpus, [(0, "2".to_owned()), (1, "3".to_owned())]);
        assert_eq!((read.emulator.as_deref(), read.locked), (Some("0-1"), true));
        assert_eq!(read.schedulers, [("0-1".to_owned(), "fifo 1".to_owned())]);
        assert_eq!(tuning(STATUS), Some(Cputune::default()), "a status file has the definition inside");
        assert_eq!(tuning("<other/>"), None);
    }

    #[test]
    fn an_unfinished_file_is_skipped() {
        for cut in [0, 10, STATUS.len() / 2, STATUS.len() - 3] {
            assert_eq!(domain(&STATUS[..cut]), None);
        }
        assert_eq!(domain("<domain><name>not running</name></domain>"), None);
    }
}
