//! The version of the library, which `gdr run` reads from its file.

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The version of this crate, a C string: not a pointer to one, so that it can be read from the file.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a name of C")]
static gdr_verbs_version: [u8; VERSION.len()] = {
    let mut text = [0; VERSION.len()];
    text.copy_from_slice(VERSION.as_bytes());
    text
};
