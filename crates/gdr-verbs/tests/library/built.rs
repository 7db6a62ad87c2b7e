//! The libraries as they are built for users.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Builds and links the libraries with the task that builds them for users; returns their folder.
pub(crate) fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // Set for a child of a test that has built them.
        if let Some(built) = std::env::var_os("GDR_TEST_LIBRARIES") {
            return built.into();
        }
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("verbs");
        let lock = out.with_extension("lock");
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        let mut lock = options.open(lock).unwrap();
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0);
        let mut built = String::new();
        lock.read_to_string(&mut built).unwrap();
        // `cargo nextest` runs each test in a process of its own; only one of them builds.
        let run = std::env::var("NEXTEST_RUN_ID").unwrap_or_default();
        if !run.is_empty() && run == built {
            return out;
        }
        let mut build = match std::env::var_os("GDR_BUILT_XTASK") {
            // Set by `cargo xtask test`, which has built everything.
            Some(xtask) => Command::new(xtask),
            None => {
                let mut cargo = Command::new(env!("CARGO"));
                cargo.args(["run", "--quiet", "--package", "xtask", "--"]);
                cargo
            }
        };
        build
            .args(["verbs-library", "--profile", "dev", "--out"])
            .arg(&out);
        assert!(
            build.status().unwrap().success(),
            "the library is not built"
        );
        lock.set_len(0).unwrap();
        lock.rewind().unwrap();
        lock.write_all(run.as_bytes()).unwrap();
        out
    })
}
