//! GPU memory through the CPU's own window into it.

use std::sync::{Arc, Mutex, PoisonError};

use gdr_copy::Mapping;

use crate::error::Result;
use gdr_roce::AtomicOp;

/// A mapping: what arrives is stored straight into GPU memory.
#[derive(Debug)]
pub(crate) struct Direct {
    mapping: Arc<Mapping>,
    /// Held for a read-modify-write, which is not one operation over PCIe.
    atomic: Mutex<()>,
}

impl Direct {
    pub(super) fn new(mapping: Arc<Mapping>) -> Self {
        Self {
            mapping,
            atomic: Mutex::new(()),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.mapping.len()
    }

    pub(super) fn address(&self) -> u64 {
        self.mapping.device_ptr().get()
    }

    /// Stores without a fence: [`Direct::flush`] ends the batch.
    #[inline]
    pub(super) fn store(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        Ok(self.mapping.write_at_unfenced(offset, bytes)?)
    }

    pub(super) fn flush(&self) {
        self.mapping.flush();
    }

    pub(super) fn begin_reads(&self) {
        self.mapping.begin_reads();
    }

    /// Loads without a fence: the values are no older than [`Direct::begin_reads`].
    #[inline]
    pub(super) fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        Ok(self.mapping.read_at_unfenced(offset, bytes)?)
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        Ok(self.mapping.write_at(offset, bytes)?)
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        Ok(self.mapping.read_at(offset, bytes)?)
    }

    pub(super) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        let _alone = self.atomic.lock().unwrap_or_else(PoisonError::into_inner);
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        let before = u64::from_ne_bytes(word);
        let after = operation.apply(before);
        if after != before {
            self.write(offset, &after.to_ne_bytes())?;
        }
        Ok(before)
    }
}
