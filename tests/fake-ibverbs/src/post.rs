//! Posting requests.

use std::ffi::c_int;

use gdr_verbs_sys::{
    __be32, ibv_qp, ibv_qp_state as State, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge,
    ibv_wc_opcode, ibv_wr_opcode,
};

use crate::answer::{Errno, Outcome, status};
use crate::dma;
use crate::pair::Receive;
use crate::wire;
use crate::world::World;

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

/// A place of the peer.
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

    /// What a request that was posted as a structure is to do.
    ///
    /// # Safety
    ///
    /// What the operation needs is set in the union.
    unsafe fn of(wr: &ibv_send_wr) -> Option<Self> {
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
    /// How many were posted to the queue pair, with this one.
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

/// Copies bytes that a request is to carry itself.
///
/// # Safety
///
/// As posting: the bytes are the program's, who does not change them meanwhile.
pub(crate) unsafe fn copy_inline(world: &mut World, verb: &str, segments: &[(u64, usize)]) -> Data {
    let mut bytes = Vec::new();
    for (addr, len) in segments {
        let address = *addr as usize;
        if !dma::is_mapped(address, *len) {
            world.violation(verb, "inline bytes are not in this process' memory");
            continue;
        }
        let start = bytes.len();
        bytes.resize(start + len, 0);
        // SAFETY: mapped, and this function's contract.
        unsafe { dma::load(address, &mut bytes[start..]) };
    }
    Data::Inline(bytes)
}

impl World {
    /// Adds a request to a send queue.
    pub(crate) fn enqueue(&mut self, verb: &str, number: u32, mut send: Send) -> Outcome<()> {
        let pair = self.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        let (cap, state, device) = (pair.cap, pair.state, pair.device);
        if !matches!(state, State::IBV_QPS_RTS | State::IBV_QPS_ERR) {
            return Err(libc::EINVAL);
        }
        let fits = match &send.data {
            Data::Inline(bytes) => bytes.len() <= cap.max_inline_data as usize,
            Data::Segments(segments) => segments.len() <= cap.max_send_sge as usize,
        };
        let reads = matches!(
            send.operation,
            Operation::Read(_) | Operation::Add(..) | Operation::Swap(..)
        );
        if !fits || reads && matches!(send.data, Data::Inline(_)) {
            return Err(libc::EINVAL);
        }
        if !pair.has_room(1) {
            return Err(libc::ENOMEM);
        }
        pair.posted += 1;
        send.count = pair.posted;
        send.signalled |= pair.signal_all;
        let detail = format!("{:?}, {} bytes", send.operation, send.data.len());
        pair.sends.push_back(send);
        self.note(verb, device, detail)?;
        if state == State::IBV_QPS_ERR {
            self.flush(number);
        }
        Ok(())
    }
}

/// # Safety
///
/// The list is readable, and as posting it in C asks for; `bad` is writable.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let verb = "ibv_post_send";
    status(|world| {
        let mut next = first;
        let outcome = loop {
            if next.is_null() {
                break Ok(());
            }
            // SAFETY: this function's contract.
            let wr = unsafe { next.read() };
            // SAFETY: this function's contract.
            if let Err(errno) = unsafe { post_one(world, verb, qp, &wr) } {
                break Err(errno);
            }
            next = wr.next;
        };
        // SAFETY: this function's contract.
        unsafe { bad.write(next) };
        wire::advance(world);
        outcome
    })
}

/// # Safety
///
/// As [`post_send`].
unsafe fn post_one(
    world: &mut World,
    verb: &str,
    qp: *mut ibv_qp,
    wr: &ibv_send_wr,
) -> Result<(), Errno> {
    let (number, _) = world.pair(verb, qp.addr())?;
    // SAFETY: this function's contract.
    let operation = unsafe { Operation::of(wr) }.ok_or(libc::EINVAL)?;
    // SAFETY: this function's contract.
    let segments = unsafe { segments(wr.sg_list, wr.num_sge) }?;
    let data = if wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
        let pieces: Vec<_> = segments
            .iter()
            .map(|it| (it.addr, it.length as usize))
            .collect();
        // SAFETY: this function's contract.
        unsafe { copy_inline(world, verb, &pieces) }
    } else {
        Data::Segments(segments)
    };
    world.enqueue(
        verb,
        number,
        Send::new(wr.wr_id, wr.send_flags, operation, data),
    )
}

/// # Safety
///
/// There are `count` entries at `list`.
unsafe fn segments(list: *const ibv_sge, count: c_int) -> Outcome<Vec<ibv_sge>> {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
    // SAFETY: this function's contract.
    Ok((0..count).map(|i| unsafe { list.add(i).read() }).collect())
}

/// # Safety
///
/// As [`post_send`].
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let verb = "ibv_post_recv";
    status(|world| {
        let mut next = first;
        let outcome = loop {
            if next.is_null() {
                break Ok(());
            }
            // SAFETY: this function's contract.
            let wr = unsafe { next.read() };
            // SAFETY: this function's contract.
            let posted = unsafe { segments(wr.sg_list, wr.num_sge) };
            let id = wr.wr_id;
            let receive = posted.map(|segments| Receive { id, segments });
            if let Err(errno) = receive.and_then(|it| add_receive(world, verb, qp, it)) {
                break Err(errno);
            }
            next = wr.next;
        };
        // SAFETY: this function's contract.
        unsafe { bad.write(next) };
        wire::advance(world);
        outcome
    })
}

fn add_receive(
    world: &mut World,
    verb: &str,
    qp: *mut ibv_qp,
    receive: Receive,
) -> Result<(), Errno> {
    let (number, device) = world.pair(verb, qp.addr())?;
    let pair = world.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
    if pair.state == State::IBV_QPS_RESET
        || receive.segments.len() > pair.cap.max_recv_sge.max(1) as usize
    {
        return Err(libc::EINVAL);
    }
    if pair.receives.len() >= pair.cap.max_recv_wr as usize {
        return Err(libc::ENOMEM);
    }
    let broken = pair.state == State::IBV_QPS_ERR;
    let detail = format!("{} segments", receive.segments.len());
    pair.receives.push_back(receive);
    world.note(verb, device, detail)?;
    if broken {
        world.flush(number);
    }
    Ok(())
}
