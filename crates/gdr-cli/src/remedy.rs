//! The options and commands behind the remedies that the libraries suggest.

use gdr_perf::Remedy;

/// The option or command of `gdr` for `remedy`, as the last part of a sentence.
pub(crate) const fn spelled(remedy: Remedy) -> Option<&'static str> {
    Some(match remedy {
        Remedy::LongerTimeout => "--timeout allows a step more seconds",
        Remedy::SmallerSize => "--size transfers less at a time",
        Remedy::CompareTransferModes => "--staged and --direct choose between the two",
        Remedy::RunSanity => "`gdr sanity` checks the mapping",
        Remedy::ListChecks => "`gdr sanity -l` lists the checks",
        Remedy::ListDevices => "`gdr devices` lists what --from and --to take",
        Remedy::NameReceiver => "--to names it",
        Remedy::NamePeer => "--connect names the other host",
        _ => return None,
    })
}

/// `text` with the options behind `remedies`.
pub(crate) fn with_options(mut text: String, remedies: &[Remedy]) -> String {
    for option in remedies.iter().copied().filter_map(spelled) {
        text += "; ";
        text += option;
    }
    text
}

/// The remedies of the library error in the chain of `error`.
pub(crate) fn of(error: &anyhow::Error) -> Option<Remedy> {
    error
        .chain()
        .find_map(|cause| cause.downcast_ref::<gdr_perf::Error>())
        .and_then(gdr_perf::Error::remedy)
}
