//! The GIDs of a port, and their indices.

use std::ffi::c_int;

use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::ibv_qp_state as State;
use gdr_verbs_sys::ibv_qp_type as Type;
use gdr_verbs_sys::*;

use crate::side::*;

/// The indices that programs for rxe and mlx5 hard-code, and the indices between them.
const INDICES: [u8; 4] = [0, 1, 2, 3];

type CreateAh = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
type DestroyAh = unsafe extern "C" fn(*mut ibv_ah) -> c_int;

fn query(side: &Side, index: u32) -> Result<ibv_gid_entry, VerbError> {
    // SAFETY: the context is open.
    unsafe { library().query_gid(side.context, 1, index) }
}

#[test]
fn every_index_that_programs_use_names_the_gid_and_the_table_lists_it_once() {
    let side = Side::new(Type::IBV_QPT_RC);
    let first = query(&side, 0).unwrap();
    for index in INDICES {
        let entry = query(&side, index.into()).unwrap();
        // SAFETY: every byte pattern of the union is valid.
        unsafe { assert_eq!(entry.gid.raw, first.gid.raw) };
        assert_eq!(entry.gid_index, u32::from(index));
        assert_eq!(entry.gid_type, ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0);
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and there is room for a GID.
        unsafe { library().ibv_query_gid(side.context, 1, index.into(), &mut gid) }.unwrap();
        // SAFETY: as above.
        unsafe { assert_eq!(gid.raw, first.gid.raw) };
    }
    let beyond = query(&side, 4).err().map(|error| error.errno());
    assert_eq!(beyond, Some(Errno::EINVAL));
    // SAFETY: the context is open.
    let port = unsafe { library().query_port(side.context, 1) }.unwrap();
    assert_eq!(port.gid_tbl_len, 1);
    let mut room = [const { std::mem::MaybeUninit::uninit() }; 8];
    // SAFETY: as above.
    let listed = unsafe { library().query_gid_table(side.context, &mut room) }.unwrap();
    let listed: Vec<_> = listed.iter().map(|entry| entry.gid_index).collect();
    assert_eq!(listed, [0]);
    side.close();
}

#[test]
fn a_connection_and_an_address_handle_may_name_any_of_these_indices() {
    let mut words = [0; 2];
    for index in INDICES {
        let (a, b) = (Side::new(Type::IBV_QPT_RC), Side::new(Type::IBV_QPT_RC));
        for (side, peer) in [(&a, &b), (&b, &a)] {
            side.to_init().unwrap();
            let (mut attr, mask) = side.change_to(State::IBV_QPS_RTR, peer.number());
            attr.ah_attr.grh.sgid_index = INDICES.len() as u8;
            let refused = side.modify(&mut attr, mask).unwrap_err();
            assert_eq!(refused.errno(), Errno::EINVAL);
            attr.ah_attr.grh.sgid_index = index;
            side.modify(&mut attr, mask).unwrap();
            side.to_rts().unwrap();
            assert_eq!(side.attributes().ah_attr.grh.sgid_index, index);
        }
        let region = b.register(&mut words);
        b.receive(1, &mut [segment(region, 0, 16)]).unwrap();
        let wr = ibv_send_wr {
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            ..Default::default()
        };
        a.send(wr, &mut []).unwrap();
        assert_eq!(b.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
        let mut path = a.path();
        path.grh.sgid_index = index;
        // SAFETY: the functions have these types; the domain exists, and the handle is destroyed once.
        unsafe {
            let handle = typed_function::<CreateAh>(c"ibv_create_ah")(a.domain, &mut path);
            assert!(!handle.is_null(), "{index}");
            assert_eq!(typed_function::<DestroyAh>(c"ibv_destroy_ah")(handle), 0);
            path.grh.sgid_index = INDICES.len() as u8;
            let refused = typed_function::<CreateAh>(c"ibv_create_ah")(a.domain, &mut path);
            assert!(refused.is_null());
        }
        deregister(region);
        a.close();
        b.close();
    }
}

#[test]
fn a_queue_pair_takes_every_access_flag_and_a_region_only_those_that_work() {
    use ibv_access_flags as Flags;
    let all = [
        (Flags::IBV_ACCESS_MW_BIND, Ok(())),
        (Flags::IBV_ACCESS_ON_DEMAND, Ok(())),
        (Flags::IBV_ACCESS_FLUSH_GLOBAL, Ok(())),
        (Flags::IBV_ACCESS_FLUSH_PERSISTENT, Err(Errno::EOPNOTSUPP)),
    ];
    let side = Side::new(Type::IBV_QPT_RC);
    let mut words = [0_u64; 2];
    for (flag, expected) in all {
        let flags = all_access() | flag;
        let (mut attr, mask) = side.change_to(State::IBV_QPS_INIT, 0);
        attr.qp_access_flags = flags.0;
        side.modify(&mut attr, mask).unwrap();
        assert_eq!(side.attributes().qp_access_flags, flags.0);
        side.to_state(State::IBV_QPS_RESET).unwrap();
        let address = words.as_mut_ptr().cast();
        // SAFETY: the words outlive the region.
        let region = unsafe { library().reg_mr(side.domain, address, 16, flags) };
        let made = region.map(deregister).map_err(|error| error.errno());
        assert_eq!(made, expected, "{flag:?}");
    }
    let (mut attr, mask) = side.change_to(State::IBV_QPS_INIT, 0);
    attr.qp_access_flags = all_access().0 | 1 << 12;
    let refused = side.modify(&mut attr, mask | Mask::IBV_QP_STATE);
    assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
    side.close();
}
