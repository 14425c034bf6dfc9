//! What held packets up, as the kernel programs tell times apart.

/// How Open vSwitch held a packet up, as the kernel tells times apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldUp {
    /// Not at all.
    No = 0,
    /// By an upcall: no flow fitted.
    Upcall = 1,
    /// By a flow's action.
    Slow = 2,
}

impl HeldUp {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::No, Self::Upcall, Self::Slow];
}
