//! The minimum cost of tracing: programs at tracepoints that do nothing, or read the clock once, until the process is
//! killed.
//!
//! ```text
//! floor empty|clock TRACEPOINT...
//! ```

use latpath_bpf::floor;
use std::io::{Error, Result};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((kind @ ("empty" | "clock"), places)) = words.split_first().map(|(k, p)| (k.as_str(), p)) else {
        return Err(Error::other("usage: floor empty|clock TRACEPOINT..."));
    };
    let _attached = places.iter().map(|place| floor::attach(place, kind == "clock")).collect::<Result<Vec<_>>>()?;
    println!("attached");
    // Wait until killed.
    loop {
        std::thread::park();
    }
}
