//! The transaction that makes a topology: each object is recorded in the journal before it is made.

use crate::{
    step::{Identity, Object, Setting, Step, Value},
    undo::Topologies,
    Error, Result,
};
use latpath_net::{Change, Flag, Interface, Netns, Rtnetlink};
use latpath_undo::{Entry, Lifetime, Outcome};

/// Progress while a topology is made.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// The object was recorded in the journal and is about to be made.
    Noted(&'a Object),
    /// The object was made, and its identity is about to be recorded.
    Changed(&'a Object),
    /// The object's identity was recorded.
    Made(&'a Object),
    /// A change of a device was recorded and is about to be made.
    Setting(&'a Setting),
    /// A device was changed.
    Set(&'a Setting),
    /// A possibly long wait begins.
    Waiting(&'a str),
}

/// The topology that is being made.
pub(crate) struct Builder<'a> {
    entry: Entry<Step>,
    progress: &'a mut dyn FnMut(Event<'_>),
    stop: &'a dyn Fn() -> bool,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(entry: Entry<Step>, progress: &'a mut dyn FnMut(Event<'_>), stop: &'a dyn Fn() -> bool) -> Self {
        Self { entry, progress, stop }
    }

    /// Whether the user has requested a stop.
    pub(crate) fn is_stopped(&self) -> bool {
        (self.stop)()
    }

    pub(crate) fn tell(&mut self, event: Event<'_>) {
        (self.progress)(event);
    }

    /// Makes one object, which does not exist yet.
    pub(crate) fn make(&mut self, object: Object, make: impl FnOnce() -> Result<Identity>) -> Result<()> {
        self.make_and_release(object, || Ok((make()?, ()))).map(drop)
    }

    /// As [`Builder::make`], for an object that does nothing until released: `make` also returns a handle, which is
    /// passed to the caller after the object's identity has been recorded.
    pub(crate) fn make_and_release<T>(
        &mut self,
        object: Object,
        make: impl FnOnce() -> Result<(Identity, T)>,
    ) -> Result<T> {
        self.check_stop()?;
        self.entry.add(Step::Make(object.clone()))?;
        (self.progress)(Event::Noted(&object));
        let (identity, held) = make()?;
        (self.progress)(Event::Changed(&object));
        self.entry.add(Step::Made(object.clone(), identity))?;
        (self.progress)(Event::Made(&object));
        Ok(held)
    }

    /// Changes a property of a device. If the topology made the device, the change is not recorded: it is removed with
    /// the device.
    pub(crate) fn set(&mut self, netns: &Netns, device: &str, value: Value) -> Result<()> {
        self.check_stop()?;
        let network = Rtnetlink::open(netns)?;
        let is_ours = |step: &Step| matches!(step, Step::Make(Object::Device { netns: of, name, .. }) if *of == netns.inode() && name == device);
        if self.entry.steps().iter().any(is_ours) {
            return Ok(network.set(device, &[change(&value)])?);
        }
        let found = network.device(device)?;
        let before = current(&found, &value, netns)?;
        if before == value {
            return Ok(());
        }
        let ifindex = found.ifindex;
        let setting = Setting { netns: netns.inode(), device: device.into(), ifindex, before, set: value };
        self.entry.add(Step::Set(setting.clone()))?;
        (self.progress)(Event::Setting(&setting));
        network.set(device, &[change(&setting.set)])?;
        (self.progress)(Event::Set(&setting));
        Ok(())
    }

    /// Fails if the user has requested a stop.
    pub(crate) fn check_stop(&self) -> Result<()> {
        if self.is_stopped() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// Records a step; if the step makes a change, this must come before it.
    pub(crate) fn note(&mut self, step: Step) -> Result<()> {
        Ok(self.entry.add(step)?)
    }

    /// Completes the topology, which then stays up until its removal is requested.
    pub(crate) fn complete(mut self) -> Result<()> {
        let kept = self.entry.add(Step::Complete).and_then(|()| self.entry.set_lifetime(Lifetime::Request));
        match kept.and_then(|()| self.entry.leave(&Topologies)) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.undo(error.into())),
        }
    }

    /// Removes the objects that were made, and wraps the error that made the command fail.
    pub(crate) fn undo(mut self, source: Error) -> Error {
        let _ = self.entry.set_lifetime(Lifetime::Process);
        let problems = match self.entry.leave(&Topologies) {
            Ok(Outcome::Failed(problems)) => problems,
            Ok(Outcome::Undone { left_alone, .. }) => left_alone,
            Ok(Outcome::OutOfReach) => vec!["its network namespace cannot be reached".into()],
            Err(error) => vec![error.to_string()],
        };
        Error::Failed { source: Box::new(source), problems }
    }
}

/// Current value of this property of a device.
pub(crate) fn current(device: &Interface, property: &Value, netns: &Netns) -> Result<Value> {
    Ok(match property {
        Value::Up(_) => Value::Up(device.is_up()),
        Value::Mtu(_) => Value::Mtu(device.mtu),
        Value::Promiscuous(_) => Value::Promiscuous(Flag::Promiscuous.is_on(device.flags)),
        Value::Master(_) => {
            let all = latpath_net::interfaces(netns)?;
            let name = |index: u32| all.iter().find(|other| other.ifindex == index).map(|other| other.name.clone());
            Value::Master(device.master.and_then(name))
        }
    })
}

/// The network change that sets this value.
pub(crate) fn change(value: &Value) -> Change<'_> {
    match value {
        Value::Up(up) => Change::Up(*up),
        Value::Mtu(bytes) => Change::Mtu(*bytes),
        Value::Promiscuous(on) => Change::Flag(Flag::Promiscuous, *on),
        Value::Master(bridge) => Change::Master(bridge.as_deref()),
    }
}
