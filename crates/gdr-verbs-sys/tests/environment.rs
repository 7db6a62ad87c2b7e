//! `GDR_LIBIBVERBS`, in a process of its own: the environment is the whole process'.

use std::env;

use gdr_verbs_sys::{LoadError, Verbs};

/// The file that was asked for, where it could not be loaded.
fn asked_for(value: &str) -> Option<String> {
    // SAFETY: this test is the only one of its process, whose other thread waits for it.
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
        assert_eq!(asked_for(value).as_deref(), Some(value));
    }
    assert_eq!(asked_for("").as_deref(), Some("libibverbs.so.1"));
}
