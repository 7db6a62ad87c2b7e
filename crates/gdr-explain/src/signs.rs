//! Lines that show GPUDirect RDMA at work.

use crate::usage::Proof;

/// A line that shows it.
#[derive(Debug)]
pub(crate) struct Sign {
    /// A regular expression over one line, case ignored.
    pub(crate) text: &'static str,
    /// What has to stand in a line shortly before.
    pub(crate) after: Option<&'static str>,
    pub(crate) proof: Proof,
}

/// Every sign. Channels of NCCL are read apart.
pub(crate) const SIGNS: &[Sign] = &[
    Sign {
        text: r"gpu ?direct rdma (\(\w+\) )?enabled for",
        after: None,
        proof: Proof::Usable,
    },
    // UCX, UCX_LOG_LEVEL=debug.
    Sign {
        text: r"cuda gpu ?direct rdma is (enabled|detected by)",
        after: None,
        proof: Proof::Usable,
    },
    Sign {
        text: r"ibv_reg_dmabuf_mr\(fd=-1\) returned .{0,30}, dmabuf is supported",
        after: None,
        proof: Proof::Usable,
    },
    // ucx_info -d: what a memory domain of an RDMA device can register.
    Sign {
        text: r"memory types: .*cuda \([^)]*\breg\b",
        after: Some(r"memory domain: (mlx\d|irdma|bnxt|efa|rocep|ib)\w*"),
        proof: Proof::Usable,
    },
    Sign {
        text: r"< ?no supported devices found ?>",
        after: Some(r"memory domain: (mlx\d|irdma|bnxt|efa|rocep|ib)\w*"),
        proof: Proof::NotUsable,
    },
    // UCX, UCX_PROTO_INFO=y.
    Sign {
        text: r"zero-copy.*\| *[^|]*\b(rc|dc|srd|gga)_?(mlx5|verbs)?/",
        after: Some(r"\| .*\bfrom cuda\b"),
        proof: Proof::InUse,
    },
    // NVSHMEM, NVSHMEM_DEBUG=INFO.
    Sign {
        text: r"(ibv|mlx5dv)_reg_dmabuf_mr handle \S+ mr 0x[0-9a-f]*[1-9a-f]",
        after: None,
        proof: Proof::Usable,
    },
    // libfabric, FI_LOG_LEVEL=info.
    Sign {
        text: r"fi_hmem_cuda p2p support is available",
        after: None,
        proof: Proof::Usable,
    },
    // perftest: the results that follow a buffer in GPU memory.
    Sign {
        text: r"^ *\d{1,10} +\d{1,10} +\d[\d.]* +\d[\d.]* +\d[\d.]* *$",
        after: Some(r"(allocated|using).{0,30}gpu buffer"),
        proof: Proof::InUse,
    },
];
