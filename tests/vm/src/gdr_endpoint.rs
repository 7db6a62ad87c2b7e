//! An endpoint by gdr-rdma, on a device of any provider.

use std::net::{IpAddr, SocketAddr};

use gdr_rdma::{
    Access, AckTimeout, Buffer, CompletionQueue, ConnectionOptions, Deadline, Device, Immediate,
    MemoryRegion, Psn, Qpn, QueuePair, QueuePairOptions, RecvRequest, Remote, RetryCount, Rkey,
    RnrRetry, SendRequest, SourcePort, VerbsOptions, WcStatus, WrId,
};

use crate::endpoint::{Completion, Endpoint, Peer, Settings, Status, Work};
use crate::rxe_endpoint;

/// The destination port of RoCE.
const PORT: u16 = 4791;

/// A queue pair with its completion queue and memory.
#[derive(Debug)]
pub struct GdrEndpoint {
    device: Device,
    pair: QueuePair,
    queue: CompletionQueue,
    memory: MemoryRegion,
    peer: Option<Peer>,
}

impl GdrEndpoint {
    /// Creates a queue pair and `len` bytes of memory.
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

    /// The device.
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

impl Endpoint for GdrEndpoint {
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
        let endpoint = gdr_rdma::Endpoint {
            address: SocketAddr::new(peer.ip, PORT),
            qpn: Qpn::new(peer.qpn),
            psn: Psn::new(peer.psn),
            lid: None,
            source_port: SourcePort::Any,
            loss_recovery: gdr_rdma::LossRecovery::GoBackN,
        };
        let mut options = ConnectionOptions::new(settings.mtu);
        options.timeout = AckTimeout::new(settings.timeout);
        options.retry_count = RetryCount::new(settings.retries);
        options.rnr_retry = RnrRetry::new(settings.rnr_retries);
        self.pair.connect(&endpoint, &options).expect("connect");
        self.peer = Some(*peer);
    }

    fn fill(&self, at: u64, bytes: &[u8]) {
        self.memory.buffer().write_at(at, bytes).expect("in range");
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let buffer = self.memory.buffer();
        buffer.read_at(at, &mut bytes).expect("in range");
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

    fn wait(&self, deadline: Deadline) -> Option<Completion> {
        let completion = self.queue.wait(deadline).ok()?;
        let status = match completion.status {
            WcStatus::Success => Status::Success,
            WcStatus::RemoteAccess => Status::RemoteAccess,
            WcStatus::RemoteInvalidRequest => Status::RemoteInvalidRequest,
            WcStatus::RemoteOperation => Status::RemoteOperation,
            WcStatus::RetryExceeded => Status::RetryExceeded,
            WcStatus::RnrRetryExceeded => Status::RnrRetryExceeded,
            WcStatus::WrFlushed => Status::Flushed,
            other => Status::Other(other as i64),
        };
        Some(Completion {
            id: completion.id.0,
            status,
            bytes: completion.byte_len,
            immediate: completion.immediate.map(|value| value.0),
            source_qpn: completion.source_qpn.map(Qpn::get),
        })
    }
}

/// The rxe device with this name by the verbs provider, at the GID of this address.
///
/// # Errors
/// Those of [`Device::verbs`].
pub fn rxe_device(name: &str, ip: IpAddr) -> anyhow::Result<Device> {
    let index = rxe_endpoint::Device::open(name)?.gid_index(ip)?;
    let options = VerbsOptions::new().device(name).gid_index(index.into());
    Ok(Device::verbs(&options)?)
}
