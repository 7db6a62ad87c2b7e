//! How it failed, with the words and numbers by which it is recognized.

use std::fmt;

use serde::Serialize;

/// How it failed, as errno or the status of a completion has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Status {
    /// The other end refused an access.
    RemoteAccess,
    /// The peer did not answer.
    Retries,
    /// The peer had posted no receive.
    NotReady,
    /// The queue had failed before.
    Flushed,
    /// The message was longer than its buffer.
    Length,
    /// The local memory may not be used so.
    Protection,
    /// EFAULT.
    BadAddress,
    /// ENOMEM.
    OutOfMemory,
    /// EAGAIN.
    Again,
    /// ENOSPC, EBUSY.
    Full,
    /// EPERM, EACCES.
    Denied,
    /// ENODEV, ENOENT, ENXIO.
    NoDevice,
    /// EOPNOTSUPP and its like.
    Unsupported,
    /// ENETUNREACH, EHOSTUNREACH.
    Unreachable,
    /// ECONNREFUSED, ECONNRESET, or a rejection.
    Refused,
    /// ETIMEDOUT.
    TimedOut,
    /// EINVAL.
    Invalid,
    /// EIO, EREMOTEIO.
    Io,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RemoteAccess => "remote access error",
            Self::Retries => "retries exceeded",
            Self::NotReady => "receiver not ready",
            Self::Flushed => "flushed",
            Self::Length => "length error",
            Self::Protection => "local protection error",
            Self::BadAddress => "EFAULT",
            Self::OutOfMemory => "ENOMEM",
            Self::Again => "EAGAIN",
            Self::Full => "ENOSPC or EBUSY",
            Self::Denied => "EPERM or EACCES",
            Self::NoDevice => "ENODEV or ENOENT",
            Self::Unsupported => "not supported",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused or reset",
            Self::TimedOut => "timed out",
            Self::Invalid => "EINVAL",
            Self::Io => "EIO",
        })
    }
}

/// Each status with its words and its errno; where several stand in a line, the first here counts.
pub(super) const STATUSES: &[(Status, &str, &[u16])] = &[
    (
        Status::RemoteAccess,
        r"remote access|rem_access|remote_access|qp_access|remote invalid request|rem_inv_req",
        &[],
    ),
    (
        Status::Retries,
        r"retry (counter )?exceeded|retry_exc|retry count|retries exceeded",
        &[],
    ),
    (Status::NotReady, r"\brnr\b|receiver not ready", &[]),
    (Status::Flushed, r"flushed|flush_err|flush error", &[]),
    (
        Status::Length,
        r"length error|loc_len|message too long",
        &[90],
    ),
    (
        Status::Protection,
        r"local protection|loc_prot|protection error",
        &[],
    ),
    (Status::BadAddress, r"bad address|\befault\b", &[14]),
    (
        Status::OutOfMemory,
        r"cannot allocate memory|out of memory|not enough memory|no memory\b|\benomem\b|outofmemory|limits exceeded",
        &[12],
    ),
    (
        Status::Again,
        r"temporarily unavailable|\beagain\b|try again",
        &[11],
    ),
    (
        Status::Full,
        r"no space left|device or resource busy|\bresource busy\b|\benospc\b|\bebusy\b|too many|exhausted|no resources|\b\w+ in use\b",
        &[28, 16],
    ),
    (
        Status::Denied,
        r"permission denied|not permitted|access denied|\beacces\b|\beperm\b|key was rejected",
        &[1, 13, 129],
    ),
    (
        Status::NoDevice,
        r"no such (device|file)|no device|\benodev\b|\benoent\b|not found|no matching device|\benxio\b",
        &[19, 2, 6],
    ),
    (
        Status::Unsupported,
        r"not supported|unsupported|not[_ ]implemented|\beopnotsupp\b|\benotsupp\b|\benosys\b|unknown error 524|protocol not available",
        &[95, 524, 38, 93, 92],
    ),
    (
        Status::Unreachable,
        r"unreachable|no route to host|cannot assign requested address",
        &[101, 113, 99],
    ),
    (
        Status::Refused,
        r"refused|reset by peer|rejected|broken pipe|\beconn\w+",
        &[111, 104, 32],
    ),
    (
        Status::TimedOut,
        r"timed ?out|time-?out|\betimedout\b",
        &[110],
    ),
    (
        Status::Invalid,
        r"invalid (argument|parameter)|\beinval\b|bad parameter",
        &[22],
    ),
    (
        Status::Io,
        r"input/output error|remote i/o error|\beio\b|i/o error",
        &[5, 121],
    ),
];
