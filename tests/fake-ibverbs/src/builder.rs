//! Posting to extended queue pairs.

use std::ffi::{c_int, c_void};

use gdr_verbs_sys::{
    __be32, ibv_data_buf, ibv_qp_create_send_ops_flags as Operations, ibv_qp_ex, ibv_sge,
};

use crate::post::copy_inline;
use crate::ret::{plain, status};
use crate::state::{Data, LibraryState, Operation, Send, Target};
use crate::wire;

/// Sets the functions of a queue pair according to its flags.
pub(crate) fn fill(object: &mut ibv_qp_ex, operations: u64) {
    let has = |flag: Operations| operations & u64::from(flag.0) != 0;
    object.wr_start = Some(wr_start);
    object.wr_complete = Some(wr_complete);
    object.wr_abort = Some(wr_abort);
    object.wr_set_sge = Some(wr_set_sge);
    object.wr_set_sge_list = Some(wr_set_sge_list);
    object.wr_set_inline_data = Some(wr_set_inline_data);
    object.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    if has(Operations::IBV_QP_EX_WITH_SEND) {
        object.wr_send = Some(wr_send);
    }
    if has(Operations::IBV_QP_EX_WITH_SEND_WITH_IMM) {
        object.wr_send_imm = Some(wr_send_imm);
    }
    if has(Operations::IBV_QP_EX_WITH_RDMA_WRITE) {
        object.wr_rdma_write = Some(wr_rdma_write);
    }
    if has(Operations::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) {
        object.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    }
    if has(Operations::IBV_QP_EX_WITH_RDMA_READ) {
        object.wr_rdma_read = Some(wr_rdma_read);
    }
    if has(Operations::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP) {
        object.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    }
    if has(Operations::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD) {
        object.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    }
}

/// Runs `work` if a batch is started, else records a violation.
fn with_batch(verb: &str, qp: *mut ibv_qp_ex, work: impl FnOnce(&mut LibraryState, u32)) {
    plain((), |library| {
        let Ok((number, _)) = library.pair(verb, qp.addr()) else {
            return;
        };
        if library
            .pairs
            .get(&number)
            .is_none_or(|pair| pair.batch.is_none())
        {
            library.violation(verb, "ibv_wr_start was not called before");
            return;
        }
        work(library, number);
    });
}

/// Adds a request to the batch.
///
/// # Safety
///
/// `qp` is a queue pair of this library.
unsafe fn add(verb: &str, qp: *mut ibv_qp_ex, operation: Operation) {
    // SAFETY: the contract of this function.
    let (id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    with_batch(verb, qp, |library, number| {
        let send = Send::new(id, flags, operation, Data::Segments(Vec::new()));
        let batch = library
            .pairs
            .get_mut(&number)
            .and_then(|pair| pair.batch.as_mut());
        if let Some(batch) = batch {
            batch.push(send);
        }
    });
}

/// Sets the data of the last request.
fn set(verb: &str, qp: *mut ibv_qp_ex, data: impl FnOnce(&mut LibraryState) -> Data) {
    with_batch(verb, qp, |library, number| {
        let data = data(library);
        let batch = library
            .pairs
            .get_mut(&number)
            .and_then(|pair| pair.batch.as_mut());
        match batch.and_then(|batch| batch.last_mut()) {
            Some(send) => send.data = data,
            None => library.violation(verb, "there is no request to give data to"),
        }
    });
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let verb = "ibv_wr_start";
    plain((), |library| {
        let Ok((number, _)) = library.pair(verb, qp.addr()) else {
            return;
        };
        let pair = library.pairs.get_mut(&number);
        let before = pair.and_then(|pair| pair.batch.replace(Vec::new()));
        if before.is_some() {
            library.violation(verb, "requests are being built already");
        }
    });
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    with_batch("ibv_wr_abort", qp, |library, number| {
        if let Some(pair) = library.pairs.get_mut(&number) {
            pair.batch = None;
        }
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let verb = "ibv_wr_complete";
    status(|library| {
        let (number, _) = library.pair(verb, qp.addr())?;
        let pair = library.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        let Some(batch) = pair.batch.take() else {
            library.violation(verb, "ibv_wr_start was not called before");
            return Err(libc::EINVAL);
        };
        if !pair.has_room(batch.len() as u64) {
            return Err(libc::ENOMEM);
        }
        for send in batch {
            library.enqueue(verb, number, send)?;
        }
        wire::advance(library);
        Ok(())
    })
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract of this function.
    unsafe { add("ibv_wr_send", qp, Operation::Send(None)) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: __be32) {
    // SAFETY: the contract of this function.
    unsafe { add("ibv_wr_send_imm", qp, Operation::Send(Some(imm))) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    let operation = Operation::Write(Target { addr, rkey }, None);
    // SAFETY: the contract of this function.
    unsafe { add("ibv_wr_rdma_write", qp, operation) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: __be32) {
    let operation = Operation::Write(Target { addr, rkey }, Some(imm));
    // SAFETY: the contract of this function.
    unsafe { add("ibv_wr_rdma_write_imm", qp, operation) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    let operation = Operation::Read(Target { addr, rkey });
    // SAFETY: the contract of this function.
    unsafe { add("ibv_wr_rdma_read", qp, operation) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    let operation = Operation::Swap(Target { addr, rkey }, compare, swap);
    // SAFETY: the contract of this function.
    unsafe { add("ibv_wr_atomic_cmp_swp", qp, operation) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: u64) {
    let operation = Operation::Add(Target { addr, rkey }, value);
    // SAFETY: the contract of this function.
    unsafe { add("ibv_wr_atomic_fetch_add", qp, operation) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let segment = ibv_sge { addr, length, lkey };
    set("ibv_wr_set_sge", qp, |_| Data::Segments(vec![segment]));
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: there are this many entries by contract.
    let segments = (0..count).map(|i| unsafe { list.add(i).read() }).collect();
    set("ibv_wr_set_sge_list", qp, |_| Data::Segments(segments));
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, len: usize) {
    let verb = "ibv_wr_set_inline_data";
    let piece = (addr.expose_provenance() as u64, len);
    // SAFETY: the bytes are readable by contract.
    set(verb, qp, |library| unsafe {
        copy_inline(library, verb, &[piece])
    });
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let verb = "ibv_wr_set_inline_data_list";
    // SAFETY: there are this many pieces by contract.
    let pieces = (0..count).map(|i| unsafe { list.add(i).read() });
    let pieces: Vec<_> = pieces
        .map(|it| (it.addr.expose_provenance() as u64, it.length))
        .collect();
    // SAFETY: the bytes are readable by contract.
    set(verb, qp, |library| unsafe {
        copy_inline(library, verb, &pieces)
    });
}
