//! Placeholder until the module's client lands.
use super::{Backend, Pin, PinRequest};
use crate::{Attributes, BackendKind, Error, Result};
#[derive(Debug)]
pub(crate) struct RmBackend;
impl RmBackend {
    pub(crate) fn open(_: std::sync::Arc<gdr_cuda::Cuda>) -> Result<Self> {
        Err(Error::DeviceNode { path: "/dev/gdrdrv".into(), source: std::io::Error::from_raw_os_error(libc::ENOENT) })
    }
}
impl Backend for RmBackend {
    fn kind(&self) -> BackendKind { BackendKind::Rm }
    fn pin(&self, _: &PinRequest) -> Result<Box<dyn Pin>> { Err(Error::ForkedChild) }
    fn attributes(&self) -> Attributes { Attributes { persistent: true, force_pcie: false, dma_buf_mmap: false, module: None } }
}
mod status;
pub use status::RmStatus;
