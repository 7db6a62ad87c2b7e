//! The one buffer of `GDR_BACKEND=sim`.

use std::sync::Arc;

use gdr_cuda::{DeviceBuffer, DevicePtr, Gpu, MemoryKind, Ordinal, SimDriver};

use crate::errno::Failure;

/// The address of the simulated buffer in every process: the first of the first simulated GPU.
pub const SIMULATED_BUFFER: DevicePtr = DevicePtr::new(6 << 48);

/// Its default size; `GDR_SIM_BYTES` sets another.
const DEFAULT_BYTES: u64 = 64 << 20;

/// A simulated GPU with one buffer, which exist as long as the process.
#[derive(Debug)]
pub(crate) struct Simulation {
    driver: Arc<SimDriver>,
    #[allow(dead_code, reason = "keeps the memory allocated")]
    buffer: DeviceBuffer,
}

impl Simulation {
    /// Reads `GDR_SIM_BYTES`.
    pub(crate) fn start() -> Result<Self, Failure> {
        let bytes = match gdr_process::variable("GDR_SIM_BYTES").filter(|text| !text.is_empty()) {
            None => DEFAULT_BYTES,
            Some(text) => size(&text.to_string_lossy()).ok_or(Failure::Argument(
                "GDR_SIM_BYTES is not a size: give a number of bytes, at least 65536",
            ))?,
        };
        Self::of(bytes)
    }

    fn of(bytes: u64) -> Result<Self, Failure> {
        let driver = SimDriver::new(1);
        let buffer = Gpu::open(driver.clone(), Ordinal(0))
            .and_then(|gpu| gpu.allocate(MemoryKind::Plain, bytes))
            .map_err(gdr_copy::Error::from)?;
        tracing::info!("simulated GPU memory: {bytes} bytes at {}", buffer.ptr());
        Ok(Self { driver, buffer })
    }

    pub(crate) fn driver(&self) -> Arc<SimDriver> {
        self.driver.clone()
    }
}

/// At least a GPU page: a smaller buffer could share its page with another allocation.
fn size(text: &str) -> Option<u64> {
    text.trim()
        .parse()
        .ok()
        .filter(|&bytes| bytes >= crate::abi::GPU_PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulated_buffer_is_at_its_documented_address() {
        let simulation = Simulation::of(1 << 20).unwrap();
        assert_eq!(simulation.buffer.ptr(), SIMULATED_BUFFER);
        assert!(
            SIMULATED_BUFFER
                .get()
                .is_multiple_of(crate::abi::GPU_PAGE_SIZE)
        );
    }

    #[test]
    fn a_size_is_a_number_of_bytes() {
        assert_eq!(size("65536"), Some(65536));
        assert_eq!(size("65535"), None);
        assert_eq!(size("64M"), None);
    }
}
