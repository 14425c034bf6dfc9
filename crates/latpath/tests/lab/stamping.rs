//! The lab's stamping NICs (crates/lab/module): loaded, told to misbehave, and what is known of their clocks.

use crate::linked::{run, Linked};
use anyhow::{Context, Result};
use std::{
    env, fs,
    ops::Deref,
    path::{Path, PathBuf},
    process::Command,
};

/// Says where the module is.
pub const MODULE: &str = "LATPATH_LAB_STAMPING_NICS";
/// Their names.
pub const NICS: [&str; 2] = ["lpn0", "lpn1"];

const NAME: &str = "stamping_nics";

/// Both NICs. They go with this value.
pub struct StampingNics {
    linked: Linked,
    _module: Module,
}

/// The kernel's clock and the NICs', at one moment.
#[derive(Debug)]
pub struct Truth {
    /// CLOCK_MONOTONIC.
    pub monotonic: i64,
    /// One, or one for each NIC.
    pub phcs: Vec<i64>,
}

impl StampingNics {
    /// Loads the module; `parameters` as modules take them: `phcs=2 offset_ns=0,5000`.
    pub fn load(parameters: &str) -> Result<Self> {
        let module = Module::load(parameters)?;
        Ok(Self { linked: Linked::new(NICS)?, _module: module })
    }

    /// Changes a parameter: one value for both NICs, or `1,0`.
    pub fn set(&self, parameter: &str, value: &str) -> Result<()> {
        fs::write(parameter_file(parameter), value).with_context(|| format!("set {parameter} to {value}"))
    }

    /// What all clocks show at one moment.
    pub fn truth(&self) -> Result<Truth> {
        let text = fs::read_to_string(parameter_file("truth"))?;
        let mut numbers = text.split_whitespace().map(str::parse);
        let monotonic = numbers.next().context("no truth")??;
        Ok(Truth { monotonic, phcs: numbers.collect::<Result<_, _>>()? })
    }
}

impl Deref for StampingNics {
    type Target = Linked;

    fn deref(&self) -> &Linked {
        &self.linked
    }
}

/// The module, as long as this value lives.
struct Module;

impl Module {
    fn load(parameters: &str) -> Result<Self> {
        let file = env::var(MODULE).ok().filter(|f| !f.is_empty()).context("the module was not built")?;
        // That of a test that was killed.
        if Path::new("/sys/module").join(NAME).exists() {
            drop(Self);
        }
        run(Command::new("insmod").arg(file).args(parameters.split_whitespace()))?;
        Ok(Self)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("rmmod").arg(NAME)) {
            eprintln!("{error}");
        }
    }
}

fn parameter_file(parameter: &str) -> PathBuf {
    Path::new("/sys/module").join(NAME).join("parameters").join(parameter)
}
