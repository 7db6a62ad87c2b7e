//! Errors for a missing libibverbs, a missing function in it, and a missing device.

use std::fs;
use std::path::PathBuf;

use gdr_verbs_sys::{LoadError, NoDevice, Verbs};

/// Returns a library that exists and is not libibverbs: the C library.
fn other_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs is mounted");
    let mut files = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    files
        .find(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libc.") || name.starts_with("libc-") || name.starts_with("ld-musl")
        })
        .expect("this process has a C library")
}

#[test]
fn the_error_of_a_missing_library_has_its_path_and_the_reason() {
    // SAFETY: the library does not exist.
    let error = unsafe { Verbs::open("/nonexistent/libibverbs.so.1") }.unwrap_err();
    let LoadError::Library { library, reason } = &error else {
        panic!("{error}");
    };
    assert_eq!(library, &PathBuf::from("/nonexistent/libibverbs.so.1"));
    assert!(!reason.is_empty());
    assert!(error.to_string().contains("GDR_LIBIBVERBS"), "{error}");
}

#[test]
fn a_file_that_is_not_a_library_is_not_loaded() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    // SAFETY: the file is not a library, so no code of it runs.
    let error = unsafe { Verbs::open(file) }.unwrap_err();
    assert!(matches!(error, LoadError::Library { .. }), "{error}");
}

#[test]
fn the_error_of_a_library_without_verbs_has_the_missing_function() {
    let file = other_library();
    // SAFETY: this process has already loaded it, and it defines none of the functions.
    let error = unsafe { Verbs::open(&file) }.unwrap_err();
    let LoadError::Symbol { library, symbol } = &error else {
        panic!("{error}");
    };
    assert_eq!((library, *symbol), (&file, "ibv_get_device_list"));
}

#[test]
fn each_reason_for_a_missing_device_has_its_own_text() {
    let text = |reason| LoadError::NoDevice(reason).to_string();
    assert!(text(NoDevice::Empty).contains("list is empty"));
    assert!(text(NoDevice::NoUverbs).contains("modprobe ib_uverbs"));
}

#[test]
fn an_installed_library_lists_its_devices() {
    let verbs = match Verbs::library() {
        Ok(verbs) => verbs,
        Err(LoadError::Library { library, reason }) => {
            skip::skip(format_args!(
                "{} is not installed: {reason}",
                library.display()
            ));
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let loaded = Verbs::load();
    match verbs.devices() {
        Ok(devices) if devices.is_empty() => {
            assert_eq!(loaded.unwrap_err(), LoadError::NoDevice(NoDevice::Empty));
        }
        Ok(devices) => {
            assert!(std::ptr::eq(loaded.unwrap(), verbs));
            assert!(devices.as_slice().iter().all(|device| !device.is_null()));
            assert_eq!(devices.as_slice().len(), devices.len());
        }
        Err(error) => assert_eq!(loaded.unwrap_err(), error),
    }
}
