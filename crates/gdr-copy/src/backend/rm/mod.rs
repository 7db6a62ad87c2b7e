//! The stock driver's own memory-mapping calls.
//!
//! The NVIDIA driver lets any process allocate a client of its resource manager (RM), duplicate memory objects there
//! that the same process owns through CUDA, and map them for the CPU (`NV_ESC_RM_MAP_MEMORY`, then mmap of a device
//! file), as CUDA itself does. No module and no privilege is required. CUDA does not report the object of a pointer;
//! [`resolve`] finds it by three routes, and [`selftest`] tests each of them before it is used.

mod abi;
mod client;
mod cuda;
mod device;
mod extents;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod fake_cuda;
mod ioctl;
mod ioctl_hook;
mod ipc;
mod memory;
mod resolve;
#[cfg(test)]
mod route_tests;
mod selftest;

pub(crate) mod status;
#[cfg(test)]
mod tests;
mod versions;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use gdr_cuda::{Bdf, Cuda, DeviceInfo, DevicePtr, Ordinal};

use self::client::Client;
use self::cuda::CudaCalls;
use self::device::Device;
use self::extents::Extent;
use self::ioctl::{KernelIoctl, RmIoctl};
use self::memory::MapRecord;
use self::resolve::Range;
use self::selftest::Verdicts;
use super::{Backend, Pin, PinRequest, only};
use crate::backend_kind::BackendKind;
use crate::bar_mapping::{BarMapping, FdRange};
use crate::cpu::Caching;
use crate::error::{Error, Result};
use crate::report::Attributes;
use crate::report::{Bar1, Route, RouteReport};

use self::status::RmStatus;
/// The backend of the stock driver.
#[derive(Debug)]
pub(crate) struct RmBackend {
    cuda: Arc<dyn CudaCalls>,
    client: Arc<Client>,
    /// CUDA's list of GPUs, queried at the first pin: opening must not initialize CUDA.
    gpus: OnceLock<Vec<DeviceInfo>>,
    devices: Mutex<HashMap<Bdf, Arc<Device>>>,
    /// The results of the self-tests of the routes.
    verdicts: &'static Verdicts,
}

impl RmBackend {
    pub(crate) fn open(cuda: Arc<Cuda>) -> Result<Self> {
        Self::over(cuda, Arc::new(KernelIoctl), &selftest::VERDICTS)
    }

    /// Creates the backend over CUDA and the Linux kernel, or over fakes.
    fn over(
        cuda: Arc<dyn CudaCalls>,
        ioctl: Arc<dyn RmIoctl>,
        verdicts: &'static Verdicts,
    ) -> Result<Self> {
        Ok(Self {
            cuda,
            client: Arc::new(Client::open(ioctl)?),
            verdicts,
            gpus: OnceLock::new(),
            devices: Mutex::default(),
        })
    }

    /// Returns the GPU that CUDA numbers `ordinal`, found in the driver by its PCI address: CUDA's numbers depend on
    /// CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, the driver's do not.
    fn device(&self, ordinal: Ordinal) -> Result<Arc<Device>> {
        let gpus = match self.gpus.get() {
            Some(gpus) => gpus,
            None => {
                // Queried outside `get_or_init`, whose closure cannot fail.
                let gpus = self.cuda.devices()?;
                self.gpus.get_or_init(|| gpus)
            }
        };
        let count = gpus.len() as u32;
        let gpu = gpus.iter().find(|gpu| gpu.ordinal == ordinal);
        let bdf = gpu
            .ok_or(gdr_cuda::Error::NoSuchDevice { ordinal, count })?
            .bdf;

        // Locked while the GPU is opened, so that two threads do not both open it.
        let mut devices = self
            .devices
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(device) = devices.get(&bdf) {
            return Ok(device.clone());
        }
        let card = self
            .client
            .cards()?
            .into_iter()
            .find(|card| card.bdf == bdf);
        let card = card.ok_or(Error::Rm {
            call: "NV_ESC_CARD_INFO",
            what: "the GPU that CUDA names by its PCI address",
            status: RmStatus::OBJECT_NOT_FOUND,
        })?;
        let device = Arc::new(Device::open(self.client.clone(), card)?);
        devices.insert(bdf, device.clone());
        Ok(device)
    }

    fn prove(&self, device: &Arc<Device>, range: &Range, route: Route) -> Result<()> {
        selftest::prove(self.verdicts, &*self.cuda, device, &range.info, route)
    }

    fn resolve(&self, device: &Arc<Device>, range: &Range) -> Result<(Vec<Extent>, Route)> {
        let mut refused = Vec::new();
        let mut unproved = None;
        for route in resolve::ROUTES {
            match resolve::by_route(&*self.cuda, device, range, route) {
                // The route is tested on memory of this library before it is used on the caller's.
                Ok(extents) => match self.prove(device, range, route) {
                    Ok(()) => {
                        // Checked with the references taken: from here on the memory cannot be given to another owner.
                        resolve::unchanged(&*self.cuda, range)?;
                        return Ok((extents, route));
                    }
                    // The next route may pass its test.
                    Err(error) => unproved = Some(error),
                },
                Err(reason) => refused.push((route, reason.to_string())),
            }
        }
        // If the memory was freed in the meantime, report that error.
        resolve::unchanged(&*self.cuda, range)?;
        Err(unproved.unwrap_or(Error::NoRoute {
            ptr: range.ptr,
            len: range.len,
            refused,
        }))
    }
}

/// Returns what is known about the `rm` backend with this version of NVIDIA's driver, as the end of a sentence.
pub fn driver_evidence(version: &str) -> &'static str {
    versions::trust(version).words()
}

impl Backend for RmBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Rm
    }

    fn reason(&self) -> String {
        let version = self.client.version();
        let trust = driver_evidence(version);
        format!("the stock NVIDIA driver {version} accepts the calls ({trust})")
    }

    fn pin(&self, request: &PinRequest) -> Result<Box<dyn Pin>> {
        if request.forces_pcie() && !cfg!(target_arch = "x86_64") {
            return Err(Error::ForcePcie {
                backend: BackendKind::Rm,
                reason: "the driver chooses the link on coherent platforms",
            });
        }
        let range = Range::locate(&*self.cuda, request)?;
        let device = self.device(range.info.device)?;
        let (extents, route) = self.resolve(&device, &range)?;
        let (va, _, _) = range.widening();
        let len = extents.iter().map(|extent| extent.len).sum();
        Ok(Box::new(RmPin {
            extents,
            va,
            len,
            route,
            mapped: Mutex::new(None),
        }))
    }

    fn attributes(&self) -> Attributes {
        Attributes {
            persistent: true,
            force_pcie: false,
            dma_buf_mmap: false,
            module: None,
        }
    }

    fn bar1(&self, device: Ordinal) -> Result<Option<Bar1>> {
        Ok(self.device(device)?.bar1())
    }

    fn routes(&self, request: &PinRequest) -> Result<Vec<RouteReport>> {
        let range = Range::locate(&*self.cuda, request)?;
        let device = self.device(range.info.device)?;
        let report = |route| {
            let answer = resolve::by_route(&*self.cuda, &device, &range, route);
            let proved = |_| self.prove(&device, &range, route);
            let refusal = match answer.map(proved) {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(reason) => Some(reason.to_string()),
            };
            RouteReport { route, refusal }
        };
        Ok(resolve::ROUTES.into_iter().map(report).collect())
    }
}

#[derive(Debug)]
struct RmPin {
    // Field order is drop order: `mapped` then has the last reference on the memory, so freeing the objects ends their
    // mappings in the same call.
    extents: Vec<Extent>,
    mapped: Mutex<Option<Mapped>>,
    va: DevicePtr,
    len: u64,
    route: Route,
}

impl Pin for RmPin {
    fn va(&self) -> DevicePtr {
        self.va
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn route(&self) -> Route {
        self.route
    }

    fn map(&self, len: u64, caching: Option<Caching>) -> Result<BarMapping> {
        let mut mapped = self
            .mapped
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        // The driver's part of a mapping is kept until the pin is dropped or another length is mapped: as with the
        // kernel module, the pin occupies space in BAR1.
        let current = match mapped.take().filter(|mapped| mapped.len == len) {
            Some(same) => same,
            None => Mapped::new(&self.extents, len)?,
        };
        // The driver has chosen the kind, so the caller's choice can only be compared with it.
        only(BackendKind::Rm, current.caching, caching)?;
        let mapping = current.bar_mapping()?;
        *mapped = Some(current);
        Ok(mapping)
    }
}

/// The driver's part of a mapping of the first `len` bytes of the extents of a range.
#[derive(Debug)]
struct Mapped {
    len: u64,
    caching: Caching,
    files: Vec<(OwnedFd, u64)>,
    _records: Vec<MapRecord>,
}

impl Mapped {
    fn new(extents: &[Extent], len: u64) -> Result<Self> {
        let mut files = Vec::new();
        let mut records = Vec::new();
        for extent in extents::head(extents, len) {
            let (file, record) = extent.memory.map(extent.offset, extent.len)?;
            files.push((file, extent.len));
            records.push(record);
        }
        // The kinds can differ only between GPUs, and a range is on one GPU.
        let caching = records
            .first()
            .map_or(Caching::WriteCombined, MapRecord::caching);
        Ok(Self {
            len,
            caching,
            files,
            _records: records,
        })
    }

    /// Maps the extents side by side.
    fn bar_mapping(&self) -> Result<BarMapping> {
        let ranges: Vec<_> = (self.files.iter())
            .map(|(file, len)| FdRange {
                fd: file.as_fd(),
                offset: 0,
                len: *len,
            })
            .collect();
        BarMapping::map(&ranges, self.caching)
    }
}
