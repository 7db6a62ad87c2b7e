//! Posting to queue pairs of kernel devices.

use std::ffi::c_void;
use std::mem::{self, MaybeUninit};
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

use super::super::outstanding::Posted;
use super::VerbsQueuePair;
use crate::error::{Error, Result, VerbsError};
use crate::memory_region::Segment;
use crate::provider::{PreparedSendOps, QueuePairOps};
use crate::work_request::Segments;
use crate::work_request::{Data, RecvRequest, SendRequest};

/// A request of a list, after it was checked.
struct Checked {
    posted: Posted,
    /// Its segments in the device's form; none for inline data.
    sges: SmallVec<[ibv_sge; 2]>,
}

impl VerbsQueuePair {
    /// Posts requests in order, until one is refused.
    pub(super) fn post_send_list(&self, requests: &mut [SendRequest]) -> (usize, Result<()>) {
        // The common case, which counts towards message latency: one call of the library.
        if let [request] = requests {
            return match self.post_one(request) {
                Ok(()) => (1, Ok(())),
                Err(error) => (0, Err(error)),
            };
        }
        let mut checked = SmallVec::<[Checked; 4]>::new();
        let mut outcome = Ok(());
        for request in &*requests {
            let mut sges = SmallVec::new();
            match self.check(request, &mut sges) {
                Ok(posted) => checked.push(Checked { posted, sges }),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        match self.post_checked(&mut requests[..checked.len()], &mut checked) {
            (posted, Ok(())) => (posted, outcome),
            (posted, Err(error)) => {
                let error = self.refused(error, self.capabilities.max_send_wr);
                (posted, Err(error))
            }
        }
    }

    /// Returns how many requests were posted, and why no more.
    fn post_checked(
        &self,
        requests: &mut [SendRequest],
        checked: &mut [Checked],
    ) -> (usize, std::result::Result<(), VerbError>) {
        let count = requests.len();
        if let Some(qp) = self.extended
            && count > 1
        {
            // This posts all or none. Without room for all, they are posted one by one.
            match self.post_extended(qp, requests, checked) {
                Ok(()) => return (count, Ok(())),
                Err(error) => tracing::debug!(%error, "a batch is posted one by one"),
            }
        }
        for index in 0..count {
            let Checked { posted, sges } = &mut checked[index];
            let done = self.post_plain(&mut requests[index], *posted, sges);
            if done.is_err() {
                return (index, done);
            }
        }
        (count, Ok(()))
    }

    #[inline]
    fn post_one(&self, request: &mut SendRequest) -> Result<()> {
        let mut sges = SmallVec::new();
        let posted = self.check(request, &mut sges)?;
        self.post_plain(request, posted, &mut sges)
            .map_err(|error| self.refused(error, self.capabilities.max_send_wr))
    }

    /// Checks a request, and adds its segments to `sges` as the device takes them.
    #[inline]
    fn check(&self, request: &SendRequest, sges: &mut SmallVec<[ibv_sge; 2]>) -> Result<Posted> {
        Ok(Posted {
            id: request.id,
            opcode: request.operation.completed_as(),
            len: self.sges(&request.operation, &request.data, sges)?,
        })
    }

    #[inline]
    fn post_plain(
        &self,
        request: &mut SendRequest,
        posted: Posted,
        sges: &mut [ibv_sge],
    ) -> std::result::Result<(), VerbError> {
        self.post_described(&mut describe(request), request, posted, sges, segments)
    }

    /// Posts a request that [`describe`] has described. `keep` returns the segments to keep until it completes.
    #[inline]
    fn post_described(
        &self,
        wr: &mut ibv_send_wr,
        request: &mut SendRequest,
        posted: Posted,
        sges: &mut [ibv_sge],
        keep: impl FnOnce(&mut SendRequest) -> Segments,
    ) -> std::result::Result<(), VerbError> {
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = i32::try_from(sges.len()).unwrap_or(i32::MAX);
        let mut inline;
        if let Data::Inline(bytes) = &request.data {
            inline = ibv_sge {
                addr: bytes.as_ptr().expose_provenance() as u64,
                length: bytes.len() as u32,
                lkey: 0,
            };
            (wr.sg_list, wr.num_sge) = (&raw mut inline, 1);
        }
        let mut posting = self.outstanding.begin_post();
        wr.wr_id = posting.send_numbers(1);
        // SAFETY: the queue pair is alive, the request and its SGEs are readable, and the memory
        // that they name is valid until the request has completed: registered memory is kept by
        // `outstanding`, inline data is copied before this returns.
        unsafe { ibv_post_send(self.qp.as_ptr(), wr) }.map_err(|error| error.error)?;
        posting.add_send(posted, keep(request));
        Ok(())
    }

    /// Posts all requests or none.
    fn post_extended(
        &self,
        qp: NonNull<ibv_qp_ex>,
        requests: &mut [SendRequest],
        checked: &[Checked],
    ) -> std::result::Result<(), VerbError> {
        let qp = qp.as_ptr();
        let mut posting = self.outstanding.begin_post();
        let numbers = posting.send_numbers(requests.len())..;
        // SAFETY: the queue pair is alive and created for extended requests; the lock of
        // `outstanding` keeps other threads from posting. The memory that the requests name is kept
        // as in `post_plain`.
        unsafe {
            ibv_wr_start(qp)?;
            let described = numbers.zip(requests.iter().zip(checked)).try_for_each(
                |(number, (request, checked))| {
                    describe_extended(qp, number, request, &checked.sges)
                },
            );
            match described {
                Ok(()) => ibv_wr_complete(qp)?,
                Err(error) => {
                    ibv_wr_abort(qp)?;
                    return Err(error);
                }
            }
        }
        for (request, checked) in requests.iter_mut().zip(checked) {
            posting.add_send(checked.posted, segments(request));
        }
        Ok(())
    }

    /// Adds the segments of a request in the device's form; returns their total length.
    fn sges(
        &self,
        operation: &Operation,
        data: &Data,
        sges: &mut SmallVec<[ibv_sge; 2]>,
    ) -> Result<u32> {
        let fetches = matches!(operation, Operation::Read { .. } | Operation::Atomic { .. });
        let len = match data {
            Data::Segments(segments) => {
                let mut len = 0;
                for segment in segments {
                    sges.push(sge(segment));
                    len += u64::from(segment.len());
                }
                len
            }
            Data::Inline(_) if fetches => return Err(PostError::InlineResponse.into()),
            Data::Inline(bytes) => {
                let max = self.capabilities.max_inline;
                if bytes.len() > max as usize {
                    let len = bytes.len();
                    return Err(PostError::InlineTooLong { len, max }.into());
                }
                // Their address is described when the request is posted.
                bytes.len() as u64
            }
        };
        self.check_count(sges.len())?;
        match u32::try_from(len) {
            Ok(len) if matches!(operation, Operation::Atomic { .. }) && len != 8 => {
                Err(PostError::AtomicLength(u64::from(len)).into())
            }
            Ok(len) if len <= MAX_MESSAGE => Ok(len),
            _ => Err(PostError::TooLong(len).into()),
        }
    }

    fn check_count(&self, segments: usize) -> Result<()> {
        let most = self.most_segments;
        if segments > most as usize {
            return Err(VerbsError::Segments { segments, most }.into());
        }
        Ok(())
    }

    pub(super) fn post_receive(&self, request: RecvRequest) -> Result<()> {
        let mut sges: SmallVec<[ibv_sge; 2]> = request.segments.iter().map(sge).collect();
        self.check_count(sges.len())?;
        let mut wr = ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: i32::try_from(sges.len()).unwrap_or(i32::MAX),
        };
        let posted = Posted {
            id: request.id,
            opcode: WcOpcode::Recv,
            len: 0,
        };
        let mut posting = self.outstanding.begin_post();
        wr.wr_id = posting.receive_number();
        // SAFETY: the queue pair is alive, the request and its SGEs are readable, and the memory
        // that they name is kept until the request has completed.
        let done = unsafe { ibv_post_recv(self.qp.as_ptr(), &mut wr) };
        if done.is_ok() {
            posting.add_receive(posted, request.segments);
            return Ok(());
        }
        drop(posting);
        done.map_err(|error| self.refused(error.error, self.capabilities.max_recv_wr))
    }

    /// Translates the error of a request that was not posted.
    #[cold]
    fn refused(&self, error: VerbError, room: u32) -> Error {
        let state = self.state();
        match error.errno() {
            Errno::ENOMEM => PostError::Full(room).into(),
            Errno::EINVAL
                if matches!(state, State::Reset | State::Init | State::ReadyToReceive) =>
            {
                PostError::State(state).into()
            }
            _ => self.domain.context().failed(error).into(),
        }
    }
}

/// A request that was checked and described before it is posted.
pub(super) struct PreparedRequest<'a> {
    queue_pair: &'a VerbsQueuePair,
    request: SendRequest,
    posted: Posted,
    sges: SmallVec<[ibv_sge; 2]>,
    /// Its pointers are set each time it is posted.
    wr: ibv_send_wr,
}

// SAFETY: only `post` uses the pointers of `wr`. It sets them first, and has exclusive access to the request.
unsafe impl Send for PreparedRequest<'_> {}
// SAFETY: as above.
unsafe impl Sync for PreparedRequest<'_> {}

impl<'a> PreparedRequest<'a> {
    pub(super) fn new(queue_pair: &'a VerbsQueuePair, request: SendRequest) -> Result<Self> {
        let mut sges = SmallVec::new();
        Ok(Self {
            posted: queue_pair.check(&request, &mut sges)?,
            wr: describe(&request),
            queue_pair,
            request,
            sges,
        })
    }
}

impl PreparedSendOps for PreparedRequest<'_> {
    fn post(&mut self) -> Result<()> {
        self.queue_pair.check_process()?;
        let posted = self.queue_pair.post_described(
            &mut self.wr,
            &mut self.request,
            self.posted,
            &mut self.sges,
            |request| request.segments().into(),
        );
        posted.map_err(|error| {
            let room = self.queue_pair.capabilities.max_send_wr;
            self.queue_pair.refused(error, room)
        })
    }
}

/// Takes the segments out of a request that is being posted.
fn segments(request: &mut SendRequest) -> Segments {
    match &mut request.data {
        Data::Segments(segments) => mem::take(segments),
        Data::Inline(_) => Segments::new(),
    }
}

fn sge(segment: &Segment) -> ibv_sge {
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

/// Adds a request to the batch that was started.
///
/// # Safety
/// A batch was started on `qp`; the memory that the request names is valid until it has completed.
unsafe fn describe_extended(
    qp: *mut ibv_qp_ex,
    number: u64,
    request: &SendRequest,
    sges: &[ibv_sge],
) -> std::result::Result<(), VerbError> {
    let SendRequest {
        operation,
        data,
        flags,
        ..
    } = request;
    let mut wr_flags = send_flags(*flags);
    if let Data::Inline(_) = data {
        // `ibv_wr_set_inline_data` implies it, but rxe's library (rdma-core 44) does not set it. Its kernel driver then
        // interprets the bytes as segments, and the queue pair fails.
        wr_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    }
    // SAFETY: guaranteed by the caller; each request gets its operation, and then its data.
    unsafe {
        (*qp).wr_id = number;
        (*qp).wr_flags = wr_flags;
        match operation {
            Operation::Send { immediate: None } => ibv_wr_send(qp)?,
            Operation::Send {
                immediate: Some(immediate),
            } => ibv_wr_send_imm(qp, immediate.0.to_be())?,
            Operation::Write {
                remote,
                immediate: None,
            } => ibv_wr_rdma_write(qp, remote.rkey.0, remote.addr)?,
            Operation::Write {
                remote,
                immediate: Some(immediate),
            } => {
                ibv_wr_rdma_write_imm(qp, remote.rkey.0, remote.addr, immediate.0.to_be())?;
            }
            Operation::Read { remote } => ibv_wr_rdma_read(qp, remote.rkey.0, remote.addr)?,
            Operation::Atomic { remote, op } => match *op {
                AtomicOp::FetchAdd { add } => {
                    ibv_wr_atomic_fetch_add(qp, remote.rkey.0, remote.addr, add)?;
                }
                AtomicOp::CompareSwap { compare, swap } => {
                    ibv_wr_atomic_cmp_swp(qp, remote.rkey.0, remote.addr, compare, swap)?;
                }
            },
            // A `SendRequest` has no other operations.
            _ => {}
        }
        match data {
            Data::Inline(bytes) => {
                // The library only reads from there; the parameter lacks const.
                let start: *mut c_void = bytes.as_ptr().cast_mut().cast();
                ibv_wr_set_inline_data(qp, start, bytes.len())
            }
            Data::Segments(_) => ibv_wr_set_sge_list(qp, sges.len(), sges.as_ptr()),
        }
    }
}

/// Returns the request in the device's form, without its number and the pointers to its SGEs.
#[inline]
fn describe(request: &SendRequest) -> ibv_send_wr {
    // SAFETY: the structure consists of numbers, null pointers, and unions of these.
    let mut wr: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    wr.send_flags = send_flags(request.flags);
    if let Data::Inline(_) = &request.data {
        wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    }
    describe_operation(&request.operation, &mut wr);
    wr
}

/// Fills in the operation of a request.
fn describe_operation(operation: &Operation, wr: &mut ibv_send_wr) {
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
        // A `SendRequest` has no other operations.
        _ => {}
    }
}
