//! The variables of each library.

use gdr_node::topology::NcclClass;

use super::rails::{GpuRails, Rail, Rails};
use super::{Context, Environment};
use crate::gpudirect_support::{dmabuf_everywhere, peer_module};

/// Returns a list of ports as `mlx5_1:1,mlx5_2:1`.
fn list<'a>(rails: impl IntoIterator<Item = &'a Rail>) -> String {
    let ports: Vec<String> = rails
        .into_iter()
        .map(|rail| format!("{}:{}", rail.nic, rail.port))
        .collect();
    ports.join(",")
}

/// Returns which NIC is nearest to which GPU, in words: `GPU0 mlx5_1 (PIX)`.
fn nearest(rails: &Rails) -> String {
    let of_gpu = |gpu: &GpuRails| {
        let nics: Vec<String> = gpu
            .rails
            .iter()
            .map(|rail| format!("{} ({})", rail.nic, rail.smi))
            .collect();
        format!("{} {}", gpu.gpu, nics.join(" and "))
    };
    let all: Vec<String> = rails.gpus.iter().map(of_gpu).collect();
    format!("the nearest NIC with an active port: {}", all.join(", "))
}

/// The GID index that fits every Ethernet port of the rails.
enum GidIndex {
    /// No port is Ethernet, so that connections need no index.
    NotNeeded,
    /// One index fits all.
    Common(u32),
    /// The ports differ, or one has no fitting GID that is known.
    Differ(String),
}

impl GidIndex {
    fn of(rails: &Rails) -> Self {
        let ports = rails.ports();
        let ethernet: Vec<&Rail> = ports.into_iter().filter(|rail| rail.ethernet).collect();
        let Some(first) = ethernet.first() else {
            return Self::NotNeeded;
        };
        match first.gid_index {
            Some(index) if ethernet.iter().all(|rail| rail.gid_index == Some(index)) => {
                Self::Common(index)
            }
            _ => Self::Differ(
                ethernet
                    .iter()
                    .map(|rail| match rail.gid_index {
                        Some(index) => format!("{} {index}", rail.nic),
                        None => format!("{} none that is known", rail.nic),
                    })
                    .collect::<Vec<_>>()
                    .join(", "),
            ),
        }
    }
}

/// Sets the variable with the index of the GID, or remarks why not, and what the library does then.
fn gid_index(environment: &mut Environment, rails: &Rails, name: &'static str, otherwise: &str) {
    match GidIndex::of(rails) {
        GidIndex::NotNeeded => {}
        GidIndex::Common(index) => environment.set(
            name,
            index.to_string(),
            "the GID of RoCE v2 with a routable address on every port in the list",
        ),
        GidIndex::Differ(ports) => environment.remark(format!(
            "{name} is left out, since no index is a routable GID of RoCE v2 on every port \
             ({ports}): {otherwise}"
        )),
    }
}

/// NCCL's user guide, "Environment Variables"; the default of the level is in `src/graph/paths.cc`.
pub(super) fn nccl(environment: &mut Environment, rails: &Rails) {
    // Without `=`, NCCL takes a name for a prefix, and mlx5_1 for mlx5_10 too.
    environment.set(
        "NCCL_IB_HCA",
        format!("={}", list(rails.ports())),
        nearest(rails),
    );
    gid_index(
        environment,
        rails,
        "NCCL_IB_GID_INDEX",
        "NCCL 2.21 and later choose one for each port",
    );
    let farthest = rails
        .gpus
        .iter()
        .flat_map(|gpu| gpu.rails.iter().map(move |rail| (gpu, rail)));
    let Some((gpu, rail)) = farthest.max_by_key(|(_, rail)| rail.nccl) else {
        return;
    };
    let at = format!("{} and {} are at {}", gpu.gpu, rail.nic, rail.nccl);
    match rail.nccl {
        class if class <= NcclClass::Pxb => environment.set(
            "NCCL_NET_GDR_LEVEL",
            "PXB",
            format!("no NIC is farther from its GPU: {at}; this is NCCL's default"),
        ),
        class if class <= NcclClass::Phb => environment.set(
            "NCCL_NET_GDR_LEVEL",
            "PHB",
            format!("{at}, where NCCL does not use GPUDirect RDMA by default; compare both"),
        ),
        _ => environment.remark(format!(
            "NCCL_NET_GDR_LEVEL is left out: {at}, and staging through host memory is often faster \
             there; measure with NCCL_NET_GDR_LEVEL=SYS before you set it"
        )),
    }
}

/// UCX: `src/ucp/core/ucp_context.c` and `src/uct/ib/base/ib_md.c`.
pub(super) fn ucx(environment: &mut Environment, rails: &Rails) {
    environment.set("UCX_NET_DEVICES", list(rails.ports()), nearest(rails));
    gid_index(
        environment,
        rails,
        "UCX_IB_GID_INDEX",
        "UCX chooses one for each port by default",
    );
    if let Some(most) = rails.gpus.iter().map(|gpu| gpu.rails.len()).max() {
        environment.set(
            "UCX_MAX_RNDV_RAILS",
            most.to_string(),
            match most {
                1 => {
                    "each GPU has one NIC; with the default of 2 a transfer also uses another GPU's"
                        .to_owned()
                }
                most => format!("a GPU has {most} NICs of its own"),
            },
        );
    }
}

/// NIXL has no variable for NICs: its UCX backend takes UCX's.
pub(super) fn nixl(environment: &mut Environment, rails: &Rails) {
    environment.remark("for NIXL's default backend, UCX, which takes these variables of UCX");
    ucx(environment, rails);
}

/// NVSHMEM: "Environment Variables" of its documentation, and `nvshmem-info -a`.
pub(super) fn nvshmem(environment: &mut Environment, rails: &Rails) {
    environment.set(
        "NVSHMEM_ENABLE_NIC_PE_MAPPING",
        "1",
        "NVSHMEM takes the mapping below instead of its own search",
    );
    // A PE uses one port; `count` PEs in a row use the port before it.
    let mut mapping: Vec<(&Rail, usize)> = Vec::new();
    for rail in rails.gpus.iter().filter_map(|gpu| gpu.rails.first()) {
        match mapping.last_mut() {
            Some((last, count)) if (&last.nic, last.port) == (&rail.nic, rail.port) => *count += 1,
            _ => mapping.push((rail, 1)),
        }
    }
    let mapping: Vec<String> = mapping
        .into_iter()
        .map(|(rail, count)| format!("{}:{}:{count}", rail.nic, rail.port))
        .collect();
    environment.set(
        "NVSHMEM_HCA_PE_MAPPING",
        mapping.join(","),
        format!(
            "{}; the first process of the node uses the first GPU, and so on",
            nearest(rails)
        ),
    );
    environment.remark("NVSHMEM_HCA_LIST must not be set: NVSHMEM ignores the mapping beside it");
    gid_index(
        environment,
        rails,
        "NVSHMEM_IB_GID_INDEX",
        "NVSHMEM 3 and later choose one for each port",
    );
}

/// Mooncake: `mooncake-common` and `mooncake-transfer-engine/src/config.cpp`.
pub(super) fn mooncake(environment: &mut Environment, rails: &Rails, context: &Context<'_>) {
    let ports = rails.ports();
    let mut names: Vec<&str> = ports.iter().map(|rail| rail.nic.as_str()).collect();
    names.dedup();
    environment.set(
        "MC_MS_AUTO_DISC",
        "1",
        "the store finds the distances of these NICs itself",
    );
    environment.set("MC_MS_FILTERS", names.join(","), nearest(rails));
    if let Some(port) = ports.first().map(|rail| rail.port)
        && ports.iter().all(|rail| rail.port == port)
    {
        environment.set(
            "MC_IB_PORT",
            port.to_string(),
            "the port of every NIC in the list",
        );
    } else {
        environment.remark(
            "MC_IB_PORT is left out: Mooncake uses one port number for all NICs, and the NICs of the list differ in it",
        );
    }
    gid_index(
        environment,
        rails,
        "MC_GID_INDEX",
        "Mooncake searches for one itself",
    );
    match (peer_module(context), dmabuf_everywhere(context)) {
        (Ok(module), _) => environment.set(
            "WITH_NVIDIA_PEERMEM",
            "1",
            format!("the peer-memory module {module} is loaded"),
        ),
        (Err(_), Ok(true)) => environment.set(
            "WITH_NVIDIA_PEERMEM",
            "0",
            "no peer-memory module is loaded, and every pair of GPU and NIC supports dma-buf",
        ),
        _ => environment.remark(
            "WITH_NVIDIA_PEERMEM is left out: neither a peer-memory module nor dma-buf is known to \
             work here, without which Mooncake cannot register GPU memory",
        ),
    }
    environment.remark(
        "a program that names its NICs to the transfer engine (a device name or list) needs the same \
         list there",
    );
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource, example};
    use snapshot::assert_contains;

    use super::super::CommunicationLibrary;
    use super::*;

    fn of(node: &MemorySource, library: CommunicationLibrary) -> Environment {
        let inventory = Inventory::read(node);
        let context = Context::new(node, &inventory);
        let rails = Rails::of(&context).unwrap();
        Environment::of(&context, &rails, library)
    }

    fn shown(environment: &Environment) -> Vec<String> {
        let variables = environment.variables.iter();
        variables
            .map(|it| format!("{}={}", it.name, it.value))
            .collect()
    }

    /// Returns the node whose InfiniBand devices are gone, so that two RoCE ports remain.
    fn roce() -> MemorySource {
        [1, 2, 3, 4, 6, 7, 8, 9]
            .into_iter()
            .fold(example::healthy(), |node, nic| {
                node.without(&format!("/sys/class/infiniband/mlx5_{nic}"))
            })
    }

    const ALL: &str = "mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1";

    #[test]
    fn nccl_gets_exact_names_and_the_level_of_the_switches() {
        let environment = of(&example::healthy(), CommunicationLibrary::Nccl);
        let list = format!("NCCL_IB_HCA=={ALL}");
        assert_eq!(shown(&environment), [&list, "NCCL_NET_GDR_LEVEL=PXB"]);
        assert!(environment.remarks[0].starts_with("mlx5_0:1, mlx5_5:1 left out"));
    }

    #[test]
    fn roce_ports_get_the_index_of_their_gid() {
        let environment = of(&roce(), CommunicationLibrary::Nccl);
        assert!(shown(&environment).contains(&"NCCL_IB_GID_INDEX=3".to_owned()));
        for (library, name) in [
            (CommunicationLibrary::Ucx, "UCX_IB_GID_INDEX=3"),
            (CommunicationLibrary::Nixl, "UCX_IB_GID_INDEX=3"),
            (CommunicationLibrary::Nvshmem, "NVSHMEM_IB_GID_INDEX=3"),
            (CommunicationLibrary::Mooncake, "MC_GID_INDEX=3"),
        ] {
            assert!(
                shown(&of(&roce(), library)).contains(&name.to_owned()),
                "{library}"
            );
        }
    }

    #[test]
    fn an_index_that_does_not_fit_every_port_is_left_out_with_the_reason() {
        let port = "/sys/class/infiniband/mlx5_0/ports/1";
        let node = roce()
            .file(&format!("{port}/gid_attrs/types/3"), "IB/RoCE v1\n")
            .file(&format!("{port}/gid_attrs/types/2"), "RoCE v2\n");
        let environment = of(&node, CommunicationLibrary::Nccl);
        assert!(
            !shown(&environment)
                .iter()
                .any(|it| it.starts_with("NCCL_IB_GID_INDEX"))
        );
        let remark = environment
            .remarks
            .iter()
            .find(|it| it.contains("GID"))
            .unwrap();
        assert_contains!(remark, "mlx5_0 2, mlx5_5 3");
    }

    #[test]
    fn a_distance_over_the_host_bridge_raises_the_level_and_one_over_sockets_does_not() {
        let level = |node: &MemorySource| {
            let environment = of(node, CommunicationLibrary::Nccl);
            let variable = environment
                .variables
                .iter()
                .find(|it| it.name == "NCCL_NET_GDR_LEVEL");
            variable.map(|it| it.value.clone())
        };
        // The Ethernet NICs have root buses of their own, on the same NUMA nodes.
        assert_eq!(level(&roce()).as_deref(), Some("PHB"));
        let one = roce().without("/sys/class/infiniband/mlx5_5");
        assert_eq!(level(&one), None);
        let remarks = of(&one, CommunicationLibrary::Nccl).remarks;
        assert!(
            remarks.iter().any(|it| it.contains("at SYS")),
            "{remarks:?}"
        );
    }

    #[test]
    fn ucx_uses_as_many_rails_as_a_gpu_has_nics() {
        let environment = of(&example::healthy(), CommunicationLibrary::Ucx);
        let list = format!("UCX_NET_DEVICES={ALL}");
        assert_eq!(shown(&environment), [&list, "UCX_MAX_RNDV_RAILS=1"]);
        assert_eq!(
            shown(&of(&example::healthy(), CommunicationLibrary::Nixl)),
            shown(&environment)
        );
        let alone =
            example::healthy().without(&format!("/sys/bus/pci/devices/{}", example::GPUS[1]));
        assert_eq!(
            shown(&of(&alone, CommunicationLibrary::Ucx))[1],
            "UCX_MAX_RNDV_RAILS=2"
        );
    }

    #[test]
    fn nvshmem_counts_the_processes_of_each_nic_in_the_order_of_the_gpus() {
        let shared =
            example::healthy().file("/sys/class/infiniband/mlx5_2/ports/1/state", "1: DOWN\n");
        let environment = of(&shared, CommunicationLibrary::Nvshmem);
        let mapping = &environment.variables[1];
        assert_eq!(mapping.name, "NVSHMEM_HCA_PE_MAPPING");
        assert!(
            mapping.value.starts_with("mlx5_1:1:2,mlx5_3:1:1,"),
            "{}",
            mapping.value
        );
    }

    #[test]
    fn mooncake_registers_by_the_method_that_the_node_has() {
        let method = |node: &MemorySource| {
            let environment = of(node, CommunicationLibrary::Mooncake);
            let found = environment
                .variables
                .iter()
                .find(|it| it.name == "WITH_NVIDIA_PEERMEM");
            found.map(|it| it.value.clone())
        };
        assert_eq!(method(&example::healthy()).as_deref(), Some("1"));
        let without = example::healthy()
            .file("/proc/modules", "ib_core 1 0 - Live 0x0\n")
            .without("/sys/module/nvidia_peermem");
        assert_eq!(method(&without).as_deref(), Some("0"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n";
        let neither = without
            .file("/proc/driver/nvidia/version", closed)
            .without(gdr_node::virtual_path::CUDA_DEVICES);
        assert_eq!(method(&neither), None);
    }

    #[test]
    fn every_variable_has_a_reason_and_no_value_needs_quoting() {
        for library in CommunicationLibrary::ALL {
            for variable in of(&example::healthy(), library).variables {
                assert!(!variable.reason.is_empty() && !variable.reason.ends_with('.'));
                let plain = |it: char| it.is_ascii_alphanumeric() || "_-.,:=".contains(it);
                assert!(variable.value.chars().all(plain), "{}", variable.value);
            }
        }
    }
}
