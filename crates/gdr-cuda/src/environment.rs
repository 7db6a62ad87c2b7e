//! The driver that the environment selects.

use std::ffi::OsStr;
use std::sync::Arc;

use crate::cuda::Cuda;
use crate::driver::Driver;
use crate::error::Result;
use crate::sim::SimDriver;

/// The variable that selects the backend of gdr-copy. Its value [`SIMULATED`] also selects the driver.
const BACKEND: &str = "GDR_BACKEND";
const SIMULATED: &str = "sim";
/// The number of simulated GPUs of [`open_driver`]: two, so that code for several GPUs runs.
const SIMULATED_GPUS: u32 = 2;

/// Returns the driver that the environment selects: the simulation with two GPUs if `GDR_BACKEND` is `sim`, otherwise
/// NVIDIA's ([`Cuda::load`]).
///
/// A missing GPU is never simulated: without `GDR_BACKEND=sim` it is an error. [`Driver::kind`] returns the kind of the
/// driver. Each call creates a new simulation, so call it once and share the driver.
///
/// # Errors
/// Same as [`Cuda::load`].
pub fn open_driver() -> Result<Arc<dyn Driver>> {
    if names_simulation(gdr_process::variable(BACKEND).as_deref()) {
        tracing::warn!("{BACKEND}={SIMULATED}: the GPUs of this process are simulated");
        return Ok(SimDriver::new(SIMULATED_GPUS));
    }
    Ok(Cuda::load()?)
}

fn names_simulation(backend: Option<&OsStr>) -> bool {
    backend.is_some_and(|name| name.eq_ignore_ascii_case(SIMULATED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_simulated_only_where_the_simulation_is_named() {
        for name in ["sim", "SIM"] {
            assert!(names_simulation(Some(OsStr::new(name))), "{name}");
        }
        for name in ["", "rm", "simulated", "auto"] {
            assert!(!names_simulation(Some(OsStr::new(name))), "{name}");
        }
        assert!(!names_simulation(None));
    }
}
