//! What the libraries of CUDA and of RDMA answered when they were asked about a node's devices.

use gdr_node::{Absence, Bdf, Datum, Errno, Source, virtual_path};
use serde::{Deserialize, Serialize};

/// `EBADMSG` of Linux: an answer that is no answer.
const BAD_MESSAGE: Errno = Errno(74);

/// What the CUDA driver answered.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CudaProbe {
    /// Why it answered nothing, where it is there and failed.
    #[serde(default)]
    pub error: Option<String>,
    /// What it said of each GPU.
    #[serde(default)]
    pub devices: Vec<CudaDevice>,
}

/// What the CUDA driver said of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CudaDevice {
    /// Its PCI address, as the driver writes it.
    pub pci: String,
    /// Its name: `NVIDIA H100 PCIe`.
    #[serde(default)]
    pub name: Option<String>,
    /// `9.0`.
    #[serde(default)]
    pub compute_capability: Option<String>,
    /// Bytes of memory.
    #[serde(default)]
    pub total_memory: Option<u64>,
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED`.
    #[serde(default)]
    pub gpu_direct_rdma_supported: Option<bool>,
    /// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
    #[serde(default)]
    pub dma_buf_supported: Option<bool>,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`: 0 default, 2 prohibited, 3 one process only.
    #[serde(default)]
    pub compute_mode: Option<u32>,
    /// `CU_DEVICE_ATTRIBUTE_ECC_ENABLED`.
    #[serde(default)]
    pub ecc_enabled: Option<bool>,
    /// Who said the compute mode.
    #[serde(skip)]
    pub compute_mode_by: Library,
    /// Who said whether ECC is on.
    #[serde(skip)]
    pub ecc_enabled_by: Library,
}

/// A library of NVIDIA's driver that answers questions about GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Library {
    /// The CUDA driver, libcuda.
    #[default]
    Cuda,
    /// The management library, libnvidia-ml.
    Nvml,
}

impl CudaProbe {
    /// Reads it.
    pub fn read(source: &dyn Source) -> Datum<Self> {
        let mut probe: Datum<Self> = parse(source, virtual_path::CUDA_DEVICES);
        let Ok(cuda) = &mut probe else {
            return probe;
        };
        // The management library reports what the driver was not asked for.
        let nvml: Datum<Self> = parse(source, virtual_path::NVML_DEVICES);
        for known in nvml
            .as_ref()
            .ok()
            .into_iter()
            .flat_map(|nvml| &nvml.devices)
        {
            let address: Option<Bdf> = known.pci.parse().ok();
            let same =
                |device: &&mut CudaDevice| address.is_some() && device.pci.parse().ok() == address;
            if let Some(device) = cuda.devices.iter_mut().find(same) {
                if device.compute_mode.is_none() {
                    device.compute_mode = known.compute_mode;
                    device.compute_mode_by = Library::Nvml;
                }
                if device.ecc_enabled.is_none() {
                    device.ecc_enabled = known.ecc_enabled;
                    device.ecc_enabled_by = Library::Nvml;
                }
            }
        }
        probe
    }

    /// What it said of the GPU at an address.
    pub fn device(&self, bdf: Bdf) -> Option<&CudaDevice> {
        (self.devices.iter()).find(|device| device.pci.parse() == Ok(bdf))
    }
}

/// What libibverbs answered, in the layout of [`virtual_path::VERBS_DEVICES`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbsProbe {
    /// Why it answered nothing, where it is there and failed.
    #[serde(default)]
    pub error: Option<String>,
    /// What it said of each RDMA device.
    #[serde(default)]
    pub devices: Vec<VerbsDevice>,
}

/// What libibverbs said of an RDMA device. One that it could not open has neither a version of its
/// firmware nor on-demand paging.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbsDevice {
    /// Its name.
    pub name: String,
    /// The version of its firmware; empty for a software device.
    #[serde(default)]
    pub firmware: Option<String>,
    /// Whether it has on-demand paging.
    #[serde(default)]
    pub on_demand_paging: Option<bool>,
    /// `supported`, `unsupported`, or why that is not known.
    #[serde(default)]
    pub dma_buf: Option<String>,
    /// What it said of each port. `None` where it was not asked, as by older versions.
    #[serde(default)]
    pub ports: Option<Vec<ProbedPort>>,
}

/// What libibverbs said of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbedPort {
    /// Its number, from 1.
    pub number: u32,
    /// The largest payload of a packet, in bytes.
    #[serde(default)]
    pub active_mtu: Option<u32>,
}

impl VerbsProbe {
    /// Reads it.
    pub fn read(source: &dyn Source) -> Datum<Self> {
        parse(source, virtual_path::VERBS_DEVICES)
    }

    /// What it said of the device of this name.
    pub fn device(&self, name: &str) -> Option<&VerbsDevice> {
        self.devices.iter().find(|device| device.name == name)
    }
}

fn parse<T: for<'a> Deserialize<'a>>(source: &dyn Source, path: &str) -> Datum<T> {
    source
        .text(path)
        .and_then(|text| match serde_json::from_str(&text) {
            Ok(answer) => Ok(answer),
            Err(_) => Err(Absence::Failed(BAD_MESSAGE)),
        })
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;

    #[test]
    fn the_answers_of_the_example_are_understood() {
        let node = example::healthy();
        let cuda = CudaProbe::read(&node).unwrap();
        let gpu = cuda.device(example::GPUS[3].parse().unwrap()).unwrap();
        assert_eq!(gpu.dma_buf_supported, Some(true));
        assert_eq!(gpu.compute_capability.as_deref(), Some("9.0"));
        let verbs = VerbsProbe::read(&node).unwrap();
        let nic = verbs.device("mlx5_3").unwrap();
        assert_eq!(nic.dma_buf.as_deref(), Some("supported"));
        assert_eq!(nic.ports.as_ref().unwrap()[0].active_mtu, Some(4096));
    }

    #[test]
    fn the_management_library_adds_what_cuda_was_not_asked_for() {
        let gpu = example::GPUS[2];
        let node = example::healthy().file(
            virtual_path::NVML_DEVICES,
            format!(
                "{{\"devices\":[{{\"pci\":\"0000{gpu}\",\"compute_mode\":3,\"ecc_enabled\":false}}]}}"
            ),
        );
        let cuda = CudaProbe::read(&node).unwrap();
        let reported = cuda.device(gpu.parse().unwrap()).unwrap();
        assert_eq!(
            (reported.compute_mode, reported.ecc_enabled),
            (Some(3), Some(false))
        );
        assert_eq!(
            (reported.compute_mode_by, reported.ecc_enabled_by),
            (Library::Nvml, Library::Nvml)
        );
    }

    #[test]
    fn an_answer_of_an_older_version_has_no_ports() {
        let text = r#"{"devices":[{"name":"mlx5_0","dma_buf":"unsupported"}]}"#;
        let node = MemorySource::new().file(virtual_path::VERBS_DEVICES, text);
        let verbs = VerbsProbe::read(&node).unwrap();
        assert_eq!(verbs.device("mlx5_0").unwrap().ports, None);
        assert_eq!(verbs.device("mlx5_1"), None);
    }

    #[test]
    fn an_answer_that_is_none_is_a_failed_reading() {
        let node = MemorySource::new().file(virtual_path::CUDA_DEVICES, "{\"devices\":[{\"pci\"");
        assert_eq!(CudaProbe::read(&node), Err(Absence::Failed(BAD_MESSAGE)));
        assert_eq!(VerbsProbe::read(&node), Err(Absence::Missing));
    }
}
