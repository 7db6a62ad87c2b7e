//! `cargo xtask install-gdrapi`, and a C program that finds the library through pkg-config.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn shared_library() -> PathBuf {
    // Cargo builds the dependencies of a test, all kinds of them, next to it.
    let test = std::env::current_exe().expect("a running program has a path");
    let library = test.with_file_name("libgdrapi.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

fn install(arguments: &[&str], prefix: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["install-gdrapi", "--library"])
        .arg(shared_library())
        .arg("--prefix")
        .arg(prefix)
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn text(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Returns the flags that pkg-config gives for the library below `prefix`.
fn flags(libdir: &Path) -> Vec<String> {
    let output = Command::new("pkg-config")
        .args(["--cflags", "--libs", "gdrapi"])
        .env("PKG_CONFIG_PATH", libdir.join("pkgconfig"))
        .output()
        .expect("the program starts");
    text(&output)
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_loader_and_the_linker_find_their_names_and_a_second_installation_replaces_the_first() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let printed = text(&install(&[], folder.path()));
        for path in printed.lines() {
            assert!(Path::new(path).is_file(), "{path}");
        }
    }
    let lib = folder.path().join("lib");
    let file = lib.join("libgdrapi.so.2.6").canonicalize().unwrap();
    for link in ["libgdrapi.so", "libgdrapi.so.2"] {
        assert!(lib.join(link).is_symlink());
        assert_eq!(lib.join(link).canonicalize().unwrap(), file);
    }
    for header in ["gdrapi.h", "gdrconfig.h"] {
        assert!(folder.path().join("include").join(header).is_file());
    }
}

#[test]
fn a_c_program_compiles_with_what_pkg_config_says_and_runs() {
    for program in ["pkg-config", "cc"] {
        if !exists(program) {
            eprintln!("SKIPPED: {program} is not installed");
            return;
        }
    }
    let folder = tempfile::tempdir().unwrap();
    text(&install(&["--libdir", "lib64"], folder.path()));
    let libdir = folder.path().join("lib64");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/gdrapi/examples");
    let program = folder.path().join("write_and_read");
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"])
        .arg(example.join("write_and_read.c"))
        .args(flags(&libdir))
        .args(["-ldl", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    text(&compiled);
    let ran = Command::new(&program)
        .env("LD_LIBRARY_PATH", &libdir)
        .env("GDR_BACKEND", "sim")
        .output()
        .unwrap();
    assert_eq!(
        text(&ran),
        "4096 bytes written to GPU memory at 0x6000000000000 and read back\n"
    );
}

#[test]
fn a_package_is_made_below_a_folder_that_its_pkg_config_file_does_not_name() {
    let folder = tempfile::tempdir().unwrap();
    let destdir = folder.path().to_str().unwrap();
    text(&install(&["--destdir", destdir], Path::new("/opt/gdr")));
    let file = folder.path().join("opt/gdr/lib/pkgconfig/gdrapi.pc");
    let file = std::fs::read_to_string(file).unwrap();
    assert!(file.contains("prefix=/opt/gdr\n") && !file.contains(destdir));
    assert!(folder.path().join("opt/gdr/lib/libgdrapi.so.2").exists());
}

#[test]
fn a_relative_prefix_is_refused_and_the_refusal_says_why() {
    let output = install(&[], Path::new("somewhere"));
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("somewhere is not absolute"), "{error}");
}
