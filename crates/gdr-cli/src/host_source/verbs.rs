//! The RDMA devices that libibverbs lists, and whether each accepts dma-bufs.

use gdr_doctor::probes::{self, ProbedPort, VerbsProbe};
use gdr_node::{Absence, Datum};
use gdr_rdma::{
    Device, DmaBufSupport, Error, LoadError, NoDevice, VerbsDevice, VerbsError, VerbsOptions,
};

pub(super) fn devices() -> Datum<Vec<u8>> {
    match Device::list_verbs(&VerbsOptions::new()) {
        Ok(devices) => super::present(&VerbsProbe {
            error: None,
            devices: devices.iter().map(device).collect(),
        }),
        Err(Error::Verbs(VerbsError::Load(
            LoadError::Library { .. } | LoadError::NoDevice(NoDevice::Empty),
        ))) => Err(Absence::Missing),
        Err(error) => super::present(&VerbsProbe {
            error: Some(error.to_string()),
            devices: Vec::new(),
        }),
    }
}

fn device(device: &VerbsDevice) -> probes::VerbsDevice {
    let attributes = device.attributes.as_ref();
    let dma_buf = match attributes.map(|attributes| &attributes.dma_buf) {
        Ok(DmaBufSupport::Supported) => "supported".to_owned(),
        Ok(DmaBufSupport::Unsupported(_)) => "unsupported".to_owned(),
        Ok(DmaBufSupport::Unknown(reason)) => reason.clone(),
        Ok(other) => format!("{other:?}"),
        Err(reason) => reason.clone(),
    };
    let ports = attributes.map_or(&[][..], |attributes| &attributes.ports);
    let ports = ports.iter().map(|port| ProbedPort {
        number: port.number.into(),
        active_mtu: port.active_mtu,
    });
    probes::VerbsDevice {
        name: device.name.clone(),
        firmware: attributes
            .ok()
            .map(|attributes| attributes.firmware.clone()),
        on_demand_paging: attributes
            .ok()
            .map(|attributes| attributes.on_demand_paging),
        dma_buf: Some(dma_buf),
        ports: Some(ports.collect()),
    }
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
        let listed: Vec<probes::VerbsDevice> = Device::list_verbs(&options)
            .unwrap()
            .iter()
            .map(device)
            .collect();
        let answers: Vec<_> = listed
            .iter()
            .map(|device| (device.name.as_str(), device.dma_buf.as_deref()))
            .collect();
        assert_eq!(
            answers,
            [
                ("mlx5_0", Some("supported")),
                ("mlx5_1", Some("unsupported"))
            ]
        );
        let port = ProbedPort {
            number: 1,
            active_mtu: Some(4096),
        };
        assert_eq!(listed[0].ports.as_deref(), Some(&[port][..]));
        fake.assert_clean();
    }
}
