//! The running kernel's configuration, from the file provided by its distribution.

use flate2::read::GzDecoder;
use latpath_linux::proc::{line, Root};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;

/// Maximum size of a configuration, bytes; no kernel's is larger.
const MAX_BYTES: u64 = 4 << 20;

/// Setting of an option in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// Built in.
    BuiltIn,
    /// Built as a module.
    Module,
    /// Not set.
    Off,
}

/// A kernel's configuration.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Path of the file.
    pub file: String,
    text: String,
}

impl Config {
    /// The running kernel's configuration; `None` if no file contains it.
    pub fn of_kernel(root: &Root) -> Option<Self> {
        let release = line(root.path("proc/sys/kernel/osrelease"));
        let files = [
            "proc/config.gz".to_owned(),
            format!("boot/config-{release}"),
            format!("lib/modules/{release}/config"),
            format!("usr/lib/modules/{release}/config"),
            format!("usr/lib/ostree-boot/config-{release}"),
        ];
        files.into_iter().find_map(|file| {
            let mut text = String::new();
            let opened = File::open(root.path(&file)).ok()?.take(MAX_BYTES);
            match file.ends_with(".gz") {
                true => GzDecoder::new(opened).take(MAX_BYTES).read_to_string(&mut text),
                false => { opened }.read_to_string(&mut text),
            }
            .ok()?;
            Some(Self { file: format!("/{file}"), text })
        })
    }

    /// Value of an option, named without `CONFIG_`; `None` if it is not set.
    pub fn value(&self, option: &str) -> Option<&str> {
        let value = |line| str::strip_prefix(line, "CONFIG_")?.strip_prefix(option)?.strip_prefix('=');
        self.text.lines().find_map(value).map(str::trim)
    }

    /// Setting of an option, named without `CONFIG_`.
    pub fn setting(&self, option: &str) -> Setting {
        match self.value(option) {
            Some("y") => Setting::BuiltIn,
            Some("m") => Setting::Module,
            _ => Setting::Off,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write};

    const TEXT: &str = "# CONFIG_KPROBES is not set\nCONFIG_KVM=m\nCONFIG_KVM_AMD=y\nCONFIG_HZ=250\n";

    fn machine(file: &str, bytes: &[u8]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, bytes) in [("proc/sys/kernel/osrelease", b"6.1.0-9-amd64\n".as_slice()), (file, bytes)] {
            fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            fs::write(dir.path().join(path), bytes).unwrap();
        }
        let root = Root::of(dir.path());
        (dir, root)
    }

    #[test]
    fn options_are_read_from_where_distributions_leave_them() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(TEXT.as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        let places = [("proc/config.gz", packed.as_slice()), ("boot/config-6.1.0-9-amd64", TEXT.as_bytes())];
        for (file, bytes) in places {
            let (_dir, root) = machine(file, bytes);
            let config = Config::of_kernel(&root).unwrap();
            assert_eq!(config.file, format!("/{file}"));
            let settings = ["KPROBES", "KVM", "KVM_AMD", "KVM_INTEL", "HZ"].map(|option| config.setting(option));
            use Setting::{BuiltIn, Module, Off};
            assert_eq!(settings, [Off, Module, BuiltIn, Off, Off]);
        }
    }

    #[test]
    fn another_kernels_configuration_is_not_this_ones() {
        let (_dir, root) = machine("boot/config-5.10.0", TEXT.as_bytes());
        assert!(Config::of_kernel(&root).is_none());
        let (_dir, root) = machine("proc/config.gz", b"no gzip");
        assert!(Config::of_kernel(&root).is_none());
    }
}
