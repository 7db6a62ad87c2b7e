//! One way into memory, with a connection of its own.

use std::sync::Arc;

use gdr_cuda::DeviceBuffer;
use gdr_rdma::{
    Access, Buffer, Device, MemoryRegion, Mtu, ProtectionDomain, Provider, RemoteMemory,
    SendRequest, WrId,
};

use super::super::link::Link;
use super::super::registered::Registered;
use super::super::settings::Reach;
use super::super::stage::Stage;
use super::super::{Place, gpu};
use super::SweepSettings;
use super::report::{Operation, Way};
use crate::error::Result;
use crate::report::Subject;

/// What is behind a lane, without RDMA.
pub(super) enum Target {
    Host(Buffer),
    Gpu(Arc<DeviceBuffer>),
}

impl Target {
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Host(buffer) => Ok(buffer.copy_in(offset, bytes)?),
            Self::Gpu(buffer) => Ok(buffer.write(offset, bytes)?),
        }
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match self {
            Self::Host(buffer) => Ok(buffer.copy_out(offset, bytes)?),
            Self::Gpu(buffer) => Ok(buffer.read(offset, bytes)?),
        }
    }
}

/// One way into memory.
pub(super) struct Lane {
    pub(super) way: Way,
    pub(super) here: Link,
    remote: RemoteMemory,
    pub(super) target: Target,
    /// Host memory in the place of the GPU's, where the device does not reach that.
    pub(super) stage: Option<Stage>,
    // Field order is drop order: nothing reaches the memory any more when its region goes.
    _there: Link,
    _region: MemoryRegion,
}

impl Lane {
    pub(super) fn post(
        &self,
        operation: Operation,
        source: &MemoryRegion,
        sink: &MemoryRegion,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let (id, remote) = (WrId(offset), self.remote.at(offset));
        let request = match operation {
            Operation::Write => {
                SendRequest::write(id, remote).segment(source.segment(offset, len)?)
            }
            Operation::Read => SendRequest::read(id, remote).segment(sink.segment(offset, len)?),
        };
        Ok(self.here.pair().post_send(request)?)
    }
}

/// The lanes, and what is to be said of them.
pub(super) struct Lanes {
    pub(super) lanes: Vec<Lane>,
    pub(super) subject: Subject,
    pub(super) direct_missing: Option<String>,
    pub(super) long_reads_from: Option<u64>,
}

/// Makes a lane for each way that the settings want.
pub(super) fn build(
    place: &Place,
    here: &ProtectionDomain,
    to: &Device,
    mtu: Mtu,
    settings: &SweepSettings,
) -> Result<Lanes> {
    let len = settings.largest;
    let there = to.protection_domain();
    let buffer = Arc::new(place.gpu().allocate(settings.memory, len)?);
    let limit = settings.limit(len);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let lane = |way, region: MemoryRegion, target, stage| -> Result<Lane> {
        let (near, far) = (Link::new(here)?, Link::new(&there)?);
        near.connect(&far.pair().endpoint(), mtu, limit)?;
        far.connect(&near.pair().endpoint(), mtu, limit)?;
        Ok(Lane {
            way,
            here: near,
            remote: region.remote(),
            target,
            stage,
            _there: far,
            _region: region,
        })
    };
    let host = Buffer::host(len as usize)?;
    let region = there.register(&host, access)?;
    let lanes = vec![lane(Way::Host, region, Target::Host(host), None)?];
    let target = || Target::Gpu(Arc::clone(&buffer));
    let mut lanes = Lanes {
        lanes,
        subject: place.subject(),
        direct_missing: None,
        long_reads_from: None,
    };
    let wanted = settings.reach;
    let staged = if to.provider() == Provider::Verbs {
        let register = |wanted| Registered::new(&there, &buffer, 0, len, access, wanted);
        let made = register(wanted)?;
        if made.stage.is_some() {
            lanes.direct_missing = Some(match &made.refusals[..] {
                [] => made.why,
                refusals => refusals.join("; "),
            });
            Some((made.region, made.stage))
        } else {
            let direct = lane(Way::Direct, made.region, target(), None)?;
            lanes.lanes.push(direct);
            match wanted {
                Reach::Direct => None,
                _ => {
                    let made = register(Reach::Staged)?;
                    Some((made.region, made.stage))
                }
            }
        }
    } else {
        let direct = gpu::reach(place, &buffer, wanted)?;
        lanes.subject = direct.subject;
        match direct.mapping {
            Some(mapping) => {
                let memory = gpu::direct(mapping, &buffer)?;
                lanes.long_reads_from = memory.long_reads_from();
                let region = there.register(&memory, access)?;
                lanes.lanes.push(lane(Way::Direct, region, target(), None)?);
            }
            None => lanes.direct_missing = Some(direct.why),
        }
        match wanted {
            Reach::Direct => None,
            _ => {
                let memory = Buffer::staged(Arc::clone(&buffer))?;
                Some((there.register(&memory, access)?, None))
            }
        }
    };
    if let Some((region, stage)) = staged {
        lanes
            .lanes
            .push(lane(Way::Staged, region, target(), stage)?);
    }
    Ok(lanes)
}
