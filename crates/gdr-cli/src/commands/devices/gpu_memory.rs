//! How a device is expected to register GPU memory.

use std::fmt;

use gdr_doctor::peermem::{PeerMemory, Standing};
use gdr_rdma::{DmaBufSupport, RegistrationMethod};
use serde::{Serialize, Serializer};

/// Expected registration of GPU memory.
#[derive(Debug, Serialize)]
pub(super) struct GpuMemory {
    pub(super) route: Expected,
    pub(super) because: String,
}

/// How a device is expected to reach GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// It accesses GPU memory itself, registered with this method.
    Registered(RegistrationMethod),
    /// Through host memory.
    Staged,
    /// Too little is known.
    Unknown,
}

impl Expected {
    /// Returns the value in JSON.
    const fn name(self) -> &'static str {
        match self {
            Self::Registered(RegistrationMethod::DmaBuf) => "dma-buf",
            Self::Registered(RegistrationMethod::PeerMemory) => "peer-memory",
            Self::Staged => "staged",
            Self::Registered(_) | Self::Unknown => "unknown",
        }
    }
}

impl Serialize for Expected {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registered(method) => method.fmt(f),
            Self::Staged => f.pad("staged through host memory"),
            Self::Unknown => f.pad("not known"),
        }
    }
}

/// Whether the GPU exports its memory as dma-bufs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exports {
    Yes,
    No,
    Unknown,
}

/// The GPU whose memory would be registered: the first one; the others are assumed to be alike.
#[derive(Debug)]
pub(super) struct Exporter {
    pub(super) exports: Exports,
    /// The same in words.
    pub(super) because: String,
}

impl Exporter {
    /// Returns a GPU by its name.
    pub(super) fn named(name: &str, exports: Exports) -> Self {
        let because = match exports {
            Exports::Yes => format!("{name} exports dma-bufs"),
            Exports::No => format!("{name} exports no dma-buf"),
            Exports::Unknown => format!("whether {name} exports dma-bufs is not recorded"),
        };
        Self { exports, because }
    }

    /// Describes the lack of a GPU, for this reason.
    pub(super) fn absent(why: &str) -> Self {
        Self {
            exports: Exports::No,
            because: format!("there is no usable GPU: {why}"),
        }
    }
}

impl GpuMemory {
    /// Returns the registration method that is expected to work. Nothing is registered, so the PCI path between the two
    /// may still prevent it.
    pub(super) fn expect(nic: &DmaBufSupport, gpu: &Exporter, peer: &PeerMemory) -> Self {
        let imports = match nic {
            DmaBufSupport::Supported => "the device imports dma-bufs".to_owned(),
            DmaBufSupport::Unsupported(why) => format!("the device imports no dma-buf: {why}"),
            DmaBufSupport::Unknown(why) => {
                format!("whether the device imports dma-bufs is not known: {why}")
            }
            other => format!("{other:?}"),
        };
        let because = &gpu.because;
        let dma_buf = match (gpu.exports, nic) {
            (Exports::No, _) | (_, DmaBufSupport::Unsupported(_)) => Some(false),
            (Exports::Yes, DmaBufSupport::Supported) => Some(true),
            _ => None,
        };
        if dma_buf == Some(true) {
            return Self {
                route: Expected::Registered(RegistrationMethod::DmaBuf),
                because: format!("{because}, {imports}"),
            };
        }
        let route = match peer.standing {
            Standing::Active | Standing::Loaded => {
                Expected::Registered(RegistrationMethod::PeerMemory)
            }
            Standing::Unknown => Expected::Unknown,
            _ if dma_buf.is_none() => Expected::Unknown,
            _ => Expected::Staged,
        };
        Self {
            route,
            because: format!("{because}; {imports}; peer memory: {}", peer.because),
        }
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;

    #[test]
    fn dma_buf_needs_both_sides_and_a_side_that_is_not_known_decides_nothing() {
        let loaded = PeerMemory::read(&example::healthy());
        let none = PeerMemory::read(&MemorySource::new());
        let route = |nic: &DmaBufSupport, exports, peer| {
            let gpu = Exporter::named("a GPU", exports);
            GpuMemory::expect(nic, &gpu, peer).route.name()
        };
        let takes = DmaBufSupport::Supported;
        let refuses = DmaBufSupport::Unsupported("EOPNOTSUPP".to_owned());
        let unasked = DmaBufSupport::Unknown("not recorded".to_owned());
        assert_eq!(route(&takes, Exports::Yes, &none), "dma-buf");
        for nic in [&takes, &refuses, &unasked] {
            assert_eq!(route(nic, Exports::No, &none), "staged");
            assert_eq!(route(nic, Exports::No, &loaded), "peer-memory");
        }
        assert_eq!(route(&refuses, Exports::Unknown, &none), "staged");
        assert_eq!(route(&takes, Exports::Unknown, &none), "unknown");
        assert_eq!(route(&unasked, Exports::Yes, &none), "unknown");
        let unread = PeerMemory::read(&MemorySource::partial());
        assert_eq!(route(&refuses, Exports::Yes, &unread), "unknown");
    }
}
