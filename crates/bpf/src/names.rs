//! Names for the kernel's numbers: functions, drop reasons, interrupts.

use latpath_linux::interrupts::lines;
use latpath_model::text::printable;
use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// Kernel functions by address. There are some 100,000, so their names share one buffer.
#[derive(Default)]
pub struct Functions {
    /// Address of each function, and the offset of its name in `names`; sorted by address.
    by_address: Vec<(u64, u32)>,
    /// Names, one per line.
    names: String,
}

impl Functions {
    /// Reads the running kernel's functions, which takes about 0.1 s. Returns an empty table if the kernel hides addresses.
    pub fn read() -> Arc<Self> {
        let read = Arc::new(Self::from_kallsyms());
        *lock_latest() = Arc::downgrade(&read);
        read
    }

    /// The functions as this process last read them, if another part of it still holds them (some 5 MiB); otherwise
    /// reads them.
    pub fn latest() -> Arc<Self> {
        let held = lock_latest().upgrade();
        held.unwrap_or_else(Self::read)
    }

    fn from_kallsyms() -> Self {
        let Ok(file) = fs::File::open("/proc/kallsyms") else { return Self::default() };
        let mut file = BufReader::with_capacity(1 << 16, file);
        let (mut found, mut line) = (Self::default(), String::new());
        while file.read_line(&mut line).is_ok_and(|n| n > 0) {
            found.add_symbol(&line);
            line.clear();
        }
        found.sorted()
    }

    /// Adds a line of /proc/kallsyms if it describes a function.
    fn add_symbol(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let (Some(address), Some("t" | "T"), Some(name)) = (words.next(), words.next(), words.next()) else { return };
        match u64::from_str_radix(address, 16) {
            Ok(0) | Err(_) => {}
            Ok(address) => self.add(address, name),
        }
    }

    fn add(&mut self, address: u64, name: &str) {
        // Fails only if the names exceed 4 GiB.
        let Ok(place) = u32::try_from(self.names.len()) else { return };
        self.by_address.push((address, place));
        self.names.extend(name.split('\n'));
        self.names.push('\n');
    }

    fn sorted(mut self) -> Self {
        // The sort is stable, so if an address has several names, the first one is kept.
        self.by_address.sort_by_key(|(address, _)| *address);
        self.by_address.dedup_by_key(|(address, _)| *address);
        self.by_address.shrink_to_fit();
        self.names.shrink_to_fit();
        self
    }

    /// Creates a table of functions that another machine reported or a recording contains.
    pub fn named(functions: impl IntoIterator<Item = (u64, String)>) -> Self {
        let mut named = Self::default();
        functions.into_iter().for_each(|(address, name)| named.add(address, &name));
        named.sorted()
    }

    /// The function that contains an address.
    pub fn find(&self, address: u64) -> Option<&str> {
        let after = self.by_address.partition_point(|(a, _)| *a <= address);
        let (start, place) = self.by_address[after.checked_sub(1)?];
        // No function is longer than 1 MiB: the address is in a gap.
        (address - start < 1 << 20).then(|| self.names[place as usize..].lines().next()).flatten()
    }

    /// The function that begins exactly at an address. For addresses in modules loaded later, the nearest known
    /// function would be a wrong one.
    pub fn at(&self, address: u64) -> Option<&str> {
        let place = self.by_address.binary_search_by_key(&address, |(a, _)| *a).ok()?;
        self.names[self.by_address[place].1 as usize..].lines().next()
    }

    /// The name of the function that contains an address, or else the address in hexadecimal.
    pub fn name(&self, address: u64) -> String {
        self.find(address).map_or_else(|| format!("{address:#x}"), str::to_string)
    }
}

/// The functions that this process read last, unless it has dropped them.
static LATEST: Mutex<Weak<Functions>> = Mutex::new(Weak::new());

fn lock_latest() -> MutexGuard<'static, Weak<Functions>> {
    // Each change is one assignment.
    LATEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Names of `enum skb_drop_reason`, from the kernel's BTF.
#[derive(Default)]
pub struct Reasons {
    names: HashMap<u32, String>,
}

impl Reasons {
    /// Reads the names from the running kernel; empty before Linux 5.17.
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

    /// The name of a drop reason as encoded by the programs: subsystem in the top 4 bits, code in the low 12.
    pub fn name(&self, packed: u16) -> String {
        match (self.names.get(&u32::from(packed)), packed >> 12) {
            (Some(name), _) => name.clone(),
            (None, 0) => "unknown".into(),
            (None, subsystem) => format!("subsystem {subsystem} reason {}", packed & 0xfff),
        }
    }
}

/// Names of this machine's interrupts by number.
pub fn interrupts() -> HashMap<u32, String> {
    irqs(&fs::read_to_string("/proc/interrupts").unwrap_or_default())
}

fn irqs(text: &str) -> HashMap<u32, String> {
    let named = lines(text).filter_map(|line| {
        let number = line.label.parse().ok()?;
        // Skips the chip, the hardware interrupt number, and the trigger (`2-edge` on x86, `Level` elsewhere).
        let names = line.words.split_whitespace().skip(1).skip_while(|word| is_trigger(word));
        let name = names.collect::<Vec<_>>().join(" ");
        (!name.is_empty()).then_some((number, printable(&name)))
    });
    named.collect()
}

fn is_trigger(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_digit())
        || ["edge", "level", "fasteoi", "Edge", "Level"].iter().any(|kind| {
            word.strip_suffix(kind)
                .is_some_and(|n| n.is_empty() || n.trim_end_matches('-').chars().all(|c| c.is_ascii_digit()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_have_their_devices_names() {
        let text = "           CPU0       CPU1       \n  4:          0       1234  IR-IO-APIC    4-edge      ttyS0\n \
                    25:   12   3   PCI-MSIX-0000:00:03.0   1-edge      virtio0-input.0\n \
                    26:   12   3   GICv3  27 Level     arch_timer\n 9: 1 2 IO-APIC 9-fasteoi acpi, other\nNMI: 1 2 Non-maskable interrupts\n 30: 1";
        let irqs = irqs(text);
        assert_eq!(irqs[&4], "ttyS0");
        assert_eq!(irqs[&25], "virtio0-input.0");
        assert_eq!(irqs[&26], "arch_timer");
        assert_eq!(irqs[&9], "acpi, other");
        assert_eq!(irqs.len(), 4);
    }

    #[test]
    fn an_address_inside_a_function_has_its_name() {
        let f = Functions::named([(0x2000, "second".into()), (0x1000, "first".into())]);
        assert_eq!(f.name(0x1fff), "first");
        assert_eq!(f.name(0x2000), "second");
        assert_eq!(f.name(0x10), "0x10");
        assert_eq!(f.name(0x9_0000_0000), "0x900000000");
        assert_eq!([0x2000, 0x2004, 0x1fff].map(|address| f.at(address)), [Some("second"), None, None]);
    }

    #[test]
    fn functions_are_read_from_the_kernels_table() {
        let mut f = Functions::default();
        let lines =
            "ffff2000 t b\t[kvm]\nffff1000 T a\nffff1000 T alias\n00000000 T hidden\nffff3000 d data\nrubbish\n";
        lines.lines().for_each(|line| f.add_symbol(line));
        let f = f.sorted();
        assert_eq!(["a", "b"].map(Some), [0xffff_1004, 0xffff_3000].map(|address| f.find(address)));
        assert_eq!((f.find(0xfff), f.find(0)), (None, None));
    }

    #[test]
    fn functions_are_read_again_only_when_nobody_holds_them() {
        let held = Functions::read();
        assert!(Arc::ptr_eq(&held, &Functions::latest()));
        drop(held);
        assert!(lock_latest().upgrade().is_none());
        let read = Functions::latest();
        assert!(Arc::ptr_eq(&read, &Functions::latest()));
    }

    #[test]
    fn reasons_of_subsystems_are_told_apart() {
        let r = Reasons { names: HashMap::from([(5, "NO_SOCKET".to_string())]) };
        assert_eq!(r.name(5), "NO_SOCKET");
        assert_eq!(r.name(99), "unknown");
        assert_eq!(r.name(0x3005), "subsystem 3 reason 5");
    }
}
