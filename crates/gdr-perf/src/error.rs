//! Errors of checks and measurements.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use gdr_copy::Caching;
use gdr_rdma::{RegistrationMethod, SoftOptions, WcStatus};

use crate::transfer::PlanError;

/// Maximum timeout of a step, which a peer may choose: one day.
pub(crate) const MOST_SECONDS: u64 = 86_400;

/// This crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a measurement could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields' names say what they hold")]
pub enum Error {
    /// The GPU driver refused.
    #[error(transparent)]
    Gpu(#[from] gdr_cuda::Error),
    /// The memory could not be pinned, mapped or copied.
    #[error(transparent)]
    Copy(#[from] gdr_copy::Error),
    /// The user's profile of copies cannot be used.
    #[error(transparent)]
    Profile(#[from] gdr_copy::ProfileError),
    /// A library of copy functions could not be loaded, or one of its functions failed.
    #[error(
        "{}: {why}; it needs the C functions copy_to_mapping and copy_from_mapping, of type \
         int (void *to, const void *from, size_t bytes), which return 0",
        file.display()
    )]
    CopyLibrary { file: PathBuf, why: String },
    /// No backend maps GPU memory here.
    #[error("{0}; staged transfers need no mapping")]
    NoMappings(String),
    /// An RDMA device or its peer refused.
    #[error(transparent)]
    Rdma(#[from] gdr_rdma::Error),
    /// The program at the other end of a run in two processes failed or broke the protocol.
    #[error("the peer {0}")]
    Peer(#[from] PeerError),
    /// The host name does not resolve to an address.
    #[error("the host {host} has no known address: {why}; use its address instead")]
    Host { host: String, why: String },
    /// The GPU has too little free memory.
    #[error(
        "{bytes} bytes of GPU memory cannot be allocated: {source}; transfer less at a time, or end other \
         programs that use the GPU's memory (nvidia-smi shows them)"
    )]
    GpuMemory { bytes: u64, source: gdr_cuda::Error },
    /// A request of a measurement failed.
    #[error("{operation} of {size} bytes {failure}")]
    Transfer {
        operation: &'static str,
        size: u64,
        failure: TransferFailure,
    },
    /// The settings contradict each other.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The bytes that were read differ from the bytes that were written.
    #[error(
        "{what}: byte {offset} is {found:#04x} instead of {expected:#04x}, so the figures of this run \
         are invalid: check the mapping first"
    )]
    WrongData {
        what: String,
        offset: u64,
        expected: u8,
        found: u8,
    },
    /// The kernel did not answer.
    #[error(
        "the kernel did not answer round {round} of {rounds} within {limit:?}, and was stopped"
    )]
    NoAnswer {
        round: u32,
        rounds: u32,
        limit: Duration,
    },
    /// The kernel saw a flag before the data written ahead of it.
    #[error(
        "{mismatches} payload words were still from an earlier round when the flag of this round was \
         seen; data and flag arrive out of order on this machine"
    )]
    OutOfOrder { mismatches: u64 },
    /// No other rank joined.
    #[error(
        "fewer than 2 of {ranks} ranks met within {waited:?}: read their messages, and check that they \
         can reach this address"
    )]
    LonelyRank { ranks: usize, waited: Duration },
    /// The observer stopped the run.
    #[error("stopped")]
    Stopped,
}

impl From<gdr_rdma::NicError> for Error {
    fn from(failed: gdr_rdma::NicError) -> Self {
        Self::Rdma(failed.into())
    }
}

impl Error {
    /// Returns the code of this error for programs, such as `no_mappings`.
    ///
    /// A renamed variant keeps its code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Gpu(error) => error.code(),
            Self::Copy(error) => error.code(),
            Self::Rdma(error) => error.code(),
            Self::NoMappings { .. } => "no_mappings",
            Self::Peer { .. } => "peer",
            Self::Transfer { .. } => "transfer",
            Self::Host { .. } => "host",
            Self::GpuMemory { .. } => "gpu_memory",
            Self::Settings { .. } => "settings",
            Self::WrongData { .. } => "wrong_data",
            Self::NoAnswer { .. } => "no_answer",
            Self::OutOfOrder { .. } => "out_of_order",
            Self::Stopped { .. } => "stopped",
            Self::Profile { .. } | Self::CopyLibrary { .. } | Self::LonelyRank { .. } => {
                "measurement"
            }
        }
    }

    /// Returns what the caller can change, where the text of the error suggests it.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::GpuMemory { .. } => Some(Remedy::SmallerSize),
            Self::WrongData { .. } => Some(Remedy::RunSanity),
            Self::Transfer {
                failure: TransferFailure::Deadline { .. },
                ..
            } => Some(Remedy::LongerTimeout),
            Self::Settings(error) => error.remedy(),
            _ => None,
        }
    }
}

/// What the caller of a failed run can change.
///
/// This crate has no command line. A program that offers these as options adds their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Remedy {
    /// Allow a longer timeout for a step.
    LongerTimeout,
    /// Transfer fewer bytes at a time.
    SmallerSize,
    /// Run once staged and once direct, and compare.
    CompareTransferModes,
    /// The checks of [`crate::sanity`].
    RunSanity,
    /// List the names of the checks in [`crate::sanity`].
    ListChecks,
    /// List the names of this machine's RDMA devices.
    ListDevices,
    /// Name the device of the end that owns the GPU memory.
    NameReceiver,
    /// Name the peer's address where a device of this machine was given.
    NamePeer,
}

/// How a request of a measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields' names say what they hold")]
pub enum TransferFailure {
    /// It completed with an error.
    #[error("completed with {name}: {status}; {advice}")]
    Completion {
        name: &'static str,
        status: WcStatus,
        advice: &'static str,
    },
    /// It did not complete in time.
    #[error("did not complete within {limit:?}; allow a longer timeout")]
    Deadline { limit: Duration },
    /// The peer sent a message or closed the connection during the wait.
    #[error("was abandoned: {PEER_ENDED}")]
    Interrupted,
}

/// Why a wait for completions ended early.
pub(crate) const PEER_ENDED: &str = "the peer ended the run or closed the connection";

/// What the program at the other end did, as the rest of a sentence that begins with "the peer".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields' names say what they hold")]
pub enum PeerError {
    /// It refused the run with this message.
    #[error("refused: {0}")]
    Refused(String),
    /// A message to it could not be encoded.
    #[error("cannot be reached with a message: {0}")]
    Encode(serde_json::Error),
    /// It sent bytes that do not form a message of this protocol.
    #[error(
        "sent bytes that are not a message of this protocol: {0}; use the same version of gdr, and the \
         same command, on both sides"
    )]
    Message(String),
    /// It sent a message out of order.
    #[error("sent `{0}` out of order; use the same version of gdr on both sides")]
    OutOfTurn(&'static str),
    /// It speaks a different version of the protocol.
    #[error(
        "speaks version {theirs} of the protocol, but this side speaks version {ours}; use the same \
         version of gdr on both sides"
    )]
    Version { theirs: u32, ours: u32 },
    /// It requested settings that this end refuses.
    #[error("requested settings that cannot be used: {0}")]
    Settings(SettingsError),
    /// It chose a value other than the listening end's.
    #[error(
        "requests {name} {theirs}, but the server was given {ours}: use the same value at both ends, or \
         leave it out at the server"
    )]
    OtherChoice {
        name: &'static str,
        theirs: String,
        ours: String,
    },
    /// Its messages disagree about its RDMA address.
    #[error(
        "reports its address as {said} in one message and {named} in another; use the same version of \
         gdr on both sides"
    )]
    TwoAddresses { said: SocketAddr, named: SocketAddr },
    /// It named an RDMA address of this end.
    #[error("uses this side's own RDMA address, {0}; give it a different address")]
    OwnAddress(SocketAddr),
    /// It offered memory other than requested.
    #[error("offered different memory than requested; use the same version of gdr on both sides")]
    OtherMemory,
    /// A message arrived with a length other than agreed.
    #[error(
        "sent a message of {bytes} bytes instead of {size}; use the same version of gdr on both sides"
    )]
    MessageLength { bytes: u32, size: u64 },
    /// The messages that arrived are not those it reports as sent.
    #[error(
        "sent a different number of messages than it reported; use the same version of gdr on both sides"
    )]
    MessageCount,
    /// It named a path MTU that does not exist.
    #[error("sent an invalid path MTU ({0})")]
    Mtu(u8),
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields' names say what they hold")]
pub enum SettingsError {
    /// More bytes than the address space holds.
    #[error("{bytes} bytes are too many for this process: use fewer")]
    TooLarge { bytes: u64 },
    /// No size to measure.
    #[error("there is no size to measure: use a larger buffer")]
    NoSize,
    /// A size of 0 bytes.
    #[error("0 bytes cannot be measured: use at least 1")]
    EmptySize,
    /// Copies beyond the buffer.
    #[error("{size} bytes at offset {offset} exceed the buffer of {len} bytes")]
    PastEnd { size: u64, offset: u64, len: u64 },
    /// A cold cache for a mapping that the CPU does not cache.
    #[error("a cold cache needs a cached mapping: a {0} mapping never occupies the CPU's cache")]
    ColdCache(Caching),
    /// Too many round trips.
    #[error("{0} round trips are too many")]
    Rounds(u32),
    /// A payload that does not consist of whole words.
    #[error("the data size must be divisible by 4")]
    Payload,
    /// A kernel without blocks.
    #[error("the kernel needs at least 1 block")]
    NoBlocks,
    /// A number of threads per block that no GPU supports.
    #[error("a block has 1 to 1024 threads")]
    Threads,
    /// Fewer than one measurement.
    #[error("nothing was measured: use at least 1 iteration")]
    NoSamples,
    /// A histogram too large to allocate.
    #[error("the histogram of the samples cannot be allocated: {0}")]
    Histogram(String),
    /// Two buffers of different lengths.
    #[error("{what}: {expected} bytes were compared with {found}")]
    Lengths {
        what: String,
        expected: usize,
        found: usize,
    },
    /// A check that does not exist.
    #[error("`{name}` is not a check{}", suggestion(.nearest.as_deref()))]
    NoSuchCheck {
        name: String,
        nearest: Option<String>,
    },
    /// A plan that cannot be measured.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A registration method other than dma-buf.
    #[error(
        "{device} does not access this memory by dma-buf, but by another method: {method}; do not require \
         a dma-buf, or run `gdr doctor` to find out why"
    )]
    NotByDmaBuf {
        device: String,
        method: RegistrationMethod,
    },
    /// Staging where the device itself transfers.
    #[error("a kernel device cannot use staging: it accesses GPU memory directly, or not at all")]
    StagedByDevice,
    /// A size that cannot be transferred.
    #[error("{0} bytes cannot be transferred: use a multiple of 4 up to 1G")]
    TransferSize(u64),
    /// An unsupported number of queue pairs.
    #[error("a transfer cannot be striped over {0} queue pairs: use 1 to {most}", most = SoftOptions::MAX_SHARDS)]
    QueuePairs(usize),
    /// Fewer than one iteration.
    #[error("0 iterations prove nothing: use at least 1")]
    NoIterations,
    /// A timeout of 0.
    #[error("a step cannot complete in 0 seconds: use at least 1")]
    NoTimeout,
    /// A timeout above the maximum.
    #[error("a step may not take {} seconds: use at most {MOST_SECONDS} (a day)", .0.as_secs())]
    LongTimeout(Duration),
    /// A kernel device at one end and a soft one at the other.
    #[error(
        "{verbs} is a kernel device, but {soft} is a soft device: choose two of the same kind, or use two \
         processes"
    )]
    MixedProviders { verbs: String, soft: IpAddr },
    /// A simulated GPU at one end and a real one at the other.
    #[error(
        "the GPU of one end is simulated and the other is real, so the result would describe neither: \
         simulate both or none"
    )]
    MixedSimulation,
    /// A kernel device where the soft provider was chosen.
    #[error(
        "`{0}` is not a device of the soft provider: its devices are the addresses of this machine, \
         such as 127.0.0.1"
    )]
    NotSoft(String),
    /// A soft device where the verbs provider was chosen.
    #[error("{0} is a soft device, but the verbs provider was chosen")]
    NotVerbs(IpAddr),
    /// A GID index for a soft device.
    #[error(
        "a soft device has an address instead of a GID table: leave out the GID index {0}, or choose a \
         kernel device"
    )]
    SoftGid(u32),
    /// A device that does not exist.
    #[error("device `{name}` cannot be used: {source}")]
    NoSuchDevice {
        name: String,
        source: Box<gdr_rdma::Error>,
    },
    /// An address of another host where a device of this host is required.
    #[error(
        "{name} is {address}, which is not an address of this host: choose an address of this host"
    )]
    OtherHost { name: String, address: IpAddr },
    /// All loopback addresses are in use.
    #[error("all loopback addresses that were tried are in use")]
    LoopbackAddresses,
    /// An unspecified address to listen at, without a device.
    #[error("0.0.0.0 and :: do not determine the address for RDMA: name the device")]
    UnspecifiedAddress,
    /// A fraction of the expected rate outside 0 to 1.
    #[error("{0} is not a fraction of the expected rate: use 0 (any rate passes) to 1 (100%)")]
    LeastPart(String),
    /// A mesh of one rank, or of too many ranks.
    #[error("a mesh cannot have {0} ranks: use 2 to 4096")]
    Ranks(usize),
    /// A link-local address for a soft device.
    #[error(
        "{0} is a link-local address, which a soft device cannot use: use an IPv4 or a global IPv6 \
         address of that interface (`ip address` lists them)"
    )]
    LinkLocal(Ipv6Addr),
}

impl SettingsError {
    /// Returns what the caller can change.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::NoSuchCheck { .. } => Some(Remedy::ListChecks),
            Self::NotVerbs(_) | Self::NoSuchDevice { .. } => Some(Remedy::ListDevices),
            Self::OtherHost { .. } => Some(Remedy::NamePeer),
            Self::UnspecifiedAddress => Some(Remedy::NameReceiver),
            _ => None,
        }
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(": did you mean `{name}`?"))
}

/// Turns an observer's answer into a result: a break becomes [`Error::Stopped`].
pub(crate) fn proceed(flow: ControlFlow<()>) -> Result<()> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Stopped),
    }
}

/// Fails with the first byte in which `found` differs from `expected`.
pub(crate) fn compare(what: &str, expected: &[u8], found: &[u8]) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let differs = expected
        .iter()
        .zip(found)
        .enumerate()
        .find(|(_, (a, b))| a != b);
    Err(match differs {
        Some((offset, (&expected, &found))) => Error::WrongData {
            what: what.to_owned(),
            offset: offset as u64,
            expected,
            found,
        },
        None => SettingsError::Lengths {
            what: what.to_owned(),
            expected: expected.len(),
            found: found.len(),
        }
        .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wrong_byte_is_named() {
        compare("equal", b"abc", b"abc").unwrap();
        let error = compare("the copy", b"abcd", b"abxd")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("the copy: byte 2 is 0x78 instead of 0x63"),
            "{error}"
        );
        compare("lengths", b"ab", b"abc").unwrap_err();
    }
}
