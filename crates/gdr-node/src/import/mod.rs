//! Readers for the output of other tools about a node.
//!
//! Each reader accepts at most [`MAX_TEXT`] bytes of text, and skips lines that it does not know. Readers do not panic,
//! and their memory use is bounded by the size of the text. Lines that look like part of a capture but were not read
//! are reported as [`LeftOut`]. [`Capture::read`] detects the format of a file, and an [`Assembly`] combines several
//! files into one node.

mod assembly;
mod bug_report;
mod detect;
pub mod hwloc_tar;
pub mod hwloc_xml;
mod left_out;
pub mod lspci;
pub mod nccl_xml;
mod plain;
mod rdma_tools;
pub mod rdma_topo;
mod smi_query;
pub mod topo_matrix;

pub use assembly::{Assembled, Assembly};
pub use detect::Capture;
pub use left_out::LeftOut;

/// The longest text that readers accept, in bytes.
pub const MAX_TEXT: usize = 64 << 20;

/// The text could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It is longer than [`MAX_TEXT`].
    #[error(
        "the text has {0} bytes, but at most {MAX_TEXT} can be read; keep only the relevant part"
    )]
    TooLong(usize),
    /// It has no line of the expected format.
    #[error("this is not a {expected}: {found}; pass the output of `{command}`")]
    #[allow(missing_docs, reason = "the names say it")]
    NotRecognized {
        expected: &'static str,
        found: &'static str,
        command: &'static str,
    },
    /// It is not XML.
    #[error("this is not an NCCL topology: {0}; pass a file that NCCL_TOPO_DUMP_FILE wrote")]
    Xml(String),
    /// Its elements are nested too deeply.
    #[error(
        "this is not an NCCL topology: elements are nested more than {0} levels deep; pass a file that \
         NCCL_TOPO_DUMP_FILE wrote"
    )]
    TooDeep(usize),
    /// It is not XML of hwloc.
    #[error("this is not an XML file from hwloc: {0}; pass the output of `lstopo --of xml`")]
    HwlocXml(String),
    /// It is XML of hwloc without the PCI part.
    #[error(
        "the XML file from hwloc contains no PCI functions; pass the output of `lstopo --whole-io --of \
         xml`, from an lstopo that was built with PCI support"
    )]
    HwlocWithoutPci,
    /// It is not a dump of `rdma_topo`.
    #[error("this is not a dump from rdma_topo: {0}; pass the output of `rdma_topo dump`")]
    Dump(String),
    /// A compressed file is truncated or damaged.
    #[error("the file cannot be unpacked: {0}; copy it again")]
    Damaged(String),
    /// A compressed file exceeds a limit.
    #[error("the file unpacks to more than {0}, which is too large for a capture of a node")]
    TooLarge(&'static str),
    /// An archive entry has a path outside of the archive.
    #[error("the file contains the path `{0}`, which lies outside its root: it was tampered with")]
    Path(String),
    /// It contains bytes that are not text.
    #[error(
        "the file is not text: byte {at} is {byte:#04x}; pass the text itself, or an archive of \
         `gdr collect` or hwloc-gather-topology"
    )]
    #[allow(missing_docs, reason = "the names say it")]
    Binary { at: usize, byte: u8 },
    /// It is compressed in an unsupported format.
    #[error("the file is compressed with {0}; unpack it first, or compress it with gzip or bzip2")]
    Packed(&'static str),
    /// It is empty.
    #[error("the file is empty; make the capture again")]
    Empty,
    /// Its format is unknown.
    #[error(
        "this is neither an archive of a node nor another capture of one; pass an archive of `gdr collect`, or what \
         `lspci -D -nn -vvv`, `nvidia-smi topo -m`, `nvidia-smi -q`, dmesg, NCCL_TOPO_DUMP_FILE, \
         hwloc-gather-topology, `lstopo --of xml`, `rdma_topo dump`, ibstat or `ibdev2netdev -v` wrote"
    )]
    Unknown,
}

/// Returns a file's text, which may be compressed by gzip or bzip2, or encoded in UTF-16.
///
/// # Errors
///
/// [`ImportError::Binary`] for bytes that are not text, and errors of decompression.
pub fn text(bytes: &[u8]) -> Result<String, ImportError> {
    match detect::Container::open(bytes)? {
        detect::Container::Text(text) => {
            let text = detect::checked(&text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
        detect::Container::Tar(_) => Err(ImportError::Unknown),
    }
}

pub(crate) fn check_length(text: &str) -> Result<(), ImportError> {
    if text.len() > MAX_TEXT {
        Err(ImportError::TooLong(text.len()))
    } else {
        Ok(())
    }
}
