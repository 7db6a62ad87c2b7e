//! Error texts as their programs print them, by cause, in a file for each file of `src/causes`.
//!
//! `#### CAUSE` is a heading; below it are the texts, which may have several lines, with `----` between them.
//! The cause must be the first of each text.

const FILES: [&str; 9] = [
    include_str!("gpus.txt"),
    include_str!("libraries.txt"),
    include_str!("modules.txt"),
    include_str!("nics.txt"),
    include_str!("path.txt"),
    include_str!("pcie.txt"),
    include_str!("registration.txt"),
    include_str!("setup.txt"),
    include_str!("transport.txt"),
];

/// Returns every cause with one of its texts.
pub(crate) fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
    let causes = FILES
        .into_iter()
        .flat_map(|file| file.split("#### ").skip(1));
    causes.flat_map(|section| {
        let (cause, texts) = section.split_once('\n').unwrap();
        let texts = texts.strip_suffix('\n').unwrap().split("\n----\n");
        texts.map(move |text| (cause, text))
    })
}
