//! The interface of all instruments, and the table of them.

use crate::in_guest::observe;
use crate::{Exits, Ladder, Profiler, Queues, Scope};
use latpath_agent::Observer;
use latpath_bpf::Missing;
use latpath_model::Observation;
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// Why an instrument cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This kernel or user cannot trace, or there is nothing to watch.
    #[error(transparent)]
    Programs(#[from] latpath_bpf::StartError),
    /// The CPUs cannot be sampled.
    #[error(transparent)]
    Sampling(#[from] latpath_profile::StartError),
    /// The search for VMs failed.
    #[error(transparent)]
    Vms(#[from] latpath_vms::Error),
    /// This machine's own network namespace cannot be determined.
    #[error(transparent)]
    Namespace(#[from] latpath_net::Error),
    /// The agent in a guest cannot be used.
    #[error(transparent)]
    Machine(#[from] latpath_agent::MachineError),
    /// The request does not fit this machine.
    #[error("{0}")]
    Guest(String),
    /// The request is invalid.
    #[error("{0}")]
    Usage(String),
}

/// Requirements of an instrument, besides a kernel that can trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// KVM: without it, there is nothing to observe.
    pub kvm: bool,
    /// The ability to attach programs to kernel functions, where there are no tracepoints.
    pub functions: bool,
    /// vhost: the instrument observes its queues.
    pub vhost: bool,
    /// debugfs, for the kernel's own counters.
    pub debugfs: bool,
}

/// A measurement that is attached for a window and then read. The window begins when [`Instrument::start`] returns.
pub trait Instrument: Sized {
    /// Name of the instrument, of its command, and of its part in a study.
    const NAME: &'static str;
    /// Its requirements.
    const NEEDS: Needs;
    /// Its options.
    type Options: Default;
    /// Its results.
    type Figures: Serialize + DeserializeOwned + JsonSchema;

    /// Attaches it, and returns once the window has begun.
    ///
    /// # Errors
    /// If this kernel or user cannot trace, or there is nothing to watch.
    fn start(scope: Scope, options: Self::Options) -> Result<Self, StartError>;

    /// The options for a trial, which attaches every program that any options would attach.
    fn options_of_a_trial() -> Self::Options {
        Self::Options::default()
    }

    /// Description of the measurement for users, e.g. `watching 2 vCPUs`.
    fn subject(&self) -> String;

    /// Reads the events that have arrived. Call it about 20 times a second.
    fn step(&mut self) {}

    /// Observations that this kernel does not support.
    fn missing(&self) -> Vec<Missing>;

    /// Ends the window, calls `at_end` as soon as it has ended, and computes the figures. If `stop` is set, skips
    /// lengthy work.
    fn end(self, stop: &AtomicBool, at_end: impl FnOnce()) -> Observation<Self::Figures>;
}

/// An entry of [`INSTRUMENTS`].
pub struct Entry {
    /// [`Instrument::NAME`].
    pub name: &'static str,
    /// [`Instrument::NEEDS`].
    pub needs: Needs,
    /// Attaches it without observing a VM, and returns the observations that this kernel does not support.
    ///
    /// # Errors
    /// As for [`Instrument::start`].
    pub try_out: fn() -> Result<Vec<Missing>, StartError>,
    /// The JSON Schema (draft 2020-12) of its observations.
    pub schema: fn() -> Schema,
    /// Attaches it in a guest on behalf of the host.
    pub(crate) observe: fn() -> Result<Box<dyn Observer>, StartError>,
}

const fn entry<I: Instrument + 'static>() -> Entry {
    Entry {
        name: I::NAME,
        needs: I::NEEDS,
        try_out: try_out::<I>,
        schema: schema::<Observation<I::Figures>>,
        observe: observe::<I>,
    }
}

fn try_out<I: Instrument>() -> Result<Vec<Missing>, StartError> {
    Ok(I::start(Scope::nothing(), I::options_of_a_trial())?.missing())
}

fn schema<T: JsonSchema>() -> Schema {
    schemars::generate::SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>()
}

/// All instruments, in the order in which a study uses them.
pub static INSTRUMENTS: [Entry; 4] = [entry::<Exits>(), entry::<Ladder>(), entry::<Queues>(), entry::<Profiler>()];

/// The instrument with this name, if any.
pub fn instrument(name: &str) -> Option<&'static Entry> {
    INSTRUMENTS.iter().find(|entry| entry.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Keys of the JSON object that a schema describes, including those of flattened structs.
    fn keys(schema: &Schema) -> Vec<String> {
        schema.get("properties").and_then(|keys| keys.as_object()).expect("keys").keys().cloned().collect()
    }

    #[test]
    fn the_keys_of_a_window_are_those_of_every_instrument_and_no_figure_has_them_too() {
        let of_window = keys(&schema::<Observation<()>>());
        assert_eq!(of_window.len(), 6, "{of_window:?}");
        fn own<I: Instrument>() -> (&'static str, Vec<String>) {
            (I::NAME, keys(&schema::<I::Figures>()))
        }
        let own = [own::<Exits>(), own::<Ladder>(), own::<Queues>(), own::<Profiler>()];
        assert_eq!(own.each_ref().map(|(name, _)| *name), INSTRUMENTS.each_ref().map(|entry| entry.name));
        for ((name, own), entry) in own.iter().zip(&INSTRUMENTS) {
            let whole: BTreeSet<String> = keys(&(entry.schema)()).into_iter().collect();
            let parts: Vec<&String> = of_window.iter().chain(own).collect();
            assert_eq!(parts.iter().copied().cloned().collect::<BTreeSet<_>>(), whole, "{name}");
            assert_eq!(parts.len(), whole.len(), "{name}: a key that is there twice");
        }
    }

    #[test]
    fn an_instrument_is_found_by_its_name() {
        for entry in &INSTRUMENTS {
            assert_eq!(instrument(entry.name).map(|found| found.name), Some(entry.name));
        }
        assert!(instrument("none").is_none());
    }
}
