//! Names, set operations and defaults of the generated types.

use std::fmt;
use std::mem;
use std::ops::{BitOr, BitOrAssign};

use crate::bindings::*;

/// `IBV_LINK_LAYER_UNSPECIFIED` of `ibv_port_attr.link_layer`, which has no type of its own in C.
pub const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
/// `IBV_LINK_LAYER_INFINIBAND` of `ibv_port_attr.link_layer`.
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET` of `ibv_port_attr.link_layer`.
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

/// Adds names to enumeration values. An unknown value is displayed as its number.
macro_rules! named {
    ($($type:ident { $($value:ident)* })*) => {$(
        impl $type {
            /// Returns the name of the value in C, if this crate knows it.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$value => Some(stringify!($value)),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{name} ({})", self.0),
                    None => write!(f, concat!(stringify!($type), " {}"), self.0),
                }
            }
        }
    )*};
}

named! {
    ib_uverbs_advise_mr_advice {
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE
        IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT
    }
    ibv_atomic_cap {
        IBV_ATOMIC_NONE IBV_ATOMIC_HCA IBV_ATOMIC_GLOB
    }
    ibv_event_type {
        IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR
        IBV_EVENT_COMM_EST IBV_EVENT_SQ_DRAINED IBV_EVENT_PATH_MIG IBV_EVENT_PATH_MIG_ERR
        IBV_EVENT_DEVICE_FATAL IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_LID_CHANGE
        IBV_EVENT_PKEY_CHANGE IBV_EVENT_SM_CHANGE IBV_EVENT_SRQ_ERR IBV_EVENT_SRQ_LIMIT_REACHED
        IBV_EVENT_QP_LAST_WQE_REACHED IBV_EVENT_CLIENT_REREGISTER IBV_EVENT_GID_CHANGE
        IBV_EVENT_WQ_FATAL IBV_EVENT_DEVICE_SPEED_CHANGE
    }
    ibv_fork_status {
        IBV_FORK_DISABLED IBV_FORK_ENABLED IBV_FORK_UNNEEDED
    }
    ibv_gid_type {
        IBV_GID_TYPE_IB IBV_GID_TYPE_ROCE_V1 IBV_GID_TYPE_ROCE_V2
    }
    ibv_mig_state {
        IBV_MIG_MIGRATED IBV_MIG_REARM IBV_MIG_ARMED
    }
    ibv_mtu {
        IBV_MTU_256 IBV_MTU_512 IBV_MTU_1024 IBV_MTU_2048 IBV_MTU_4096
    }
    ibv_node_type {
        IBV_NODE_UNKNOWN IBV_NODE_CA IBV_NODE_SWITCH IBV_NODE_ROUTER IBV_NODE_RNIC IBV_NODE_USNIC
        IBV_NODE_USNIC_UDP IBV_NODE_UNSPECIFIED
    }
    ibv_port_state {
        IBV_PORT_NOP IBV_PORT_DOWN IBV_PORT_INIT IBV_PORT_ARMED IBV_PORT_ACTIVE
        IBV_PORT_ACTIVE_DEFER
    }
    ibv_qp_state {
        IBV_QPS_RESET IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_SQD IBV_QPS_SQE IBV_QPS_ERR
        IBV_QPS_UNKNOWN
    }
    ibv_qp_type {
        IBV_QPT_RC IBV_QPT_UC IBV_QPT_UD IBV_QPT_RAW_PACKET IBV_QPT_XRC_SEND IBV_QPT_XRC_RECV
        IBV_QPT_DRIVER
    }
    ibv_transport_type {
        IBV_TRANSPORT_UNKNOWN IBV_TRANSPORT_IB IBV_TRANSPORT_IWARP IBV_TRANSPORT_USNIC
        IBV_TRANSPORT_USNIC_UDP IBV_TRANSPORT_UNSPECIFIED
    }
    ibv_wc_opcode {
        IBV_WC_SEND IBV_WC_RDMA_WRITE IBV_WC_RDMA_READ IBV_WC_COMP_SWAP IBV_WC_FETCH_ADD
        IBV_WC_BIND_MW IBV_WC_LOCAL_INV IBV_WC_TSO IBV_WC_FLUSH IBV_WC_ATOMIC_WRITE IBV_WC_RECV
        IBV_WC_RECV_RDMA_WITH_IMM IBV_WC_TM_ADD IBV_WC_TM_DEL IBV_WC_TM_SYNC IBV_WC_TM_RECV
        IBV_WC_TM_NO_TAG IBV_WC_DRIVER1 IBV_WC_DRIVER2 IBV_WC_DRIVER3
    }
    ibv_wc_status {
        IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR IBV_WC_LOC_EEC_OP_ERR
        IBV_WC_LOC_PROT_ERR IBV_WC_WR_FLUSH_ERR IBV_WC_MW_BIND_ERR IBV_WC_BAD_RESP_ERR
        IBV_WC_LOC_ACCESS_ERR IBV_WC_REM_INV_REQ_ERR IBV_WC_REM_ACCESS_ERR IBV_WC_REM_OP_ERR
        IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_LOC_RDD_VIOL_ERR
        IBV_WC_REM_INV_RD_REQ_ERR IBV_WC_REM_ABORT_ERR IBV_WC_INV_EECN_ERR
        IBV_WC_INV_EEC_STATE_ERR IBV_WC_FATAL_ERR IBV_WC_RESP_TIMEOUT_ERR IBV_WC_GENERAL_ERR
        IBV_WC_TM_ERR IBV_WC_TM_RNDV_INCOMPLETE
    }
    ibv_wr_opcode {
        IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM IBV_WR_SEND IBV_WR_SEND_WITH_IMM
        IBV_WR_RDMA_READ IBV_WR_ATOMIC_CMP_AND_SWP IBV_WR_ATOMIC_FETCH_AND_ADD IBV_WR_LOCAL_INV
        IBV_WR_BIND_MW IBV_WR_SEND_WITH_INV IBV_WR_TSO IBV_WR_DRIVER1 IBV_WR_FLUSH
        IBV_WR_ATOMIC_WRITE
    }
}

/// Adds set operations to flags.
macro_rules! flags {
    ($($type:ident)*) => {$(
        impl $type {
            /// The empty set.
            pub const NONE: Self = Self(0);

            /// Returns the union of both sets.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Returns whether this set contains all flags of `other`.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }

        impl BitOr for $type {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl BitOrAssign for $type {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }
    )*};
}

flags! {
    ibv_access_flags
    ibv_cq_init_attr_mask
    ibv_create_cq_attr_flags
    ibv_create_cq_wc_flags
    ibv_device_cap_flags
    ibv_mr_init_attr_mask
    ibv_odp_general_caps
    ibv_odp_transport_cap_bits
    ibv_port_cap_flags
    ibv_qp_attr_mask
    ibv_qp_create_send_ops_flags
    ibv_qp_init_attr_mask
    ibv_query_qp_data_in_order_caps
    ibv_query_qp_data_in_order_flags
    ibv_send_flags
    ibv_values_mask
    ibv_wc_flags
}

/// Adds zeros as default values, as C programs initialize these structures.
macro_rules! zeroed {
    ($($type:ident)*) => {$(
        impl Default for $type {
            fn default() -> Self {
                // SAFETY: the fields are numbers, arrays and unions of numbers, and nullable
                // pointers, so all of them may be zero.
                unsafe { mem::zeroed() }
            }
        }
    )*};
}

zeroed! {
    ibv_ah_attr
    ibv_async_event
    ibv_cq_init_attr_ex
    ibv_device_attr
    ibv_device_attr_ex
    ibv_fork_status
    ibv_gid
    ibv_gid_entry
    ibv_global_route
    ibv_mr_init_attr
    ibv_port_attr
    ibv_qp_attr
    ibv_qp_cap
    ibv_qp_init_attr
    ibv_qp_init_attr_ex
    ibv_recv_wr
    ibv_send_wr
    ibv_sge
    ibv_values_ex
    ibv_wc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source of the declarations, with lines `pub const NAME: TYPE = TYPE(VALUE);`.
    const DECLARATIONS: &str = include_str!("bindings.rs");

    fn declared(kind: &str) -> impl Iterator<Item = (&'static str, i64)> {
        let words = DECLARATIONS.split("pub const ").skip(1);
        words.filter_map(move |text| {
            let (name, rest) = text.split_once(':')?;
            let rest = rest.trim_start().strip_prefix(kind)?;
            let value = rest.trim_start().strip_prefix('=')?.trim_start();
            let value = value.strip_prefix(kind)?.strip_prefix('(')?;
            let (value, _) = value.split_once(')')?;
            Some((name, value.parse().ok()?))
        })
    }

    macro_rules! check_names {
        ($($type:ident)*) => {$({
            let mut count = 0;
            for (name, value) in declared(stringify!($type)) {
                let value = $type(value.try_into().unwrap());
                assert_eq!(value.name(), Some(name));
                count += 1;
            }
            assert!(count > 0, concat!(stringify!($type), " has no values"));
        })*};
    }

    #[test]
    fn every_value_of_the_header_has_its_name() {
        check_names! {
            ib_uverbs_advise_mr_advice
            ibv_atomic_cap
            ibv_event_type
            ibv_gid_type
            ibv_mig_state
            ibv_mtu
            ibv_node_type
            ibv_port_state
            ibv_qp_state
            ibv_qp_type
            ibv_transport_type
            ibv_wc_opcode
            ibv_wc_status
            ibv_wr_opcode
        }
    }

    #[test]
    fn an_unknown_value_is_displayed_as_a_number() {
        assert_eq!(ibv_wc_status(12).to_string(), "IBV_WC_RETRY_EXC_ERR (12)");
        assert_eq!(ibv_wc_status(77).to_string(), "ibv_wc_status 77");
        assert_eq!(ibv_node_type(-1).to_string(), "IBV_NODE_UNKNOWN (-1)");
    }

    #[test]
    fn a_set_contains_its_flags_only() {
        let mut access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        access |= ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
        assert_eq!(access.0, 1 | 1 << 20);
        assert!(access.contains(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE));
        assert!(!access.contains(ibv_access_flags::IBV_ACCESS_REMOTE_READ));
        assert!(access.contains(ibv_access_flags::NONE));
    }
}
