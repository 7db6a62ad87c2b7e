//! Readers for what other tools print about a node.
//!
//! Each reader takes a text of at most [`MAX_TEXT`] bytes, keeps what it understands and leaves
//! the rest; none of them panics, and what they build is bounded by what they read.

pub mod lspci;
pub mod nccl_xml;
pub mod topo_matrix;

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
}

pub(crate) fn check_length(text: &str) -> Result<(), ImportError> {
    if text.len() > MAX_TEXT {
        Err(ImportError::TooLong(text.len()))
    } else {
        Ok(())
    }
}
