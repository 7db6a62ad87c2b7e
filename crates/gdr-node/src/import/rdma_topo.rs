//! Dumps by `rdma_topo dump` of rdma-core.

use std::io::Read;

use flate2::bufread::ZlibDecoder;
use gdr_pci::Bdf;
use serde::Deserialize;

use super::{ImportError, check_length};
use crate::source::MemorySource;

/// The size of a whole config space in bytes.
const MOST_CONFIG: u64 = 0x1000;

/// The most functions to read. Large servers have a thousand.
const MOST_FUNCTIONS: usize = 1 << 14;

/// A function, as stored by rdma-core's `kernel-boot/rdma_topo`. Its config space is compressed by zlib and encoded in
/// base64.
#[derive(Deserialize)]
struct Item {
    realpath: String,
    config: String,
    modalias: String,
    iommu_group: Option<u32>,
    numa_node: Option<i32>,
    subsystems: Option<Subsystems>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Subsystems {
    infiniband: Vec<String>,
    net: Vec<String>,
}

/// Reads a dump as the sysfs files that it was made from. Everything else is "not collected".
///
/// # Errors
///
/// [`ImportError::TooLong`], and [`ImportError::Dump`] with the error and its location.
pub fn read(text: &str) -> Result<MemorySource, ImportError> {
    check_length(text)?;
    let items: Vec<Item> =
        serde_json::from_str(text).map_err(|error| ImportError::Dump(error.to_string()))?;
    if items.is_empty() || items.len() > MOST_FUNCTIONS {
        return Err(ImportError::Dump(format!(
            "it has {} functions",
            items.len()
        )));
    }
    (items.iter().enumerate()).try_fold(MemorySource::partial(), |node, (number, item)| {
        add(node, item).map_err(|what| ImportError::Dump(format!("function {number}: {what}")))
    })
}

fn add(node: MemorySource, item: &Item) -> Result<MemorySource, String> {
    let path = item.realpath.as_str();
    let bdf: Bdf = path
        .rsplit('/')
        .next()
        .filter(|_| path.starts_with("/sys/devices/") && path.len() < 4096)
        .filter(|_| path.split('/').all(|name| !matches!(name, "." | "..")))
        .and_then(|name| name.parse().ok())
        .ok_or("its realpath does not name a PCI function")?;
    let config = unpack(&item.config)?;
    let mut node = node
        .link_to(&format!("/sys/bus/pci/devices/{bdf}"), path)
        .file(&format!("{path}/config"), config)
        .file(&format!("{path}/modalias"), &item.modalias);
    for (name, value) in identity(&item.modalias) {
        node = node.file(&format!("{path}/{name}"), format!("0x{value}\n"));
    }
    if let Some(numa) = item.numa_node {
        node = node.file(&format!("{path}/numa_node"), format!("{numa}\n"));
    }
    if let Some(group) = item.iommu_group {
        let target = format!("/sys/kernel/iommu_groups/{group}");
        node = node.link_to(&format!("{path}/iommu_group"), &target);
    }
    let none = Subsystems::default();
    let subsystems = item.subsystems.as_ref().unwrap_or(&none);
    for (class, names) in [
        ("infiniband", &subsystems.infiniband),
        ("net", &subsystems.net),
    ] {
        for name in names {
            if name.is_empty() || name.starts_with('.') || name.contains('/') || name.len() > 255 {
                return Err(format!("its {class} device has no name"));
            }
            let place = format!("{path}/{class}/{name}");
            node = node
                .link_to(&format!("/sys/class/{class}/{name}"), &place)
                .link_to(&format!("{place}/device"), "../..");
        }
    }
    Ok(node)
}

/// Returns the sysfs files with the IDs from a modalias such as
/// `pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00`.
fn identity(modalias: &str) -> Vec<(&'static str, String)> {
    let lower = modalias.to_ascii_lowercase();
    let Some(rest) = lower.strip_prefix("pci:v") else {
        return Vec::new();
    };
    let at = |range| {
        rest.get::<std::ops::Range<usize>>(range)
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    // v00001234 d00001234 sv00001234 sd00001234 bc12 sc12 i12, with the first letter removed.
    let fields = [
        ("vendor", at(4..8)),
        ("device", at(13..17)),
        ("subsystem_vendor", at(23..27)),
        ("subsystem_device", at(33..37)),
    ];
    let class = || Some([at(39..41)?, at(43..45)?, at(46..48)?].concat());
    (fields.into_iter())
        .filter_map(|(name, value)| Some((name, value?.to_owned())))
        .chain(class().map(|class| ("class", class)))
        .collect()
}

fn unpack(text: &str) -> Result<Vec<u8>, String> {
    let packed = base64(text).ok_or("its config is not base64")?;
    let mut config = Vec::new();
    ZlibDecoder::new(packed.as_slice())
        .take(MOST_CONFIG + 1)
        .read_to_end(&mut config)
        .map_err(|error| format!("its config: {error}"))?;
    if config.len() as u64 > MOST_CONFIG {
        return Err(format!("its config has more than {MOST_CONFIG} bytes"));
    }
    Ok(config)
}

/// Decodes base64 (RFC 4648, section 4).
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    let (mut bits, mut held) = (0_u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::Inventory;

    fn dump(path: &str, config: &str) -> String {
        format!(
            r#"[{{"realpath": "{path}", "config": "{config}", "iommu_group": 7, "numa_node": 1,
               "modalias": "pci:v000015B3d00001021sv000015B3sd00000040bc02sc07i00",
               "subsystems": {{"infiniband": ["mlx5_3"], "net": ["ib3"], "nvme": []}}}}]"#
        )
    }

    fn zlib(bytes: &[u8]) -> String {
        use std::io::Write;
        let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(bytes).unwrap();
        let packed = out.finish().unwrap();
        const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        packed
            .chunks(3)
            .flat_map(|three| {
                let word = three
                    .iter()
                    .fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
                    << (8 * (3 - three.len()));
                (0..=three.len()).map(move |n| DIGITS[(word >> (18 - 6 * n)) as usize & 63] as char)
            })
            .collect()
    }

    const AT: &str = "/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0";

    #[test]
    fn a_dump_is_a_node_with_its_names() {
        let mut config = [0_u8; 64];
        config[..4].copy_from_slice(&[0xb3, 0x15, 0x21, 0x10]);
        config[0x0a..0x0c].copy_from_slice(&[0x07, 0x02]);
        let node = read(&dump(AT, &zlib(&config))).unwrap();
        let inventory = Inventory::read(&node);
        let nics = inventory.nics();
        assert_eq!(nics.len(), 1);
        assert_eq!((nics[0].name.as_str(), nics[0].bdf.bus), ("mlx5_3", 0x41));
        let function = inventory.function(nics[0].bdf).unwrap();
        assert_eq!(function.identity.class.unwrap().to_string(), "020700");
        assert_eq!(function.iommu_group.as_ref().ok(), Some(&7));
        assert_eq!(function.numa.as_ref().unwrap().0, 1);
        assert_eq!(inventory.netdevs.as_ref().unwrap()[0].name, "ib3");
    }

    #[test]
    fn a_fault_is_named_with_its_place() {
        let good = zlib(&[0; 64]);
        for (text, word) in [
            ("[]".to_owned(), "0 functions"),
            ("[{}]".to_owned(), "missing field"),
            (dump("/etc/passwd", &good), "function 0: its realpath"),
            (dump("/sys/devices/../0000:41:00.0", &good), "its realpath"),
            (dump(AT, "?"), "not base64"),
            (dump(AT, "AAAA"), "function 0: its config"),
            (dump(AT, &zlib(&vec![0; 100_000])), "more than 4096"),
        ] {
            let error = read(&text).unwrap_err().to_string();
            assert_contains!(error, word);
        }
    }
}
