//! Registration of memory with a protection domain.

use gdr_roce::Access;

use crate::error::{Error, NicError, Result};
use crate::gpu_registration;
use crate::memory_region::{MemoryRange, MemoryRegion, RejectedMethods};
use crate::protection_domain::ProtectionDomain;
use gdr_nic::{Buffer, check_range};

impl ProtectionDomain {
    /// Registers all of `buffer` (`ibv_reg_mr`) for this side's requests and, as far as `access`
    /// permits, for the peer's.
    ///
    /// A kernel device registers GPU memory by dma-buf, or else through a peer-memory module. Each method
    /// is verified before it is used: the device moves the first 64 bytes out of the memory and, if the
    /// peer may write, other bytes into it. The original bytes are then restored; the program must not
    /// use them until this returns.
    /// [`VerbsOptions::skip_verification`](crate::VerbsOptions::skip_verification) turns this off.
    ///
    /// # Errors
    /// [`Error::LocalWriteMissing`], [`NicError::ForkedChild`](crate::NicError::ForkedChild); [`Error::Verbs`]; [`SocketError::Os`](crate::SocketError::Os) if
    /// the system provides no random number.
    pub fn register(&self, buffer: &Buffer, access: Access) -> Result<MemoryRegion> {
        self.register_range(buffer, 0, buffer.len(), access)
    }

    /// Registers `len` bytes of `buffer`, starting at `offset`.
    ///
    /// # Errors
    /// [`NicError::OutOfRange`](crate::NicError::OutOfRange), [`NicError::EmptyBuffer`](crate::NicError::EmptyBuffer); as [`ProtectionDomain::register`].
    pub fn register_range(
        &self,
        buffer: &Buffer,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        self.device().check_process()?;
        if len == 0 {
            return Err(NicError::EmptyBuffer.into());
        }
        check_range(offset, len, buffer.len())?;
        let changed_by_peer = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(changed_by_peer) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::LocalWriteMissing);
        }
        let range = MemoryRange {
            buffer: buffer.clone(),
            offset,
            len,
            access,
        };
        match (self.device().gpu_dma(), buffer.device_memory()) {
            (Some(dma), Some((memory, start))) => {
                gpu_registration::register(self, dma, range.clone(), memory, start + offset)
            }
            _ => {
                let mut rejected = RejectedMethods::default();
                let registration = self.ops().clone().register(&range, &mut rejected)?;
                let rejected = rejected.into_reasons();
                Ok(MemoryRegion::new(self.id(), range, registration, rejected))
            }
        }
    }
}
