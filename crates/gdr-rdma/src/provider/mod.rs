//! Providers, which move the bytes.
//!
//! A provider implements [`DeviceOps`] for its device. Every other object is created by that device and holds it, so
//! objects of one provider cannot be combined with a device of another: the public types own these trait objects and
//! call nothing else. Only [`DomainOps::create_queue_pair`] combines objects of the caller's choice: its completion
//! queues may belong to another device, for which it returns an error.
//!
//! Providers import plain types, buffers, regions and requests, but nothing built on this interface. Code that needs a
//! device's queue pairs, such as the verification of GPU memory registrations, is above it.

mod flush_list;
pub(crate) mod nic;
pub(crate) mod verbs;

use std::any::Any;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use gdr_nic::Deadline;
use gdr_roce::{Access, Capabilities, Completion, LossRecovery, Mtu, Psn, Qpn, State};

pub(crate) use self::flush_list::{FlushList, RdmaWriteFlush};
use crate::error::{Foreign, NicError, Result};
use crate::memory_region::{MemoryRange, Registration, RejectedMethods};
use crate::types::{
    AsyncEvent, ChosenGid, ConnectionOptions, Counters, CqNumber, Domain, Endpoint, Integrity, Lid,
    Provider, SourcePort,
};
use crate::work_request::{RecvRequest, SendRequest};

/// A device.
pub(crate) trait DeviceOps: Any + Debug + Send + Sync {
    fn provider(&self) -> Provider;

    fn name(&self) -> &str;

    /// Returns the address to which peers send.
    fn address(&self) -> SocketAddr;

    fn integrity(&self) -> Integrity;

    fn path_mtu(&self, peer: IpAddr) -> Result<Mtu>;

    fn lid(&self) -> Option<Lid> {
        None
    }

    fn gid(&self) -> Option<&ChosenGid> {
        None
    }

    /// Returns how many bytes of received packets the kernel queues for it.
    fn receive_buffer(&self) -> usize {
        0
    }

    /// Returns how many shards it has.
    fn shards(&self) -> usize {
        1
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Fails in a child of the process that opened the device.
    fn check_process(&self) -> Result<()>;

    /// Receives and sends what is due, without waiting; returns whether there was anything to do.
    fn progress(&self) -> bool {
        false
    }

    /// Returns the next event, without waiting.
    fn poll_event(&self) -> Option<AsyncEvent>;

    /// Returns the next event, or `None` after the deadline.
    fn wait_event(&self, deadline: Deadline) -> Option<AsyncEvent>;

    fn create_domain(self: Arc<Self>, id: Domain) -> Arc<dyn DomainOps>;

    fn create_completion_queue(self: Arc<Self>, capacity: usize) -> Arc<dyn CompletionQueueOps>;

    /// Returns the device of the software NIC, which alone has shared receive queues and datagrams; `None` for other
    /// providers.
    fn nic(&self) -> Option<&gdr_nic::Device> {
        None
    }

    /// Returns how the device accesses GPU memory by DMA; `None` if the CPU or the GPU's copy engine moves the bytes,
    /// which needs neither verification nor flushes.
    fn gpu_dma(&self) -> Option<GpuDma<'_>> {
        None
    }
}

/// Access to GPU memory by a device's own DMA.
#[derive(Clone, Copy)]
pub(crate) struct GpuDma<'a> {
    pub(crate) verification: Verification,
    /// What the device flushes before it returns completions of bytes that arrived.
    pub(crate) flushes: &'a Arc<FlushList>,
}

/// Whether registrations of GPU memory are verified by a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    Run,
    Skip,
}

/// A protection domain.
pub(crate) trait DomainOps: Debug + Send + Sync {
    /// Registers memory with the first method that works and is not in `rejected`. Adds the methods that fail to
    /// `rejected`.
    fn register(
        self: Arc<Self>,
        range: &MemoryRange,
        rejected: &mut RejectedMethods,
    ) -> Result<Registration>;

    /// Creates a queue pair in INIT.
    fn create_queue_pair(
        self: Arc<Self>,
        init: &QueuePairInit<'_>,
    ) -> Result<Box<dyn QueuePairOps>>;
}

/// How to create a queue pair.
#[derive(Debug)]
pub(crate) struct QueuePairInit<'a> {
    pub(crate) queues: &'a QueuesInit<'a>,
    pub(crate) access: Access,
}

/// The queues of a queue pair.
#[derive(Debug)]
pub(crate) struct QueuesInit<'a> {
    pub(crate) send_queue: &'a Arc<dyn CompletionQueueOps>,
    pub(crate) recv_queue: &'a Arc<dyn CompletionQueueOps>,
    pub(crate) shared_receives: Option<&'a gdr_nic::SharedReceiveQueue>,
    pub(crate) capabilities: Capabilities,
}

/// A completion queue.
pub(crate) trait CompletionQueueOps: Any + Debug + Send + Sync {
    fn number(&self) -> CqNumber;

    fn capacity(&self) -> usize;

    /// Returns the next completion, without waiting.
    fn poll(&self) -> Result<Option<Completion>>;

    /// Appends up to `most` completions, without waiting; returns how many.
    fn poll_into(&self, most: usize, completions: &mut Vec<Completion>) -> Result<usize> {
        let before = completions.len();
        while completions.len() - before < most
            && let Some(completion) = self.poll()?
        {
            completions.push(completion);
        }
        Ok(completions.len() - before)
    }

    /// Returns the next completion, or `None` after the deadline.
    fn wait(&self, deadline: Deadline) -> Result<Option<Completion>>;
}

/// A queue pair. Dropping it destroys it.
pub(crate) trait QueuePairOps: Debug + Send + Sync {
    fn qpn(&self) -> Qpn;

    /// Returns the UDP port from which it sends.
    fn source_port(&self) -> SourcePort;

    /// Returns how it can recover losses.
    fn loss_recovery(&self) -> LossRecovery {
        LossRecovery::GoBackN
    }

    fn state(&self) -> State;

    fn to_rtr(&self, peer: &Endpoint, options: &ConnectionOptions) -> Result<()>;

    fn to_rts(&self, psn: Psn, options: &ConnectionOptions) -> Result<()>;

    fn to_error(&self);

    /// Posts requests until one is refused; returns how many were posted. Takes the segments out of posted requests; a
    /// refused request stays whole.
    fn post_sends(&self, requests: &mut [SendRequest]) -> (usize, Result<()>);

    /// Does all work on a request that can be done before it is posted. Its regions belong to the domain of the queue
    /// pair.
    fn prepare(&self, request: SendRequest) -> Result<Box<dyn PreparedSendOps + '_>>;

    fn post_recv(&self, request: RecvRequest) -> Result<()>;
}

/// A prepared request. It keeps the memory of the request registered.
pub(crate) trait PreparedSendOps: Send + Sync {
    /// Posts the request. May be called repeatedly.
    fn post(&mut self) -> Result<()>;
}

/// Returns the completion queue as one provider's type, or an error if it belongs to another provider.
fn downcast_queue<T: CompletionQueueOps>(queue: &Arc<dyn CompletionQueueOps>) -> Result<Arc<T>> {
    let queue: Arc<dyn Any + Send + Sync> = Arc::clone(queue) as _;
    queue
        .downcast()
        .map_err(|_| NicError::Foreign(Foreign::CompletionQueue).into())
}
