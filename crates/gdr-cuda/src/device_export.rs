//! Device memory that another process opens.

use crate::pointer::DevicePtr;

/// An allocation of `cuMemAlloc`, as another process opens it ([`Gpu::import`](crate::Gpu::import)): plain
/// data, to be sent there.
///
/// It keeps nothing. The importer may use the memory as long as the exporter has it allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceExport {
    pub(crate) handle: [u8; 64],
    pub(crate) base: DevicePtr,
    pub(crate) len: u64,
}

impl DeviceExport {
    /// The length of [`DeviceExport::to_bytes`].
    pub const LEN: usize = 80;

    /// Where the allocation begins in the address space of the process that exported it.
    pub fn base(&self) -> DevicePtr {
        self.base
    }

    /// The length of the allocation in bytes, as its process says.
    #[expect(clippy::len_without_is_empty, reason = "no driver allocates 0 bytes")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The driver's handle, 64 bytes (`CUipcMemHandle`), then base and length, little-endian words of 8 bytes.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..64].copy_from_slice(&self.handle);
        bytes[64..72].copy_from_slice(&self.base.get().to_le_bytes());
        bytes[72..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// What [`DeviceExport::to_bytes`] returned. Every value is accepted here; the import of a wrong one fails.
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
        }
    }
}
