//! Properties of a simulated device.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// The treatment of GPU memory by one registration method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuPath {
    /// The registration and transfers succeed.
    Works,
    /// The registration fails with this `errno`.
    Refuses(i32),
    /// The registration and transfers succeed, but no byte is copied.
    LosesBytes,
    /// The registration succeeds, but transfers fail: no device finds its keys.
    Fails,
}

/// An entry of the GID table of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidSpec {
    /// The index in the table.
    pub index: u32,
    /// The GID.
    pub gid: [u8; 16],
    /// `ibv_gid_type`, or any number.
    pub kind: u32,
    /// The index of the network interface.
    pub interface: u32,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortSpec {
    /// `ibv_port_state`, or any number.
    pub state: u32,
    /// The physical state: 5 is link up, 3 disabled, 2 polling.
    pub phys_state: u8,
    /// `IBV_LINK_LAYER_`, or any number.
    pub link_layer: u8,
    /// `ibv_mtu`, or any number.
    pub max_mtu: u32,
    /// `ibv_mtu`, or any number.
    pub active_mtu: u32,
    /// The LID, on InfiniBand.
    pub lid: u16,
    /// The code of the width: 1, 2, 4, 8 and 16 for 1, 4, 8, 12 and 2 lanes.
    pub width: u8,
    /// The code of the speed of a lane; 128 is 100 Gbit/s.
    pub speed: u8,
    /// Length of the GID table.
    pub gid_table: u32,
    /// The used entries of the GID table.
    pub gids: Vec<GidSpec>,
}

/// Returns a link-local GID made from a number.
fn link_local(number: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&[0x0e, 0x42, 0xa1, 0xff, 0xfe, 0, 0, number]);
    gid
}

impl PortSpec {
    /// Returns an active RoCE port: link-local and IPv4 GIDs, each in RoCE v1 and v2, as mlx5 lists them.
    pub fn ethernet(address: Ipv4Addr) -> Self {
        let number = address.octets()[3];
        let mapped = address.to_ipv6_mapped().octets();
        let gids = [
            (link_local(number), 1),
            (link_local(number), 2),
            (mapped, 1),
            (mapped, 2),
        ];
        let gids = (0..).zip(gids).map(|(index, (gid, kind))| GidSpec {
            index,
            gid,
            kind,
            interface: 2,
        });
        Self {
            gids: gids.collect(),
            ..Self::default()
        }
    }

    /// Returns an active InfiniBand port.
    pub fn infiniband(lid: u16) -> Self {
        let gid = GidSpec {
            index: 0,
            gid: link_local(lid as u8),
            kind: 0,
            interface: 0,
        };
        Self {
            link_layer: 1,
            lid,
            gids: vec![gid],
            ..Self::default()
        }
    }
}

impl Default for PortSpec {
    /// Returns an active Ethernet port of 400 Gbit/s and MTU 4096 without any GID.
    fn default() -> Self {
        Self {
            state: 4,
            phys_state: 5,
            link_layer: 2,
            max_mtu: 5,
            active_mtu: 5,
            lid: 0,
            width: 2,
            speed: 128,
            gid_table: 256,
            gids: Vec::new(),
        }
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceSpec {
    /// The kernel name.
    pub name: String,
    /// `ibv_node_type`, or any number.
    pub node_type: i32,
    /// `ibv_transport_type`, or any number.
    pub transport: i32,
    /// The node GUID, as a number.
    pub guid: u64,
    /// The vendor ID.
    pub vendor_id: u32,
    /// The part ID of the vendor.
    pub vendor_part_id: u32,
    /// The firmware version.
    pub firmware: String,
    /// `ibv_atomic_cap`, or any number.
    pub atomics: u32,
    /// Maximum number of requests in a queue.
    pub max_requests: i32,
    /// Maximum number of READs and atomics that a peer may have outstanding.
    pub max_reads: i32,
    /// The ports, from number 1 on.
    pub ports: Vec<PortSpec>,
    /// The treatment of GPU memory by dma-buf.
    pub dma_buf: GpuPath,
    /// The treatment of GPU memory by a peer-memory module.
    pub peer_memory: GpuPath,
    /// Whether it supports on-demand paging.
    pub on_demand: bool,
    /// Whether it has extended completion queues.
    pub extended_queues: bool,
    /// Whether it has extended queue pairs.
    pub extended_requests: bool,
    /// Whether it has `ibv_query_device_ex` and the new form of `ibv_query_port`.
    pub extended_queries: bool,
    /// Whether small messages are written to the completion, from which the library copies them by
    /// CPU ("scatter to CQE" of mlx5). The environment variable `MLX5_SCATTER_TO_CQE=0` disables
    /// it.
    pub scatter_to_cqe: bool,
    /// Whether a new queue pair gets the lowest free number, as from firmware.
    pub reuses_numbers: bool,
    /// Whether the completions of a destroyed queue pair stay in their queue, as with rxe.
    pub keeps_completions: bool,
    /// Verbs that always fail, with their `errno`. The name of `ibv_modify_qp` may have the new state:
    /// `ibv_modify_qp RTR`.
    pub refusals: BTreeMap<String, i32>,
}

impl DeviceSpec {
    /// Returns a ConnectX-7 with one RoCE port of this address, on which everything works.
    pub fn roce(name: &str, address: Ipv4Addr) -> Self {
        Self {
            name: name.to_owned(),
            ports: vec![PortSpec::ethernet(address)],
            ..Self::default()
        }
    }

    /// Returns a ConnectX-7 with one InfiniBand port.
    pub fn infiniband(name: &str, lid: u16) -> Self {
        Self {
            name: name.to_owned(),
            ports: vec![PortSpec::infiniband(lid)],
            ..Self::default()
        }
    }

    /// Like Linux rxe with an old library: no extended objects, no GPU memory.
    pub fn rxe(name: &str, address: Ipv4Addr) -> Self {
        Self {
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            firmware: String::new(),
            dma_buf: GpuPath::Refuses(libc::EOPNOTSUPP),
            peer_memory: GpuPath::Refuses(libc::EFAULT),
            on_demand: false,
            extended_queues: false,
            extended_requests: false,
            scatter_to_cqe: false,
            ..Self::roce(name, address)
        }
    }
}

impl Default for DeviceSpec {
    fn default() -> Self {
        Self {
            name: "mlx5_0".to_owned(),
            node_type: 1,
            transport: 0,
            guid: 0x0c42_a103_0012_3456,
            vendor_id: 0x02c9,
            vendor_part_id: 4129,
            firmware: "28.39.1002".to_owned(),
            atomics: 1,
            max_requests: 32_768,
            max_reads: 16,
            ports: Vec::new(),
            dma_buf: GpuPath::Works,
            peer_memory: GpuPath::Refuses(libc::EFAULT),
            on_demand: true,
            extended_queues: true,
            extended_requests: true,
            extended_queries: true,
            scatter_to_cqe: true,
            reuses_numbers: false,
            keeps_completions: false,
            refusals: BTreeMap::new(),
        }
    }
}
