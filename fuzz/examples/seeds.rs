//! Writes the inputs that the code under test makes, for libFuzzer: `cargo run -p latpath-fuzz --example seeds FOLDER`.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: seeds FOLDER"))?);
    for (name, _) in latpath_fuzz::TARGETS {
        fs::create_dir_all(folder.join(name))?;
        for (n, seed) in latpath_fuzz::seeds(name).iter().enumerate() {
            fs::write(folder.join(name).join(format!("made-{n}")), seed)?;
        }
    }
    Ok(())
}
