//! The installed libraries of CUDA, RDMA and the layers above, and the targets of their links, which contain their
//! versions.

use std::fs;

use crate::source::{Datum, MAX_ENTRIES};

/// The directories where distributions and NVIDIA install them.
const DIRECTORIES: [&str; 11] = [
    "/etc/libibverbs.d",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/libibverbs",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/libibverbs",
    "/usr/lib64",
    "/usr/lib64/libibverbs",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/nvidia/lib64",
];

/// Prefixes of their names.
const NAMES: [&str; 14] = [
    "libcuda.so",
    "libcudart.so",
    "libefa",
    "libgdrapi.so",
    "libibverbs.so",
    "libirdma",
    "libmlx",
    "libbnxt_re",
    "libnccl",
    "libnvidia-ml.so",
    "libnvshmem",
    "librdmacm.so",
    "libucp.so",
    "libucs.so",
];

pub(super) fn read() -> Datum<Vec<u8>> {
    let mut lines = Vec::new();
    for directory in DIRECTORIES {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        for entry in entries.take(MAX_ENTRIES).flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".driver") && !NAMES.iter().any(|start| name.starts_with(start)) {
                continue;
            }
            let link = match fs::read_link(entry.path()) {
                Ok(target) => format!(" -> {}", target.to_string_lossy()),
                Err(_) => String::new(),
            };
            lines.push(format!("{directory}/{name}{link}\n"));
        }
    }
    lines.sort();
    Ok(lines.concat().into_bytes())
}
