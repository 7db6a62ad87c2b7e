//! The stock driver's own memory-mapping calls.
//!
//! The NVIDIA driver lets any process allocate a client of its resource manager (RM), take
//! references there on memory objects that the same process owns through CUDA, and map them for
//! the CPU (`NV_ESC_RM_MAP_MEMORY`, then mmap of a device file): what CUDA itself does for its
//! own bookkeeping. No module and no privilege is needed. The one thing that CUDA does not tell
//! is which object a pointer belongs to; [`resolve`] finds it by three routes, and [`selftest`]
//! proves each of them before it is trusted.

mod abi;
mod client;
mod device;
#[cfg(test)]
mod fake;
mod ipc;
mod memory;
mod observe;
mod pieces;
mod port;
mod resolve;
mod selftest;
mod source;
mod status;
#[cfg(test)]
mod tests;
mod versions;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use gdr_cuda::{Bdf, Cuda, DeviceInfo, DevicePtr, Driver, Ordinal};

use self::client::Client;
use self::device::Device;
use self::memory::MapRecord;
use self::pieces::Piece;
use self::port::Kernel;
use self::resolve::Range;
use super::{Backend, Pin, PinRequest, only};
use crate::choice::BackendKind;
use crate::context::Attributes;
use crate::cpu::Caching;
use crate::error::{Error, Result};
use crate::pinned::{Bar1, Route, RouteReport};
use crate::window::{Stretch, Window};

pub use status::RmStatus;

/// The backend.
#[derive(Debug)]
pub(crate) struct RmBackend {
    cuda: Arc<Cuda>,
    client: Arc<Client>,
    /// CUDA's list of GPUs, asked for at the first pin: opening must not initialize CUDA.
    gpus: OnceLock<Vec<DeviceInfo>>,
    devices: Mutex<HashMap<Bdf, Arc<Device>>>,
}

impl RmBackend {
    pub(crate) fn open(cuda: Arc<Cuda>) -> Result<Self> {
        let client = Arc::new(Client::open(Arc::new(Kernel))?);
        Ok(Self {
            cuda,
            client,
            gpus: OnceLock::new(),
            devices: Mutex::default(),
        })
    }

    /// The GPU that CUDA numbers `ordinal`, found in the driver by its PCI address: CUDA's
    /// numbers follow CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, the driver's do not.
    fn device(&self, ordinal: Ordinal) -> Result<Arc<Device>> {
        let gpus = match self.gpus.get() {
            Some(gpus) => gpus,
            None => {
                let gpus = self.cuda.devices()?;
                self.gpus.get_or_init(|| gpus)
            }
        };
        let count = gpus.len() as u32;
        let gpu = gpus.iter().find(|gpu| gpu.ordinal == ordinal);
        let bdf = gpu
            .ok_or(gdr_cuda::Error::NoSuchDevice { ordinal, count })?
            .bdf;

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

    fn resolve(&self, device: &Arc<Device>, range: &Range) -> Result<(Vec<Piece>, Route)> {
        let mut refused = Vec::new();
        let mut unproved = None;
        for route in resolve::ROUTES {
            match resolve::by_route(&self.cuda, device, range, route) {
                Ok(pieces) => match selftest::prove(&self.cuda, device, &range.info, route) {
                    Ok(()) => {
                        resolve::unchanged(&self.cuda, range)?;
                        return Ok((pieces, route));
                    }
                    Err(error) => unproved = Some(error),
                },
                Err(reason) => refused.push((route, reason)),
            }
        }
        // Freed in the meantime: say that, not the ways it shows.
        resolve::unchanged(&self.cuda, range)?;
        Err(unproved.unwrap_or(Error::NoRoute {
            ptr: range.ptr,
            len: range.len,
            refused,
        }))
    }
}

impl Backend for RmBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Rm
    }

    fn reason(&self) -> String {
        let version = self.client.version();
        let trust = versions::trust(version).words();
        format!("the stock NVIDIA driver {version} accepts the calls ({trust})")
    }

    fn pin(&self, request: &PinRequest) -> Result<Box<dyn Pin>> {
        if request.forces_pcie() && !cfg!(target_arch = "x86_64") {
            return Err(Error::ForcePcie {
                backend: BackendKind::Rm,
                reason: "the driver picks the link on coherent platforms",
            });
        }
        let range = Range::locate(&self.cuda, request)?;
        let device = self.device(range.info.device)?;
        let (pieces, route) = self.resolve(&device, &range)?;
        let (va, _, _) = range.widening();
        let len = pieces.iter().map(|piece| piece.len).sum();
        Ok(Box::new(RmPin {
            pieces,
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
        let range = Range::locate(&self.cuda, request)?;
        let device = self.device(range.info.device)?;
        let report = |route| {
            let answer = resolve::by_route(&self.cuda, &device, &range, route);
            let proved = |_| selftest::prove(&self.cuda, &device, &range.info, route);
            let refusal = match answer.map(proved) {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(reason) => Some(reason),
            };
            RouteReport { route, refusal }
        };
        Ok(resolve::ROUTES.into_iter().map(report).collect())
    }
}

#[derive(Debug)]
struct RmPin {
    // Field order is drop order: the last reference on the memory then lies with `mapped`, so
    // that freeing the objects ends their mappings in the same call.
    pieces: Vec<Piece>,
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

    fn map(&self, len: u64, caching: Option<Caching>) -> Result<Window> {
        let mut mapped = self
            .mapped
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        // The driver's part of a mapping stays until the pin goes or another length is asked
        // for: as with the kernel module, it is the pin that takes room in BAR1.
        let current = match mapped.take().filter(|mapped| mapped.len == len) {
            Some(same) => same,
            None => Mapped::new(&self.pieces, len)?,
        };
        only(BackendKind::Rm, current.caching, caching)?;
        let window = current.window()?;
        *mapped = Some(current);
        Ok(window)
    }
}

/// The driver's part of a mapping of the first `len` bytes of some pieces.
#[derive(Debug)]
struct Mapped {
    len: u64,
    caching: Caching,
    files: Vec<(OwnedFd, u64)>,
    _records: Vec<MapRecord>,
}

impl Mapped {
    fn new(pieces: &[Piece], len: u64) -> Result<Self> {
        let mut files = Vec::new();
        let mut records = Vec::new();
        for piece in pieces::head(pieces, len) {
            let (file, record) = piece.memory.map(piece.offset, piece.len)?;
            files.push((file, piece.len));
            records.push(record);
        }
        // The kinds can differ only across GPUs, and a range lies on one.
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

    /// The stretches side by side in the CPU's address space.
    fn window(&self) -> Result<Window> {
        let stretches: Vec<_> = (self.files.iter())
            .map(|(file, len)| Stretch {
                fd: file.as_fd(),
                offset: 0,
                len: *len,
            })
            .collect();
        Window::map(&stretches, self.caching)
    }
}
