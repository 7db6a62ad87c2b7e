//! Options for pinning and mapping.

use crate::cpu::Caching;

/// The bus that a mapping must use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bus {
    /// The platform's choice: PCIe on most machines, the coherent link on Grace-based ones.
    #[default]
    Default,
    /// PCIe (BAR1), even if a coherent link exists.
    Pcie,
}

/// The unit in which the ends of a pinned range are checked against its allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PinGranularity {
    /// Bytes: the range lies within its allocation.
    #[default]
    Bytes,
    /// GPU pages of 64 KiB, as in GDRCopy: the range may begin before its allocation and end after it, as long as the
    /// allocation covers part of each of those pages.
    GpuPages,
}

/// Options for pinning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinOptions {
    bus: Bus,
    granularity: PinGranularity,
}

impl PinOptions {
    /// Returns the defaults: the platform's choice of bus, and a range that is checked in bytes.
    pub const fn new() -> Self {
        Self {
            bus: Bus::Default,
            granularity: PinGranularity::Bytes,
        }
    }

    /// Pins for a mapping that goes over `bus`.
    pub const fn with_bus(mut self, bus: Bus) -> Self {
        self.bus = bus;
        self
    }

    /// Checks the range in this unit.
    pub const fn with_granularity(mut self, granularity: PinGranularity) -> Self {
        self.granularity = granularity;
        self
    }

    /// Returns the bus that the mapping must use.
    pub const fn bus(&self) -> Bus {
        self.bus
    }

    /// Returns the unit in which the range is checked.
    pub const fn granularity(&self) -> PinGranularity {
        self.granularity
    }
}

/// Options for mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapOptions {
    caching: Option<Caching>,
    len: Option<u64>,
}

impl MapOptions {
    /// Returns the defaults: the whole pin, and the backend's default kind of mapping.
    pub const fn new() -> Self {
        Self {
            caching: None,
            len: None,
        }
    }

    /// Requests a kind of mapping.
    pub const fn with_caching(mut self, caching: Caching) -> Self {
        self.caching = Some(caching);
        self
    }

    /// Maps only the first `len` bytes, counted from [`PinInfo::va`](crate::PinInfo::va) and rounded up to host pages.
    pub const fn with_len(mut self, len: u64) -> Self {
        self.len = Some(len);
        self
    }

    /// Returns the requested kind of mapping; `None` is the backend's default.
    pub const fn caching(&self) -> Option<Caching> {
        self.caching
    }

    /// Returns the requested number of bytes; `None` is the whole pin.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a number that was asked for, not a container's length"
    )]
    pub const fn len(&self) -> Option<u64> {
        self.len
    }
}
