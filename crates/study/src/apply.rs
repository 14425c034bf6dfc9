//! Topologies of `latpath net` and profiles of `latpath tune`: set up for a trial, and undone using the journal.

use crate::plan::{Plan, Settings, Topology};
use latpath_topology::{self as net, Way};
use latpath_tune::{plan, ApplyOptions, Machine, NoWatch, Profile, TuneError, Tuning};
use latpath_undo::Journal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum size of a file named in a plan, bytes.
const MAX_BYTES: u64 = 1 << 20;

impl Plan {
    /// Reads the files that are named in the plan, relative to the plan's directory, so that the plan is complete
    /// without them.
    ///
    /// # Errors
    /// If a file cannot be read, or is not a topology or profile; as a sentence.
    pub fn read_files(&mut self, directory: &Path) -> Result<(), String> {
        let read = |name: &str| {
            let path = directory.join(name);
            latpath_linux::read_text(&path, MAX_BYTES).map_err(|e| format!("{}: cannot be read: {e}", path.display()))
        };
        for topology in &mut self.topologies {
            if let Some(file) = &topology.file {
                topology.text = Some(read(file)?);
            }
            topology.of_net()?;
        }
        for settings in &mut self.settings {
            let Some(name) = &settings.profile else { continue };
            let is_file = directory.join(name).is_file();
            if is_file {
                settings.profile_text = Some(read(name)?);
            }
            settings.of_tune()?;
        }
        Ok(())
    }

    /// The topology or profile of the plan that is already set up, as a sentence; `None` if there is none. A trial
    /// would undo it.
    pub(crate) fn set_up_already(&self) -> Result<Option<String>, String> {
        let up = net::names(&Journal::of_this_machine());
        for topology in &self.topologies {
            if let Some(of_net) = topology.of_net()?.filter(|of_net| up.contains(&of_net.name)) {
                return Ok(Some(format!("the topology {0} is up: latpath net down {0}", of_net.name)));
            }
        }
        for settings in &self.settings {
            let Some(profile) = settings.of_tune()? else { continue };
            let machine = Machine::this(&settings.variables.interfaces);
            let applied = Tuning::new(&machine, Journal::of_this_machine()).applied().map_err(|e| e.to_string())?;
            if applied.iter().any(|one| one.profile == profile.name) {
                return Ok(Some(format!("the profile {0} is applied: latpath tune undo {0}", profile.name)));
            }
        }
        Ok(None)
    }
}

impl Topology {
    /// The topology for `latpath net`; `None` if this topology is not one.
    fn of_net(&self) -> Result<Option<net::Topology>, String> {
        let path: PathBuf = self.file.clone().unwrap_or_else(|| self.name.clone()).into();
        let Some(text) = &self.text else { return Ok(None) };
        let Some(way) = self.way else {
            return net::Topology::parse(&path, text).map(Some).map_err(|e| e.to_string());
        };
        let read: Result<net::Topology, _> = toml::from_str(text);
        let mut topology = read.map_err(|e| format!("{}: {}", path.display(), e.message().trim()))?;
        topology.way = way;
        let keep = |of: &[Way]| of.contains(&way);
        topology.bridge = topology.bridge.filter(|_| keep(&[Way::Bridge]));
        topology.macvtap = topology.macvtap.filter(|_| keep(&[Way::Macvtap]));
        topology.xdp = topology.xdp.filter(|_| keep(&[Way::Xdp]));
        topology.ovs = topology.ovs.filter(|_| keep(&[Way::Ovs, Way::OvsAfxdp]));
        topology.check().map_err(|e| format!("{} as {way}: {e}", path.display()))?;
        Ok(Some(topology))
    }

    /// Sets up the topology if it is one for `latpath net`.
    pub(crate) fn up(&self, stop: &AtomicBool) -> Result<(), String> {
        let Some(topology) = self.of_net()? else { return Ok(()) };
        let made = net::up(&topology, &mut |_| (), &|| stop.load(Ordering::Relaxed));
        made.map(drop).map_err(|e| format!("up: {e}"))
    }

    /// Takes the topology down if it is one for `latpath net` and is up.
    pub(crate) fn down(&self) -> Result<(), String> {
        let Some(topology) = self.of_net()? else { return Ok(()) };
        match net::down(&topology.name) {
            Err(net::Error::NotUp { .. }) | Ok(_) => Ok(()),
            Err(error) => Err(format!("down: {error}")),
        }
    }
}

impl Settings {
    /// The profile for `latpath tune`; `None` if there is none.
    fn of_tune(&self) -> Result<Option<Profile>, String> {
        let profile = match (&self.profile_text, &self.profile) {
            (Some(text), name) => Profile::parse(text, name.as_deref().unwrap_or(&self.name)),
            (None, Some(name)) => Profile::named(name),
            (None, None) => return Ok(None),
        };
        profile.map(Some).map_err(|e| e.to_string())
    }

    /// Applies the profile for `latpath tune`, if there is one.
    pub(crate) fn apply(&self, stop: &AtomicBool) -> Result<(), String> {
        let Some(profile) = self.of_tune()? else { return Ok(()) };
        let failed = |e: TuneError| format!("apply: {e}");
        let machine = Machine::this(&self.variables.interfaces);
        let variables = machine.complete(self.variables.clone());
        let steps = plan(&profile, &variables, &machine).map_err(|e| format!("apply: {e}"))?;
        let tuning = Tuning::new(&machine, Journal::of_this_machine());
        // The measured stream is not running yet, so there is nothing to watch.
        let applied = tuning.apply(&steps, &mut NoWatch, ApplyOptions::default(), stop, &mut |_| ()).map_err(failed)?;
        match applied.stopped {
            Some(stopped) => Err(format!("apply: {}", stopped.why)),
            None => Ok(()),
        }
    }

    /// Undoes the profile for `latpath tune`, if there is one and it is applied.
    pub(crate) fn undo(&self) -> Result<(), String> {
        let Some(profile) = self.of_tune()? else { return Ok(()) };
        let machine = Machine::this(&self.variables.interfaces);
        match Tuning::new(&machine, Journal::of_this_machine()).undo(&profile.name) {
            Err(TuneError::NotApplied { .. }) | Ok(_) => Ok(()),
            Err(error) => Err(format!("undo: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_is_a_topology_of_each_way_with_the_options_of_that_way() {
        let text = "name = 'relay'\nway = 'bridge'\n[uplink]\ndevice = 'eno2'\n[bridge]\nname = 'br-relay'\n\
                    [macvtap]\nmode = 'vepa'\n[[guest]]\nname = 'relay1'\n";
        let of = |way| {
            let topology = Topology { name: "x".into(), text: Some(text.into()), way, ..Topology::default() };
            topology.of_net().map(Option::unwrap)
        };
        for way in Way::ALL {
            let topology = of(Some(way)).unwrap();
            assert_eq!(topology.way, way);
            assert_eq!(
                (topology.bridge.is_some(), topology.macvtap.is_some()),
                (way == Way::Bridge, way == Way::Macvtap)
            );
        }
        assert!(of(None).unwrap_err().contains("macvtap"), "the file by itself names options of another way");
    }
}
