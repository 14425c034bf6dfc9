//! Checks HTML pages of latpath in headless Chromium, for `scripts/bench html` and `scripts/bench pages`. `study`
//! writes two invented configurations in the format of `latpath study vhost`, to produce its page.
//!
//! ```text
//! cargo run --release -p latpath-report --example pages -- packet REPORT.html REPORT.json
//! cargo run --release -p latpath-report --example pages -- look FOLDER PAGE.html...
//! cargo run --release -p latpath-report --example pages -- study FOLDER
//! ```

mod browser;
mod look;
mod packet;
#[path = "../../tests/vm_study/mod.rs"]
mod vm_study;

use browser::{Browser, Res};
use std::path::Path;

fn main() -> Res<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["packet", html, json] => packet::find(&mut Browser::start()?, Path::new(html), Path::new(json)),
        ["look", folder, ref pages @ ..] if !pages.is_empty() => {
            look::at_all(&mut Browser::start()?, Path::new(folder), pages)
        }
        ["study", folder] => study(Path::new(folder)),
        _ => Err("usage: pages packet REPORT.html REPORT.json; look FOLDER PAGE.html...; study FOLDER".into()),
    }
}

fn study(folder: &Path) -> Res<()> {
    std::fs::create_dir(folder)?;
    for one in vm_study::both() {
        std::fs::write(folder.join(format!("{}.json", one.name)), serde_json::to_string(&one)?)?;
    }
    Ok(())
}
