//! The shared library under test, and programs that use it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use tempfile::TempDir;

/// Returns the shared library that was built with this test.
pub(crate) fn shared_library() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    // Cargo builds all kinds of the library before the tests, next to them.
    let library = test.with_file_name("libgdrapi.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// Creates a folder with the shared library under the names of an installation.
#[allow(dead_code, reason = "each test binary uses a part of this")]
pub(crate) fn installed() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["libgdrapi.so", "libgdrapi.so.2"] {
        std::os::unix::fs::symlink(shared_library(), folder.path().join(name)).expect("a link");
    }
    folder
}

/// Returns the compiler of a language, if this machine has one: the variable's value or the usual name.
#[allow(dead_code, reason = "each test binary uses a part of this")]
pub(crate) fn compiler(variable: &str, usual: &str) -> Option<String> {
    let name = std::env::var(variable).ok().filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| usual.to_owned());
    Command::new(&name).arg("--version").output().ok()?;
    Some(name)
}

/// Compiles `tests/c/SOURCE` against `include/gdrapi.h` and the library in `folder`, treating warnings as errors.
#[allow(dead_code, reason = "each test binary uses a part of this")]
pub(crate) fn compile(compiler: &str, standard: &str, source: &str, folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join(source.replace('.', "_"));
    let output = Command::new(compiler)
        .arg(format!("-std={standard}"))
        .args([
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-O2",
            "-g",
            "-pthread",
        ])
        .arg("-I")
        .arg(root.join("include"))
        .arg(root.join("tests/c").join(source))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(folder)
        .args(["-lgdrapi", "-ldl"])
        .output()
        .expect("the compiler starts");
    assert_success(&format!("compiling {source}"), &output);
    program
}

/// Maximum run time of a program. One that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs `program` on the simulated GPU, with the library in `folder`.
#[allow(dead_code, reason = "each test binary uses a part of this")]
pub(crate) fn run(program: &Path, folder: &Path, variables: &[(&str, &str)]) -> Output {
    run_command(Command::new(program), folder, variables)
}

/// Like [`run`], for a program with arguments.
#[allow(dead_code, reason = "each test binary uses a part of this")]
pub(crate) fn run_command(
    mut command: Command,
    folder: &Path,
    variables: &[(&str, &str)],
) -> Output {
    let child = command
        .env("LD_LIBRARY_PATH", folder)
        .env("GDR_BACKEND", "sim")
        .env("GDR_SIM_BYTES", "1048576")
        .env_remove("GDR_COPY")
        .env_remove("GDR_COPY_THREADS")
        .env_remove("GDRCOPY_ENABLE_LOGGING")
        .env_remove("GDRCOPY_LOG_LEVEL")
        .env_remove("GDRCOPY_USE_DMABUF_MMAP")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let pid = child.id().cast_signed();
    let (ended, end) = channel();
    let reader = std::thread::spawn(move || {
        let output = child.wait_with_output();
        // If the program hung, the receiver is gone.
        let _ = ended.send(());
        output
    });
    if end.recv_timeout(LIMIT).is_err() {
        // SAFETY: the process is a child that was not waited for, so the PID is still its own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        panic!("{command:?} did not end within {LIMIT:?}");
    }
    let output = reader.join().expect("the reader ends");
    output.expect("the program's output")
}

/// Fails with the output unless the program ended with status 0.
#[allow(dead_code, reason = "each test binary uses a part of this")]
pub(crate) fn assert_success(what: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
