//! The devices of a lab's path, by name.

/// The publisher's device.
pub const PUBLISHER: &str = "lp-pub";
/// Other end of the publisher's cable, in the role of the host's NIC.
pub const NIC: &str = "nic0";
/// The host's bridge.
pub const BRIDGE: &str = "br0";
/// The guest's tap, on the host.
pub const TAP: &str = "vnet0";
/// Without a guest: the bridge's port to the application.
pub const VETH: &str = "veth0";
/// Without a guest: the application's device.
pub const APPLICATION: &str = "lp-app";
/// The guest's device, in the guest.
pub const GUEST_DEVICE: &str = "eth0";
/// The publisher's address, if it has one (IPv4, reserved for documentation: RFC 5737).
pub const PUBLISHER_ADDRESS: &str = "192.0.2.1";
/// The guest's address, likewise.
pub const GUEST_ADDRESS: &str = "192.0.2.2";
