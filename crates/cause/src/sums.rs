//! Times by what they belong to.

use latpath_model::Ns;

pub(crate) fn plus(sum: &mut Ns, ns: Ns) {
    *sum = sum.saturating_add(ns);
}

/// Adds a time to that of an equal key.
pub(crate) fn add<K: PartialEq>(list: &mut Vec<(K, Ns)>, key: K, ns: Ns) {
    match list.iter_mut().find(|(known, _)| *known == key) {
        Some((_, sum)) => plus(sum, ns),
        None => list.push((key, ns)),
    }
}

pub(crate) fn longest_first<K>(list: &mut [(K, Ns)]) {
    list.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
}
