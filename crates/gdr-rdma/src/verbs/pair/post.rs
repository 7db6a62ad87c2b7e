//! Posting to queue pairs of the kernel.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use gdr_roce::{
    AtomicOp, Immediate, MAX_MESSAGE, Operation, PostError, Remote, SendFlags, State, WcOpcode,
};
use gdr_verbs_sys::{
    Errno, VerbError, ibv_post_recv, ibv_post_send, ibv_qp_ex, ibv_recv_wr, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_wr_abort, ibv_wr_atomic_cmp_swp, ibv_wr_atomic_fetch_add,
    ibv_wr_complete, ibv_wr_opcode, ibv_wr_rdma_read, ibv_wr_rdma_write, ibv_wr_rdma_write_imm,
    ibv_wr_send, ibv_wr_send_imm, ibv_wr_set_inline_data, ibv_wr_set_sge_list, ibv_wr_start,
};
use smallvec::SmallVec;

use super::super::error::VerbsError;
use super::super::held::Ended;
use super::Pair;
use crate::error::{Error, Result};
use crate::region::Segment;
use crate::request::{Data, RecvRequest, SendRequest};

/// A request that was looked over.
struct Prepared {
    ended: Ended,
    request: SendRequest,
    /// Its segments; none of inline bytes.
    entries: SmallVec<[ibv_sge; 2]>,
}

impl Prepared {
    /// What is to be held until it has ended.
    fn hold(&self) -> (Ended, SmallVec<[Segment; 2]>) {
        let segments = match &self.request.data {
            Data::Segments(segments) => segments.clone(),
            Data::Inline(_) => SmallVec::new(),
        };
        (self.ended, segments)
    }
}

impl Pair {
    /// Posts requests in order, up to the first that is refused.
    pub(crate) fn post_sends(
        &self,
        requests: impl IntoIterator<Item = Result<SendRequest>>,
    ) -> (usize, Result<()>) {
        let mut prepared = SmallVec::<[Prepared; 4]>::new();
        let mut refusal = Ok(());
        for request in requests {
            match request.and_then(|request| self.prepare(request)) {
                Ok(request) => prepared.push(request),
                Err(error) => {
                    refusal = Err(error);
                    break;
                }
            }
        }
        match self.post_prepared(&mut prepared) {
            (posted, Ok(())) => (posted, refusal),
            (posted, Err(error)) => {
                let error = self.refused(error, self.capabilities.max_send_wr);
                (posted, Err(error))
            }
        }
    }

    /// How many were posted, and why no more.
    fn post_prepared(
        &self,
        requests: &mut [Prepared],
    ) -> (usize, std::result::Result<(), VerbError>) {
        if let Some(pair) = self.extended
            && requests.len() > 1
        {
            // All of them or none; then those are posted that there is room for.
            match self.post_extended(pair, requests) {
                Ok(()) => return (requests.len(), Ok(())),
                Err(error) => tracing::debug!(%error, "a batch is posted one by one"),
            }
        }
        for (posted, request) in requests.iter_mut().enumerate() {
            let done = match self.extended {
                Some(pair) => self.post_extended(pair, std::slice::from_ref(request)),
                None => self.post_plain(request),
            };
            if done.is_err() {
                return (posted, done);
            }
        }
        (requests.len(), Ok(()))
    }

    fn prepare(&self, request: SendRequest) -> Result<Prepared> {
        let (entries, len) = self.entries(&request.operation, &request.data)?;
        let ended = Ended {
            id: request.id,
            opcode: opcode(&request.operation),
            len,
        };
        Ok(Prepared {
            ended,
            request,
            entries,
        })
    }

    fn post_plain(&self, prepared: &mut Prepared) -> std::result::Result<(), VerbError> {
        let (ended, segments) = prepared.hold();
        let SendRequest {
            operation,
            data,
            flags,
            ..
        } = &prepared.request;
        // SAFETY: numbers, null pointers, and unions of them.
        let mut wr: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        wr.sg_list = prepared.entries.as_mut_ptr();
        wr.num_sge = i32::try_from(prepared.entries.len()).unwrap_or(i32::MAX);
        wr.send_flags = send_flags(*flags);
        let mut inline;
        if let Data::Inline(bytes) = data {
            wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
            inline = ibv_sge {
                addr: bytes.as_ptr().expose_provenance() as u64,
                length: bytes.len() as u32,
                lkey: 0,
            };
            (wr.sg_list, wr.num_sge) = (&raw mut inline, 1);
        }
        describe(operation, &mut wr);
        self.held.post(ended, segments, |number| {
            wr.wr_id = number;
            // SAFETY: the queue pair is alive, the request and its entries are readable, and what
            // they name is held until the request has ended: registered memory by `segments`,
            // inline bytes until this returns, by when they were copied.
            unsafe { ibv_post_send(self.pair.as_ptr(), &mut wr) }.map_err(|error| error.error)
        })
    }

    /// Posts all of them or none.
    fn post_extended(
        &self,
        pair: NonNull<ibv_qp_ex>,
        requests: &[Prepared],
    ) -> std::result::Result<(), VerbError> {
        let pair = pair.as_ptr();
        let held = requests.iter().map(Prepared::hold);
        self.held.post_sends(held, |first| {
            // SAFETY: the queue pair is alive and made for extended requests; the lock of what is
            // held keeps others from posting. What the requests name is held as in `post_plain`.
            unsafe {
                ibv_wr_start(pair)?;
                let described = (first..)
                    .zip(requests)
                    .try_for_each(|(number, request)| describe_extended(pair, number, request));
                match described {
                    Ok(()) => ibv_wr_complete(pair),
                    Err(error) => ibv_wr_abort(pair).and(Err(error)),
                }
            }
        })
    }

    /// The segments of a request as the device takes them, and their length.
    fn entries(&self, operation: &Operation, data: &Data) -> Result<(SmallVec<[ibv_sge; 2]>, u32)> {
        let answers = matches!(operation, Operation::Read { .. } | Operation::Atomic { .. });
        let (entries, len): (SmallVec<[ibv_sge; 2]>, u64) = match data {
            Data::Segments(segments) => (
                segments.iter().map(entry).collect(),
                segments
                    .iter()
                    .map(|segment| u64::from(segment.len()))
                    .sum(),
            ),
            Data::Inline(_) if answers => return Err(PostError::InlineAnswer.into()),
            Data::Inline(bytes) => {
                let max = self.capabilities.max_inline;
                if bytes.len() > max as usize {
                    let len = bytes.len();
                    return Err(PostError::InlineTooLong { len, max }.into());
                }
                // Where they are is told when they move no more.
                (SmallVec::new(), bytes.len() as u64)
            }
        };
        if entries.len() > self.most_segments as usize {
            return Err(VerbsError::Segments {
                segments: entries.len(),
                most: self.most_segments,
            }
            .into());
        }
        match u32::try_from(len) {
            Ok(len) if matches!(operation, Operation::Atomic { .. }) && len != 8 => {
                Err(PostError::AtomicLength(u64::from(len)).into())
            }
            Ok(len) if len <= MAX_MESSAGE => Ok((entries, len)),
            _ => Err(PostError::TooLong(len).into()),
        }
    }

    pub(crate) fn post_recv(&self, request: RecvRequest) -> Result<()> {
        let mut entries: SmallVec<[ibv_sge; 2]> = request.segments.iter().map(entry).collect();
        if entries.len() > self.most_segments as usize {
            return Err(VerbsError::Segments {
                segments: entries.len(),
                most: self.most_segments,
            }
            .into());
        }
        let mut wr = ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: entries.as_mut_ptr(),
            num_sge: i32::try_from(entries.len()).unwrap_or(i32::MAX),
        };
        let ended = Ended {
            id: request.id,
            opcode: WcOpcode::Recv,
            len: 0,
        };
        self.held
            .post(ended, request.segments, |number| {
                wr.wr_id = number;
                // SAFETY: the queue pair is alive, the request and its entries are readable, and
                // what they name is held until the request has ended.
                unsafe { ibv_post_recv(self.pair.as_ptr(), &mut wr) }.map_err(|error| error.error)
            })
            .map_err(|error| self.refused(error, self.capabilities.max_recv_wr))
    }

    /// Why a request was not taken.
    fn refused(&self, error: VerbError, room: u32) -> Error {
        let state = self.state();
        match error.errno() {
            Errno::ENOMEM => PostError::Full(room).into(),
            Errno::EINVAL if !matches!(state, State::ReadyToSend | State::Error) => {
                PostError::State(state).into()
            }
            _ => self.domain.context().failed(error).into(),
        }
    }
}

fn entry(segment: &Segment) -> ibv_sge {
    let raw = segment.raw();
    ibv_sge {
        addr: raw.addr,
        length: raw.len,
        lkey: raw.lkey.0,
    }
}

fn send_flags(flags: SendFlags) -> u32 {
    let mut all = 0;
    for (is, flag) in [
        (
            flags.contains(SendFlags::SIGNALLED),
            ibv_send_flags::IBV_SEND_SIGNALED,
        ),
        (
            flags.contains(SendFlags::FENCE),
            ibv_send_flags::IBV_SEND_FENCE,
        ),
        (
            flags.contains(SendFlags::SOLICITED),
            ibv_send_flags::IBV_SEND_SOLICITED,
        ),
    ] {
        if is {
            all |= flag.0;
        }
    }
    all
}

/// The opcode of a request's completion.
fn opcode(operation: &Operation) -> WcOpcode {
    match operation {
        Operation::Send { .. } => WcOpcode::Send,
        Operation::Write { .. } => WcOpcode::Write,
        Operation::Read { .. } => WcOpcode::Read,
        Operation::Atomic { op, .. } => match op {
            AtomicOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            AtomicOp::CompareSwap { .. } => WcOpcode::CompareSwap,
        },
    }
}

/// Adds a request to the batch that was begun.
///
/// # Safety
/// A batch was begun on `pair`; what the request names stays until it has ended.
unsafe fn describe_extended(
    pair: *mut ibv_qp_ex,
    number: u64,
    prepared: &Prepared,
) -> std::result::Result<(), VerbError> {
    let SendRequest {
        operation,
        data,
        flags,
        ..
    } = &prepared.request;
    // SAFETY: the caller's promises; each request gets what it does, and then its data.
    unsafe {
        (*pair).wr_id = number;
        (*pair).wr_flags = send_flags(*flags);
        match operation {
            Operation::Send { immediate: None } => ibv_wr_send(pair)?,
            Operation::Send {
                immediate: Some(immediate),
            } => ibv_wr_send_imm(pair, immediate.0.to_be())?,
            Operation::Write {
                remote,
                immediate: None,
            } => ibv_wr_rdma_write(pair, remote.rkey.0, remote.addr)?,
            Operation::Write {
                remote,
                immediate: Some(immediate),
            } => {
                ibv_wr_rdma_write_imm(pair, remote.rkey.0, remote.addr, immediate.0.to_be())?;
            }
            Operation::Read { remote } => ibv_wr_rdma_read(pair, remote.rkey.0, remote.addr)?,
            Operation::Atomic { remote, op } => match *op {
                AtomicOp::FetchAdd { add } => {
                    ibv_wr_atomic_fetch_add(pair, remote.rkey.0, remote.addr, add)?;
                }
                AtomicOp::CompareSwap { compare, swap } => {
                    ibv_wr_atomic_cmp_swp(pair, remote.rkey.0, remote.addr, compare, swap)?;
                }
            },
        }
        match data {
            Data::Inline(bytes) => {
                // The provider reads from there; its type has no const.
                let start: *mut c_void = bytes.as_ptr().cast_mut().cast();
                ibv_wr_set_inline_data(pair, start, bytes.len())
            }
            Data::Segments(_) => {
                let entries = &prepared.entries;
                ibv_wr_set_sge_list(pair, entries.len(), entries.as_ptr())
            }
        }
    }
}

/// Fills in what a request is.
fn describe(operation: &Operation, wr: &mut ibv_send_wr) {
    let place = |wr: &mut ibv_send_wr, remote: &Remote| {
        wr.wr.rdma.remote_addr = remote.addr;
        wr.wr.rdma.rkey = remote.rkey.0;
    };
    let carry = |wr: &mut ibv_send_wr, immediate: &Option<Immediate>, plain, with| match immediate {
        Some(immediate) => {
            wr.opcode = with;
            wr.__bindgen_anon_1.imm_data = immediate.0.to_be();
        }
        None => wr.opcode = plain,
    };
    match operation {
        Operation::Send { immediate } => {
            carry(
                wr,
                immediate,
                ibv_wr_opcode::IBV_WR_SEND,
                ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            );
        }
        Operation::Write { remote, immediate } => {
            place(wr, remote);
            carry(
                wr,
                immediate,
                ibv_wr_opcode::IBV_WR_RDMA_WRITE,
                ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            );
        }
        Operation::Read { remote } => {
            place(wr, remote);
            wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
        }
        Operation::Atomic { remote, op } => {
            let (opcode, compare_add, swap) = match *op {
                AtomicOp::FetchAdd { add } => (ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, add, 0),
                AtomicOp::CompareSwap { compare, swap } => {
                    (ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, compare, swap)
                }
            };
            wr.opcode = opcode;
            wr.wr.atomic.remote_addr = remote.addr;
            wr.wr.atomic.rkey = remote.rkey.0;
            wr.wr.atomic.compare_add = compare_add;
            wr.wr.atomic.swap = swap;
        }
    }
}
