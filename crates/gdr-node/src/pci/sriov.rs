//! Single Root I/O Virtualization: one device that shows itself as many.

use super::config::{ConfigSpace, Offset};
use crate::source::Datum;

/// The SR-IOV capability of a physical function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sriov {
    /// Whether the virtual functions are on.
    pub enabled: bool,
    /// How many there can be.
    pub total: u16,
    /// How many there are.
    pub number: u16,
}

impl Sriov {
    pub(crate) fn parse(config: &ConfigSpace, at: Offset) -> Datum<Self> {
        config.half(at.plus(0x08)).and_then(|control| {
            config.half(at.plus(0x0e)).and_then(|total| {
                config.half(at.plus(0x10)).map(|number| Self {
                    enabled: control & 1 != 0,
                    total,
                    number,
                })
            })
        })
    }
}
