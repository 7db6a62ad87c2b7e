//! This machine as a source of facts: its files, and what CUDA and libibverbs tell.

mod nvml;
mod verbs;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gdr_cuda::{Cuda, Driver, Error};
use gdr_node::{Datum, Errno, ThisNode, virtual_path};
use serde_json::{Value, json};

/// How long a driver may take to answer: NVIDIA's wakes every GPU that persistence mode does not
/// keep awake, which takes seconds each. One that hangs must not keep whoever looks for the cause.
const LIMIT: Duration = Duration::from_secs(60);
/// `ETIMEDOUT` of Linux.
const TOO_LATE: Errno = Errno(110);

/// This machine.
pub(crate) fn this_node() -> ThisNode {
    ThisNode::new()
        .with(virtual_path::CUDA_DEVICES, || in_time(cuda_devices))
        .with(virtual_path::NVML_DEVICES, || in_time(nvml::devices))
        .with(virtual_path::VERBS_DEVICES, || in_time(verbs::devices))
}

/// What `ask` answers, if it does so in time. A driver that hangs keeps its thread.
fn in_time(ask: fn() -> Datum<Vec<u8>>) -> Datum<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        // Nobody listens any more when it came too late.
        let _ = send.send(ask());
    });
    receive
        .recv_timeout(LIMIT)
        .unwrap_or(Datum::Failed(TOO_LATE))
}

fn cuda_devices() -> Datum<Vec<u8>> {
    let asked = Cuda::load().and_then(|cuda| Ok((cuda.cuda_version(), cuda.devices()?)));
    match asked {
        Ok((version, devices)) => {
            let devices: Vec<Value> = devices.iter().map(device).collect();
            present(&json!({
                "driver_version": version.to_string(),
                "error": null,
                "devices": devices,
            }))
        }
        Err(Error::Library { .. }) => Datum::Missing,
        Err(error) => present(&json!({
            "driver_version": null,
            "error": error.to_string(),
            "devices": [],
        })),
    }
}

fn device(info: &gdr_cuda::DeviceInfo) -> Value {
    let (major, minor) = info.compute_capability;
    json!({
        "ordinal": info.ordinal.0,
        "name": info.name,
        "pci": info.bdf.to_string(),
        "uuid": uuid(info.uuid),
        "compute_capability": format!("{major}.{minor}"),
        "total_memory": info.total_memory,
        "gpu_direct_rdma_supported": info.gpudirect_rdma,
        "dma_buf_supported": info.dma_buf,
    })
}

/// As nvidia-smi writes it.
fn uuid(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn present(value: &Value) -> Datum<Vec<u8>> {
    Datum::Present(format!("{value}\n").into_bytes())
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
    fn what_the_driver_tells_is_laid_out_as_the_example_has_it() {
        use gdr_node::{Source, example};
        let driver = gdr_cuda::SimDriver::new(1);
        let made = device(&driver.devices().unwrap()[0]);
        let text = example::node().text(virtual_path::CUDA_DEVICES);
        let example: Value = serde_json::from_str(text.present().unwrap()).unwrap();
        let names = |value: &Value| -> Vec<String> {
            let mut names: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            names.sort();
            names
        };
        assert_eq!(names(&made), names(&example["devices"][0]));
    }
}
