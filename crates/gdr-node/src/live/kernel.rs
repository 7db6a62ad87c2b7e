//! Excerpts of the kernel's symbols, modules and configuration, whose files are too long to keep whole.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use flate2::read::GzDecoder;

use super::LiveRoot;
use crate::source::{Absence, Datum, Errno, MAX_FILE, Source};

/// Symbols by which the kernel's RDMA stack and NVIDIA's driver connect.
const SYMBOLS: [&str; 7] = [
    "dma_buf_dynamic_attach",
    "ib_register_peer_memory_client",
    "ib_umem_dmabuf_get",
    "ib_unregister_peer_memory_client",
    "nvidia_p2p_dma_map_pages",
    "nvidia_p2p_get_pages",
    "nvidia_p2p_get_pages_persistent",
];

/// Prefixes of module file names: `nvidia-peermem.ko.zst`.
const MODULES: [&str; 14] = [
    "bnxt_re", "efa", "erdma", "gdrdrv", "ib_", "ionic", "irdma", "iw_", "mlx", "nouveau", "nv_",
    "nvidia", "rdma_", "siw",
];

/// Prefixes of option names.
const OPTIONS: [&str; 14] = [
    "AMD_IOMMU",
    "ARCH_HAS_CC_PLATFORM",
    "DMABUF_",
    "DMA_SHARED_BUFFER",
    "INFINIBAND",
    "INTEL_IOMMU",
    "IOMMU_DEFAULT",
    "MLX5_",
    "MODULE_SIG",
    "PCIEAER",
    "PCI_P2PDMA",
    "RDMA_",
    "SECURITY_LOCKDOWN",
    "ZONE_DEVICE",
];

/// The longest file that is searched: `/proc/kallsyms` of a large kernel has some 20 MB.
const MOST_BYTES: u64 = 64 << 20;

pub(super) fn uname(root: &dyn Source) -> Datum<Vec<u8>> {
    let machine = Ok(std::env::consts::ARCH.to_owned());
    let lines = [
        ("sysname", root.text("/proc/sys/kernel/ostype")),
        ("nodename", root.text("/proc/sys/kernel/hostname")),
        ("release", root.text("/proc/sys/kernel/osrelease")),
        ("version", root.text("/proc/sys/kernel/version")),
        ("machine", machine),
    ];
    let known = lines
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name} {}\n", value.ok()?)));
    Ok(known.collect::<String>().into_bytes())
}

pub(super) fn symbols() -> Datum<Vec<u8>> {
    matching("/proc/kallsyms", |line| {
        // `ffffffffc0a1b2c0 T ib_register_peer_memory_client<tab>[ib_core]`
        let mut words = line.split_whitespace().skip(2);
        let name = words.next().filter(|name| SYMBOLS.contains(name))?;
        let module = words.next().map(|module| format!(" {module}"));
        Some(format!("{name}{}", module.unwrap_or_default()))
    })
}

pub(super) fn module_files() -> Datum<Vec<u8>> {
    release().and_then(|release| {
        matching(&format!("/lib/modules/{release}/modules.dep"), |line| {
            let file = line.split(':').next()?.rsplit('/').next()?;
            let known = MODULES.iter().any(|start| file.starts_with(start));
            known.then(|| line.to_owned())
        })
    })
}

pub(super) fn configuration() -> Datum<Vec<u8>> {
    release().and_then(|release| {
        let option = |line: &str| {
            // `CONFIG_X=y`, `# CONFIG_X is not set`
            let name = line.trim_start_matches("# ").strip_prefix("CONFIG_")?;
            let known = OPTIONS.iter().any(|start| name.starts_with(start));
            known.then(|| line.to_owned())
        };
        let packed = File::open("/proc/config.gz").map(GzDecoder::new);
        lines(packed, option)
            .or_else(|_| matching(&format!("/boot/config-{release}"), option))
            .or_else(|_| matching(&format!("/lib/modules/{release}/config"), option))
    })
}

fn release() -> Datum<String> {
    LiveRoot::new().text("/proc/sys/kernel/osrelease")
}

fn matching(path: &str, pick: impl Fn(&str) -> Option<String>) -> Datum<Vec<u8>> {
    lines(File::open(path), pick)
}

/// Returns the results of `pick` for a text's lines, sorted and without duplicates.
fn lines(file: io::Result<impl Read>, pick: impl Fn(&str) -> Option<String>) -> Datum<Vec<u8>> {
    let picked = file.and_then(|file| {
        let mut picked = Vec::new();
        for line in BufReader::new(file.take(MOST_BYTES)).split(b'\n') {
            picked.extend(pick(&String::from_utf8_lossy(&line?)));
        }
        Ok(picked)
    });
    match picked {
        Ok(mut picked) => {
            picked.sort();
            picked.dedup();
            let mut text = picked.join("\n").into_bytes();
            if !text.is_empty() {
                text.push(b'\n');
            }
            text.truncate(MAX_FILE);
            Ok(text)
        }
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Err(Absence::Missing),
            io::ErrorKind::PermissionDenied => Err(Absence::Denied),
            _ => Err(Absence::Failed(Errno(error.raw_os_error().unwrap_or(0)))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;

    #[test]
    fn the_kernel_is_named_in_five_lines() {
        let text = uname(&example::node()).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.starts_with("sysname Linux\nnodename example-node\n"),
            "{text}"
        );
    }

    #[test]
    fn lines_are_picked_sorted_and_reported_once() {
        let text = Ok(&b"b 1\na 2\nx\nb 1\n"[..]);
        let picked = lines(text, |line| line.contains(' ').then(|| line.to_owned()));
        assert_eq!(picked, Ok(b"a 2\nb 1\n".to_vec()));
        let none = Err::<&[u8], _>(io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(lines(none, |_| None), Err(Absence::Denied));
    }
}
