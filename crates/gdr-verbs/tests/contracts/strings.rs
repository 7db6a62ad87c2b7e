//! ibv_event_type_str(3), ibv_rate_to_mult(3) and ibv_rate_to_mbps(3).

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};

use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs;

/// Returns the text at an address.
fn text(constant: *const c_char) -> &'static str {
    assert!(!constant.is_null());
    // SAFETY: a constant C string.
    unsafe { CStr::from_ptr(constant) }.to_str().unwrap()
}

#[test]
fn every_value_has_a_constant_string() {
    library();
    // SAFETY: the function accepts every number.
    let of_event = |n| text(unsafe { verbs::ibv_event_type_str(ibv_event_type(n)) });
    let distinct: BTreeSet<_> = (0..=18).map(of_event).collect();
    assert_eq!(distinct.len(), 19);
    assert_eq!(of_event(3).as_ptr(), of_event(3).as_ptr());
    for n in [19, 1000, u32::MAX] {
        assert!(!of_event(n).is_empty());
        // SAFETY: as above.
        unsafe {
            assert!(!text(verbs::ibv_wc_status_str(ibv_wc_status(n))).is_empty());
            assert!(!text(verbs::ibv_port_state_str(ibv_port_state(n))).is_empty());
            assert!(!text(verbs::ibv_node_type_str(ibv_node_type(n.cast_signed()))).is_empty());
        }
    }
}

#[test]
fn rates_are_multiples_and_megabits_and_back() {
    library();
    // SAFETY: the functions accept every number.
    unsafe {
        // `IBV_RATE_2_5_GBPS`, `IBV_RATE_10_GBPS`, `IBV_RATE_100_GBPS`.
        for (rate, mult, mbps) in [(2, 1, 2500), (3, 4, 10_000), (16, 40, 103_125)] {
            assert_eq!(verbs::ibv_rate_to_mult(rate), mult);
            assert_eq!(verbs::mult_to_ibv_rate(mult), rate);
            assert_eq!(verbs::ibv_rate_to_mbps(rate), mbps);
            assert_eq!(verbs::mbps_to_ibv_rate(mbps), rate);
        }
        assert_eq!(verbs::ibv_rate_to_mult(999), -1);
        assert_eq!(verbs::ibv_rate_to_mbps(999), -1);
        // `IBV_RATE_MAX`.
        assert_eq!(verbs::mult_to_ibv_rate(999), 0);
        assert_eq!(verbs::mbps_to_ibv_rate(7), 0);
    }
}
