//! The columns of a log: the same in CSV and Parquet.

use crate::transaction::{Route, Stamp, Transaction};
use latpath_model::Ns;

/// Names of the columns, in order: the number, every stamp as its own clock showed it, the round trip, its parts.
pub(super) fn names(route: &Route) -> Vec<String> {
    let stamps = Stamp::ALL.into_iter().map(|s| s.column().to_owned());
    let first = ["sequence".to_owned()].into_iter().chain(stamps).chain(["round_trip_ns".to_owned()]);
    first.chain(route.segments().map(|segment| segment.column())).collect()
}

/// A row's values behind its number, in the order of [`names`].
pub(super) fn values<'a>(transaction: &'a Transaction, route: &'a Route) -> impl Iterator<Item = Option<Ns>> + 'a {
    let stamps = Stamp::ALL.into_iter().map(|s| transaction.raw.get(s));
    stamps.chain([transaction.round_trip()]).chain(transaction.segments(route))
}
