//! The RDMA devices that libibverbs lists, and whether each accepts dma-bufs.

use gdr_node::{Absence, Datum};
use gdr_rdma::{
    Device, DmaBufSupport, Error, LoadError, NoDevice, VerbsDevice, VerbsError, VerbsOptions,
};
use serde_json::{Value, json};

pub(super) fn devices() -> Datum<Vec<u8>> {
    match Device::list_verbs(&VerbsOptions::new()) {
        Ok(devices) => {
            let devices: Vec<Value> = devices.iter().map(device).collect();
            super::present(&json!({ "error": null, "devices": devices }))
        }
        Err(Error::Verbs(VerbsError::Load(
            LoadError::Library { .. } | LoadError::NoDevice(NoDevice::Empty),
        ))) => Err(Absence::Missing),
        Err(error) => super::present(&json!({ "error": error.to_string(), "devices": [] })),
    }
}

fn device(device: &VerbsDevice) -> Value {
    let attributes = device.attributes.as_ref();
    let dma_buf = match attributes.map(|attributes| &attributes.dma_buf) {
        Ok(DmaBufSupport::Supported) => "supported".to_owned(),
        Ok(DmaBufSupport::Unsupported(_)) => "unsupported".to_owned(),
        Ok(DmaBufSupport::Unknown(reason)) => reason.clone(),
        Ok(other) => format!("{other:?}"),
        Err(reason) => reason.clone(),
    };
    json!({
        "name": device.name,
        "firmware": attributes.ok().map(|attributes| &attributes.firmware),
        "on_demand_paging": attributes.ok().map(|attributes| attributes.on_demand_paging),
        "dma_buf": dma_buf,
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use fake_ibverbs::{DeviceSpec, Fake, GpuPath};

    use super::*;

    /// `EOPNOTSUPP` of Linux.
    const NOT_SUPPORTED: i32 = 95;

    fn spec(name: &str, dma_buf: GpuPath) -> DeviceSpec {
        DeviceSpec {
            dma_buf,
            ..DeviceSpec::roce(name, Ipv4Addr::new(10, 0, 0, 1))
        }
    }

    #[test]
    fn each_device_reports_whether_it_accepts_dma_bufs() {
        let fake = Fake::load();
        fake.add(spec("mlx5_1", GpuPath::Refuses(NOT_SUPPORTED)));
        fake.add(spec("mlx5_0", GpuPath::Works));
        let options = VerbsOptions::new().library(fake.verbs());
        let listed: Vec<Value> = Device::list_verbs(&options)
            .unwrap()
            .iter()
            .map(device)
            .collect();
        let answers: Vec<_> = listed
            .iter()
            .map(|device| (device["name"].as_str(), device["dma_buf"].as_str()))
            .collect();
        assert_eq!(
            answers,
            [
                (Some("mlx5_0"), Some("supported")),
                (Some("mlx5_1"), Some("unsupported"))
            ]
        );
        fake.assert_clean();
    }
}
