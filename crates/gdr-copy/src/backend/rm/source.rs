//! Where a range of GPU memory is kept, in the driver's terms.

use super::abi::Handle;

/// A stretch of a range: `len` bytes from `offset` on in somebody's memory object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) client: Handle,
    pub(super) object: Handle,
    pub(super) offset: u64,
    pub(super) len: u64,
}
