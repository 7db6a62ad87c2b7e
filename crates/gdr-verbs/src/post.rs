//! Posting of requests.

use std::ffi::c_int;

use gdr_nic::{AtomicOp, Immediate, Remote, Rkey, WrId, XrcSrqn};
use gdr_nic::{Data, FrameSendRequest, Operation, RecvRequest, SendRequest};
use gdr_verbs_sys::{ibv_qp, ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_wr_opcode};

use crate::errno::Errno;
use crate::memory_window::Prepared;
use crate::queue_pair::{NicPair, PAIRS, Pair};
use crate::request::{
    Destination, Gathered, Segments, bytes_at, entries, flags, post_each, segment,
};
use crate::ret::status;

/// The operation of a request.
fn operation(wr: &ibv_send_wr) -> Result<Operation, Errno> {
    // SAFETY: of each union, the members are numbers, and the opcode says which one was set.
    let (rdma, atomic, immediate, named) = unsafe {
        let which = wr.__bindgen_anon_1;
        (
            wr.wr.rdma,
            wr.wr.atomic,
            which.imm_data,
            Rkey(which.invalidate_rkey),
        )
    };
    let remote = Remote {
        rkey: Rkey(rdma.rkey),
        addr: rdma.remote_addr,
    };
    let of_atomic = Remote {
        rkey: Rkey(atomic.rkey),
        addr: atomic.remote_addr,
    };
    let immediate = Some(Immediate(u32::from_be(immediate)));
    Ok(match wr.opcode {
        ibv_wr_opcode::IBV_WR_RDMA_WRITE => Operation::Write {
            remote,
            immediate: None,
        },
        ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => Operation::Write { remote, immediate },
        ibv_wr_opcode::IBV_WR_SEND => Operation::Send { immediate: None },
        ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => Operation::Send { immediate },
        ibv_wr_opcode::IBV_WR_RDMA_READ => Operation::Read { remote },
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => Operation::Atomic {
            remote: of_atomic,
            op: AtomicOp::CompareSwap {
                compare: atomic.compare_add,
                swap: atomic.swap,
            },
        },
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::Atomic {
            remote: of_atomic,
            op: AtomicOp::FetchAdd {
                add: atomic.compare_add,
            },
        },
        ibv_wr_opcode::IBV_WR_SEND_WITH_INV => Operation::SendInvalidate { rkey: named },
        ibv_wr_opcode::IBV_WR_LOCAL_INV => Operation::Invalidate { rkey: named },
        _ => return Err(Errno::OPNOTSUPP),
    })
}

/// The peer's shared receive queue that a request of an extended connection names.
///
/// # Safety
/// The program has set it.
unsafe fn receives(wr: &ibv_send_wr) -> XrcSrqn {
    // SAFETY: the contract of this function.
    XrcSrqn::new(unsafe { wr.qp_type.xrc.remote_srqn })
}

/// The window that a request binds, if it does.
fn window(pair: &Pair, wr: &ibv_send_wr) -> Result<Option<Prepared>, Errno> {
    if wr.opcode != ibv_wr_opcode::IBV_WR_BIND_MW {
        return Ok(None);
    }
    // SAFETY: the opcode says that this member is set.
    let bind = unsafe { wr.__bindgen_anon_2.bind_mw };
    Prepared::of_type_2(pair, bind.mw, bind.rkey, &bind.bind_info).map(Some)
}

/// # Safety
/// `wr` is a list of requests of libibverbs; `bad_wr` is writable.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    status(|| {
        let mut next = wr;
        let posted = PAIRS.lend(qp).and_then(|pair| {
            let init = pair.init();
            let (most, signals_all) = (init.cap.max_send_wr, init.signals_all);
            let is_extended = init.kind == ibv_qp_type::IBV_QPT_XRC_SEND;
            let parts = |wr: &ibv_send_wr| (WrId(wr.wr_id), flags(wr.send_flags, signals_all));
            match pair.nic() {
                // SAFETY: `next` is the caller's list.
                NicPair::Connection(nic) if !is_extended && unsafe { is_single(next) } => {
                    // SAFETY: as before.
                    let wr = unsafe { &*next };
                    let operation = operation(wr)?;
                    let (id, flags) = parts(wr);
                    let push = |data: Data<'_>| {
                        let request = SendRequest {
                            id,
                            operation,
                            data,
                            flags,
                        };
                        nic.post_send(&request)
                    };
                    // SAFETY: a request of the caller's list.
                    unsafe { with_data(&pair, wr, push) }
                }
                NicPair::Connection(nic) => nic.post_sends(|queue| {
                    let post = |wr: &ibv_send_wr| {
                        let window = window(&pair, wr)?;
                        let operation = match &window {
                            Some(window) => window.operation(),
                            None => operation(wr)?,
                        };
                        let (id, flags) = parts(wr);
                        let push = |data: Data<'_>| {
                            let request = SendRequest {
                                id,
                                operation,
                                data,
                                flags,
                            };
                            match is_extended {
                                // SAFETY: a number, which the type of the queue pair says is set.
                                true => queue.push_to(unsafe { receives(wr) }, &request),
                                false => queue.push(&request),
                            }
                        };
                        // SAFETY: a request of the caller's list.
                        unsafe { with_data(&pair, wr, push) }?;
                        if let Some(window) = window {
                            window.posted();
                        }
                        Ok(())
                    };
                    // SAFETY: `next` is the caller's list.
                    unsafe { post_each(&mut next, most, post) }
                })?,
                NicPair::Datagrams(nic) => nic.post_sends(|queue| {
                    let post = |wr: &ibv_send_wr| {
                        let ((to, immediate), (id, flags)) = (datagram(wr)?, parts(wr));
                        let push =
                            |data: Data<'_>| queue.push(&to.request(id, immediate, data, flags));
                        // SAFETY: a request of the caller's list.
                        unsafe { with_data(&pair, wr, push) }
                    };
                    // SAFETY: `next` is the caller's list.
                    unsafe { post_each(&mut next, most, post) }
                })?,
                NicPair::RawPackets(nic) => nic.post_sends(|queue| {
                    let post = |wr: &ibv_send_wr| {
                        if wr.opcode != ibv_wr_opcode::IBV_WR_SEND {
                            return Err(Errno::INVAL);
                        }
                        let (id, flags) = parts(wr);
                        let push =
                            |data: Data<'_>| queue.push(&FrameSendRequest { id, data, flags });
                        // SAFETY: a request of the caller's list.
                        unsafe { with_data(&pair, wr, push) }
                    };
                    // SAFETY: `next` is the caller's list.
                    unsafe { post_each(&mut next, most, post) }
                })?,
            }
        });
        if posted.is_err() && !bad_wr.is_null() {
            // SAFETY: the contract of this function.
            unsafe { bad_wr.write(next) };
        }
        posted
    })
}

/// Whether a list is one request that changes no window.
///
/// # Safety
/// `wr` is a list of requests of libibverbs.
unsafe fn is_single(wr: *const ibv_send_wr) -> bool {
    // SAFETY: the contract of this function.
    let wr = unsafe { wr.as_ref() };
    wr.is_some_and(|wr| wr.next.is_null() && wr.opcode != ibv_wr_opcode::IBV_WR_BIND_MW)
}

/// Destination and immediate of a datagram.
fn datagram(wr: &ibv_send_wr) -> Result<(Destination, Option<Immediate>), Errno> {
    // SAFETY: of each union, the members are numbers and an address, which is looked up.
    let (ud, immediate) = unsafe { (wr.wr.ud, wr.__bindgen_anon_1.imm_data) };
    let to = Destination::of(ud.ah, ud.remote_qpn, ud.remote_qkey)?;
    match wr.opcode {
        ibv_wr_opcode::IBV_WR_SEND => Ok((to, None)),
        ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => Ok((to, Some(Immediate(u32::from_be(immediate))))),
        _ => Err(Errno::INVAL),
    }
}

/// Passes the data of a request on in the form of the engine.
///
/// # Safety
/// `wr` is a valid request of libibverbs.
unsafe fn with_data<E>(
    pair: &Pair,
    wr: &ibv_send_wr,
    push: impl FnOnce(Data<'_>) -> Result<(), E>,
) -> Result<(), Errno>
where
    Errno: From<E>,
{
    let cap = &pair.init().cap;
    // SAFETY: a valid request has as many entries as it says.
    let list = unsafe { entries(wr.sg_list, wr.num_sge, cap.max_send_sge) }?;
    if !ibv_send_flags(wr.send_flags).contains(ibv_send_flags::IBV_SEND_INLINE) {
        // The usual case, without the loop.
        if let [only] = list {
            return Ok(push(Data::Segments(&[segment(only)]))?);
        }
        let segments: Segments = list.iter().map(segment).collect();
        return Ok(push(Data::Segments(&segments))?);
    }
    let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
    if total > u64::from(cap.max_inline_data) {
        return Err(Errno::NOMEM);
    }
    if let [only] = list {
        // SAFETY: inline bytes are readable, and do not change during the call.
        let bytes = unsafe { bytes_at(only.addr, only.length as usize) };
        return Ok(push(Data::Inline(bytes))?);
    }
    let mut gathered = Gathered::new();
    for sge in list {
        // SAFETY: as for a single entry.
        gathered.extend_from_slice(unsafe { bytes_at(sge.addr, sge.length as usize) });
    }
    Ok(push(Data::Inline(&gathered))?)
}

/// # Safety
/// `wr` is a list of requests of libibverbs; `bad_wr` is writable.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    status(|| {
        let mut next = wr;
        let posted = PAIRS.lend(qp).and_then(|pair| {
            let cap = &pair.init().cap;
            pair.nic().post_recvs(|queue| {
                let post = |wr: &ibv_recv_wr| {
                    // SAFETY: a request of the caller's list has as many entries as it says.
                    let list = unsafe { entries(wr.sg_list, wr.num_sge, cap.max_recv_sge) }?;
                    let segments: Segments = list.iter().map(segment).collect();
                    queue.push(&RecvRequest {
                        id: WrId(wr.wr_id),
                        segments: &segments,
                    })?;
                    Ok(())
                };
                // SAFETY: `next` is the caller's list.
                unsafe { post_each(&mut next, cap.max_recv_wr, post) }
            })?
        });
        if posted.is_err() && !bad_wr.is_null() {
            // SAFETY: the contract of this function.
            unsafe { bad_wr.write(next) };
        }
        posted
    })
}
