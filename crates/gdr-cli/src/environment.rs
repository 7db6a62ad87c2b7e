//! Environment variables and files that gdr reads, for its manual pages.

/// A variable or a file, and its purpose.
pub(crate) type Entry = (&'static str, &'static str);

/// Variables that the command reads. docs/mapping.md has the same table, and the library's variables.
pub(crate) const VARIABLES: [Entry; 14] = [
    (
        "GDR_BACKEND",
        "gdrdrv, dmabuf, rm or sim: use only this backend, as --backend; sim simulates a GPU",
    ),
    (
        "GDR_COPY",
        "the copy routine; one that this CPU cannot run is ignored",
    ),
    (
        "GDR_LIBCUDA",
        "the CUDA driver library to load instead of libcuda.so.1",
    ),
    (
        "GDR_LIBIBVERBS",
        "the RDMA library to load instead of libibverbs.so.1",
    ),
    (
        "GDR_LOG",
        "what is logged to standard error, in the syntax of RUST_LOG",
    ),
    (
        "GDR_NICS",
        "of programs under gdr run: the addresses or interfaces of their devices, as --nic",
    ),
    (
        "GDR_VERBS_COUNTERS",
        "of programs under gdr run: a folder for the bytes that each of their devices moved",
    ),
    (
        "GDR_VERBS_LIBRARY",
        "the verbs library of gdr run, gdr check and gdr trace, or its folder, instead of the one beside gdr",
    ),
    (
        "TMPDIR",
        "where gdr trace and gdr check make folders for what processes write",
    ),
    (
        "CUDA_VISIBLE_DEVICES",
        "the GPUs that CUDA shows to this process, and their order",
    ),
    (
        "MLX5_SCATTER_TO_CQE",
        "set to 0 by gdr loopback, unless it is set",
    ),
    ("NO_COLOR", "if not empty, output has no color"),
    ("CLICOLOR_FORCE", "if not empty or 0, output has color"),
    (
        "USER, LOGNAME, SUDO_USER",
        "names that gdr collect --redact replaces",
    ),
];

/// Files of the command itself. docs/collect.md lists what it reads of a node.
pub(crate) const FILES: [Entry; 4] = [
    (
        "/dev/nvidiactl, /dev/nvidiaN",
        "the NVIDIA driver, for backend rm",
    ),
    ("/dev/gdrdrv", "GDRCopy's kernel module, for backend gdrdrv"),
    ("/dev/infiniband/uverbsN", "the kernel RDMA devices"),
    (
        "/var/lib/gdr/fix.journal",
        "what gdr fix --apply did, for gdr fix --undo",
    ),
];
