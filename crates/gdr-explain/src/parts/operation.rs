//! What failed, and the words by which it is recognized.

use std::fmt;

use serde::Serialize;

/// What a program was about to do when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// Memory was registered with a NIC.
    Registration,
    /// GPU memory was exported or imported as a dma-buf.
    DmaBuf,
    /// NVIDIA's driver pinned GPU memory for another device.
    GpuPin,
    /// Memory was locked.
    MemoryLock,
    /// A queue, or what queues belong to, was made.
    QueueCreation,
    /// A queue pair went to another state.
    QueueTransition,
    /// Work was posted to a queue.
    Post,
    /// Work was completed, or a queue reported an event.
    Completion,
    /// Two ends were connected.
    Connection,
    /// The address of a peer was resolved.
    AddressResolution,
    /// An entry of the GID table was read.
    Gid,
    /// An RDMA device was looked for or opened.
    DeviceOpen,
    /// The modules of RDMA were loaded.
    RdmaModule,
    /// A peer-memory module was loaded or used.
    PeermemModule,
    /// GDRCopy's module was loaded or used.
    GdrdrvModule,
    /// GPU memory was shared between processes.
    CudaIpc,
    /// A GPU was given access to another one.
    PeerAccess,
    /// A register of a GPU was read, and all bits of it were set.
    GpuRead,
    /// A device's access to memory was translated.
    DmaTranslation,
    /// A PCI Express port recovered from an error.
    PcieRecovery,
    /// A NIC was looked for near a GPU.
    Topology,
    /// A plug-in of NIXL was used.
    Plugin,
    /// The GPUs or their driver were asked for something.
    GpuOpen,
    /// GPU memory was shared between nodes.
    FabricHandle,
    /// An object of a NIC's own interface was made.
    NicObject,
    /// The state of a port was read.
    PortQuery,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Registration => "a registration of memory",
            Self::DmaBuf => "a dma-buf",
            Self::GpuPin => "NVIDIA's driver pinning GPU memory",
            Self::MemoryLock => "a lock on memory",
            Self::GpuOpen => "a call of NVIDIA's driver",
            Self::FabricHandle => "a fabric handle",
            Self::NicObject => "an object of the NIC's own interface",
            Self::PortQuery => "a query of a port",
            Self::QueueCreation => "the creation of a queue",
            Self::QueueTransition => "a transition of a queue pair",
            Self::Post => "work being posted",
            Self::Completion => "a completion or an event of a queue",
            Self::Connection => "a connection",
            Self::AddressResolution => "the resolution of a peer's address",
            Self::Gid => "a GID",
            Self::DeviceOpen => "an RDMA device being opened",
            Self::RdmaModule => "modules of RDMA being loaded",
            Self::PeermemModule => "the peer-memory module",
            Self::GdrdrvModule => "GDRCopy's module",
            Self::CudaIpc => "CUDA IPC",
            Self::PeerAccess => "peer access between GPUs",
            Self::GpuRead => "a GPU that reads as ones",
            Self::DmaTranslation => "the IOMMU",
            Self::PcieRecovery => "a recovery of PCI Express",
            Self::Topology => "the topology",
            Self::Plugin => "a plug-in of NIXL",
        })
    }
}

/// Whether the words of an operation name who speaks, as `ibv_reg_mr` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker {
    Named,
    /// Other programs use the words too: something of RDMA or of GPUs has to stand in the line.
    Needed,
}

/// Words for an operation.
#[derive(Debug)]
pub(crate) struct Words {
    pub(super) operation: Operation,
    /// A regular expression over one line, case ignored.
    pub(crate) text: &'static str,
    pub(super) speaker: Speaker,
}

const fn named(operation: Operation, text: &'static str) -> Words {
    Words {
        operation,
        text,
        speaker: Speaker::Named,
    }
}

const fn needed(operation: Operation, text: &'static str) -> Words {
    Words {
        operation,
        text,
        speaker: Speaker::Needed,
    }
}

/// Words for every operation, those that say most first.
pub(crate) const WORDS: &[Words] = &[
    named(
        Operation::GpuRead,
        r"\b(nvidia\S*|nvrm|gpu)\b.{0,80}\b(0x)?ffffffff\b",
    ),
    named(
        Operation::DmaTranslation,
        r"\b(dmar|amd-vi|smmu\S*|iommu)\b.{0,80}\b(fault|blocked|violation)",
    ),
    named(
        Operation::PcieRecovery,
        r"\b(aer|dpc|edr|pcieport)\b.{0,80}\b(recover|reset|containment|unresponsive)",
    ),
    named(
        Operation::GpuPin,
        r"nvidia_p2p_\w+|p2p_get_pages|gdr_(pin|map)\w*|nvfs_\w*pin",
    ),
    named(
        Operation::DmaBuf,
        r"(\b|_)dma[-_ ]?buf|cumemgethandleforaddressrange",
    ),
    named(Operation::GdrdrvModule, r"\bgdrdrv\b"),
    named(
        Operation::PeermemModule,
        r"\bnvidia[-_]peermem\b|\bnv_peer_mem\b",
    ),
    named(
        Operation::CudaIpc,
        r"ipc(get|open)memhandle|\bcuda[ _]ipc\b",
    ),
    named(
        Operation::PeerAccess,
        r"\bpeer[ _]access\b|enablepeeraccess",
    ),
    named(
        Operation::AddressResolution,
        r"resolve_(addr|route)|create_ah\b|\baddress handle\b|rdma_cm_event_(addr|route)_error|rdma_cm_event_unreachable",
    ),
    named(
        Operation::Plugin,
        r"\bnixl.{0,80}\b(backend|plugin|plug-in)s?\b",
    ),
    named(
        Operation::MemoryLock,
        r"memlock|\bulimit -l\b|\bmlock|\blocked[ -]memory\b",
    ),
    named(
        Operation::GpuOpen,
        r"nvml(init|device)|\bcuinit\b|\bcudeviceget|\bcuda(get|set)device",
    ),
    named(
        Operation::FabricHandle,
        r"cumem(export|import)|handle_type_fabric|\bfabric handle",
    ),
    named(Operation::PortQuery, r"ibv_query_port"),
    named(
        Operation::QueueTransition,
        r"modif\w+[ _](\w+ ){0,3}(qp|queue pair)\b|modify_qp|\b(qp|queue pair)\b.{0,40}\b(rtr|rts)\b|\b(rst2init|reset2init|init2rtr|rtr2rts)\b",
    ),
    named(
        Operation::Post,
        r"post_?(send|recv|receive|srq|write|read)|ibv_wr_|poll_cq|req_notify_cq|get_cq_event|\bfi_(t?send|t?recv|read|write|inject)|\bpost(ing)? (\w+ ){0,2}(send|recv|receive|work request|wr|wqe)s?\b",
    ),
    named(
        Operation::QueueCreation,
        r"(create|creating|alloc\w*|init\w*|resiz\w+|set ?up|setting up)[ _](\w+ ){0,3}(\w+_)?(qp|cq|srq|qpair|queue pair|completion queue|receive queue|comp_channel|completion channel|pd|protection domain)s?(_\w+)?\b|\b(qp|cq|srq|queue pair|completion queue)s?( \w+){0,2} (creation|allocation|init\w*|resize) |create(qp|cq|srq|completionqueue|queuepair)|\bfi_(endpoint|enable|ep_bind|cq_open)|uct_(iface_open|ep_create)|ucp_worker_create|ibv_alloc_(mw|dm)",
    ),
    named(
        Operation::Registration,
        r"ucp_mem_map|devx_umem_reg|reg(ister)?_?(user_)?(mr|mem|region|buf|segment)|mr_?reg|mem_?reg|\bumem[ _]get|\bmkey\b|fast_reg|\bregist\w+ (\w+ ){0,4}(memory|mr|buffer|region|segment|heap)s?\b|\b(memory|mr|buffer|region|segment|heap)s? (\w+ ){0,2}regist|\b(create|allocate|alloc) (an? |the )?(\w+ )?(mr|memory region)s?\b",
    ),
    needed(
        Operation::Registration,
        r"\b(pin|bind|map|mapp|pinn)(ing)? (\w+ ){0,3}(memory|buffer|region|segment|heap|pages)\b",
    ),
    named(Operation::Gid, r"\bgid\b|\bgid_?ind|query_gid"),
    named(
        Operation::DeviceOpen,
        r"ibv_(open|get|query)_device|mlx5dv_open_device|uct_md_(open|query)|\bfi_(getinfo|fabric|domain)\b|rdma_(get_devices|create_event_channel|create_id)|\buverbs|\b(verbs|ib|rdma|infiniband|roce) (device|hca|nic|adapter)s?\b|/dev/infiniband",
    ),
    named(
        Operation::Connection,
        r"rdma_(connect|accept|listen|bind|establish|get_request|create_ep|getaddrinfo)|\bfi_(connect|accept|listen)\b|ucp_listener_create|rdma_cm_event_|\brdma[ _]?cm\b",
    ),
    named(
        Operation::NicObject,
        r"mlx5dv_(create|devx)|\befadv_|\bbnxt_re_|\birdma_",
    ),
    named(
        Operation::RdmaModule,
        r"\b(modprobe|insmod|loading|load)\b.{0,60}\b(mlx[45]_\w+|ib_\w+|rdma_\w+|irdma|bnxt_re|efa)\b",
    ),
    named(
        Operation::Completion,
        r"\bcompletion\b|\bcqe\b|\bwc_status\b|\bcq_readerr\b|\bwork request\b|\bqp (0x)?[0-9a-f]+ error\b|\basync (fatal )?event\b|\bon cq\b",
    ),
    needed(
        Operation::DeviceOpen,
        r"\b(open|opening|probe|probing|query|querying|find|init\w*) (of )?(\w+ ){0,3}(device|hca|nic|adapter|port|context)s?\b",
    ),
    needed(
        Operation::Connection,
        r"\b(connect|connecting|connection|reconnect|handshake|listen|listening|accept)\b",
    ),
    needed(
        Operation::Topology,
        r"\b(closest|nearest) (gpu|nic)\b|\btopology\b",
    ),
];
