//! The answers of CUDA, NVML and libibverbs about a node's devices: the contents of the virtual
//! files [`CUDA_DEVICES`](crate::virtual_path::CUDA_DEVICES),
//! [`NVML_DEVICES`](crate::virtual_path::NVML_DEVICES) and
//! [`VERBS_DEVICES`](crate::virtual_path::VERBS_DEVICES).

use gdr_pci::Bdf;
use serde::{Deserialize, Serialize};

use crate::source::{Absence, Datum, Errno, Source};

/// `EBADMSG` of Linux: the file does not contain an answer.
const BAD_MESSAGE: Errno = Errno(74);

/// The answer of one library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe<D> {
    /// The CUDA version that the driver supports, of CUDA's answer: `13.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// The version of NVIDIA's kernel driver, of the answer of NVML or nvidia-smi: `580.95.05`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_driver: Option<String>,
    /// The error, if the library is installed but fails.
    #[serde(default)]
    pub error: Option<String>,
    /// The devices that the library lists; empty if it failed.
    #[serde(default = "Vec::new")]
    pub devices: Vec<D>,
}

/// Facts that CUDA or NVML reports about a GPU. Each library leaves out what it does not report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Its ordinal in CUDA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<u32>,
    /// Its name: `NVIDIA H100 PCIe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its PCI address as the library writes it.
    pub pci: String,
    /// Its UUID as nvidia-smi writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Its compute capability: `9.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<String>,
    /// Its memory in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_memory: Option<u64>,
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_direct_rdma_supported: Option<bool>,
    /// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dma_buf_supported: Option<bool>,
    /// The compute mode as CUDA numbers it: 0 default, 1 exclusive thread, 2 prohibited,
    /// 3 exclusive process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<u32>,
    /// Whether ECC is enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_enabled: Option<bool>,
    /// Whether it is partitioned (MIG).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    /// Whether it stays initialized without a process (persistence mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<bool>,
    /// The processes using it; `None` if that is not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<GpuProcess>>,
    /// The remote ends of its active NVLinks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvlinks: Vec<NvLinkEnd>,
}

/// A process that uses a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Its process id.
    pub pid: u32,
    /// Its program's name, without the directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The GPU memory that it uses, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// The other end of an active NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLinkEnd {
    /// The kind of device.
    pub kind: NvLinkKind,
    /// Its PCI address; `None` for a device that is not a PCI function of this machine.
    #[serde(default)]
    pub pci: Option<String>,
}

/// What an NVLink leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NvLinkKind {
    /// Another GPU.
    Gpu,
    /// An NVSwitch.
    Switch,
    /// Something else, such as a POWER processor.
    #[serde(other)]
    Other,
}

/// Facts that libibverbs reports about an RDMA device. If libibverbs could not open it, firmware and on-demand paging
/// are absent and the list of ports is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaFacts {
    /// Its name: `mlx5_0`.
    pub name: String,
    /// The version of its firmware; empty for a software device.
    #[serde(default)]
    pub firmware: Option<String>,
    /// Whether it supports on-demand paging.
    #[serde(default)]
    pub on_demand_paging: Option<bool>,
    /// Whether its driver imports dma-bufs.
    #[serde(default)]
    pub dma_buf: Option<DmaBufImport>,
    /// The facts about each port; `None` in archives of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<PortFacts>>,
}

/// The facts that libibverbs reports about a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFacts {
    /// Its number, from 1.
    pub number: u32,
    /// The largest payload of a packet, in bytes.
    #[serde(default)]
    pub active_mtu: Option<u32>,
}

/// Whether an RDMA device's driver can import dma-bufs. In JSON: `supported`, `unsupported`, or the reason why it is
/// unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum DmaBufImport {
    /// It can.
    Supported,
    /// It cannot.
    Unsupported,
    /// Unknown, because it could not be tried, for this reason.
    Unknown(String),
}

impl From<String> for DmaBufImport {
    fn from(text: String) -> Self {
        match text.as_str() {
            "supported" => Self::Supported,
            "unsupported" => Self::Unsupported,
            _ => Self::Unknown(text),
        }
    }
}

impl From<DmaBufImport> for String {
    fn from(import: DmaBufImport) -> Self {
        match import {
            DmaBufImport::Supported => "supported".to_owned(),
            DmaBufImport::Unsupported => "unsupported".to_owned(),
            DmaBufImport::Unknown(reason) => reason,
        }
    }
}

impl<D: Serialize + for<'a> Deserialize<'a>> Probe<D> {
    /// Returns the answer of a working library.
    pub fn of(devices: Vec<D>) -> Self {
        Self {
            driver_version: None,
            kernel_driver: None,
            error: None,
            devices,
        }
    }

    /// Returns the answer of a library that is installed but fails.
    pub fn failed(error: String) -> Self {
        Self {
            error: Some(error),
            ..Self::of(Vec::new())
        }
    }

    /// Reads the answer in a virtual file.
    ///
    /// # Errors
    ///
    /// The file's absence; [`Absence::Failed`] if it does not contain an answer.
    pub fn read(source: &dyn Source, path: &str) -> Datum<Self> {
        let text = source.text(path)?;
        serde_json::from_str(&text).map_err(|_| Absence::Failed(BAD_MESSAGE))
    }

    /// Returns the contents of the virtual file.
    ///
    /// # Errors
    ///
    /// [`Absence::Failed`] if the facts of a device cannot be written as JSON.
    pub fn to_file(&self) -> Datum<Vec<u8>> {
        let mut text = serde_json::to_vec(self).map_err(|_| Absence::Failed(BAD_MESSAGE))?;
        text.push(b'\n');
        Ok(text)
    }
}

impl Probe<GpuFacts> {
    /// Returns the facts about the GPU at an address.
    pub fn gpu(&self, bdf: Bdf) -> Option<&GpuFacts> {
        (self.devices.iter()).find(|device| device.pci.parse() == Ok(bdf))
    }
}

impl Probe<RdmaFacts> {
    /// Returns the facts about the RDMA device of a name.
    pub fn device(&self, name: &str) -> Option<&RdmaFacts> {
        self.devices.iter().find(|device| device.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemorySource, example, virtual_path};

    #[test]
    fn answers_of_the_example_are_read_and_written_back_unchanged() {
        let node = example::healthy();
        let cuda = Probe::<GpuFacts>::read(&node, virtual_path::CUDA_DEVICES).unwrap();
        let gpu = cuda.gpu(example::GPUS[3].parse().unwrap()).unwrap();
        assert_eq!((gpu.ordinal, gpu.dma_buf_supported), (Some(3), Some(true)));
        assert_eq!(cuda.to_file(), node.read(virtual_path::CUDA_DEVICES));
        let verbs = Probe::<RdmaFacts>::read(&node, virtual_path::VERBS_DEVICES).unwrap();
        let nic = verbs.device("mlx5_3").unwrap();
        assert_eq!(nic.dma_buf, Some(DmaBufImport::Supported));
        assert_eq!(nic.ports.as_ref().unwrap()[0].active_mtu, Some(4096));
        assert_eq!(verbs.to_file(), node.read(virtual_path::VERBS_DEVICES));
    }

    /// Existing archives contain these names.
    #[test]
    fn the_names_of_the_fields_do_not_change() {
        let gpu = r#"{"pci":"0000:18:00.0","compute_mode":3,"ecc_enabled":false,"nvlinks":[{"kind":"switch","pci":null}]}"#;
        let nic = r#"{"name":"mlx5_0","firmware":null,"on_demand_paging":null,"dma_buf":"EPERM"}"#;
        let text = format!(r#"{{"error":null,"devices":[{gpu}]}}"#);
        let answer: Probe<GpuFacts> = serde_json::from_str(&text).unwrap();
        assert_eq!(answer.devices[0].nvlinks[0].kind, NvLinkKind::Switch);
        assert_eq!(serde_json::to_string(&answer).unwrap(), text);
        let device: RdmaFacts = serde_json::from_str(nic).unwrap();
        assert_eq!(
            device.dma_buf,
            Some(DmaBufImport::Unknown("EPERM".to_owned()))
        );
        assert_eq!(device.ports, None);
        assert_eq!(serde_json::to_string(&device).unwrap(), nic);
    }

    #[test]
    fn garbage_is_a_failure_and_a_missing_file_is_missing() {
        let node = MemorySource::new().file(virtual_path::CUDA_DEVICES, "{\"devices\":[{\"pci\"");
        assert_eq!(
            Probe::<GpuFacts>::read(&node, virtual_path::CUDA_DEVICES),
            Err(Absence::Failed(BAD_MESSAGE))
        );
        assert_eq!(
            Probe::<RdmaFacts>::read(&node, virtual_path::VERBS_DEVICES),
            Err(Absence::Missing)
        );
    }
}
