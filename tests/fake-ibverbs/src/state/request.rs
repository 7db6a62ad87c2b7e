//! Posted requests and receives.

use gdr_verbs_sys::{__be32, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc_opcode, ibv_wr_opcode};

/// The bytes of a request.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Inline(Vec<u8>),
    Segments(Vec<ibv_sge>),
}

impl Data {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Segments(segments) => segments.iter().map(|it| it.length as usize).sum(),
        }
    }
}

/// An address in the memory of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Send(Option<__be32>),
    Write(Target, Option<__be32>),
    Read(Target),
    Add(Target, u64),
    Swap(Target, u64, u64),
}

impl Operation {
    pub(crate) fn opcode(&self) -> ibv_wc_opcode {
        match self {
            Self::Send(_) => ibv_wc_opcode::IBV_WC_SEND,
            Self::Write(..) => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
            Self::Read(_) => ibv_wc_opcode::IBV_WC_RDMA_READ,
            Self::Add(..) => ibv_wc_opcode::IBV_WC_FETCH_ADD,
            Self::Swap(..) => ibv_wc_opcode::IBV_WC_COMP_SWAP,
        }
    }

    /// The operation of a request that was posted as a structure.
    ///
    /// # Safety
    ///
    /// The union has the fields of the operation.
    pub(crate) unsafe fn of(wr: &ibv_send_wr) -> Option<Self> {
        // SAFETY: all of the union's members are numbers.
        let (imm, rdma, atomic) =
            unsafe { (wr.__bindgen_anon_1.imm_data, wr.wr.rdma, wr.wr.atomic) };
        let target = Target {
            addr: rdma.remote_addr,
            rkey: rdma.rkey,
        };
        let word = Target {
            addr: atomic.remote_addr,
            rkey: atomic.rkey,
        };
        Some(match wr.opcode {
            ibv_wr_opcode::IBV_WR_SEND => Self::Send(None),
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => Self::Send(Some(imm)),
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => Self::Write(target, None),
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => Self::Write(target, Some(imm)),
            ibv_wr_opcode::IBV_WR_RDMA_READ => Self::Read(target),
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Self::Add(word, atomic.compare_add),
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => {
                Self::Swap(word, atomic.compare_add, atomic.swap)
            }
            _ => return None,
        })
    }
}

/// A posted request.
#[derive(Clone, Debug)]
pub(crate) struct Send {
    pub(crate) id: u64,
    /// Number of requests posted to the queue pair, including this one.
    pub(crate) count: u64,
    pub(crate) operation: Operation,
    pub(crate) data: Data,
    pub(crate) signalled: bool,
    pub(crate) solicited: bool,
}

impl Send {
    pub(crate) fn new(id: u64, flags: u32, operation: Operation, data: Data) -> Self {
        let has = |flag: ibv_send_flags| flags & flag.0 != 0;
        Self {
            id,
            count: 0,
            operation,
            data,
            signalled: has(ibv_send_flags::IBV_SEND_SIGNALED),
            solicited: has(ibv_send_flags::IBV_SEND_SOLICITED),
        }
    }
}

/// A posted receive.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) segments: Vec<ibv_sge>,
}
