//! Names for what the kernel gives as numbers: namespaces, functions, drop reasons.

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt};

/// Inode numbers of the named network namespaces, and of our own (as the empty name).
pub fn namespaces() -> HashMap<u32, String> {
    let mut found = HashMap::new();
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        if let Ok(meta) = fs::metadata(entry.path()) {
            found.insert(meta.ino() as u32, entry.file_name().to_string_lossy().into_owned());
        }
    }
    if let Ok(meta) = fs::metadata("/proc/self/ns/net") {
        found.insert(meta.ino() as u32, String::new());
    }
    found
}

/// Kernel functions by address.
#[derive(Default)]
pub struct Functions {
    by_address: Vec<(u64, String)>,
}

impl Functions {
    /// Reads /proc/kallsyms. Empty where the kernel hides addresses.
    pub fn read() -> Self {
        let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let mut by_address: Vec<_> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let address = u64::from_str_radix(words.next()?, 16).ok()?;
                let kind = words.next()?;
                (address != 0 && matches!(kind, "t" | "T")).then(|| (address, words.next().unwrap_or("").to_string()))
            })
            .collect();
        by_address.sort_unstable();
        by_address.dedup_by_key(|(address, _)| *address);
        Self { by_address }
    }

    /// Functions that another machine told, or this one before.
    pub fn told(functions: impl IntoIterator<Item = (u64, String)>) -> Self {
        let mut by_address: Vec<_> = functions.into_iter().collect();
        by_address.sort_unstable();
        Self { by_address }
    }

    /// The function that an address lies in.
    pub fn find(&self, address: u64) -> Option<&str> {
        let after = self.by_address.partition_point(|(a, _)| *a <= address);
        let (start, name) = &self.by_address[after.checked_sub(1)?];
        // A gap of a megabyte is no function.
        (address - start < 1 << 20).then_some(name)
    }

    /// The function that an address lies in, or the address itself.
    pub fn name(&self, address: u64) -> String {
        self.find(address).map_or_else(|| format!("{address:#x}"), str::to_string)
    }
}

/// The names of `enum skb_drop_reason`, from the kernel's own type information.
#[derive(Default)]
pub struct Reasons {
    names: HashMap<u32, String>,
}

impl Reasons {
    /// Reads them from the running kernel; empty before 5.17.
    pub fn read() -> Self {
        use libbpf_rs::btf::{types::Enum, Btf};
        let names = Btf::from_vmlinux().ok().and_then(|btf| {
            let reasons: Enum<'_> = btf.type_by_name("skb_drop_reason")?;
            let name = |m: libbpf_rs::btf::types::EnumMember<'_>| {
                let text = m.name?.to_string_lossy().into_owned();
                let short = text.strip_prefix("SKB_DROP_REASON_").or(text.strip_prefix("SKB_"))?.to_string();
                Some((m.value as u32, short))
            };
            Some(reasons.iter().filter_map(name).collect())
        });
        Self { names: names.unwrap_or_default() }
    }

    /// A reason's name, as packed by the kernel program: 4 bits of subsystem, 12 of code.
    pub fn name(&self, packed: u16) -> String {
        match (self.names.get(&u32::from(packed)), packed >> 12) {
            (Some(name), _) => name.clone(),
            (None, 0) => "unknown".into(),
            (None, subsystem) => format!("subsystem {subsystem} reason {}", packed & 0xfff),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_inside_a_function_has_its_name() {
        let f = Functions { by_address: vec![(0x1000, "first".into()), (0x2000, "second".into())] };
        assert_eq!(f.name(0x1fff), "first");
        assert_eq!(f.name(0x2000), "second");
        assert_eq!(f.name(0x10), "0x10");
        assert_eq!(f.name(0x9_0000_0000), "0x900000000");
    }

    #[test]
    fn reasons_of_subsystems_are_told_apart() {
        let r = Reasons { names: HashMap::from([(5, "NO_SOCKET".to_string())]) };
        assert_eq!(r.name(5), "NO_SOCKET");
        assert_eq!(r.name(99), "unknown");
        assert_eq!(r.name(0x3005), "subsystem 3 reason 5");
    }
}
