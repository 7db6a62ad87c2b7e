//! The GPU, and whether its memory can be mapped.

use std::sync::Arc;

use gdr_copy::Mapping;
use gdr_cuda::{DeviceBuffer, DriverKind, Gpu};

use crate::error::{Error, Result};
use crate::report::Subject;
use crate::site::Site;

/// The GPU whose memory the bytes go to. A clone is the same place.
#[derive(Clone, Debug)]
pub struct Place {
    gpu: Gpu,
    ways: Ways,
}

/// Into its memory.
#[derive(Clone, Debug)]
enum Ways {
    /// Through mappings, where the memory permits it, and staged.
    Mapped(Box<Site>),
    /// Staged only: why.
    Staged(Arc<str>),
}

impl From<Site> for Place {
    fn from(site: Site) -> Self {
        Self {
            gpu: site.gpu().clone(),
            ways: Ways::Mapped(Box::new(site)),
        }
    }
}

impl Place {
    /// Where no backend can map: `error` says why not.
    pub fn without_mappings(gpu: Gpu, error: &gdr_copy::Error) -> Self {
        let why = error.to_string().into();
        let ways = Ways::Staged(why);
        Self { gpu, ways }
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Whether no hardware is involved.
    pub fn simulated(&self) -> bool {
        self.gpu.driver().kind() == DriverKind::Simulated
    }

    /// Maps the whole of `buffer`, and what is to be said of the way.
    pub(super) fn map(&self, buffer: &DeviceBuffer) -> Result<(Mapping, Subject)> {
        match &self.ways {
            Ways::Mapped(site) => {
                let pinned = site.pin(buffer.ptr(), buffer.len())?;
                let mapping = pinned.map()?;
                Ok((mapping, Subject::new(site, Some(&pinned))))
            }
            Ways::Staged(why) => Err(Error::NoMappings(why.to_string())),
        }
    }

    /// What is to be said where nothing is mapped.
    pub(super) fn subject(&self) -> Subject {
        match &self.ways {
            Ways::Mapped(site) => Subject::new(site, None),
            Ways::Staged(_) => Subject::without_backend(&self.gpu),
        }
    }
}
