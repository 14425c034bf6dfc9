//! Sums of times by key.

use latpath_model::Ns;

pub(crate) fn plus(sum: &mut Ns, ns: Ns) {
    *sum = sum.saturating_add(ns);
}

/// Adds a time to the entry with this key. A new key is only added if there are fewer than `most`.
pub(crate) fn add<K: PartialEq>(list: &mut Vec<(K, Ns)>, key: K, ns: Ns, most: usize) {
    let room = list.len() < most;
    match list.iter_mut().find(|(known, _)| *known == key) {
        Some((_, sum)) => plus(sum, ns),
        None if room => list.push((key, ns)),
        None => {}
    }
}

pub(crate) fn longest_first<K>(list: &mut [(K, Ns)]) {
    list.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
}
