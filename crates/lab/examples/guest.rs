//! Runs a guest with latpath's agent and an application that receives a stream, behind a bridge and a tap, until
//! standard input ends:
//!
//! ```text
//! cargo run --release -p latpath-lab --example guest -- LATPATH SVID
//! ```
//!
//! LATPATH is the executable to copy into the guest. Prints one line: the publisher's network namespace and device, the
//! hypervisor's namespace, the agent's address, and QEMU's process id.

use latpath_lab::{Application, Guest, GuestPlan, Lab, GUEST_DEVICE, PUBLISHER};
use std::io::Read;

const NEVER: &dyn Fn() -> bool = &|| false;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(program), Some(svid)) = (words.next(), words.next()) else {
        return Err("usage: guest LATPATH SVID".into());
    };
    let lab = Lab::new()?;
    let path = lab.lay(Application::Guest)?;
    let plan = GuestPlan { programs: vec![(program.into(), "/bin/latpath".into())], ..GuestPlan::default() };
    let mut guest = Guest::boot(&lab, &path, &plan, &mut |line| eprintln!("{line}"), NEVER)?;
    guest.start("agent", "latpath agent --device /dev/virtio-ports/latpath.agent", true, NEVER)?;
    let subscribe = format!("latpath subscribe -i {GUEST_DEVICE} --stream svid:{svid} --name relay --json");
    guest.start("subscribe", &subscribe, false, NEVER)?;
    println!(
        "{} {PUBLISHER} {} unix:{} {}",
        path.publisher.name(),
        path.hypervisor.name(),
        guest.agent_socket().display(),
        guest.pid()
    );
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
