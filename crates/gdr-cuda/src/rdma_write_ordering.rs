//! The order and visibility of writes by other devices into GPU memory.

use std::fmt;

/// The observers to which writes by another device (a NIC, by GPUDirect RDMA) are visible in order without a flush: an
/// observer that sees the last write sees all of them (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`, CUDA
/// 11.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WritesOrdering {
    /// No observer, or a driver that is too old to report it.
    None,
    /// The GPU that owns the memory.
    Owner,
    /// Every GPU.
    AllDevices,
}

impl WritesOrdering {
    /// Converts the value of the attribute. An unknown value counts as the next lower known one.
    pub const fn from_attribute(value: u32) -> Self {
        match value {
            0..100 => Self::None,
            100..200 => Self::Owner,
            _ => Self::AllDevices,
        }
    }
}

impl fmt::Display for WritesOrdering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "for no device",
            Self::Owner => "for the GPU",
            Self::AllDevices => "for every GPU",
        })
    }
}

/// The order and visibility of writes by other devices into a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteWrites {
    /// The observers to which they are visible in order.
    pub ordering: WritesOrdering,
    /// Whether the host can flush them, by
    /// [`DeviceBuffer::flush_remote_writes`](crate::DeviceBuffer::flush_remote_writes)
    /// (`CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`, CUDA 11.3).
    pub host_flush: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_ordering_counts_as_the_next_lower_known_one() {
        let of = WritesOrdering::from_attribute;
        assert_eq!(of(0), WritesOrdering::None);
        assert_eq!(of(100), WritesOrdering::Owner);
        assert_eq!(of(150), WritesOrdering::Owner);
        assert_eq!(of(200), WritesOrdering::AllDevices);
        assert_eq!(of(300), WritesOrdering::AllDevices);
    }
}
