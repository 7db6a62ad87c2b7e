//! Single Root I/O Virtualization: one physical function with many virtual ones.

use super::capability::ExtendedId;
use super::config::ConfigSpace;
use crate::source::Datum;

/// The SR-IOV capability of a physical function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sriov {
    /// Whether the virtual functions are enabled.
    pub enabled: bool,
    /// The number of virtual functions that it supports (TotalVFs).
    pub total: u16,
    /// The number of virtual functions (NumVFs).
    pub number: u16,
}

impl ConfigSpace {
    /// Single Root I/O Virtualization.
    pub fn sriov(&self) -> Datum<Sriov> {
        let at = self.find_extended(ExtendedId::SRIOV)?;
        Ok(Sriov {
            enabled: self.half(at.plus(0x08))? & 1 != 0,
            total: self.half(at.plus(0x0e))?,
            number: self.half(at.plus(0x10))?,
        })
    }
}
