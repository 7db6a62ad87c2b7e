//! Address Translation Services: a device asks the IOMMU beforehand.

use super::config::{ConfigSpace, Offset};
use crate::source::Datum;

/// The ATS capability of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ats {
    /// Whether the device may ask for translations.
    pub enabled: bool,
}

impl Ats {
    pub(crate) fn parse(config: &ConfigSpace, at: Offset) -> Datum<Self> {
        config.half(at.plus(6)).map(|control| Self {
            enabled: control & 0x8000 != 0,
        })
    }
}
