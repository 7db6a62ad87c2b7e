//! The concrete types of drivers.

use std::any::Any;
use std::sync::Arc;

use crate::cuda::Cuda;
use crate::driver::Driver;
use crate::sim::SimDriver;

/// A driver by its concrete type, from [`ConcreteDriver::of`].
#[derive(Clone, Debug)]
pub enum ConcreteDriver {
    /// NVIDIA's driver.
    Cuda(Arc<Cuda>),
    /// The simulation.
    Simulated(Arc<SimDriver>),
}

impl ConcreteDriver {
    /// Returns the concrete type of `driver`.
    pub fn of(driver: &Arc<dyn Driver>) -> Self {
        let driver: Arc<dyn Any + Send + Sync> = driver.clone();
        match driver.downcast::<Cuda>().map(Self::Cuda) {
            Ok(cuda) => cuda,
            Err(driver) => match driver.downcast::<SimDriver>() {
                Ok(simulated) => Self::Simulated(simulated),
                Err(_) => unreachable!("`Driver` is sealed: these two types implement it"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_driver_is_returned_as_itself() {
        let simulated = SimDriver::new(1);
        let driver: Arc<dyn Driver> = simulated.clone();
        let ConcreteDriver::Simulated(same) = ConcreteDriver::of(&driver) else {
            panic!("{driver:?}");
        };
        assert!(Arc::ptr_eq(&same, &simulated));
    }
}
