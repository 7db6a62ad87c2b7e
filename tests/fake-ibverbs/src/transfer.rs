//! The execution of a request between two queue pairs.

use gdr_verbs_sys::{
    __be32, IBV_LINK_LAYER_INFINIBAND, ibv_access_flags as Access, ibv_event_type,
    ibv_qp_state as State, ibv_sge, ibv_wc_opcode, ibv_wc_status as Status,
};

use crate::dma;
use crate::spec::GpuPath;
use crate::state::{Data, Entry, LibraryState, Operation, Pair, Receive, Send, Subject, Target};

/// Maximum length of a message in a completion: half of the 64-byte entry of mlx5.
const SCATTERED: usize = 32;

/// The progress of the first request of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The request is complete.
    Ended,
    /// The device does not start the request yet.
    Outstanding,
    /// The peer does not respond.
    Silent,
    /// The peer has no receive posted.
    Unready,
}

/// A failure of a request, as each side sees it.
struct Failure {
    local: Status,
    /// The status of the receive of the peer.
    remote: Option<Status>,
    /// The event of the queue pair of the peer.
    event: Option<ibv_event_type>,
}

impl Failure {
    fn local(status: Status) -> Self {
        Self {
            local: status,
            remote: None,
            event: None,
        }
    }

    fn remote(status: Status) -> Self {
        let event = match status {
            Status::IBV_WC_REM_ACCESS_ERR => ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
            _ => ibv_event_type::IBV_EVENT_QP_REQ_ERR,
        };
        Self {
            local: status,
            remote: None,
            event: Some(event),
        }
    }
}

/// A range of memory, found and checked.
struct Range {
    address: usize,
    len: usize,
    gpu: Option<GpuPath>,
}

impl Range {
    fn loses(&self) -> bool {
        self.gpu == Some(GpuPath::LosesBytes)
    }

    /// The status of transfers to or from it, if they fail.
    fn ending(&self) -> Option<Status> {
        match self.gpu {
            Some(GpuPath::Fails(status)) => Some(Status(status)),
            _ => None,
        }
    }
}

impl LibraryState {
    /// The peer of a queue pair, if both are connected to each other and their ports are up.
    pub(crate) fn peer(&self, pair: &Pair) -> Option<u32> {
        let peer = self.pairs.get(&pair.attr.dest_qp_num)?;
        let (near, far) = (&self.devices[pair.device], &self.devices[peer.device]);
        let ready = matches!(peer.state, State::IBV_QPS_RTR | State::IBV_QPS_RTS);
        let open = near.port_is_up(pair.attr.port_num) && far.port_is_up(peer.attr.port_num);
        if !ready || !open || peer.attr.dest_qp_num != pair.number {
            return None;
        }
        let port = far.port(peer.attr.port_num)?;
        let route = &pair.attr.ah_attr;
        // SAFETY: any bytes are a GID.
        let gid = unsafe { route.grh.dgid.raw };
        // On InfiniBand the LID determines the port, not the GID.
        let infiniband = port.link_layer == IBV_LINK_LAYER_INFINIBAND;
        let found = match route.is_global {
            0 => infiniband,
            _ => port.gids.iter().any(|entry| entry.gid == gid),
        };
        let right = found && (!infiniband || route.dlid == port.lid);
        // The first PSNs of both sides must match.
        let counted = peer.attr.rq_psn == pair.attr.sq_psn;
        (right && counted).then_some(peer.number)
    }

    fn range(
        &mut self,
        domain: usize,
        key: u32,
        addr: u64,
        len: usize,
        access: Access,
    ) -> Option<Range> {
        let region = self.regions.get(&key)?;
        if region.domain != domain || !region.permits(access) {
            return None;
        }
        let place = region.place(addr, len)?;
        if place.gpu.is_none() && !dma::is_mapped(place.address, len) {
            self.violation("a transfer", "the memory of a region is unmapped");
            return None;
        }
        Some(Range {
            address: place.address,
            len,
            gpu: place.gpu,
        })
    }

    /// The ranges of a list of segments, or `None` if the access to one is not allowed.
    fn ranges(
        &mut self,
        domain: usize,
        segments: &[ibv_sge],
        access: Access,
    ) -> Option<Vec<Range>> {
        let range = |it: &ibv_sge| self.range(domain, it.lkey, it.addr, it.length as usize, access);
        segments.iter().map(range).collect()
    }

    /// The bytes that the request sends.
    fn gather(&mut self, domain: usize, data: &Data) -> Result<Vec<u8>, Failure> {
        let segments = match data {
            Data::Inline(bytes) => return Ok(bytes.clone()),
            Data::Segments(segments) => segments,
        };
        let ranges = self.ranges(domain, segments, Access::NONE);
        let ranges = ranges.ok_or(Failure::local(Status::IBV_WC_LOC_PROT_ERR))?;
        load(&ranges).map_err(Failure::local)
    }

    /// The memory of the peer that a request accesses.
    fn target(&mut self, peer: u32, target: Target, len: usize, access: Access) -> Option<Range> {
        let pair = &self.pairs[&peer];
        if pair.attr.qp_access_flags & access.0 != access.0 {
            return None;
        }
        self.range(pair.domain, target.rkey, target.addr, len, access)
    }

    /// Stores bytes in the memory of a request or receive. For small messages libmlx5 does so by
    /// CPU, unless "scatter to CQE" is disabled.
    fn scatter(&mut self, number: u32, segments: &[ibv_sge], bytes: &[u8]) -> Result<(), Status> {
        let pair = &self.pairs[&number];
        let (domain, scatters) = (pair.domain, pair.scatters);
        let ranges = self.ranges(domain, segments, Access::IBV_ACCESS_LOCAL_WRITE);
        let ranges = ranges.ok_or(Status::IBV_WC_LOC_PROT_ERR)?;
        if ranges.iter().map(|range| range.len).sum::<usize>() < bytes.len() {
            return Err(Status::IBV_WC_LOC_LEN_ERR);
        }
        let touches_gpu = ranges
            .iter()
            .any(|range| range.gpu.is_some() && range.len > 0);
        if scatters && touches_gpu && bytes.len() <= SCATTERED {
            let what = "libmlx5 copies small messages to GPU pointers by the CPU, and crashes";
            self.violation("scatter to CQE", what);
        }
        store(&ranges, bytes)
    }

    /// Completes the first request of a queue pair with any status.
    fn end(&mut self, number: u32, send: &Send, outcome: Result<usize, Failure>) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.sends.pop_front();
        pair.silent_since = None;
        pair.unready_since = None;
        let (queue, peer) = (pair.send_cq, pair.attr.dest_qp_num);
        let mut entry = Entry {
            wr_id: send.id,
            status: Status::IBV_WC_SUCCESS,
            opcode: send.operation.opcode(),
            vendor_err: 0,
            byte_len: 0,
            immediate: None,
            pair: number,
            solicited: false,
            frees: Some(send.count),
        };
        match outcome {
            Ok(bytes) => {
                entry.byte_len = bytes as u32;
                if send.signalled {
                    self.complete(queue, entry);
                }
            }
            Err(failure) => {
                entry.status = failure.local;
                entry.vendor_err = 0x88;
                self.complete(queue, entry);
                self.break_pair(number);
                if let Some(status) = failure.remote {
                    self.end_receive(peer, status, ibv_wc_opcode::IBV_WC_RECV, 0, None, false);
                    self.break_pair(peer);
                }
                if let Some(event) = failure.event {
                    self.blame(peer, event);
                }
            }
        }
    }

    /// Changes the queue pair of the peer to ERR, and raises its event.
    fn blame(&mut self, peer: u32, event: ibv_event_type) {
        let Some(pair) = self.pairs.get(&peer) else {
            return;
        };
        let (id, subject) = (pair.device, Subject::Pair(pair.object.address()));
        self.break_pair(peer);
        self.raise(id, event.0, subject);
    }

    fn end_receive(
        &mut self,
        number: u32,
        status: Status,
        opcode: ibv_wc_opcode,
        byte_len: usize,
        immediate: Option<__be32>,
        solicited: bool,
    ) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        let Some(receive) = pair.receives.pop_front() else {
            return;
        };
        let entry = Entry {
            wr_id: receive.id,
            status,
            opcode,
            vendor_err: 0,
            byte_len: byte_len as u32,
            immediate,
            pair: number,
            solicited,
            frees: None,
        };
        let queue = pair.recv_cq;
        self.complete(queue, entry);
    }

    /// Completes the first request with a status, without an effect on the peer.
    pub(crate) fn end_first(&mut self, number: u32, status: Status) {
        let first = self
            .pairs
            .get(&number)
            .and_then(|pair| pair.sends.front().cloned());
        if let Some(send) = first {
            self.end(number, &send, Err(Failure::local(status)));
        }
    }

    /// Tries to execute the first request of a queue pair.
    pub(crate) fn perform(&mut self, number: u32, send: &Send) -> Step {
        let pair = &self.pairs[&number];
        let (id, port) = (pair.device, pair.attr.port_num);
        if self.devices[id].held && self.devices[id].port_is_up(port) {
            return Step::Outstanding;
        }
        let Some(peer) = self.peer(pair) else {
            return Step::Silent;
        };
        if let Some((status, vendor_err)) = self.devices[id].endings.pop_front() {
            complete_with(self, number, send, Status(status), vendor_err);
            return Step::Ended;
        }
        let needs_receive = matches!(
            send.operation,
            Operation::Send(_) | Operation::Write(_, Some(_))
        );
        let receive = self.pairs[&peer].receives.front().cloned();
        if needs_receive && receive.is_none() {
            return Step::Unready;
        }
        let outcome = self.attempt(number, peer, send, receive);
        self.end(number, send, outcome);
        Step::Ended
    }

    fn attempt(
        &mut self,
        number: u32,
        peer: u32,
        send: &Send,
        receive: Option<Receive>,
    ) -> Result<usize, Failure> {
        let domain = self.pairs[&number].domain;
        let no_access = || Failure::remote(Status::IBV_WC_REM_ACCESS_ERR);
        match send.operation {
            Operation::Send(immediate) => {
                let bytes = self.gather(domain, &send.data)?;
                let receive = receive.unwrap_or(Receive {
                    id: 0,
                    segments: Vec::new(),
                });
                if let Err(status) = self.scatter(peer, &receive.segments, &bytes) {
                    let local = match status {
                        Status::IBV_WC_LOC_LEN_ERR => Status::IBV_WC_REM_INV_REQ_ERR,
                        _ => Status::IBV_WC_REM_OP_ERR,
                    };
                    return Err(Failure {
                        local,
                        remote: Some(status),
                        event: None,
                    });
                }
                let opcode = ibv_wc_opcode::IBV_WC_RECV;
                let (good, len) = (Status::IBV_WC_SUCCESS, bytes.len());
                self.end_receive(peer, good, opcode, len, immediate, send.solicited);
                Ok(0)
            }
            Operation::Write(target, immediate) => {
                let bytes = self.gather(domain, &send.data)?;
                let access = Access::IBV_ACCESS_REMOTE_WRITE;
                if !bytes.is_empty() {
                    let range = self.target(peer, target, bytes.len(), access);
                    let range = range.ok_or_else(no_access)?;
                    store(&[range], &bytes).map_err(Failure::local)?;
                }
                if immediate.is_some() {
                    let opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
                    let (good, len) = (Status::IBV_WC_SUCCESS, bytes.len());
                    self.end_receive(peer, good, opcode, len, immediate, send.solicited);
                }
                Ok(0)
            }
            Operation::Read(target) => {
                let len = send.data.len();
                let range = self.target(peer, target, len, Access::IBV_ACCESS_REMOTE_READ);
                let bytes = match range {
                    _ if len == 0 => Vec::new(),
                    Some(range) => load(&[range]).map_err(Failure::local)?,
                    None => return Err(no_access()),
                };
                self.give_back(number, send, &bytes)
            }
            Operation::Add(target, value) => {
                let word = self.atomic(peer, target, |word| word.wrapping_add(value))?;
                self.give_back(number, send, &word.to_ne_bytes())
            }
            Operation::Swap(target, compare, swap) => {
                let change = |word| if word == compare { swap } else { word };
                let word = self.atomic(peer, target, change)?;
                self.give_back(number, send, &word.to_ne_bytes())
            }
        }
    }

    /// Stores a response in the memory of its request.
    fn give_back(&mut self, number: u32, send: &Send, bytes: &[u8]) -> Result<usize, Failure> {
        let Data::Segments(segments) = &send.data else {
            return Err(Failure::local(Status::IBV_WC_LOC_QP_OP_ERR));
        };
        self.scatter(number, segments, bytes)
            .map_err(Failure::local)?;
        Ok(bytes.len())
    }

    fn atomic(
        &mut self,
        peer: u32,
        target: Target,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, Failure> {
        if !target.addr.is_multiple_of(8) {
            return Err(Failure::remote(Status::IBV_WC_REM_INV_REQ_ERR));
        }
        let range = self.target(peer, target, 8, Access::IBV_ACCESS_REMOTE_ATOMIC);
        let range = range.ok_or(Failure::remote(Status::IBV_WC_REM_ACCESS_ERR))?;
        if !range.address.is_multiple_of(8) {
            return Err(Failure::remote(Status::IBV_WC_REM_OP_ERR));
        }
        if let Some(status) = range.ending() {
            return Err(Failure::local(status));
        }
        if range.loses() {
            return Ok(0);
        }
        // SAFETY: checked to be in a region, mapped, and aligned.
        Ok(unsafe { dma::change(range.address, change) })
    }
}

/// Completes the request with the configured status and vendor error.
fn complete_with(
    library: &mut LibraryState,
    number: u32,
    send: &Send,
    status: Status,
    vendor_err: u32,
) {
    let Some(pair) = library.pairs.get_mut(&number) else {
        return;
    };
    pair.sends.pop_front();
    pair.silent_since = None;
    pair.unready_since = None;
    let queue = pair.send_cq;
    let entry = Entry {
        wr_id: send.id,
        status,
        opcode: send.operation.opcode(),
        vendor_err,
        byte_len: 0,
        immediate: None,
        pair: number,
        solicited: false,
        frees: Some(send.count),
    };
    library.complete(queue, entry);
    if status != Status::IBV_WC_SUCCESS {
        library.break_pair(number);
    }
}

fn load(ranges: &[Range]) -> Result<Vec<u8>, Status> {
    let mut bytes = Vec::new();
    for range in ranges {
        if let Some(status) = range.ending() {
            return Err(status);
        }
        let start = bytes.len();
        bytes.resize(start + range.len, 0);
        if !range.loses() {
            // SAFETY: checked to be in a region, and mapped.
            unsafe { dma::load(range.address, &mut bytes[start..]) };
        }
    }
    Ok(bytes)
}

fn store(ranges: &[Range], bytes: &[u8]) -> Result<(), Status> {
    let mut rest = bytes;
    for range in ranges {
        if let Some(status) = range.ending() {
            return Err(status);
        }
        let (part, left) = rest.split_at(range.len.min(rest.len()));
        if !range.loses() {
            // SAFETY: checked to be in a region, and mapped.
            unsafe { dma::store(range.address, part) };
        }
        rest = left;
    }
    Ok(())
}
