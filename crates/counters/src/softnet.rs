//! Drops of the CPUs' input queues (`/proc/net/softnet_stat`). The queues belong to the machine, not to a namespace.

use serde::{Deserialize, Serialize};

/// Counters of each CPU's network stack since boot. The kernel's 32-bit counters wrap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Softnet {
    /// One entry per CPU.
    pub cpus: Vec<SoftnetCpu>,
}

/// Counters of one CPU's network stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftnetCpu {
    /// CPU number.
    pub cpu: u32,
    /// Number of packets processed.
    pub processed: u32,
    /// Number of packets dropped because the CPU's queue was full (`netdev_max_backlog`), or one flow exceeded its
    /// share.
    pub dropped: u32,
    /// Number of times that the softirq stopped with work left, because its budget or time was exhausted.
    pub squeezed: u32,
}

impl Softnet {
    pub(crate) fn read() -> Option<Self> {
        Some(Self::parse(&std::fs::read_to_string("/proc/net/softnet_stat").ok()?))
    }

    /// Parses the hexadecimal columns (net/core/net-procfs.c, softnet_seq_show). From Linux 5.14 on, the 13th is the
    /// CPU number.
    fn parse(text: &str) -> Self {
        let cpu = |(place, line): (usize, &str)| {
            let columns: Vec<u32> = line.split(' ').map_while(|word| u32::from_str_radix(word, 16).ok()).collect();
            let number = u32::try_from(place).ok()?;
            let column = |n: usize| columns.get(n).copied();
            Some(SoftnetCpu {
                cpu: column(12).unwrap_or(number),
                processed: column(0)?,
                dropped: column(1)?,
                squeezed: column(2)?,
            })
        };
        Self { cpus: text.lines().enumerate().filter_map(cpu).collect() }
    }

    /// Increments since `earlier`; a CPU that came online in between counts from 0.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let cpu = |now: &SoftnetCpu| {
            let then = earlier.cpus.iter().find(|then| then.cpu == now.cpu).copied().unwrap_or_default();
            SoftnetCpu {
                cpu: now.cpu,
                processed: now.processed.wrapping_sub(then.processed),
                dropped: now.dropped.wrapping_sub(then.dropped),
                squeezed: now.squeezed.wrapping_sub(then.squeezed),
            }
        };
        Self { cpus: self.cpus.iter().map(cpu).collect() }
    }

    /// Packets dropped on all CPUs.
    pub fn dropped(&self) -> u64 {
        self.cpus.iter().map(|cpu| u64::from(cpu.dropped)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpus_line_is_read_and_counted_from_an_earlier_one() {
        let then = Softnet::parse("0000ffff fffffffe 00000001 0 0 0 0 0 0 0 0 0 00000000\n00000010 00000000 00000000 0 0 0 0 0 0 0 0 0 00000002\n");
        let now = Softnet::parse("00010000 00000003 00000002 0 0 0 0 0 0 0 0 0 00000000\n00000020 00000001 00000000 0 0 0 0 0 0 0 0 0 00000002\n");
        assert_eq!(now.cpus[1].cpu, 2);
        let since = now.since(&then);
        assert_eq!((since.cpus[0].processed, since.cpus[0].dropped, since.cpus[0].squeezed), (1, 5, 1));
        assert_eq!(since.dropped(), 6);
        assert_eq!(Softnet::parse("zz\n"), Softnet::default());
    }
}
