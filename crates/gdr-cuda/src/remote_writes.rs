//! What a GPU promises of writes by other devices into its memory.

use std::fmt;

/// For whom writes by another device (a NIC, by GPUDirect RDMA) are in order without more ado: who
/// sees the last of them sees all of them
/// (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`, CUDA 11.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WritesOrdering {
    /// For nobody; also what a driver says that is too old to know.
    None,
    /// For the GPU whose memory it is.
    Owner,
    /// For every GPU.
    AllDevices,
}

impl WritesOrdering {
    /// From the value of the attribute. One between two that are known promises the lesser.
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
            Self::None => "for nobody",
            Self::Owner => "for the GPU",
            Self::AllDevices => "for every GPU",
        })
    }
}

/// What a GPU promises of writes by other devices into its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteWrites {
    /// For whom they are in order.
    pub ordering: WritesOrdering,
    /// Whether the host can wait for those that have arrived, by
    /// [`DeviceBuffer::flush_remote_writes`](crate::DeviceBuffer::flush_remote_writes)
    /// (`CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`, CUDA 11.3).
    pub host_flush: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordering_of_a_newer_driver_promises_what_is_known_of_it() {
        let of = WritesOrdering::from_attribute;
        assert_eq!(of(0), WritesOrdering::None);
        assert_eq!(of(100), WritesOrdering::Owner);
        assert_eq!(of(150), WritesOrdering::Owner);
        assert_eq!(of(200), WritesOrdering::AllDevices);
        assert_eq!(of(300), WritesOrdering::AllDevices);
    }
}
