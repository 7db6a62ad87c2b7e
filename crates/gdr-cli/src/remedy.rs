//! Maps errors from the libraries to the options and commands of `gdr` that help.

use gdr_perf::{Remedy, loopback, mesh, transfer};
use gdr_rdma::{HandshakeError, NicError, SocketError, VerbsError};

/// Returns the option or command of `gdr` for `remedy`, as the last part of a sentence.
pub(crate) const fn spelled(remedy: Remedy) -> Option<&'static str> {
    Some(match remedy {
        Remedy::LongerTimeout => "use --timeout to allow more time per step",
        Remedy::SmallerSize => "use --size to transfer less at a time",
        Remedy::CompareTransferModes => "compare --staged with --direct",
        Remedy::RunSanity => "`gdr sanity` checks the mapping",
        Remedy::ListChecks => "`gdr sanity -l` lists the checks",
        Remedy::ListDevices => "`gdr devices` lists the devices",
        Remedy::NameReceiver => "choose it with --to",
        Remedy::NamePeer => "use --connect with the name of the other host",
        _ => return None,
    })
}

/// Appends `remedies` to `text`, separated by semicolons.
pub(crate) fn with_remedies(
    mut text: String,
    remedies: impl IntoIterator<Item = &'static str>,
) -> String {
    for remedy in remedies {
        text += "; ";
        text += remedy;
    }
    text
}

/// Returns the remedy for the library error in the chain of `error`, worded like [`spelled`].
pub(crate) fn of(error: &anyhow::Error) -> Option<&'static str> {
    // A server continues after it has refused a client, so that error needs no remedy.
    let of_this_end = |cause: &&(dyn std::error::Error + 'static)| {
        let error = cause.downcast_ref();
        !matches!(error, Some(gdr_rdma::Error::NoPeer { .. }))
    };
    error.chain().take_while(of_this_end).find_map(|cause| {
        None.or_else(|| cause.downcast_ref().and_then(of_perf))
            .or_else(|| cause.downcast_ref().and_then(of_object))
            .or_else(|| cause.downcast_ref().and_then(of_rdma))
            .or_else(|| cause.downcast_ref().and_then(of_copy))
            .or_else(|| cause.downcast_ref().and_then(of_cuda))
            .or_else(|| cause.downcast_ref().and_then(of_handshake))
    })
}

/// Says what the peer is, from the service named in its greeting.
fn of_handshake(error: &HandshakeError) -> Option<&'static str> {
    let HandshakeError::Service { theirs, .. } = error else {
        return None;
    };
    Some(match *theirs {
        gdr_object::SERVICE => {
            "`gdr serve` listens at that address; use `gdr ls`, `gdr get`, `gdr put` or `gdr watch` with it"
        }
        transfer::SERVICE => "`gdr perf` listens at that address; use `gdr perf VERB HOST` with it",
        loopback::SERVICE => {
            "`gdr loopback` listens at that address; use `gdr loopback --connect` with it"
        }
        loopback::pipeline::SERVICE => {
            "`gdr compare` listens at that address; use `gdr compare HOST` with it"
        }
        mesh::SERVICE => "`gdr mesh` waits for its ranks at that address; join it with `gdr mesh`",
        _ => return None,
    })
}

fn of_perf(error: &gdr_perf::Error) -> Option<&'static str> {
    match error {
        gdr_perf::Error::Gpu(error) => of_cuda(error),
        gdr_perf::Error::Copy(error) => of_copy(error),
        gdr_perf::Error::Rdma(error) => of_rdma(error),
        other => other.remedy().and_then(spelled),
    }
}

fn of_object(error: &gdr_object::Error) -> Option<&'static str> {
    match error {
        gdr_object::Error::Rdma(error) => of_rdma(error),
        gdr_object::Error::Copy(error) => of_copy(error),
        gdr_object::Error::Cuda(error) => of_cuda(error),
        gdr_object::Error::NoSuchObject { .. } => Some("`gdr ls HOST` lists its objects"),
        gdr_object::Error::Empty { .. } => Some("use --wait to wait for one"),
        gdr_object::Error::Stalled { .. } | gdr_object::Error::NoAnswer { .. } => {
            Some("use --timeout to allow more time per step")
        }
        gdr_object::Error::Denied { .. } => {
            Some("the owner allows it with `gdr serve --object ...,access=read-write`")
        }
        _ => None,
    }
}

fn of_rdma(error: &gdr_rdma::Error) -> Option<&'static str> {
    match error {
        gdr_rdma::Error::Nic(error) => of_nic(error),
        gdr_rdma::Error::Handshake(error) => of_handshake(error),
        gdr_rdma::Error::Verbs(VerbsError::GpuRegistration(_)) => Some(
            "`gdr doctor` finds the cause, and `gdr peermem status` shows whether the peer-memory \
             module works",
        ),
        gdr_rdma::Error::Verbs(VerbsError::NoSuchGid { .. }) => {
            Some("`gdr devices` shows the GIDs, which one gdr uses, and why")
        }
        _ => None,
    }
}

fn of_nic(error: &NicError) -> Option<&'static str> {
    match error {
        NicError::Copy(error) => of_copy(error),
        NicError::Cuda(error) => of_cuda(error),
        NicError::Socket(SocketError::PortInUse { .. }) => Some(
            "a second server on one host needs a different address (--bind, --listen), or a different --udp-port \
             at both ends",
        ),
        _ => None,
    }
}

fn of_copy(error: &gdr_copy::Error) -> Option<&'static str> {
    match error {
        gdr_copy::Error::Gpu(error) => of_cuda(error),
        _ => None,
    }
}

const fn of_cuda(error: &gdr_cuda::Error) -> Option<&'static str> {
    match error {
        gdr_cuda::Error::NoSuchDevice { .. } => {
            Some("--gpu takes an index, a UUID or a PCI address, and `gdr info` lists the GPUs")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use gdr_cuda::Ordinal;
    use snapshot::assert_contains;

    use super::*;

    fn no_such_gpu() -> gdr_cuda::Error {
        gdr_cuda::Error::NoSuchDevice {
            ordinal: Ordinal(7),
            count: 2,
        }
    }

    /// Returns the remedy of each form in which a command may return the error.
    fn forms(error: impl Fn() -> gdr_rdma::Error) -> Vec<String> {
        let bare = anyhow::Error::from(error());
        let measured = anyhow::Error::from(gdr_perf::Error::from(error()));
        let context = Err::<(), _>(error()).context("setting up").unwrap_err();
        [bare, measured, context]
            .iter()
            .map(|error| of(error).unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn a_registration_that_every_method_refuses_leads_to_the_doctor_and_the_module() {
        for remedy in forms(|| VerbsError::GpuRegistration(vec!["dma-buf: no".into()]).into()) {
            assert_contains!(remedy, "`gdr doctor`");
            assert_contains!(remedy, "`gdr peermem status`");
        }
    }

    #[test]
    fn a_gid_that_does_not_exist_leads_to_the_list_of_devices() {
        let error = || VerbsError::NoSuchGid {
            device: "mlx5_0".into(),
            port: 1,
            index: 99,
        };
        for remedy in forms(|| error().into()) {
            assert_contains!(remedy, "`gdr devices`");
        }
    }

    #[test]
    fn a_gpu_that_does_not_exist_leads_to_the_option_through_every_library() {
        let errors: [anyhow::Error; 5] = [
            no_such_gpu().into(),
            gdr_copy::Error::from(no_such_gpu()).into(),
            gdr_rdma::Error::from(no_such_gpu()).into(),
            gdr_perf::Error::from(no_such_gpu()).into(),
            gdr_perf::Error::Copy(no_such_gpu().into()).into(),
        ];
        for error in errors {
            let remedy = of(&error).unwrap();
            for part in ["--gpu", "index", "UUID", "PCI address", "`gdr info`"] {
                assert_contains!(remedy, part, "{error:?}");
            }
        }
    }

    #[test]
    fn an_error_without_a_remedy_stays_as_it_is() {
        let error = anyhow::Error::from(gdr_copy::Error::ForkedChild);
        assert_eq!(of(&error), None);
        assert_eq!(with_remedies("text".into(), of(&error)), "text");
        assert_eq!(with_remedies("text".into(), ["a", "b"]), "text; a; b");
    }
}
