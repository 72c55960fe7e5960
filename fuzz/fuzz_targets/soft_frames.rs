#![no_main]

#[path = "../properties/soft_frames.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
