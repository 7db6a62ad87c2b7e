//! Error texts that no pattern knows, recognized by their parts: who speaks, what failed, and with
//! which status. What failed and how gives the causes.

use std::fmt;
use std::sync::LazyLock;

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use serde::Serialize;

use super::Strength;
use super::causes::QUIET;

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

/// How it failed, as errno or the status of a completion has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Status {
    /// The other end refused an access.
    RemoteAccess,
    /// The peer did not answer.
    Retries,
    /// The peer had posted no receive.
    NotReady,
    /// The queue had failed before.
    Flushed,
    /// The message was longer than its buffer.
    Length,
    /// The local memory may not be used so.
    Protection,
    /// EFAULT.
    BadAddress,
    /// ENOMEM.
    OutOfMemory,
    /// EAGAIN.
    Again,
    /// ENOSPC, EBUSY.
    Full,
    /// EPERM, EACCES.
    Denied,
    /// ENODEV, ENOENT, ENXIO.
    NoDevice,
    /// EOPNOTSUPP and its like.
    Unsupported,
    /// ENETUNREACH, EHOSTUNREACH.
    Unreachable,
    /// ECONNREFUSED, ECONNRESET, or a rejection.
    Refused,
    /// ETIMEDOUT.
    TimedOut,
    /// EINVAL.
    Invalid,
    /// EIO, EREMOTEIO.
    Io,
}

/// The parts by which a line was recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// What failed.
    pub operation: Operation,
    /// How, where the line says it.
    pub status: Option<Status>,
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

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RemoteAccess => "remote access error",
            Self::Retries => "retries exceeded",
            Self::NotReady => "receiver not ready",
            Self::Flushed => "flushed",
            Self::Length => "length error",
            Self::Protection => "local protection error",
            Self::BadAddress => "EFAULT",
            Self::OutOfMemory => "ENOMEM",
            Self::Again => "EAGAIN",
            Self::Full => "ENOSPC or EBUSY",
            Self::Denied => "EPERM or EACCES",
            Self::NoDevice => "ENODEV or ENOENT",
            Self::Unsupported => "not supported",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused or reset",
            Self::TimedOut => "timed out",
            Self::Invalid => "EINVAL",
            Self::Io => "EIO",
        })
    }
}

/// What failed, and how: `a registration of memory: ENOMEM`.
impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        match self.status {
            Some(status) => write!(f, ": {status}"),
            None => Ok(()),
        }
    }
}

/// Whether the words of an operation name who speaks, as `ibv_reg_mr` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaker {
    Named,
    /// Other programs use the words too: something of RDMA or of GPUs has to stand in the line.
    Needed,
}

/// Words for an operation.
#[derive(Debug)]
pub(super) struct Words {
    operation: Operation,
    /// A regular expression over one line, case ignored.
    pub(super) text: &'static str,
    speaker: Speaker,
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
pub(super) const WORDS: &[Words] = &[
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

/// Which of the parts lead to which causes, the likeliest first. No status stands for any other.
const CAUSES: &[(Operation, &[Status], &[&str])] = {
    use Operation as O;
    use Status as S;
    &[
        (
            O::Registration,
            &[S::BadAddress],
            &["no-peer-memory-client", "dmabuf-unsupported"],
        ),
        (
            O::Registration,
            &[S::OutOfMemory, S::Denied],
            &["memlock", "keys-exhausted", "bar1-small"],
        ),
        (
            O::Registration,
            &[S::Again, S::Full],
            &["keys-exhausted", "bar1-small", "memlock"],
        ),
        (
            O::Registration,
            &[S::Invalid],
            &["registration-arguments", "no-peer-memory-client"],
        ),
        (
            O::Registration,
            &[S::Unsupported],
            &["dmabuf-unsupported", "no-peer-memory-client"],
        ),
        (O::Registration, &[], &["no-peer-memory-client", "memlock"]),
        (O::DmaBuf, &[S::OutOfMemory, S::Full], &["bar1-small"]),
        (O::DmaBuf, &[], &["dmabuf-unsupported", "dmabuf-attach"]),
        (O::GpuPin, &[S::OutOfMemory, S::Full], &["bar1-small"]),
        (O::GpuPin, &[], &["pages-refused", "bar1-small"]),
        (O::MemoryLock, &[], &["memlock"]),
        (
            O::QueueCreation,
            &[S::OutOfMemory, S::Again],
            &["memlock", "keys-exhausted", "nic-command"],
        ),
        (
            O::QueueCreation,
            &[S::Full],
            &["keys-exhausted", "nic-command"],
        ),
        (
            O::QueueCreation,
            &[S::Invalid],
            &["qp-arguments", "rdma-abi", "keys-exhausted"],
        ),
        (
            O::QueueCreation,
            &[S::Unsupported],
            &["rdma-abi", "nic-command"],
        ),
        (
            O::QueueCreation,
            &[S::Denied],
            &["memlock", "ibgda-privilege"],
        ),
        (O::QueueCreation, &[S::NoDevice], &["no-rdma-device"]),
        (O::QueueCreation, &[S::Io], &["nic-command", "nic-firmware"]),
        (
            O::QueueCreation,
            &[],
            &["memlock", "keys-exhausted", "qp-arguments"],
        ),
        (
            O::QueueTransition,
            &[S::Invalid],
            &["qp-arguments", "gid-index"],
        ),
        (
            O::QueueTransition,
            &[S::TimedOut, S::Unreachable],
            &["address-resolution"],
        ),
        (
            O::QueueTransition,
            &[S::NoDevice],
            &["gid-other-namespace", "gid-index"],
        ),
        (O::QueueTransition, &[S::Io], &["nic-command"]),
        (
            O::QueueTransition,
            &[],
            &["address-resolution", "qp-arguments", "gid-index"],
        ),
        (O::Post, &[S::Flushed], &["flush-error"]),
        (O::Post, &[], &["queue-operation"]),
        (O::Completion, &[S::RemoteAccess], &["remote-access"]),
        (
            O::Completion,
            &[S::Retries, S::TimedOut],
            &["transport-timeout"],
        ),
        (O::Completion, &[S::NotReady], &["receiver-not-ready"]),
        (O::Completion, &[S::Flushed], &["flush-error"]),
        (
            O::Completion,
            &[S::Length],
            &["length-error", "mtu-differs"],
        ),
        (
            O::Completion,
            &[S::Protection],
            &["acs-redirect", "queue-operation"],
        ),
        (O::Completion, &[], &["queue-operation", "remote-access"]),
        (
            O::Connection,
            &[S::NoDevice],
            &["no-rdma-device", "rdma-driver"],
        ),
        (O::Connection, &[S::Denied], &["no-rdma-device"]),
        (
            O::Connection,
            &[S::OutOfMemory],
            &["memlock", "keys-exhausted"],
        ),
        (
            O::Connection,
            &[S::Refused],
            &["control-connection", "peer-gone"],
        ),
        (
            O::Connection,
            &[S::TimedOut, S::Unreachable],
            &["address-resolution", "control-connection"],
        ),
        (
            O::Connection,
            &[],
            &["control-connection", "address-resolution"],
        ),
        (
            O::AddressResolution,
            &[S::NoDevice],
            &["gid-other-namespace", "no-rdma-device"],
        ),
        (O::AddressResolution, &[], &["address-resolution"]),
        (
            O::Gid,
            &[S::NoDevice],
            &["gid-other-namespace", "gid-index"],
        ),
        (O::Gid, &[], &["gid-index", "gid-table-holes"]),
        (O::DeviceOpen, &[S::OutOfMemory], &["memlock"]),
        (
            O::DeviceOpen,
            &[S::Unsupported],
            &["rdma-abi", "no-rdma-device"],
        ),
        (
            O::DeviceOpen,
            &[S::NoDevice, S::Denied],
            &["no-rdma-device", "rdma-driver"],
        ),
        (O::DeviceOpen, &[], &["no-rdma-device", "rdma-driver"]),
        (O::RdmaModule, &[], &["rdma-driver"]),
        (O::PeermemModule, &[S::Invalid], &["peermem-symbols"]),
        (O::PeermemModule, &[S::Full], &["module-in-use"]),
        (O::PeermemModule, &[S::Denied], &["lockdown"]),
        (
            O::PeermemModule,
            &[S::NoDevice],
            &["peermem-not-found", "no-peer-memory-client"],
        ),
        (
            O::PeermemModule,
            &[],
            &["no-peer-memory-client", "peermem-not-found"],
        ),
        (O::GdrdrvModule, &[], &["gdrdrv-missing"]),
        (O::CudaIpc, &[], &["cuda-ipc-memory"]),
        (O::PeerAccess, &[S::OutOfMemory, S::Full], &["bar1-small"]),
        (O::PeerAccess, &[], &["peer-access"]),
        (O::GpuRead, &[], &["gpu-lost"]),
        (O::DmaTranslation, &[], &["iommu-fault"]),
        (O::PcieRecovery, &[], &["pcie-lost", "gpu-lost"]),
        (O::Topology, &[], &["vm-topology", "gdr-distance"]),
        (O::Plugin, &[], &["nixl-plugin", "nixl-backend"]),
        (O::GpuOpen, &[], &["gpu-driver"]),
        (O::FabricHandle, &[], &["imex-channel"]),
        (
            O::NicObject,
            &[S::Unsupported],
            &["rdma-abi", "nic-command"],
        ),
        (O::NicObject, &[], &["nic-command"]),
        (O::PortQuery, &[], &["port-down"]),
    ]
};

/// Each status with its words and its errno; where several stand in a line, the first here counts.
const STATUSES: &[(Status, &str, &[u16])] = &[
    (
        Status::RemoteAccess,
        r"remote access|rem_access|remote_access|qp_access|remote invalid request|rem_inv_req",
        &[],
    ),
    (
        Status::Retries,
        r"retry (counter )?exceeded|retry_exc|retry count|retries exceeded",
        &[],
    ),
    (Status::NotReady, r"\brnr\b|receiver not ready", &[]),
    (Status::Flushed, r"flushed|flush_err|flush error", &[]),
    (
        Status::Length,
        r"length error|loc_len|message too long",
        &[90],
    ),
    (
        Status::Protection,
        r"local protection|loc_prot|protection error",
        &[],
    ),
    (Status::BadAddress, r"bad address|\befault\b", &[14]),
    (
        Status::OutOfMemory,
        r"cannot allocate memory|out of memory|not enough memory|no memory\b|\benomem\b|outofmemory|limits exceeded",
        &[12],
    ),
    (
        Status::Again,
        r"temporarily unavailable|\beagain\b|try again",
        &[11],
    ),
    (
        Status::Full,
        r"no space left|device or resource busy|\bresource busy\b|\benospc\b|\bebusy\b|too many|exhausted|no resources|\b\w+ in use\b",
        &[28, 16],
    ),
    (
        Status::Denied,
        r"permission denied|not permitted|access denied|\beacces\b|\beperm\b|key was rejected",
        &[1, 13, 129],
    ),
    (
        Status::NoDevice,
        r"no such (device|file)|no device|\benodev\b|\benoent\b|not found|no matching device|\benxio\b",
        &[19, 2, 6],
    ),
    (
        Status::Unsupported,
        r"not supported|unsupported|not[_ ]implemented|\beopnotsupp\b|\benotsupp\b|\benosys\b|unknown error 524|protocol not available",
        &[95, 524, 38, 93, 92],
    ),
    (
        Status::Unreachable,
        r"unreachable|no route to host|cannot assign requested address",
        &[101, 113, 99],
    ),
    (
        Status::Refused,
        r"refused|reset by peer|rejected|broken pipe|\beconn\w+",
        &[111, 104, 32],
    ),
    (
        Status::TimedOut,
        r"timed ?out|time-?out|\betimedout\b",
        &[110],
    ),
    (
        Status::Invalid,
        r"invalid (argument|parameter)|\beinval\b|bad parameter",
        &[22],
    ),
    (
        Status::Io,
        r"input/output error|remote i/o error|\beio\b|i/o error",
        &[5, 121],
    ),
];

/// Words that say that something went wrong, in whatever way. A line without any is not looked at.
pub(super) const FAILURE: &str = concat!(
    r"(\bfail|\berrors?\b|_error\b|\bunable\b|\bcannot\b|\bcan'?t\b|\bcould ?n[o']t\b|\bdenied\b|\brefused\b",
    r"|\breject|\binvalid\b|\bbad (address|parameter)|\bno such\b|\bno (\w+ ){1,2}(device|match|found|backend)",
    r"|\bnot (permitted|supported|available|found|loaded|enough|set)\b|\bno (matching|space|route|resources)\b|\bmissing\b",
    r"|\bnull\b|\baborted\b|\btimed ?out\b|\btime-?out\b|\binsufficient\b|\btoo (small|low|few|many|large|long)\b)",
    r"|(\bmust be (big|large|unlimited)|\bfault\b|\bunexpected\b|\bnot _?expected\b|\bunavailable\b|\bunsupported\b",
    r"|\bunreachable\b|\breset by\b|\bbroken pipe\b|\bexceeded\b|\bflush(ed|_err)|\bbusy\b|\bout ?of ?memory\b|\bexhausted\b",
    r"|\be(nomem|again|inval|fault|perm|acces|nodev|noent|nxio|nospc|busy|io|timedout|opnotsupp|notsupp|nosys)\b|\beconn",
    r"|\bretur\w+ -\d|\b(errno|err|rc|ret|retval)\b[ =:]*-?[1-9]|(rem|loc|qp)_(access|prot|len|inv_req)|retry_exc|not responding)",
);

/// Words that say the opposite.
const NO_FAILURE: &str = r"\b(no|0|without( any)?|zero) (\w+ )?(errors?|fail\w*)\b|\b(fail\w*|errors?)[\x22']?[:= ]+(0|none|false|null)\b|\b(will|would|may|might|could|should|can) (\w+ )?fail|\bif (\w+ ){0,4}fail|\bfall(s|ing)? ?back\b|\b(skip|ignor)(s|ped|ping|ed|ing)\b|\bas expected\b";

/// What of RDMA and of GPUs speaks.
const SPEAKER: &str = r"rdma|verbs|infiniband|openib|\broce|\bib_|\bibv?\b|mlx[45]|irdma|bnxt_|\befa|erdma|\bionic|\bucx\b|\buc[tps]_|\bn?ccl\b|\brccl\b|nvshmem|libfabric|\bofi\b|\bfi_|gdr|gpu ?direct|nvidia|\bnvrm\b|\bnixl|mooncake|\buccl\b|\bgasnet|\bgpus?\b|\bhca\b|\brnic\b|\bnvme nvme\d|\bqps?\b";

struct Expressions {
    words: RegexSet,
    numbers: RegexSet,
    no_failure: Regex,
    speaker: Regex,
    quiet: Regex,
}

/// What the parts of a line say.
#[derive(Debug)]
pub(super) struct Inference {
    pub(super) parts: Parts,
    /// The ids of its causes, the likeliest first.
    pub(super) causes: &'static [&'static str],
    /// How sure the first of them is.
    pub(super) strength: Strength,
}

/// Returns what the parts of a line say in which the words at a place of [`WORDS`] stand, and one of
/// [`FAILURE`].
pub(super) fn infer(place: usize, line: &[u8]) -> Option<Inference> {
    let words = WORDS.get(place)?;
    let expressions = EXPRESSIONS.as_ref()?;
    let speaks = words.speaker == Speaker::Named || expressions.speaker.is_match(line);
    if !speaks || expressions.no_failure.is_match(line) || expressions.quiet.is_match(line) {
        return None;
    }
    let parts = Parts {
        operation: words.operation,
        status: expressions.status(line),
    };
    let (causes, strength) = causes_of(parts)?;
    Some(Inference {
        parts,
        causes,
        strength,
    })
}

/// The causes that parts lead to, and how sure the first of them is.
fn causes_of(parts: Parts) -> Option<(&'static [&'static str], Strength)> {
    let of_operation = || (CAUSES.iter()).filter(|(it, ..)| *it == parts.operation);
    let of_status = parts
        .status
        .and_then(|status| of_operation().find(|(_, statuses, _)| statuses.contains(&status)));
    match of_status {
        Some((.., causes)) => Some((causes, Strength::Likely)),
        None => of_operation()
            .find(|(_, statuses, _)| statuses.is_empty())
            .map(|(.., causes)| (*causes, Strength::Weak)),
    }
}

/// The place of a cause among those that parts lead to.
pub(super) fn rank(parts: Parts, cause: &str) -> usize {
    let place = causes_of(parts).and_then(|(causes, _)| causes.iter().position(|it| *it == cause));
    place.unwrap_or(usize::MAX)
}

static EXPRESSIONS: LazyLock<Option<Expressions>> = LazyLock::new(|| Expressions::new().ok());

impl Expressions {
    fn new() -> Result<Self, regex::Error> {
        let one = |text: &str| {
            RegexBuilder::new(text)
                .case_insensitive(true)
                .unicode(false)
                .build()
        };
        let set = |texts: Vec<String>| {
            RegexSetBuilder::new(texts)
                .case_insensitive(true)
                .unicode(false)
                .build()
        };
        let number = |numbers: &[u16]| {
            if numbers.is_empty() {
                // Matches nothing.
                return r"\b\B".to_owned();
            }
            let numbers: Vec<String> = numbers.iter().map(u16::to_string).collect();
            let numbers = numbers.join("|");
            format!(
                r"\b(err(no|or)?|code|ret(urned|val)?|rc|status|errno is)\b[ =:('\x22]{{0,4}}-?({numbers})\b|[\[(]-?({numbers})[\])]|[ =:]-({numbers})\b"
            )
        };
        let words = STATUSES.iter().map(|(_, words, _)| (*words).to_owned());
        let numbers = STATUSES.iter().map(|(_, _, numbers)| number(numbers));
        Ok(Self {
            words: set(words.collect())?,
            numbers: set(numbers.collect())?,
            no_failure: one(NO_FAILURE)?,
            speaker: one(SPEAKER)?,
            quiet: one(QUIET)?,
        })
    }

    /// The status that a line has in words, else in a number.
    fn status(&self, line: &[u8]) -> Option<Status> {
        let first = |set: &RegexSet| set.matches(line).iter().next();
        let place = first(&self.words).or_else(|| first(&self.numbers))?;
        STATUSES.get(place).map(|(status, _, _)| *status)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::{causes, explain};
    use super::*;

    fn parts(line: &str) -> Option<Parts> {
        explain(line).first().and_then(|it| it.inferred())
    }

    #[test]
    fn every_row_names_causes_that_exist_and_every_operation_has_one_for_any_status() {
        assert!(EXPRESSIONS.is_some());
        let ids: HashSet<&str> = causes().map(|cause| cause.id).collect();
        for (operation, _, causes) in CAUSES {
            assert!(!causes.is_empty(), "{operation}");
            for cause in *causes {
                assert!(ids.contains(cause), "{operation}: {cause}");
            }
        }
        for words in WORDS {
            let any = |(operation, statuses, _): &(Operation, &[Status], &[&str])| {
                *operation == words.operation && statuses.is_empty()
            };
            assert!(CAUSES.iter().any(any), "{}", words.operation);
        }
    }

    #[test]
    fn what_failed_and_how_is_read_from_words_and_from_numbers() {
        for (line, operation, status) in [
            (
                "pool: app_reg_mr() failed, errno: 12",
                Operation::Registration,
                Some(Status::OutOfMemory),
            ),
            (
                "could not set up qp 7: error (-12)",
                Operation::QueueCreation,
                Some(Status::OutOfMemory),
            ),
            ("cannot move QP 7 to RTS", Operation::QueueTransition, None),
            (
                "mlx5_0: probe of device aborted: Permission denied",
                Operation::DeviceOpen,
                Some(Status::Denied),
            ),
            (
                "app: post_send: error 12: Cannot allocate memory",
                Operation::Post,
                Some(Status::OutOfMemory),
            ),
        ] {
            let expected = Parts { operation, status };
            assert_eq!(parts(line), Some(expected), "{line}");
        }
    }

    #[test]
    fn a_status_with_causes_of_its_own_is_likely_and_any_other_only_possible() {
        let strength = |line| explain(line).first().map(|it| it.strength());
        let line = "could not set up qp 7: Cannot allocate memory";
        assert_eq!(strength(line), Some(Strength::Likely));
        assert!(
            explain(line)[1..]
                .iter()
                .all(|it| it.strength() == Strength::Weak)
        );
        assert_eq!(strength("could not set up qp 7"), Some(Strength::Weak));
    }

    #[test]
    fn a_line_without_two_of_the_parts_or_without_a_failure_says_nothing() {
        for line in [
            "app_reg_mr of 4096 bytes",
            "cannot probe device: Permission denied",
            "the connection failed",
            "0 errors of app_reg_mr",
            "NCCL INFO app_reg_mr failed: Invalid argument",
            "nvme nvme0: address resolved (0): status 0",
        ] {
            assert_eq!(parts(line), None, "{line}");
        }
    }

    #[test]
    fn nothing_is_inferred_beside_a_line_that_a_pattern_knows() {
        let unknown = "could not set up qp 7: Cannot allocate memory";
        let known = "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.";
        assert!(parts(unknown).is_some());
        for text in [format!("{unknown}\n{known}"), format!("{known}\n{unknown}")] {
            let found = explain(&text);
            assert!(found.iter().all(|it| it.inferred().is_none()), "{text}");
        }
    }
}
