//! Why a UDP port cannot be shared.

use std::io;

/// Why a device cannot share a UDP port with others.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum PortSharingError {
    /// As many devices as can share a port do.
    #[error(
        "{slots} devices share it already, which is the most; close one, or use another address"
    )]
    Full { slots: usize },
    /// No member of the group answers.
    #[error(
        "the processes that share it do not answer; see whether they are stopped, and end forked \
         children of processes that ended (`ss -xlp src @gdr-roce*` lists them)"
    )]
    Silent,
    /// Another device has been joining for too long.
    #[error("another process has been opening it for too long; see whether it is stopped")]
    Locked,
    /// A process of another user has the name of a slot.
    #[error("a process of another user has it; use another address")]
    OtherUser,
    /// The processes that share the port are of another version.
    #[error("the processes that share it use another version of gdr; use the same one")]
    OtherVersion,
    /// This process cannot have as many descriptors as a group has sockets.
    #[error("this process may not open as many files as it needs; raise the limit (`ulimit -n`)")]
    TooFewDescriptors,
    /// The kernel does not pass datagrams as the program of the group says.
    #[error(
        "the kernel does not pass datagrams to their device ({why}): another program has bound the \
         port with SO_REUSEPORT, or a packet filter drops packets to this address"
    )]
    NotSteered { why: String },
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Os {
        call: &'static str,
        source: io::Error,
    },
}
