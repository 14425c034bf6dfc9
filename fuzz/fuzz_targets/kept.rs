#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| latpath_fuzz::kept::run(bytes));
