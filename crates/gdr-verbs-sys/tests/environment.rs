//! `GDR_LIBIBVERBS`, in a separate process, because the environment belongs to the process.

use std::env;

use gdr_verbs_sys::{LoadError, Verbs};

/// Returns the file that could not be loaded.
fn failed_file(value: &str) -> Option<String> {
    // SAFETY: this process has one test, whose other thread waits for it.
    unsafe { env::set_var("GDR_LIBIBVERBS", value) };
    match Verbs::library() {
        Err(LoadError::Library { library, .. }) => Some(library.display().to_string()),
        Err(error) => panic!("{error}"),
        Ok(verbs) => Some(verbs.file().display().to_string()),
    }
}

#[test]
fn the_environment_names_the_library_and_a_failure_is_not_remembered() {
    for value in ["/nonexistent/first.so", "/nonexistent/second.so"] {
        assert_eq!(failed_file(value).as_deref(), Some(value));
    }
    assert_eq!(failed_file("").as_deref(), Some("libibverbs.so.1"));
}
