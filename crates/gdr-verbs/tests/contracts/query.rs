//! ibv_query_device(3), ibv_query_port(3), ibv_query_gid(3), ibv_query_pkey(3) and similar functions.

use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs::{self, errno};

#[test]
fn what_is_within_the_limits_of_the_device_can_be_created() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let mut attr = ibv_device_attr::default();
    // SAFETY: the context is open, and the objects are alive.
    unsafe {
        assert_eq!(verbs::ibv_query_device(side.context, &mut attr), 0);
        let queue = verbs::ibv_create_cq(
            side.context,
            attr.max_cqe,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
        );
        let mut init = ibv_qp_init_attr {
            send_cq: queue,
            recv_cq: queue,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        init.cap.max_send_wr = attr.max_qp_wr as u32;
        init.cap.max_recv_wr = attr.max_qp_wr as u32;
        init.cap.max_send_sge = attr.max_sge as u32;
        init.cap.max_recv_sge = attr.max_sge as u32;
        let pair = verbs::ibv_create_qp(side.domain, &mut init);
        assert!(!pair.is_null());
        assert_eq!(verbs::ibv_destroy_qp(pair), 0);
        assert_eq!(verbs::ibv_destroy_cq(queue), 0);
        let gone = verbs::ibv_query_device(side.domain.cast(), &mut attr);
        assert_eq!(gone, libc::EINVAL);
    }
    side.close();
}

#[test]
fn queries_of_what_is_not_there_return_as_their_pages_say() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let (mut port, mut gid) = (ibv_port_attr::default(), ibv_gid { raw: [0; 16] });
    let (mut pkey, mut entry) = (0, ibv_gid_entry::default());
    let (context, size) = (side.context, size_of::<ibv_gid_entry>());
    // SAFETY: the context is open, and the results have room.
    unsafe {
        // These return 0 or the value of errno.
        assert_eq!(verbs::ibv_query_port(context, 1, &mut port), 0);
        assert_eq!(verbs::ibv_query_port(context, 2, &mut port), libc::EINVAL);
        let query = verbs::_ibv_query_gid_ex;
        assert_eq!(query(context, 1, 0, &mut entry, 0, size), 0);
        let beyond = port.gid_tbl_len as u32 + 200;
        assert_eq!(query(context, 1, beyond, &mut entry, 0, size), libc::EINVAL);
        assert_eq!(query(context, 2, 0, &mut entry, 0, size), libc::EINVAL);
        // These return 0 or -1.
        assert_eq!(verbs::ibv_query_gid(context, 1, 0, &mut gid), 0);
        assert_eq!(gid.raw, entry.gid.raw);
        assert_eq!(verbs::ibv_query_gid(context, 1, -1, &mut gid), -1);
        assert_eq!(verbs::ibv_query_gid(context, 2, 0, &mut gid), -1);
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(verbs::ibv_query_pkey(context, 1, 0, &mut pkey), 0);
        assert_eq!(verbs::ibv_query_pkey(context, 1, 99, &mut pkey), -1);
        // This returns the index or -1.
        assert_eq!(verbs::ibv_get_pkey_index(context, 1, pkey), 0);
        assert_eq!(
            verbs::ibv_get_pkey_index(context, 1, 0x1234_u16.to_be()),
            -1
        );
        // This returns the number of entries, limited by the room, or a negative errno.
        let table = verbs::_ibv_query_gid_table;
        assert_eq!(table(context, &mut entry, 1, 0, size), 1);
        let refused = table(context, &mut entry, 1, 1, size);
        assert_eq!(refused, -(libc::EINVAL as isize));
    }
    side.close();
}

#[test]
fn no_order_of_data_is_promised_and_the_clock_goes_on() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let write = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    // SAFETY: queue pair and context are alive.
    unsafe {
        assert_eq!(verbs::ibv_query_qp_data_in_order(side.pair, write, 0), 0);
        let mut values = ibv_values_ex {
            comp_mask: ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0,
            ..Default::default()
        };
        let mut last = (0, 0);
        for _ in 0..3 {
            ibv_query_rt_values_ex(side.context, &mut values).unwrap();
            let now = (values.raw_clock.tv_sec, values.raw_clock.tv_nsec);
            assert!(now > last && values.comp_mask == ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0);
            last = now;
        }
        values.comp_mask = 0;
        ibv_query_rt_values_ex(side.context, &mut values).unwrap();
        assert_eq!(values.comp_mask, 0);
    }
    side.close();
}
