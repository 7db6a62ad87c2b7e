//! Kernel modules that do not load or do not match.

use super::{follows, hand, likely, run, sure, weak};
use crate::{Cause, Fact, Kind, Strength};
use gdr_doctor::kernel_log::expressions;

/// DKMS message about a module that could not be built; the next line names the module.
const BUILD_FAILED: &str = "bad return status for module build on kernel";
/// Heading in nvidia-smi's output about a GPU's registration with the NVSwitch fabric.
const FABRIC: &str = r"(^|\W)fabric\W*$";

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "peermem-symbols",
        title: "The peer-memory module does not match the running RDMA stack",
        why: "nvidia_peermem (and nv_peer_mem before it) needs ib_register_peer_memory_client \
              from ib_core. If the driver was built without it (in-box RDMA stack), the module's \
              start function only returns -EINVAL. If MLNX_OFED or DOCA was installed or updated \
              after the driver, the symbol's version differs.",
        patterns: &[
            sure(
                r"could not insert '?(nvidia[_-]peermem|nv_peer_mem)'?.*(invalid argument|unknown symbol|exec format)",
            ),
            sure(
                r"(unknown symbol|disagrees about version of symbol).*ib_(un)?register_peer_memory_client",
            ),
            sure(expressions::PEERMEM_SYMBOL),
            likely(
                r"(modprobe|insmod|insert\w*|load\w*).*(nvidia[_-]peermem|nv_peer_mem).*(invalid (argument|parameters)|unknown symbol)",
            ),
            likely(
                r"\bib_(un)?register_peer_memory_client\b.*(\berr\b|undefined|not found|unknown)",
            ),
            likely(r"needs unknown symbol ib_(un)?register_peer_memory_client"),
            sure(r"\b(nv_peer_mem|nvidia-peermem)\.c:\d+:\d+: error:"),
        ],
        remedies: &[
            run(
                "Use dma-buf instead, for which the open driver needs no peer-memory module",
                "install nvidia-open (driver 515 or later), kernel 5.12 or later; \
                 NCCL_DMABUF_ENABLE=1",
            ),
            run(
                "Or rebuild the driver's modules against the installed RDMA stack, then reboot",
                "dkms status; dkms remove nvidia/<version> --all && dkms install nvidia/<version>",
            ),
            hand("Install MLNX_OFED or DOCA first, and the NVIDIA driver after it"),
        ],
        checks: &[
            "peermem.symbol",
            "klog.peermem_symbol",
            "peermem.loaded",
            "ofed.flavour",
        ],
        sources: &[
            "nvidia-peermem.c of open-gpu-kernel-modules",
            "Mellanox/nv_peer_memory issues 28, 63, 84, 113, 116",
            "NVIDIA/gpu-operator issue 2868",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "peermem-callback",
        title: "An old peer-memory module has a race when memory is freed",
        why: "A callback frees pages that the driver has already reclaimed: freeing GPU memory \
              races with deregistering it. This happens with drivers before R510, with some R470 \
              releases, and with nv_peer_mem.",
        patterns: &[
            sure(r"(nvidia.peermem|nv_peer_mem|nv_get_p2p_free_callback).*invalid page_table"),
            likely(
                r"nv_get_p2p_free_callback\+0x|\bnv_get_p2p_free_callback\b.{0,40}\binvalid dma_mapping",
            ),
        ],
        remedies: &[
            hand("Install NVIDIA's driver 510 or later, or a late 470 release"),
            run(
                "Or use dma-buf, which has no such callback",
                "NCCL_DMABUF_ENABLE=1",
            ),
        ],
        checks: &["peermem.age", "peermem.conflict", "klog.peermem_context"],
        sources: &[
            "Mellanox/nv_peer_memory issues 53, 112, 120",
            "NVIDIA/nccl issue 1474",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "peermem-deadlock",
        title: "nv_peer_mem and MLNX_OFED have deadlocked",
        why: "In an MLNX_OFED without the fix for 2696789, the peer-direct patch takes two locks \
              in opposite orders. nv_peer_mem 1.2 and later need an MLNX_OFED with the fix (5.1 \
              or later); 1.1 is the last version for 4.9 LTS.",
        patterns: &[
            follows(
                r"blocked for more than \d+ seconds|possible circular locking dependency",
                r"\+0x[0-9a-f]+/0x[0-9a-f]+ \[nv_peer_mem\]",
                Strength::Likely,
            ),
            likely(
                r"(nv_peer_mem|peer.direct)\b.{0,80}\b(deadlock|lock inversion)|\b(deadlock|lock inversion)\b.{0,80}\b(nv_peer_mem|peer.direct)|\b2696789\b",
            ),
        ],
        remedies: &[
            run(
                "Use the driver's own module, which is part of 470 and later",
                "modprobe -r nv_peer_mem; gdr peermem enable",
            ),
            hand(
                "Or install an MLNX_OFED 5.1 or later whose release notes list the fix for \
                 2696789",
            ),
        ],
        checks: &["peermem.age", "peermem.conflict", "ofed.flavour"],
        sources: &["Mellanox/nv_peer_memory README: Installation"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "peermem-context",
        kind: Kind::Harmless,
        title: "The peer-memory module skipped a callback for memory that was already deregistered",
        why: "The module prints `detected invalid context, skipping further processing` when it \
              detects the race of freeing and deregistering (NVIDIA's bug 4272659). No data is \
              lost. Drivers from 560.35.03 on no longer print it.",
        patterns: &[sure(
            r"(nvidia.peermem|nv_peer_mem|nv_get_p2p_free_callback).*invalid context",
        )],
        remedies: &[hand(
            "Nothing has to be done; driver 560.35.03 and later, and dma-buf, do not print it",
        )],
        checks: &["klog.peermem_context"],
        sources: &["Mellanox/nv_peer_memory issue 120"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "unsupported-module",
        title: "This distribution refuses modules that it does not support",
        why: "SUSE's kernels and modprobe refuse modules that are not marked `supported`, such as \
              NVIDIA's, unless a setting allows them.",
        patterns: &[
            sure(r"\ballow_unsupported_modules\b"),
            sure(r"module '?\S+'? is unsupported|module \S+ not supported by"),
            sure(r"\bunsupported module\b.{0,60}(not loaded|refus|taint)"),
        ],
        remedies: &[
            run(
                "Allow unsupported modules, then load the module again",
                "echo 'allow_unsupported_modules 1' > /etc/modprobe.d/10-unsupported-modules.conf",
            ),
            hand("Or install packages that the distribution signs and supports"),
        ],
        checks: &["modules.lockdown"],
        sources: &["SUSE: unsupported kernel modules; modprobe.d(5)"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "kernel-crash",
        title: "The kernel has crashed",
        why: "After an oops, a BUG or a fault in a GPU or NIC driver, the driver's locks and \
              lists may be corrupt: transfers hang, and modules cannot be unloaded. After a crash \
              elsewhere, the rest of the machine cannot be trusted either.",
        patterns: &[
            follows(
                expressions::CRASH,
                expressions::DRIVER_FRAME,
                Strength::Sure,
            ),
            sure(
                r"\b(kasan|ubsan|kcsan): .{0,80}\+0x[0-9a-f]+/0x[0-9a-f]+ \[(nvidia|mlx[45]_|ib_|rdma_|bnxt_re|irdma|efa|gdrdrv)",
            ),
            sure(
                r"\brip: ?\S*[ :]\S+\+0x[0-9a-f]+/0x[0-9a-f]+ \[(nvidia|mlx[45]_|ib_|rdma_|gdrdrv)",
            ),
            // Without a function of such a driver, the crash is somewhere else.
            weak(concat!(
                r"\boops: [0-9a-f]{4,}|\bkernel bug at |\binternal error: oops|\bgeneral protection fault",
                r"|\bunable to handle (kernel )?(null pointer|page fault|paging request)",
            )),
        ],
        detail: Some(module),
        remedies: &[
            hand("Reboot, then update the driver or the kernel that the trace names"),
            hand("Report it to the driver's vendor with the whole log"),
        ],
        checks: &["klog.crash"],
        sources: &["Linux Documentation/admin-guide/bug-hunting.rst"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "kernel-warning",
        title: "The kernel has warned of a fault in a GPU or NIC driver",
        why: "The driver met a state that its authors did not expect and continued, or a program \
              waits in the driver for something that does not happen. What the driver was doing \
              may hang or fail later.",
        patterns: &[
            follows(
                expressions::KERNEL_WARNING,
                expressions::DRIVER_FRAME,
                Strength::Likely,
            ),
            follows(
                r"\btask \S+ blocked for more than \d+ seconds",
                expressions::DRIVER_FRAME,
                Strength::Likely,
            ),
            // `+` marks a module that is being loaded.
            follows(
                expressions::KERNEL_WARNING,
                r"\bmodules linked in:.* (nvidia|mlx[45]_|ib_|rdma_|bnxt_re|irdma|efa|gdrdrv)\w*\([a-z]*\+\)",
                Strength::Likely,
            ),
        ],
        detail: Some(module),
        remedies: &[
            hand("Update the driver that the trace names; reboot if something hangs"),
            hand("Report it to the driver's vendor with the whole log"),
        ],
        checks: &["klog.crash"],
        sources: &["Linux Documentation/admin-guide/bug-hunting.rst"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gdrdrv-missing",
        title: "GDRCopy's kernel module is not loaded, or not available in this container",
        why: "GDRCopy's libgdrapi opens /dev/gdrdrv. The device is missing if the module is not \
              loaded on the host, if the container was not given the device, or if the module was \
              built for the other flavour of NVIDIA's driver.",
        patterns: &[
            sure(r"is gdrdrv driver installed and loaded"),
            sure(r"unable to open gdr driver"),
            sure(r"transport 'gdr_copy' is not available"),
            sure(r"\bgdr_open\b.{0,40}(fail|error|null)"),
            sure(r"gdrcopy open call failed"),
            sure(r"gdrdrv is not installed or loaded"),
            sure(r"\berror getting the gdrdrv driver version\b"),
            sure(r"gdrdrv.{0,10}built for (proprietary|opensource|open)"),
            sure(r"gdrcopy requires gdrdrv or"),
            sure(r"failed to open gdr copy|failed to open gdr handle"),
            likely(r"/dev/gdrdrv.*(no such|denied|not permitted)"),
            likely(r"module gdrdrv not found"),
            weak(r"could not insert (module )?\S*gdrdrv"),
            weak(r"\b(gdrdrv|gdrcopy)\b[^.;]{0,60}\b(fail\w*|error|unable|cannot)\b")
                .unless(r"nvidia_p2p_get_pages"),
            weak(r"\bgdr_?copy\b.{0,40}(could not|failed|error|disabled|unavailable|not enabled)"),
        ],
        remedies: &[
            run(
                "Use gdr's libgdrapi.so.2, which maps GPU memory without a module",
                "LD_LIBRARY_PATH=<directory of gdr's libgdrapi.so.2>",
            ),
            run("Or load the module on the host", "modprobe gdrdrv"),
            run(
                "Give the container the device",
                "docker run --device=/dev/gdrdrv",
            ),
            hand(
                "Rebuild the module for the flavour of NVIDIA's driver that is loaded (open or \
                 proprietary)",
            ),
        ],
        checks: &["gdrdrv"],
        sources: &["NVIDIA/gdrcopy issues 72, 138, 251, 334"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "fabric-manager",
        title: "The NVSwitch fabric is not up: the fabric manager is missing or has another \
                version",
        why: "On machines with NVSwitches, CUDA returns 802 (system not yet initialized) until a \
              fabric manager with exactly the driver's version has set up the fabric.",
        patterns: &[
            sure(r"system not yet initialized"),
            sure(r"\bcuda\S*.{0,40}\b(error|returned|code|status)[ =:]*802\b"),
            sure(r"\berror[ =:]*802\b.{0,40}system"),
            sure(r"fabric state is not ready|fabric is not (ready|initialized)"),
            sure(r"cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY"),
            sure(r"request to query nvswitch device information.{0,60}failed"),
            // nvidia-smi -q: what each GPU says of its registration.
            follows(
                FABRIC,
                r"\bstatus +: +(insufficient resources|unknown error|.*fail)",
                Strength::Sure,
            ),
            follows(
                FABRIC,
                r"\bstate +: +(in progress|not started)",
                Strength::Likely,
            ),
            sure(r"\bib_umad\b.{0,80}(not (been )?loaded|not found|missing|no such|unavailable)"),
            likely(r"\bnvlsm\b.{0,80}(fail|error|not (running|found|installed))"),
            likely(
                r"fabric ?manager.{0,60}(fail|not running|mismatch|inactive|do(es)? ?n[o']t match|error while)",
            ),
        ],
        remedies: &[
            run(
                "Start the fabric manager that has the driver's version",
                "systemctl enable --now nvidia-fabricmanager",
            ),
            hand(
                "If it fails, compare its package's version with the driver's: all parts must \
                 have the same version",
            ),
            hand("This machine has no NVSwitches: remove the package or disable the service")
                .only(&[Fact::NoNvSwitch]),
            run(
                "On B200 and B300 baseboards, load the RDMA stack and install the subnet manager \
                 NVLSM",
                "modprobe ib_umad; modprobe mlx5_ib; apt install nvlsm   # then start it again",
            ),
        ],
        facts: &[(
            Fact::NoNvSwitch,
            "The driver found no NVSwitch to manage. GPUs that are connected by PCIe or by NVLink \
             bridges do not need a fabric manager, and CUDA works without it.",
        )],
        harmless: &[Fact::NoNvSwitch],
        checks: &["fabricmanager"],
        sources: &[
            "NVIDIA/gpu-operator issue 610",
            "Azure/azhpc-images pull request 506",
            "pytorch/pytorch issue 35710",
            "NVIDIA/gpu-operator issues 1043, 2781",
            "spectrocloud/CanvOS pull request 700",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "fabric-restarted",
        title: "The fabric manager was restarted while GPUs were in use, and NVSwitch multicast \
                no longer works",
        why: "GPUs keep the fabric state that they were set up with. After a restart of the \
              fabric manager (often by a package upgrade) it no longer matches, and NVLS, which \
              binds multicast memory, fails with `invalid argument` although plain NVLink works.",
        patterns: &[
            sure(r"fabric_state_out_of_sync|fabric state cached by the driver is out of sync"),
            sure(r"failed to bind nvlink sharp|\bnvls\b.{0,60}multicast.{0,80}(fail|error)"),
            sure(r"transport/nvls\.cc:\d+.{0,40}cuda failure (1|401|'invalid argument)"),
            likely(
                r"\bcumulticast(create|binddevice|addevice|bindmem)\w*\b.{0,80}(fail|error|invalid)",
            ),
            weak(nccl_warning!("transport/nvls|transport/multicast")),
            weak(nvshmem_error!("host/team/\\w*nvls")),
            follows(
                r"\b(_symmetricmemory|symm_mem\w*)\.rendezvous\b",
                r"cuda driver error: invalid argument",
                Strength::Likely,
            ),
        ],
        remedies: &[
            run(
                "Reset all GPUs while no program uses them, or reboot",
                "systemctl stop <what uses GPUs>; nvidia-smi --gpu-reset",
            ),
            run(
                "Until then, turn multicast off",
                "NCCL_NVLS_ENABLE=0; NVSHMEM_DISABLE_NVLS=1",
            ),
            hand("Keep unattended upgrades from restarting nvidia-fabricmanager"),
        ],
        checks: &["klog.fabric", "fabricmanager"],
        sources: &["NVIDIA/nvshmem issue 40", "NVIDIA/nccl issues 1488, 1562"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "lockdown",
        title: "The kernel is locked down (Secure Boot) and refuses writes to PCI registers and \
                unsigned modules",
        why: "With Secure Boot, many kernels run in the lockdown mode `integrity`. Then not even \
              root may write to config space, and modules need a signature that the machine \
              trusts.",
        patterns: &[
            sure(r"setpci.*operation not permitted"),
            sure(expressions::LOCKDOWN_PCI),
            sure(expressions::MODULE_REFUSED),
            sure(r"write counter to semaphore.*operation not permitted"),
            likely(r"loading of (unsigned )?module.*(rejected|denied)"),
            likely(r"lockdown: .{0,60}(unsigned module|restricted)"),
        ],
        remedies: &[
            hand(
                "Make the setting in the firmware's setup or on the kernel's command line \
                  instead of by setpci",
            ),
            run(
                "Sign the module with a key that the machine trusts",
                "mokutil --import <key.der>",
            ),
            hand("Or turn Secure Boot off in the firmware's setup"),
        ],
        checks: &["modules.lockdown", "klog.lockdown"],
        sources: &[
            "kernel: Documentation of lockdown, security/lockdown/lockdown.c",
            "DAQIRI documentation: setpci: Operation not permitted",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "peermem-not-found",
        title: "The peer-memory module is not installed for the running kernel",
        why: "nvidia_peermem comes with NVIDIA's driver since release 470 and is built with it \
              for one kernel. It is missing if the driver was not built for a newly installed \
              kernel, if the distribution packages it separately, with older drivers, and in \
              containers, which use the host's modules.",
        patterns: &[
            sure(r"module \S*(nvidia[_-]peermem|nv_peer_mem)\S* not found"),
            sure(
                r"(nvidia[_-]peermem|nv_peer_mem)(\.ko)?\b.{0,40}(no such file or directory|not found in directory)",
            ),
            follows(
                BUILD_FAILED,
                r"/dkms/(nv_peer_mem|nvidia-peer-memory)\S*/make\.log",
                Strength::Likely,
            ),
        ],
        remedies: &[
            run(
                "Build the driver's modules for this kernel",
                "dkms autoinstall -k $(uname -r); depmod -a",
            ),
            run(
                "Or register by dma-buf, which needs no such module, with the open driver and \
                 kernel 5.12 or later",
                "NCCL_DMABUF_ENABLE=1; perftest: --use_cuda_dmabuf",
            ),
            hand("In a container, load the module on the host"),
        ],
        checks: &["peermem.loaded", "dmabuf.gpu"],
        sources: &[
            "NVIDIA driver README: GPUDirect RDMA peer memory client",
            "Mellanox/nv_peer_memory issue 46",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "rdma-driver",
        title: "The RDMA driver's modules are not loaded, or were not built for the running \
                kernel",
        why: "mlx5_ib, ib_core and ib_uverbs come with the kernel, or with MLNX_OFED or DOCA, \
              which are built for one kernel. They do not load after a kernel update or a failed \
              build, or if modules of both are mixed. Then there is no RDMA device although the \
              card is present.",
        patterns: &[
            sure(
                r"\b(failed loading kernel|could not insert|failed to (load|insert)) (module )?'?(mlx\w+|ib_\w+|rdma_\w+|irdma|bnxt_re|efa)\b",
            ),
            sure(r"\bmodule (mlx\w+|ib_\w+|rdma_\w+|irdma|bnxt_re|efa) (does not exist|not found)"),
            likely(r"loading hca driver\b.{0,40}\[ ?fail"),
            likely(
                r"\b(mlnx_ofed|mlnx-ofed|doca-ofed|mofed)\w*\b.{0,80}\b(fail(ed|ure|s to)|not installable|error)\b",
            ),
            likely(r"\bfail\w*\b.{0,40}\b(mlnx_ofed|mlnx-ofed|doca-ofed|mofed)"),
            follows(
                BUILD_FAILED,
                r"/dkms/(mlnx-ofed-kernel|iser|srp|isert|knem|xpmem|irdma|bnxt_re|efa)/\S*/make\.log",
                Strength::Likely,
            ),
        ],
        remedies: &[
            run(
                "See which modules there are, and which stack they come from",
                "modinfo mlx5_ib ib_core | grep -E 'filename|version'; ofed_info -s; dkms status",
            ),
            run(
                "Build the driver for this kernel",
                "mlnxofedinstall --add-kernel-support; or: dkms autoinstall -k $(uname -r)",
            ),
            hand("Or boot the kernel that it was built for, or use the kernel's own driver"),
        ],
        checks: &["nic.driver", "ofed.flavour", "dev.nodes"],
        sources: &[
            "Mellanox/doca-driver-build issue 52",
            "NVIDIA MLNX_OFED user manual: installation",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "driver-symbols",
        title: "A module was built against another version of NVIDIA's driver or of the kernel",
        why: "gdrdrv, nvidia_peermem and nvidia_fs call the driver's nvidia_p2p_* functions. \
              After an update of the driver, the versions of these symbols differ. They are \
              unknown before the driver is loaded, or if a module needs a GPL-only symbol and the \
              driver is proprietary.",
        patterns: &[
            sure(expressions::DRIVER_SYMBOL),
            sure(r"(unknown symbol|disagrees about version of symbol) nvidia_p2p_\w+"),
            sure(r"failing symbol_get of non-gplonly symbol nvidia_p2p_\w+"),
            sure(
                r"(gdrdrv|nvidia.peermem|nv_peer_mem|nvidia.fs): version magic '.{1,80}' should be",
            ),
            sure(
                r"(gdrdrv|nvidia.peermem|nv_peer_mem|nvidia.fs): module (using|uses).{0,60} from proprietary module",
            ),
            likely(
                r"could not insert (module )?\S*(gdrdrv|nvidia.fs)\S*: (invalid (argument|parameters|module format)|unknown symbol|exec format)",
            ),
        ],
        remedies: &[
            run(
                "Build the module against the loaded driver, then load it",
                "dkms status; dkms remove <module>/<version> --all; dkms install <module>/<version>",
            ),
            hand(
                "Load nvidia before it, and use the driver flavour (open or proprietary) that it \
                 was built for",
            ),
            run(
                "Or do without gdrdrv; gdr's libgdrapi.so.2 needs no module",
                "LD_LIBRARY_PATH=<directory of gdr's libgdrapi.so.2>",
            ),
        ],
        checks: &["klog.driver_symbol", "gdrdrv", "nvidia.version"],
        sources: &[
            "NVIDIA/gdrcopy issue 13",
            "NVIDIA/gds-nvidia-fs issues 34, 48",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "driver-mismatch",
        title: "NVIDIA's driver library and kernel module differ, or CUDA needs a newer driver",
        why: "The driver's packages were updated while the old module stayed loaded, or the \
              container has libraries from another driver. NVML and CUDA then refuse to start. \
              CUDA also refuses if the driver is older than the program's toolkit requires.",
        patterns: &[
            sure(r"driver/library version mismatch"),
            sure(expressions::API_MISMATCH),
            sure(r"nvml library version|NVML_ERROR_LIB_RM_VERSION_MISMATCH"),
            sure(r"cudaErrorSystemDriverMismatch|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
            likely(r"system has unsupported display driver / cuda driver combination"),
            sure(r"cuda driver version is insufficient|nvidia driver on your system is too old"),
            sure(r"forward compatibility was attempted on non supported hw"),
        ],
        remedies: &[
            run(
                "Load the new module: end the programs that use the GPUs first, or reboot",
                "rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia_peermem nvidia; modprobe nvidia",
            ),
            hand(
                "In a container, use the libraries of the host's driver (NVIDIA container \
                 toolkit)",
            ),
            hand(
                "If the driver is too old, install a newer driver, or use an image with an older \
                  CUDA",
            ),
        ],
        checks: &["nvidia.userspace_match", "klog.driver_mismatch"],
        sources: &["NVIDIA driver README: common problems"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "module-in-use",
        title: "A kernel module cannot be unloaded: another module or a program uses it",
        why: "nvidia_peermem, gdrdrv and nvidia_fs use the NVIDIA driver and ib_core; monitors \
              and daemons keep the GPU's device nodes open. A driver cannot be replaced until all \
              of them have ended, and a restart of the RDMA stack stops half-way.",
        patterns: &[
            likely(r"\bcurrently (in use by another process|being used by one or more)"),
            sure(r"module (ib_|rdma_|mlx|nvidia|gdrdrv|nv_peer)\S* is in use\b"),
            sure(r"could not unload nvidia driver kernel modules"),
        ],
        remedies: &[
            run(
                "Unload the dependent modules first",
                "rmmod gdrdrv; rmmod nvidia_fs; rmmod nvidia_peermem",
            ),
            run("See which programs use the GPUs", "fuser -v /dev/nvidia*"),
            run(
                "Stop services that would start again",
                "systemctl stop nvidia-persistenced nvidia-dcgm nvidia-fabricmanager",
            ),
            hand(
                "In Kubernetes, drain the node, and restart the GPU and network operators one \
                 after the other",
            ),
        ],
        checks: &["peermem.loaded", "gdrdrv"],
        sources: &[
            "Mellanox/doca-driver-build pull request 481",
            "NVIDIA/gpu-driver-container pull request 869",
        ],
        ..Cause::DEFAULT
    },
    Cause {
        id: "module-taints",
        kind: Kind::Harmless,
        title: "A module without a known signature was loaded; nothing was refused",
        why: "`module verification failed` only marks the kernel as tainted. The kernel refuses \
              such a module only with Secure Boot or module.sig_enforce, and then says so.",
        patterns: &[sure(expressions::MODULE_TAINTS)],
        remedies: &[hand("Nothing has to be done")],
        checks: &["klog.lockdown"],
        sources: &["Linux kernel/module/signing.c"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gpu-driver",
        title: "The NVIDIA driver is not loaded, or this process may not use it",
        why: "Without the driver, or without its device nodes in a container, GPU memory cannot \
              be used. In a container, `Unknown Error` often means that a cgroup change (systemd \
              daemon-reload) has removed the devices.",
        patterns: &[
            sure(r"couldn'?t communicate with the nvidia driver"),
            sure(r"nvrm: no nvidia gpu found"),
            likely(
                r"failed to initialize nvml: (unknown error|insufficient permissions|driver not loaded|not found)",
            ),
            likely(r"could not select device driver .{0,40}\bgpu"),
            sure(r"\bnvml error: driver not loaded"),
            likely(
                r"\bcalling nvml\.?\w*: |\bunhealthy devices? nvidia\.com/|\bunresolvable cdi devices? \S*nvidia",
            ),
            likely(
                r"\bnvml\b.{0,40}\berror_(library_not_found|driver_not_loaded|no_permission|uninitialized|unknown)\b",
            ),
            sure(
                r"cuda driver initialization failed|no cuda gpus are available|found no nvidia driver",
            ),
            likely(r"\bno devices were found\b"),
            sure(r"\bcu(da)?[a-z]\w*\b.{0,60}\binitialization error\b"),
            weak(nccl_warning!("misc/cudawrap|misc/nvmlwrap")),
            weak(r"nvidia-container-cli: .{0,20}error"),
            likely(r"no cuda-capable device is detected|\bcuda unknown error\b"),
            likely(r"nvidia-container-cli: .{0,60}(\bnvml error|unknown device)"),
            likely(
                r"device\(s\) is/are busy or unavailable|\bcuda_?error_?devices?_?unavailable\b",
            ),
            follows(
                BUILD_FAILED,
                r"/dkms/nvidia/\S*/make\.log",
                Strength::Likely,
            ),
            sure(r"load library failed: libnvidia-ml\.so"),
            sure(
                r"\bcuinit\b.{0,30}fail\w*.{0,40}(cuda_error_no_device|cuda_error_not_initialized|\b100\b)",
            ),
        ],
        remedies: &[
            run(
                "See what the driver reports",
                "modprobe nvidia; dmesg | grep -i nvrm",
            ),
            hand("In a container, start it again with the GPUs (docker run --gpus all)"),
        ],
        checks: &["gpu.driver", "gpu.present", "dev.nvidia"],
        sources: &[
            "NVIDIA driver README",
            "NVIDIA/nvidia-container-toolkit: troubleshooting",
        ],
        ..Cause::DEFAULT
    },
];

/// Returns the module of a function in a crash report.
fn module(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let (function, rest) = text.rsplit_once('[')?;
    let name = rest.split_once(']')?.0;
    // `Oops: 0002 [#1]` names no module.
    function.contains("+0x").then_some(())?;
    Some(format!("in the module {}", name.split_whitespace().next()?))
}
