//! What is said where libibverbs, a function of it, or a device is missing.

use std::fs;
use std::path::PathBuf;

use gdr_verbs_sys::{LoadError, NoDevice, Verbs};

/// A library that is certainly here and is not libibverbs: the C library.
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
fn a_library_that_is_missing_is_named_with_the_loaders_words() {
    // SAFETY: there is no such library.
    let error = unsafe { Verbs::open("/nonexistent/libibverbs.so.1") }.unwrap_err();
    let LoadError::Library { library, reason } = &error else {
        panic!("{error}");
    };
    assert_eq!(library, &PathBuf::from("/nonexistent/libibverbs.so.1"));
    assert!(!reason.is_empty());
    assert!(error.to_string().contains("GDR_LIBIBVERBS"), "{error}");
}

#[test]
fn a_file_that_is_no_library_is_not_loaded() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    // SAFETY: it is no library.
    let error = unsafe { Verbs::open(file) }.unwrap_err();
    assert!(matches!(error, LoadError::Library { .. }), "{error}");
}

#[test]
fn a_library_without_verbs_is_told_by_the_function_it_lacks() {
    let file = other_library();
    // SAFETY: this process has it loaded already, and it has none of the functions' names.
    let error = unsafe { Verbs::open(&file) }.unwrap_err();
    let LoadError::Symbol { library, symbol } = &error else {
        panic!("{error}");
    };
    assert_eq!((library, *symbol), (&file, "ibv_get_device_list"));
}

#[test]
fn reasons_for_having_no_device_are_told_apart() {
    let text = |reason| LoadError::NoDevice(reason).to_string();
    assert!(text(NoDevice::Empty).contains("list is empty"));
    assert!(text(NoDevice::NoUverbs).contains("modprobe ib_uverbs"));
}

#[test]
fn a_library_that_is_there_lists_its_devices() {
    let verbs = match Verbs::library() {
        Ok(verbs) => verbs,
        Err(LoadError::Library { library, reason }) => {
            eprintln!("SKIPPED: {} is not here: {reason}", library.display());
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
