//! CPU and scheduling of the thread that sends or receives.

use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_traffic::kernel::{lock_memory, pin, set_fifo, set_name, CpuLatencyRequest};

/// Flags of commands that have to be on time.
#[derive(ClapArgs, Debug)]
pub struct OnTime {
    /// Real-time priority (SCHED_FIFO); also locks memory
    #[arg(long, value_name = "PRIO", value_parser = crate::cmd::values::whole::<u8>(1..=99))]
    pub fifo: Option<u8>,
    /// Run on this CPU only
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Keep all CPUs of this machine out of idle states during the run; it changes what else is measured here
    #[arg(long)]
    awake: bool,
}

impl OnTime {
    /// With the flag, keeps the CPUs out of idle states while the returned request exists.
    pub fn keep_awake(&self) -> Result<Option<CpuLatencyRequest>> {
        Ok(self.awake.then(CpuLatencyRequest::new).transpose()?)
    }

    /// Sets the name of this thread, and its CPU and priority from the flags.
    pub fn apply(&self, name: &str) -> Result<()> {
        set_name(name);
        if let Some(cpu) = self.cpu {
            pin(cpu)?;
        }
        if let Some(priority) = self.fifo {
            lock_memory()?;
            set_fifo(priority)?;
        }
        Ok(())
    }
}
