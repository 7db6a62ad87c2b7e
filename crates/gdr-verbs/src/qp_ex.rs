//! Extended queue pairs, whose requests are built by a call for each part.

use std::ffi::{c_int, c_void};
use std::slice;

use gdr_nic::{AtomicOp, Feth, Immediate, Lkey, Remote, Rkey, WrId, XrcSrqn};
use gdr_nic::{Data, FrameSendRequest, Operation, Segment, SendFlags, SendRequest};
use gdr_verbs_sys::{
    __be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp,
    ibv_qp_create_send_ops_flags as Operations, ibv_qp_ex, ibv_qp_type, ibv_sge,
};

use crate::errno::Errno;
use crate::memory_window::Prepared;
use crate::queue_pair::{NicPair, Pair};
use crate::request::{Destination, Gathered, Segments, bytes_at, flags, segment};
use crate::ret::{plain, status};
use crate::slab::is_own;
use crate::system::forward;

/// The operations of reliable connections.
const KNOWN: u64 = KNOWN_OF_UC
    | Operations::IBV_QP_EX_WITH_RDMA_READ.0 as u64
    | Operations::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0 as u64
    | Operations::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0 as u64
    | Operations::IBV_QP_EX_WITH_SEND_WITH_INV.0 as u64
    | Operations::IBV_QP_EX_WITH_FLUSH.0 as u64
    | Operations::IBV_QP_EX_WITH_ATOMIC_WRITE.0 as u64;

/// The operations of unreliable connections.
const KNOWN_OF_UC: u64 = KNOWN_OF_UD
    | Operations::IBV_QP_EX_WITH_RDMA_WRITE.0 as u64
    | Operations::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0 as u64
    | Operations::IBV_QP_EX_WITH_LOCAL_INV.0 as u64
    | Operations::IBV_QP_EX_WITH_BIND_MW.0 as u64;

/// The operations of datagrams.
const KNOWN_OF_UD: u64 =
    Operations::IBV_QP_EX_WITH_SEND.0 as u64 | Operations::IBV_QP_EX_WITH_SEND_WITH_IMM.0 as u64;

/// The operations of raw packets.
const KNOWN_OF_RAW_PACKETS: u64 = Operations::IBV_QP_EX_WITH_SEND.0 as u64;

/// Requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Default)]
pub(crate) struct Builder {
    /// Their memory is used again by the next batch.
    requests: Vec<Built>,
    /// The first error; the whole batch is refused then.
    failed: Option<Errno>,
    /// The memory windows that they bind.
    windows: Vec<Prepared>,
}

#[derive(Debug)]
struct Built {
    id: WrId,
    flags: SendFlags,
    operation: Operation,
    data: BuiltData,
    /// Where a datagram goes.
    to: Option<Destination>,
    /// The peer's shared receive queue that a request of an extended connection names.
    receives: Option<XrcSrqn>,
}

#[derive(Debug)]
enum BuiltData {
    Segments(Segments),
    Inline(Gathered),
}

/// Sets the functions of a queue pair according to its operations.
///
/// # Errors
/// `EOPNOTSUPP` for operations that there are not.
pub(crate) fn fill(qp: &mut ibv_qp_ex, kind: ibv_qp_type, operations: u64) -> Result<(), Errno> {
    let known = match kind {
        ibv_qp_type::IBV_QPT_UD => KNOWN_OF_UD,
        ibv_qp_type::IBV_QPT_RAW_PACKET => KNOWN_OF_RAW_PACKETS,
        ibv_qp_type::IBV_QPT_UC => KNOWN_OF_UC,
        ibv_qp_type::IBV_QPT_XRC_RECV => 0,
        _ => KNOWN,
    };
    if operations & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let has = |operation: Operations| operations & u64::from(operation.0) != 0;
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    if has(Operations::IBV_QP_EX_WITH_SEND) {
        qp.wr_send = Some(wr_send);
    }
    if has(Operations::IBV_QP_EX_WITH_SEND_WITH_IMM) {
        qp.wr_send_imm = Some(wr_send_imm);
    }
    if has(Operations::IBV_QP_EX_WITH_RDMA_WRITE) {
        qp.wr_rdma_write = Some(wr_rdma_write);
    }
    if has(Operations::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) {
        qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    }
    if has(Operations::IBV_QP_EX_WITH_RDMA_READ) {
        qp.wr_rdma_read = Some(wr_rdma_read);
    }
    if has(Operations::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP) {
        qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    }
    if has(Operations::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD) {
        qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    }
    if has(Operations::IBV_QP_EX_WITH_SEND_WITH_INV) {
        qp.wr_send_inv = Some(wr_send_inv);
    }
    if has(Operations::IBV_QP_EX_WITH_FLUSH) {
        qp.wr_flush = Some(wr_flush);
    }
    if has(Operations::IBV_QP_EX_WITH_ATOMIC_WRITE) {
        qp.wr_atomic_write = Some(wr_atomic_write);
    }
    if has(Operations::IBV_QP_EX_WITH_LOCAL_INV) {
        qp.wr_local_inv = Some(wr_local_inv);
    }
    if has(Operations::IBV_QP_EX_WITH_BIND_MW) {
        qp.wr_bind_mw = Some(wr_bind_mw);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    forward!(unless is_own(qp), ibv_qp_to_qp_ex(qp));
    plain(std::ptr::null_mut(), || Ok(Pair::of(qp)?.as_extended()))
}

/// Runs `work` on the builder of a queue pair, between start and complete. Outside, the call has no
/// effect.
fn build<T>(qp: *mut ibv_qp_ex, work: impl FnOnce(&Pair, &mut Builder) -> T) -> Result<T, Errno> {
    let pair = Pair::of(qp.cast())?;
    let mut builder = pair.section()?.inside()?;
    Ok(work(&pair, &mut builder))
}

extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    plain((), || {
        let pair = Pair::of(qp.cast())?;
        pair.section()?.begin()?.clear();
        Ok(())
    });
}

extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    plain((), || Pair::of(qp.cast())?.section()?.end(Builder::clear));
}

impl Builder {
    fn clear(&mut self) {
        self.requests.clear();
        self.failed = None;
        self.windows.clear();
    }

    fn fail(&mut self, errno: Errno) {
        self.failed.get_or_insert(errno);
    }
}

extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    status(|| {
        let pair = Pair::of(qp.cast())?;
        pair.section()?.end(|builder| {
            let posted = match builder.failed {
                Some(errno) => Err(errno),
                None => post(&pair, &builder.requests),
            };
            if posted.is_ok() {
                builder.windows.drain(..).for_each(Prepared::posted);
            }
            builder.clear();
            posted
        })?
    })
}

impl Built {
    fn data(&self) -> Data<'_> {
        match &self.data {
            BuiltData::Segments(segments) => Data::Segments(segments),
            BuiltData::Inline(bytes) => Data::Inline(bytes),
        }
    }

    /// The request of a connection.
    fn send_request(&self) -> SendRequest<'_> {
        SendRequest {
            id: self.id,
            operation: self.operation,
            data: self.data(),
            flags: self.flags,
        }
    }
}

/// Posts all requests, or none of them if one is refused.
fn post(pair: &Pair, requests: &[Built]) -> Result<(), Errno> {
    match (pair.nic(), requests) {
        // Faster than a list that may be withdrawn.
        (NicPair::Connection(nic), [only]) if only.receives.is_none() => {
            Ok(nic.post_send(&only.send_request())?)
        }
        (NicPair::Connection(nic), _) => nic.post_sends(|queue| {
            queue.all_or_none(|queue| {
                requests.iter().try_for_each(|built| {
                    let request = built.send_request();
                    Ok(match built.receives {
                        Some(receives) => queue.push_to(receives, &request),
                        None => queue.push(&request),
                    }?)
                })
            })
        })?,
        (NicPair::Datagrams(nic), _) => nic.post_sends(|queue| {
            queue.all_or_none(|queue| {
                requests.iter().try_for_each(|built| {
                    let (Some(to), Operation::Send { immediate }) = (built.to, built.operation)
                    else {
                        return Err(Errno::INVAL);
                    };
                    Ok(queue.push(&to.request(built.id, immediate, built.data(), built.flags))?)
                })
            })
        })?,
        (NicPair::RawPackets(nic), _) => nic.post_sends(|queue| {
            queue.all_or_none(|queue| {
                requests.iter().try_for_each(|built| {
                    Ok(queue.push(&FrameSendRequest {
                        id: built.id,
                        data: built.data(),
                        flags: built.flags,
                    })?)
                })
            })
        })?,
    }
}

extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    plain((), || {
        build(qp, |_, builder| {
            match (builder.requests.last_mut(), Destination::of(ah, qpn, qkey)) {
                (Some(last), Ok(to)) => last.to = Some(to),
                (None, _) => builder.fail(Errno::INVAL),
                (_, Err(errno)) => builder.fail(errno),
            }
        })
    });
}

extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, number: u32) {
    plain((), || {
        build(qp, |_, builder| match builder.requests.last_mut() {
            Some(last) => last.receives = Some(XrcSrqn::new(number)),
            None => builder.fail(Errno::INVAL),
        })
    });
}

/// Adds a request, which has no data yet.
///
/// # Safety
/// `qp` is a queue pair, whose structure no other thread changes.
unsafe fn add(qp: *mut ibv_qp_ex, operation: Operation) {
    plain((), || {
        build(qp, |pair, builder| {
            // More would never fit, and a program that never completes a section must not fill the memory.
            if builder.requests.len() >= pair.init().cap.max_send_wr as usize {
                return builder.fail(Errno::NOMEM);
            }
            // SAFETY: the structure lives as long as the queue pair; the contract of this function.
            let (id, wr_flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
            builder.requests.push(Built {
                id: WrId(id),
                flags: flags(wr_flags, pair.init().signals_all),
                operation,
                data: BuiltData::Segments(Segments::new()),
                to: None,
                receives: None,
            });
        })
    });
}

/// Sets the data of the last request.
fn set(qp: *mut ibv_qp_ex, data: impl FnOnce(&Pair) -> Result<BuiltData, Errno>) {
    plain((), || {
        build(qp, |pair, builder| {
            let data = data(pair);
            match (builder.requests.last_mut(), data) {
                (Some(last), Ok(data)) => last.data = data,
                (None, _) => builder.fail(Errno::INVAL),
                (_, Err(errno)) => builder.fail(errno),
            }
        })
    });
}

fn remote(rkey: u32, addr: u64) -> Remote {
    Remote {
        rkey: Rkey(rkey),
        addr,
    }
}

fn immediate(value: __be32) -> Option<Immediate> {
    Some(Immediate(u32::from_be(value)))
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: as libibverbs demands of `ibv_wr_send`, and so on.
    unsafe { add(qp, Operation::Send { immediate: None }) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, value: __be32) {
    let immediate = immediate(value);
    // SAFETY: as for `wr_send`.
    unsafe { add(qp, Operation::Send { immediate }) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    let rkey = Rkey(rkey);
    // SAFETY: as for `wr_send`.
    unsafe { add(qp, Operation::SendInvalidate { rkey }) };
}

/// `IBV_FLUSH_GLOBAL` and `IBV_FLUSH_PERSISTENT`.
const GLOBAL: u8 = 1;
const PERSISTENT: u8 = 1 << 1;

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    len: usize,
    placement: u8,
    selectivity: u8,
) {
    let what = Feth {
        global: placement & GLOBAL != 0,
        persistent: placement & PERSISTENT != 0,
        selectivity,
    };
    let len = u32::try_from(len).ok();
    let is_known = placement & !(GLOBAL | PERSISTENT) == 0
        && placement != 0
        && [Feth::RANGE, Feth::REGION].contains(&selectivity);
    if len.is_none() || !is_known {
        plain((), || build(qp, |_, builder| builder.fail(Errno::INVAL)));
    }
    let operation = Operation::Flush {
        remote: remote(rkey, addr),
        len: len.unwrap_or(0),
        what,
    };
    // SAFETY: as for `wr_send`.
    unsafe { add(qp, operation) };
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    word: *const c_void,
) {
    let remote = remote(rkey, addr);
    // SAFETY: as for `wr_send`.
    unsafe { add(qp, Operation::AtomicWrite { remote }) };
    let place = (word.expose_provenance() as u64, 8);
    // SAFETY: eight bytes are readable, as libibverbs demands.
    set(qp, |pair| unsafe { gather(pair, [place].into_iter()) });
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    let rkey = Rkey(rkey);
    // SAFETY: as for `wr_send`.
    unsafe { add(qp, Operation::Invalidate { rkey }) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    plain((), || {
        build(qp, |pair, builder| {
            // SAFETY: readable, as libibverbs demands.
            match Prepared::of_type_2(pair, mw, rkey, unsafe { &*info }) {
                Ok(window) => builder.windows.push(window),
                Err(errno) => builder.fail(errno),
            }
        })
    });
    let rkey = Rkey(rkey);
    // SAFETY: as for `wr_send`.
    unsafe { add(qp, Operation::Bind { rkey }) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    let (remote, immediate) = (remote(rkey, addr), None);
    // SAFETY: as for `wr_send`.
    unsafe { add(qp, Operation::Write { remote, immediate }) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: __be32) {
    let (remote, immediate) = (remote(rkey, addr), immediate(value));
    // SAFETY: as for `wr_send`.
    unsafe { add(qp, Operation::Write { remote, immediate }) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    let remote = remote(rkey, addr);
    // SAFETY: as for `wr_send`.
    unsafe { add(qp, Operation::Read { remote }) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    let (remote, op) = (remote(rkey, addr), AtomicOp::CompareSwap { compare, swap });
    // SAFETY: as for `wr_send`.
    unsafe { add(qp, Operation::Atomic { remote, op }) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: u64) {
    let (remote, op) = (remote(rkey, addr), AtomicOp::FetchAdd { add: value });
    // SAFETY: as for `wr_send`.
    unsafe { add(qp, Operation::Atomic { remote, op }) };
}

extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, len: u32) {
    let lkey = Lkey(lkey);
    set(qp, |_| {
        let only = Segment { lkey, addr, len };
        Ok(BuiltData::Segments(Segments::from_iter([only])))
    });
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    set(qp, |pair| {
        if count > pair.init().cap.max_send_sge as usize {
            return Err(Errno::INVAL);
        }
        let list = if count == 0 {
            &[]
        } else {
            // SAFETY: there are this many entries, as libibverbs demands.
            unsafe { slice::from_raw_parts(list, count) }
        };
        Ok(BuiltData::Segments(list.iter().map(segment).collect()))
    });
}

/// Copies inline bytes.
///
/// # Safety
/// The places are readable.
unsafe fn gather(
    pair: &Pair,
    places: impl Iterator<Item = (u64, usize)>,
) -> Result<BuiltData, Errno> {
    let most = pair.init().cap.max_inline_data as usize;
    let mut bytes = Gathered::new();
    for (address, len) in places {
        if len > most - bytes.len() {
            return Err(Errno::NOMEM);
        }
        // SAFETY: the contract of this function.
        bytes.extend_from_slice(unsafe { bytes_at(address, len) });
    }
    Ok(BuiltData::Inline(bytes))
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, len: usize) {
    let place = (addr.expose_provenance() as u64, len);
    // SAFETY: the bytes are readable, as libibverbs demands.
    set(qp, |pair| unsafe { gather(pair, [place].into_iter()) });
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let places = (0..count).map(|n| {
        // SAFETY: there are this many entries, as libibverbs demands.
        let place = unsafe { list.add(n).read() };
        (place.addr.expose_provenance() as u64, place.length)
    });
    // SAFETY: the bytes are readable, as libibverbs demands.
    set(qp, |pair| unsafe { gather(pair, places) });
}
