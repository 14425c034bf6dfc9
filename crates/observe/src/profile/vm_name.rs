//! VM names in compared profiles: the call chains of two VMs can be compared only if the VMs' names are removed.

use latpath_model::text::printable;
use latpath_profile::{Frame, Kind, Profile};
use std::collections::BTreeSet;

/// Replaces this VM's name in the profile with a generic one.
pub fn without_vm_name(mut profile: Profile, vm: &str) -> Profile {
    let vm = &printable(vm);
    let (own, workers) = (format!("{vm} ("), format!("vhost of {vm}"));
    for (mut frames, ns) in std::mem::take(&mut profile.stacks) {
        for frame in frames.iter_mut().filter(|frame| matches!(frame.kind, Kind::Process | Kind::Guest)) {
            let name = match &*frame.name {
                name if name.starts_with(&own) => "QEMU".into(),
                name if name == workers => "vhost".into(),
                name => name.replace(vm, "VM"),
            };
            *frame = Frame::new(&name, frame.kind);
        }
        profile.add(frames, ns);
    }
    profile
}

/// If each profile contains exactly one VM and their names differ, returns the profiles without the names, and the
/// names. Otherwise returns the profiles unchanged.
pub fn of_one_vm(before: Profile, after: Profile) -> (Profile, Profile, Option<(String, String)>) {
    match (only_vm(&before), only_vm(&after)) {
        (Some(a), Some(b)) if a != b => (without_vm_name(before, &a), without_vm_name(after, &b), Some((a, b))),
        _ => (before, after, None),
    }
}

/// Name of the only VM in the profile, from `[guest NAME]`, `[guest NAME vCPU N]` or `[guest NAME thread N]`.
fn only_vm(profile: &Profile) -> Option<String> {
    let guests = profile.stacks.keys().flatten().filter(|frame| frame.kind == Kind::Guest);
    let names: BTreeSet<&str> = guests.filter_map(|frame| name_of(&frame.name)).collect();
    match names.len() {
        1 => names.first().map(|name| (*name).to_owned()),
        _ => None,
    }
}

fn name_of(guest: &str) -> Option<&str> {
    let inside = guest.strip_prefix("[guest ")?.strip_suffix(']')?;
    let parted = [" vCPU ", " thread "].iter().find_map(|what| inside.rsplit_once(what));
    Some(parted.filter(|(_, number)| number.parse::<u32>().is_ok()).map_or(inside, |(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(vms: &[&str]) -> Profile {
        let mut profile = Profile::default();
        for vm in vms {
            let outer = Frame::new(&format!("{vm} (qemu-system-x86)"), Kind::Process);
            let tun = Frame::new("tun_get_user", Kind::Kernel);
            profile.add(vec![outer.clone(), tun], 5);
            profile.add(vec![outer.clone(), Frame::new(&format!("[guest {vm} vCPU 1]"), Kind::Guest)], 7);
            profile.add(vec![outer, Frame::new(&format!("[guest {vm}]"), Kind::Guest)], 9);
        }
        profile
    }

    #[test]
    fn the_call_chains_of_one_vm_each_are_the_same_whatever_they_are_called() {
        let (before, after, names) = of_one_vm(profile(&["relay 1"]), profile(&["relay2"]));
        assert_eq!(names, Some(("relay 1".into(), "relay2".into())));
        assert_eq!(before.stacks, after.stacks);
    }

    #[test]
    fn vms_of_the_same_name_and_several_vms_keep_their_names() {
        for (a, b) in [(&["a"][..], &["a"][..]), (&["a", "b"], &["c"]), (&[], &["c"])] {
            let (before, after, names) = of_one_vm(profile(a), profile(b));
            assert_eq!((names, before.stacks, after.stacks), (None, profile(a).stacks, profile(b).stacks));
        }
    }
}
