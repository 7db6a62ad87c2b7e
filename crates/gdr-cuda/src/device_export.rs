//! Exports of device memory to other processes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::pointer::DevicePtr;

/// An allocation that another process can open ([`Gpu::import`](crate::Gpu::import)): plain data, to be sent there.
/// Memory of `cuMemAlloc` is opened by the driver's handle, VMM memory by a descriptor.
///
/// It does not keep the memory allocated. The importer may use the memory as long as the exporter has it allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceExport {
    pub(crate) handle: [u8; 64],
    pub(crate) base: DevicePtr,
    pub(crate) len: u64,
    /// The descriptor of VMM memory, which has no handle.
    pub(crate) descriptor: Option<RawFd>,
}

/// An allocation that other processes can open as long as this value exists.
#[derive(Debug)]
pub struct ExportedMemory {
    export: DeviceExport,
    /// The descriptor that [`DeviceExport::descriptor`] names.
    descriptor: Option<OwnedFd>,
}

impl ExportedMemory {
    pub(crate) fn by_handle(handle: [u8; 64], base: DevicePtr, len: u64) -> Self {
        let export = DeviceExport {
            handle,
            base,
            len,
            descriptor: None,
        };
        Self {
            export,
            descriptor: None,
        }
    }

    pub(crate) fn by_descriptor(descriptor: OwnedFd, base: DevicePtr, len: u64) -> Self {
        let export = DeviceExport {
            handle: [0; 64],
            base,
            len,
            descriptor: Some(descriptor.as_raw_fd()),
        };
        Self {
            export,
            descriptor: Some(descriptor),
        }
    }

    /// Returns the data that the other process needs.
    pub fn export(&self) -> &DeviceExport {
        &self.export
    }

    /// Returns the descriptor by which the other process opens VMM memory. That process needs a duplicate, for example
    /// by `SCM_RIGHTS`.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

impl DeviceExport {
    /// The length of [`DeviceExport::to_bytes`].
    pub const LEN: usize = 88;

    /// Returns the address of the allocation in the process that exported it.
    pub fn base(&self) -> DevicePtr {
        self.base
    }

    /// Returns the length of the allocation in bytes, as reported by the process that exported it.
    #[expect(clippy::len_without_is_empty, reason = "no driver allocates 0 bytes")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the number that [`ExportedMemory::descriptor`] has in the exporting process.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.descriptor
    }

    /// Returns the driver's handle of 64 bytes (`CUipcMemHandle`), followed by little-endian words of 8 bytes: the
    /// base, the length, and the number of the descriptor plus one, or 0 without a descriptor.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..64].copy_from_slice(&self.handle);
        bytes[64..72].copy_from_slice(&self.base.get().to_le_bytes());
        bytes[72..80].copy_from_slice(&self.len.to_le_bytes());
        let descriptor = self.descriptor.map_or(0, |number| i64::from(number) + 1);
        bytes[80..].copy_from_slice(&descriptor.to_le_bytes());
        bytes
    }

    /// Reverses [`DeviceExport::to_bytes`]. Accepts every value; the import of an invalid one fails.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let mut handle = [0; 64];
        handle.copy_from_slice(&bytes[..64]);
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self {
            handle,
            base: DevicePtr::new(word(64)),
            len: word(72),
            descriptor: match word(80) {
                0 => None,
                // The number is invalid, so the import fails.
                more => Some(RawFd::try_from(more - 1).unwrap_or(-1)),
            },
        }
    }
}
