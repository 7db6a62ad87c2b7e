//! The module's calls with types: the calls that each version has, and the meaning of their results.

use std::io;
use std::os::fd::BorrowedFd;

use gdr_cuda::DevicePtr;

use super::abi::{self, Argument, MappingType, Request};
use super::device::Device;
use crate::error::{Error, Result};
use crate::report::ModuleVersion;

/// The module's handle of a pinned range: a number of 64 bits, counted up in host pages for each open file, and never
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle(pub(super) u64);

impl Handle {
    /// Returns the range's offset in the device file for mmap, or `None` past the end of any file.
    pub(super) fn file_offset(self) -> Option<u64> {
        self.0.checked_mul(crate::bar_mapping::host_page())
    }
}

/// What the module reports about a pinned range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RangeInfo {
    pub(super) va: DevicePtr,
    pub(super) len: u64,
    pub(super) mapping: MappingType,
}

/// The module, of a supported version.
#[derive(Debug)]
pub(super) struct Module {
    device: Box<dyn Device>,
    version: ModuleVersion,
}

impl Module {
    /// Opens the module and checks its version.
    pub(super) fn open(device: Box<dyn Device>) -> Result<Self> {
        let mut versions = abi::Versions::default();
        device
            .call(Request::GetVersion, versions.bytes())
            .map_err(|source| {
                match source.raw_os_error() {
                    // Modules of 1.x do not have this call.
                    Some(libc::ENOTTY | libc::EINVAL) => too_old("1.x".to_owned()),
                    _ => refusal(Request::GetVersion, source),
                }
            })?;
        let (version, minimum) = (
            abi::version(versions.module),
            abi::version(versions.minimum_api),
        );
        if version < abi::OLDEST {
            return Err(too_old(dotted(version)));
        }
        // The module reports the oldest API that it accepts, which may be newer than this one.
        if minimum > abi::API {
            return Err(Error::ModuleVersion {
                found: dotted(version),
                wanted: format!(
                    "one that accepts API {} (this one requires {} or later)",
                    dotted(abi::API),
                    dotted(minimum)
                ),
                remedy: "update this library, or use another backend (GDR_BACKEND=rm)",
            });
        }
        Ok(Self { device, version })
    }

    pub(super) fn version(&self) -> ModuleVersion {
        self.version
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.device.file()
    }

    /// Returns an attribute, or `None` from a module without attributes or without this one.
    pub(super) fn attribute(&self, attribute: u32) -> Result<Option<u32>> {
        if self.version < abi::WITH_ATTRIBUTES {
            return Ok(None);
        }
        let mut query = abi::Attribute {
            attribute,
            ..Default::default()
        };
        match self.device.call(Request::GetAttribute, query.bytes()) {
            Ok(()) => Ok(Some(query.value)),
            // A module with attributes may lack this one, and then fails with EINVAL.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) => Err(refusal(Request::GetAttribute, error)),
        }
    }

    /// Pins `len` bytes at `va`, both multiples of a GPU page.
    pub(super) fn pin(&self, va: DevicePtr, len: u64, flags: u32) -> Result<Handle> {
        let (address, size) = (va.get(), len);
        if self.version >= abi::WITH_ATTRIBUTES {
            let pin = abi::PinBufferV2 {
                address,
                size,
                flags,
                ..Default::default()
            };
            Ok(Handle(self.exchange(pin)?.handle))
        } else {
            let pin = abi::PinBuffer {
                address,
                size,
                ..Default::default()
            };
            Ok(Handle(self.exchange(pin)?.handle))
        }
    }

    /// Unpins a range. Must be called exactly once for each handle: for an unknown handle, the module unpins the oldest
    /// range of the file (GDRCopy 2.6, gdrdrv.c:665).
    pub(super) fn unpin(&self, handle: Handle) -> Result<()> {
        self.exchange(abi::UnpinBuffer { handle: handle.0 })
            .map(drop)
    }

    /// Returns whether the memory was freed while it was pinned (non-persistent mode only).
    pub(super) fn freed(&self, handle: Handle) -> Result<bool> {
        let query = abi::CallbackFlag {
            handle: handle.0,
            ..Default::default()
        };
        Ok(self.exchange(query)?.flag != 0)
    }

    pub(super) fn info(&self, handle: Handle) -> Result<RangeInfo> {
        if self.version >= abi::WITH_INFO_V2 {
            let info = self.exchange(abi::InfoV2 {
                handle: handle.0,
                ..Default::default()
            })?;
            Ok(RangeInfo {
                va: DevicePtr::new(info.va),
                len: info.mapped_size,
                mapping: MappingType(info.mapping_type),
            })
        } else {
            let info = self.exchange(abi::Info {
                handle: handle.0,
                ..Default::default()
            })?;
            let mapping = match (info.mapped, info.wc_mapping) {
                (0, _) => MappingType::NONE,
                // These modules map cached (on POWER9) or write-combined.
                (_, 0) => MappingType::CACHED,
                _ => MappingType::WRITE_COMBINED,
            };
            Ok(RangeInfo {
                va: DevicePtr::new(info.va),
                len: info.mapped_size,
                mapping,
            })
        }
    }

    /// Chooses the kind of this and later mappings. Returns `false` if the platform or the module offers no choice.
    pub(super) fn request_mapping(&self, handle: Handle, mapping: MappingType) -> Result<bool> {
        if self.version < abi::WITH_ATTRIBUTES {
            return Ok(mapping == MappingType::NONE);
        }
        let mut request = abi::MappingRequest {
            handle: handle.0,
            mapping_type: mapping.0,
            ..Default::default()
        };
        match self.device.call(Request::ChooseMapping, request.bytes()) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
            Err(error) => Err(refusal(Request::ChooseMapping, error)),
        }
    }

    fn exchange<A: Argument>(&self, mut argument: A) -> Result<A> {
        self.device
            .call(A::REQUEST, argument.bytes())
            .map_err(|source| refusal(A::REQUEST, source))?;
        Ok(argument)
    }
}

fn dotted((major, minor): ModuleVersion) -> String {
    format!("{major}.{minor}")
}

fn too_old(found: String) -> Error {
    Error::ModuleVersion {
        found,
        wanted: format!("{} or later", dotted(abi::OLDEST)),
        remedy: "load a newer gdrdrv module, or use another backend (GDR_BACKEND=rm)",
    }
}

fn refusal(request: Request, source: io::Error) -> Error {
    let pins = matches!(request, Request::PinBuffer | Request::PinBufferV2);
    let remedy = match source.raw_os_error() {
        Some(libc::EINVAL) if pins => {
            "this is not GPU memory that can be pinned: managed and pool memory cannot, and VMM \
             memory must be made with gpuDirectRDMACapable set"
        }
        Some(libc::ENOMEM) if pins => {
            "the GPU's BAR1 or the kernel's memory is full: unpin something, pin less, or enable \
             Resizable BAR / large BAR1 in the firmware setup"
        }
        _ => remedy(&source),
    };
    Error::Module {
        call: request.name(),
        source,
        remedy,
    }
}

/// Returns the remedy for errors that mean the same for every call and for mmap.
pub(super) fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES) => {
            "the device was opened by another process: open a new context in this one"
        }
        Some(libc::EAGAIN | libc::ENOMEM) => {
            "the kernel has no memory for the mapping: unmap something, or map less"
        }
        _ => "check dmesg for messages of gdrdrv",
    }
}
