//! Kinds of memory that requests name.

use std::fmt;

use serde::Serialize;

/// The local memory that a request reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Host memory, registered by `ibv_reg_mr` or a related function.
    Host,
    /// GPU memory registered by its address, for which the kernel needs a peer-memory module.
    GpuByAddress,
    /// Memory registered by a dma-buf descriptor.
    DmaBuf,
    /// No region: inline data, or a message without data.
    Inline,
    /// A key that no registration of this process returned.
    Unknown,
}

impl MemoryKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Host,
        Self::GpuByAddress,
        Self::DmaBuf,
        Self::Inline,
        Self::Unknown,
    ];

    /// Returns its number in trace files.
    pub const fn number(self) -> usize {
        self as usize
    }

    /// Returns the kind with a number.
    pub fn from_number(number: usize) -> Option<Self> {
        Self::ALL.get(number).copied()
    }

    /// Returns whether a NIC that uses it reads or writes a GPU's memory itself.
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::GpuByAddress | Self::DmaBuf)
    }

    /// Returns its name in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::GpuByAddress => "gpu_by_address",
            Self::DmaBuf => "dma_buf",
            Self::Inline => "inline",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::GpuByAddress => "GPU (ibv_reg_mr)",
            Self::DmaBuf => "GPU (dma-buf)",
            Self::Inline => "inline",
            Self::Unknown => "unknown key",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_its_kind_and_json_has_its_name() {
        for kind in MemoryKind::ALL {
            assert_eq!(MemoryKind::from_number(kind.number()), Some(kind));
            let json = serde_json::to_value(kind).unwrap();
            assert_eq!(json, kind.name());
        }
        assert_eq!(MemoryKind::from_number(MemoryKind::ALL.len()), None);
    }
}
