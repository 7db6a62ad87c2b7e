//! Attributes and values that a device does not support, and the speed of its port.

use std::ffi::c_int;

use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::*;

use crate::side::*;

#[test]
fn attributes_of_queue_pairs_that_no_device_of_gdr_has_are_not_supported() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let (mut attr, mask) = side.change_to(ibv_qp_state::IBV_QPS_INIT, 0);
    let rate = Mask::IBV_QP_RATE_LIMIT;
    for unknown in [rate, Mask(1 << 21), Mask(1 << 26), Mask(1 << 31)] {
        let refused = side.modify(&mut attr, mask | unknown);
        let errno = refused.map_err(|error| error.errno());
        assert_eq!(errno, Err(Errno::EOPNOTSUPP), "{unknown:?}");
        assert_eq!(side.state(), ibv_qp_state::IBV_QPS_RESET);
    }
    side.modify(&mut attr, mask).unwrap();
    side.close();
}

#[test]
fn the_speed_of_the_port_is_that_of_its_lanes() {
    type Speed = unsafe extern "C" fn(*mut ibv_context, u32, *mut u64) -> c_int;
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let speed = |port| {
        let mut speed = 0;
        // SAFETY: the type of this function in rdma-core's header; the context is open.
        let queried = unsafe {
            typed_function::<Speed>(c"ibv_query_port_speed")(side.context, port, &raw mut speed)
        };
        (queried, speed)
    };
    // SAFETY: the context is open.
    let port = unsafe { library().query_port(side.context, 1) }.unwrap();
    // 4x lanes of 25 Gb/s each, in the codes of the specification.
    assert_eq!((port.active_width, port.active_speed), (2, 32));
    assert_eq!(speed(1), (0, 1000), "in units of 100 Mb/s");
    assert_eq!(speed(2).0, libc::EINVAL);
    side.close();
}
