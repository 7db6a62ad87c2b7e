//! Conversions of rates (`enum ibv_rate`).

use std::ffi::c_int;

/// Code, multiple of 2.5 Gb/s, and Mb/s of each rate; -1 where it is not a multiple.
const RATES: [(c_int, c_int, c_int); 22] = [
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10000),
    (6, 8, 20000),
    (4, 12, 30000),
    (7, 16, 40000),
    (8, 24, 60000),
    (9, 32, 80000),
    (10, 48, 120_000),
    (11, 5, 14062),
    (12, 22, 56250),
    (13, 45, 112_500),
    (14, 67, 168_750),
    (15, 10, 25781),
    (16, 40, 103_125),
    (17, 80, 206_250),
    (18, 120, 309_375),
    (19, 11, 28125),
    (20, 20, 50000),
    (21, 160, 400_000),
    (22, 240, 600_000),
    (23, -1, 800_000),
];

fn find(wanted: c_int, by: fn(&(c_int, c_int, c_int)) -> c_int) -> Option<(c_int, c_int, c_int)> {
    RATES.into_iter().find(|rate| by(rate) == wanted)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    find(rate, |rate| rate.0).map_or(-1, |rate| rate.1)
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    find(multiple, |rate| rate.1).map_or(0, |rate| rate.0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    find(rate, |rate| rate.0).map_or(-1, |rate| rate.2)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    find(mbps, |rate| rate.2).map_or(0, |rate| rate.0)
}
