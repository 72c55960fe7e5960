#![no_main]

#[path = "../properties/soft_session.rs"]
mod property;
#[path = "../properties/soft_region.rs"]
mod soft_region;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
