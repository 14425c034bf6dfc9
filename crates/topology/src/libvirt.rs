//! libvirt's guests: a topology uses the taps of running guests, and provides XML that attaches the other guests to
//! taps.

use crate::{
    file::{Guest, Topology},
    guest::file,
    Error, Result,
};
use latpath_net::Netns;
use std::collections::HashMap;

/// The taps of running libvirt guests, by the guests' names in the topology.
pub(crate) struct Adopted {
    /// Name and namespace of each tap.
    taps: HashMap<String, (String, Option<u32>)>,
}

/// Finds the taps of those guests of the topology that libvirt is running.
pub(crate) fn running(topology: &Topology) -> Result<Adopted> {
    let mut taps = HashMap::new();
    let domains: Vec<_> = topology.guests.iter().filter_map(|guest| Some((guest, guest.domain.as_ref()?))).collect();
    if domains.is_empty() {
        return Ok(Adopted { taps });
    }
    let found = latpath_vms::find()?;
    for (guest, domain) in domains {
        let Some(vm) = found.vms.iter().find(|vm| vm.name == *domain) else { continue };
        let wanted = |device: &str| guest.tap.as_deref().is_none_or(|tap| tap == device);
        let mut its = vm.taps.iter().filter(|tap| wanted(&tap.device));
        let names = || vm.taps.iter().map(|tap| tap.device.as_str()).collect::<Vec<_>>().join(", ");
        let fail = |why: String| Error::Invalid {
            name: topology.name.clone(),
            key: format!("guest.{}.domain", guest.name),
            why,
        };
        let Some(tap) = its.next() else {
            return Err(fail(format!("{domain} runs without such a tap (its taps: {})", names())));
        };
        if guest.tap.is_none() && its.next().is_some() {
            return Err(fail(format!("{domain} has several taps: say which by guest.tap (its taps: {})", names())));
        }
        taps.insert(guest.name.clone(), (tap.device.clone(), tap.netns));
    }
    Ok(Adopted { taps })
}

impl Adopted {
    /// Whether libvirt is running the guest.
    pub(crate) fn has(&self, guest: &Guest) -> bool {
        self.taps.contains_key(&guest.name)
    }

    /// Name of the guest's tap: the existing one if the guest is running, otherwise the one that `make` creates.
    pub(crate) fn tap_or(&self, guest: &Guest, netns: &Netns, make: impl FnOnce() -> Result<()>) -> Result<String> {
        let Some((tap, of)) = self.taps.get(&guest.name) else { return make().map(|()| guest.tap()) };
        match *of == Some(netns.inode()) {
            true => Ok(tap.clone()),
            false => Err(Error::Device {
                device: tap.clone(),
                why: "it is in another network namespace than the topology; set namespace to that one".into(),
            }),
        }
    }

    /// Fails if any guest is running; `why` is the reason why this way cannot use its tap.
    pub(crate) fn refuse(&self, why: &str) -> Result<()> {
        match self.taps.values().next() {
            Some((device, _)) => Err(Error::Device { device: device.clone(), why: why.into() }),
            None => Ok(()),
        }
    }
}

/// Steps left to the user for a guest that the topology did not start.
pub(crate) fn next_step(topology: &Topology, guest: &Guest) -> Vec<String> {
    let port = match topology.has_vhost_user() {
        true => format!("socket {}", file(&topology.name, &guest.name, "sock").display()),
        false => guest.tap(),
    };
    match &guest.domain {
        Some(domain) => vec![format!(
            "domain {domain} does not run: put this interface into its XML (virsh edit {domain}) and start it\n{}",
            interface_xml(topology, guest)
        )],
        None => vec![format!("guest {}: start it with its NIC on {port}", guest.name)],
    }
}

/// libvirt's XML for a guest's interface, using a tap or macvtap that the topology has made.
pub fn interface_xml(topology: &Topology, guest: &Guest) -> String {
    let mac = guest.mac().map(|byte| format!("{byte:02x}")).join(":");
    let (kind, target, memory) = match topology.has_vhost_user() {
        true => {
            let socket = file(&topology.name, &guest.name, "sock");
            let source = format!("<source type='unix' path='{}' mode='server'/>", socket.display());
            let memory =
                "<!-- in <domain>: <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking> \
                          -->\n";
            ("vhostuser", source, memory)
        }
        false => ("ethernet", format!("<target dev='{}' managed='no'/>", guest.tap()), ""),
    };
    let queues = if guest.queues > 1 { format!(" queues='{}'", guest.queues) } else { String::new() };
    format!(
        "{memory}<interface type='{kind}'>\n  <mac address='{mac}'/>\n  {target}\n  <model type='virtio'/>\n  \
         <driver name='vhost'{queues}/>\n</interface>"
    )
}
