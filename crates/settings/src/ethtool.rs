//! The ethtool(8) requests that read and write settings. They wake a suspended device, so callers skip suspended
//! devices. This module contains all unsafe code of this crate; each block states why it is sound.
#![allow(unsafe_code)]

pub(crate) mod options;

use crate::nic::{Answers, Nic, Refusal, Written};
use latpath_linux::net::Device;
use latpath_model::text::of_field;
use options::Opt;
use std::collections::BTreeMap;
use std::{fs, io};

/// include/uapi/linux/ethtool.h
const GSTRINGS: u32 = 0x1b;
const GPFLAGS: u32 = 0x27;
const SPFLAGS: u32 = 0x28;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
const SET_PRIV_FLAGS: u32 = 2;
const SET_FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`
const STRING: usize = 32;
/// Maximum number of names in a string set. The kernel has about 64 features, and drivers have at most 32 flags.
const MAX_STRINGS: usize = 512;
/// Maximum number of 32-bit words of features that the kernel writes.
const WORDS: usize = 8;

/// The struct of a request as 32-bit words, as the kernel returned them.
type Words = [u32; 32];

/// Makes a request whose struct consists of 32-bit words, the first of which is the command.
fn request(device: &Device, command: u32, words: &mut Words) -> io::Result<()> {
    words[0] = command;
    // SAFETY: the struct of each of these commands consists of 32-bit words, and is shorter than this array.
    unsafe { device.ask(libc::SIOCETHTOOL, words) }
}

/// An option stored in one word of a request's struct.
struct Field {
    name: &'static str,
    /// Index of its word.
    at: usize,
    kind: FieldKind,
}

enum FieldKind {
    Switch,
    Number,
    /// A number whose maximum is at this word index. A device that lacks the option reports 0 for both.
    Limited(usize),
}

/// A group of options that are read and written with one pair of requests.
pub(crate) struct Group {
    /// File with the response, if the machine is a directory tree.
    file: &'static str,
    /// The ethtool(8) option that writes the group.
    write: &'static str,
    get: u32,
    set: u32,
    /// Index of a word that is 0 if the device supports none of the options.
    offered: Option<usize>,
    fields: &'static [Field],
}

const fn field(name: &'static str, at: usize, kind: FieldKind) -> Field {
    Field { name, at, kind }
}

static RINGS: Group = Group {
    file: "ethtool/rings",
    write: "-G",
    get: 0x10,
    set: 0x11,
    offered: None,
    fields: &[
        field("rx", 5, FieldKind::Limited(1)),
        field("rx-mini", 6, FieldKind::Limited(2)),
        field("rx-jumbo", 7, FieldKind::Limited(3)),
        field("tx", 8, FieldKind::Limited(4)),
    ],
};
static CHANNELS: Group = Group {
    file: "ethtool/channels",
    write: "-L",
    get: 0x3c,
    set: 0x3d,
    offered: None,
    fields: &[
        field("rx", 5, FieldKind::Limited(1)),
        field("tx", 6, FieldKind::Limited(2)),
        field("other", 7, FieldKind::Limited(3)),
        field("combined", 8, FieldKind::Limited(4)),
    ],
};
static COALESCING: Group = Group {
    file: "ethtool/coalescing",
    write: "-C",
    get: 0x0e,
    set: 0x0f,
    offered: None,
    fields: &[
        field("adaptive-rx", 10, FieldKind::Switch),
        field("adaptive-tx", 11, FieldKind::Switch),
        field("rx-usecs", 1, FieldKind::Number),
        field("rx-frames", 2, FieldKind::Number),
        field("tx-usecs", 5, FieldKind::Number),
        field("tx-frames", 6, FieldKind::Number),
    ],
};
static PAUSE: Group = Group {
    file: "ethtool/pause",
    write: "-A",
    get: 0x12,
    set: 0x13,
    offered: None,
    fields: &[
        field("autoneg", 1, FieldKind::Switch),
        field("rx", 2, FieldKind::Switch),
        field("tx", 3, FieldKind::Switch),
    ],
};
static EEE: Group = Group {
    file: "ethtool/eee",
    write: "--set-eee",
    get: 0x44,
    set: 0x45,
    offered: Some(1),
    fields: &[
        field("eee", 5, FieldKind::Switch),
        field("tx-lpi", 6, FieldKind::Switch),
        field("tx-timer", 7, FieldKind::Number),
    ],
};

impl Group {
    /// The options that the device has, taken from the words of its response.
    fn options(&self, words: &Words) -> Vec<Opt> {
        if self.offered.is_some_and(|at| words[at] == 0) {
            return Vec::new();
        }
        let one = |field: &Field| match field.kind {
            FieldKind::Switch => Some(Opt::switch(field.name, words[field.at] != 0)),
            FieldKind::Number => Some(Opt::number(field.name, words[field.at], None)),
            // The device lacks the option.
            FieldKind::Limited(max) if words[max] == 0 && words[field.at] == 0 => None,
            FieldKind::Limited(max) => Some(Opt::number(field.name, words[field.at], Some(words[max]))),
        };
        self.fields.iter().filter_map(one).collect()
    }

    /// Writes the options' values into the words.
    fn words(&self, options: &[Opt], words: &mut Words) {
        for option in options {
            if let Some(field) = self.fields.iter().find(|field| field.name == option.name) {
                words[field.at] = option.value;
            }
        }
    }

    fn read(&self, nic: &Nic) -> Option<String> {
        let Answers::Kernel { socket, .. } = nic.answers() else {
            return nic.answer(self.file).and_then(|text| options::text(&options::of_file(&text)));
        };
        let mut words = [0; 32];
        request(socket, self.get, &mut words).ok()?;
        options::text(&self.options(&words))
    }

    fn write(&self, nic: &Nic, value: &str) -> Written {
        let doing = format!("ethtool {} {}", self.write, nic.name());
        let Answers::Kernel { socket, .. } = nic.answers() else {
            return in_folder(nic, self.file, |options| options::change(options, &doing, value).map(drop));
        };
        let refused = |error: io::Error| nic.refusal(&format!("{doing} {value}"), &error);
        let mut words = [0; 32];
        request(socket, self.get, &mut words).map_err(refused)?;
        let mut options = self.options(&words);
        if options::change(&mut options, &doing, value)? {
            self.words(&options, &mut words);
            request(socket, self.set, &mut words).map_err(refused)?;
        }
        Ok(())
    }
}

/// Changes the options in a file of a directory tree.
fn in_folder(nic: &Nic, file: &str, change: impl FnOnce(&mut Vec<Opt>) -> Written) -> Written {
    let path = nic.answer_file(file);
    let Some(text) = nic.answer(file) else {
        return Err(Refusal::NotOffered(format!("{}: {} does not offer it", path.display(), nic.name())));
    };
    let mut options = options::of_file(&text);
    change(&mut options)?;
    let failed = |error: io::Error| Refusal::Failed(format!("{}: {error}", path.display()));
    fs::write(&path, options::to_file(&text, &options)).map_err(failed)
}

pub(crate) fn rings(nic: &Nic) -> Option<String> {
    RINGS.read(nic)
}

pub(crate) fn set_rings(nic: &Nic, value: &str) -> Written {
    RINGS.write(nic, value)
}

pub(crate) fn channels(nic: &Nic) -> Option<String> {
    CHANNELS.read(nic)
}

pub(crate) fn set_channels(nic: &Nic, value: &str) -> Written {
    CHANNELS.write(nic, value)
}

pub(crate) fn coalescing(nic: &Nic) -> Option<String> {
    COALESCING.read(nic)
}

pub(crate) fn set_coalescing(nic: &Nic, value: &str) -> Written {
    COALESCING.write(nic, value)
}

pub(crate) fn pause(nic: &Nic) -> Option<String> {
    PAUSE.read(nic)
}

pub(crate) fn set_pause(nic: &Nic, value: &str) -> Written {
    PAUSE.write(nic, value)
}

pub(crate) fn eee(nic: &Nic) -> Option<String> {
    EEE.read(nic)
}

pub(crate) fn set_eee(nic: &Nic, value: &str) -> Written {
    EEE.write(nic, value)
}

/// File with the driver's private flags, if the machine is a directory tree.
const PRIVATE_FLAGS: &str = "ethtool/private-flags";

fn flags(socket: &Device) -> io::Result<Vec<Opt>> {
    let names = strings(socket, SET_PRIV_FLAGS)?;
    let mut words = [0; 32];
    request(socket, GPFLAGS, &mut words)?;
    let one = |(n, name): (usize, String)| Opt::switch(name, words[1] >> n & 1 == 1);
    Ok(names.into_iter().take(32).enumerate().map(one).collect())
}

pub(crate) fn private_flags(nic: &Nic) -> Option<String> {
    let Answers::Kernel { socket, .. } = nic.answers() else {
        return options::text(&options::of_file(&nic.answer(PRIVATE_FLAGS)?));
    };
    options::text(&flags(socket).ok()?)
}

pub(crate) fn set_private_flags(nic: &Nic, value: &str) -> Written {
    let doing = format!("ethtool --set-priv-flags {}", nic.name());
    let Answers::Kernel { socket, .. } = nic.answers() else {
        return in_folder(nic, PRIVATE_FLAGS, |options| options::change(options, &doing, value).map(drop));
    };
    let refused = |error: io::Error| nic.refusal(&format!("{doing} {value}"), &error);
    let mut all = flags(socket).map_err(refused)?;
    if options::change(&mut all, &doing, value)? {
        let mut words = [0; 32];
        words[1] = all.iter().enumerate().fold(0, |bits, (n, option)| bits | option.value << n);
        request(socket, SPFLAGS, &mut words).map_err(refused)?;
    }
    Ok(())
}

/// `struct ethtool_sset_info` for a single set.
#[repr(C)]
#[derive(Clone, Copy)]
struct SetInfo {
    command: u32,
    reserved: u32,
    sets: u64,
    length: [u32; 64],
}

/// `struct ethtool_gstrings` with room for the maximum number of names.
#[repr(C)]
#[derive(Clone, Copy)]
struct Strings {
    command: u32,
    set: u32,
    length: u32,
    names: [[u8; STRING]; MAX_STRINGS],
}

/// `struct ethtool_gfeatures` with room for the maximum number of words.
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
    // SAFETY: the struct is that of this command, with room for the lengths of all 64 sets that its mask can select.
    unsafe { device.ask(libc::SIOCETHTOOL, &mut info) }?;
    let length = if info.sets == 0 { 0 } else { info.length[0] as usize };
    if length == 0 || length > MAX_STRINGS {
        return Ok(Vec::new());
    }
    let mut all = Box::new(Strings { command: GSTRINGS, set, length: 0, names: [[0; STRING]; MAX_STRINGS] });
    // SAFETY: the struct is that of this command. The kernel writes all names of the set. Their number is constant for
    // the driver, has just been read, and does not exceed the available room.
    unsafe { device.ask(libc::SIOCETHTOOL, &mut *all) }?;
    Ok(all.names.iter().take(length).map(|name| of_field(name).into_owned()).collect())
}

/// File with the features, if the machine is a directory tree: `rx-gro on rx-lro off`. A line `fixed` names those that
/// cannot be changed.
const FEATURES: &str = "ethtool/features";

/// `struct ethtool_sfeatures` with room for the maximum number of words.
#[repr(C)]
#[derive(Clone, Copy)]
struct SetFeatures {
    command: u32,
    size: u32,
    words: [[u32; 2]; WORDS],
}

fn read_features(socket: &Device) -> io::Result<(Vec<String>, Features)> {
    let names = strings(socket, SET_FEATURES)?;
    let mut all = Features { command: GFEATURES, size: WORDS as u32, words: [FeatureWord::default(); WORDS] };
    // SAFETY: the struct is that of this command; the kernel writes at most `size` words.
    unsafe { socket.ask(libc::SIOCETHTOOL, &mut all) }?;
    Ok((names, all))
}

/// The device's features, by their names in the kernel, and whether each is on.
pub(crate) fn features(nic: &Nic) -> BTreeMap<String, bool> {
    let Answers::Kernel { socket, .. } = nic.answers() else {
        let all = options::of_file(&nic.answer(FEATURES).unwrap_or_default());
        return all.into_iter().map(|option| (option.name, option.value == 1)).collect();
    };
    let Ok((names, all)) = read_features(socket) else { return BTreeMap::new() };
    let is_on = |n: usize| all.words.get(n / 32).is_some_and(|word| word.active >> (n % 32) & 1 == 1);
    let named = names.into_iter().enumerate().filter(|(_, name)| !name.is_empty());
    named.map(|(n, name)| (name, is_on(n))).collect()
}

/// Switches a feature on or off.
pub(crate) fn set_feature(nic: &Nic, feature: &str, value: &str) -> Written {
    let doing = format!("ethtool -K {} {feature} {value}", nic.name());
    let on = match value {
        "on" => true,
        "off" => false,
        _ => return Err(Refusal::Failed(format!("{doing}: a feature is on or off"))),
    };
    let missing = || Refusal::NotOffered(format!("{doing}: this kernel has no such feature"));
    let fixed = || Refusal::NotOffered(format!("{doing}: the driver does not let it change (fixed)"));
    let Answers::Kernel { socket, .. } = nic.answers() else {
        let text = nic.answer(FEATURES).unwrap_or_default();
        let is_fixed = |line: &str| line.strip_prefix("fixed ").is_some_and(|all| all.split(' ').any(|n| n == feature));
        return in_folder(nic, FEATURES, |options| {
            let option = options.iter_mut().find(|option| option.name == feature).ok_or_else(missing)?;
            if option.value != u32::from(on) && text.lines().any(is_fixed) {
                return Err(fixed());
            }
            option.value = on.into();
            Ok(())
        });
    };
    let refused = |error: io::Error| nic.refusal(&doing, &error);
    let (names, all) = read_features(socket).map_err(refused)?;
    let n = names.iter().position(|name| name == feature).ok_or_else(missing)?;
    let (bit, word) = (1 << (n % 32), all.words.get(n / 32).ok_or_else(missing)?);
    if (word.active & bit != 0) == on {
        return Ok(());
    }
    if word.available & bit == 0 {
        return Err(fixed());
    }
    let words = names.len().div_ceil(32).min(WORDS);
    let mut change = SetFeatures { command: SFEATURES, size: words as u32, words: [[0; 2]; WORDS] };
    change.words[n / 32] = [bit, if on { bit } else { 0 }];
    // SAFETY: the struct is that of this command; the kernel reads `size` words, all of which exist.
    unsafe { socket.ask(libc::SIOCETHTOOL, &mut change) }.map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use latpath_linux::proc::Root;
    use latpath_net::Netns;
    use std::path::Path;

    fn here(name: &str) -> Nic {
        Nic::of_kernel(name, &Netns::own().unwrap(), &Root::of(Path::new("/sys"))).unwrap()
    }

    #[test]
    fn the_loopback_device_has_its_features() {
        let found = features(&here("lo"));
        // The kernel sets both features for the loopback device, and users cannot change `loopback`.
        assert!(found.contains_key("rx-gro") && found["loopback"], "{found:?}");
        assert_eq!(features(&here("no-such-device")), BTreeMap::new());
    }

    #[test]
    fn what_the_device_does_not_offer_is_told_from_a_failure() {
        let fixed = set_feature(&here("lo"), "loopback", "off").unwrap_err();
        assert!(matches!(&fixed, Refusal::NotOffered(why) if why.contains("fixed")), "{fixed}");
        assert!(matches!(set_feature(&here("lo"), "no-such-feature", "off"), Err(Refusal::NotOffered(_))));
        assert!(matches!(set_rings(&here("lo"), "rx 64"), Err(Refusal::NotOffered(_))));
        let gone = set_rings(&here("no-such-device"), "rx 64").unwrap_err();
        assert_eq!(gone, Refusal::Failed("ethtool -G no-such-device rx 64: no-such-device does not exist".into()));
    }

    #[test]
    fn values_are_what_ethtool_takes() {
        let mut words = [0; 32];
        (words[1], words[5], words[4], words[8]) = (4096, 256, 4096, 512);
        assert_eq!(options::text(&RINGS.options(&words)).as_deref(), Some("rx 256 tx 512"));
        assert_eq!(options::text(&CHANNELS.options(&[0; 32])), None);
        assert_eq!(options::text(&EEE.options(&[0; 32])), None);
        let coalescing = "adaptive-rx off adaptive-tx off rx-usecs 0 rx-frames 0 tx-usecs 0 tx-frames 0";
        assert_eq!(options::text(&COALESCING.options(&[0; 32])).as_deref(), Some(coalescing));
    }
}
