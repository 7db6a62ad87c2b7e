//! The counters that a process writes when it ends. In a test binary of its own, because it changes the environment.

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
use std::os::unix::fs::symlink;
use std::path::Path;
use std::{fs, io, process, ptr};

use child::Child;
use gdr_verbs_sys::ibv_qp_type;
use side::Side;

/// The exit status of a child that may not mount.
const MAY_NOT_MOUNT: libc::c_int = 77;

/// Starts a child that ends without closing its device, with a folder for its counters.
fn ends_with_counters(folder: &Path, before: impl FnOnce()) -> Child {
    // SAFETY: this is the only test of this binary, so nothing else reads its environment at the same time.
    unsafe { std::env::set_var("GDR_VERBS_COUNTERS", folder) };
    Child::fork(|| {
        before();
        let _side = Side::new(ibv_qp_type::IBV_QPT_RC);
        // SAFETY: ends the child with the functions that the library has registered.
        unsafe { libc::exit(0) }
    })
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Mounts a file over another one, for this process only, which has a single thread.
fn mount_over(file: &Path, place: &Path) -> io::Result<()> {
    let (file, place, none) = (c_path(file), c_path(place), ptr::null());
    // SAFETY: the C strings outlive the calls.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) != 0 {
            let user = libc::getuid();
            check(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS))?;
            fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        }
        let private = libc::MS_REC | libc::MS_PRIVATE;
        check(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))?;
        let (file, place) = (file.as_ptr(), place.as_ptr());
        check(libc::mount(file, place, none, libc::MS_BIND, none.cast()))
    }
}

/// Returns the names of the files in a folder.
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
    // A file that cannot be replaced and that no process can open for writing: a mounted pipe without a reader.
    let child = ends_with_counters(blocked.path(), || {
        let (pipe, place) = ("pipe".to_owned(), format!("{}-{device}", process::id()));
        let [pipe, place] = [pipe, place].map(|name| blocked.path().join(name));
        fs::write(&place, "").unwrap();
        // SAFETY: a C string.
        check(unsafe { libc::mkfifo(c_path(&pipe).as_ptr(), 0o600) }).unwrap();
        if mount_over(&pipe, &place).is_err() {
            // SAFETY: ends the child without the parent's destructors.
            unsafe { libc::_exit(MAY_NOT_MOUNT) }
        }
    });
    match child.wait() {
        status if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == MAY_NOT_MOUNT => {
            skip::skip("in part: the kernel refuses a mount");
        }
        status => assert_eq!(status, 0, "it ended by its alarm"),
    }
    // A symbolic link that another user, who predicted the name, has created there.
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
