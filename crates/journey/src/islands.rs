//! Which points the same packets can pass through, and which are only reached by another sender's packets.
//!
//! Two senders with the same stream name look like one sender if only names and numbers are compared. Network
//! namespaces joined only by veths are *islands*: a packet that enters one never appears in another. Everything outside
//! the observed part (beyond network cards, virtual machines, other machines) counts as one island, since it may be
//! connected there.

use crate::journey::{bits, MAX_POINTS};
use latpath_model::{Link, PointInfo, HOST};

/// A network namespace of a machine; `None` for everything outside, where there are no points.
type Place<'a> = Option<(&'a str, u32)>;

/// The islands in which packets are sent or which they enter, each as the bits `1 << PointId` of its points in `seen`.
pub(crate) fn with_senders(points: &[PointInfo], seen: u64) -> Vec<u64> {
    let ids = || bits(seen).filter(|p| *p < points.len().min(MAX_POINTS));
    let mut places: Vec<Place> = vec![None];
    let mut groups: Vec<usize> = vec![0];
    let mut links: Vec<(usize, usize)> = Vec::new();
    let at: Vec<(usize, usize)> = ids().map(|p| (p, index(&mut places, place_of(&points[p])))).collect();
    for (p, here) in &at {
        for other in neighbours(points, *p, seen) {
            links.push((*here, index(&mut places, other)));
        }
    }
    groups.extend(1..places.len());
    for (a, b) in links {
        let (from, to) = (groups[a], groups[b]);
        groups.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
    }
    let mut all: Vec<(usize, u64, bool)> = Vec::new();
    for (p, here) in at {
        let is_source = points[p].point.kind.is_sending() || points[p].point.kind.is_entry();
        match all.iter_mut().find(|(group, ..)| *group == groups[here]) {
            Some((_, mask, source)) => (*mask, *source) = (*mask | 1 << p, *source || is_source),
            None => all.push((groups[here], 1 << p, is_source)),
        }
    }
    all.into_iter().filter(|(.., source)| *source).map(|(_, mask, _)| mask).collect()
}

/// Index of a place in the list; appends the place if it is new.
fn index<'a>(places: &mut Vec<Place<'a>>, place: Place<'a>) -> usize {
    let known = places.iter().position(|known| *known == place);
    known.unwrap_or_else(|| {
        places.push(place);
        places.len() - 1
    })
}

fn place_of(info: &PointInfo) -> Place<'_> {
    Some((info.point.machine.as_str(), info.netns))
}

/// The places that a point's device leads to, other than its own.
fn neighbours(points: &[PointInfo], p: usize, seen: u64) -> Vec<Place<'_>> {
    let info = &points[p];
    match info.link {
        Link::Socket | Link::Bridge | Link::OvsInternal if info.point.machine == HOST => Vec::new(),
        Link::Veth if info.point.machine == HOST && info.peer_netns != 0 => vec![Some((HOST, info.peer_netns))],
        Link::Veth if info.point.machine == HOST && info.peer != 0 => {
            // Interface indexes are unique only within a namespace: several devices may match, and any of them may be
            // the peer.
            let fits = |other: &&PointInfo| {
                other.point.machine == HOST
                    && other.link == Link::Veth
                    && (other.ifindex, other.peer) == (info.peer, info.ifindex)
            };
            let fitting: Vec<Place> = bits(seen).filter_map(|q| points.get(q)).filter(fits).map(place_of).collect();
            if fitting.is_empty() {
                vec![None]
            } else {
                fitting
            }
        }
        _ => vec![None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The islands with senders, as names of points. Each point is given as name, link, namespace, interface index, and
    /// the peer's index and namespace.
    fn islands(points: &[(&str, Link, u32, u32, u32, u32)]) -> Vec<Vec<String>> {
        let info = |(name, link, netns, ifindex, peer, peer_netns): &(&str, Link, u32, u32, u32, u32)| PointInfo {
            point: name.parse().unwrap(),
            link: *link,
            netns: *netns,
            ifindex: *ifindex,
            peer: *peer,
            peer_netns: *peer_netns,
            error_bound_ns: 0,
            clock: String::new(),
        };
        let points: Vec<_> = points.iter().map(info).collect();
        let all = with_senders(&points, (1 << points.len()) - 1);
        all.iter().map(|mask| bits(*mask).map(|p| points[p].point.to_string()).collect()).collect()
    }

    const VETH: Link = Link::Veth;
    /// A publisher, a bridge and an application, each in its own namespace; all veths have index 2 at both ends.
    const CHAIN: [(&str, Link, u32, u32, u32, u32); 6] = [
        ("host/tx@pa", VETH, 1, 2, 2, 2),
        ("host/nic-rx@hin", VETH, 2, 2, 2, 1),
        ("host/nic-rx@br0", Link::Bridge, 2, 3, 0, 0),
        ("host/tx@hout", VETH, 2, 4, 2, 3),
        ("host/nic-rx@eth0", VETH, 3, 2, 4, 2),
        ("host/app-read@relay", Link::Socket, 3, 0, 0, 0),
    ];

    #[test]
    fn a_second_pair_of_namespaces_is_an_island() {
        let second = [("host/tx@p2", VETH, 8, 2, 2, 9), ("host/nic-rx@a2", VETH, 9, 2, 2, 8)];
        let found = islands(&[&CHAIN[..], &second].concat());
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[1], ["host/tx@p2", "host/nic-rx@a2"]);
        // If the peers' namespaces are unknown, indexes alone do not distinguish these pairs.
        let unknown = |p: &(&'static str, Link, u32, u32, u32, u32)| (p.0, p.1, p.2, p.3, p.4, 0);
        assert_eq!(islands(&[&CHAIN[..], &second].concat().iter().map(unknown).collect::<Vec<_>>()).len(), 1);
    }

    #[test]
    fn devices_with_unseen_peers_may_be_connected() {
        for outside in [("host/nic-rx@eno1", Link::Nic), ("host/vm-write@vnet0", Link::Tap), ("guest0/tx@eth0", VETH)] {
            let second = ("host/tx@eno2", Link::Nic, 9, 2, 0, 0);
            let found = islands(&[(outside.0, outside.1, 8, 2, 3, 4), second]);
            assert_eq!(found.len(), 1, "{outside:?}");
        }
        // A simulator in a container, and the real sender behind a network card.
        let found = islands(&[&CHAIN[..], &[("host/nic-rx@eno1", Link::Nic, 9, 2, 0, 0)]].concat());
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_reader_alone_proves_no_second_sender() {
        assert_eq!(islands(&[CHAIN[0], CHAIN[5]]).len(), 1, "the points between them are not requested");
    }
}
