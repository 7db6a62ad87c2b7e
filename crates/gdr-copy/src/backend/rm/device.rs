//! A GPU as objects of an RM client.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use gdr_cuda::{Bdf, BufferId};

use super::abi::{self, FbInfo, GpuIdInfo, Handle, IndexedInfo};
use super::client::{Card, Client};
use crate::error::Result;
use crate::report::Bar1;

#[derive(Debug)]
pub(super) struct Device {
    client: Arc<Client>,
    card: Card,
    device: Handle,
    subdevice: Handle,
    instance: u32,
    sizes: Mutex<HashMap<Identity, u64>>,
    /// Keeps the GPU attached to the driver.
    _node: OwnedFd,
}

/// An object of CUDA, and the allocation that it was found for. An object exists as long as its allocation, and the
/// serial number of an allocation is never reused, so the pair is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    /// `None` if several objects back the range; its size is then not cached.
    pub(super) buffer: Option<BufferId>,
    pub(super) client: Handle,
    pub(super) object: Handle,
}

/// The maximum number of cached sizes; the cache is cleared when it is full.
const MAX_SIZES: usize = 4096;

impl Device {
    pub(super) fn open(client: Arc<Client>, card: Card) -> Result<Self> {
        // First, because this attaches the GPU to the driver, where the objects below are allocated.
        let node = client.open_gpu(card.minor)?;
        let root = client.handle();
        let mut id = GpuIdInfo {
            gpu_id: card.gpu_id,
            ..Default::default()
        };
        client.control(root, &mut id, "the GPU's number")?;
        let mut params = abi::DeviceParams {
            device_id: id.device_instance,
            ..Default::default()
        };
        let device = client.alloc(root, abi::CLASS_DEVICE, &mut params, "a device")?;
        let mut params = abi::SubdeviceParams {
            subdevice_id: id.subdevice_instance,
        };
        let subdevice = client
            .alloc(device, abi::CLASS_SUBDEVICE, &mut params, "a subdevice")
            .inspect_err(|_| client.free(root, device))?;
        Ok(Self {
            client,
            card,
            device,
            subdevice,
            instance: id.device_instance,
            sizes: Mutex::default(),
            _node: node,
        })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn handle(&self) -> Handle {
        self.device
    }

    pub(super) fn subdevice(&self) -> Handle {
        self.subdevice
    }

    /// Returns the driver's number of this device, which is part of exported objects.
    pub(super) fn instance(&self) -> u32 {
        self.instance
    }

    pub(super) fn bdf(&self) -> Bdf {
        self.card.bdf
    }

    /// Returns a new file of this GPU. Each file can be mapped once (`nv-usermap.c`).
    pub(super) fn file(&self) -> Result<OwnedFd> {
        self.client.open_gpu(self.card.minor)
    }

    /// Returns the size of an object, from the cache or from `ask`. The query takes a third of the time of a pin, and
    /// programs pin the same buffers repeatedly.
    pub(super) fn size_of(
        &self,
        identity: Identity,
        ask: impl FnOnce() -> Result<u64>,
    ) -> Result<u64> {
        let sizes = || {
            self.sizes
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        };
        if let Some(&size) = sizes().get(&identity) {
            return Ok(size);
        }
        // Not locked during the driver call, so two threads may both query the size.
        let size = ask()?;
        if identity.buffer.is_none() {
            return Ok(size);
        }
        let mut sizes = sizes();
        // All entries at once: buffers that a program pins repeatedly are soon cached again.
        if sizes.len() >= MAX_SIZES {
            sizes.clear();
        }
        sizes.insert(identity, size);
        Ok(size)
    }

    /// Returns the size and free space of BAR1, or `None` if the driver does not report them.
    pub(super) fn bar1(&self) -> Option<Bar1> {
        let mut info = FbInfo {
            count: 2,
            list: [IndexedInfo::default(); 0x80],
        };
        info.list[0].index = abi::FB_BAR1_SIZE;
        info.list[1].index = abi::FB_BAR1_AVAILABLE;
        let answer = self
            .client
            .control(self.subdevice, &mut info, "the size of BAR1");
        // The driver counts in KiB.
        let kib = |entry: IndexedInfo| u64::from(entry.data) << 10;
        answer
            .inspect_err(|error| tracing::debug!("{error}"))
            .ok()
            .map(|()| Bar1 {
                total: kib(info.list[0]),
                free: kib(info.list[1]),
            })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Freeing the device frees its subdevice.
        self.client.free(self.client.handle(), self.device);
    }
}
