//! `gdr run` and `gdr trace` with libraries that do nothing.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin_cmd;
use tempfile::TempDir;

use super::clean;

/// Creates a folder of libraries that claim to be gdr's, of this version.
pub(super) fn libraries(version: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("shadow")).unwrap();
    let versions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gdr-verbs/libibverbs.map");
    let plain = folder.path().join("plain.map");
    fs::write(&plain, "{ global: *; };\n").unwrap();
    for (name, symbol) in [
        ("libgdr-verbs.so", "gdr_verbs_version"),
        ("shadow/libibverbs.so.1", "gdr_verbs_version"),
        ("libgdr-verbs-trace.so", "gdr_verbs_trace_version"),
    ] {
        let source = folder.path().join("library.c");
        let text = format!("const char {symbol}[] = \"{version}\";\n");
        fs::write(&source, text).unwrap();
        let mut script = std::ffi::OsString::from("-Wl,--version-script=");
        // With the versions of every rdma-core that may be installed here; one function is enough.
        script.push(match name.starts_with("shadow") {
            true => versions.as_os_str(),
            false => plain.as_os_str(),
        });
        let status = std::process::Command::new("cc")
            .args(["-shared", "-fPIC"])
            .arg(script)
            .arg("-o")
            .arg(folder.path().join(name))
            .arg(&source)
            .status();
        assert!(status.unwrap().success());
    }
    folder
}

/// Returns the libraries of `gdr`'s version.
pub(super) fn library() -> &'static Path {
    static LIBRARIES: OnceLock<TempDir> = OnceLock::new();
    LIBRARIES
        .get_or_init(|| libraries(env!("CARGO_PKG_VERSION")))
        .path()
}

/// `gdr` with these libraries, and an environment without what it sets for programs.
pub(super) fn command(arguments: &[&str]) -> Command {
    let mut command = clean(cargo_bin_cmd!("gdr"));
    for variable in [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "GDR_LIBIBVERBS",
        "GDR_ONLY_SOFT",
        "GDR_NICS",
        "GDR_TRACE_FOLDER",
        "GDR_VERBS_NEAR",
        "GDR_VERBS_USE",
    ] {
        command.env_remove(variable);
    }
    command.env("GDR_VERBS_LIBRARY", library());
    command.args(arguments);
    command
}
