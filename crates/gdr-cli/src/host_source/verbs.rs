//! RDMA devices that libibverbs lists, and whether each accepts dma-bufs.

use gdr_node::{Absence, Datum, DmaBufImport, PortFacts, Probe, RdmaFacts};
use gdr_rdma::{
    Device, DmaBufSupport, Error, LoadError, NoDevice, VerbsDevice, VerbsError, VerbsOptions,
};

pub(super) fn devices() -> Datum<Vec<u8>> {
    match Device::list_verbs(&VerbsOptions::new()) {
        Ok(devices) => Probe::of(devices.iter().map(device).collect()).to_file(),
        Err(Error::Verbs(VerbsError::Load(
            LoadError::Library { .. } | LoadError::NoDevice(NoDevice::Empty),
        ))) => Err(Absence::Missing),
        Err(error) => Probe::<RdmaFacts>::failed(error.to_string()).to_file(),
    }
}

fn device(device: &VerbsDevice) -> RdmaFacts {
    let attributes = device.attributes.as_ref();
    let dma_buf = match attributes.map(|attributes| &attributes.dma_buf) {
        Ok(DmaBufSupport::Supported) => DmaBufImport::Supported,
        Ok(DmaBufSupport::Unsupported(_)) => DmaBufImport::Unsupported,
        Ok(DmaBufSupport::Unknown(reason)) | Err(reason) => DmaBufImport::Unknown(reason.clone()),
        Ok(other) => DmaBufImport::Unknown(format!("{other:?}")),
    };
    let ports = attributes.map_or(&[][..], |attributes| &attributes.ports);
    let ports = ports.iter().map(|port| PortFacts {
        number: port.number.into(),
        active_mtu: port.active_mtu,
    });
    RdmaFacts {
        name: device.name.clone(),
        firmware: attributes.ok().map(|it| it.firmware.clone()),
        on_demand_paging: attributes.ok().map(|it| it.on_demand_paging),
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
        let listed = Device::list_verbs(&options).unwrap();
        let port = PortFacts {
            number: 1,
            active_mtu: Some(4096),
        };
        assert_eq!(device(&listed[0]).ports, Some(vec![port]));
        let answers: Vec<_> = (listed.iter().map(device))
            .map(|device| (device.name, device.dma_buf))
            .collect();
        assert_eq!(
            answers,
            [
                ("mlx5_0".to_owned(), Some(DmaBufImport::Supported)),
                ("mlx5_1".to_owned(), Some(DmaBufImport::Unsupported))
            ]
        );
        fake.assert_clean();
    }
}
