//! The terminal interface of `latpath live`.
