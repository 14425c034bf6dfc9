//! The lab's stamping NICs (crates/lab/module): loads them, makes them misbehave, and reads the true state of their
//! clocks.

use crate::{linked::Linked, module::Module};
use anyhow::{Context, Result};
use latpath_lab::OwnModule;
use std::ops::Deref;

/// Names of the NICs.
pub const NICS: [&str; 2] = ["lpn0", "lpn1"];

/// Both NICs; dropping it removes them.
pub struct StampingNics {
    linked: Linked,
    module: Module,
}

/// Readings of the kernel's clock and the NICs' clocks at the same moment, ns.
#[derive(Debug)]
pub struct Truth {
    /// CLOCK_MONOTONIC.
    pub monotonic: i64,
    /// Readings of the NICs' clocks: one shared clock, or one for each NIC.
    pub phcs: Vec<i64>,
}

impl StampingNics {
    /// Loads the module with `parameters` in insmod's format, e.g. `phcs=2 offset_ns=0,5000`.
    pub fn load(parameters: &str) -> Result<Self> {
        let module = Module::load(OwnModule::StampingNics, parameters)?;
        Ok(Self { linked: Linked::new(NICS)?, module })
    }

    /// Changes a parameter: one value for both NICs, or one for each, e.g. `1,0`.
    pub fn set(&self, parameter: &str, value: &str) -> Result<()> {
        self.module.set(parameter, value)
    }

    /// Reads all clocks at the same moment.
    pub fn truth(&self) -> Result<Truth> {
        let text = self.module.get("truth")?;
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
