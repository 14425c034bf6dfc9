//! Checks whether the values in a topology file can work together.

use crate::{
    file::{mac, Qemu, Topology, Way},
    Error, Result,
};
use latpath_net::MacvtapMode;

/// Maximum length of a topology's or guest's name, which becomes part of file names and QEMU options.
const MAX_NAME: usize = 32;
/// Maximum number of guests.
const MAX_GUESTS: usize = 64;
/// Maximum number of queues per device (MAX_TAP_QUEUES).
const MAX_QUEUES: u32 = 256;

impl Topology {
    /// Checks for values that parse but cannot work.
    ///
    /// # Errors
    /// Names the first key with such a value.
    pub fn check(&self) -> Result<()> {
        let fail = |key: &str, why: String| Error::Invalid { name: self.name.clone(), key: key.into(), why };
        if let Some(why) = not_a_name(&self.name) {
            return Err(fail("name", why));
        }
        let tables = [
            ("bridge", self.bridge.is_some()),
            ("macvtap", self.macvtap.is_some()),
            ("xdp", self.xdp.is_some()),
            ("ovs", self.ovs.is_some()),
        ];
        if let Some((other, _)) = tables.iter().find(|(table, given)| *given && *table != self.way.table()) {
            return Err(fail(other, format!("the way is {}: this table has no effect; remove it", self.way)));
        }
        let vlan = self.vlan_device().map(|(device, _)| ("vlan.id".to_owned(), device));
        let cable = self.uplink.cable.as_ref().map(|cable| ("uplink.cable.device".to_owned(), cable.device.clone()));
        let bridge = self.bridge_name().map(|name| (format!("{}: the bridge's name", self.way.table()), name));
        let mut devices = vec![("uplink.device".to_owned(), self.uplink.device.clone())];
        devices.extend(vlan.into_iter().chain(cable).chain(bridge));
        devices.extend(self.guests.iter().map(|guest| (format!("guest.{}.tap", guest.name), guest.tap())));
        for (key, device) in &devices {
            if let Some(why) = not_a_device(device) {
                return Err(fail(key, why));
            }
        }
        // The cable's other end is in its own namespace, so its name may be used again.
        devices.retain(|(key, _)| key != "uplink.cable.device");
        if let Some((key, device)) = repeated(&devices) {
            return Err(fail(key, format!("another device of the topology is named {device} too")));
        }
        let namespaces = self.namespace.iter().map(|name| ("namespace", name));
        let of_cable = self.uplink.cable.iter().map(|cable| ("uplink.cable.namespace", &cable.namespace));
        for (key, name) in namespaces.chain(of_cable) {
            if let Some(why) = not_a_name(name) {
                return Err(fail(key, why));
            }
        }
        if self.uplink.cable.as_ref().is_some_and(|cable| Some(&cable.namespace) == self.namespace.as_ref()) {
            return Err(fail("uplink.cable.namespace", "it must differ from the host's namespace".into()));
        }
        if self.vlan.is_some_and(|vlan| !(1..=4094).contains(&vlan.id)) {
            return Err(fail("vlan.id", "VLAN ids are 1 to 4094".into()));
        }
        if self.mtu.is_some_and(|mtu| !(68..=65_521).contains(&mtu)) {
            return Err(fail("mtu", "an MTU is 68 to 65521 bytes".into()));
        }
        self.check_guests(&fail)
    }

    fn check_guests(&self, fail: &dyn Fn(&str, String) -> Error) -> Result<()> {
        let passthru = self.macvtap.as_ref().is_some_and(|macvtap| macvtap.mode == MacvtapMode::Passthru);
        let only_one = self.way == Way::Xdp || passthru;
        match self.guests.len() {
            0 => return Err(fail("guest", "a topology has at least one [[guest]]".into())),
            2.. if only_one => {
                let what = if passthru { "macvtap in passthru mode" } else { "xdp, which learns no addresses," };
                return Err(fail("guest", format!("{what} carries one guest; use the way bridge for several")));
            }
            n if n > MAX_GUESTS => return Err(fail("guest", format!("at most {MAX_GUESTS} guests"))),
            _ => {}
        }
        let names: Vec<_> = self.guests.iter().map(|guest| ("guest.name".to_owned(), guest.name.clone())).collect();
        if let Some((key, name)) = repeated(&names) {
            return Err(fail(key, format!("two guests are named {name}")));
        }
        for guest in &self.guests {
            let key = |name: &str| format!("guest.{}.{name}", guest.name);
            if let Some(why) = not_a_name(&guest.name) {
                return Err(fail(&key("name"), why));
            }
            if !(1..=MAX_QUEUES).contains(&guest.queues) {
                return Err(fail(&key("queues"), format!("1 to {MAX_QUEUES} queues")));
            }
            if guest.mac.as_deref().is_some_and(|text| mac(text).is_none()) {
                return Err(fail(&key("mac"), "write the address of one device, e.g. 52:54:00:01:02:03".into()));
            }
            if guest.qemu.is_some() && guest.domain.is_some() {
                return Err(fail(&key("domain"), "a guest has either qemu or domain".into()));
            }
            if let Some(qemu) = &guest.qemu {
                qemu.check(self.has_vhost_user()).map_err(|(name, why)| fail(&key(&format!("qemu.{name}")), why))?;
            }
        }
        Ok(())
    }
}

impl Qemu {
    fn check(&self, vhost_user: bool) -> std::result::Result<(), (&'static str, String)> {
        if !matches!(self.acceleration.as_str(), "kvm" | "tcg") {
            return Err(("acceleration", "kvm or tcg".into()));
        }
        // Limits from QEMU's virtio_net_device_realize. Only with vhost-user can the send queue have more than 256
        // descriptors.
        let sizes = 256..=1024;
        if self.queue_size.is_some_and(|size| !size.is_power_of_two() || !sizes.contains(&size)) {
            return Err(("queue_size", "256, 512 or 1024 descriptors".into()));
        }
        if self.cpus == 0 {
            return Err(("cpus", "at least 1".into()));
        }
        if self.memory_mib == 0 {
            return Err(("memory_mib", "at least 1".into()));
        }
        if vhost_user && self.arguments.iter().any(|argument| argument == "-mem-path") {
            return Err(("arguments", "with vhost-user, latpath gives the guest shared memory itself".into()));
        }
        Ok(())
    }
}

/// The first value that occurs twice, with its key.
fn repeated(values: &[(String, String)]) -> Option<(&str, &str)> {
    let twice = |(at, (_, value)): &(usize, &(String, String))| values[..*at].iter().any(|(_, other)| other == value);
    values.iter().enumerate().find(twice).map(|(_, (key, value))| (key.as_str(), value.as_str()))
}

/// Why this is not a valid name for a topology, guest or namespace; `None` if it is valid.
pub(crate) fn not_a_name(name: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    let good = (1..=MAX_NAME).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('-');
    (!good).then(|| format!("{name:?}: a name has 1 to {MAX_NAME} letters, digits, '-' and '_'"))
}

fn not_a_device(name: &str) -> Option<String> {
    // The kernel's rules are in dev_valid_name (net/core/dev.c). Commas and quotes are also refused, because they are
    // syntax to QEMU and ovs-vsctl.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    let good = (1..=15).contains(&name.len()) && name.chars().all(plain) && !name.starts_with(['-', '.']);
    (!good).then(|| format!("{name:?}: a device's name has 1 to 15 letters, digits, '-', '_', '.' and '@'"))
}
