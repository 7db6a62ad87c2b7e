//! Errors as a program reads them: their codes and exit statuses.

use gdr_doctor::environment::NoRail;
use gdr_perf::report::Schema;
use gdr_rdma::HandshakeError;
use serde::Serialize;
use serde_json::Value;

use crate::commands::env;
use crate::commands::run::{ChaosError, RequirementError};
use crate::commands::trace::TraceError;
use crate::exit::{Exit, InputError, UsageError};
use crate::gpu::NoSuchGpu;
use crate::gpu_context::NoGpu;
use crate::interrupt::Interrupted;
use crate::launch::LaunchError;
use crate::object_content::ContentError;
use crate::object_link::UnexpectedObject;

/// What `--json` prints when a command ends with an error: `gdr.error`.
#[derive(Debug, Serialize)]
pub(crate) struct JsonError {
    #[serde(flatten)]
    schema: Schema,
    error: Details,
    /// The exit status.
    exit: u8,
    /// What was measured before a signal arrived.
    #[serde(skip_serializing_if = "<[Value]>::is_empty")]
    measured: Vec<Value>,
}

#[derive(Debug, Serialize)]
struct Details {
    /// The code of the error, such as `port_in_use`.
    name: &'static str,
    /// What failed, why, and what to do.
    message: String,
}

impl JsonError {
    /// The document for `error`, whose text is `message`.
    pub(crate) fn new(error: &anyhow::Error, message: String, exit: Exit) -> Self {
        let interrupted = error.downcast_ref::<Interrupted>();
        Self {
            measured: interrupted.map_or_else(Vec::new, |it| it.measured.clone()),
            ..Self::named(code(error), message, exit)
        }
    }

    /// The document for a command line that cannot be parsed.
    pub(crate) fn usage(message: String) -> Self {
        Self::named("usage", message, Exit::Usage)
    }

    fn named(name: &'static str, message: String, exit: Exit) -> Self {
        Self {
            schema: Schema::first("gdr.error"),
            error: Details { name, message },
            exit: exit.code(),
            measured: Vec::new(),
        }
    }
}

/// The exit status of a command that ends with `error`.
pub(crate) fn exit_status(error: &anyhow::Error) -> Exit {
    if error.is::<UsageError>() {
        return Exit::Usage;
    }
    if error.is::<InputError>() {
        return Exit::Input;
    }
    if let Some(none) = error.downcast_ref::<NoGpu>() {
        return none.exit();
    }
    if error.is::<Interrupted>() {
        return Exit::Undecided;
    }
    if let Some(error) = error.downcast_ref::<LaunchError>() {
        return error.exit();
    }
    if error.is::<TraceError>() {
        return Exit::Launcher;
    }
    if let Some(error) = error.downcast_ref::<RequirementError>() {
        return error.exit();
    }
    if let Some(error) = error.downcast_ref::<ChaosError>() {
        return error.exit();
    }
    if let Some(none) = error.downcast_ref::<NoRail>() {
        return env::exit(none);
    }
    if let Some(error) = error.downcast_ref::<gdr_object::Error>() {
        return match error {
            gdr_object::Error::Empty { .. } | gdr_object::Error::NothingNewer { .. } => {
                Exit::Undecided
            }
            _ => Exit::Failure,
        };
    }
    match error.downcast_ref::<gdr_perf::Error>() {
        Some(gdr_perf::Error::Settings(_)) => Exit::Usage,
        Some(gdr_perf::Error::Stopped) => Exit::Undecided,
        _ => match error.downcast_ref::<gdr_copy::Error>() {
            Some(gdr_copy::Error::BackendName(_)) => Exit::Usage,
            _ => Exit::Failure,
        },
    }
}

/// An error with a code that programs can rely on.
///
/// Codes are part of the interface: a variant that is renamed keeps its code, and a new variant
/// has the code of its type until it gets its own.
trait Code {
    /// The code of this error, or of the error inside it.
    fn code(&self) -> &'static str;
}

/// Declares the codes of an enum. `inside` lists the variants that wrap an error with a code of
/// its own; `otherwise` is the code of every variant that is not listed.
macro_rules! codes {
    (
        $error:ty, otherwise $otherwise:literal;
        inside: [$($inner:ident),*];
        $($variant:ident => $code:literal,)*
    ) => {
        impl Code for $error {
            #[allow(unreachable_patterns, reason = "not every enum is non-exhaustive")]
            fn code(&self) -> &'static str {
                match self {
                    $(Self::$inner(error) => error.code(),)*
                    $(Self::$variant { .. } => $code,)*
                    _ => $otherwise,
                }
            }
        }

        #[cfg(test)]
        impl Codes for $error {
            const CODES: &'static [&'static str] = &[$($code,)* $otherwise];
        }
    };
}

/// The codes that a type declares.
#[cfg(test)]
trait Codes {
    const CODES: &'static [&'static str];
}

/// The code of the first error in the chain that has one.
fn code(error: &anyhow::Error) -> &'static str {
    fn of<E: Code + std::error::Error + 'static>(
        cause: &(dyn std::error::Error + 'static),
    ) -> Option<&'static str> {
        cause.downcast_ref::<E>().map(Code::code)
    }
    let code = |cause| {
        None.or_else(|| of::<UsageError>(cause))
            .or_else(|| of::<InputError>(cause))
            .or_else(|| of::<Interrupted>(cause))
            .or_else(|| of::<NoGpu>(cause))
            .or_else(|| of::<NoRail>(cause))
            .or_else(|| of::<NoSuchGpu>(cause))
            .or_else(|| of::<UnexpectedObject>(cause))
            .or_else(|| of::<ContentError>(cause))
            .or_else(|| of::<gdr_object::Error>(cause))
            .or_else(|| of::<gdr_perf::Error>(cause))
            .or_else(|| of::<gdr_rdma::Error>(cause))
            .or_else(|| of::<gdr_rdma::NicError>(cause))
            .or_else(|| of::<gdr_copy::Error>(cause))
            .or_else(|| of::<gdr_cuda::Error>(cause))
            .or_else(|| of::<std::io::Error>(cause))
    };
    error.chain().find_map(code).unwrap_or("other")
}

impl Code for UsageError {
    fn code(&self) -> &'static str {
        "usage"
    }
}

impl Code for InputError {
    fn code(&self) -> &'static str {
        "input"
    }
}

impl Code for Interrupted {
    fn code(&self) -> &'static str {
        "stopped"
    }
}

impl Code for NoSuchGpu {
    fn code(&self) -> &'static str {
        "no_such_device"
    }
}

impl Code for UnexpectedObject {
    fn code(&self) -> &'static str {
        "object_unexpected"
    }
}

impl Code for ContentError {
    fn code(&self) -> &'static str {
        "object_content"
    }
}

impl Code for std::io::Error {
    fn code(&self) -> &'static str {
        "io"
    }
}

codes! {
    NoGpu, otherwise "no_gpu";
    inside: [];
    Unusable => "gpu_unusable",
}

codes! {
    NoRail, otherwise "no_rail";
    inside: [];
    NoGpu => "no_gpu",
    NoNic => "no_nic",
    NoActivePort => "no_active_port",
    NoDistance => "no_distance",
}

codes! {
    gdr_perf::Error, otherwise "measurement";
    inside: [Gpu, Copy, Rdma];
    NoMappings => "no_mappings",
    Peer => "peer",
    Transfer => "transfer",
    Host => "host",
    GpuMemory => "gpu_memory",
    Settings => "settings",
    WrongData => "wrong_data",
    NoAnswer => "no_answer",
    OutOfOrder => "out_of_order",
    Stopped => "stopped",
}

codes! {
    gdr_rdma::NicError, otherwise "nic";
    inside: [Copy, Cuda];
    EmptyBuffer => "empty_buffer",
    OutOfRange => "out_of_range",
    Misaligned => "misaligned",
    MappedElsewhere => "mapped_elsewhere",
    Foreign => "foreign",
    CompletionQueueOverrun => "completion_queue_overrun",
    Post => "post",
    State => "state",
    PortInUse => "port_in_use",
    PortSharing => "port_sharing",
    ShardCount => "shard_count",
    WireName => "wire_name",
    TooManyQueuePairs => "too_many_queue_pairs",
    PortDenied => "port_denied",
    AddressNotLocal => "address_not_local",
    AddressNotUnicast => "address_not_unicast",
    AddressFamily => "address_family",
    NoRoute => "network_unreachable",
    MtuTooSmall => "mtu_too_small",
    ForkedChild => "forked_child",
    DeviceFailed => "device_failed",
    Os => "os",
}

codes! {
    gdr_rdma::Error, otherwise "rdma";
    inside: [Handshake, Nic];
    LocalWriteMissing => "local_write_missing",
    Deadline => "deadline",
    Transfer => "transfer",
    ListenPortInUse => "listen_port_in_use",
    Connect => "connect",
    NoPeer => "no_peer",
    ListenNeedsKey => "listen_needs_key",
    KeyFile => "key_file",
    KeyTooShort => "key_too_short",
    Verbs => "verbs",
}

codes! {
    HandshakeError, otherwise "handshake";
    inside: [];
    Protocol => "handshake_protocol",
    Version => "handshake_version",
    Service => "handshake_service",
    Mtu => "handshake_mtu",
    TooLong => "handshake_too_long",
    Malformed => "handshake_malformed",
    KeyMissing => "handshake_key_missing",
    WrongKey => "handshake_wrong_key",
    Refused => "handshake_refused",
    OtherAddress => "handshake_other_address",
    NotAnAddress => "handshake_not_an_address",
    Crowded => "handshake_crowded",
    Lost => "handshake_lost",
    Gone => "handshake_gone",
    KeyNeeded => "handshake_key_needed",
    OtherUser => "handshake_other_user",
    UnknownUser => "handshake_unknown_user",
}

codes! {
    gdr_object::Error, otherwise "object";
    inside: [Rdma, Copy, Cuda];
    Name => "object_name",
    Shape => "object_shape",
    Slots => "object_slots",
    NameInUse => "object_name_in_use",
    TooMany => "object_too_many",
    NoSuchObject => "no_such_object",
    Size => "object_size",
    OutOfRange => "out_of_range",
    Empty => "object_empty",
    NothingNewer => "nothing_newer",
    Stalled => "object_stalled",
    NoAnswer => "object_no_answer",
    Gone => "object_gone",
    Denied => "object_denied",
    Busy => "object_busy",
    RingFull => "ring_full",
    Damaged => "object_damaged",
    DamagedTensor => "tensor_damaged",
    WrongMode => "object_mode",
    NoMoreEpochs => "no_more_epochs",
    EarlierEpoch => "earlier_epoch",
    Handle => "object_handle",
    Protocol => "object_protocol",
    Transfer => "transfer",
    Writer => "object_content",
    Tensors => "object_tensors",
    Os => "os",
}

codes! {
    gdr_copy::Error, otherwise "mapping";
    inside: [Gpu];
    NoBackend => "no_backend",
    BackendUnavailable => "backend_unavailable",
    BackendName => "backend_name",
    NotDeviceMemory => "not_device_memory",
    PastAllocation => "past_allocation",
    EmptyRange => "empty_range",
    DeviceNode => "device_node",
    Rm => "rm",
    SelfTest => "self_test",
    NoRoute => "no_route",
    ForkedChild => "forked_child",
    AlreadyMapped => "already_mapped",
    Invalidated => "invalidated",
    Caching => "caching",
    ForcePcie => "force_pcie",
    MapLength => "map_length",
    OutOfRange => "out_of_range",
    Unaligned => "unaligned",
    ModuleVersion => "module_version",
    Module => "module",
    DmaBufMmap => "dma_buf_mmap",
    Routine => "routine",
    Os => "os",
}

codes! {
    gdr_cuda::Error, otherwise "cuda";
    inside: [];
    Library => "library",
    Symbol => "symbol",
    Call => "call",
    UnknownPointer => "unknown_pointer",
    NoSuchDevice => "no_such_device",
    OutOfRange => "out_of_range",
    Overlap => "overlap",
    Misaligned => "misaligned",
    ForeignBuffer => "foreign_buffer",
    NotDeviceMemory => "not_device_memory",
    OtherDevice => "other_device",
    PastAllocation => "past_allocation",
    Deadline => "deadline",
    Os => "os",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_name_of_the_innermost_that_has_one() {
        let wrong_key = || gdr_rdma::Error::from(HandshakeError::WrongKey);
        let perf = gdr_perf::Error::from(wrong_key());
        assert_eq!(code(&perf.into()), "handshake_wrong_key");
        let context = anyhow::Error::from(wrong_key()).context("connecting");
        assert_eq!(code(&context), "handshake_wrong_key");
        let copy = gdr_perf::Error::Copy(gdr_copy::Error::ForkedChild);
        assert_eq!(code(&copy.into()), "forked_child");
        let settings = gdr_perf::Error::from(gdr_perf::SettingsError::NoSize);
        assert_eq!(code(&settings.into()), "settings");
        assert_eq!(code(&UsageError("no".into()).into()), "usage");
        assert_eq!(code(&InputError("no".into()).into()), "input");
        assert_eq!(code(&std::io::Error::other("no").into()), "io");
        assert_eq!(code(&anyhow::anyhow!("no")), "other");
    }

    #[test]
    fn a_gpu_that_is_missing_has_another_name_than_one_that_fails() {
        let exit = Exit::Undecided;
        assert_eq!(code(&NoGpu::Absent { exit }.into()), "no_gpu");
        let reason = String::new();
        assert_eq!(code(&NoGpu::Unusable { reason }.into()), "gpu_unusable");
    }

    #[test]
    fn an_error_becomes_the_status_of_its_kind() {
        let usage = gdr_perf::Error::from(gdr_perf::SettingsError::NoSize);
        assert_eq!(exit_status(&usage.into()), Exit::Usage);
        assert_eq!(
            exit_status(&gdr_perf::Error::Stopped.into()),
            Exit::Undecided
        );
        assert_eq!(
            exit_status(&gdr_copy::Error::ForkedChild.into()),
            Exit::Failure
        );
        assert_eq!(exit_status(&UsageError("no".into()).into()), Exit::Usage);
        assert_eq!(exit_status(&InputError("no".into()).into()), Exit::Input);
    }

    #[test]
    fn the_codes_stay_as_they_are() {
        let declared = |codes: &[&str]| codes.join(" ");
        assert_eq!(declared(<NoGpu as Codes>::CODES), "gpu_unusable no_gpu");
        assert_eq!(
            declared(<NoRail as Codes>::CODES),
            "no_gpu no_nic no_active_port no_distance no_rail"
        );
        assert_eq!(
            declared(<gdr_perf::Error as Codes>::CODES),
            "no_mappings peer transfer host gpu_memory settings wrong_data no_answer \
             out_of_order stopped measurement"
        );
        assert_eq!(
            declared(<gdr_rdma::Error as Codes>::CODES),
            "local_write_missing deadline transfer listen_port_in_use connect no_peer \
             listen_needs_key key_file key_too_short verbs rdma"
        );
        assert_eq!(
            declared(<gdr_rdma::NicError as Codes>::CODES),
            "empty_buffer out_of_range misaligned mapped_elsewhere foreign \
             completion_queue_overrun post state port_in_use port_sharing shard_count wire_name \
             too_many_queue_pairs port_denied address_not_local address_not_unicast \
             address_family network_unreachable mtu_too_small forked_child device_failed os nic"
        );
        assert_eq!(
            declared(<HandshakeError as Codes>::CODES),
            "handshake_protocol handshake_version handshake_service handshake_mtu \
             handshake_too_long \
             handshake_malformed handshake_key_missing handshake_wrong_key handshake_refused \
             handshake_other_address handshake_not_an_address handshake_crowded \
             handshake_lost handshake_gone handshake_key_needed handshake_other_user \
             handshake_unknown_user handshake"
        );
        assert_eq!(
            declared(<gdr_object::Error as Codes>::CODES),
            "object_name object_shape object_slots object_name_in_use object_too_many \
             no_such_object object_size out_of_range object_empty nothing_newer object_stalled \
             object_no_answer object_gone object_denied object_busy ring_full object_damaged \
             tensor_damaged object_mode no_more_epochs earlier_epoch object_handle object_protocol transfer object_content \
             object_tensors os \
             object"
        );
        assert_eq!(
            declared(<gdr_copy::Error as Codes>::CODES),
            "no_backend backend_unavailable backend_name not_device_memory past_allocation \
             empty_range device_node rm self_test no_route forked_child already_mapped \
             invalidated caching force_pcie map_length out_of_range unaligned module_version \
             module dma_buf_mmap routine os mapping"
        );
        assert_eq!(
            declared(<gdr_cuda::Error as Codes>::CODES),
            "library symbol call unknown_pointer no_such_device out_of_range overlap misaligned \
             foreign_buffer not_device_memory other_device past_allocation deadline os cuda"
        );
    }
}
