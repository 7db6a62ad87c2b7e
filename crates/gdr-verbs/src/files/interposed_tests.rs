//! The replaced functions, as a program calls them.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::ptr;

const DEVICE: &str = "/sys/class/infiniband/gdr0";

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn c(path: &str) -> CString {
    CString::new(path).unwrap()
}

fn last_errno() -> Option<c_int> {
    io::Error::last_os_error().raw_os_error()
}

fn names(path: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn files_of_a_device_are_read_by_every_way_to_open_them() {
    // Every host has a device of the loopback address.
    assert_eq!(text(&format!("{DEVICE}/node_type")), "1: CA\n");
    assert_eq!(text(&format!("{DEVICE}/ports/1/state")), "4: ACTIVE\n");
    assert_eq!(text(&format!("{DEVICE}/ports/1/gids/0")).len(), 40);
    let mode = c("re");
    let path = c(&format!("{DEVICE}/ports/1/link_layer"));
    let mut line = [0 as c_char; 32];
    // SAFETY: C strings, an open file, and room for a line.
    unsafe {
        let file = libc::fopen(path.as_ptr(), mode.as_ptr());
        assert!(!file.is_null());
        assert!(!libc::fgets(line.as_mut_ptr(), 32, file).is_null());
        assert_eq!(CStr::from_ptr(line.as_ptr()), c"Ethernet\n");
        libc::fclose(file);
    }
}

#[test]
fn an_open_file_can_be_read_again_and_never_written() {
    let path = format!("{DEVICE}/node_guid");
    let mut file = File::open(&path).unwrap();
    let (mut first, mut again) = (String::new(), String::new());
    file.read_to_string(&mut first).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut again).unwrap();
    assert_eq!((first.len(), &first), (20, &again));
    assert!(file.write_all(b"x").is_err());
    assert!(file.set_len(0).is_err());
    let refused = File::options().write(true).open(&path);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
    // What fstat says is what stat says.
    let (open, named) = (file.metadata().unwrap(), fs::metadata(&path).unwrap());
    assert_eq!(
        (open.ino(), open.dev(), open.mode()),
        (named.ino(), named.dev(), named.mode())
    );
    assert_eq!(named.mode(), libc::S_IFREG | 0o444);
}

#[test]
fn folders_are_listed_by_path_and_by_descriptor() {
    let by_path = names("/sys/class/infiniband");
    assert!(by_path.contains(&"gdr0".to_owned()), "{by_path:?}");
    let folder = File::open("/sys/class/infiniband").unwrap();
    assert!(folder.metadata().unwrap().is_dir());
    // SAFETY: a descriptor that the folder takes.
    let by_descriptor = unsafe {
        let folder = libc::fdopendir(folder.into_raw_fd());
        let mut names = Vec::new();
        loop {
            let entry = libc::readdir(folder);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((&raw const (*entry).d_name).cast());
            names.push(name.to_str().unwrap().to_owned());
        }
        libc::rewinddir(folder);
        assert_eq!(libc::telldir(folder), 0);
        assert!(!libc::readdir(folder).is_null());
        assert!(libc::dirfd(folder) >= 0);
        assert_eq!(libc::closedir(folder), 0);
        names
    };
    assert!(by_path.iter().all(|name| by_descriptor.contains(name)));
    assert!(by_descriptor.contains(&"..".to_owned()));
}

#[test]
fn a_path_below_an_open_folder_is_found() {
    let folder = File::open(DEVICE).unwrap();
    let open = |name: &CStr| {
        // SAFETY: an open descriptor and a C string.
        let fd = unsafe { libc::openat(folder.as_raw_fd(), name.as_ptr(), libc::O_RDONLY) };
        // SAFETY: a descriptor of this function.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    };
    assert!(open(c"ports/1/state").is_some());
    assert!(open(c"../gdr0/node_guid").is_some());
    assert!(open(c"none").is_none());
    assert_eq!(last_errno(), Some(libc::ENOENT));
    // A descriptor of another file stays what it is.
    let file = File::open("/proc/self/status").unwrap();
    // SAFETY: as above.
    let refused = unsafe { libc::openat(file.as_raw_fd(), c"x".as_ptr(), libc::O_RDONLY) };
    assert_eq!((refused, last_errno()), (-1, Some(libc::ENOTDIR)));
}

#[test]
fn links_lead_to_the_function_of_the_device() {
    let device = fs::canonicalize(format!("{DEVICE}/device")).unwrap();
    let address = device.file_name().unwrap().to_str().unwrap();
    assert_eq!(
        fs::canonicalize(format!("/sys/bus/pci/devices/{address}")).unwrap(),
        device
    );
    let bus = &address[..7];
    let by_bus = format!("/sys/class/pci_bus/{bus}/../../{address}");
    assert_eq!(fs::canonicalize(by_bus).unwrap(), device);
    assert!(fs::symlink_metadata(DEVICE).unwrap().is_symlink());
    assert!(fs::read_link(DEVICE).unwrap().ends_with("infiniband/gdr0"));
    let refused = fs::read_link(format!("{DEVICE}/node_guid"));
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    // What the tree does not have of the way, the kernel has.
    assert!(fs::metadata(format!("{DEVICE}/subsystem/../net/lo")).is_ok());
    assert!(fs::read_dir(format!("{DEVICE}/device/subsystem/devices")).is_ok());
}

#[test]
fn functions_of_devices_are_listed_with_their_configuration_space() {
    let device = fs::canonicalize(format!("{DEVICE}/device")).unwrap();
    let name = device.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(fs::metadata(format!("/sys/bus/pci/devices/{name}/class")).is_ok());
    assert!(names("/sys/bus/pci/devices").contains(&name));
    let configuration = fs::read(device.join("config")).unwrap();
    // The class and the type of the header.
    assert_eq!((configuration[0x0b], configuration[0x0e]), (2, 0));
}

#[test]
fn the_pattern_of_a_shell_finds_the_devices() {
    // SAFETY: numbers and pointers that may be null, a C string, and what glob has filled.
    unsafe {
        let mut found: libc::glob_t = std::mem::zeroed();
        let pattern = c("/sys/class/infiniband/*/ports/1/state");
        assert_eq!(libc::glob(pattern.as_ptr(), 0, None, &mut found), 0);
        let first = CStr::from_ptr(*found.gl_pathv);
        assert_eq!(first.to_str().unwrap(), format!("{DEVICE}/ports/1/state"));
        libc::globfree(&mut found);
        let none = c("/sys/class/infiniband/*/none");
        assert_eq!(
            libc::glob(none.as_ptr(), 0, None, &mut found),
            libc::GLOB_NOMATCH
        );
        let foreign = c("/proc/self/statu*");
        assert_eq!(libc::glob(foreign.as_ptr(), 0, None, &mut found), 0);
        libc::globfree(&mut found);
    }
}

unsafe extern "C" {
    fn scandir(
        path: *const c_char,
        list: *mut *mut *mut libc::dirent,
        filter: Option<unsafe extern "C" fn(*const libc::dirent) -> c_int>,
        compare: Option<
            unsafe extern "C" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int,
        >,
    ) -> c_int;
    fn alphasort(a: *mut *const libc::dirent, b: *mut *const libc::dirent) -> c_int;
}

#[test]
fn scandir_chooses_and_sorts_what_is_in_a_folder() {
    unsafe extern "C" fn is_device(entry: *const libc::dirent) -> c_int {
        // SAFETY: an entry.
        c_int::from(unsafe { (*entry).d_name[0] } == b'g' as c_char)
    }
    let mut list = ptr::null_mut();
    for path in ["/sys/class/infiniband", "/proc/self"] {
        // SAFETY: a C string, and functions of their types.
        let count = unsafe {
            scandir(
                c(path).as_ptr(),
                &mut list,
                Some(is_device),
                Some(alphasort),
            )
        };
        assert!(count >= 1, "{path}: {count}");
        // SAFETY: the array and its entries are from malloc.
        unsafe {
            for at in 0..count as usize {
                libc::free((*list.add(at)).cast());
            }
            libc::free(list.cast());
        }
    }
}

#[test]
fn character_devices_are_there_and_are_not_opened() {
    let path = "/dev/infiniband/uverbs0";
    let found = fs::metadata(path).unwrap();
    assert!(found.file_type().is_char_device());
    assert_eq!(found.rdev(), libc::makedev(231, 192));
    assert_eq!(text("/sys/class/infiniband_verbs/uverbs0/dev"), "231:192\n");
    assert_eq!(text("/sys/class/misc/rdma_cm/abi_version"), "4\n");
    // SAFETY: a C string.
    let access = |mode| unsafe { libc::access(c(path).as_ptr(), mode) };
    assert_eq!(access(libc::R_OK | libc::W_OK), 0);
    assert_eq!(access(libc::X_OK), -1);
    let refused = File::open(path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENXIO));
    for other in ["uverbs9999", "uverbs", "uverbs00", "uverbs0x"] {
        assert!(
            fs::metadata(format!("/dev/infiniband/{other}")).is_err(),
            "{other}"
        );
    }
}

#[test]
fn what_is_not_there_fails_as_without_this_library() {
    for (path, errno) in [
        ("/sys/class/infiniband/none", libc::ENOENT),
        ("/sys/class/infiniband/gdr0/node_guid/x", libc::ENOTDIR),
        ("/sys/class/infiniband/\u{ff}", libc::ENOENT),
        ("/nonexistent/infiniband", libc::ENOENT),
        ("/proc/self/status/x", libc::ENOTDIR),
        ("", libc::ENOENT),
    ] {
        let opened = File::open(path).unwrap_err();
        assert_eq!(opened.raw_os_error(), Some(errno), "{path}");
        let status = fs::metadata(path).unwrap_err();
        assert_eq!(status.raw_os_error(), Some(errno), "{path}");
        assert_eq!(
            fs::read_dir(path).unwrap_err().raw_os_error(),
            Some(errno),
            "{path}"
        );
        assert_eq!(
            fs::canonicalize(path).unwrap_err().raw_os_error(),
            Some(errno),
            "{path}"
        );
    }
    let long = format!("/sys/class/infiniband/{}", "x/".repeat(3000));
    assert_eq!(
        File::open(long).unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
    // SAFETY: the kernel sets `EFAULT`.
    unsafe {
        let nowhere = ptr::without_provenance(1);
        assert_eq!(libc::open(nowhere, libc::O_RDONLY | libc::O_DIRECTORY), -1);
        assert_eq!(last_errno(), Some(libc::EFAULT));
        assert_eq!(libc::access(nowhere, 0), -1);
        assert_eq!(last_errno(), Some(libc::EFAULT));
    }
}

#[test]
fn hidden_files_are_not_seen_by_the_thread_that_hides_them() {
    assert!(fs::metadata(DEVICE).is_ok());
    super::hidden(|| assert!(fs::metadata(DEVICE).is_err()));
    assert!(fs::metadata(DEVICE).is_ok());
}
