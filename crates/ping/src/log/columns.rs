//! The columns of a log, the same for CSV and Parquet.

use crate::transaction::{Route, Stamp, Transaction};
use latpath_model::Ns;
use latpath_partstore::{Column, Encoding, Group, Kind};
use std::sync::Arc;

/// Names of the columns, in order: sequence number, each stamp in its own clock, round trip, segments.
pub(super) fn names(route: &Route) -> Vec<String> {
    let stamps = Stamp::ALL.into_iter().map(Stamp::column);
    let first = ["sequence".to_owned()].into_iter().chain(stamps).chain(["round_trip_ns".to_owned()]);
    first.chain(route.segments().map(|segment| segment.column())).collect()
}

/// Values of a row after its sequence number, in the order of [`names`].
pub(super) fn values<'a>(transaction: &'a Transaction, route: &'a Route) -> impl Iterator<Item = Option<Ns>> + 'a {
    let stamps = Stamp::ALL.into_iter().map(|s| transaction.raw.get(s));
    stamps.chain([transaction.round_trip()]).chain(transaction.segments(route))
}

/// Columns of a Parquet log. All except the sequence number are nullable.
pub(super) fn table(route: &Route) -> Arc<[Column]> {
    let column = |(at, name)| match at {
        0 => Column::required(name, Kind::U64, Encoding::Counter),
        _ => Column::optional(name, Kind::I64, Encoding::Noise),
    };
    names(route).into_iter().enumerate().map(column).collect()
}

/// Adds a row to a group of [`table`].
pub(super) fn push(group: &mut Group, transaction: &Transaction, route: &Route) {
    group.rows += 1;
    let rest = values(transaction, route).map(|value| (value, i16::from(value.is_some())));
    let mut columns = group.columns.iter_mut();
    columns.next().into_iter().for_each(|number| number.i64.push(transaction.sequence as i64));
    for (column, (value, level)) in columns.zip(rest) {
        column.i64.extend(value);
        column.levels.push(level);
    }
}
