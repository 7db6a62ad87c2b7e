//! What libibverbs tells of the RDMA devices, with the question that NCCL asks too: whether the
//! kernel and the device's driver take dma-bufs.

use std::ffi::CStr;

use gdr_node::Datum;
use gdr_verbs_sys::{
    Errno, LoadError, NoDevice, VerbError, Verbs, ibv_context, ibv_device, ibv_odp_general_caps,
};
use serde_json::{Value, json};

pub(super) fn devices() -> Datum<Vec<u8>> {
    match Verbs::library().and_then(listed) {
        Ok(devices) => super::present(&json!({ "error": null, "devices": devices })),
        Err(LoadError::Library { .. } | LoadError::NoDevice(NoDevice::Empty)) => Datum::Missing,
        Err(error) => super::present(&json!({ "error": error.to_string(), "devices": [] })),
    }
}

fn listed(verbs: &Verbs) -> Result<Vec<Value>, LoadError> {
    let devices = verbs.devices()?;
    let mut listed: Vec<Value> = devices
        .as_slice()
        .iter()
        // SAFETY: the list is there while its devices are asked.
        .map(|device| unsafe { about(verbs, *device) })
        .collect();
    listed.sort_by_key(|device| device["name"].as_str().unwrap_or_default().to_owned());
    Ok(listed)
}

/// What one device tells.
///
/// # Safety
///
/// The device is one of a list of this library's that is still there.
unsafe fn about(verbs: &Verbs, device: *mut ibv_device) -> Value {
    // SAFETY: the device is in a list; its name stays with it.
    let name = unsafe { verbs.ibv_get_device_name(device) };
    let name = if name.is_null() {
        String::new()
    } else {
        // SAFETY: libibverbs ends names with a zero.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    };
    // SAFETY: the device is in a list.
    let context = match unsafe { verbs.ibv_open_device(device) } {
        Ok(context) => context.as_ptr(),
        Err(error) => {
            return json!({
                "name": name,
                "firmware": null,
                "on_demand_paging": null,
                "dma_buf": error.to_string(),
            });
        }
    };
    // SAFETY: the context is open.
    let attributes = unsafe { verbs.ibv_query_device_ex(context) };
    let attributes = attributes.ok();
    let firmware = attributes.as_ref().map(|all| {
        let bytes = all.orig_attr.fw_ver.iter().map(|byte| *byte as u8);
        let text: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&text).into_owned()
    });
    let paging = attributes.as_ref().map(|all| {
        all.odp_caps.general_caps & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0) != 0
    });
    // SAFETY: the context is open.
    let dma_buf = unsafe { dma_buf(verbs, context) };
    // SAFETY: nothing that was made from the context is left.
    let closed = unsafe { verbs.ibv_close_device(context) };
    if let Err(error) = closed {
        tracing::debug!(%error, name, "a device is not closed");
    }
    json!({
        "name": name,
        "firmware": firmware,
        "on_demand_paging": paging,
        "dma_buf": dma_buf,
    })
}

/// Whether dma-bufs can be registered, asked with a descriptor that is none: who would take a real
/// one refuses this one as that (`src/transport/net_ib/gdr.cc` of NCCL).
///
/// # Safety
///
/// The context is open.
unsafe fn dma_buf(verbs: &Verbs, context: *mut ibv_context) -> String {
    // SAFETY: the context is open.
    let domain = match unsafe { verbs.ibv_alloc_pd(context) } {
        Ok(domain) => domain.as_ptr(),
        Err(error) => return error.to_string(),
    };
    // SAFETY: the domain is alive; there is no memory behind the descriptor.
    let asked = unsafe { verbs.ibv_reg_dmabuf_mr(domain, 0, 0, 0, -1, 0) };
    let answer = match asked {
        Ok(region) => {
            // SAFETY: the region was just made and nobody else has it.
            let undone = unsafe { verbs.ibv_dereg_mr(region.as_ptr()) };
            match undone {
                Ok(()) => "a region without memory was registered".to_owned(),
                Err(error) => error.to_string(),
            }
        }
        Err(error) => match &error {
            VerbError::Failed { errno, .. } if *errno == Errno::EBADF => "supported".to_owned(),
            VerbError::Failed { errno, .. }
                if matches!(*errno, Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT) =>
            {
                "unsupported".to_owned()
            }
            _ => error.to_string(),
        },
    };
    // SAFETY: nothing that was made from the domain is left.
    let freed = unsafe { verbs.ibv_dealloc_pd(domain) };
    match freed {
        Ok(()) => answer,
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use fake_ibverbs::{DeviceSpec, Fake, GpuPath};

    use super::*;

    fn device(name: &str, dma_buf: GpuPath) -> DeviceSpec {
        DeviceSpec {
            dma_buf,
            ..DeviceSpec::roce(name, Ipv4Addr::new(10, 0, 0, 1))
        }
    }

    #[test]
    fn devices_are_asked_for_dma_bufs_and_nothing_is_left_of_the_question() {
        let fake = Fake::load();
        fake.add(device("mlx5_1", GpuPath::Refuses(Errno::EOPNOTSUPP.0)));
        fake.add(device("mlx5_0", GpuPath::Works));
        let told = listed(fake.verbs()).unwrap();
        let answers: Vec<(&str, &str)> = told
            .iter()
            .map(|told| {
                (
                    told["name"].as_str().unwrap(),
                    told["dma_buf"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            answers,
            [("mlx5_0", "supported"), ("mlx5_1", "unsupported")]
        );
        fake.assert_clean();
    }
}
