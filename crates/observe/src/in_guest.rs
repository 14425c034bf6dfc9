//! Instruments in guests, attached by the guests' agents.

use crate::{instrument, Instrument, Scope, StartError};
use latpath_agent::{Address, Machine, MakeObserver, Observer, Timeouts};
use latpath_model::{Ns, Observation};
use serde::Deserialize;
use std::marker::PhantomData;
use std::sync::atomic::AtomicBool;

/// An instrument whose window has begun in a guest.
pub struct InGuest<I> {
    machine: Machine,
    of: PhantomData<I>,
}

impl<I: Instrument> InGuest<I> {
    /// Makes the agent at this address attach the instrument with its default options. Returns once the window has
    /// begun.
    ///
    /// # Errors
    /// If the agent cannot be reached, or cannot attach the instrument.
    pub fn start(name: &str, agent: &Address) -> Result<Self, StartError> {
        let mut machine = Machine::connect(name, agent, Timeouts::default())?;
        machine.begin_observation(I::NAME)?;
        Ok(Self { machine, of: PhantomData })
    }

    /// Ends the window in the guest, and returns its observation.
    ///
    /// # Errors
    /// If the observation does not arrive, or is invalid.
    pub fn end(mut self) -> Result<Observation<I::Figures>, StartError> {
        let encoded = self.machine.end_observation()?;
        read::<I>(&encoded).map_err(|why| StartError::Guest(format!("{}: {why}", self.machine.name())))
    }
}

/// Decodes a guest's observation of this instrument.
fn read<I: Instrument>(encoded: &[u8]) -> Result<Observation<I::Figures>, String> {
    let read = || {
        let text = std::str::from_utf8(encoded).map_err(|e| e.to_string())?;
        figures_add_up(text, MAX_OF_GUEST)?;
        serde_json::from_str(text).map_err(|e| e.to_string())
    };
    read().map_err(|why| format!("its observation ({}) cannot be read: {why}", I::NAME))
}

/// The function with which an agent attaches this instrument for its host; `None` if the instrument does not exist.
pub fn observer(name: &str) -> Option<MakeObserver> {
    let entry = instrument(name)?;
    Some(Box::new(move || (entry.observe)().map_err(|e| e.to_string())))
}

/// An instrument in this process, attached on behalf of the host of this guest.
struct Attached<I>(I);

impl<I: Instrument> Observer for Attached<I> {
    fn step(&mut self) {
        self.0.step();
    }

    fn end(self: Box<Self>, stop: &AtomicBool) -> Vec<u8> {
        serde_json::to_vec(&self.0.end(stop, || ())).expect("figures are JSON")
    }
}

/// Attaches an instrument on behalf of this guest's host.
pub(crate) fn observe<I: Instrument + 'static>() -> Result<Box<dyn Observer>, StartError> {
    Ok(Box::new(Attached(I::start(Scope::of(&[])?, I::Options::default())?)))
}

/// Maximum sum of the absolute values of the integers in a guest's observation, which is untrusted and added to the
/// host's own figures.
pub const MAX_OF_GUEST: Ns = Ns::MAX / 16;

/// Checks that the absolute values of all integers in a JSON text add up to at most `most`, so that no sum of them
/// overflows.
///
/// # Errors
/// If the sum is greater, or the text is not JSON.
pub fn figures_add_up(text: &str, most: Ns) -> Result<(), String> {
    let Sum(sum) = serde_json::from_str(text).map_err(|e| e.to_string())?;
    match sum > i128::from(most) {
        true => Err("its figures are higher than any that can be measured".into()),
        false => Ok(()),
    }
}

/// Sum of the absolute values of the integers in a JSON text.
struct Sum(i128);

impl<'de> Deserialize<'de> for Sum {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Adds;
        impl<'de> serde::de::Visitor<'de> for Adds {
            type Value = Sum;

            fn expecting(&self, to: &mut std::fmt::Formatter) -> std::fmt::Result {
                to.write_str("JSON")
            }

            fn visit_u64<E>(self, number: u64) -> Result<Sum, E> {
                Ok(Sum(number.into()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Sum, E> {
                Ok(Sum(number.unsigned_abs().into()))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Sum, E> {
                Ok(Sum(0))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Sum, E> {
                Ok(Sum(0))
            }

            fn visit_str<E>(self, _: &str) -> Result<Sum, E> {
                Ok(Sum(0))
            }

            fn visit_unit<E>(self) -> Result<Sum, E> {
                Ok(Sum(0))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut all: A) -> Result<Sum, A::Error> {
                let mut sum = 0;
                while let Some(Sum(one)) = all.next_element()? {
                    sum += one;
                }
                Ok(Sum(sum))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut all: A) -> Result<Sum, A::Error> {
                let mut sum = 0;
                while let Some((serde::de::IgnoredAny, Sum(one))) = all.next_entry()? {
                    sum += one;
                }
                Ok(Sum(sum))
            }
        }
        from.deserialize_any(Adds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Queues;

    /// A guest's latpath is untrusted; the host adds its figures to each other and to its own.
    #[test]
    fn figures_of_a_guest_that_no_sum_could_hold_are_refused() {
        let most = u64::MAX;
        let printed = |n: u64| {
            format!(r#"{{"devices":[{{"queues":[{{"used_buffers":{n},"written_bytes":1,"x":[-1,2.5,null]}}]}}]}}"#)
        };
        assert!(figures_add_up(&printed(most), MAX_OF_GUEST).unwrap_err().contains("higher than any"));
        assert_eq!(figures_add_up(&printed(1 << 50), MAX_OF_GUEST), Ok(()));
        let many = format!("[{}]", vec![(MAX_OF_GUEST / 2).to_string(); 3].join(","));
        assert!(figures_add_up(&many, MAX_OF_GUEST).is_err());
        assert!(figures_add_up(&"[".repeat(100_000), MAX_OF_GUEST).is_err(), "too deep");
    }

    #[test]
    fn an_observation_of_a_guest_is_read_as_what_it_is() {
        let observation = Observation { window_ns: 7, ..Observation::<crate::queues::QueuesFigures>::default() };
        let encoded = serde_json::to_vec(&observation).unwrap();
        assert_eq!(read::<Queues>(&encoded).unwrap().window_ns, 7);
        for wrong in [&b"{}"[..], b"[]", b"\xff", b""] {
            let why = read::<Queues>(wrong).unwrap_err();
            assert!(why.starts_with("its observation (queues) cannot be read: "), "{why}");
        }
        let most = String::from_utf8(encoded).unwrap().replace(":7,", &format!(":{},", u64::MAX));
        assert!(read::<Queues>(most.as_bytes()).unwrap_err().contains("higher than any"));
    }

    #[test]
    fn every_instrument_can_be_attached_for_a_host_and_no_other() {
        assert!(crate::INSTRUMENTS.iter().all(|entry| observer(entry.name).is_some()));
        assert!(observer("sh").is_none());
    }
}
