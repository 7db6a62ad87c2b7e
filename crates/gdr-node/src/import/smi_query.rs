//! The output of `nvidia-smi -q`.

use gdr_pci::Bdf;
use serde_json::{Value, json};

/// The most GPUs that are read.
const MOST_GPUS: usize = 256;

/// Whether a text is the output of `nvidia-smi -q`.
pub(super) fn is_query(text: &str) -> bool {
    text.contains("NVSMI LOG=")
}

/// The GPUs as [`NVML_DEVICES`](crate::virtual_path::NVML_DEVICES) lays them out: what of it the
/// text has.
pub(super) fn devices(text: &str) -> Option<String> {
    let mut devices: Vec<Value> = Vec::new();
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
                devices.push(json!({ "pci": at.to_string(), "nvlinks": [] }));
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
                device["compute_mode"] = json!(mode);
            }
            ("ECC Mode" | "Ecc Mode", "Current", value @ ("Enabled" | "Disabled")) => {
                device["ecc_enabled"] = json!(value == "Enabled");
            }
            _ => {}
        }
    }
    (!devices.is_empty()).then(|| json!({ "error": null, "devices": devices }).to_string())
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
        let devices: Value = serde_json::from_str(&devices(text).unwrap()).unwrap();
        let devices = &devices["devices"];
        assert_eq!(devices[0]["pci"], "0000:01:00.0");
        assert_eq!(devices[0]["compute_mode"], 2);
        assert_eq!(devices[0]["ecc_enabled"], false);
        assert_eq!(devices[1].get("ecc_enabled"), None);
        assert!(super::devices("words").is_none());
    }
}
