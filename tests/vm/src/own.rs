//! A side by gdr itself, with whichever provider the device is of.

use std::net::SocketAddr;

use gdr_rdma::{
    Access, AckTimeout, Buffer, CompletionQueue, ConnectionOptions, Deadline, Device, Endpoint,
    Immediate, MemoryRegion, Psn, Qpn, QueuePair, QueuePairOptions, RecvRequest, Remote,
    RetryCount, Rkey, RnrRetry, SendRequest, WcStatus, WrId,
};

use crate::end::{Done, End, Outcome, Peer, Settings, Work};

/// RoCE's port, to which everybody sends.
const PORT: u16 = 4791;

/// One queue pair.
#[derive(Debug)]
pub struct OwnEnd {
    device: Device,
    pair: QueuePair,
    queue: CompletionQueue,
    memory: MemoryRegion,
    peer: Option<Peer>,
}

impl OwnEnd {
    /// A queue pair and `len` bytes of memory.
    ///
    /// # Errors
    /// Those of the device.
    pub fn new(device: &Device, len: usize) -> anyhow::Result<Self> {
        let domain = device.protection_domain();
        let queue = device.completion_queue(1024);
        let pair = domain.queue_pair(&QueuePairOptions::new(&queue))?;
        let memory = domain.register(&Buffer::host(len)?, Access::all())?;
        Ok(Self {
            device: device.clone(),
            pair,
            queue,
            memory,
            peer: None,
        })
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn remote(&self, offset: u64) -> Remote {
        let peer = self.peer.expect("connected");
        Remote {
            rkey: Rkey(peer.rkey),
            addr: peer.addr + offset,
        }
    }
}

impl End for OwnEnd {
    fn name(&self) -> String {
        self.device.name().to_owned()
    }

    fn peer(&self) -> Peer {
        let endpoint = self.pair.endpoint();
        Peer {
            ip: endpoint.address.ip(),
            qpn: endpoint.qpn.get(),
            psn: endpoint.psn.get(),
            addr: self.memory.addr(),
            rkey: self.memory.rkey().0,
        }
    }

    fn connect(&mut self, peer: &Peer, settings: &Settings) {
        let endpoint = Endpoint {
            address: SocketAddr::new(peer.ip, PORT),
            qpn: Qpn::new(peer.qpn),
            psn: Psn::new(peer.psn),
            lid: None,
        };
        let mut options = ConnectionOptions::new(settings.mtu);
        options.timeout = AckTimeout::new(settings.timeout);
        options.retry_count = RetryCount::new(settings.retries);
        options.rnr_retry = RnrRetry::new(settings.rnr_retries);
        self.pair.connect(&endpoint, &options).expect("connect");
        self.peer = Some(*peer);
    }

    fn fill(&self, at: u64, bytes: &[u8]) {
        self.memory.buffer().copy_in(at, bytes).expect("in range");
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let buffer = self.memory.buffer();
        buffer.copy_out(at, &mut bytes).expect("in range");
        bytes
    }

    fn receive(&self, id: u64, at: u64, len: u32) {
        let segment = self.memory.segment(at, len.into()).expect("in range");
        let request = RecvRequest::new(WrId(id)).segment(segment);
        self.pair.post_recv(request).expect("post_recv");
    }

    fn post(&self, id: u64, work: Work) {
        let id = WrId(id);
        let segment = |at, len: u32| self.memory.segment(at, len.into()).expect("in range");
        let with = |request: SendRequest, immediate: Option<u32>| match immediate {
            Some(value) => request.immediate(Immediate(value)),
            None => request,
        };
        let request = match work {
            Work::Send {
                local,
                len,
                immediate,
            } => with(SendRequest::send(id), immediate).segment(segment(local, len)),
            Work::Write {
                local,
                len,
                remote,
                immediate,
            } => with(SendRequest::write(id, self.remote(remote)), immediate)
                .segment(segment(local, len)),
            Work::Read { local, len, remote } => {
                SendRequest::read(id, self.remote(remote)).segment(segment(local, len))
            }
            Work::Atomic { local, remote, op } => {
                SendRequest::atomic(id, self.remote(remote), op).segment(segment(local, 8))
            }
        };
        self.pair.post_send(request).expect("post_send");
    }

    fn wait(&self, deadline: Deadline) -> Option<Done> {
        let completion = self.queue.wait(deadline).ok()?;
        let outcome = match completion.status {
            WcStatus::Success => Outcome::Success,
            WcStatus::RemoteAccess => Outcome::RemoteAccess,
            WcStatus::RemoteInvalidRequest => Outcome::RemoteInvalidRequest,
            WcStatus::RemoteOperation => Outcome::RemoteOperation,
            WcStatus::RetryExceeded => Outcome::RetryExceeded,
            WcStatus::RnrRetryExceeded => Outcome::RnrRetryExceeded,
            WcStatus::WrFlushed => Outcome::Flushed,
            other => Outcome::Other(other as i64),
        };
        Some(Done {
            id: completion.id.0,
            outcome,
            bytes: completion.byte_len,
            immediate: completion.immediate.map(|value| value.0),
        })
    }
}
