//! Devices and privileges that a process lacks.

use super::gpus::GPU_GONE;
use super::{hand, likely, run, sure, weak};
use crate::{Cause, Fact};
use gdr_doctor::kernel_log::expressions;

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "no-rdma-device",
        title: "The process sees no usable RDMA device",
        why: "NCCL and UCX fall back to sockets if libibverbs lists no device. The container was \
              not given /dev/infiniband, the provider library (libmlx5) is missing, no port is \
              ACTIVE, or a filter (NCCL_IB_HCA) matches none.",
        patterns: &[
            sure(
                r"\bibv_(alloc_pd|open_device|query_device)\w*\b.{0,40}(not permitted|permission denied)",
            ),
            sure(r"net/ib ?: no device found"),
            sure(r"\bno (ib|rdma|infiniband) devices? (was |were )?found"),
            sure(r"no available rnic"),
            likely(r"init failed for remote transport: ?ibrc"),
            likely(r"\bprovider (efa|verbs|psm\w*|cxi)\b.{0,20}\boutput empty list"),
            sure(r"couldn'?t read uverbs abi version"),
            sure(r"net/socket ?: ?gpu ?direct rdma (\(\w+\) )?disabled for hca"),
            sure(r"\bibv_open_device(\(\S*\))? failed"),
            sure(r"failed to get ib devices? list|\bno ib devices found"),
            sure(r"did not detect devices"),
            sure(r"unable to find any supported nic|no hca found"),
            sure(r"insufficient rdma/\w+"),
            sure(r"missing rdma device spec for device|no rdma devices were found for resource"),
            sure(r"\bibv_get_device_list\b.{0,20}fail"),
            sure(r"sys files not found \(/sys/class/infiniband"),
            sure(r"devices unavailable for \S*(rdma|hca|mlnx|roce|infiniband|sriov|efa)"),
            likely(r"\brdma_create_event_channel\b.{0,20}no such (file|device)"),
            likely(r"\bfailed to install (the )?rdma transport"),
            likely(
                r"\bunable to find any relevant network interfaces\b|\blibibverbs: warning: couldn'?t open config directory",
            ),
            likely(
                r"\b0 (hca|rdma device|ib device|infiniband device|verbs device|rnic)s? (were |was )?(found|detected|available)|\bfound 0 (hca|rdma|ib|efa|rnic)\w*\b",
            ),
            likely(r"\bunhealthy devices? \S*(rdma|hca|mlnx|roce|infiniband|sriov|efa)"),
            likely(
                r"\b(unable to|failed to|fail to|can'?t|cannot|could ?n[o']t|error) (get|getting|open|opening|find|finding|obtain|obtaining|list|listing|read|reading|query|querying|enumerate|initiali[sz]e|initiali[sz]ing) (\w+ ){0,2}((rdma|ib|infiniband|verbs|roce|efa|rnic) (device|nic|hca|adapter|port)s?|device (list|attributes)|(rdma|uverbs|rdma_cm) abi|(nic|hfi) unit|hca)\b",
            ),
            likely(
                r"\bcouldn'?t read abi version\b|\bnon-rdma device\b|\bmellanox\.sh exited with return code [1-9]",
            ),
            likely(
                r"\bnet/ofi\b.{0,30}\b(only \w+ providers? (is|are)|no (valid|suitable|usable|eligible|matching) (provider|device|nic))",
            ),
            likely(
                r"\bofi (endpoint|domain|fabric|provider)s? (open|create|creation|init\w*) failed|\bofi fabric is not available",
            ),
            weak(r"\bbtl_openib\w*\.c:\d+.{0,60}\b(error|fail\w*)\b"),
            weak(
                r"\b(infiniband|rdma|roce|verbs)\b.{0,30}\b(is |are )?(not (available|supported|found|enabled|detected)|unavailable|unsupported)\b",
            ),
            likely(r"\bexposing devices: *\[\]|no devices in device pool"),
            likely(r"\bfi_getinfo\b.{0,40}(, (ret=)?-(19|61) \(|\bcall failed\b.{0,20}no data)"),
            // NVSHMEM: no transport leads to a GPU of another node.
            likely(r"\bpeer gpu \d+ is not accessible"),
            sure(r"\bfi_getinfo\b.{0,60}\b(efa|verbs)\b.{0,20}-61\b|couldn'?t get efa as provider"),
            likely(r"\bfailed to open device\W*$"),
            likely(r"\bib device \S+ not found|unable to find the infiniband/roce device"),
            likely(r"unable to open device\W*$|unable to open device (mlx|ib|roce)\w*"),
            likely(r"\busing network socket\b"),
            likely(r"ib device\(s\) were detected, but accelerated ib support was not found"),
            likely(
                r"\b(failed to (get|open)|couldn'?t (get|open))\b.{0,30}\b(ib|rdma|infiniband|mlx\d\w*)\b.{0,10}\bdevice",
            ),
            likely(r"network device '\S+' is not available, please use one or more of"),
            likely(r"transport '(rc|dc|ud|ib)\w*' is not available"),
            likely(
                // The provider of a missing NIC is reported as missing as well.
                r"libibverbs: warning: .*(couldn'?t (load|open) .{0,20}\blib(mlx\d|bnxt_re|irdma|efa|ionic)|no userspace device-specific driver)",
            ),
            likely(r"failed to open libibverbs|libibverbs\.so\S*: cannot open shared object"),
            likely(
                r"\b(unable to|failed to|cannot|couldn'?t|could not) (dlopen|open|load) \S*(libmlx5(dv)?|libmlx5\.so)",
            ),
            likely(r"libmlx5\.so\S*: cannot open shared object"),
            likely(
                r"/dev/infiniband\b\S*.{0,40}(no such file|permission denied|not permitted|does not exist)",
            ),
            likely(r"failed to open memory domain"),
            likely(r"\bib transport out of range\b|\bno active hcas? found"),
            likely(r"\b(ib-)?sriov-cni failed|\brdma-?cni\b.{0,40}\bfailed"),
            weak(ucx_error!("ib_device")).unless(r"\bibv_create_ah"),
            weak(nccl_warning!("net_ib/init")),
            weak(nvshmem_error!(
                "transport/(ibrc|ibdevx|ucx|libfabric)/|host/topo/"
            )),
            weak(glog_error!("rdma_(context|transport|io|device\\w*)")),
            weak(libfabric_warning!("fabric|domain")),
        ],
        remedies: &[
            run(
                "See which devices there are",
                "gdr nics; gdr doctor --only dev.nodes,nic.driver,port.state",
            ),
            run(
                "Give the devices to the container",
                "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1",
            ),
            run(
                "Install the provider",
                "apt install rdma-core ibverbs-providers",
            ),
            hand("Check NCCL_IB_HCA and NCCL_IB_DISABLE"),
            run(
                "This UCX offers only TCP: check that it was built with verbs, and that its \
                 module loads",
                "ucx_info -v; ucx_info -d | grep -E 'rc_|dc_|ud_'; ldd libuct_ib.so",
            )
            .only(&[Fact::TcpOnly]),
        ],
        facts: &[(
            Fact::TcpOnly,
            "UCX lists TCP devices but no RDMA devices: it was built without rdma-core's headers, \
             its package of InfiniBand transports is not installed, or libuct_ib.so cannot load.",
        )],
        checks: &[
            "dev.nodes",
            "nic.present",
            "nic.driver",
            "port.state",
            "uverbs.abi",
        ],
        sources: &[
            "NVIDIA/nccl issues 451, 941, 952",
            "ai-dynamo/dynamo issue 1209",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "rdma-abi",
        title: "The RDMA library does not match the kernel's driver",
        why: "The NIC's libibverbs provider and kernel module come from different stacks: from \
              the distribution, from the NIC vendor, or from a container image with other \
              versions. The provider then refuses the device, or makes calls that the kernel does \
              not know.",
        patterns: &[
            // On a software device, one provider reports this and another one accepts the device.
            sure(r"does not support the kernel abi").unless(r"/(rxe|siw)\w*$"),
            sure(r"mlx5dv_devx_create_event_channel\b.{0,40}(fail|error)"),
            sure(r"version .?(ibverbs|rdmacm|mlx5|efa)_(private_)?[\d.]+.? not found")
                .unless(r"\bdlvsym failed"),
            likely(r"symbol lookup error: .*undefined symbol: (ibv|mlx5dv|rdma|efadv)_"),
            sure(r"\bprovider\b.{0,60}\babi\b.{0,40}(mismatch|differ|incompatible)"),
            sure(r"\bibv_\w+\b.{0,40}inappropriate ioctl for device"),
            likely(r"\bbad state updated: \d+, maybe hardware issue"),
        ],
        remedies: &[
            hand(
                "In the image, install the provider library that matches the host's driver: the \
                 NIC vendor's package (MLNX_OFED or DOCA, Broadcom's libbnxt_re, Intel's irdma) \
                 in the host's version",
            ),
            run(
                "Compare both sides",
                "modinfo -F version <driver>; ibv_devinfo -v; cat /etc/libibverbs.d/*",
            ),
            hand("Or use the kernel's own driver with the distribution's rdma-core on both sides"),
        ],
        checks: &["uverbs.abi", "ofed.flavour"],
        sources: &[
            "k8snetworkplumbingwg/sriov-cni issue 348",
            "openucx/ucx issues 6906, 7229, 8440",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "socket-plugin",
        title: "NCCL's network plug-in uses TCP sockets, which never use GPUDirect RDMA",
        why: "FastSocket and FasTrak are plug-ins that use TCP. They print this line for each of \
              their interfaces; a missing peer-memory module is not the reason.",
        patterns: &[sure(
            r"net/(fastsocket|fastrak|socket \(?fast\w*)\b.{0,20}gpu ?direct rdma (\(\w+\) )?disabled",
        )],
        remedies: &[
            run(
                "To use RDMA NICs, remove the plug-in",
                "NCCL_NET=IB NCCL_NET_PLUGIN=none",
            ),
            hand("On instances without RDMA NICs, nothing has to be done"),
        ],
        checks: &["nic.present"],
        sources: &["NVIDIA/nccl issue 1519"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gin-unavailable",
        title: "GPU-initiated networking (NCCL GIN) is not available here",
        why: "GIN needs a network that writes to GPU memory directly: RDMA NICs with dma-buf or a \
              peer-memory module, or sockets with GDRCopy's library, which maps GPU memory for \
              the CPU. NCCL does not offer GIN if neither is available, if its types are turned \
              off, or before version 2.28.",
        patterns: &[
            sure(
                r"\bgin (is )?(unavailable|not available|disabled|not supported)|\brequires gin support|unable to use gin\b|\bno gin-capable device",
            ),
            sure(r"rma_socket requires gdrcopy|\brma/socket\b.{0,40}gdrcopy"),
            sure(r"\bgin\b.{0,60}requires gdrcopy"),
            likely(r"\buser requested gin\b|\bgin error detected"),
            likely(r"\bnccl_gin_type_none\b|\bgin_?\w*\b.{0,30}\b(does not|doesn'?t|not) support"),
            weak(nccl_warning!("gin/\\w+|gin_\\w+")),
            likely(r"\bgdaki\w*\b.{0,80}(fail(ed|ure)|not implemented|not supported)"),
            likely(r"\bdoca_verbs_\w+.{0,40}\bdoca_error_"),
            likely(
                r"\bgin\b.{0,30}(failed to init\w*|init\w* failed|no (suitable )?(device|plug-?in))",
            ),
        ],
        remedies: &[
            run(
                "Give NCCL a libgdrapi.so.2; gdr's own needs no kernel module",
                "LD_LIBRARY_PATH=<directory of libgdrapi.so.2> NCCL_GDRCOPY_ENABLE=1",
            ),
            run("Let the CPU drive the NIC", "NCCL_GIN_TYPE=2"),
            run(
                "Without an RDMA NIC, use gdr's software NIC",
                "NCCL_GIN_TYPE=2 gdr run -- <the program>",
            ),
            run(
                "See why the NIC cannot reach GPU memory",
                "gdr doctor --only dmabuf.gpu,dmabuf.nic,peermem.loaded",
            ),
            hand("Use NCCL 2.28 or later (DeepEP V2: 2.30.4 or later)"),
        ],
        checks: &["gdrdrv", "dmabuf.gpu", "dmabuf.nic", "peermem.loaded"],
        sources: &[
            "NVIDIA/nccl src/gin; release notes 2.28, 2.32",
            "awslabs/awsome-distributed-ai issues 1234, 1241",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "ibgda-privilege",
        title: "GPU-initiated transfers (IBGDA) lack a privilege or a driver setting",
        why: "IBGDA creates mlx5 queues through DEVX and maps the NIC's doorbell into the GPU. It \
              needs an mlx5 NIC and the privilege to use DEVX. Before NVSHMEM 3.4.5, or with the \
              full GPU handler, it also needs the driver options PeerMappingOverride and \
              EnableStreamMemOPs.",
        patterns: &[
            sure(r"init failed for transport: ?ibgda"),
            likely(r"\bis not enumerated as an mlx5 device"),
            sure(r"cannot allocate mlx5dv_devx_uar|mlx5dv_devx_alloc_uar.{0,40}(fail|error|null)"),
            sure(r"cannot allocate buffer on the specified memory type"),
            sure(r"cudahostregister with iomemory failed"),
            sure(r"gpu cannot map uar of device"),
            sure(
                r"\bmissing\b.{0,40}\bpeermappingoverride|\bpeermappingoverride\b.{0,20}\b(not set|missing)",
            ),
            sure(
                r"\b(uar|doorbell|iomemory|io memory)\b.{0,100}\b(error[ =:]*800|error=800|cuda_error_not_permitted|cudaerrornotpermitted)\b",
            ),
            sure(
                r"\b(error[ =:]*800|cuda_error_not_permitted|cudaerrornotpermitted)\b.{0,100}\b(uar|doorbell|iomemory)\b",
            ),
            likely(r"failed to (map|register|export) (the )?(gpu )?(uar|doorbell)"),
            likely(r"\bibgda_(alloc_and_map_qp_uar|nic_mem_gpu_map)\b.{0,40}failed"),
            weak(r"\bibgda\b.{0,80}\b(fail\w*|error|unable|cannot|null)\b"),
            likely(r"\bdevx\b.{0,60}\b(denied|not permitted)\b"),
        ],
        remedies: &[
            run(
                "Give the container the privilege",
                "docker run --privileged (or --cap-add=SYS_RAWIO,NET_RAW)",
            ),
            run(
                "Set the driver's options, then reboot",
                "options nvidia NVreg_EnableStreamMemOPs=1 \
                 NVreg_RegistryDwords=\"PeerMappingOverride=1;\"",
            ),
            run(
                "Or let the CPU ring the doorbells (NVSHMEM 3.4.5 or later)",
                "NVSHMEM_IBGDA_NIC_HANDLER=cpu",
            ),
        ],
        checks: &["devx", "nvidia.params"],
        sources: &[
            "sgl-project/sglang issue 12533",
            "NVIDIA/nvshmem issues 23, 51",
            "deepseek-ai/DeepEP issues 128, 484",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gpu-lost",
        title: "The GPU has fallen off the bus",
        why: "Xid 79 means that the driver can no longer reach the GPU over PCIe. Everything that \
              used the GPU fails from then on.",
        patterns: &[
            sure(r"\bfallen off the bus\b"),
            sure(xid!("79")),
            sure(
                r"unable to determine the device handle for gpu.{0,60}(gpu is lost|unknown error)",
            ),
            sure(r"\bgpu is lost\b|\bnv_err_gpu_is_lost\b"),
            likely(GPU_GONE),
            likely(r"\bnvidia(-gpu)? \S+: refused to change power state"),
            sure(expressions::GPU_POWER),
            likely(r"\bnvidia\b.*\(rev ff\)"),
            likely(r"number of gpus detected in the pci tree \(\d+\)"),
            weak(r"\bgres/gpu\b.{0,60}\blower than configured\b"),
        ],
        remedies: &[
            hand("Turn the machine off and on"),
            hand(
                "If it happens again, reseat the card, its power cable and its riser, and look \
                 for earlier AER errors",
            )
            .unless(&[Fact::VirtualMachine, Fact::Spark]),
        ],
        checks: &["gpu.present", "link.aer", "klog.xid", "klog.gpu_start"],
        sources: &["NVIDIA Xid catalogue"],
        ..Cause::DEFAULT
    },
];
