//! The objects of a device.

use std::ffi::c_int;
use std::ptr;

use gdr_verbs_sys::*;

/// The objects that a program creates on a device.
pub(crate) struct Objects {
    pub(crate) context: *mut ibv_context,
    pub(crate) domain: *mut ibv_pd,
    pub(crate) region: *mut ibv_mr,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) queue: *mut ibv_cq,
    pub(crate) pair: *mut ibv_qp,
}

impl Objects {
    pub(crate) fn new(verbs: &Verbs, context: *mut ibv_context, words: &mut [u64]) -> Self {
        // SAFETY: each object outlives the objects created from it, and `words` outlives the region.
        unsafe {
            let domain = verbs.ibv_alloc_pd(context).unwrap().as_ptr();
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
            let (address, len) = (words.as_mut_ptr().cast(), size_of_val(words));
            let region = verbs.reg_mr(domain, address, len, access).unwrap().as_ptr();
            let channel = verbs.ibv_create_comp_channel(context).unwrap().as_ptr();
            let queue = verbs
                .ibv_create_cq(context, 16, ptr::null_mut(), channel, 0)
                .unwrap()
                .as_ptr();
            let mut attr = ibv_qp_init_attr {
                send_cq: queue,
                recv_cq: queue,
                qp_type: ibv_qp_type::IBV_QPT_RC,
                ..Default::default()
            };
            attr.cap.max_send_wr = 4;
            attr.cap.max_recv_wr = 4;
            attr.cap.max_send_sge = 1;
            attr.cap.max_recv_sge = 1;
            let pair = verbs.ibv_create_qp(domain, &mut attr).unwrap().as_ptr();
            Self {
                context,
                domain,
                region,
                channel,
                queue,
                pair,
            }
        }
    }

    /// Moves the queue pair to INIT; returns its state.
    pub(crate) fn initialized(&self, verbs: &Verbs) -> ibv_qp_state {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: 1,
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        let mut made = ibv_qp_init_attr::default();
        // SAFETY: the queue pair is alive, and the attributes are writable.
        unsafe {
            verbs
                .ibv_modify_qp(self.pair, &mut attr, mask.0 as c_int)
                .unwrap();
            verbs
                .ibv_query_qp(self.pair, &mut attr, mask.0 as c_int, &mut made)
                .unwrap();
        }
        attr.qp_state
    }

    pub(crate) fn close(&self, verbs: &Verbs) {
        // SAFETY: each object is destroyed before what it depends on.
        unsafe {
            verbs.ibv_destroy_qp(self.pair).unwrap();
            verbs.ibv_destroy_cq(self.queue).unwrap();
            verbs.ibv_destroy_comp_channel(self.channel).unwrap();
            verbs.ibv_dereg_mr(self.region).unwrap();
            verbs.ibv_dealloc_pd(self.domain).unwrap();
            verbs.ibv_close_device(self.context).unwrap();
        }
    }

    /// Asserts that every function refuses the objects.
    pub(crate) fn assert_unknown(&self, verbs: &Verbs) {
        let mut word = 0_u64;
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        // SAFETY: handles, which the library checks, and memory that outlives the calls.
        let refused = unsafe {
            [
                verbs.ibv_destroy_qp(self.pair).err(),
                verbs.ibv_destroy_cq(self.queue).err(),
                verbs.ibv_destroy_comp_channel(self.channel).err(),
                verbs.ibv_dereg_mr(self.region).err(),
                verbs
                    .reg_mr(self.domain, (&raw mut word).cast(), 8, access)
                    .err(),
                verbs.ibv_dealloc_pd(self.domain).err(),
                verbs.ibv_alloc_pd(self.context).err(),
                verbs.ibv_create_comp_channel(self.context).err(),
                verbs.query_gid(self.context, 1, 0).err(),
                verbs.ibv_close_device(self.context).err(),
            ]
        };
        let errnos = refused.map(|error| error.map(|error| error.errno()));
        assert_eq!(errnos, [Some(Errno::EINVAL); 10]);
    }
}
