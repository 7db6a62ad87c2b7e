//! Kernel modules that do not load or do not fit.

use super::{hand, likely, run, sure, weak};
use crate::check::CheckId;
use crate::explain::Cause;

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "peermem-symbols",
        title: "The peer-memory module does not match the RDMA stack that is running",
        why: "nvidia_peermem (and nv_peer_mem before it) needs ib_register_peer_memory_client of \
              ib_core. Where the driver was built without it (in-box RDMA stack), the module's \
              start is compiled to `return -EINVAL`; where MLNX_OFED or DOCA was installed or \
              updated after the driver, the symbol's version differs.",
        patterns: &[
            sure(
                r"could not insert '?(nvidia[_-]peermem|nv_peer_mem)'?.*(invalid argument|unknown symbol|exec format)",
            ),
            sure(
                r"(nvidia[_-]peermem|nv_peer_mem)\S*:? .*(unknown symbol|disagrees about version of symbol)",
            ),
            sure(
                r"(unknown symbol|disagrees about version of symbol).*ib_(un)?register_peer_memory_client",
            ),
            likely(
                r"(modprobe|insmod|inserting).*(nvidia[_-]peermem|nv_peer_mem).*invalid (argument|parameters)",
            ),
            likely(r"ib_(un)?register_peer_memory_client.*(err|-22|undefined|not found)"),
        ],
        remedies: &[
            run(
                "Use dma-buf instead: the open driver needs no peer-memory module",
                "install nvidia-open (driver 515 or later), kernel 5.12 or later; \
                 NCCL_DMABUF_ENABLE=1",
            ),
            run(
                "Or rebuild the driver's modules against the RDMA stack that is installed now, \
                 then reboot",
                "dkms status; dkms remove nvidia/<version> --all && dkms install nvidia/<version>",
            ),
            hand(
                "Install MLNX_OFED or DOCA first and the NVIDIA driver after it, not the other way",
            ),
        ],
        checks: &[
            CheckId("peermem.symbol"),
            CheckId("peermem.loaded"),
            CheckId("ofed.flavour"),
        ],
        sources: &[
            "nvidia-peermem.c of open-gpu-kernel-modules",
            "Mellanox/nv_peer_memory issues 28, 63, 84, 113, 116",
            "NVIDIA/gpu-operator issue 2868",
        ],
    },
    Cause {
        id: "peermem-callback",
        title: "An old peer-memory module loses a race when memory is freed",
        why: "nv_get_p2p_free_callback finds a context that is gone: a race between freeing GPU \
              memory and deregistering it, in drivers before R510 and some of R470, and in \
              nv_peer_mem.",
        patterns: &[
            sure(r"nv_get_p2p_free_callback.*(invalid|error)"),
            sure(r"nv_get_p2p_free_callback"),
            likely(r"(peermem|nv_peer_mem).*invalid (context|page_table)"),
        ],
        remedies: &[
            hand("Upgrade the NVIDIA driver (and MLNX_OFED) to a release after the mend"),
            run(
                "Or use dma-buf, which has no such callback",
                "NCCL_DMABUF_ENABLE=1",
            ),
        ],
        checks: &[CheckId("peermem.age"), CheckId("peermem.conflict")],
        sources: &[
            "Mellanox/nv_peer_memory issues 53, 112, 120",
            "NVIDIA/nccl issue 1474",
        ],
    },
    Cause {
        id: "gdrdrv-missing",
        title: "GDRCopy's kernel module is not there, or not in this container",
        why: "libgdrapi of GDRCopy opens /dev/gdrdrv. It is absent where the module is not loaded \
              on the host, where the container was not given the device, or where the module was \
              built for the other flavour of NVIDIA's driver.",
        patterns: &[
            sure(r"is gdrdrv driver installed and loaded"),
            sure(r"unable to open gdr driver"),
            sure(r"transport 'gdr_copy' is not available"),
            sure(r"gdr_open.*(fail|error|returned|null)"),
            sure(r"gdrdrv.*built for (proprietary|opensource|open)"),
            likely(r"/dev/gdrdrv.*(no such|denied|not permitted)"),
            likely(r"(modprobe|insmod|could not insert).*gdrdrv"),
            likely(r"gdr_?copy.*(could not|failed|error|disabled|unavailable)"),
        ],
        remedies: &[
            run(
                "Use a libgdrapi.so.2 that needs no module: gdr's own maps GPU memory \
                 without one",
                "LD_LIBRARY_PATH=<directory of gdr's libgdrapi.so.2>",
            ),
            run("Or load the module on the host", "modprobe gdrdrv"),
            run(
                "Give it to the container",
                "docker run --device=/dev/gdrdrv",
            ),
            hand(
                "Rebuild it for the flavour of NVIDIA driver that is loaded (open or proprietary)",
            ),
        ],
        checks: &[CheckId("gdrdrv")],
        sources: &["NVIDIA/gdrcopy issues 72, 138, 251, 334"],
    },
    Cause {
        id: "fabric-manager",
        title: "The NVSwitch fabric is not up: the fabric manager is absent or of another version",
        why: "On machines with NVSwitches CUDA answers 802 (system not yet initialized) until the \
              fabric manager of exactly the driver's version has set up the fabric.",
        patterns: &[
            sure(r"system not yet initialized"),
            sure(r"cuda\S*.{0,40}\b802\b"),
            sure(r"cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY"),
            likely(r"fabric ?manager.*(fail|not running|mismatch|inactive|error)"),
        ],
        remedies: &[
            run(
                "Start the fabric manager of the driver's version",
                "systemctl enable --now nvidia-fabricmanager",
            ),
            hand(
                "If it fails, compare its package's version with the driver's: all parts must agree",
            ),
        ],
        checks: &[CheckId("fabricmanager")],
        sources: &[
            "pytorch/pytorch issue 35710",
            "NVIDIA/gpu-operator issue 1043",
        ],
    },
    Cause {
        id: "lockdown",
        title: "The kernel is locked down (Secure Boot): it refuses to write PCI registers or to \
                load unsigned modules",
        why: "With Secure Boot many kernels run in lockdown mode `integrity`, in which not even \
              root may write config space, and in which modules need a signature that the \
              machine trusts.",
        patterns: &[
            sure(r"setpci.*operation not permitted"),
            sure(r"lockdown: .*(direct pci access|unsigned module|restricted)"),
            sure(r"write counter to semaphore.*operation not permitted"),
            sure(r"key was rejected by service"),
            sure(r"required key not available"),
            likely(r"loading of (unsigned )?module.*(rejected|denied)"),
            weak(r"module verification failed"),
        ],
        remedies: &[
            hand("Set what setpci would in the firmware's setup or on the kernel's command line"),
            run(
                "Sign the module with a key that the machine trusts",
                "mokutil --import <key.der>",
            ),
            hand("Or switch Secure Boot off in the firmware's setup"),
        ],
        checks: &[CheckId("modules.lockdown")],
        sources: &[
            "kernel: Documentation of lockdown, security/lockdown/lockdown.c",
            "DAQIRI documentation: setpci: Operation not permitted",
        ],
    },
];
