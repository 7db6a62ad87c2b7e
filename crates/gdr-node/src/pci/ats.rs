//! Address Translation Services: a device caches the IOMMU's translations.

use super::capability::ExtendedId;
use super::config::ConfigSpace;
use crate::source::Datum;

/// The ATS capability of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ats {
    /// Whether the device may request translations.
    pub enabled: bool,
}

impl ConfigSpace {
    /// Address Translation Services.
    pub fn ats(&self) -> Datum<Ats> {
        let at = self.find_extended(ExtendedId::ATS)?;
        Ok(Ats {
            enabled: self.half(at.plus(6))? & 0x8000 != 0,
        })
    }
}
