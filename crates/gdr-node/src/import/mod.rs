//! Readers for what other tools print about a node.
//!
//! Each reader takes a text of at most [`MAX_TEXT`] bytes, keeps what it understands and leaves
//! the rest; none of them panics, and what they build is bounded by what they read.
//! [`Capture::read`] finds out which of them a file is for.

mod capture;
pub mod hwloc_tar;
pub mod hwloc_xml;
pub mod lspci;
pub mod nccl_xml;
pub mod rdma_topo;
pub mod topo_matrix;

pub use capture::Capture;

/// The longest text that a reader takes, in bytes.
pub const MAX_TEXT: usize = 64 << 20;

/// The text could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It is longer than [`MAX_TEXT`].
    #[error("the text has {0} bytes, of which {MAX_TEXT} can be read; cut it to what matters")]
    TooLong(usize),
    /// It holds nothing of its kind.
    #[error("this is no {expected}: {found}; pass the output of `{command}`")]
    NotRecognized {
        /// What should have been there.
        expected: &'static str,
        /// What was missing.
        found: &'static str,
        /// What prints it.
        command: &'static str,
    },
    /// It is no XML.
    #[error("this is no topology of NCCL: {0}; pass what NCCL_TOPO_DUMP_FILE wrote")]
    Xml(String),
    /// Its elements are nested deeper than any machine is.
    #[error(
        "this is no topology of NCCL: elements are nested more than {0} deep; pass what \
         NCCL_TOPO_DUMP_FILE wrote"
    )]
    TooDeep(usize),
    /// It is XML of another kind, or none.
    #[error("this is no XML of hwloc: {0}; pass what `lstopo --of xml` wrote")]
    HwlocXml(String),
    /// It is no dump of `rdma_topo`.
    #[error("this is no dump of rdma_topo: {0}; pass the output of `rdma_topo dump`")]
    Dump(String),
    /// A packed file is cut off or wrong.
    #[error("the file cannot be unpacked: {0}; copy it again")]
    Damaged(String),
    /// A packed file holds more than any node's does.
    #[error("the file unpacks to more than {0}, which no capture of a node does")]
    TooLarge(&'static str),
    /// An entry of a packed file would lead out of it.
    #[error("the file has an entry at `{0}`, which is no place in it: it was tampered with")]
    Path(String),
    /// Bytes where there should be text.
    #[error(
        "the file is no text: byte {at} is {byte:#04x}; pass the text itself, or an archive of \
         `gdr collect` or hwloc-gather-topology"
    )]
    Binary {
        /// Where, from 0.
        at: usize,
        /// What is there.
        byte: u8,
    },
    /// It is compressed by a program whose files are not read.
    #[error("the file is compressed by {0}; unpack it first, or compress it by gzip or bzip2")]
    Packed(&'static str),
    /// It has no bytes.
    #[error("the file is empty; make the capture again")]
    Empty,
    /// It is nothing that is known.
    #[error(
        "this is no archive of a node and no other capture of one; pass an archive of `gdr collect`, or what \
         `lspci -D -nn -vvv`, `nvidia-smi topo -m`, NCCL_TOPO_DUMP_FILE, hwloc-gather-topology, \
         `lstopo --of xml` or `rdma_topo dump` wrote"
    )]
    Unknown,
}

pub(crate) fn check_length(text: &str) -> Result<(), ImportError> {
    if text.len() > MAX_TEXT {
        Err(ImportError::TooLong(text.len()))
    } else {
        Ok(())
    }
}
