//! Gives the shared library its name and keeps it free of dependencies other than libc.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CC");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    // Programs linked against GDRCopy 2.x ask the loader for this name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgdrapi.so.2");
    // Never unload: thread-local destructors and an atfork handler are in this library, and after an unloading dlclose
    // they would be calls into unmapped memory.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // An undefined symbol must fail at link time, not when the library is loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");

    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu") {
        link_the_unwinder_statically();
    }
}

/// Takes the unwinder from `libgcc_eh.a`, so that the library needs no `libgcc_s.so.1`.
///
/// The standard library requests `-lgcc_s` under `--as-needed`, and the linker drops it if every unwinder symbol is
/// already defined. The archive is linked whole, because it precedes the standard library on the command line, where
/// nothing refers to it yet. Its symbols stay local, like all except `gdr_*`. Without such an archive (no GCC),
/// `libgcc_s` remains.
fn link_the_unwinder_statically() {
    let linker = linker();
    if has_unwinder(&linker) {
        return;
    }
    let Some(archive) = find_libgcc_eh(&linker) else {
        println!("cargo::warning=no libgcc_eh.a found: libgdrapi.so will need libgcc_s.so.1");
        return;
    };
    if let Some(folder) = archive.parent() {
        println!("cargo::rerun-if-changed={}", archive.display());
        println!("cargo::rustc-cdylib-link-arg=-L{}", folder.display());
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,--push-state,--whole-archive");
    println!("cargo::rustc-cdylib-link-arg={}", archive.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,--pop-state");
}

/// Returns the program that links the library: the linker that cargo is configured with, otherwise a C compiler.
fn linker() -> String {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(named) = variable("RUSTC_LINKER").or_else(|| variable("CC")) {
        return named;
    }
    match (variable("TARGET"), variable("HOST")) {
        (Some(target), host) if Some(&target) != host.as_ref() => {
            format!("{}gcc", cross_prefix(&target))
        }
        _ => "cc".to_owned(),
    }
}

/// Returns whether the linker is Zig's, which statically links its own unwinder. It would also find this machine's
/// `libgcc_eh.a`, which may need a newer glibc than the library is linked for.
fn has_unwinder(linker: &str) -> bool {
    let name = Path::new(linker).file_name().unwrap_or_default();
    name.to_string_lossy().starts_with("zig")
}

fn find_libgcc_eh(linker: &str) -> Option<PathBuf> {
    let output = Command::new(linker)
        .arg("-print-file-name=libgcc_eh.a")
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    // A compiler that lacks the file repeats the bare name.
    (path.is_absolute() && Path::exists(&path)).then_some(path)
}

/// Returns GCC's prefix for a target: `aarch64-linux-gnu-` for `aarch64-unknown-linux-gnu`.
fn cross_prefix(target: &str) -> String {
    format!("{}-", target.replace("-unknown", ""))
}
