//! The output of `nvidia-smi -q`.

use gdr_pci::Bdf;

use crate::probe::{GpuFacts, Probe};

/// The most GPUs that are read.
const MOST_GPUS: usize = 256;

/// Whether a text is the output of `nvidia-smi -q`.
pub(super) fn is_query(text: &str) -> bool {
    text.contains("NVSMI LOG=")
}

/// The contents of [`NVML_DEVICES`](crate::virtual_path::NVML_DEVICES); `None` if the text has no
/// GPU.
pub(super) fn devices(text: &str) -> Option<Vec<u8>> {
    let gpus = gpus(text);
    let probe = (!gpus.is_empty()).then(|| Probe::of(gpus))?;
    probe.to_file().ok()
}

/// The GPUs of the text, with their compute mode and ECC mode where the text has these.
fn gpus(text: &str) -> Vec<GpuFacts> {
    let mut devices: Vec<GpuFacts> = Vec::new();
    let mut group = "";
    for line in super::plain::lines(text) {
        let inside = line.trim();
        if let Some(at) = inside
            .strip_prefix("GPU ")
            .filter(|_| line.starts_with("GPU "))
        {
            if let Ok(at) = at.parse::<Bdf>()
                && devices.len() < MOST_GPUS
            {
                devices.push(GpuFacts {
                    pci: at.to_string(),
                    ..GpuFacts::default()
                });
            }
            group = "";
            continue;
        }
        let Some((label, value)) = inside.split_once(" : ") else {
            // The head of a group has no value.
            if !inside.is_empty() {
                group = inside;
            }
            continue;
        };
        let Some(device) = devices.last_mut() else {
            continue;
        };
        match (group, label.trim(), value.trim()) {
            (_, "Compute Mode", value) => {
                // As CUDA numbers it.
                let mode = match value {
                    "Default" => 0,
                    "Exclusive_Thread" => 1,
                    "Prohibited" => 2,
                    "Exclusive_Process" => 3,
                    _ => continue,
                };
                device.compute_mode = Some(mode);
            }
            ("ECC Mode" | "Ecc Mode", "Current", value @ ("Enabled" | "Disabled")) => {
                device.ecc_enabled = Some(value == "Enabled");
            }
            _ => {}
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_and_ecc_of_each_gpu_are_read() {
        let text = "==============NVSMI LOG==============\n\nAttached GPUs : 2\n\
            GPU 00000000:01:00.0\n    Compute Mode                          : Prohibited\n\
            \x20   ECC Mode\n        Current                           : Disabled\n\
            \x20       Pending                           : Enabled\n\
            GPU 00000000:02:00.0\n    MIG Mode\n        Current                           : Enabled\n";
        let devices = gpus(text);
        assert_eq!(devices[0].pci, "0000:01:00.0");
        assert_eq!(devices[0].compute_mode, Some(2));
        assert_eq!(devices[0].ecc_enabled, Some(false));
        assert_eq!(devices[1].ecc_enabled, None);
        assert!(super::devices("words").is_none());
    }
}
