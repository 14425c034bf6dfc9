//! Two namespaces and a veth pair between them, removed when the value is dropped.

use crate::wires::{has_frame, hear_all, send_frame};
use latpath_testkit::waits::until;
use latpath_testkit::{Failed, Space};

/// The emitter's device.
pub const HERE: &str = "lphere";
/// The reflector's device.
pub const THERE: &str = "lpthere";
/// MAC address of the reflector's device.
pub const THERE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
/// MAC address of the emitter's device.
pub const HERE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];

/// The emitter's namespace and the reflector's.
pub struct Pair {
    pub here: Space,
    pub there: Space,
}

impl Pair {
    /// Creates the namespaces and the veth pair, with this number of queues per device.
    pub fn new(queues: u32) -> Result<Self, Failed> {
        let pair = Self { here: Space::new("here")?, there: Space::new("there")? };
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        pair.here.ip(&format!(
            "link add {HERE} {queues} address 02:00:00:00:00:11 type veth peer name {THERE} {queues} address 02:00:00:00:00:22 netns {}",
            pair.there.name()
        ))?;
        for (space, device, address) in [(&pair.here, HERE, "10.77.0.1"), (&pair.there, THERE, "10.77.0.2")] {
            space.ip(&format!("addr add {address}/24 dev {device}"))?;
            space.ip(&format!("link set {device} up"))?;
        }
        pair.passes()?;
        Ok(pair)
    }

    /// Waits until frames pass in both directions: a device drops frames until some time after its peer has come up.
    fn passes(&self) -> Result<(), Failed> {
        for (from, by, to, at) in [(&self.here, HERE, &self.there, THERE), (&self.there, THERE, &self.here, HERE)] {
            let wire = to.inside(|| hear_all(at));
            let mut frame = [0xff; 60];
            frame[12..14].copy_from_slice(&[0x88, 0xb6]);
            until(&format!("{by} sends"), || {
                from.inside(|| send_frame(by, &frame));
                has_frame(&wire)
            })?;
        }
        Ok(())
    }
}
