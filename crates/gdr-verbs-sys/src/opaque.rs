//! Types that the generated declarations use without declaring them.

pub use libc::{pthread_cond_t, pthread_mutex_t, timespec};

pub use crate::attributes::{
    ibv_alloc_dm_attr, ibv_dm, ibv_mw_bind, ibv_parent_domain_init_attr, ibv_td, ibv_td_init_attr,
};
pub use crate::flow::{ibv_flow, ibv_flow_attr};

/// Declares types of libibverbs that are used only through pointers.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[doc = concat!("`struct ", stringify!($name), "`, used only through pointers.")]
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque! {
    _compat_ibv_port_attr
    ibv_ah
    ibv_buf
    ibv_counter_attach_attr
    ibv_counters
    ibv_counters_init_attr
    ibv_dmah
    ibv_dmah_init_attr
    ibv_flow_action
    ibv_flow_action_esp_attr
    ibv_modify_cq_attr
    ibv_ops_wr
    ibv_qp_open_attr
    ibv_qp_rate_limit_attr
    ibv_rwq_ind_table
    ibv_rwq_ind_table_init_attr
    ibv_srq
    ibv_srq_init_attr_ex
    ibv_wq
    ibv_wq_attr
    ibv_wq_init_attr
    ibv_xrcd
    ibv_xrcd_init_attr
    verbs_ex_private
}
