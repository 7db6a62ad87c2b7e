//! Detecting the format of a capture by its content.

use std::borrow::Cow;
use std::io::{self, Read};

use super::hwloc_tar::Unpacked;
use super::nccl_xml::NcclTopology;
use super::topo_matrix::Matrices;
use super::{
    ImportError, LeftOut, MAX_TEXT, hwloc_tar, hwloc_xml, lspci, nccl_xml, plain, rdma_topo,
    topo_matrix,
};
use crate::inventory::Inventory;
use crate::numa::NumaLayout;
use crate::pci::{Function, NumaNode, Tree};
use crate::source::{Absence, MemorySource};

const GZIP: &[u8] = &[0x1f, 0x8b];
const BZIP2: &[u8] = b"BZh";
/// Magic numbers of unsupported compression formats.
const FOREIGN: [(&[u8], &str); 3] = [
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
    (&[0xfd, b'7', b'z', b'X', b'Z'], "xz"),
    (b"PK\x03\x04", "zip"),
];
/// The location of a tar's magic bytes.
const USTAR: std::ops::Range<usize> = 257..262;

/// The content of a file after decompression.
pub(super) enum Container<'a> {
    /// Many files.
    Tar(Box<Unpacked>),
    /// One text.
    Text(Cow<'a, [u8]>),
}

impl<'a> Container<'a> {
    /// Decompresses a file, if it is compressed, and detects tar.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, ImportError> {
        if bytes.is_empty() {
            return Err(ImportError::Empty);
        }
        if let Some((_, program)) = FOREIGN.iter().find(|(magic, _)| bytes.starts_with(magic)) {
            return Err(ImportError::Packed(program));
        }
        if bytes.starts_with(GZIP) {
            return Self::packed(|| flate2::bufread::MultiGzDecoder::new(bytes));
        }
        if bytes.starts_with(BZIP2) {
            return Self::packed(|| bzip2::bufread::MultiBzDecoder::new(bytes));
        }
        if bytes.get(USTAR).is_some_and(|word| word == b"ustar") {
            return Ok(Self::Tar(Box::new(hwloc_tar::unpack(bytes)?)));
        }
        if bytes.len() > MAX_TEXT {
            return Err(ImportError::TooLong(bytes.len()));
        }
        Ok(Self::Text(Cow::Borrowed(bytes)))
    }

    /// Decompresses a single stream.
    fn packed<R: Read>(stream: impl Fn() -> R) -> Result<Self, ImportError> {
        let damaged = |error: io::Error| ImportError::Damaged(error.to_string());
        let mut head = Vec::new();
        stream()
            .take(USTAR.end as u64)
            .read_to_end(&mut head)
            .map_err(damaged)?;
        if head.get(USTAR).is_some_and(|word| word == b"ustar") {
            return Ok(Self::Tar(Box::new(hwloc_tar::unpack(stream())?)));
        }
        let mut text = Vec::new();
        stream()
            .take(MAX_TEXT as u64 + 1)
            .read_to_end(&mut text)
            .map_err(damaged)?;
        if text.len() > MAX_TEXT {
            return Err(ImportError::TooLarge("64 MiB of text"));
        }
        Ok(Self::Text(Cow::Owned(text)))
    }
}

/// Decodes bytes as UTF-8 text, if they are text.
pub(super) fn checked(bytes: &[u8]) -> Result<Cow<'_, [u8]>, ImportError> {
    let text = plain::decoded(bytes)?;
    // Terminal logs may contain escapes; other control characters do not occur in text.
    let control = |byte: &u8| matches!(byte, 0..=6 | 0x0e..=0x1a | 0x1c..=0x1f);
    match text.iter().position(control) {
        Some(at) => Err(ImportError::Binary { at, byte: text[at] }),
        None => Ok(text),
    }
}

/// A node as described by another tool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Capture {
    /// Files of the node, from hwloc-gather-topology or `rdma_topo dump`.
    Files(Box<MemorySource>),
    /// Its PCI tree and related facts, from lspci or hwloc's XML.
    Devices(Box<Inventory>),
    /// The tables of `nvidia-smi topo` only.
    Matrices(Matrices),
    /// The topology as NCCL sees it.
    Nccl(NcclTopology),
}

impl Capture {
    /// Detects the format of a file and reads it.
    ///
    /// ```
    /// use gdr_node::import::{Capture, ImportError};
    ///
    /// let listing = b"41:00.0 3D controller: NVIDIA Corporation GH100\n";
    /// assert!(matches!(Capture::read(listing), Ok(Capture::Devices(_))));
    /// assert_eq!(Capture::read(b"words").unwrap_err(), ImportError::Unknown);
    /// ```
    ///
    /// # Errors
    ///
    /// The readers' errors; [`ImportError::Binary`] for a file that is neither text nor compressed;
    /// [`ImportError::Unknown`] for text of an unknown format.
    pub fn read(bytes: &[u8]) -> Result<Self, ImportError> {
        match Container::open(bytes)? {
            Container::Tar(unpacked) => {
                let node = unpacked.node.ok_or(ImportError::Unknown)?;
                Ok(Self::Files(Box::new(node)))
            }
            Container::Text(text) => Self::text(&checked(&text)?),
        }
    }

    fn text(bytes: &[u8]) -> Result<Self, ImportError> {
        if let Some(capture) = Self::marked_up(bytes) {
            return capture;
        }
        let text = String::from_utf8_lossy(bytes);
        match lspci::read(&text) {
            Ok(listing) => Self::listing(listing).map(|it| Self::Devices(Box::new(it))),
            Err(ImportError::NotRecognized { .. }) => match topo_matrix::read(&text) {
                Ok(matrices) => Ok(Self::Matrices(matrices)),
                Err(ImportError::NotRecognized { .. }) => Err(ImportError::Unknown),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Reads XML or JSON; `None` for any other text.
    pub(super) fn marked_up(bytes: &[u8]) -> Option<Result<Self, ImportError>> {
        let mut marks = bytes.iter().filter(|byte| !byte.is_ascii_whitespace());
        let (first, second) = (marks.next()?, marks.next());
        // The kernel log starts with `[    1.0]`, `[Thu Feb 20` or `<6>[`, and a pasted terminal session with
        // `[root@host ~]#`. A JSON list that describes a node contains objects, lists or strings.
        let is_log_or_prompt = match (first, second) {
            (b'[', Some(next)) => !matches!(next, b'{' | b'[' | b'"' | b']'),
            (b'<', Some(next)) => next.is_ascii_digit(),
            _ => false,
        };
        // `journalctl -o json` prints a message per line.
        let line = bytes
            .split(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default();
        let is_journal = line.windows(10).any(|window| window == b"\"MESSAGE\":");
        if is_log_or_prompt || is_journal || !matches!(first, b'<' | b'{' | b'[') {
            return None;
        }
        Some(match std::str::from_utf8(bytes) {
            Ok(text) => Self::of_markup(text),
            Err(error) => {
                let at = error.valid_up_to();
                Err(ImportError::Binary {
                    at,
                    byte: bytes.get(at).copied().unwrap_or_default(),
                })
            }
        })
    }

    fn of_markup(text: &str) -> Result<Self, ImportError> {
        if !text.trim_start().starts_with('<') {
            let node = rdma_topo::read(text)?;
            return Ok(Self::Files(Box::new(node)));
        }
        if text.contains("<nvidia_smi_log") {
            return Err(ImportError::NotRecognized {
                expected: "format that is read",
                found: "it is the XML of `nvidia-smi -q -x`",
                command: "nvidia-smi -q",
            });
        }
        if text.contains("<topology") {
            return Ok(Self::Devices(Box::new(hwloc_xml::read(text)?)));
        }
        nccl_xml::read(text).map(Self::Nccl)
    }

    /// Returns the node described by an lspci listing. Its NUMA nodes are only those that the listing names; if a
    /// listing would name them but names none, the machine has only one.
    pub(super) fn listing(listing: lspci::Listing) -> Result<Inventory, ImportError> {
        let functions = &listing.functions;
        let is_bridge = |function: &&Function| {
            let class = function.identity.class;
            class.is_some_and(|class| class.is_bridge())
        };
        let bridges = functions.iter().filter(is_bridge).count();
        let has_buses = functions.iter().any(|function| function.bridge.is_some());
        let is_flat = bridges > 0 && !has_buses;
        // A dump of config space alone has capabilities but no NUMA nodes: only a `-v` listing, which also names
        // drivers, would have named them.
        let names_drivers = (functions.iter()).any(|it| it.driver != Err(Absence::NotCollected));
        let verbose = names_drivers
            && (functions.iter()).any(|function| function.acs != Err(Absence::NotCollected));
        let mut left_out = listing.left_out.clone();
        let mut tree: Tree = listing.into_tree();
        if is_flat {
            left_out.push(LeftOut::Buses(bridges));
            tree.sever(tree.roots());
        }
        let mut nodes: Vec<NumaNode> = (tree.functions())
            .filter_map(|function| function.numa.as_ref().ok().copied())
            .collect();
        nodes.sort();
        nodes.dedup();
        let all_said = (tree.functions()).all(|it| it.numa != Err(Absence::NotCollected));
        let numa = match (nodes.is_empty(), verbose) {
            // A partial listing may lack whole nodes.
            (false, _) if all_said => NumaLayout {
                online: Ok(nodes),
                ..NumaLayout::unknown()
            },
            (true, true) => NumaLayout::of_nodes(1),
            _ => NumaLayout::unknown(),
        };
        let mut inventory = Inventory::of_tree(Ok(tree), numa);
        if is_flat && inventory.devices().is_empty() {
            return Err(ImportError::NotRecognized {
                expected: "listing with bus numbers",
                found: "it does not say which buses are behind its bridges",
                command: "lspci -D -nn -vvv",
            });
        }
        inventory.left_out = left_out;
        Ok(inventory)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LISTING: &[u8] = b"41:00.0 3D controller: NVIDIA Corporation GH100\n";

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn each_kind_is_known_by_its_content() {
        let matrix = b"\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n";
        assert!(matches!(Capture::read(matrix), Ok(Capture::Matrices(_))));
        assert!(matches!(Capture::read(LISTING), Ok(Capture::Devices(_))));
        let packed = gzip(LISTING);
        assert!(matches!(Capture::read(&packed), Ok(Capture::Devices(_))));
        let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        bzip2.write_all(LISTING).unwrap();
        let packed = bzip2.finish().unwrap();
        assert!(matches!(Capture::read(&packed), Ok(Capture::Devices(_))));
        let nccl = b"<!-- words -->\n<system version=\"1\"><cpu numaid=\"0\"/></system>";
        assert!(matches!(Capture::read(nccl), Ok(Capture::Nccl(_))));
    }

    #[test]
    fn what_is_none_of_them_is_named() {
        let error = |bytes: &[u8]| Capture::read(bytes).unwrap_err();
        assert_eq!(error(b""), ImportError::Empty);
        assert_eq!(error(b"\x28\xb5\x2f\xfdxx"), ImportError::Packed("zstd"));
        assert_eq!(error(b"words\n"), ImportError::Unknown);
        assert_eq!(
            error(b"<system>\0</system>"),
            ImportError::Binary { at: 8, byte: 0 }
        );
        assert_eq!(
            error(b"<system>\xff</system>"),
            ImportError::Binary { at: 8, byte: 0xff }
        );
        assert!(matches!(
            error(b"<html></html>"),
            ImportError::NotRecognized { .. }
        ));
        assert!(matches!(error(b"{\"a\": 1}"), ImportError::Dump(_)));
        let packed = gzip(LISTING);
        assert!(matches!(
            error(&packed[..packed.len() - 9]),
            ImportError::Damaged(_)
        ));
        assert!(matches!(error(b"BZh9garbage"), ImportError::Damaged(_)));
        let flat = b"00:01.0 PCI bridge: Intel Corporation X\n41:00.0 3D controller: NVIDIA\n";
        assert!(matches!(error(flat), ImportError::NotRecognized { .. }));
    }

    #[test]
    fn a_prompt_or_a_date_in_brackets_is_not_json() {
        let prompt = b"[root@host ~]# lspci\n41:00.0 3D controller: NVIDIA Corporation GH100\n";
        assert!(matches!(Capture::read(prompt), Ok(Capture::Devices(_))));
        for log in [
            "[Thu Feb 20 10:00:00 2020] x",
            "[    1.0] x",
            "<6>[    1.0] x",
        ] {
            assert!(Capture::marked_up(log.as_bytes()).is_none(), "{log}");
        }
        for list in ["[]", "[ {}]", "[\n  [1]]", "[\"a\"]"] {
            assert!(Capture::marked_up(list.as_bytes()).is_some(), "{list}");
        }
    }

    #[test]
    fn what_unpacks_without_end_is_refused() {
        let bomb = gzip(&vec![b' '; MAX_TEXT + 10]);
        assert_eq!(
            Capture::read(&bomb).unwrap_err(),
            ImportError::TooLarge("64 MiB of text")
        );
    }
}
