//! The requests of ethtool(8) that read settings. Such a request wakes a suspended device, so callers skip suspended
//! devices. This module has all unsafe code of this crate; each block states why it is sound.
#![allow(unsafe_code)]

use latpath_linux::net::Device;
use latpath_model::text::of_field;
use std::collections::BTreeMap;
use std::io;

/// include/uapi/linux/ethtool.h
const GCOALESCE: u32 = 0x0e;
const GRINGPARAM: u32 = 0x10;
const GPAUSEPARAM: u32 = 0x12;
const GSTRINGS: u32 = 0x1b;
const GPFLAGS: u32 = 0x27;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
const GEEE: u32 = 0x44;
const SET_PRIV_FLAGS: u32 = 2;
const SET_FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`
const STRING: usize = 32;
/// Maximum names of a set; the kernel has some 64 features, and drivers have at most 32 flags.
const MOST_STRINGS: usize = 512;
/// Maximum words of 32 features that the kernel writes.
const WORDS: usize = 8;

/// Requests a struct that consists of 32-bit words; returns the words after the command.
fn words<const N: usize>(device: &Device, command: u32) -> io::Result<[u32; N]> {
    let mut all = [0_u32; 32];
    all[0] = command;
    // SAFETY: each of these commands' structs consists of words, and is shorter than this array.
    unsafe { device.ask(libc::SIOCETHTOOL, &mut all) }?;
    Ok(std::array::from_fn(|n| all[n + 1]))
}

fn on(value: u32) -> &'static str {
    if value == 0 {
        "off"
    } else {
        "on"
    }
}

/// The arguments with which ethtool sets the same values: `rx 256 tx 256`; `None` if all values are 0.
fn named(pairs: &[(&str, u32)]) -> Option<String> {
    let set: Vec<String> = pairs.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    (!set.is_empty()).then(|| set.join(" "))
}

pub(crate) fn rings(device: &Device) -> Option<String> {
    let [.., rx, rx_mini, rx_jumbo, tx] = words::<8>(device, GRINGPARAM).ok()?;
    named(&[("rx", rx), ("rx-mini", rx_mini), ("rx-jumbo", rx_jumbo), ("tx", tx)])
}

pub(crate) fn channels(device: &Device) -> Option<String> {
    let [.., rx, tx, other, combined] = words::<8>(device, GCHANNELS).ok()?;
    named(&[("rx", rx), ("tx", tx), ("other", other), ("combined", combined)])
}

pub(crate) fn coalescing(device: &Device) -> Option<String> {
    let [rx_time, rx_frames, _, _, tx_time, tx_frames, _, _, _, rx_adapts, tx_adapts] =
        words::<11>(device, GCOALESCE).ok()?;
    Some(format!(
        "adaptive-rx {} adaptive-tx {} rx-usecs {rx_time} rx-frames {rx_frames} tx-usecs {tx_time} tx-frames \
         {tx_frames}",
        on(rx_adapts),
        on(tx_adapts)
    ))
}

pub(crate) fn pause(device: &Device) -> Option<String> {
    let [autoneg, rx, tx] = words::<3>(device, GPAUSEPARAM).ok()?.map(on);
    Some(format!("autoneg {autoneg} rx {rx} tx {tx}"))
}

pub(crate) fn eee(device: &Device) -> Option<String> {
    let [supported, _, _, _, enabled, lpi, timer] = words::<7>(device, GEEE).ok()?;
    (supported != 0).then(|| format!("eee {} tx-lpi {} tx-timer {timer}", on(enabled), on(lpi)))
}

pub(crate) fn private_flags(device: &Device) -> Option<String> {
    let names = strings(device, SET_PRIV_FLAGS).ok()?;
    let [flags] = words::<1>(device, GPFLAGS).ok()?;
    let one = |(n, name): (usize, &String)| format!("{name} {}", on(flags >> n & 1));
    let all: Vec<String> = names.iter().take(32).enumerate().map(one).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// `struct ethtool_sset_info` for one set.
#[repr(C)]
#[derive(Clone, Copy)]
struct SetInfo {
    command: u32,
    reserved: u32,
    sets: u64,
    length: [u32; 64],
}

/// `struct ethtool_gstrings` with room for the names.
#[repr(C)]
#[derive(Clone, Copy)]
struct Strings {
    command: u32,
    set: u32,
    length: u32,
    names: [[u8; STRING]; MOST_STRINGS],
}

/// `struct ethtool_gfeatures` with room for its words.
#[repr(C)]
#[derive(Clone, Copy)]
struct Features {
    command: u32,
    size: u32,
    words: [FeatureWord; WORDS],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FeatureWord {
    available: u32,
    requested: u32,
    active: u32,
    never_changed: u32,
}

fn strings(device: &Device, set: u32) -> io::Result<Vec<String>> {
    let mut info = SetInfo { command: GSSET_INFO, reserved: 0, sets: 1 << set, length: [0; 64] };
    // SAFETY: the struct is that of this command, with room for all 64 sets that it can name.
    unsafe { device.ask(libc::SIOCETHTOOL, &mut info) }?;
    let length = if info.sets == 0 { 0 } else { info.length[0] as usize };
    if length == 0 || length > MOST_STRINGS {
        return Ok(Vec::new());
    }
    let mut all = Box::new(Strings { command: GSTRINGS, set, length: 0, names: [[0; STRING]; MOST_STRINGS] });
    // SAFETY: the struct is that of this command. The kernel writes all names of the set. Their number is a constant
    // of the driver, was just read, and does not exceed the room.
    unsafe { device.ask(libc::SIOCETHTOOL, &mut *all) }?;
    Ok(all.names.iter().take(length).map(|name| of_field(name).into_owned()).collect())
}

/// The device's features, by their names in the kernel, and whether each is on.
pub(crate) fn features(device: &Device) -> BTreeMap<String, bool> {
    let read = || -> io::Result<BTreeMap<String, bool>> {
        let names = strings(device, SET_FEATURES)?;
        let mut all = Features { command: GFEATURES, size: WORDS as u32, words: [FeatureWord::default(); WORDS] };
        // SAFETY: the struct is that of this command; the kernel writes at most `size` words.
        unsafe { device.ask(libc::SIOCETHTOOL, &mut all) }?;
        let is_on = |n: usize| all.words.get(n / 32).is_some_and(|word| word.active >> (n % 32) & 1 == 1);
        Ok(names
            .into_iter()
            .enumerate()
            .filter(|(_, name)| !name.is_empty())
            .map(|(n, name)| (name, is_on(n)))
            .collect())
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_has_its_features() {
        let found = features(&Device::named("lo").unwrap());
        // The kernel sets both for the loopback device, and users cannot change the second.
        assert!(found.contains_key("rx-gro") && found["loopback"], "{found:?}");
        assert_eq!(features(&Device::named("no-such-device").unwrap()), BTreeMap::new());
    }

    #[test]
    fn values_are_what_ethtool_takes() {
        assert_eq!(named(&[("rx", 256), ("rx-mini", 0), ("tx", 512)]).as_deref(), Some("rx 256 tx 512"));
        assert_eq!(named(&[("combined", 0)]), None);
    }
}
