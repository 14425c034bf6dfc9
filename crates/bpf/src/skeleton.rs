//! Loads an object with programs.

use crate::{listen, Hooks, Purpose, StartError};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use std::mem::MaybeUninit;

/// The opened object of a skeleton builder.
pub type Opened<'o, B> = <B as SkelBuilder<'o>>::Output;
/// The loaded object of a skeleton builder.
pub type Loaded<'o, B> = <Opened<'o, B> as OpenSkel<'o>>::Output;

impl Purpose {
    /// Opens an object, enables the programs of `hooks`, calls `configure` to set constants and table sizes, loads the
    /// object, and calls `take`, which maps the tables and attaches the programs ([`Hooks::attach`]). As long as the
    /// kernel rejects some programs and the rest suffices, repeats this without them ([`Hooks::load`]).
    ///
    /// # Errors
    /// If the kernel rejects a needed program; with its messages.
    pub fn load<B, T>(
        self,
        hooks: &mut Hooks,
        suffices: impl Fn(&Hooks) -> bool,
        configure: impl for<'o> Fn(&mut Opened<'o, B>, &Hooks) -> libbpf_rs::Result<()>,
        mut take: impl for<'o> FnMut(&Loaded<'o, B>, &mut Hooks) -> Result<T, StartError>,
    ) -> Result<T, (StartError, String)>
    where
        B: for<'o> SkelBuilder<'o> + Default,
    {
        hooks.load(suffices, |hooks| {
            listen();
            let mut storage = MaybeUninit::uninit();
            let mut open = B::default().open(&mut storage).map_err(self.refused("reading the programs"))?;
            hooks.choose(open.open_object_mut());
            configure(&mut open, hooks).map_err(self.refused("sizing the tables"))?;
            let skel = open.load().map_err(self.refused("loading the programs"))?;
            take(&skel, hooks)
        })
    }
}
