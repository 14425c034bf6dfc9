//! The lab's stamping NICs (crates/lab/module): loaded, made to misbehave, and what is known of their clocks.

use crate::{linked::Linked, module::Module};
use anyhow::{Context, Result};
use latpath_lab::OwnModule;
use std::ops::Deref;

/// Their names.
pub const NICS: [&str; 2] = ["lpn0", "lpn1"];

/// Both NICs. They go with this value.
pub struct StampingNics {
    linked: Linked,
    module: Module,
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
        let module = Module::load(OwnModule::StampingNics, parameters)?;
        Ok(Self { linked: Linked::new(NICS)?, module })
    }

    /// Changes a parameter: one value for both NICs, or `1,0`.
    pub fn set(&self, parameter: &str, value: &str) -> Result<()> {
        self.module.set(parameter, value)
    }

    /// What all clocks show at one moment.
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
