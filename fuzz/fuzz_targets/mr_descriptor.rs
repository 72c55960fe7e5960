#![no_main]

#[path = "../properties/mr_descriptor.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
