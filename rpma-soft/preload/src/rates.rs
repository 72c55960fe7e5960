//! Rates of a link, as enumeration, as multiple of 2.5 Gbit/s, and in Mbit/s: the functions beside `enum ibv_rate` in verbs.h.
#![expect(unsafe_code, reason = "exports C functions of numbers alone")]

use std::ffi::c_int;

/// A rate: its number in `enum ibv_rate`, its multiple of 2.5 Gbit/s where it has one, and its Mbit/s.
type Rate = (c_int, Option<c_int>, c_int);

const RATES: [Rate; 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// `IBV_RATE_MAX`: no limit, and the answer for a rate that is not known.
const MAX: c_int = 0;

fn find(wanted: impl Fn(&Rate) -> bool) -> Option<&'static Rate> {
    RATES.iter().find(|rate| wanted(rate))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    find(|known| known.0 == rate).and_then(|known| known.1).unwrap_or(-1)
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    find(|known| known.1 == Some(mult)).map_or(MAX, |known| known.0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    find(|known| known.0 == rate).map_or(-1, |known| known.2)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    find(|known| known.2 == mbps).map_or(MAX, |known| known.0)
}
