//! Placeholder until the module's client lands.
use super::{Backend, Pin, PinRequest};
use crate::{Attributes, BackendKind, Error, Result};
#[derive(Debug)]
pub(crate) struct DmaBufBackend;
impl DmaBufBackend {
    pub(crate) fn open(_: std::sync::Arc<gdr_cuda::Cuda>) -> Result<Self> {
        Err(Error::DeviceNode { path: "/dev/gdrdrv".into(), source: std::io::Error::from_raw_os_error(libc::ENOENT) })
    }
}
impl Backend for DmaBufBackend {
    fn kind(&self) -> BackendKind { BackendKind::DmaBuf }
    fn pin(&self, _: &PinRequest) -> Result<Box<dyn Pin>> { Err(Error::ForkedChild) }
    fn attributes(&self) -> Attributes { Attributes { persistent: true, force_pcie: false, dma_buf_mmap: false, module: None } }
}
