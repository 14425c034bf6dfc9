//! Namespaces and devices of a topology: uplink, cable, VLAN, bridge, taps, macvtaps.

use crate::{
    builder::Builder,
    error::Doing,
    file::{Guest, Topology, Uplink, Way},
    step::{Identity, Object, Value},
    Error, Result,
};
use latpath_net::{devices_here_and_elsewhere, Change, Flag, Netns, NewDevice, Rtnetlink};
use std::{fs, net::IpAddr};

/// The host's namespace and uplink in a topology that is being made.
pub(crate) struct Host {
    /// The namespace of the host's side.
    pub(crate) netns: Netns,
    /// The device at which the way begins: the uplink, or its VLAN device.
    pub(crate) uplink: String,
    /// MTU of the devices on the way, bytes.
    pub(crate) mtu: u32,
}

impl Host {
    /// Creates or finds the namespaces and the uplink.
    pub(crate) fn make(builder: &mut Builder, topology: &Topology) -> Result<Self> {
        let netns = match &topology.namespace {
            Some(name) => namespace(builder, name)?,
            None => Netns::own()?,
        };
        let Uplink { device, cable, .. } = &topology.uplink;
        if let Some(cable) = cable {
            let wire = namespace(builder, &cable.namespace)?;
            let other_end = NewDevice::Veth { peer: &cable.device, netns: Some(&wire) };
            absent(&wire, &cable.device)?;
            make_device(builder, &netns, device, "veth", other_end)?;
            quiet(&wire, &cable.device)?;
            let mtu = topology.mtu.map(Change::Mtu);
            let changes: Vec<_> = mtu.into_iter().chain([Change::Up(true)]).collect();
            Rtnetlink::open(&wire)?.set(&cable.device, &changes)?;
        } else {
            check_uplink(&netns, topology)?;
        }
        if let Some(mtu) = topology.mtu {
            builder.set(&netns, device, Value::Mtu(mtu))?;
        }
        builder.set(&netns, device, Value::Up(true))?;
        let mtu = Rtnetlink::open(&netns)?.device(device)?.mtu;
        let uplink = match topology.vlan_device() {
            Some((vlan, id)) => {
                make_device(builder, &netns, &vlan, "vlan", NewDevice::Vlan { lower: device, id })?;
                Rtnetlink::open(&netns)?.set(&vlan, &[Change::Up(true)])?;
                vlan
            }
            None => device.clone(),
        };
        Ok(Self { netns, uplink, mtu })
    }

    /// Makes the bridge, with the uplink as its first port.
    pub(crate) fn bridge(&self, builder: &mut Builder, topology: &Topology, bridge: &str) -> Result<()> {
        let options = topology.bridge.clone().unwrap_or_default();
        let (multicast_snooping, spanning_tree) = (options.multicast_snooping, options.spanning_tree);
        let new = NewDevice::Bridge { multicast_snooping, spanning_tree };
        make_device(builder, &self.netns, bridge, "bridge", new)?;
        Rtnetlink::open(&self.netns)?.set(bridge, &[Change::Mtu(self.mtu), Change::Up(true)])?;
        self.port(builder, &self.uplink, bridge)
    }

    /// Adds a device to the bridge as a port.
    pub(crate) fn port(&self, builder: &mut Builder, device: &str, bridge: &str) -> Result<()> {
        builder.set(&self.netns, device, Value::Master(Some(bridge.into())))
    }

    /// Makes a guest's tap.
    pub(crate) fn tap(&self, builder: &mut Builder, guest: &Guest) -> Result<()> {
        let new = if guest.queues > 1 { NewDevice::MultiQueueTap } else { NewDevice::Tap };
        let tap = guest.tap();
        make_device(builder, &self.netns, &tap, "tun", new)?;
        Ok(Rtnetlink::open(&self.netns)?.set(&tap, &[Change::Mtu(self.mtu), Change::Up(true)])?)
    }

    /// Makes a guest's macvtap. It gets the MAC address of the guest's NIC, because it receives no other unicast
    /// frames, and the all-multicast flag, because QEMU does not report to it which groups the guest joins.
    pub(crate) fn macvtap(&self, builder: &mut Builder, topology: &Topology, guest: &Guest) -> Result<()> {
        let mode = topology.macvtap.clone().unwrap_or_default().mode;
        let tap = guest.tap();
        let new = NewDevice::Macvtap { lower: &self.uplink, mode, queues: guest.queues };
        make_device(builder, &self.netns, &tap, "macvtap", new)?;
        let changes = [Change::Mac(guest.mac()), Change::Flag(Flag::AllMulticast, true), Change::Up(true)];
        Ok(Rtnetlink::open(&self.netns)?.set(&tap, &changes)?)
    }
}

/// Returns the namespace with this name, making it if it does not exist.
fn namespace(builder: &mut Builder, name: &str) -> Result<Netns> {
    if let Ok(there) = Netns::named(name) {
        return Ok(there);
    }
    let mut made = None;
    builder.make(Object::Namespace { name: name.into() }, || {
        let netns = Netns::create(name)?;
        let inode = netns.inode();
        made = Some(netns);
        Ok(Identity::Inode(inode.into()))
    })?;
    let netns = made.map_or_else(|| Netns::named(name), Ok)?;
    netns.inside(|| for_each_scope(&["all", "default"]))?;
    Rtnetlink::open(&netns)?.set("lo", &[Change::Up(true)])?;
    Ok(netns)
}

/// Makes a device with IPv6 disabled. Fails if a device already has its name.
fn make_device(builder: &mut Builder, netns: &Netns, name: &str, kind: &str, new: NewDevice) -> Result<()> {
    absent(netns, name)?;
    let network = Rtnetlink::open(netns)?;
    builder.make(Object::Device { netns: netns.inode(), name: name.into(), kind: kind.into() }, || {
        network.add_device(name, new)?;
        Ok(Identity::Ifindex(network.device(name)?.ifindex))
    })?;
    quiet(netns, name)
}

/// Fails if a device has this name.
fn absent(netns: &Netns, name: &str) -> Result<()> {
    let there = latpath_net::interfaces(netns)?;
    match there.iter().any(|device| device.name == name) {
        true => Err(Error::Device {
            device: name.into(),
            why: "a device has this name already; choose another one in the topology, or remove the device".into(),
        }),
        false => Ok(()),
    }
}

/// Disables IPv6 on a device, because its neighbour discovery would add traffic to the stream's.
fn quiet(netns: &Netns, device: &str) -> Result<()> {
    Ok(netns.inside(|| for_each_scope(&[device]))?)
}

fn for_each_scope(scopes: &[&str]) {
    for scope in scopes {
        // A kernel without IPv6 has no such file.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
    }
}

/// Checks that an existing device can be an uplink.
fn check_uplink(netns: &Netns, topology: &Topology) -> Result<()> {
    let name = &topology.uplink.device;
    let all = latpath_net::interfaces(netns)?;
    let Some(device) = all.iter().find(|device| device.name == *name) else {
        let here = netns.inside(|| devices_here_and_elsewhere(name))?;
        return Err(Error::NoDevice { device: name.clone(), here });
    };
    let fail = |why: String| Err(Error::Device { device: name.clone(), why });
    if device.is_loopback() {
        return fail("the loopback device is no uplink".into());
    }
    if let Some(master) = device.master {
        let master = all.iter().find(|other| other.ifindex == master).map_or("another device", |other| &other.name);
        return fail(format!("it is a port of {master} already; choose another uplink, or release it first"));
    }
    // A macvtap does not affect the uplink's own traffic.
    if topology.way == Way::Macvtap || topology.uplink.keep_addresses {
        return Ok(());
    }
    let addresses = Rtnetlink::open(netns)?.addresses()?;
    let is_lost = |address: IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(six) => six.segments()[0] & 0xffc0 != 0xfe80,
    };
    let lost = addresses.iter().find(|address| address.ifindex == device.ifindex && is_lost(address.address));
    match lost {
        Some(address) => fail(format!(
            "it has address {}/{}, by which nobody could reach this host while the device belongs to the topology; \
             choose another uplink, remove the address, or set uplink.keep_addresses = true",
            address.address, address.prefix
        )),
        None => Ok(()),
    }
}

/// Makes the directory for the topology's sockets and logs.
pub(crate) fn directory(builder: &mut Builder, topology: &Topology) -> Result<()> {
    let directory = crate::directory(&topology.name);
    builder.make(Object::Directory, || {
        for part in directory.ancestors().take(3).collect::<Vec<_>>().into_iter().rev() {
            latpath_linux::private_directory(part).doing(format!("make directory {}", part.display()))?;
        }
        Ok(Identity::Name)
    })
}
