//! An installed libibverbs that has every function of a list, does nothing, and records the functions that were called.

use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::copy::{Copy, PRELOAD};
use crate::list::List;

/// The functions that report calls, in addition to those of the list. The library has one device, so that calls are
/// passed on.
const START: &str = "#include <stddef.h>\n\
    #include <string.h>\n\
    static char called[1 << 16];\n\
    static void note(const char *name) {\n\
        if (strlen(called) + strlen(name) + 2 < sizeof called) {\n\
            strcat(called, name); strcat(called, \" \");\n\
        }\n\
    }\n\
    const char *taken(void) {\n\
        static char last[sizeof called];\n\
        strcpy(last, called); called[0] = 0;\n\
        return last;\n\
    }\n\
    static long device[256];\n\
    void **ibv_get_device_list(int *count) {\n\
        static void *list[2] = { device, NULL };\n\
        if (count) *count = 1;\n\
        return list;\n\
    }\n\
    void ibv_free_device_list(void **list) {}\n\
    void *foreign(void) { return device; }\n";

/// The installed library, and gdr's library in front of it.
pub(crate) struct Installed {
    pub(crate) copy: Copy,
    handle: *mut c_void,
    _folder: TempDir,
}

impl Installed {
    pub(crate) fn new(list: &List) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = compiled(list, &folder);
        let copy = Copy::new(PRELOAD, &[("GDR_LIBIBVERBS", &library)]);
        let path = std::ffi::CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: the library is already loaded, so no initializer runs.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        assert!(!handle.is_null());
        Self {
            copy,
            handle,
            _folder: folder,
        }
    }

    fn own(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a handle and a C string.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!found.is_null());
        found
    }

    /// Returns the functions that were called since the last call of this method.
    pub(crate) fn called(&self) -> Vec<String> {
        let taken = self.own(c"taken");
        // SAFETY: the function has this type in the source above, and returns a C string.
        let text = unsafe {
            let taken = std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(taken);
            CStr::from_ptr(taken())
        };
        let text = text.to_str().unwrap();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns an object of the installed library, large enough for the structure of any kind.
    pub(crate) fn object(&self) -> *mut c_void {
        let foreign = self.own(c"foreign");
        // SAFETY: the function has this type in the source above.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(foreign)() }
    }
}

fn compiled(list: &List, folder: &TempDir) -> PathBuf {
    let mut text = START.to_owned();
    for name in list.public() {
        if !START.contains(&format!("{name}(")) {
            text += &format!("long {name}(void) {{ note(\"{name}\"); return 0; }}\n");
        }
    }
    let (source, library) = (folder.path().join("all.c"), folder.path().join("all.so"));
    fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    compiler
        .args(["-w", "-fno-builtin", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source);
    assert!(compiler.status().unwrap().success());
    library
}
