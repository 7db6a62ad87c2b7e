//! A client of the driver's resource manager.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use gdr_cuda::Bdf;

use super::abi::{self, ControlParams, Escape, Handle};
use super::ioctl::{Node, RmIoctl};
use super::status::RmStatus;
use crate::error::{Error, Result};
use gdr_process::ProcessId;

/// A client: a name space of RM objects, bound to one open file and one process.
///
/// The driver checks that each call uses the file that made the client, and comes from the process that made it
/// (`rmapi/client.c`, `osapi.c`).
pub(super) struct Client {
    ioctl: Arc<dyn RmIoctl>,
    control: OwnedFd,
    handle: Handle,
    origin: ProcessId,
    version: String,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:#x}, driver {})", self.handle.0, self.version)
    }
}

/// A GPU as the driver lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) bdf: Bdf,
    pub(super) gpu_id: u32,
    pub(super) minor: u32,
}

impl Client {
    pub(super) fn open(ioctl: Arc<dyn RmIoctl>) -> Result<Self> {
        let control = open_node(&*ioctl, Node::Control)?;
        let mut version = abi::ApiVersion {
            // `NV_RM_API_VERSION_CMD_QUERY`: the driver reports its version without comparing it.
            cmd: u32::from(b'2'),
            reply: 0,
            version: [0; 64],
        };
        escape(
            &*ioctl,
            &control,
            Escape::CheckVersion,
            &mut version,
            "the driver's version",
        )?;
        let mut client = Self {
            ioctl,
            control,
            handle: Handle(0),
            origin: ProcessId::current(),
            version: text(&version.version),
        };
        client.handle = client.alloc(Handle(0), abi::CLASS_ROOT_CLIENT, &mut (), "a client")?;
        Ok(client)
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// Returns the driver's version, e.g. `580.159.04`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    pub(super) fn origin(&self) -> ProcessId {
        self.origin
    }

    pub(super) fn open_gpu(&self, minor: u32) -> Result<OwnedFd> {
        open_node(&*self.ioctl, Node::Gpu { minor })
    }

    /// Returns every GPU of the driver, including those whose node is not visible to this process.
    pub(super) fn cards(&self) -> Result<Vec<Card>> {
        let mut cards = [abi::CardInfo::default(); abi::MAX_CARDS];
        self.escape(Escape::CardInfo, &mut cards, "the list of GPUs")?;
        let cards = cards
            .iter()
            .filter(|card| card.valid != 0)
            .map(|card| Card {
                bdf: Bdf {
                    domain: card.domain,
                    bus: card.bus,
                    device: card.slot,
                    function: card.function,
                },
                gpu_id: card.gpu_id,
                minor: card.minor,
            });
        Ok(cards.collect())
    }

    /// Allocates an object of `class`; the driver chooses its handle.
    pub(super) fn alloc<T>(
        &self,
        parent: Handle,
        class: u32,
        params: &mut T,
        what: &'static str,
    ) -> Result<Handle> {
        let size = size_of::<T>();
        let mut alloc = abi::Alloc {
            root: self.handle,
            parent,
            object: Handle(0),
            class,
            params: if size == 0 {
                0
            } else {
                std::ptr::from_mut(params) as u64
            },
            params_size: size as u32,
            status: 0,
        };
        self.escape(Escape::RmAlloc, &mut alloc, what)?;
        // The system call succeeds even if the driver refuses: its status is in the structure.
        check("NV_ESC_RM_ALLOC", what, alloc.status)?;
        Ok(alloc.object)
    }

    pub(super) fn control<P: ControlParams>(
        &self,
        object: Handle,
        params: &mut P,
        what: &'static str,
    ) -> Result<()> {
        let mut control = abi::Control {
            client: self.handle,
            object,
            cmd: P::CMD,
            flags: 0,
            params: std::ptr::from_mut(params) as u64,
            params_size: size_of::<P>() as u32,
            status: 0,
        };
        self.escape(Escape::RmControl, &mut control, what)?;
        check(P::NAME, what, control.status)
    }

    /// Duplicates another client's object, which gives this client a reference to it. The driver allows it for memory
    /// of the same process (`rmapi/sharing.c`, RS_SHARE_TYPE_PID).
    pub(super) fn dup(&self, parent: Handle, source: (Handle, Handle)) -> Result<Handle> {
        let what = "a reference on CUDA's memory object";
        let mut dup = abi::Dup {
            client: self.handle,
            parent,
            source_client: source.0,
            source_object: source.1,
            ..Default::default()
        };
        self.escape(Escape::RmDupObject, &mut dup, what)?;
        check("NV_ESC_RM_DUP_OBJECT", what, dup.status)?;
        Ok(dup.object)
    }

    pub(super) fn map(&self, params: &mut abi::MapMemory) -> Result<()> {
        let what = "a CPU mapping";
        params.client = self.handle;
        self.escape(Escape::RmMapMemory, params, what)?;
        check("NV_ESC_RM_MAP_MEMORY", what, params.status)
    }

    pub(super) fn unmap(&self, params: &mut abi::UnmapMemory) -> Result<()> {
        let what = "the end of a CPU mapping";
        params.client = self.handle;
        self.escape(Escape::RmUnmapMemory, params, what)?;
        check("NV_ESC_RM_UNMAP_MEMORY", what, params.status)
    }

    /// Frees an object of this client. Does nothing in a child: the objects belong to its parent.
    pub(super) fn free(&self, parent: Handle, object: Handle) {
        if !self.origin.is_current() {
            return;
        }
        let mut free = abi::Free {
            root: self.handle,
            parent,
            object,
            status: 0,
        };
        let what = "the release of an object";
        let freed = self
            .escape(Escape::RmFree, &mut free, what)
            .and_then(|()| check("NV_ESC_RM_FREE", what, free.status));
        if let Err(error) = freed {
            tracing::warn!("{error}");
        }
    }

    fn escape<T>(&self, number: Escape, params: &mut T, what: &'static str) -> Result<()> {
        escape(&*self.ioctl, &self.control, number, params, what)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.handle != Handle(0) {
            self.free(Handle(0), self.handle);
        }
    }
}

fn open_node(ioctl: &dyn RmIoctl, node: Node) -> Result<OwnedFd> {
    ioctl.open(node).map_err(|source| Error::DeviceNode {
        path: node.to_string(),
        source,
    })
}

fn escape<T>(
    ioctl: &dyn RmIoctl,
    fd: &OwnedFd,
    number: Escape,
    params: &mut T,
    what: &'static str,
) -> Result<()> {
    let arg = std::ptr::from_mut(params).cast();
    // SAFETY: `T` is the structure of the escape (each caller above pairs them, and the sizes are asserted in `abi`),
    // exclusively borrowed for the call. Pointers in it are to structures that the caller borrows exclusively during
    // the call.
    unsafe { ioctl.escape(fd.as_fd(), number, arg, size_of::<T>()) }.map_err(|source| {
        // The driver returns EINVAL for a structure of another size, which belongs to another interface version.
        let call = match source.raw_os_error() {
            Some(libc::EINVAL) => "an escape of the NVIDIA driver (is its version too old or new?)",
            _ => "an escape of the NVIDIA driver",
        };
        tracing::debug!("{number:?} for {what}: {source}");
        Error::Os { call, source }
    })
}

fn check(call: &'static str, what: &'static str, status: u32) -> Result<()> {
    match RmStatus(status) {
        RmStatus::OK => Ok(()),
        status => Err(Error::Rm { call, what, status }),
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
