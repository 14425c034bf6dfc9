//! Commented topologies to start from, one for each way.

use crate::Way;

/// A commented topology of this way, with all its keys.
pub fn example(way: Way) -> String {
    let (about, options) = match way {
        Way::Bridge => ("The kernel's bridge: uplink and taps are its ports.", BRIDGE),
        Way::Macvtap => {
            ("A macvtap on the uplink for each guest: no bridge; host and guest do not see each other.", MACVTAP)
        }
        Way::Xdp => ("XDP programs redirect all frames between the uplink and the tap of one guest.", XDP),
        Way::Ovs => ("Open vSwitch on the kernel's datapath: uplink and taps are its ports.", OVS),
        Way::OvsAfxdp => {
            ("Open vSwitch's datapath in user space: AF_XDP at the uplink, vhost-user to the guest.", OVS_AFXDP)
        }
    };
    format!(
        "# {about}\n# latpath net up FILE makes it, latpath net down {NAME} removes it. docs/net.md has all keys.\n\
         name = \"{NAME}\"\nway = \"{way}\"\n{COMMON}{options}{GUEST}"
    )
}

const NAME: &str = "relay-net";

const COMMON: &str = r#"
# Make the host's side in this network namespace (ip netns) instead of the own one:
# namespace = "relay-host"
# MTU of all devices, bytes; without it, the uplink's:
# mtu = 1500

[uplink]
device = "eno2"
# For trials without a NIC: eno2 becomes one end of a veth, and the other end is in a namespace that latpath makes.
# cable = { namespace = "relay-wire", device = "wire0" }
# The uplink may have addresses, by which nobody reaches this host then:
# keep_addresses = false

# The guests' VLAN on the wire. tagged_by = "guest": frames pass as they are; "host": the host adds and removes the tag.
# [vlan]
# id = 5
# tagged_by = "host"
"#;

const BRIDGE: &str = r#"
[bridge]
name = "br-relay"
# Sends multicast only to ports that joined the group: Sampled Values have no such joins, so leave it off.
multicast_snooping = false
# A new port forwards nothing for 30 s with it.
spanning_tree = false
"#;

const MACVTAP: &str = r#"
[macvtap]
# bridge: guests on this uplink see each other. passthru: one guest has the uplink for itself. Also: vepa, private.
mode = "bridge"
"#;

const XDP: &str = r#"
[xdp]
# auto: in the driver if it can, else in the stack. Also: native, generic.
mode = "auto"
"#;

const OVS: &str = r#"
[ovs]
bridge = "br-relay"
# The database of another Open vSwitch than the machine's:
# database = "unix:/var/run/openvswitch/db.sock"
"#;

const OVS_AFXDP: &str = r#"
[ovs]
bridge = "br-relay"
# Receive queues of the uplink; it must have as many channels (ethtool -L eno2 combined N).
n_rxq = 1
# best-effort, native-with-zerocopy, native, generic
xdp_mode = "best-effort"
# vhost-user needs Open vSwitch's build with DPDK (openvswitch-switch-dpdk). tap: the host copies each packet.
guest_port = "vhost-user"
# The database of another Open vSwitch than the machine's:
# database = "unix:/var/run/openvswitch/db.sock"
"#;

const GUEST: &str = r#"
[[guest]]
name = "relay1"
tap = "tap-relay1"
queues = 1
mac = "52:54:00:00:00:01"
# Who runs the guest: qemu (latpath starts it), domain = "NAME" (libvirt), or neither: then start it on the tap.
# domain = "relay1"

# [guest.qemu]
# program = "qemu-system-x86_64"
# acceleration = "kvm"        # or tcg
# cpus = 2
# memory_mib = 1024
# kernel = "/boot/vmlinuz"
# initrd = "/boot/initrd.img"
# append = "console=ttyS0"
# disk = "/var/lib/images/relay1.raw"
# disk_format = "raw"
# vhost = true                # false: QEMU's main loop carries the packets
# queue_size = 256            # descriptors: 256, 512 or 1024
# vectors = 4                 # interrupt vectors of the NIC
# arguments = ["-no-reboot"]
"#;
