//! The library together with an installed libibverbs: the devices of both are listed and usable in one process, and
//! private functions are passed to the installed library.

#![allow(clippy::unwrap_used)]

#[path = "../library/built.rs"]
mod built;
mod copy;
mod objects;

use std::ffi::{CStr, c_int, c_long, c_void};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::ptr;

use fake_ibverbs::Kind::{Channel, Context, Domain, Pair, Queue, Region};
use gdr_verbs_sys::*;
use tempfile::TempDir;

use crate::built::libraries;
use crate::copy::{ADDRESS, Copy, PRELOAD, SHADOW, fake};
use crate::objects::Objects;

#[test]
fn devices_of_both_libraries_are_listed_and_used_in_one_process() {
    for file in [PRELOAD, SHADOW] {
        let fake = fake();
        let copy = Copy::new(file, &[("GDR_LIBIBVERBS", fake.path())]);
        let verbs = copy.verbs;
        assert_eq!(copy.names(), ["gdr0", "mlx5_0"], "{file}");
        let (mut near, mut far) = (vec![0_u64; 64], vec![0_u64; 64]);
        let own = Objects::new(verbs, copy.open(0), &mut near);
        let installed = Objects::new(verbs, copy.open(1), &mut far);
        // Only calls for its own device have reached the installed library.
        for kind in [Context, Domain, Region, Channel, Queue, Pair] {
            assert_eq!(fake.live("mlx5_0", kind), 1, "{file} {kind:?}");
        }
        for objects in [&own, &installed] {
            let state = objects.initialized(verbs);
            assert_eq!(state, ibv_qp_state::IBV_QPS_INIT, "{file}");
            // SAFETY: the context is open.
            unsafe { verbs.query_gid(objects.context, 1, 0) }.unwrap();
        }
        // Neither library accepts an object of the other.
        let (context, pd) = (own.context, installed.domain);
        // SAFETY: the library checks handles.
        let refused = unsafe {
            let queue = verbs.ibv_create_cq(context, 1, ptr::null_mut(), installed.channel, 0);
            let pair = verbs.ibv_dealloc_pd(pd);
            (queue.is_err(), pair.is_err())
        };
        assert_eq!(refused, (true, true), "{file}");
        own.close(verbs);
        installed.close(verbs);
        fake.assert_clean();
    }
}

#[test]
fn handles_of_destroyed_objects_are_not_passed_on() {
    let fake = fake();
    let copy = Copy::new(PRELOAD, &[("GDR_LIBIBVERBS", fake.path())]);
    let mut words = vec![0; 8];
    let own = Objects::new(copy.verbs, copy.open(0), &mut words);
    own.close(copy.verbs);
    own.assert_unknown(copy.verbs);
    // The simulated library records handles that it did not return.
    fake.assert_clean();
}

#[test]
fn devices_of_the_installed_library_are_hidden_on_request() {
    let fake = fake();
    let variables = [
        ("GDR_LIBIBVERBS", fake.path()),
        ("GDR_ONLY_SOFT", Path::new("1")),
    ];
    let copy = Copy::new(PRELOAD, &variables);
    assert_eq!(copy.names(), ["gdr0"]);
}

#[test]
fn without_a_usable_installed_library_the_own_devices_are_there() {
    for library in ["/nonexistent/libibverbs.so.1", "/proc/self/exe"] {
        let copy = Copy::new(SHADOW, &[("GDR_LIBIBVERBS", Path::new(library))]);
        assert_eq!(copy.names(), ["gdr0"], "{library}");
    }
    // The library does not forward to itself, even if a program has loaded it under the other name.
    let own = libraries().join(PRELOAD);
    let copy = Copy::new(SHADOW, &[("GDR_LIBIBVERBS", &own)]);
    assert_eq!(copy.names(), ["gdr0"]);
}

/// A program that looks up the functions in the library that `dlopen` finds, as NCCL does.
const LOOKS_UP: &str = "#include <dlfcn.h>\n\
    #include <stdlib.h>\n\
    static void *library;\n\
    static void *find(const char *name) { void *at = dlsym(library, name); if (!at) exit(3); return at; }\n\
    int main(int count, char **arguments) {\n\
        static char memory[4096];\n\
        library = dlopen(arguments[1], RTLD_NOW);\n\
        if (!library) return 2;\n\
        void **devices = ((void **(*)(int *))find(\"ibv_get_device_list\"))(&count);\n\
        void *context = ((void *(*)(void *))find(\"ibv_open_device\"))(devices[0]);\n\
        void *pd = ((void *(*)(void *))find(\"ibv_alloc_pd\"))(context);\n\
        void *(*reg_mr)(void *, void *, size_t, int) = find(\"ibv_reg_mr\");\n\
        return reg_mr(pd, memory, sizeof memory, 1) ? 0 : 4;\n\
    }\n";

#[test]
fn both_libraries_in_one_process_do_not_call_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("main.c"), folder.path().join("program"));
    fs::write(&source, LOOKS_UP).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg(&source).arg("-ldl").arg("-o").arg(&program);
    assert!(compiler.status().unwrap().success());
    let ended = Command::new(&program)
        .arg(libraries().join(SHADOW))
        .env("LD_PRELOAD", libraries().join(PRELOAD))
        .env("GDR_NICS", ADDRESS)
        .env_remove("GDR_LIBIBVERBS")
        .status()
        .unwrap();
    assert_eq!(ended.code(), Some(0));
}

/// Builds a library with private functions of rdma-core: one with more arguments than there are registers, and one with
/// a variable number of arguments.
fn private_functions() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("private.c");
    let text = "#include <stdarg.h>\n\
        #include <stdio.h>\n\
        long ibv_cmd_reg_mr(long a, long b, long c, long d, long e, long f, long g, long h, long i,\n\
                            long j) {\n\
            return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j;\n\
        }\n\
        char text[64];\n\
        void __verbs_log(void *context, unsigned level, const char *format, ...) {\n\
            va_list list; va_start(list, format);\n\
            vsnprintf(text, sizeof text, format, list);\n\
            va_end(list);\n\
        }\n\
        char *verbs_open_device(void) { return text; }\n";
    fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]);
    compiler.arg(folder.path().join("private.so")).arg(&source);
    assert!(compiler.status().unwrap().success());
    folder
}

/// The version nodes of private functions in the releases of rdma-core.
const PRIVATE: [&str; 5] = [
    "IBVERBS_PRIVATE_34",
    "IBVERBS_PRIVATE_57",
    "IBVERBS_PRIVATE_59",
    "IBVERBS_PRIVATE_64",
    "IBVERBS_PRIVATE_65",
];

type Ten = extern "C" fn(
    c_long,
    c_long,
    c_long,
    c_long,
    c_long,
    c_long,
    c_long,
    c_long,
    c_long,
    c_long,
) -> c_long;
type Log = unsafe extern "C" fn(*mut c_void, u32, *const std::ffi::c_char, ...);
type Text = extern "C" fn() -> *const std::ffi::c_char;

#[test]
fn private_functions_are_those_of_the_installed_library() {
    let folder = private_functions();
    let installed = folder.path().join("private.so");
    let copy = Copy::new(SHADOW, &[("GDR_LIBIBVERBS", &installed)]);
    for version in PRIVATE {
        let [ten, log, text] = ["ibv_cmd_reg_mr", "__verbs_log", "verbs_open_device"]
            .map(|name| copy.private(name, version));
        assert!(
            !ten.is_null() && !log.is_null() && !text.is_null(),
            "{version}"
        );
        // SAFETY: the functions of the C library above.
        let (ten, log, text) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Ten>(ten),
                std::mem::transmute::<*mut c_void, Log>(log),
                std::mem::transmute::<*mut c_void, Text>(text),
            )
        };
        let sum = ten(1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
        assert_eq!(sum, (1..=10).map(|it| it * it).sum::<c_long>(), "{version}");
        // SAFETY: a format, and its arguments.
        unsafe { log(ptr::null_mut(), 1, c"%d %.2f".as_ptr(), 7_i32, 2.5_f64) };
        // SAFETY: the function returns a C string.
        let text = unsafe { CStr::from_ptr(text()) };
        assert_eq!(text, c"7 2.50", "{version}");
    }
}

#[test]
fn private_functions_refuse_without_an_installed_library() {
    let copy = Copy::new(SHADOW, &[("GDR_ONLY_SOFT", Path::new("1"))]);
    for version in PRIVATE {
        let [status, pointer, minus_one] = [
            "ibv_cmd_alloc_pd",
            "verbs_open_device",
            "ibv_read_ibdev_sysfs_file",
        ]
        .map(|name| copy.private(name, version));
        // SAFETY: functions that ignore arguments.
        let (status, pointer, minus_one) = unsafe {
            (
                std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(status),
                std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(pointer),
                std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(minus_one),
            )
        };
        assert_eq!(status(), libc::EOPNOTSUPP, "{version}");
        assert!(pointer().is_null(), "{version}");
        assert_eq!(minus_one(), -1, "{version}");
        let register = format!("verbs_register_driver_{}", &version[16..]);
        assert!(!copy.private(&register, version).is_null(), "{version}");
    }
    let called_by_drivers = "verbs_allow_disassociate_destroy";
    assert!(
        !copy
            .private(called_by_drivers, "IBVERBS_PRIVATE_34")
            .is_null()
    );
}
