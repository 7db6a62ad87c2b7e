//! The counters that a process writes at its end. In a test binary of its own, as it changes the
//! environment.

#![allow(clippy::unwrap_used)]

#[path = "library/built.rs"]
mod built;
#[allow(dead_code, reason = "the other test binaries use the rest")]
#[path = "library/child.rs"]
mod child;
#[allow(dead_code, reason = "the other test binaries use the rest")]
#[path = "library/side.rs"]
mod side;

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process;

use child::Child;
use gdr_verbs_sys::ibv_qp_type;
use side::Side;

/// A child that ends as a program does that closes no device, with a folder for its counters.
fn ends_with_counters(folder: &Path, before: impl FnOnce()) -> Child {
    // SAFETY: the only test of this binary; nothing else reads its environment meanwhile.
    unsafe { std::env::set_var("GDR_VERBS_COUNTERS", folder) };
    Child::fork(|| {
        let _side = Side::new(ibv_qp_type::IBV_QPT_RC);
        before();
        // SAFETY: ends the child with the functions that the library has registered.
        unsafe { libc::exit(0) }
    })
}

/// The names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn counters_that_cannot_be_written_or_whose_name_is_a_link_do_no_harm_at_the_end_of_a_process() {
    let [open, blocked, linked] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let child = ends_with_counters(open.path(), || ());
    let own = format!("{}-", child.0);
    assert_eq!(child.wait(), 0);
    let written = names(open.path());
    let [name] = &written[..] else {
        panic!("{written:?}");
    };
    let device = name.strip_prefix(&own).unwrap();
    assert!(fs::metadata(open.path().join(name)).unwrap().len() > 0);
    // A pipe without a reader, which is never opened for writing.
    let child = ends_with_counters(blocked.path(), || {
        let pipe = blocked.path().join(format!("{}-{device}", process::id()));
        let pipe = CString::new(pipe.into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    });
    let pipe = format!("{}-{device}", child.0);
    assert_eq!(child.wait(), 0, "it ended by its alarm");
    assert_eq!(names(blocked.path()), [pipe]);
    // A link that others, who foresaw the name, have put there.
    let victim = open.path().join("victim");
    fs::write(&victim, "before").unwrap();
    let child = ends_with_counters(linked.path(), || {
        let link = linked.path().join(format!("{}-{device}", process::id()));
        symlink(&victim, link).unwrap();
    });
    let own = linked.path().join(format!("{}-{device}", child.0));
    assert_eq!(child.wait(), 0);
    assert_eq!(fs::read(&victim).unwrap(), b"before");
    let written = fs::symlink_metadata(own).unwrap();
    assert!(written.is_file() && written.len() > 0);
}
