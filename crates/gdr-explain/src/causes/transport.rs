//! Connections that fail between nodes.

use super::{CALL, DUMP, follows, hand, likely, run, sure, weak};
use crate::{Cause, Fact, Kind, Strength};

/// First line of ucx_info's output about an RDMA device.
const DOMAIN: &str = r"memory domain: (mlx\d|irdma|bnxt|efa|rocep|ib)\w*";

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "transport-timeout",
        title: "The two ends cannot reach each other: the NIC gave up after its retries",
        why: "Status 12 (retry exceeded, vendor error 129 = 0x81) means that a packet was never \
              acknowledged. Usual reasons are a wrong GID index (link-local, RoCE v1), a VLAN or \
              subnet without a route, a firewall on UDP port 4791, rails that are not connected \
              to each other, and packet loss without flow control.",
        patterns: &[
            sure(vendor!("129|0x81")),
            sure(r"transport retry count(er)? exceeded|\b((ibv_wc|transport)_)?retry_exc_err\b"),
            follows(DUMP, r"\b0000811[0-9a-f]\b", Strength::Sure),
            sure(r"unresponsive receiver\b|\bunreachable remote\b.{0,40}never received"),
            likely(r"\bofi poll failed\b.{0,160}\b(undeliverable|timeout)\b"),
            likely(r"\bnet/ofi\b.{0,30}\bcompleted with error\b"),
            likely(r"\buc[sx]_err_(endpoint_timeout|timed_out)\b"),
            likely(r"\b(kiblnd|o2iblnd)\w*\b.{0,60}\btimed out\b"),
            sure(r"\bud endpoint\b.{0,80}unhandled timeout error"),
            sure(syndrome!("15")),
            likely(status!("12")).unless(CALL),
            weak(ucx_error!("(rc|dc|ud|srd)_\\w+|ib_mlx5_log")),
            weak(nccl_warning!("net_ib/(p2p|common|recovery)|transport/net_ib")),
            weak(glog_error!("worker_pool")),
            weak(libfabric_warning!("cq|ep_data")),
            weak(r"\b(local_ack_timeout_err|packet_seq_err|out_of_sequence)\b\W{1,4}[1-9]\d{2,}"),
        ],
        remedies: &[
            run(
                "See which GID index routes",
                "gdr doctor --only roce.gid,roce.ip,port.state",
            ),
            run("Choose the index of a routable RoCE v2 GID", "NCCL_IB_GID_INDEX=3"),
            run(
                "Test the two NICs alone",
                "ib_write_bw -d mlx5_0 -x 3 <peer>",
            ),
            run(
                "Stay within a rail if the rails are not connected to each other",
                "NCCL_CROSS_NIC=0",
            ),
            run("If nothing else helps, wait longer", "NCCL_IB_TIMEOUT=22"),
        ],
        checks: &[
            "roce.gid",
            "roce.ip",
            "port.state",
            "roce.pfc",
            "roce.counters",
        ],
        sources: &[
            "NVIDIA/nccl issues 426, 769, 902, 1664",
            "pytorch/pytorch issue 81628",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "address-resolution",
        title: "The peer's address cannot be resolved when the queue pair is connected",
        why: "For RoCE, the kernel resolves the peer's GID to a MAC address when the queue pair \
              goes to RTR. A link-local GID, another subnet without a route, or a rail that is \
              not connected ends in a time-out or in `no route`. Creating an address handle fails \
              for the same reasons. First test with perftest whether the network works at all.",
        patterns: &[
            sure(
                r"ibv_modify_qp\b.*(connection timed out|network is unreachable|no route to host|\b110\b|\b101\b|\b113\b)",
            ),
            sure(r"non-zero status: (110|101|113)\b.{0,40}ibv_modify_qp"),
            sure(
                r"\brtr\b.{0,80}(connection timed out|network is unreachable|no route to host|\[(110|101|113)\])",
            ),
            sure(
                r"(unable|failed) to create (an? )?(ah|address handle)\b|ibv_create_ah\b.{0,80}fail",
            )
            .unless(r"no such device|\berrno[ =:]*19\b"),
            sure(r"modify.{0,12}qp.{0,20}\brtr\b.*(timed out|unreachable|no route)"),
            likely(r"failed to modify (\w+ )?qp.{0,30}\brtr\b"),
            likely(r"unable to connect the hca'?s through the link"),
            likely(r"rdma_resolve_(addr|route).*(fail|error|timed|unreach)")
                .unless(r"no such device|\berrno[ =:]*19\b"),
            likely(r"rdma_cm_event_(addr|route)_error|rdma_cm_event_unreachable"),
            weak(glog_error!("rdma_endpoint")),
            likely(r"ibgda_rc_init2rtr failed|devx_obj_modify for init2rtr"),
            likely(r"\blibibverbs: resolver: |\bneigh\w* resolution\b.{0,20}\bfailed"),
            likely(r"\bfailed to (extract|get|find|resolve) (\w+ ){0,2}(sockaddr\w*|ip address|mac address|dmac|neighbou?r)\b"),
        ],
        remedies: &[
            run(
                "See which GID index routes",
                "gdr doctor --only roce.gid,roce.ip",
            ),
            run(
                "Choose the index of a routable RoCE v2 GID",
                "NCCL_IB_GID_INDEX=3 (perftest: -x 3)",
            ),
            run(
                "Check that the addresses reach each other",
                "ping -I <netdev> <peer>; ib_write_bw -d mlx5_0 -x 3 <peer>",
            ),
        ],
        checks: &["roce.gid", "roce.ip"],
        sources: &["NVIDIA/nccl-tests issue 185", "uccl-project/uccl issue 641"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gid-other-namespace",
        title: "The GID's network interface is in another network namespace, or no longer exists",
        why: "ibv_modify_qp to RTR needs the GID's network interface in the same network \
              namespace. A container with its own network does not have it, and the call fails \
              with ENODEV (19).",
        patterns: &[
            sure(r"ibv_modify_qp\b.*(no such device|\berrno[ =:]*19\b|\[19\])"),
            sure(r"non-zero status: 19\b.{0,40}ibv_modify_qp"),
            sure(r"ibv_create_ah\b.*(no such device|\berrno[ =:]*19\b)"),
            sure(r"has no associated network device"),
            sure(r"\brdma_(create_ep|create_id|bind_addr|resolve_addr)\b.{0,40}no such device"),
            sure(r"\brdma_cm_event_addr_error\b.{0,30}-19\b"),
            likely(r"modify.{0,12}qp.*no such device"),
        ],
        remedies: &[
            run(
                "Use the host's network",
                "docker run --network=host; hostNetwork: true",
            ),
            run(
                "Or move the RDMA device into the namespace",
                "rdma system set netns exclusive; rdma dev set mlx5_0 netns <name>",
            ),
            run(
                "Or choose a GID whose interface is in this namespace",
                "NCCL_IB_GID_INDEX=<n>",
            ),
        ],
        checks: &["netns", "roce.gid"],
        sources: &[
            "NVIDIA/nccl issue 925",
            "microsoft/mscclpp issue 431",
            "k8snetworkplumbingwg/sriov-network-device-plugin issue 342",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "rdma-netns-mode",
        title: "RDMA devices belong to network namespaces here, but the program expects shared \
                devices (or the reverse)",
        why: "In the mode `exclusive`, an RDMA device is in only one network namespace, as SR-IOV \
              plug-ins require. Plug-ins that share a device between pods require the mode \
              `shared`.",
        patterns: &[
            sure(r"incorrect rdma subsystem network namespace"),
            likely(
                r"rdma subsystem (network )?namespace\b.{0,60}\b(not set|expected|must be|should be|please)\b",
            ),
            likely(r"failed to move rdma device\b"),
        ],
        remedies: &[
            run("See the mode", "rdma system show"),
            run(
                "Change it while all devices are in the initial namespace",
                "rdma system set netns shared   # at boot: options ib_core netns_mode=1",
            ),
            hand("Or use the plug-in that fits the current mode: rdma-cni for `exclusive`"),
        ],
        checks: &["netns"],
        sources: &["Mellanox/k8s-rdma-shared-dev-plugin issues 84, 87", "rdma-system(8)"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "remote-access",
        title: "The other end refused the access: the NIC cannot reach its GPU memory",
        why: "A remote access error (status 10, vendor error 0x88) means that the other end did \
              not accept the key, the address or the length. With GPU buffers, as with MPI on \
              B200, GPUDirect RDMA is often not active on the other end, which runs the \
              proprietary driver without nvidia_peermem. Other reasons are memory that was freed \
              or registered again after its key was sent, memory that was registered in pieces \
              (expandable segments), and a key from another NIC.",
        patterns: &[
            sure(vendor!("136|0x88")),
            sure(r"\bsynd(rome?)? ?0x14\b.{0,30}remote access"),
            follows(DUMP, r"\b0000881[0-9a-f]\b", Strength::Sure),
            sure(r"\brma address verification failed|efa internal error: \(4111\)"),
            sure(syndrome!("13|14")),
            likely(r"remote access (error|on \w+:\d)"),
            likely(r"\b(ibv_wc_)?rem_access_err\b"),
            likely(status!("10")).unless(CALL),
        ],
        remedies: &[
            hand("Install the open flavour of NVIDIA's driver on every node"),
            run(
                "Or load the peer-memory module on every node",
                "modprobe nvidia_peermem",
            )
            .unless(&[Fact::Spark]),
            run(
                "Register memory as a whole: PyTorch's expandable segments grow by pieces that an \
                 old registration does not cover",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
            ),
            hand("Use the key that was created on the queue pair's NIC"),
        ],
        checks: &["nvidia.version", "peermem.loaded", "dmabuf.gpu"],
        sources: &[
            "open-mpi/ompi issue 13183",
            "meta-pytorch/monarch pull request 4547",
            "ofiwg/libfabric prov/efa/src/efa_errno.h",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "flush-error",
        kind: Kind::Consequence,
        title: "This error follows from another one: look for the first error",
        why: "Work that was queued after the failed request completes with status 5 (flushed, \
              vendor error 249).",
        patterns: &[
            sure(vendor!("249|0xf9")),
            sure(syndrome!("5")),
            likely(r"\b(work request|wr) flush\w*|\bwr_flush_err\b|work request flushed"),
            likely(status!("5")).unless(CALL),
        ],
        remedies: &[hand(
            "Find the first completion that failed with another status, on either end, and \
             explain that error",
        )],
        checks: &[],
        sources: &["NVIDIA/nccl issues 1405, 1814"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "mtu-differs",
        title: "The nodes have different MTUs",
        why: "NCCL 2.20 and later no longer use the smaller MTU of the two ends. If the MTUs \
              differ, the NIC reports a local access violation or a remote invalid request.",
        patterns: &[
            sure(r"local access violation work queue error"),
            likely(r"\bmtu\b.{0,40}\b(mismatch|differs?|different|not equal|incompatible)\b"),
            likely(r"\blocal access violation\b"),
            likely(r"requested mtu is higher than active mtu"),
            likely(status!("8")).unless(CALL),
        ],
        remedies: &[
            run(
                "See each port's MTU on both nodes",
                "gdr doctor --only roce.mtu; gdr diff A B",
            ),
            run(
                "Set the same MTU everywhere, including the switches",
                "ip link set dev <netdev> mtu 9000",
            ),
        ],
        checks: &["roce.mtu"],
        sources: &["NVIDIA/nccl issue 1524"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "receiver-not-ready",
        title: "The receiver had not posted a receive when the message arrived (RNR)",
        why: "Status 13 means that the peer answered `receiver not ready` until the retries were \
              exhausted. The peer's program hangs, posts too few receives, or is far behind. The \
              network is not at fault.",
        patterns: &[
            sure(
                r"\b(ibv_wc_)?rnr_retry_exc_err\b|\brnr retry counter exceeded|receiver[- ]not[- ]ready",
            ),
            sure(vendor!("135|0x87")),
            follows(DUMP, r"\b0000871[0-9a-f]\b", Strength::Sure),
            sure(syndrome!("16")),
            likely(status!("13")).unless(CALL),
        ],
        remedies: &[
            hand("Check the peer's log at that time for a crash or a stop"),
            run("Post more receives; with UCX, use a longer queue", "UCX_RC_RX_QUEUE_LEN=<more>"),
        ],
        checks: &["roce.counters"],
        sources: &["InfiniBand Architecture Specification 1, 9.7.5.2.8"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "length-error",
        title: "The message is longer than the receive buffer",
        why: "A local length error (status 1) at the receiver and a remote invalid request \
              (status 9, vendor error 0x8a) at the sender report the same fault from two sides. \
              The receive buffer is too small, the ends disagree about sizes or versions, or \
              their path MTUs differ.",
        patterns: &[
            sure(vendor!("138|0x8a")),
            follows(DUMP, r"\b00008a1[0-9a-f]\b", Strength::Sure),
            sure(r"\blocal length (error|on \w+:\d)|\b(ibv_wc_)?loc_len_err\b"),
            sure(r"\bremote invalid request (error|on \w+:\d)|\b(ibv_wc_)?rem_inv_req_err\b"),
            sure(syndrome!("1|12")),
            likely(status!("1|9")).unless(CALL),
            likely(r"\bmessage truncated\b.{0,40}\breceived \d+ bytes instead of \d+"),
        ],
        remedies: &[
            hand(
                "Run the same versions of the program and the library, with the same settings, on \
                 all nodes",
            ),
            run(
                "Compare the MTUs of all ports",
                "gdr doctor --only roce.mtu; gdr diff A B",
            ),
        ],
        checks: &["roce.mtu"],
        sources: &[
            "InfiniBand Architecture Specification 1, 11.6.2",
            "NVIDIA/nccl issue 1710",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "queue-operation",
        title: "The NIC refused a request, or the queue itself failed",
        why: "The NIC reports a local QP operation error (status 2) or an asynchronous fatal \
              event of a queue. The request does not fit the queue pair (size, access, atomics on \
              GPU memory), or its memory no longer exists.",
        patterns: &[
            sure(r"invalid request local work queue error|local work queue catastrophic error"),
            sure(
                r"\b(ibv_wc_)?loc_qp_op_err\b|local qp operation (error|on \w+:\d)|\blocal qp on \w+:\d",
            ),
            likely(r"async fatal event on (qp|cq|srq)\b"),
            likely(r"\bqp#?\d+ (moved to|entered|is in) (the )?err(or)?( state)?\b|\babnormal ae_id = 0x"),
            likely(
                r"\b(completion queue|send queue|receive queue|work queue|[cs]q)s? (is |was )?(exhaust\w*|overr[ua]n\w*|overflow\w*|full)\b|\b(cq|sq|rq)_?(overrun|overflow)\b",
            ),
            sure(syndrome!("2")),
            likely(status!("2")).unless(CALL),
        ],
        remedies: &[
            hand("Update the NIC's firmware, its driver and the library"),
            hand("Try without plug-ins and user-buffer registration, then with perftest alone"),
        ],
        checks: &["nic.fw", "klog.nic_health"],
        sources: &["NVIDIA/nccl issue 1919"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "qp-arguments",
        title: "The connection's parameters do not fit the port (EINVAL)",
        why: "ibv_modify_qp returns EINVAL (22) if the GID index is empty or has the wrong type, \
              if the two ends have different link layers, if the peer's address arrived damaged, \
              or if the traffic class or the MTU does not fit the link. Creating a queue fails \
              this way if it is larger than the NIC allows or has an unsupported type.",
        patterns: &[
            sure(r"ibv_modify_qp\b.{0,60}(invalid argument|\berrno[ =:]*22\b|\beinval\b| 22 )"),
            sure(r"non-zero status: 22\b.{0,40}ibv_modify_qp"),
            sure(r"\brtr\b.{0,80}(invalid argument|\[22\])|modify.{0,12}qp\b.{0,120}(invalid argument|\[22\])"),
            likely(r"\b(ibv|mlx5dv)_create_qp\w*\b.{0,80}(invalid argument|\[22\])"),
            likely(r"\b(create|creating)( an?)? (\w+ )?(qp|srq|cq|queue pair|(shared )?receive queue|completion queue)\b.{0,120}(invalid argument|\[22\]|\berrno:? -?22\b)"),
            likely(r"\b(ibv|mlx5dv)_create_(cq|srq)\w*\b.{0,80}(invalid argument|\[22\])"),
            sure(r"attempted to connect incompatible devices"),
            sure(r"remote \S+ device is incompatible with the local"),
            likely(r"local (mtu|port|link layer) .{0,30}(differ|does not match)"),
        ],
        remedies: &[
            run(
                "See which GID indexes are filled",
                "gdr doctor --only roce.gid; gdr nics",
            ),
            run(
                "Use only NICs with the same link layer",
                "NCCL_IB_HCA=<names>; NVSHMEM_HCA_LIST=<names>",
            ),
            run("Let the library choose the GID", "NCCL_IB_GID_INDEX=-1"),
        ],
        checks: &["roce.gid", "ll.mismatch", "roce.mtu"],
        sources: &[
            "NVIDIA/nvshmem issues 42, 45, 97",
            "sgl-project/sglang issue 9813",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gid-index",
        title: "The requested GID index does not exist on this port",
        why: "The index is empty or beyond the table, or none of the GIDs is what the program \
              looks for (an IPv4 address, RoCE v2). The program then does not use the device.",
        patterns: &[
            sure(r"no suitable gid found"),
            // The same is printed if the port is down.
            likely(r"failed to open device \S+ on port .{0,10}with gid -?\d+"),
            likely(r"uct_iface_open\((rc|dc|ud)\w*/\S*\).{0,40}address not valid"),
            sure(r"failed to query gid \d+"),
            sure(r"ibv_query_gid\w*\b.{0,60}(fail|error)"),
            likely(
                r"\b(invalid|no such|bad|wrong) gid(_| )?index|gid index \d+ (is )?(invalid|not found|out of range|empty)",
            ),
        ],
        remedies: &[
            run(
                "See the GIDs of each port",
                "gdr nics; gdr doctor --only roce.gid,roce.ip",
            ),
            run(
                "Choose the index of an existing RoCE v2 GID",
                "MC_GID_INDEX=<n>; NCCL_IB_GID_INDEX=<n>; UCX_IB_GID_INDEX=<n>",
            ),
            hand("Give the port's network interface an IPv4 address"),
        ],
        checks: &["roce.gid", "roce.ip", "netns"],
        sources: &["kvcache-ai/Mooncake issues 879, 1384, 1593"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gid-table-holes",
        title: "NCCL or NVSHMEM stops at an empty entry of the GID table",
        why: "In a container with its own network, only some entries of the table can be read. \
              NCCL before 2.26, and NVSHMEM, read the type of each entry until one fits, and \
              treat the first unreadable entry as an error.",
        patterns: &[sure(r"(ncclib|\bib_?)roce_?get_?version_?num\b")],
        remedies: &[
            run(
                "Name an entry that exists",
                "NCCL_IB_GID_INDEX=<n>; NVSHMEM_IB_GID_INDEX=<n>; gdr nics lists them",
            ),
            hand("Or use NCCL 2.26 or later, which skips empty entries"),
            run("Or give the container the host's network", "docker run --network=host; hostNetwork: true"),
        ],
        checks: &["roce.gid", "netns"],
        sources: &["NVIDIA/nccl issues 1538, 1573", "uccl-project/uccl issue 301"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "address-changed",
        title: "An address of the port changed while the job ran",
        why: "An interface's address was changed or removed (by DHCP, NetworkManager or a \
              restarted agent), or the subnet manager assigned another LID. Connections to the \
              old address time out.",
        patterns: &[
            sure(r"\bgid table changed?\b|\bibv_event_gid_change\b"),
            likely(r"\bibv_event_lid_change\b|async event ?: ?lid change"),
            weak(r"async event ?: ?client reregistration|\bibv_event_client_reregister\b"),
        ],
        remedies: &[
            run("See what changed it", "journalctl -u NetworkManager -u systemd-networkd; ip monitor address"),
            hand("Give the interfaces static addresses, and keep agents from changing them during \
                  jobs"),
            hand("Restart the job"),
        ],
        checks: &["roce.gid", "roce.ip"],
        sources: &["NVIDIA/nccl issue 1819", "ibv_get_async_event(3)"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "topology-file",
        title: "The topology file given to NCCL is incomplete",
        why: "NCCL_TOPO_FILE must contain what NCCL does not detect itself: arch, vendor, \
              familyid, modelid, affinity and numaid of each <cpu>. A file that was made for \
              another version or written by hand lacks some of it, and NCCL fails with `internal \
              error`.",
        patterns: &[
            sure(r"attribute \w+ of node \w+ not found"),
            sure(r"could not (open|read|parse) (xml )?topology file|\bxml parse\b.{0,60}(error|unterminated|unexpected)"),
            weak(nccl_warning!("graph/(topo|xml|search|paths|connect)")),
            likely(r"nccl_topo_file\b.{0,80}(no such file|not found|invalid|could not)"),
        ],
        detail: Some(attribute),
        remedies: &[
            run("Let NCCL detect the topology", "unset NCCL_TOPO_FILE"),
            run(
                "Or complete the file from the topology that NCCL detects and writes",
                "NCCL_TOPO_DUMP_FILE=topo.xml; gdr topo --format nccl-xml",
            ),
        ],
        checks: &["vm.topology"],
        sources: &[
            "NVIDIA/nccl src/graph/xml.h; issue 1726",
            "awslabs/awsome-distributed-ai issue 519",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "bytes-missing",
        title: "Every call succeeded, but the bytes did not arrive, or other bytes did",
        why: "A completion only says that the NIC has done its part. The bytes may have gone to \
              another place (a stale address or key, or a buffer of the other GPU), ACS or the \
              IOMMU may have dropped writes, the CPU or a kernel may have looked before the bytes \
              were visible, or the program may have looked at a copy older than the transfer.",
        patterns: &[
            likely(r"\b(data|pattern|buffer|payload|content)s?\b.{0,60}\b(mismatch|not (over)?written|not updated|unchanged|still (the )?old|never arriv\w*|did not arrive|(is|are|was|were) (wrong|stale|corrupt\w*))"),
            weak(r"\b(mismatch|corrupt\w*|stale)\b.{0,30}\b(data|pattern|buffer|payload|bytes?)\b"),
            likely(r"\b(data|pattern|buffer|payload|memory|content)s?\b.{0,40}\b(still|only) (has|have|had|holds?|contains?|shows?|sees?|reads?)\b.{0,20}\b(old|initial|original|stale|zero\w*|previous)\b"),
            likely(r"\b(not|never|isn'?t|wasn'?t) (over)?written\b|\bunchanged after\b"),
            likely(r"\b(reads?|sees?|gets?|returns?) (old|stale|outdated) (data|bytes|values?|contents?)\b"),
            likely(r"\bout of bounds values : [1-9]\d* failed\b"),
            likely(r"\bmemcmp\b.{0,40}(fail|differ|mismatch)|\b(validation|verification) (failed|error)\b.{0,60}(byte|offset|expected)"),
        ],
        remedies: &[
            run("Prove where bytes go on this machine, with guard bytes around them", "gdr loopback --gpu 0"),
            run("See which memory your own program's bytes went to", "gdr trace -- <program>"),
            run("Check whether ACS or the IOMMU interferes", "gdr doctor --only acs.path,iommu.mode,iommu.faults"),
            hand("Read the data only after the completion, by a copy or a kernel that starts \
                  after it"),
        ],
        checks: &["acs.path", "iommu.mode", "iommu.faults"],
        sources: &["CUDA: GPUDirect RDMA, synchronization and memory ordering"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "port-down",
        title: "The RDMA port is down, or went down while the job ran",
        why: "A port error that arrives as an event means that the link went down: look for the \
              cause in the cable, the transceiver, the switch port or the peer. Outstanding \
              transfers end with retry errors.",
        patterns: &[
            sure(r"async (fatal |non-fatal )?event ?: ?port error|\bibv_event_port_err\b"),
            sure(r"\bport (number )?\d+ state is (down|init|polling|disabled)"),
            sure(
                r"there are no active ports detected|no active port was found|no active ports? found",
            ),
            sure(r"\bdevice \S+ port (\d+ )?(is )?not active\b"),
            likely(r"\bport_down \(1\)|\bstate: +(port_)?down\b|\bport_(init|armed) \(\d\)"),
            // ibstat, ibstatus, `rdma link`: with a link and without a subnet manager, or without a link.
            follows(r"\bport \d+:\W*$", r"\bstate: +(initializing|armed)\b", Strength::Likely),
            likely(r"\bstate:\s+\d: (down|init|armed)\b"),
            likely(r"\blink \w+/\d+ .{0,80}\bstate (down|init|armed)\b"),
            likely(r"no openfabrics connection schemes reported"),
            likely(r"\b(phys)?linkstate:\.+(down|init|armed|polling|disabled)"),
            likely(r"\bno (ib|infiniband|rdma|roce) ports?\b.{0,40}\bactive"),
            likely(
                r"\b(ib|infiniband|roce|rdma|mlx\d\w*|hca)\b.{0,30}\b(link|port)s?\b.{0,30}\b(is|are|went|going|gone|state|flap\w*) ?(down|inactive|polling|disabled|detected|lost)?\b.{0,4}(down|flap|inactive|polling|disabled|detected|lost|$)",
            ),
            weak(r"\b(subnet manager|opensm)\b[^.;]{0,60}\b(not (found|running|active)|unreachable|missing|lost|no)\b"),
            likely(r"\bonly \d+ linkup ports? found|'disabled' or 'polling' devices found"),
            likely(r"\bib\w*: multicast join failed\b"),
            weak(r"\bib(p?\d+\S*|s\d+\S*): link is not ready"),
            likely(r"\biberror: failed: |\b_?do_madrpc\b.{0,20}\bfailed|\bibping: .{0,20}failed"),
            likely(r"\bumad\b.{0,120}\bbad status \d+|\bibpanic: .{0,80}\bfailed"),
            likely(r"\bdevice \d+ marked as failed\b|no functional devices left"),
            follows(DOMAIN, r"< ?no supported devices found ?>", Strength::Likely),
            likely(r"\bmlx5_core \S+ \w+: link down\b"),
            likely(r"\bmlx5_\d+\b.{0,20}port \d+.{0,10}(link )?(went )?down\b"),
        ],
        remedies: &[
            run(
                "See the ports and their counters",
                "gdr nics; gdr doctor --group network",
            ),
            hand(
                "Check the cable, the transceiver and the switch port, and for InfiniBand the \
                 subnet manager",
            ),
        ],
        checks: &["port.state", "port.flap", "ib.sm", "klog.nic_health"],
        sources: &[
            "NVIDIA/nccl issue 905; src/transport/net_ib (recovery)",
            "Lightning-AI/lit-llama issue 380",
            "openucx/ucx issue 9727",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "peer-gone",
        kind: Kind::Consequence,
        title: "The other process ended or closed the connection; its own log has the reason",
        why: "When a process ends, its connections end too, and every peer reports an error.",
        patterns: &[
            likely(
                r"connection closed by (remote )?peer|remote process exited or there was a network error",
            ),
            likely(r"\bnixl_err_remote_disconnect\b|nixlremotedisconnecterror"),
            likely(r"\buc[sx]_err_(connection_reset|not_connected|rejected)\b"),
            likely(
                r"socket(progressopt|pollconnect|startconnect)?\b.{0,20}(recv|connect|call to).{0,60}(connection (refused|reset)|broken pipe)",
            ),
            likely(
                r"call to (connect|recv|send)\w* (to \S+ )?(failed|returned).{0,40}(connection (refused|reset|timed out)|software caused connection abort)",
            ),
            likely(
                r"\bconnect to \S+ .{0,20}failed.{0,20}(connection (refused|reset|timed out)|software caused connection abort)",
            ),
            weak(r"\bconnection reset by peer\b|\bbroken pipe\b"),
            weak(ucx_error!("tcp_\\w+|sock")),
            likely(r"remote mooncake session .{0,80} is not alive"),
            likely(r"proxy call to rank \d+ failed"),
            likely(r"\bncclUniqueId from .{0,160}\bgot error\b|\b(recvvalue|recvbytes|sendbytes) failed"),
            likely(
                r"\btcp_ep\b.{0,60}\b(send|recv)\w*\(\d+\) failed|\bunexpected ucx error: (endpoint timeout|connection reset)",
            ),
            // What EFA's device reports about a peer whose process or queue is gone.
            likely(r"\bunexpected status received from remote\b|\b(destination qpn|address handle) (invalid|does not exist)\b|\binvalid address handle on remote\b|\bbad_dest_qpn\b"),
        ],
        remedies: &[
            hand("Find the process that ended first, and explain its log"),
            run(
                "If none ended, check that the right interface is used",
                "NCCL_SOCKET_IFNAME=<netdev>",
            ),
        ],
        checks: &["mgmt.nic"],
        sources: &["ai-dynamo/nixl issue 1983", "NVIDIA/nccl issue 957"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "passed-on",
        kind: Kind::Consequence,
        title: "The library only passes an error on; an earlier line has the reason",
        why: "NCCL's `unhandled system error` and NVSHMEM's `non-zero status: 7` say that \
              something failed, but not what. NCCL names it in a line with WARN.",
        patterns: &[
            likely(r"\bunhandled (system|cuda) error\b|ncclsystemerror|ncclunhandledcudaerror"),
            likely(
                r"nvshmem setup connections failed|\bconnect eps failed|\bep_connect failed|building transport map failed",
            ),
            likely(r"failed to complete transfers after \d+ seconds|\bkvpoll\.(waitingforinput|failed)"),
            likely(r"aws-ofi-nccl initialization failed"),
            likely(r"\bcreate dct share err\b"),
            likely(r"\berror encountered progressing operation=|\bfailed to execute operation \w+ from rank\b"),
            likely(r"\bsocket recv failed while polling for opid\b"),
            likely(r"\brdma_transport\.cpp:\d+\] disable device\b"),
            weak(r"failed to send last_wqe_reached event"),
            weak(r"\b(transfer engine|kv (cache )?transfer|kv connector)\b.{0,40}\bfail"),
            likely(r"\bfail\w* to (init\w*|start|create) (the )?(\w+ )?transfer engine"),
            weak(nvshmem_error!("host/(init|transport|util)/")),
            weak(glog_error!("transfer_(engine|task)\\w*|multi_transport|\\w*client")),
            likely(r"\btransfer_(fail|incomplete)\b|\btransfer failed for task"),
            likely(r"\bdeepep\b.{0,60}(timeout|timed out)"),
            likely(r"\b(nvshmem|nccl|ucp|ucc|mpi)\w* \w* ?(called|used) before\b.{0,40}\binitiali[sz]"),
            weak(r"\bassert\w*\b.{0,60}transfer_(sync|async|read|write)\w*\("),
            likely(r"\bkvtransfererror\b|failed to get kvcache from prefill instance"),
            weak(r"\bnccl error\b|ncclinternalerror|ncclremoteerror"),
        ],
        remedies: &[run(
            "Log more, and explain the whole log",
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV; NVSHMEM_DEBUG=INFO",
        )],
        checks: &[],
        sources: &["NVIDIA/nccl issue 1657; user guide, troubleshooting"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "control-connection",
        title: "The TCP connection through which the ends find each other fails",
        why: "Before using RDMA, the ends exchange addresses over TCP. This fails with the wrong \
              interface, a name that resolves to another address, a firewall, or a peer that was \
              not started or was started with other options.",
        patterns: &[
            sure(r"bootstrap ?:? ?no socket interface found|\bno ip interface found"),
            sure(r"couldn'?t connect to \S+:\d+"),
            likely(
                r"\b(unable to|failed to|cannot|could ?n[o']t) (complete|establish|open|make|set up) (an? |the )?(tcp|socket|rdma|qp|control|bootstrap|peer) connection\b",
            ),
            likely(r"\bcheck failed: (bind|listen|accept|connect)\(|\br(connect|bind|listen|accept|socket) failed\b"),
            sure(r"unable to init the socket connection"),
            sure(r"received packet mismatch, local\.local_nic_path"),
            sure(r"\bconnect\(fd=\d+, dest_addr=\S+\) failed"),
            likely(r"\brdma_cm_event_(rejected|connect_error)\b"),
            likely(r"\brdma_(bind_addr|listen)\b.{0,20}\bfail")
                .unless(r"no such device"),
            likely(r"(unable|failed) to exchange (keys|data between server and clients)"),
            likely(r"couldn'?t read remote address|ethernet_read_keys"),
            likely(r"\brdma[_ ]connect(ion)?( establishment| request)? (error|failed|rejected|refused)\b"),
            likely(r"readerr: err: -?(104|107|110|111|113)\b"),
            // The launchers of MPI jobs.
            likely(r"\bgloo\b.{0,20}\b(connect\w*|accept)\b.{0,20}\bfailed"),
            likely(r"(couldn'?t|failed to|unable to) (read|write|read/write|exchange|get) (the )?(remote|peer)\w* (address|data|keys?|info\w*)"),
            weak(ucx_error!("rdmacm_\\w+|tcp_sockcm\\w*|tcp_listener")),
            weak(nccl_warning!("bootstrap|net_socket|misc/ipcsocket")),
            weak(glog_error!("transfer_metadata\\w*|\\w*rpc_client\\w*|master_client")),
            weak(r"/gloo/transport/\w+/(pair|listener|device)\.cc"),
            likely(r"\b(orte|prte|prrte)\b.{0,40}\b(unable|lost communication|failed)\b"),
            weak(r"\bconnect(ing|ion)?\b.{0,60}\b(connection refused|connection timed out|no route to host)\b")
                .unless(r"\bibv_|\bqp\b|\bah\b|\bdial tcp\b|\bhttps?\b"),
            likely(r"timed out after \d+ seconds waiting for clients"),
            likely(r"\bclient socket has timed out|\btcpstore\b.{0,80}(timed out|timeout|refused)"),
            likely(r"\brpc call failed: connection (timed out|refused|reset)|\bread rpc head failed"),
        ],
        remedies: &[
            run(
                "Choose the interface that reaches the peer",
                "NCCL_SOCKET_IFNAME=<netdev>",
            ),
            run(
                "Check that the peer listens there",
                "nc -zv <peer> <port>; perftest: 18515",
            ),
            hand(
                "If another NIC answers, use the same version of the library and the same list of \
                 NICs on both ends",
            ),
        ],
        checks: &["mgmt.nic"],
        sources: &[
            "NVIDIA/nccl user guide, troubleshooting",
            "linux-rdma/perftest README",
            "kvcache-ai/Mooncake issue 2684",
        ],
        ..Cause::DEFAULT
    },
];

/// Returns what a line says is missing in a topology file.
fn attribute(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let start = text.to_ascii_lowercase().find("attribute ")?;
    let mut words = text.get(start..)?.split_whitespace();
    let (name, node) = (words.nth(1)?, words.nth(2)?);
    Some(format!("the element <{node}> lacks the attribute {name}"))
}
