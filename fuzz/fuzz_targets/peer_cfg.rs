#![no_main]

#[path = "../properties/peer_cfg.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|data: &[u8]| property::check(data));
