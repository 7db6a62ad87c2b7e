//! Communication libraries that were built or configured without GPUDirect RDMA.

use super::{follows, hand, likely, run, sure, weak};
use crate::{Cause, Kind, Strength};

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "ucx-without-cuda",
        title: "UCX, MPI or a TCP transport treats GPU memory as host memory: it was built or \
                started without CUDA",
        why: "Without its CUDA modules, UCX cannot detect the memory type of a pointer. It then \
              copies from GPU memory with the CPU, which ends in a segmentation fault (`invalid \
              permissions for mapped object`), or registers it as host memory. The modules are \
              missing if UCX was configured without --with-cuda, if UCX_TLS leaves out cuda_copy, \
              or if the loader does not find them.",
        patterns: &[
            sure(r"invalid permissions for mapped object"),
            sure(r"process_vm_(readv|writev)\b.{0,160}bad address"),
            sure(r"\btcp_transport\b.{0,60}(read|write)body failed.{0,20}bad address"),
            sure(r"transports? ('\w+',)*'?cuda(_copy|_ipc)?'?(,'\w+')* (is|are) not available"),
            sure(
                r"vram (memory )?(is |was )?(detected|classified|misclassified) as host|memory is detected as host",
            ),
            sure(
                r"ucx (is|was) (not )?(built|compiled|configured) without (cuda|gpu)|ucx is not configured with cuda",
            ),
            likely(r"(cuda|gpu)(-| )aware.{0,40}(not|disabled|without)\b"),
            likely(
                r"\bcuda support (was |is )?(not (found|available|enabled|compiled|built)|missing|disabled)\b",
            ),
            likely(
                r"unsupported (operation )?mem(ory)?[ _]type.{0,20}cuda|memory type cuda.{0,30}(not supported|unsupported)",
            ),
            likely(r"uct_cuda\S*\.so.{0,60}(cannot open|no such file|failed)"),
            follows(
                r"signal code: invalid permissions",
                r"/(libpsm2|libopen-pal|libmpi|libfabric|libuc[pst]|mca_\w+)\.so",
                Strength::Likely,
            ),
        ],
        remedies: &[
            run(
                "See whether UCX has the modules",
                "ucx_info -d | grep -i cuda; ucx_info -v",
            ),
            run(
                "Keep the CUDA modules in the list of transports",
                "UCX_TLS=rc,cuda_copy,cuda_ipc,gdr_copy",
            ),
            hand("Build UCX with --with-cuda=<path>, and MPI with that UCX"),
        ],
        checks: &["peermem.loaded", "dmabuf.gpu"],
        sources: &[
            "openucx/ucx issues 6530, 7845, 9533",
            "ai-dynamo/nixl pull requests 1385, 1393",
            "kvcache-ai/Mooncake issue 519",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "efa-sync-memops",
        title: "The EFA provider cannot set a CUDA attribute that this memory does not support",
        why: "libfabric sets SYNC_MEMOPS on GPU memory that it registers or transfers. Memory \
              from CUDA's virtual memory API (NCCL 2.19 and later, expandable segments) refuses \
              this with CUDA_ERROR_NOT_SUPPORTED, and the registration fails with `Invalid \
              argument`.",
        patterns: &[
            sure(r"cuda_set_sync_memops|unable to set memops for cuda"),
            sure(r"cupointersetattribute.{0,60}not[_ ]supported"),
            likely(r"fi_efa_set_cuda_sync_memops"),
            likely(
                r"\bnet/ofi\b.{0,20}unable to register memory \(type = 2\).{0,40}invalid argument",
            ),
            weak(r"\befa\b.{0,60}unable to register mr\b.{0,40}invalid argument"),
        ],
        remedies: &[
            run(
                "With libfabric 1.19 and earlier",
                "FI_EFA_SET_CUDA_SYNC_MEMOPS=0",
            ),
            hand("Update libfabric and aws-ofi-nccl (the EFA installer)"),
            run(
                "Or allocate without the virtual memory API",
                "NCCL_CUMEM_ENABLE=0 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
            ),
        ],
        checks: &["dmabuf.gpu"],
        sources: &[
            "awslabs/awsome-distributed-ai issue 278",
            "ofiwg/libfabric issue 12853, pull request 9459",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "ofi-without-gdr",
        title: "libfabric's provider does not use GPUDirect RDMA here, and data goes through host \
                memory",
        why: "The plug-in asks for FI_HMEM and for a provider that does not call CUDA. An old \
              libfabric, an instance type whose EFA does not support RDMA, or a device without \
              peer-to-peer cannot offer this.",
        patterns: &[
            sure(r"could not disable cuda api usage for hmem"),
            sure(r"net/ofi\b.{0,40}gpu ?direct rdma.{0,20}disabled"),
            likely(r"net/ofi\b.{0,120}protocol not available"),
            sure(r"gdr support reported to nccl but then couldn'?t be configured"),
            sure(r"fi_hmem capability requires rdma, which this device does not support"),
            sure(r"fi_hmem transfers that require peer to peer support will fail"),
            likely(r"(hmem|gdr) .{0,30}(disabl\w+|not supported).{0,20}\b(gdr|provider|efa)"),
            likely(r"selected provider is (tcp|sockets)\b"),
            weak(
                r"\bnet/ofi\b.{0,30}\b(creating|opening|setting up)\b.{0,60}\b(endpoint|domain)\b.{0,60}\bfail",
            ),
            likely(r"support for dma-buf registrations: false"),
            weak(r"\bnccl warn net/ofi\b"),
        ],
        remedies: &[
            hand("Update libfabric to 1.18 or later, and aws-ofi-nccl (the EFA installer)"),
            run("See what the provider offers", "fi_info -p efa -c FI_HMEM"),
            hand("Use an instance type whose EFA supports RDMA"),
        ],
        checks: &["dmabuf.gpu", "nic.driver"],
        sources: &[
            "aws/aws-ofi-nccl issue 278, pull request 286",
            "ofiwg/libfabric issue 11256",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gds-unavailable",
        title: "GPUDirect Storage is off: cuFile moves files through host memory, or refuses them",
        why: "cuFile reads into GPU memory through the kernel module nvidia-fs, and only from \
              drivers that have registered with the module: NVMe drivers from MLNX_OFED or DOCA, \
              and file systems that support it. Otherwise it uses POSIX calls if its \
              configuration allows that, and fails if not.",
        patterns: &[
            sure(r"\bnvme driver not registered with nvidia-fs"),
            sure(r"\bnvidia-fs(\.ko)? driver not loaded"),
            sure(r"gpudirect storage not supported on current file"),
            likely(r"\bcufilehandleregister\b.{0,20}\b(error|fail|gds not supported)"),
            weak(r"\berror\W+cufio-fs:\d+ "),
        ],
        remedies: &[
            run("See what cuFile supports on this node", "gdscheck -p"),
            run("Load the module", "modprobe nvidia-fs"),
            run(
                "For local NVMe, install the drivers that register with it, and reboot",
                "mlnxofedinstall --with-nvmf --enable-gds",
            ),
            run(
                "Or accept copies through host memory",
                "\"allow_compat_mode\": true in /etc/cufile.json",
            ),
        ],
        sources: &[
            "NVIDIA GPUDirect Storage: installation and troubleshooting guide",
            "NVIDIA/gds-nvidia-fs issues 4, 19, 31",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gdrcopy-library",
        title: "libgdrapi.so is not found, so small messages take a slower path",
        why: "UCX, NVSHMEM and NCCL load GDRCopy's library at run time if it is present. They \
              work without it, but small messages have a higher latency; NVSHMEM's CPU handler \
              requires it.",
        patterns: &[
            sure(r"gdrcopy library not found"),
            sure(r"libgdrapi\.so\S*: cannot open shared object|failed to open libgdrapi"),
            sure(r"could not load libgdrapi|gdrcopy support not available at compile time"),
            sure(r"failed to dlopen libgdrapi|\bgdrcopy_dl_hmem_init failed"),
            likely(r"gdrcopy library is older than"),
        ],
        remedies: &[
            run(
                "Put a libgdrapi.so.2 where the loader finds it; gdr's own needs no kernel module",
                "LD_LIBRARY_PATH=<directory of libgdrapi.so.2>",
            ),
            run("Or turn GDRCopy off", "NVSHMEM_DISABLE_GDRCOPY=1"),
        ],
        checks: &["gdrdrv"],
        sources: &["NVIDIA/nvshmem src/modules/transport/common/transport_gdr_common.cpp"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "nixl-backend",
        kind: Kind::Consequence,
        title: "NIXL's backend failed; an earlier line from UCX or libfabric has the reason",
        why: "NIXL_ERR_BACKEND means that a library below NIXL failed to register memory or to \
              connect. With GPU memory, the usual reasons are a UCX without CUDA modules and GPU \
              memory that cannot be registered.",
        patterns: &[
            likely(r"\bnixl_err_backend\b|nixlbackenderror"),
            likely(r"no available backends for mem type '?vram"),
            likely(r"registermem: registration failed for the specified or all potential backends"),
            weak(r"no (specified or )?potential backend (found|had|could)"),
            weak(r"\bnixl_err_[a-z]\w+"),
        ],
        remedies: &[
            run(
                "Log more, and explain the whole log",
                "UCX_LOG_LEVEL=info NIXL_LOG_LEVEL=debug",
            ),
            run(
                "See whether UCX has its CUDA modules",
                "ucx_info -d | grep -i cuda",
            ),
        ],
        checks: &["peermem.loaded", "dmabuf.gpu", "dmabuf.nic"],
        sources: &["ai-dynamo/nixl issues 177, 1628"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "nixl-plugin",
        title: "NIXL does not find the plug-in of a backend, or a library that the plug-in needs",
        why: "A backend is a plug-in, libplugin_NAME.so, in a folder that NIXL reads. NIXL skips \
              a plug-in if the loader does not find its libraries, such as libucp.so.0.",
        patterns: &[
            sure(r"\bcreatebackend: unsupported backend '\w+'"),
            likely(r"\bfailed to load plug-?in from .{0,200}\.so"),
            sure(r"\bgetpluginparams: backend '\w+' not found"),
        ],
        remedies: &[
            run(
                "See which libraries the plug-in lacks, and add their folder to LD_LIBRARY_PATH",
                "ldd libplugin_UCX.so | grep 'not found'",
            ),
            run(
                "Name the folder of the plug-ins",
                "NIXL_PLUGIN_DIR=/usr/local/nixl/lib/plugins",
            ),
        ],
        checks: &[],
        sources: &["ai-dynamo/nixl issue 1561"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "nixl-metadata",
        title: "NIXL does not know the peer: its metadata was never loaded, or was dropped",
        why: "An agent needs a peer's metadata before it can transfer. The metadata is missing if \
              it was never exchanged, and is dropped after a disconnect.",
        patterns: &[
            sure(r"metadata for remote agent .{0,120}not found"),
            sure(r"remote nixl agent engine id mismatch"),
            likely(r"\bnixl_err_not_found\b|nixlnotfounderror"),
            likely(
                r"\bnixl\w*\b.{0,60}\b(handshake|metadata)\w*\b.{0,30}\b(fail\w*|mismatch\w*|error|not found|timed? ?out|missing)|\b(fail\w*|unable|error)\b.{0,60}\bnixl\w*\b.{0,30}\b(handshake|metadata)\b",
            ),
        ],
        remedies: &[
            hand("Exchange metadata again after a peer restarts (add_remote_agent)"),
            run(
                "Give each engine its own address when several share a host",
                "VLLM_NIXL_SIDE_CHANNEL_HOST=<address> VLLM_NIXL_SIDE_CHANNEL_PORT=<port>",
            ),
            hand("Look for an earlier disconnect, and explain that error"),
        ],
        checks: &[],
        sources: &["ai-dynamo/nixl issue 1983, src/core/nixl_agent.cpp"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "perftest-without-cuda",
        title: "This perftest was built without CUDA, like most distributions' packages",
        why: "perftest does not recognize options that it was built without. Its GPU options \
              exist only if configure was given the path of CUDA's header.",
        patterns: &[sure(
            r"(unrecognized|unknown|invalid) option '?(--)?(use_(cuda|rocm|musa|neuron|mlu|hl)\w*|cuda_mem_type|gpu_touch)",
        )],
        remedies: &[
            run(
                "Measure with gdr, which takes the same options in every build",
                "gdr perf write-bw --gpu 0",
            ),
            run(
                "Or build perftest with CUDA",
                "./autogen.sh && ./configure CUDA_H_PATH=/usr/local/cuda/include/cuda.h && make",
            ),
        ],
        checks: &[],
        sources: &["perftest configure.ac; linux-rdma/perftest README"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "perftest-options",
        title: "perftest reads its options in order: --use_cuda must come before the options that \
                depend on it",
        why: "perftest refuses --use_cuda_dmabuf and --cuda_mem_type unless it has already read \
              --use_cuda.",
        patterns: &[sure(
            r"\b(cuda|rocm|neuron|mlu|musa) (dma-?buf|mem type) cannot be used without (cuda|rocm|neuron|mlu|musa)",
        )],
        remedies: &[
            run(
                "Put --use_cuda first",
                "ib_write_bw --use_cuda=0 --use_cuda_dmabuf ...",
            ),
            run(
                "Or measure with gdr, which takes them in any order",
                "gdr perf write-bw --gpu 0",
            ),
        ],
        checks: &[],
        sources: &["linux-rdma/perftest issue 336"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "ucx-no-transport",
        title: "UCX finds no transport that both ends support and that can do what is required",
        why: "For each transport the line says what is missing. `Destination is unreachable` \
              means shared memory of another host or container, or another subnet. `no am bcopy` \
              means that cuda_copy, cuda_ipc and cma only carry data and need a network transport \
              beside them. `no peer failure handler` means that shared memory lacks the failure \
              handler that NIXL asks for. An RDMA transport that is not in the list was not \
              found, or is excluded by UCX_TLS or UCX_NET_DEVICES.",
        patterns: &[
            sure(r"\bno [a-z][\w ]{2,50} transport to [^:]{1,80}:"),
            sure(r"\bno usable transports?/devices? \(asked"),
            likely(r"able to be opened in the pml framework"),
            sure(r"\bselected pml \w+, but peer .{0,60}\bselected pml \w+"),
            likely(r"\bno tls are selected\b|\buc[sx]_err_unreachable\b"),
            weak(r"\bucc +error\b|\b(cl|tl)_\w+ error\b"),
            likely(
                r"\bat least one (pair of )?mpi process(es)? (is|are) unreachable|\bunable to reach each other for mpi\b",
            ),
            weak(r"\b(pml|osc|common|spml)_ucx\w*\.c:\d+ +error"),
            weak(ucx_error!(
                "select|wireup\\w*|ucp_(ep|context|worker|device|rkey)"
            )),
            likely(r"\bucp_ep_create\b.{0,40}destination is unreachable"),
        ],
        remedies: &[
            run(
                "See which transports each end has",
                "ucx_info -d | grep -E 'Transport|Device'; env | grep ^UCX_",
            ),
            run(
                "Let UCX choose, or name a network transport as well",
                "unset UCX_TLS UCX_NET_DEVICES; or UCX_TLS=rc,cuda_copy,cuda_ipc",
            ),
            hand("Use the same version of UCX on both ends"),
        ],
        checks: &["port.state", "dev.nodes", "netns"],
        sources: &[
            "openucx/ucx src/ucp/wireup/select.c; issues 3513, 4742",
            "ai-dynamo/nixl pull request 1846",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "library-versions",
        title: "A program was built for a newer UCX than the one that it loads",
        why: "The loader found a different libucp before the one that the program was built with, \
              for example the distribution's or another package's. Its transports and CUDA \
              modules are then incompatible.",
        patterns: &[sure(r"\buc[pst]( api)? version is incompatible\b")],
        remedies: &[
            run(
                "See which library is loaded",
                "ldd <program> | grep -E 'uc[pts]'; ucx_info -v",
            ),
            run(
                "Put the newer library first",
                "LD_LIBRARY_PATH=<directory of the newer libucp.so.0>",
            ),
        ],
        checks: &[],
        sources: &["openucx/ucx src/ucp/core/ucp_context.c"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "cuda-context",
        title: "A thread that communicates has no CUDA context",
        why: "CUDA keeps the current GPU per thread. UCX, NIXL, MPI and libfabric ask CUDA about \
              memory on the thread that calls them, and also on their own threads. A thread that \
              has not chosen a GPU gets `invalid device context`, and GPU memory is not \
              recognized.",
        patterns: &[
            sure(r"\bcu[a-z]\w+\b.{0,60}(invalid device context|cuda_error_invalid_context)"),
            likely(r"\bcuda\b.{0,40}(invalid device context|\binvalid_context\b)"),
            likely(
                r"\bcu(da)?(event|stream|memcpy|pointer)\w*\b.{0,80}\binvalid resource handle\b",
            ),
        ],
        remedies: &[
            run(
                "Choose the GPU on every thread that communicates, before the library starts",
                "cudaSetDevice(<GPU>); torch.cuda.set_device(<GPU>)",
            ),
            hand("Initialize CUDA before calling MPI_Init and before creating UCX contexts"),
        ],
        checks: &[],
        sources: &[
            "rapidsai/ucx-py issue 102",
            "CUDA Driver API: context management",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "fork",
        title: "A process forked while its memory was registered with a NIC",
        why: "After a fork, pages of registered memory may be copied, and the NIC then writes to \
              pages that the program no longer sees. Forks are safe if libibverbs knew about them \
              before memory was registered, or if the kernel (5.12 and later) copies such pages \
              at once.",
        patterns: &[
            likely(
                r"\bibv_fork_init\(?\)? (was disabled|failed)|\bfork\(?\)? has been issued|\bto the fork\(?\)? system call",
            ),
            likely(r"\bmadvise\(dontfork\b.{0,80}\bfail"),
        ],
        remedies: &[
            run(
                "Tell libibverbs about forks",
                "RDMAV_FORK_SAFE=1; UCX_IB_FORK_INIT=y",
            ),
            hand(
                "Or start workers without a fork: `spawn` in Python's multiprocessing and DataLoader",
            ),
        ],
        checks: &[],
        sources: &["ibv_fork_init(3)", "openucx/ucx issue 686"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "duplicate-gpu",
        title: "Two ranks use one GPU, which NCCL refuses",
        why: "Each rank needs its own GPU. Ranks share a GPU if the program does not choose one \
              by its local rank, or if CUDA_VISIBLE_DEVICES is the same for all ranks of a node.",
        patterns: &[sure(r"duplicate gpu detected")],
        remedies: &[
            run(
                "Choose the GPU by the local rank",
                "torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"]))",
            ),
            hand("Start as many ranks per node as it has GPUs"),
        ],
        checks: &[],
        sources: &["NVIDIA/nccl src/init.cc"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "sharp",
        kind: Kind::Harmless,
        title: "SHARP (reductions in the switches) is not available, and NCCL works without it",
        why: "The SHARP library asks the aggregation manager for a tree of switches for this job. \
              If there is no manager, or it refuses, the GPUs do the reductions as usual.",
        patterns: &[
            sure(r"\bsharp_\w+ failed\b|\bsharp group create: .{0,60}fail|failed to lock sat tree"),
            sure(r"\b(collect_ports_data|sharp_get_local_data): (device|error|failed)"),
            sure(r"sharp aggregation manager"),
        ],
        remedies: &[
            run(
                "If SHARP is not wanted, turn it off",
                "NCCL_COLLNET_ENABLE=0",
            ),
            run(
                "If SHARP is wanted, check that the manager runs",
                "systemctl status sharp_am   # on the subnet manager's host",
            ),
        ],
        checks: &[],
        sources: &["NVIDIA SHARP: troubleshooting"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "shared-memory-small",
        title: "The container's shared memory is too small",
        why: "NCCL's ranks on one node share memory through /dev/shm. Docker limits it to 64 MiB \
              by default.",
        patterns: &[
            sure(r"/dev/shm/nccl\S*.{0,80}no space left on device"),
            sure(r"error while creating shared memory segment"),
            follows(r"/dev/shm", r"no space left on device", Strength::Likely),
            likely(r"shared memory.{0,60}(too small|insufficient|no space)"),
            likely(r"\bbus error\b.{0,80}shared memory"),
        ],
        remedies: &[
            run(
                "Give the container more",
                "docker run --shm-size=1g --ipc=host",
            ),
            hand("In Kubernetes, mount an emptyDir with medium Memory at /dev/shm"),
        ],
        checks: &["shm"],
        sources: &["NVIDIA/nccl user guide: troubleshooting"],
        ..Cause::DEFAULT
    },
];
