//! Runs a guest of about twenty bytes of code that executes CPUID in a loop, and prints the mean time per CPUID in ns:
//! the cost of a VM exit that KVM handles in the kernel.
//!
//! ```text
//! cargo run --release -p latpath-lab --example bare_guest -- [THOUSANDS]
//! ```

use latpath_lab::BareGuest;
use std::{error::Error, time::Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let thousands: u16 = std::env::args().nth(1).map_or(Ok(50), |word| word.parse())?;
    let mut guest = BareGuest::new()?;
    let began = Instant::now();
    for _ in 0..thousands {
        guest.run(1, 1000)?;
    }
    println!("{}", began.elapsed().as_nanos() / (u128::from(thousands.max(1)) * 1000));
    Ok(())
}
