//! The reasons why a UDP port cannot be shared.

use std::io;

/// Why a device cannot share a UDP port with others.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum PortSharingError {
    /// The maximum number of devices already shares the port.
    #[error(
        "{slots} devices already share it, which is the maximum; close one, or use another address"
    )]
    Full { slots: usize },
    /// No member of the group answers.
    #[error(
        "the processes that share it do not answer; check whether they are stopped, and end the forked \
         children of processes that have exited (`ss -xlp src @gdr-roce*` lists them)"
    )]
    Silent,
    /// Every process in the group is stopped.
    #[error(
        "process {process}, which holds it, is stopped; resume it (`kill -CONT {process}`, `fg`, or its \
         debugger), or end it"
    )]
    Stopped { process: i32 },
    /// This process's user namespace maps several users to one number, so peers cannot be distinguished.
    #[error(
        "this user namespace hides which users' processes share it, because it does not map all users \
         (`/proc/self/uid_map`); run as a user that it maps to another number, or use another address"
    )]
    UnknownUser,
    /// The processes that share the port run another version of gdr.
    #[error("the processes that share it use a different version of gdr; use the same version")]
    OtherVersion,
    /// The process's descriptor limit is below the number of sockets in a group.
    #[error("this process has reached its limit of open files; raise the limit (`ulimit -n`)")]
    TooFewDescriptors,
    /// The kernel does not deliver datagrams according to the group's program.
    #[error(
        "datagrams do not reach the right device ({why}): another program has bound the port with \
         SO_REUSEPORT, or a packet filter drops packets to this address"
    )]
    NotSteered { why: String },
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Os {
        call: &'static str,
        source: io::Error,
    },
}
