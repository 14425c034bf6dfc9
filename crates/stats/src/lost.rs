//! The meaning of losses, and the kernel's own counts for them.

use crate::drop_place::{place_of_drop, DropPlace};
use crate::units::{count, number_of};
use crate::{Loss, Summary};
use latpath_counters::Difference;
use latpath_model::{PointInfo, HOST};

/// Sets each loss's meaning, and the kernel's own count on this host if there is one.
pub fn explain(summary: &mut Summary, points: &[PointInfo], counted: Option<&Difference>) {
    let of_streams = summary.streams.iter_mut().flat_map(|s| &mut s.lost);
    let info = |name: &str| points.iter().find(|info| info.point.to_string() == name);
    for loss in summary.lost.iter_mut().chain(of_streams) {
        let last = info(&loss.place);
        let Some(place) = place_of(loss, last) else { continue };
        loss.meaning = Some(place.to_string());
        let dropped = loss.dropped_at.as_deref().and_then(info);
        let here = dropped.or(last).filter(|info| info.point.machine == HOST);
        let kernel = here.zip(counted).and_then(|(info, counted)| place.counted(counted, info.netns, info.ifindex));
        // If the kernel's count is smaller than the loss, it may count something else: on a bridge port, the
        // no-listener counter is the bridge's, not the port's; and if the dropping device is unknown, it may not be the
        // last device.
        let is_sure = dropped.is_some() && place != DropPlace::NoListener;
        loss.kernel_count = kernel.filter(|count| *count >= loss.count || (is_sure && *count > 0));
    }
}

/// If the kernel has no specific count of a loss: the counters of drops and errors, for any packets, of the device that
/// last saw the packets. They may explain a part of the loss.
pub fn of_devices(lost: &[Loss], points: &[PointInfo], counted: &Difference) -> Vec<String> {
    let here = points.iter().filter(|info| info.point.machine == HOST);
    let note = |info: &PointInfo| {
        let place = info.point.to_string();
        let unexplained = lost.iter().filter(|loss| loss.kernel_count.is_none() && loss.place == place);
        let packets: u64 = unexplained.map(|loss| loss.count).sum();
        let own = counted.device_since(info.netns, info.ifindex)?.statistics.losses();
        let own: Vec<_> = own.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {}", count(*n))).collect();
        (packets > 0 && !own.is_empty()).then(|| {
            let own = own.join(", ");
            format!(
                "last seen at {place}: {}; its device's own counters, of any packets: {own}",
                number_of(packets, "packet")
            )
        })
    };
    here.filter_map(note).collect()
}

/// The place of a loss: derived from the kernel's reason, or from the fact that the packet was sent to Open vSwitch's
/// daemon, whose queue overflows without a drop event.
fn place_of(loss: &Loss, last: Option<&PointInfo>) -> Option<DropPlace> {
    let by_kernel = loss.reason.as_deref().and_then(|reason| {
        let (reason, function) = reason.rsplit_once(" in ")?;
        Some(place_of_drop(function, reason)).filter(|place| *place != DropPlace::Unknown)
    });
    let asked = last.is_some_and(|info| info.point.kind.leaves_datapath());
    by_kernel.or(asked.then_some(DropPlace::OvsUpcallQueueFull))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_counters::{Datapath, DeviceCounters, Namespace, Queueing, Statistics};
    use latpath_model::Link;
    use std::collections::BTreeMap;

    fn point(text: &str) -> PointInfo {
        PointInfo {
            point: text.parse().unwrap(),
            link: Link::Tap,
            netns: 7,
            ifindex: 3,
            peer: 0,
            peer_netns: 0,
            error_bound_ns: 0,
            clock: String::new(),
        }
    }

    fn counted() -> Difference {
        let statistics = Statistics { tx_dropped: 12, ..Statistics::default() };
        let tap = DeviceCounters { name: "vnet0".into(), statistics, ..DeviceCounters::default() };
        let datapath = Datapath { name: "ovs-system".into(), lost: 5, ..Datapath::default() };
        let space =
            Namespace { devices: BTreeMap::from([(3, tap)]), datapaths: vec![datapath], ..Namespace::default() };
        Difference { namespaces: BTreeMap::from([(7, space)]), ..Difference::default() }
    }

    fn explained(place: &str, reason: Option<&str>) -> (Option<String>, Option<u64>) {
        let loss = Loss {
            place: place.into(),
            reason: reason.map(Into::into),
            meaning: None,
            dropped_at: None,
            kernel_count: None,
            count: 1,
        };
        let mut summary = Summary { lost: vec![loss], ..Summary::default() };
        explain(&mut summary, &[point(place)], Some(&counted()));
        (summary.lost[0].meaning.clone(), summary.lost[0].kernel_count)
    }

    #[test]
    fn a_full_tap_is_named_with_its_own_count() {
        let full = (Some(DropPlace::TapQueueFull.to_string()), Some(12));
        assert_eq!(explained("host/tx@vnet0", Some("FULL_RING in tun_net_xmit")), full);
    }

    #[test]
    fn the_counters_of_a_tap_that_returned_are_not_those_of_its_points() {
        let reason = Some("FULL_RING in tun_net_xmit".into());
        let loss = |kernel_count| Loss {
            place: "host/tx@vnet0".into(),
            reason: reason.clone(),
            meaning: None,
            dropped_at: None,
            kernel_count,
            count: 1,
        };
        let mut counted = counted();
        counted.namespaces.get_mut(&7).unwrap().devices.get_mut(&3).unwrap().is_renewed = true;
        let mut summary = Summary { lost: vec![loss(None)], ..Summary::default() };
        let points = [point("host/tx@vnet0")];
        explain(&mut summary, &points, Some(&counted));
        assert_eq!((summary.lost[0].meaning.is_some(), summary.lost[0].kernel_count), (true, None));
        assert!(of_devices(&summary.lost, &points, &counted).is_empty());
    }

    #[test]
    fn the_counter_is_that_of_the_device_that_dropped_and_never_another_ones_nought() {
        let place = point("host/nic-rx@hin");
        let sender = PointInfo { ifindex: 4, ..point("host/drop@hout") };
        let queueing = Some(Queueing { dropped: 40, ..Queueing::default() });
        let device = |queueing| DeviceCounters { queueing, ..DeviceCounters::default() };
        let devices = BTreeMap::from([(3, device(Some(Queueing::default()))), (4, device(queueing))]);
        let space = Namespace { devices, ..Namespace::default() };
        let counted = Difference { namespaces: BTreeMap::from([(7, space)]), ..Difference::default() };
        let explained = |dropped_at: Option<&str>| {
            let reason = Some("QDISC_DROP in __dev_queue_xmit".into());
            let (place, dropped_at) = (place.point.to_string(), dropped_at.map(Into::into));
            let loss = Loss { place, reason, meaning: None, dropped_at, kernel_count: None, count: 41 };
            let mut summary = Summary { lost: vec![loss], ..Summary::default() };
            explain(&mut summary, &[point("host/nic-rx@hin"), sender.clone()], Some(&counted));
            summary.lost[0].kernel_count
        };
        assert_eq!(explained(Some("host/drop@hout")), Some(40));
        assert_eq!(explained(None), None, "which device dropped is not known");
    }

    #[test]
    fn a_full_queue_of_upcalls_is_named_even_without_a_drop() {
        let full = (Some(DropPlace::OvsUpcallQueueFull.to_string()), Some(5));
        assert_eq!(explained("host/ovs-upcall@nic0", None), full);
    }

    #[test]
    fn another_machines_losses_are_not_checked_against_this_ones_counters() {
        let full = (Some(DropPlace::TapQueueFull.to_string()), None);
        assert_eq!(explained("guest0/tx@vnet0", Some("FULL_RING in tun_net_xmit")), full);
    }

    #[test]
    fn a_count_of_another_device_than_the_one_that_dropped_is_not_shown() {
        let unheard = (Some(DropPlace::NoListener.to_string()), None);
        assert_eq!(explained("host/nic-rx@vnet0", Some("UNHANDLED_PROTO in __netif_receive_skb_core")), unheard);
    }

    #[test]
    fn a_devices_count_is_reported_even_if_it_explains_a_part_only() {
        let points = ["host/nic-rx@vnet0", "host/tx@vnet0", "guest0/tx@vnet0"].map(point);
        let loss = |at: usize, count, kernel_count| {
            let place = points[at].point.to_string();
            Loss { place, reason: None, meaning: None, dropped_at: None, kernel_count, count }
        };
        let lost = [loss(0, 15, None), loss(0, 5, None), loss(1, 12, Some(12)), loss(2, 3, None)];
        assert_eq!(
            of_devices(&lost, &points, &counted()),
            ["last seen at host/nic-rx@vnet0: 20 packets; its device's own counters, of any packets: tx_dropped 12"]
        );
        assert!(of_devices(&lost, &points, &Difference::default()).is_empty());
    }

    #[test]
    fn unknown_causes_have_no_text() {
        assert_eq!(explained("host/nic-rx@eth0", Some("unknown in frobnicate")), (None, None));
        assert_eq!(explained("host/nic-rx@eth0", None), (None, None));
    }
}
