//! This machine as a source of facts: its files, and the answers of CUDA, NVML and libibverbs.

mod nvml;
mod verbs;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gdr_cuda::{Cuda, Driver, Error};
use gdr_node::{Absence, Datum, Errno, GpuFacts, Probe, ThisNode, virtual_path};

/// Deadline of a driver's answer. Without persistence mode, NVIDIA's driver first initializes every GPU, which takes
/// seconds each. A driver that hangs must not block the diagnosis.
const LIMIT: Duration = Duration::from_secs(60);
/// `ETIMEDOUT` of Linux.
const TOO_LATE: Errno = Errno(110);

/// Returns this machine.
pub(crate) fn this_node() -> ThisNode {
    ThisNode::new()
        .with(virtual_path::CUDA_DEVICES, || in_time(cuda_devices))
        .with(virtual_path::NVML_DEVICES, || in_time(nvml::devices))
        .with(virtual_path::VERBS_DEVICES, || in_time(verbs::devices))
}

/// Returns the answer of `ask` within [`LIMIT`]. The thread of a driver that hangs is leaked.
fn in_time(ask: fn() -> Datum<Vec<u8>>) -> Datum<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        // After the deadline, the receiver is gone.
        let _ = send.send(ask());
    });
    receive
        .recv_timeout(LIMIT)
        .unwrap_or(Err(Absence::Failed(TOO_LATE)))
}

fn cuda_devices() -> Datum<Vec<u8>> {
    let asked = Cuda::load().and_then(|cuda| Ok((cuda.cuda_version(), cuda.devices()?)));
    match asked {
        Ok((version, devices)) => Probe {
            driver_version: Some(version.to_string()),
            ..Probe::of(devices.iter().map(gpu_facts).collect())
        }
        .to_file(),
        Err(Error::Library { .. }) => Err(Absence::Missing),
        Err(error) => Probe::<GpuFacts>::failed(error.to_string()).to_file(),
    }
}

fn gpu_facts(info: &gdr_cuda::DeviceInfo) -> GpuFacts {
    let (major, minor) = info.compute_capability;
    GpuFacts {
        ordinal: Some(info.ordinal.0),
        name: Some(info.name.clone()),
        pci: info.bdf.to_string(),
        uuid: Some(uuid(info.uuid)),
        compute_capability: Some(format!("{major}.{minor}")),
        total_memory: Some(info.total_memory),
        gpu_direct_rdma_supported: Some(info.gpudirect_rdma),
        dma_buf_supported: Some(info.dma_buf),
        ..GpuFacts::default()
    }
}

/// Formats a UUID as nvidia-smi does.
pub(crate) fn uuid(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_as_nvidia_smi_names_it() {
        let bytes = [
            0x6d, 0x1c, 0x3a, 0x52, 0x8e, 0x0f, 0x4b, 0x7a, 0x9c, 0x15, 0x2f, 0x40, 0xb7, 0xe6,
            0xa1, 0x00,
        ];
        assert_eq!(uuid(bytes), "GPU-6d1c3a52-8e0f-4b7a-9c15-2f40b7e6a100");
    }

    #[test]
    fn cuda_facts_name_each_field_that_the_example_has() {
        use gdr_node::{Source, example};
        let driver = gdr_cuda::SimDriver::new(1);
        let made = gpu_facts(&driver.devices().unwrap()[0]);
        let made = String::from_utf8(Probe::of(vec![made]).to_file().unwrap()).unwrap();
        let example = example::node().text(virtual_path::CUDA_DEVICES).unwrap();
        let names = |text: &str| -> Vec<String> {
            let text: serde_json::Value = serde_json::from_str(text).unwrap();
            let device = text["devices"][0].as_object().unwrap();
            device.keys().cloned().collect()
        };
        assert_eq!(names(&made), names(&example));
    }
}
