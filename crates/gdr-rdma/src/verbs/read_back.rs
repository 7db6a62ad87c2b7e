//! Pushing what a device wrote into GPU memory on, by making it read there.

use std::sync::{Mutex, PoisonError};

use gdr_roce::WrId;

use super::own_link::OwnLink;
use crate::error::Result;
use crate::region::{MemoryRegion, ProtectionDomain, WeakRegion};
use crate::request::SendRequest;

/// A connection of a device with itself, over which it reads a byte of GPU memory. A read of a PCI
/// device does not pass its earlier writes to the same place (PCI Express Base Specification,
/// "Transaction Ordering"): once it is answered, they are there.
pub(crate) struct ReadBack {
    /// `None` once it failed: what is under way there may still use the region.
    link: Mutex<Option<OwnLink>>,
    region: WeakRegion,
}

impl ReadBack {
    pub(crate) fn new(domain: &ProtectionDomain, region: &MemoryRegion) -> Result<Self> {
        Ok(Self {
            link: Mutex::new(Some(OwnLink::new(domain)?)),
            region: region.downgrade(),
        })
    }

    /// Reads; why it could not, if so.
    pub(super) fn run(&self) -> std::result::Result<(), String> {
        let Some(region) = self.region.upgrade() else {
            // Nobody looks there any more.
            return Ok(());
        };
        let mut place = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(link) = &*place else {
            return Err("reading GPU memory back failed before".to_owned());
        };
        let read = || -> Result<Option<String>> {
            let request = SendRequest::write(WrId(0), link.host.remote().at(0));
            link.transfer(request.segment(region.segment(0, 1)?))
        };
        let why = match read() {
            Ok(None) => return Ok(()),
            Ok(Some(why)) => format!("reading GPU memory back {why}"),
            Err(error) => format!("reading GPU memory back failed: {error}"),
        };
        *place = None;
        Err(why)
    }
}
