//! Segments: from one point of a route to a later one, under the names that engineers use.
//!
//! | name | from | to |
//! |---|---|---|
//! | `Tmu` | the sampling, where the sender's clock and this host's keep UTC | the first point |
//! | `Tsend` | the planned send time in the packet | the first point |
//! | `Tnet` | the publisher's `tx` | the host's NIC: its first `nic-rx` |
//! | `Thyp` | the host's NIC | the VM's NIC: the guest's `nic-rx` (where no agent looks into the guest `door-enter`, or else `vm-read`; the container's `nic-rx` where there is no VM) |
//! | `Tsub` | the VM's NIC | the application's `app-read`, or `xsk-rx` |
//! | `total` | the first point | the last |
//! | `Treact` | the host's NIC, where a packet comes in | where the packet leaves that the application sends because of it |
//!
//! `Tin`, `Tapp` and `Tout` are the parts of `Treact`: up to the last point that sees the packet that comes in, from there
//! to the first point that sees the other, and the rest.
//!
//! For packets that a VM sends, `Thyp` is the host's share: from `vm-write` to the host's NIC, or to the other VM's;
//! `Tnet` is the rest. `Tupcall` is the time that a packet spends with Open vSwitch's daemon, in either direction.
//! `Tskew` is the time from the first copy of a packet to the second, over redundant networks.

use crate::copies;
use crate::route::{is_senders_copy, ReactionEnds, Route};
use latpath_model::{pattern::fits, Link, Passage, Point, PointId, PointInfo, SegmentKind, HOST};

/// A segment: from one point to a later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its kind.
    pub kind: SegmentKind,
    /// Name: `Tnet`, `Thyp`, `Tsub`, `total`, a user-defined name, or `from→to` for neighbours.
    pub name: String,
    /// The first point.
    pub from: PointId,
    /// The last point.
    pub to: PointId,
}

impl Segment {
    fn classic(kind: SegmentKind, from: PointId, to: PointId) -> Self {
        Self { kind, name: kind.name().unwrap_or_default().into(), from, to }
    }

    /// Whether the segment is a packet's time with Open vSwitch's daemon. A packet may visit the daemon twice, first
    /// because no flow matches, then by an action that the daemon installed; the first visit ends before the second
    /// begins. So a packet crosses this segment only if its return follows its departure.
    pub fn is_with_daemon(&self, points: &[PointInfo]) -> bool {
        let point = |p: PointId| points.get(usize::from(p)).map(|info| &info.point);
        let (Some(from), Some(to)) = (point(self.from), point(self.to)) else { return false };
        from.kind.leaves_datapath() && to.kind.is_back_in_datapath() && from.machine == to.machine
    }
}

/// The route of packets, the segments along it, and notes on uncertain parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// The points in order, and which of them are on the route.
    pub route: Route,
    /// Segments in the order of the route. Neighbours follow their classic segment; user-defined segments are last.
    pub segments: Vec<Segment>,
    /// Segments that are merged or unknown, with the reason.
    pub notes: Vec<String>,
    /// Notes on user-defined segments.
    pub own_notes: Vec<String>,
}

/// The segments of a route, without neighbours that a classic segment already covers. If streams have different routes,
/// the segments of each route follow each other; the same name may then occur several times with different ends.
pub fn classic(route: Route, points: &[PointInfo]) -> Layout {
    let mut all = Layout::default();
    for route in route.distinct() {
        let own = along(route, points);
        let new = |s: &Segment| !all.segments.contains(s);
        let segments: Vec<_> = own.segments.into_iter().filter(new).collect();
        all.segments.extend(segments);
        for note in own.notes {
            if !all.notes.contains(&note) {
                all.notes.push(note);
            }
        }
    }
    all.segments.splice(0..0, from_computed(&route, points));
    all.segments.extend(upcalls(&route, points));
    all.segments.extend(of_nics(&route, points));
    all.segments.extend(of_doors(&route, points));
    all.segments.extend(of_reactions(&route));
    let open = route.reactions.iter().filter(|reaction| reaction.ends.is_none()).count();
    if open > 0 && !route.points.is_empty() {
        all.notes
            .push("Treact: no packet of one of a reaction's two streams was seen, so its parts are not known".into());
    }
    if !route.points.is_empty() {
        all.segments.extend(skews(points));
    }
    all.notes.extend(other_readers(&route, points));
    all.notes.extend(senders_copies(&route, points));
    all.notes.extend(two_entries(&route, points));
    Layout { route, ..all }
}

/// The layout of a route with the user's segments `own`, each `NAME=FROM..TO`.
pub fn layout(route: Route, points: &[PointInfo], own: &[String]) -> Layout {
    let mut layout = classic(route, points);
    for text in own.iter().filter(|_| !layout.route.points.is_empty()) {
        match parse(text, points, &layout.route) {
            Ok(Some(segment)) => layout.segments.push(segment),
            Ok(None) => layout.own_notes.push(format!("segment {text}: no packet was seen at one of its ends")),
            Err(why) => layout.own_notes.push(format!("segment {why}")),
        }
    }
    layout.notes.extend(layout.own_notes.iter().cloned());
    layout
}

/// The segments of reactions, without parts that begin and end at the same point.
fn of_reactions(route: &Route) -> Vec<Segment> {
    let mut all: Vec<Segment> = Vec::new();
    for ReactionEnds { wire_in, taken, given, wire_out } in route.reactions.iter().filter_map(|reaction| reaction.ends)
    {
        let parts = [
            (SegmentKind::Treact, wire_in, wire_out),
            (SegmentKind::Tin, wire_in, taken),
            (SegmentKind::Tapp, taken, given),
            (SegmentKind::Tout, given, wire_out),
        ];
        let segments = parts.into_iter().filter(|(_, from, to)| from != to);
        let segments = segments.map(|(kind, from, to)| Segment::classic(kind, from, to));
        let new: Vec<Segment> = segments.filter(|segment| !all.contains(segment)).collect();
        all.extend(new);
    }
    all
}

/// Segments from the sampling and from planned send times to the points at which packets are first seen.
fn from_computed(route: &Route, points: &[PointInfo]) -> Vec<Segment> {
    let mut all: Vec<Segment> = Vec::new();
    for from in computed(points) {
        let is_planned = points[usize::from(from)].point.kind.info().passage == Passage::Planned;
        let kind = if is_planned { SegmentKind::Tsend } else { SegmentKind::Tmu };
        for first in route.distinct().iter().filter_map(|route| route.first()) {
            if all.iter().all(|segment| (segment.from, segment.to) != (from, *first)) {
                all.push(Segment::classic(kind, from, *first));
            }
        }
    }
    all.sort_by_key(|segment| segment.kind);
    all
}

/// The points whose times are computed.
fn computed(points: &[PointInfo]) -> impl Iterator<Item = PointId> + '_ {
    (0..).zip(points).filter(|(_, info)| info.point.kind.is_computed()).map(|(at, _)| at)
}

/// A note on other readers of the packets: the route leads to one reader, and the user may mean another.
fn other_readers(route: &Route, points: &[PointInfo]) -> Option<String> {
    const NAMED: usize = 3;
    let reads = |p: &&Point| matches!(p.kind.info().passage, Passage::ToApplication | Passage::ToVm);
    let others = route.off_route.iter().filter(|p| !is_senders_copy(**p, &route.order, points));
    let off_route = others.map(|p| &points[usize::from(*p)].point);
    let readers: Vec<String> = off_route.filter(reads).map(ToString::to_string).collect();
    let more = match readers.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = readers.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    (!readers.is_empty()).then(|| {
        format!("also read, off the route, at {named}{more}: --points chooses the reader that the route leads to")
    })
}

/// A note on readers of packets that their own namespace sends, which therefore cannot end the route.
fn senders_copies(route: &Route, points: &[PointInfo]) -> Option<String> {
    let copies = route.off_route.iter().filter(|p| is_senders_copy(**p, &route.order, points));
    let names: Vec<String> = copies.map(|p| points[usize::from(*p)].point.to_string()).collect();
    let cannot = if names.len() == 1 { "is a reader" } else { "are readers" };
    (!names.is_empty()).then(|| {
        format!(
            "{} {cannot} on the sender's side and not the end of the route: packets leave that network namespace and do not \
             enter it (a sender reads its own transmit timestamps so)",
            names.join(", ")
        )
    })
}

/// A note if packets of a route enter a namespace through several devices: from two senders, or as copies over two
/// networks.
fn two_entries(route: &Route, points: &[PointInfo]) -> Option<String> {
    let point = |p: PointId| &points[usize::from(p)].point;
    let (first, second) = entries_of_two(route, points)?;
    Some(format!(
        "packets come in at {} and at {}: from two senders of one name, or by two networks of one sender (PRP, HSR), where the later \
         one is a copy; --points leaves one of them out",
        point(first),
        point(second)
    ))
}

/// Two devices through which packets of one stream enter a namespace, with neither passing them to the other: journeys
/// may mix two senders.
pub fn entries_of_two(route: &Route, points: &[PointInfo]) -> Option<(PointId, PointId)> {
    let info = |p: &PointId| &points[usize::from(*p)];
    let enters = |p: &&PointId| {
        let (own, is_copy) = (info(p), matches!(info(p).link, Link::Bridge | Link::OvsInternal));
        own.point.machine == HOST && own.point.kind.is_entry() && !is_copy
    };
    let passage = |p: &PointId| info(p).point.kind.info().passage;
    // A device may have two entry points: one for XDP, which redirects a packet, and one for the stack. So devices are
    // compared, not points.
    let device = |p: &PointId| (info(p).netns, &info(p).point.device);
    // A point at which a VM writes packets: its own, or those that it forwards.
    let of_vm = |p: &&PointId| passage(p) == Passage::FromVm;
    let of_two = |own: &[PointId]| {
        // Computed first copies, and packets without their trailer or tag, come from one sender over redundant
        // networks.
        let first = own.iter().find(enters).filter(|p| info(p).point.copies().is_none())?;
        // A macvtap also receives the packets that its VM reads from the device below it, so it is not a second entry.
        let is_read = |p: &PointId| own.iter().any(|q| device(q) == device(p) && passage(q) == Passage::ToVm);
        let by_vms = route.off_route.iter().filter(of_vm).filter(|_| of_vm(&first));
        let second = own.iter().filter(enters).filter(|p| !is_read(p)).chain(by_vms);
        let is_second = |p: &&PointId| device(p) != device(first) && info(p).netns == info(first).netns;
        let second = second.into_iter().find(is_second)?;
        Some((*first, *second))
    };
    route.distinct().into_iter().find_map(of_two)
}

/// The segments from the first copy of a packet to the second, at each place that sees both.
fn skews(points: &[PointInfo]) -> impl Iterator<Item = Segment> {
    let both = copies::of_points(points).into_iter().filter(|at| at.lans.iter().all(|lan| *lan != 0));
    both.map(|at| Segment::classic(SegmentKind::Tskew, at.first, at.second))
}

/// The segments from where a packet leaves Open vSwitch's datapath for its daemon to its return, per port.
fn upcalls(route: &Route, points: &[PointInfo]) -> Vec<Segment> {
    let info = |p: &PointId| &points[usize::from(*p)];
    let kind = |p: &PointId| info(p).point.kind;
    let mut leaves: Vec<_> = route.optional.iter().filter(|p| kind(p).leaves_datapath()).collect();
    leaves.sort_by_key(|p| kind(p));
    let back = |from: &&PointId| {
        let same = |p: &&PointId| {
            let (a, b) = (info(p), info(from));
            (&a.point.machine, a.netns, a.ifindex) == (&b.point.machine, b.netns, b.ifindex)
        };
        route.optional.iter().filter(|p| kind(p).is_back_in_datapath()).find(same).map(|to| (**from, *to))
    };
    leaves
        .into_iter()
        .filter_map(|from| back(&from))
        .map(|(from, to)| Segment::classic(SegmentKind::Tupcall, from, to))
        .collect()
}

/// The segments between the NICs' own times and the neighbouring points: from the driver to the wire, over the wire to
/// the next NIC, and from the wire to the network stack.
fn of_nics(route: &Route, points: &[PointInfo]) -> Vec<Segment> {
    let info = |p: PointId| &points[usize::from(p)];
    let nics: Vec<PointId> = route.optional.iter().copied().filter(|p| info(*p).point.kind.is_by_nic()).collect();
    let device = |p: PointId| (&info(p).point.machine, info(p).netns, info(p).point.device_name());
    let gives = |p: PointId| info(p).point.kind.info().gives_to_driver;
    let enters = |p: PointId| info(p).point.kind.is_entry();
    // The NIC's own point that adjoins a point in the kernel.
    let beside = |p: PointId| {
        let is_beside = |nic: &&PointId| device(**nic) == device(p) && info(**nic).point.kind.is_sending() == gives(p);
        nics.iter().find(is_beside).copied().filter(|_| gives(p) || enters(p))
    };
    let own = |p: &PointId| beside(*p).map(|nic| if gives(*p) { (*p, nic) } else { (nic, *p) });
    let mut all: Vec<(PointId, PointId)> =
        route.order.iter().filter(|p| !info(**p).point.kind.is_by_nic()).filter_map(own).collect();
    // Segments from one NIC to the next on a route.
    for points in route.distinct() {
        let mut sent = None;
        for p in points.iter().copied() {
            if gives(p) {
                sent = beside(p);
            } else if enters(p) {
                all.extend(sent.take().zip(beside(p)));
            }
        }
    }
    all.into_iter().map(|(from, to)| step(from, to, points)).collect()
}

/// The segment between two neighbours.
fn step(from: PointId, to: PointId, points: &[PointInfo]) -> Segment {
    let name = |p: PointId| &points[usize::from(p)].point;
    Segment { kind: SegmentKind::Step, name: format!("{}→{}", name(from), name(to)), from, to }
}

/// The segments at VMs' doors: from the read of a packet to the interrupt, from the interrupt to the vCPU that runs
/// with it, and from a VM's kick to the write of its packet.
fn of_doors(route: &Route, points: &[PointInfo]) -> Vec<Segment> {
    let info = |p: PointId| &points[usize::from(p)];
    let place = |p: PointId| (&info(p).point.machine, info(p).netns, &info(p).point.device);
    let passage = |p: PointId| info(p).point.kind.info().passage;
    let around = |at: PointId| {
        let find = |own, of| {
            let is_it = |p: &PointId| passage(*p) == of && place(*p) == place(at);
            route.order.iter().copied().find(is_it).filter(|_| passage(at) == own)
        };
        let behind = find(Passage::VmKicks, Passage::FromVm).or(find(Passage::VmSignalled, Passage::InVm));
        let before = find(Passage::VmSignalled, Passage::ToVm).map(|before| step(before, at, points));
        before.into_iter().chain(behind.map(|behind| step(at, behind, points)))
    };
    route.optional.iter().flat_map(|at| around(*at)).collect()
}

fn along(route: &[PointId], points: &[PointInfo]) -> Layout {
    let mut all = Layout::default();
    let [first, .., last] = route else { return all };
    let info = |p: PointId| &points[usize::from(p)];
    let (kind, on_host) = (|p: PointId| info(p).point.kind, |p: PointId| info(p).point.machine == HOST);
    let passage = |p: PointId| kind(p).info().passage;

    let nic = route.iter().position(|p| on_host(*p) && kind(*p).is_entry());
    let by_vm = nic.is_some_and(|nic| passage(route[nic]) == Passage::FromVm);
    let guest =
        route.iter().enumerate().position(|(at, p)| !on_host(*p) && passage(*p) == Passage::In && Some(at) > nic);
    let read = route.iter().position(|p| passage(*p) == Passage::ToVm);
    let read = route.iter().position(|p| kind(*p).is_in_vm()).or(read);
    let ends_at_application = kind(*last).is_application();
    // A container's NIC takes the role of a VM's: the last one before the application, unless it is the host's.
    let device = |p: PointId| (info(p).netns, &info(p).point.device);
    let other = |p: PointId| nic.is_none_or(|nic| device(route[nic]) != device(p));
    let container = route.iter().rposition(|p| on_host(*p) && passage(*p) == Passage::In && other(*p));
    // A PRP or HSR device in the NIC's namespace receives the same packets without their trailer or tag: it is not a
    // container's NIC.
    let is_decapsulated = |at: usize| {
        nic.is_some_and(|nic| {
            info(route[nic]).point.copies().is_some() && info(route[nic]).netns == info(route[at]).netns
        })
    };
    let container = container
        .filter(|at| !is_decapsulated(*at) && !by_vm && ends_at_application && Some(*at) != nic && on_host(*last));
    let vm_nic = guest.or(read).or(container).filter(|at| nic.is_none_or(|nic| *at > nic));

    let mut classic: Vec<(SegmentKind, usize, usize)> = Vec::new();
    match (nic, vm_nic) {
        (Some(nic), None) if by_vm => {
            // Outbound through a NIC. If that is a veth to another namespace of this machine, the hops there belong to
            // the network.
            let netns = info(route[nic]).netns;
            let sends = |p: &PointId| on_host(*p) && passage(*p) == Passage::Out && info(*p).netns == netns;
            if let Some(out) = route.iter().rposition(sends).filter(|out| *out > nic) {
                classic.push((SegmentKind::Thyp, nic, out));
                if passage(*last) != Passage::Sent && out + 1 < route.len() {
                    classic.push((SegmentKind::Tnet, out, route.len() - 1));
                }
            }
        }
        _ => inward(&mut all.notes, &mut classic, route, (nic, vm_nic, by_vm), points),
    }

    let whole = (SegmentKind::Total, 0, route.len() - 1);
    let mut done = 0;
    let mut neighbours = |upto: usize, out: &mut Vec<Segment>| {
        for at in done..upto {
            let (from, to) = (route[at], route[at + 1]);
            let named = classic.iter().chain([&whole]).any(|(_, a, b)| (*a, *b) == (at, at + 1));
            if !named {
                out.push(step(from, to, points));
            }
        }
        done = done.max(upto);
    };
    for (kind, from, to) in &classic {
        neighbours(*from, &mut all.segments);
        all.segments.push(Segment::classic(*kind, route[*from], route[*to]));
        neighbours(*to, &mut all.segments);
    }
    neighbours(route.len() - 1, &mut all.segments);
    all.segments.push(Segment::classic(SegmentKind::Total, *first, *last));
    all
}

/// The classic segments of a route to an application, given its entries into the host and the VM.
fn inward(
    notes: &mut Vec<String>,
    classic: &mut Vec<(SegmentKind, usize, usize)>,
    route: &[PointId],
    (nic, vm_nic, by_vm): (Option<usize>, Option<usize>, bool),
    points: &[PointInfo],
) {
    let point = |at: usize| &points[usize::from(route[at])].point;
    let last = route.len() - 1;
    match nic {
        Some(_) if by_vm => {}
        Some(0) => {
            notes.push("Tnet: the publisher is on another machine, so the route begins at the host's NIC".into())
        }
        Some(nic) => classic.push((SegmentKind::Tnet, 0, nic)),
        None => notes.push("Tnet, Thyp: no packet was seen entering by a NIC of this host".into()),
    }
    if let (Some(nic), Some(vm)) = (nic, vm_nic) {
        classic.push((SegmentKind::Thyp, nic, vm));
        let (end, passage) = (point(vm), point(vm).kind.info().passage);
        if matches!(passage, Passage::ToVm | Passage::InVm) {
            let door = "; --door follows packets up to the guest's interrupt";
            let more = if passage == Passage::ToVm { door } else { "" };
            notes.push(format!(
                "Thyp ends at {end}: no agent runs in the guest (run latpath agent there, and name it by --machine{more})"
            ));
        }
    }
    match (vm_nic, nic) {
        (Some(vm), _) if point(last).kind.is_application() => classic.push((SegmentKind::Tsub, vm, last)),
        (None, Some(nic)) if point(last).kind.is_application() => {
            notes.push("Thyp: no VM is on the route; Tsub is from the host's NIC to the application".into());
            classic.push((SegmentKind::Tsub, nic, last));
        }
        _ => notes.push(format!("Tsub: no application was seen to read the stream; the route ends at {}", point(last))),
    }
}

/// Parses a user-defined segment: `NAME=FROM..TO`, each end a point or a pattern with `*`.
///
/// Returns `None` until both ends have been seen. If a pattern matches several points, FROM is the first on the route,
/// and TO the first after FROM, if any.
///
/// # Errors
/// The text is malformed, matches no route point in that order, or has equal ends. The error is a sentence for the
/// user.
pub fn parse(text: &str, points: &[PointInfo], route: &Route) -> Result<Option<Segment>, String> {
    let (name, from, to) = split(text)?;
    let fits = |pattern: &str, p: &PointId| fits(pattern, points[usize::from(*p)].point.to_string());
    let all: Vec<PointId> = route.order.iter().copied().chain(computed(points)).collect();
    let find = |pattern: &str| all.iter().position(|p| fits(pattern, p));
    let begin = find(from);
    let behind = |at: usize| all[at + 1..].iter().position(|p| fits(to, p)).map(|more| at + 1 + more);
    let end = begin.and_then(behind).or_else(|| find(to));
    match (begin.map(|at| all[at]), end.map(|at| all[at])) {
        (Some(from), Some(to)) if from == to => Err(format!("{text}: begins and ends at the same point")),
        (Some(from), Some(to)) => Ok(Some(Segment { kind: SegmentKind::Named, name: name.into(), from, to })),
        _ => Ok(None),
    }
}

/// Splits `NAME=FROM..TO` into its three parts.
///
/// # Errors
/// The text has another form. The error is a sentence for the user.
pub fn split(text: &str) -> Result<(&str, &str, &str), String> {
    let parts = text.split_once('=').and_then(|(name, ends)| {
        let (from, to) = ends.split_once("..")?;
        Some((name.trim(), from.trim(), to.trim()))
    });
    match parts {
        Some((name, from, to)) if !name.is_empty() && !from.is_empty() && !to.is_empty() => Ok((name, from, to)),
        _ => Err(format!("{text:?}: write NAME=FROM..TO, e.g. relay=host/nic-rx@eth0..guest0/app-read@relay")),
    }
}
