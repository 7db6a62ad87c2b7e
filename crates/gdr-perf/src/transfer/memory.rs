//! The registered memory of one end.

use std::net::IpAddr;

use gdr_rdma::{Access, ProtectionDomain, RegistrationMethod};

use super::plan::Request;
use crate::error::{Result, SettingsError};
use crate::expected::Expected;
use crate::memory_facts::MemoryFacts;
use crate::registered_buffer::{RegisteredBuffer, StandIn, TransferMemory};
use crate::report::CpuPlacement;

/// What an end contributes to a measurement.
#[derive(Clone, Debug)]
pub struct LocalEnd<'a> {
    /// Its memory.
    pub memory: TransferMemory<'a>,
    /// Address from which it connects; if `None`, the device's, or any address with a key.
    pub connect_from: Option<IpAddr>,
    /// The CPUs that its process was bound to, for the report.
    pub cpus: Option<CpuPlacement>,
    /// How GPU memory may be reached.
    pub reach: Reach,
    /// Settings that it requires its peer to choose, if it listens.
    pub expected: Option<Expected<Request>>,
}

/// How the device of an end may reach GPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// In any way.
    #[default]
    Any,
    /// Registered by a dma-buf.
    DmaBuf,
}

impl<'a> From<TransferMemory<'a>> for LocalEnd<'a> {
    fn from(memory: TransferMemory<'a>) -> Self {
        Self {
            memory,
            connect_from: None,
            cpus: None,
            reach: Reach::Any,
            expected: None,
        }
    }
}

/// Both buffers of an end.
pub(super) struct EndMemory {
    /// What it sends and offers for READ, and the results of its atomic operations.
    pub(super) outgoing: RegisteredBuffer,
    /// What it receives, what the peer writes and changes, and the results of its READs.
    pub(super) incoming: RegisteredBuffer,
    pub(super) facts: MemoryFacts,
}

fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

impl EndMemory {
    pub(super) fn new(domain: &ProtectionDomain, own: &LocalEnd<'_>, len: u64) -> Result<Self> {
        let registered =
            || RegisteredBuffer::new(domain, own.memory, len, access(), StandIn::Refused);
        let ((outgoing, _), (incoming, facts)) = (registered()?, registered()?);
        for method in [outgoing.method(), incoming.method()] {
            if own.reach == Reach::DmaBuf && method != RegistrationMethod::DmaBuf {
                let device = domain.device().name().to_owned();
                return Err(SettingsError::NotByDmaBuf { device, method }.into());
            }
        }
        Ok(Self {
            outgoing,
            incoming,
            facts,
        })
    }
}
