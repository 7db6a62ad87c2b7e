//! Error texts as their programs print them, by cause, in the files of `src/explain/causes`.

mod gpus;
mod libraries;
mod modules;
mod nics;
mod path;
mod pcie;
mod registration;
mod setup;
mod transport;

/// The texts of each cause. The cause must be the first of each text.
pub(crate) type Texts = &'static [(&'static str, &'static [&'static str])];

const ALL: [Texts; 9] = [
    gpus::TEXTS,
    libraries::TEXTS,
    modules::TEXTS,
    nics::TEXTS,
    path::TEXTS,
    pcie::TEXTS,
    registration::TEXTS,
    setup::TEXTS,
    transport::TEXTS,
];

/// Every cause with one of its texts.
pub(crate) fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows = ALL.into_iter().flatten();
    rows.flat_map(|(cause, texts)| texts.iter().map(move |text| (*cause, *text)))
}
