//! This library defines every function of the newest libibverbs itself, and does not pass objects of its own to the
//! installed libibverbs.

#![allow(clippy::unwrap_used)]

#[path = "../library/built.rs"]
mod built;
#[allow(dead_code, reason = "the other test binaries use the rest")]
#[path = "../forwarding/copy.rs"]
mod copy;
mod installed;
mod list;
mod newest;
mod objects;

use std::ffi::{CString, c_void};

use crate::built::libraries;
use crate::copy::{Copy, PRELOAD, SHADOW};
use crate::installed::Installed;
use crate::list::{Function, List};
use crate::objects::{Objects, Scratch};

/// Public functions that only the installed library provides: drivers and librdmacm call them, with structures of
/// numbers and without objects of a device.
const NOT_OURS: [&str; 1] = ["ibv_register_driver"];

/// Returns the functions of a list that a library lacks.
fn missing<'a>(
    list: &'a List,
    library: &List,
    is_needed: impl Fn(&Function) -> bool,
) -> Vec<&'a Function> {
    let needed = list.needed().filter(|function| is_needed(function));
    needed
        .filter(|function| !library.functions.contains(function))
        .collect()
}

fn assert_none_missing(list: &List) {
    let exported = |file: &str| List::of_file(&libraries().join(file), file.to_owned());
    let is_public =
        |function: &Function| !function.is_private() && !NOT_OURS.contains(&function.name.as_str());
    let preload = missing(list, &exported(PRELOAD), is_public);
    assert!(
        preload.is_empty(),
        "{}: gdr's libibverbs lacks {preload:?}. A program that calls one with an object of gdr reaches the \
         installed libibverbs, which crashes. Write it in crates/gdr-verbs/src, or let it answer EOPNOTSUPP \
         in trivial.rs; add it to libibverbs.map in this node, and to tests/exports/rdma-core.txt",
        list.release
    );
    let shadow = missing(list, &exported(SHADOW), |_| true);
    assert!(
        shadow.is_empty(),
        "{}: the libibverbs in the installed one's place lacks {shadow:?}, and programs and libraries that need \
         one do not start. Add private functions, and a node that is new, to private.S, versions.S and \
         libibverbs.map of crates/gdr-verbs, and all to tests/exports/rdma-core.txt",
        list.release
    );
}

#[test]
fn every_function_of_the_list_is_exported_in_its_node() {
    assert_none_missing(&List::kept());
}

#[test]
fn every_function_of_the_newest_rdma_core_is_exported_in_its_node() {
    match newest::newest() {
        Ok(list) => {
            // Shows that functions were read.
            assert!(list.public().len() > 80, "{}", list.release);
            assert_none_missing(&list);
        }
        Err(reason) => skip::skip(format_args!(
            "the newest rdma-core is not to be had: {reason}"
        )),
    }
}

#[test]
fn a_function_that_is_new_in_a_list_is_missing() {
    let mut list = List::kept();
    let new = Function {
        name: "ibv_new_function".to_owned(),
        node: "IBVERBS_1.19".to_owned(),
    };
    list.functions.insert(new.clone());
    let preload = List::of_file(&libraries().join(PRELOAD), PRELOAD.to_owned());
    let is_public =
        |function: &Function| !function.is_private() && !NOT_OURS.contains(&function.name.as_str());
    assert_eq!(missing(&list, &preload, is_public), [&new]);
}

#[test]
fn functions_are_found_without_their_version() {
    let list = List::kept();
    for file in [PRELOAD, SHADOW] {
        let copy = Copy::new(file, &[]);
        let own = |function: &&Function| {
            file == SHADOW
                || !function.is_private() && !NOT_OURS.contains(&function.name.as_str())
                || ["ibv_query_gid_type", "ibv_wr_opcode_str"].contains(&function.name.as_str())
        };
        let lost: Vec<_> = list
            .needed()
            .filter(own)
            .filter(|function| copy.default(&function.name).is_null())
            .collect();
        assert!(lost.is_empty(), "{file}: {lost:?}");
    }
}

#[test]
fn the_library_that_is_loaded_by_name_gives_the_functions_of_the_preloaded_one() {
    let symbol = |file: &str, name: &str| {
        let path = libraries().join(file);
        let [path, name] = [path.to_str().unwrap(), name].map(|it| CString::new(it).unwrap());
        // SAFETY: C strings; the libraries may be loaded at any time.
        let found = unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            libc::dlsym(handle, name.as_ptr())
        };
        assert!(!found.is_null(), "{file}: {name:?}");
        found
    };
    let list = List::kept();
    let own = list
        .public()
        .into_iter()
        .filter(|it| !NOT_OURS.contains(it));
    for name in own {
        // The symbols are the same, so an object of one library is valid in the other.
        assert_eq!(symbol(PRELOAD, name), symbol(SHADOW, name), "{name}");
    }
}

/// Functions whose arguments are not objects of a device.
const WITHOUT_OBJECTS: [&str; 23] = [
    "ibv_copy_ah_attr_from_kern",
    "ibv_copy_path_rec_from_kern",
    "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern",
    "ibv_ack_async_event",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_event_type_str",
    "ibv_fork_init",
    "ibv_free_device_list",
    "ibv_get_device_list",
    "ibv_get_sysfs_path",
    "ibv_import_device",
    "ibv_is_fork_initialized",
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
    "ibv_read_sysfs_file",
    "ibv_wc_status_str",
    "mbps_to_ibv_rate",
    "mult_to_ibv_rate",
    "ibv_resolve_eth_l2_from_gid",
];

/// Calls a function of the library with an object and zeroed memory.
fn call(function: *mut c_void, name: &str, object: *mut c_void, scratch: &Scratch) {
    type Six = unsafe extern "C" fn(*mut c_void, usize, usize, usize, usize, usize) -> usize;
    // SAFETY: all functions of libibverbs take at most six arguments, in integer registers.
    let function = unsafe { std::mem::transmute::<*mut c_void, Six>(function) };
    let memory = scratch.zeroed();
    let arguments = match name {
        // Some arguments of these functions are numbers of bytes or entries.
        "_ibv_query_comp_cntr_caps" => [memory, 16, 0, 0, 0],
        "_ibv_query_gid_ex" => [1, 0, memory, 0, 32],
        "_ibv_query_gid_table" => [memory, 16, 0, 32, 0],
        "ibv_alloc_buf" => [4096, memory, 0, 0, 0],
        "ibv_reg_mr" | "ibv_reg_mr_iova" | "ibv_reg_mr_iova2" => [memory, 4096, 0, 0, 0],
        _ => [memory; 5],
    };
    let [a, b, c, d, e] = arguments;
    // SAFETY: the library checks handles; arguments that are pointers refer to zeroed memory, and numbers in the same
    // position are 0, because the lower 32 bits of the memory's address are zero.
    unsafe { function(object, a, b, c, d, e) };
}

#[test]
fn no_function_passes_an_object_of_this_library_to_the_installed_one() {
    let list = List::kept();
    let installed = Installed::new(&list);
    let scratch = Scratch::new();
    let mut names: Vec<_> = list.public().into_iter().collect();
    names.retain(|name| !WITHOUT_OBJECTS.contains(name) && !NOT_OURS.contains(name));
    // Functions that destroy objects come last, and a destroyed object must not be passed on either.
    let ends = ["destroy", "dealloc", "dereg", "free", "close"];
    names.sort_by_key(|name| ends.iter().position(|end| name.contains(end)));
    assert!(names.len() > 60, "{names:?}");
    for (kind, object) in Objects::new(&installed.copy).all() {
        installed.called();
        for name in &names {
            let function = installed.copy.default(name);
            assert!(!function.is_null(), "{name}");
            call(function, name, object, &scratch);
            assert_eq!(installed.called(), [""; 0], "{name} with {kind}");
        }
    }
}

#[test]
fn an_object_of_this_library_beside_one_of_the_installed_library_is_refused() {
    let list = List::kept();
    let installed = Installed::new(&list);
    let objects = Objects::new(&installed.copy);
    installed.called();
    for (name, returned) in objects.beside(&installed) {
        assert_eq!(returned, libc::EINVAL, "{name}");
        assert_eq!(installed.called(), [""; 0], "{name}");
    }
}

#[test]
fn objects_of_the_installed_library_are_passed_on_to_it() {
    let list = List::kept();
    let installed = Installed::new(&list);
    let scratch = Scratch::new();
    for name in list.public() {
        if WITHOUT_OBJECTS.contains(&name) || NOT_OURS.contains(&name) {
            continue;
        }
        installed.called();
        call(
            installed.copy.default(name),
            name,
            installed.object(),
            &scratch,
        );
        // Opening a device lists the devices first, and extended queue pairs have their own structure.
        let called = installed.called();
        assert!(called.contains(&name.to_owned()), "{name}: {called:?}");
    }
}
