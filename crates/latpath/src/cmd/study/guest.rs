//! What `latpath queues` measures in a guest, by the agent that runs there.

use super::queues;
use anyhow::{anyhow, bail, Context, Result};
use latpath_agent::{Address, CommandKey, Machine, Timeouts};
use latpath_model::text::printable;
use latpath_report::queues::Document as SeenQueues;
use latpath_report::study::{figures_add_up, MOST_OF_GUEST};
use std::time::{Duration, Instant};

/// `latpath queues` in the guest.
pub struct GuestQueues(Machine);

/// How long it may take to begin there, and to end.
const BEGIN: Duration = Duration::from_secs(60);

impl GuestQueues {
    pub fn start(vm: &str, agent: &Address, key: Option<CommandKey>) -> Result<Self> {
        let mut machine = Machine::connect_for_commands(vm, agent, Timeouts::default())?;
        key.into_iter().for_each(|key| machine.set_command_key(key));
        machine.run_command(["latpath", "queues", "--json"].map(String::from).into())?;
        let (mut printed, began) = (Printed::default(), Instant::now());
        while !printed.said().contains(queues::BEGUN) {
            let news = machine.command();
            printed.take(news.printed)?;
            if news.end.is_some() || began.elapsed() > BEGIN {
                bail!("latpath queues in the guest did not begin: {}", printable(printed.said().trim()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self(machine))
    }

    pub fn end(mut self) -> Result<SeenQueues> {
        self.0.end_command();
        let (mut printed, began) = (Printed::default(), Instant::now());
        loop {
            let news = self.0.command();
            printed.take(news.printed)?;
            match news.end {
                Some(Ok(0)) => break,
                Some(end) => {
                    bail!("latpath queues in the guest ended with {end:?}: {}", printable(printed.said().trim()))
                }
                None if began.elapsed() > BEGIN => bail!("latpath queues in the guest does not end"),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        let text = String::from_utf8(printed.out).context("what latpath queues in the guest printed")?;
        figures_add_up(&text, MOST_OF_GUEST)
            .map_err(|why| anyhow!("what latpath queues in the guest printed: {why}"))?;
        serde_json::from_str(&text).context("what latpath queues in the guest printed")
    }
}

/// What a command in a guest has printed.
#[derive(Default)]
struct Printed {
    out: Vec<u8>,
    error: Vec<u8>,
}

impl Printed {
    /// No guest has so many virtqueues that it is more.
    const MOST_BYTES: usize = 1 << 20;

    /// Adds pieces, and whether each is of the standard error.
    fn take(&mut self, pieces: Vec<(bool, Vec<u8>)>) -> Result<()> {
        for (is_error, bytes) in pieces {
            if self.out.len() + self.error.len() + bytes.len() > Self::MOST_BYTES {
                bail!("latpath queues in the guest printed more than {} bytes", Self::MOST_BYTES);
            }
            if is_error { &mut self.error } else { &mut self.out }.extend(bytes);
        }
        Ok(())
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.error).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_prints_without_end_is_left_after_a_mebibyte() {
        let mut printed = Printed::default();
        printed.take(vec![(true, b"watching".to_vec()), (false, b"{}".to_vec())]).unwrap();
        assert_eq!((printed.said().as_str(), &printed.out[..]), ("watching", &b"{}"[..]));
        let mut flood = (0..).map(|n| printed.take(vec![(n % 2 == 0, vec![b'x'; 8192]); 16]));
        let taken = flood.by_ref().take_while(Result::is_ok).count();
        assert!(taken <= 8, "{taken}");
        assert!(printed.out.len() + printed.error.len() <= Printed::MOST_BYTES);
    }
}
