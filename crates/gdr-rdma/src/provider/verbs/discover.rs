//! The devices that libibverbs lists, including those that cannot be used.

use std::ffi::CStr;
use std::ptr::NonNull;

use gdr_verbs_sys::{
    Errno, VerbError, Verbs, ibv_context, ibv_odp_general_caps, ibv_port_attr, ibv_port_state,
};
use rustix::net::netdevice::index_to_name_inlined;
use rustix::net::{AddressFamily, SocketType, socket};

use super::context::device_name;
use super::gid_table;
use crate::error::{VerbsError, dma_buf_hint};
use crate::types::{ChosenGid, GidEntry, LinkLayer, choose_gid};

/// A device that libibverbs lists.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerbsDevice {
    /// Its name: `mlx5_0`.
    pub name: String,
    /// Its attributes, or why it cannot be opened or queried.
    pub attributes: Result<DeviceAttributes, String>,
}

/// The attributes of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Firmware version; empty for a software device.
    pub firmware: String,
    /// Whether it can register memory without pinning it (on-demand paging).
    pub on_demand_paging: bool,
    /// Whether memory can be registered by dma-buf.
    pub dma_buf: DmaBufSupport,
    /// Its ports.
    pub ports: Vec<VerbsPort>,
}

/// Whether a device registers memory by dma-buf.
///
/// Probed by registering the descriptor -1: a driver that supports dma-buf returns EBADF, and one that does not returns
/// EOPNOTSUPP. Only a registration shows whether the device can access the memory of a particular GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DmaBufSupport {
    /// It does.
    Supported,
    /// It does not, for this reason.
    Unsupported(String),
    /// The probe had a different result.
    Unknown(String),
}

/// A port of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerbsPort {
    /// Its number, from 1.
    pub number: u8,
    /// Its state as the kernel names it, without the number: `ACTIVE`, `DOWN`.
    pub state: String,
    /// Whether it is active.
    pub active: bool,
    /// Its link layer.
    pub link_layer: LinkLayer,
    /// Gbit/s of all lanes together; `None` if the speed or width is unknown.
    pub gigabits: Option<f64>,
    /// The largest payload of a packet in bytes; `None` for an unknown value.
    pub active_mtu: Option<u32>,
    /// Its local identifier; 0 if it has none, as on Ethernet.
    pub lid: u16,
    /// Its GIDs.
    pub gids: Vec<VerbsGid>,
    /// The GID used by default, or why there is none.
    pub chosen: Result<ChosenGid, String>,
}

/// An entry of a port's GID table, with the network interface that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerbsGid {
    /// The entry.
    pub entry: GidEntry,
    /// The name of the interface in this network namespace; `None` if it has no interface or that is
    /// in another namespace.
    pub interface: Option<String>,
}

/// Lists the devices of `verbs`, or of the libibverbs that is found, by name. A device that cannot be opened or queried
/// is listed with the reason.
pub(crate) fn discover(verbs: Option<&'static Verbs>) -> Result<Vec<VerbsDevice>, VerbsError> {
    let verbs = match verbs {
        Some(verbs) => verbs,
        None => Verbs::load()?,
    };
    let devices = verbs.devices()?;
    let mut listed: Vec<VerbsDevice> = devices
        .as_slice()
        .iter()
        .map(|&device| VerbsDevice {
            name: device_name(verbs, device),
            // SAFETY: the list that has the device is alive.
            attributes: unsafe { verbs.ibv_open_device(device) }
                .map(|context| Open { verbs, context })
                .and_then(|open| open.attributes())
                .map_err(|error| error.to_string()),
        })
        .collect();
    listed.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(listed)
}

/// An open device.
struct Open {
    verbs: &'static Verbs,
    context: NonNull<ibv_context>,
}

impl Open {
    fn attributes(&self) -> Result<DeviceAttributes, VerbError> {
        // SAFETY: the context is open, by this library.
        let attr = unsafe { self.verbs.ibv_query_device_ex(self.context.as_ptr()) }?;
        let on_demand = u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0);
        let ports = 1..=attr.orig_attr.phys_port_cnt;
        Ok(DeviceAttributes {
            firmware: text(&attr.orig_attr.fw_ver),
            on_demand_paging: attr.odp_caps.general_caps & on_demand != 0,
            dma_buf: self.dma_buf(),
            ports: ports
                .map(|number| self.port(number))
                .collect::<Result<_, _>>()?,
        })
    }

    fn port(&self, number: u8) -> Result<VerbsPort, VerbError> {
        // SAFETY: the context is open, by this library.
        let attr = unsafe { self.verbs.query_port(self.context.as_ptr(), number) }?;
        // SAFETY: as above.
        let table = unsafe { gid_table::read(self.verbs, self.context.as_ptr(), number, &attr) };
        let (table, refusal) = match table {
            Ok(table) => (table, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let gids: Vec<VerbsGid> = table
            .iter()
            .map(|entry| VerbsGid {
                entry: entry.gid,
                interface: interface(entry.interface),
            })
            .collect();
        let entries: Vec<GidEntry> = table.iter().map(|entry| entry.gid).collect();
        let link_layer = LinkLayer::from_number(attr.link_layer);
        let chosen = choose_gid(link_layer, &entries)
            .map_err(|none| refusal.unwrap_or_else(|| none.to_string()));
        Ok(VerbsPort {
            number,
            state: state(attr.state),
            active: attr.state == ibv_port_state::IBV_PORT_ACTIVE,
            link_layer,
            gigabits: gigabits(&attr),
            active_mtu: (1..=5)
                .contains(&attr.active_mtu.0)
                .then(|| 128 << attr.active_mtu.0),
            lid: attr.lid,
            gids,
            chosen,
        })
    }

    fn dma_buf(&self) -> DmaBufSupport {
        match self.probe_dma_buf() {
            // The driver did not check the descriptor.
            Ok(()) => DmaBufSupport::Unknown("it registered the descriptor -1".to_owned()),
            Err(error) => match error {
                VerbError::Failed {
                    errno: Errno::EBADF,
                    ..
                } => DmaBufSupport::Supported,
                _ if matches!(error.errno(), Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT) => {
                    DmaBufSupport::Unsupported(format!("{error}: {}", dma_buf_hint(error.errno())))
                }
                _ => DmaBufSupport::Unknown(error.to_string()),
            },
        }
    }

    fn probe_dma_buf(&self) -> Result<(), VerbError> {
        let verbs = self.verbs;
        // SAFETY: the context is open. The domain is freed below, after the region that is created from it, and the
        // descriptor refers to no memory.
        unsafe {
            let domain = verbs.ibv_alloc_pd(self.context.as_ptr())?;
            let probed = verbs
                .ibv_reg_dmabuf_mr(domain.as_ptr(), 0, 0, 0, -1, 0)
                .and_then(|region| verbs.ibv_dereg_mr(region.as_ptr()));
            if let Err(error) = verbs.ibv_dealloc_pd(domain.as_ptr()) {
                tracing::warn!(%error, "a protection domain is not released");
            }
            probed
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: every object created from the context is gone.
        if let Err(error) = unsafe { self.verbs.ibv_close_device(self.context.as_ptr()) } {
            tracing::warn!(%error, "a device cannot be closed");
        }
    }
}

/// Returns the C string in an array, or an empty string if it is not terminated.
fn text(bytes: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Returns `ACTIVE` for `IBV_PORT_ACTIVE`, and a number for an unknown state.
fn state(state: ibv_port_state) -> String {
    match state.name() {
        Some(name) => name.trim_start_matches("IBV_PORT_").to_owned(),
        None => format!("state {}", state.0),
    }
}

/// Returns the name of a network interface.
fn interface(index: u32) -> Option<String> {
    if index == 0 {
        return None;
    }
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    let name = index_to_name_inlined(&socket, index).ok()?;
    Some(name.as_str().to_owned())
}

/// Returns the Gbit/s of all lanes, from the encodings of the InfiniBand specification's PortInfo (14.2.5.6).
fn gigabits(attr: &ibv_port_attr) -> Option<f64> {
    let lanes = match attr.active_width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => return None,
    };
    let speed = match attr.active_speed_ex {
        0 => u32::from(attr.active_speed),
        extended => extended,
    };
    let lane = match speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        256 => 200.0,
        _ => return None,
    };
    Some(lanes * lane)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use fake_ibverbs::{DeviceSpec, Fake, GpuPath, PortSpec};

    use super::*;

    #[test]
    fn every_device_is_listed_with_its_ports_and_none_stays_open() {
        let fake = Fake::load();
        let address = Ipv4Addr::new(10, 0, 0, 7);
        fake.add(DeviceSpec {
            ports: vec![PortSpec::ethernet(address), PortSpec::infiniband(9)],
            ..DeviceSpec::roce("mlx5_1", address)
        });
        fake.add(DeviceSpec::rxe("a_rxe", Ipv4Addr::new(10, 0, 0, 8)));
        let listed = discover(Some(fake.verbs())).unwrap();
        let names: Vec<&str> = listed.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["a_rxe", "mlx5_1"]);
        let rxe = listed[0].attributes.as_ref().unwrap();
        assert!(matches!(rxe.dma_buf, DmaBufSupport::Unsupported(_)));
        assert!(!rxe.on_demand_paging);
        let mlx = listed[1].attributes.as_ref().unwrap();
        assert_eq!(mlx.dma_buf, DmaBufSupport::Supported);
        assert_eq!(mlx.firmware, "28.39.1002");
        let [ethernet, infiniband] = &mlx.ports[..] else {
            panic!("{} ports", mlx.ports.len());
        };
        assert_eq!((ethernet.state.as_str(), ethernet.active), ("ACTIVE", true));
        assert_eq!(ethernet.gigabits, Some(400.0));
        assert_eq!(ethernet.active_mtu, Some(4096));
        assert_eq!(ethernet.chosen.as_ref().unwrap().entry.index, 3);
        assert_eq!(ethernet.gids.len(), 4);
        assert_eq!(infiniband.link_layer, LinkLayer::InfiniBand);
        assert_eq!(infiniband.lid, 9);
        assert_eq!(infiniband.chosen.as_ref().unwrap().entry.index, 0);
        fake.assert_clean();
    }

    #[test]
    fn unknown_values_of_a_newer_kernel_are_shown_as_numbers() {
        let fake = Fake::load();
        let port = PortSpec {
            state: 77,
            link_layer: 9,
            active_mtu: 12,
            width: 64,
            speed: 0,
            ..PortSpec::default()
        };
        fake.add(DeviceSpec {
            ports: vec![port],
            dma_buf: GpuPath::Refuses(Errno::EINVAL.0),
            ..DeviceSpec::default()
        });
        let listed = discover(Some(fake.verbs())).unwrap();
        let attributes = listed[0].attributes.as_ref().unwrap();
        let port = &attributes.ports[0];
        assert_eq!((port.state.as_str(), port.active), ("state 77", false));
        assert_eq!(port.link_layer.to_string(), "link layer 9");
        assert_eq!((port.gigabits, port.active_mtu), (None, None));
        assert!(port.chosen.is_err());
        fake.assert_clean();
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_listed_with_the_reason() {
        let fake = Fake::load();
        let mut device = DeviceSpec::roce("mlx5_0", Ipv4Addr::new(10, 0, 0, 1));
        device
            .refusals
            .insert("ibv_open_device".to_owned(), Errno::EACCES.0);
        fake.add(device);
        let listed = discover(Some(fake.verbs())).unwrap();
        let why = listed[0].attributes.as_ref().unwrap_err();
        assert!(why.contains("ibv_open_device"), "{why}");
    }
}
