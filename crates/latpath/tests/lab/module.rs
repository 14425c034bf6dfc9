//! The lab's own kernel module (crates/lab/module), in the hypervisor.

use crate::linked::run;
use anyhow::{Context, Result};
use latpath_lab::OwnModule;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Environment variable with the path of the module that a test needs.
pub const MODULE: &str = "LATPATH_LAB_MODULE";

/// The loaded module; dropping it unloads it.
#[derive(Debug)]
pub struct Module(OwnModule);

impl Module {
    /// Loads the module with `parameters` in insmod's format, e.g. `phcs=2 offset_ns=0,5000`.
    pub fn load(module: OwnModule, parameters: &str) -> Result<Self> {
        let file = env::var(MODULE).ok().filter(|f| !f.is_empty()).context("the module was not built")?;
        let module = Self(module);
        // A test that was killed may have left the module loaded.
        if module.folder().exists() {
            module.remove()?;
        }
        run(Command::new("insmod").arg(file).args(parameters.split_whitespace()))?;
        Ok(module)
    }

    fn folder(&self) -> PathBuf {
        Path::new("/sys/module").join(self.0.name())
    }

    fn remove(&self) -> Result<()> {
        run(Command::new("rmmod").arg(self.0.name())).map(drop)
    }

    fn parameter(&self, name: &str) -> PathBuf {
        self.folder().join("parameters").join(name)
    }

    /// Value of a parameter.
    pub fn get(&self, parameter: &str) -> Result<String> {
        fs::read_to_string(self.parameter(parameter)).with_context(|| format!("read {parameter}"))
    }

    /// Changes a parameter.
    pub fn set(&self, parameter: &str, value: &str) -> Result<()> {
        fs::write(self.parameter(parameter), value).with_context(|| format!("set {parameter} to {value}"))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("{error}");
        }
    }
}
