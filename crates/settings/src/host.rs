//! The settings of the host and its virtual machines.

use crate::read::{Device, Source};
use crate::reading::Reading;
use latpath_model::PointInfo;

/// Reads the settings of this host, including those of its virtual machines and of the network devices of these points.
pub fn read_host(points: &[PointInfo]) -> Reading {
    let found = latpath_vms::find();
    let vms = found.as_ref().map_or(&[][..], |found| &found.vms);
    let mut reading = Source::machine(vms, Device::of_points(points)).read();
    if let Err(error) = found {
        reading.notes.push(format!("settings of virtual machines: {error}"));
    }
    reading
}
