//! The buffers of `GDR_BACKEND=sim`.

use std::sync::Arc;

use gdr_cuda::{DeviceBuffer, DevicePtr, Gpu, MemoryKind, Ordinal, SimDriver};

use crate::errno::Failure;

/// Address of the simulated buffer in every process: the first address of the first simulated GPU.
pub const SIMULATED_BUFFER: DevicePtr = DevicePtr::new(6 << 48);

/// Its default size. `GDR_SIM_BYTES` sets another size, and the sizes of further buffers.
const DEFAULT_BYTES: u64 = 64 << 20;

/// A simulated GPU with its buffers, which live as long as the process.
#[derive(Debug)]
pub(crate) struct Simulation {
    driver: Arc<SimDriver>,
    #[allow(dead_code, reason = "keeps the memory allocated")]
    buffers: Vec<DeviceBuffer>,
}

impl Simulation {
    /// Reads `GDR_SIM_BYTES`.
    pub(crate) fn start() -> Result<Self, Failure> {
        let bytes = match gdr_process::variable("GDR_SIM_BYTES").filter(|text| !text.is_empty()) {
            None => vec![DEFAULT_BYTES],
            Some(text) => sizes(&text.to_string_lossy()).ok_or(Failure::Argument(
                "GDR_SIM_BYTES is not a size: give a number of bytes, at least 65536, or several \
                 with commas",
            ))?,
        };
        Self::of(&bytes)
    }

    fn of(sizes: &[u64]) -> Result<Self, Failure> {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).map_err(gdr_copy::Error::from)?;
        let mut buffers = Vec::new();
        for &bytes in sizes {
            let buffer = gpu.allocate(MemoryKind::Plain, bytes);
            let buffer = buffer.map_err(gdr_copy::Error::from)?;
            tracing::info!("simulated GPU memory: {bytes} bytes at {}", buffer.ptr());
            buffers.push(buffer);
        }
        Ok(Self { driver, buffers })
    }

    pub(crate) fn driver(&self) -> Arc<SimDriver> {
        self.driver.clone()
    }
}

/// Returns one size of at least a GPU page, or several of any length.
fn sizes(text: &str) -> Option<Vec<u64>> {
    let sizes: Vec<u64> = (text.split(','))
        .map(|size| size.trim().parse().ok())
        .collect::<Option<_>>()?;
    let fits = match sizes[..] {
        [only] => only >= crate::abi::GPU_PAGE_SIZE,
        _ => !sizes.contains(&0),
    };
    fits.then_some(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulated_buffer_is_at_its_documented_address() {
        let simulation = Simulation::of(&[1 << 20]).unwrap();
        assert_eq!(simulation.buffers[0].ptr(), SIMULATED_BUFFER);
        assert!(
            SIMULATED_BUFFER
                .get()
                .is_multiple_of(crate::abi::GPU_PAGE_SIZE)
        );
    }

    #[test]
    fn a_size_is_a_number_of_bytes_and_there_may_be_several() {
        assert_eq!(sizes("65536"), Some(vec![65536]));
        assert_eq!(sizes("40000, 512"), Some(vec![40000, 512]));
        for wrong in ["65535", "64M", "40000,", "40000,0"] {
            assert_eq!(sizes(wrong), None, "{wrong}");
        }
    }
}
