//! Two namespaces and a veth pair between them; gone with the value.

use crate::wires::{has_frame, hear_all, send_frame};
use crate::LIMIT;
use latpath_testkit::Failed;
use nix::sched::{setns, CloneFlags};
use std::fs::{self, File};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A network namespace of this test.
pub struct Space {
    name: String,
}

impl Space {
    fn new(role: &str) -> Result<Self, Failed> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let space = Self { name: format!("latpath-ping-{}-{number}-{role}", std::process::id()) };
        ip(&["netns", "add", &space.name])?;
        // Nothing shall be sent but what the test sends.
        for scope in ["all", "default"] {
            space.inside(|| {
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
            });
        }
        Ok(space)
    }

    /// Runs `ip -n <this> WORDS…`.
    pub fn ip(&self, words: &str) -> Result<(), Failed> {
        let mut all = vec!["-n", &self.name];
        all.extend(words.split(' '));
        ip(&all)
    }

    /// Calls a function in it: what it opens belongs to this namespace.
    pub fn inside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).expect("the namespace is there");
        thread::scope(|scope| {
            let enter = || {
                setns(&file, CloneFlags::CLONE_NEWNET).expect("root may enter it");
                call()
            };
            scope.spawn(enter).join().expect("no panic inside")
        })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(words: &[&str]) -> Result<(), Failed> {
    let output = Command::new("ip").args(words).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr)).into())
}

/// The emitter's device.
pub const HERE: &str = "lphere";
/// The reflector's device.
pub const THERE: &str = "lpthere";
/// Its address.
pub const THERE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
/// The emitter's.
pub const HERE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];

/// An emitter's namespace and a reflector's.
pub struct Pair {
    pub here: Space,
    pub there: Space,
}

impl Pair {
    /// Makes them with so many queues each.
    pub fn new(queues: u32) -> Result<Self, Failed> {
        let pair = Self { here: Space::new("here")?, there: Space::new("there")? };
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        pair.here.ip(&format!(
            "link add {HERE} {queues} address 02:00:00:00:00:11 type veth peer name {THERE} {queues} address 02:00:00:00:00:22 netns {}",
            pair.there.name
        ))?;
        for (space, device, address) in [(&pair.here, HERE, "10.77.0.1"), (&pair.there, THERE, "10.77.0.2")] {
            space.ip(&format!("addr add {address}/24 dev {device}"))?;
            space.ip(&format!("link set {device} up"))?;
        }
        pair.passes()?;
        Ok(pair)
    }

    /// Waits until frames pass in both directions: a device drops what it is to send until a while after its other end is up.
    fn passes(&self) -> Result<(), Failed> {
        for (from, by, to, at) in [(&self.here, HERE, &self.there, THERE), (&self.there, THERE, &self.here, HERE)] {
            let wire = to.inside(|| hear_all(at));
            let (mut frame, until) = ([0xff; 60], Instant::now() + LIMIT);
            frame[12..14].copy_from_slice(&[0x88, 0xb6]);
            while !has_frame(&wire) {
                if Instant::now() > until {
                    return Err(format!("{by} sends nothing").into());
                }
                from.inside(|| send_frame(by, &frame));
                thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    }
}
