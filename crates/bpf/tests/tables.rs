//! Checks that hash tables are read completely.

use latpath_bpf::{bytes_of, entries};
use latpath_testkit::{equal, need_root, trial, Failed};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::process::ExitCode;

fn main() -> ExitCode {
    let needs = [need_root()];
    latpath_testkit::main(vec![trial("all_entries_of_a_large_table_are_read", &needs, large)])
}

fn large() -> Result<(), Failed> {
    const ENTRIES: u32 = 50_000;
    // SAFETY: plain numbers, all of which may be 0.
    let mut options: libbpf_sys::bpf_map_create_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of::<libbpf_sys::bpf_map_create_opts>() as _;
    let table = MapHandle::create(MapType::Hash, Some("lp_test"), 4, 8, 1 << 16, &options)?;
    equal("entries of an empty table", entries::<u32, u64>(&table).len(), 0)?;
    for key in 0..ENTRIES {
        table.update(bytes_of(&key), bytes_of(&u64::from(key)), MapFlags::ANY)?;
    }
    let mut all = entries::<u32, u64>(&table);
    all.sort_unstable();
    equal("entries", all == (0..ENTRIES).map(|key| (key, u64::from(key))).collect::<Vec<_>>(), true)
}
