//! What a caller can change about a run that failed.

/// What a caller can change about a run that failed.
///
/// This crate has no command line: a program that offers these as options adds their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Remedy {
    /// A longer timeout of a step.
    LongerTimeout,
    /// Fewer bytes at a time.
    SmallerSize,
    /// The same run once staged and once direct.
    CompareTransferModes,
    /// The checks of [`crate::sanity`].
    RunSanity,
    /// The names of the checks of [`crate::sanity`].
    ListChecks,
    /// The names of the RDMA devices of this machine.
    ListDevices,
    /// The device of the end that owns the GPU memory, by name.
    NameReceiver,
    /// The address of the peer, where a device of this machine was expected.
    NamePeer,
}
