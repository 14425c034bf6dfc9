//! CPU and scheduling of the thread that sends or receives.

use anyhow::Result;
use clap::Args as ClapArgs;
use latpath_wire::thread::{lock_memory, may_lock_memory, pin, set_fifo, set_name, touch_stack, CpuLatencyRequest};

/// Flags for commands that have to be on time.
#[derive(ClapArgs, Clone, Debug)]
pub struct OnTime {
    /// Real-time priority (SCHED_FIFO); also locks memory
    #[arg(long, value_name = "PRIO", value_parser = crate::cmd::values::whole::<u8>(1..=99))]
    pub fifo: Option<u8>,
    /// Run on this CPU only
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Keep all CPUs of this machine out of idle states during the run; this affects other measurements on this machine
    #[arg(long)]
    awake: bool,
}

impl OnTime {
    /// With the flag, keeps the CPUs out of idle states while the returned request exists.
    pub fn keep_awake(&self) -> Result<Option<CpuLatencyRequest>> {
        Ok(self.awake.then(CpuLatencyRequest::new).transpose()?)
    }

    /// Locks all memory of the process if permitted, so that no page fault delays a packet. Otherwise returns a note
    /// for the user; `--fifo` fails in this case.
    pub fn lock_memory(&self) -> Option<String> {
        if !may_lock_memory() {
            return Some(
                "memory is not locked, so a page fault can delay a packet: that needs root, CAP_IPC_LOCK or ulimit -l \
                 unlimited"
                    .into(),
            );
        }
        lock_memory().err().map(|error| format!("memory is not locked, so a page fault can delay a packet: {error}"))
    }

    /// Sets the name of this thread, and its CPU and priority from the flags.
    pub fn apply(&self, name: &str) -> Result<()> {
        set_name(name);
        touch_stack();
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
