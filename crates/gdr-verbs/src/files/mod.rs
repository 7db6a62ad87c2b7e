//! The files of this library's devices in `/sys` and `/dev`, for programs that look there.
//!
//! Programs find devices in `/sys/class/infiniband`, check that `/dev/infiniband/uverbsN` is a character
//! device, and compute from the PCI function that `device` names which device is near to a GPU. The kernel has
//! no such files for this library's devices. So the library for `LD_PRELOAD` replaces the functions of the C
//! library that open, list and examine files ([`open`], [`listing`], [`status`], [`links`]), and they answer as
//! if the files were there.
//!
//! The kernel is asked first: its files stay as they are, and a call that succeeds costs nothing more. Where
//! it has nothing, and only if the path begins as one of this library's files may ([`may_be_own`]), the
//! [`tree`] is asked. So a call for any other path allocates nothing, takes no lock and leaves errno as the
//! kernel set it; and as the C library's functions are called without anything to drop, a thread may be
//! cancelled in them as without this library.
//!
//! An open file is a sealed memfd with what the file had when it was opened, an open folder an empty one: its
//! name shows which file it is ([`handle`]), in every process that inherits it. Opening a character device
//! fails with `ENXIO`: no program needs it, as libibverbs opens it for programs. Programs that call the kernel
//! themselves (statically linked ones, those in Go) see the kernel's files only.

/// Exports a function under the names that it has in the C library. Threads may be cancelled in it.
macro_rules! exported {
    (@ $name:ident, $body:ident, ($($argument:ident: $type:ty),*), $result:ty) => {
        const _: () = {
            /// # Safety
            /// As of the function of the C library.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the contract of this function.
                unsafe { self::$body($($argument),*) }
            }
        };
    };
    ($($name:ident)+ = $body:ident: $arguments:tt -> $result:ty) => {
        $(exported! { @ $name, $body, $arguments, $result })+
    };
}

mod attributes;
mod device_files;
pub(crate) mod handle;
#[cfg(test)]
mod interposed_tests;
mod links;
mod listing;
mod lookup;
pub(crate) mod next;
mod open;
mod place;
mod status;
mod tree;
mod working_folder;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem;

use gdr_nic::LinkWatch;
use gdr_process::Inherited;

use self::device_files::{Attribute, Content, Facts};
use self::tree::Tree;
use crate::device::Device;
use crate::port_state::PortState;

/// Where files of this library may be: the first names of a path; the last one may go on.
const STARTS: [&[&str]; 6] = [
    &["dev", "infiniband"],
    &["sys", "class", "infiniband"],
    &["sys", "class", "misc", "rdma_cm"],
    &["sys", "class", "pci_bus"],
    &["sys", "bus", "pci", "devices"],
    &["sys", "devices", "pci"],
];

/// Returns whether a file of this library may be at an absolute path.
fn may_be_own(path: &[u8]) -> bool {
    let [b'/', rest @ ..] = path else {
        return false;
    };
    let names = || {
        rest.split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty() && *name != b".")
    };
    STARTS.iter().any(|start| {
        let mut names = names();
        let (last, before) = start.split_last().expect("there are names");
        before
            .iter()
            .all(|expected| names.next() == Some(expected.as_bytes()))
            && names
                .next()
                .is_some_and(|name| name.starts_with(last.as_bytes()))
    })
}

/// The files of all devices.
fn files() -> &'static Tree<Content> {
    static FILES: Inherited<Tree<Content>> = Inherited::new();
    FILES.get_or_init(|| {
        let devices = Device::all();
        let places = place::places(devices.iter().map(|device| device.nic().interface.as_str()));
        let facts: Vec<_> = devices
            .iter()
            .zip(places)
            .enumerate()
            .map(|(index, (device, place))| Facts {
                index,
                name: device.name(),
                node: device.node(),
                minor: device.minor(),
                guid: device.guid(),
                interface: device.nic().interface.clone(),
                place,
            })
            .collect();
        device_files::tree(&facts)
    })
}

/// What a file has now.
fn bytes(content: &Content) -> Vec<u8> {
    let (index, attribute) = match content {
        Content::Text(text) => return text.clone().into(),
        Content::Bytes(bytes) => return bytes.to_vec(),
        Content::Live(index, attribute) => (*index, attribute),
    };
    let Some(device) = Device::all().get(index) else {
        return Vec::new();
    };
    let link = || LinkWatch::new(device.nic()).poll(&mut |_| {});
    let text = match attribute {
        Attribute::State => PortState::from(link().condition).text().to_owned(),
        Attribute::PhysicalState => PortState::from(link().condition).physical_text().to_owned(),
        Attribute::Gid => {
            let gid = link().has_address.then(|| device.gid());
            device_files::gid(gid.unwrap_or(std::net::Ipv6Addr::UNSPECIFIED))
        }
        Attribute::Counter(count) => count(&device.counters()).to_string(),
    };
    (text + "\n").into()
}

thread_local! {
    /// Whether this thread sees the kernel's files only.
    static HIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread sees what the kernel has only.
pub(crate) fn are_hidden() -> bool {
    HIDDEN.get()
}

/// Hides the files of this library from this thread, or shows them; returns what it was before.
#[unsafe(no_mangle)]
extern "C" fn gdr_verbs_hide_files(is_hidden: c_int) -> c_int {
    HIDDEN.replace(is_hidden != 0).into()
}

/// Calls a function that sees the kernel's files only: the installed libibverbs looks for its own devices.
pub(crate) fn hidden<T>(call: impl FnOnce() -> T) -> T {
    type Hide = extern "C" fn(c_int) -> c_int;
    struct Shown(Hide, c_int);
    impl Drop for Shown {
        fn drop(&mut self) {
            (self.0)(self.1);
        }
    }
    // The library for `LD_PRELOAD` shows the files, and the one in libibverbs' place may be what calls this.
    // SAFETY: a C string.
    let preloaded = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gdr_verbs_hide_files".as_ptr()) };
    // SAFETY: null, or the function above, of a library of this version.
    let preloaded = unsafe { mem::transmute::<*mut c_void, Option<Hide>>(preloaded) };
    // Both hide them: this library's own calls of the C library are answered by itself. If both are one, the
    // first shows them again, as it is dropped last.
    let _own = Shown(gdr_verbs_hide_files, gdr_verbs_hide_files(1));
    let _preloaded = preloaded.map(|hide| Shown(hide, hide(1)));
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_that_begin_as_own_files_are_looked_up() {
        for path in [
            "/dev/infiniband",
            "/dev/infiniband/uverbs0",
            "//sys/./class//infiniband/",
            "/sys/class/infiniband_verbs/abi_version",
            "/sys/class/infiniband_mad/abi_version",
            "/sys/class/pci_bus/ffff:00",
            "/sys/bus/pci/devices/ffff:ff:00.0",
            "/sys/devices/pci0000:00/0000:00:03.0/infiniband",
        ] {
            assert!(may_be_own(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "/",
            "sys/class/infiniband",
            "/sys",
            "/sys/class",
            "/sys/class/net/eth0",
            "/dev/null",
            "/tmp/sys/class/infiniband",
            "/sys/devices/system/cpu",
        ] {
            assert!(!may_be_own(path.as_bytes()), "{path}");
        }
    }
}
