//! Posting of requests.

use std::ffi::c_int;

use gdr_verbs_sys::{
    ibv_qp, ibv_qp_state as State, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge,
};

use crate::c_abi::{Errno, Outcome};
use crate::dma;
use crate::ret::status;
use crate::state::{Data, LibraryState, Operation, Receive, Send};
use crate::wire;

/// Copies the inline bytes of a request.
///
/// # Safety
///
/// The program does not change the bytes during the call.
pub(crate) unsafe fn copy_inline(
    library: &mut LibraryState,
    verb: &str,
    segments: &[(u64, usize)],
) -> Data {
    let mut bytes = Vec::new();
    for (addr, len) in segments {
        let address = *addr as usize;
        if !dma::is_mapped(address, *len) {
            library.violation(verb, "inline bytes are not in this process' memory");
            continue;
        }
        let start = bytes.len();
        bytes.resize(start + len, 0);
        // SAFETY: mapped, and the contract of this function.
        unsafe { dma::load(address, &mut bytes[start..]) };
    }
    Data::Inline(bytes)
}

impl LibraryState {
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
/// The list is readable and satisfies the contract of `ibv_post_send`; `bad` is writable.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let verb = "ibv_post_send";
    status(|library| {
        let mut next = first;
        let outcome = loop {
            if next.is_null() {
                break Ok(());
            }
            // SAFETY: the contract of this function.
            let wr = unsafe { next.read() };
            // SAFETY: the contract of this function.
            if let Err(errno) = unsafe { post_one(library, verb, qp, &wr) } {
                break Err(errno);
            }
            next = wr.next;
        };
        // SAFETY: the contract of this function.
        unsafe { bad.write(next) };
        wire::advance(library);
        outcome
    })
}

/// # Safety
///
/// As [`post_send`].
unsafe fn post_one(
    library: &mut LibraryState,
    verb: &str,
    qp: *mut ibv_qp,
    wr: &ibv_send_wr,
) -> Result<(), Errno> {
    let (number, _) = library.pair(verb, qp.addr())?;
    // SAFETY: the contract of this function.
    let operation = unsafe { Operation::of(wr) }.ok_or(libc::EINVAL)?;
    // SAFETY: the contract of this function.
    let segments = unsafe { segments(wr.sg_list, wr.num_sge) }?;
    let data = if wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
        let pieces: Vec<_> = segments
            .iter()
            .map(|it| (it.addr, it.length as usize))
            .collect();
        // SAFETY: the contract of this function.
        unsafe { copy_inline(library, verb, &pieces) }
    } else {
        Data::Segments(segments)
    };
    library.enqueue(
        verb,
        number,
        Send::new(wr.wr_id, wr.send_flags, operation, data),
    )
}

/// # Safety
///
/// `list` points to `count` entries.
unsafe fn segments(list: *const ibv_sge, count: c_int) -> Outcome<Vec<ibv_sge>> {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
    // SAFETY: the contract of this function.
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
    status(|library| {
        let mut next = first;
        let outcome = loop {
            if next.is_null() {
                break Ok(());
            }
            // SAFETY: the contract of this function.
            let wr = unsafe { next.read() };
            // SAFETY: the contract of this function.
            let posted = unsafe { segments(wr.sg_list, wr.num_sge) };
            let id = wr.wr_id;
            let receive = posted.map(|segments| Receive { id, segments });
            if let Err(errno) = receive.and_then(|it| add_receive(library, verb, qp, it)) {
                break Err(errno);
            }
            next = wr.next;
        };
        // SAFETY: the contract of this function.
        unsafe { bad.write(next) };
        wire::advance(library);
        outcome
    })
}

fn add_receive(
    library: &mut LibraryState,
    verb: &str,
    qp: *mut ibv_qp,
    receive: Receive,
) -> Result<(), Errno> {
    let (number, device) = library.pair(verb, qp.addr())?;
    let pair = library.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
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
    library.note(verb, device, detail)?;
    if broken {
        library.flush(number);
    }
    Ok(())
}
