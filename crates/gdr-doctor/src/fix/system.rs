//! The system on which a plan is applied.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gdr_process::WholeFile;

/// The longest time that a command may run.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Poll interval while waiting for a child.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The operations that a plan needs to change a node. Paths are the node's.
pub trait System {
    /// Reads a file; returns `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// As of reading it.
    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>>;

    /// Returns whether a path exists.
    fn exists(&self, path: &str) -> bool;

    /// Writes bytes at an offset of an existing file of sysfs or config space.
    ///
    /// # Errors
    ///
    /// As of writing it.
    fn poke(&mut self, path: &str, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Replaces a file atomically.
    ///
    /// # Errors
    ///
    /// As of writing it.
    fn put(&mut self, path: &str, content: &[u8]) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// As of removing it.
    fn remove(&mut self, path: &str) -> io::Result<()>;

    /// Loads a kernel module.
    ///
    /// # Errors
    ///
    /// What modprobe says.
    fn load_module(&mut self, module: &str) -> io::Result<()>;

    /// Unloads a kernel module.
    ///
    /// # Errors
    ///
    /// What modprobe says.
    fn unload_module(&mut self, module: &str) -> io::Result<()>;
}

/// This machine, or a directory laid out like one.
#[derive(Clone, Debug)]
pub struct LiveSystem {
    root: PathBuf,
}

impl LiveSystem {
    /// Returns this machine.
    pub fn new() -> Self {
        Self::at("/")
    }

    /// Returns a directory that holds `sys`, `etc` and so on. Modules are neither loaded nor unloaded there.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn modprobe(&self, arguments: &[&str]) -> io::Result<()> {
        if self.root != Path::new("/") {
            return Err(io::Error::other("modules belong to the running machine"));
        }
        let mut child = Command::new("modprobe")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let end = Instant::now() + COMMAND_TIMEOUT;
        loop {
            if child.try_wait()?.is_some() {
                let output = child.wait_with_output()?;
                if output.status.success() {
                    return Ok(());
                }
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(io::Error::other(said.trim().to_owned()));
            }
            if Instant::now() > end {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!(
                        "modprobe did not end within {} s",
                        COMMAND_TIMEOUT.as_secs()
                    ),
                ));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Default for LiveSystem {
    fn default() -> Self {
        Self::new()
    }
}

impl System for LiveSystem {
    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.place(path)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.place(path)).is_ok()
    }

    fn poke(&mut self, path: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        OpenOptions::new()
            .write(true)
            .open(self.place(path))?
            .write_all_at(bytes, at)
    }

    fn put(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        let place = self.place(path);
        let folder = place
            .parent()
            .ok_or_else(|| io::Error::other("it is not the path of a file"))?;
        fs::create_dir_all(folder)?;
        // Who may read what was there may read what takes its place, and no others.
        let mut file = WholeFile::replacing(&place)?;
        file.write_all(content)?;
        file.file().sync_all()?;
        file.finish()
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        fs::remove_file(self.place(path))
    }

    fn load_module(&mut self, module: &str) -> io::Result<()> {
        self.modprobe(&["--", module])
    }

    fn unload_module(&mut self, module: &str) -> io::Result<()> {
        self.modprobe(&["-r", "--", module])
    }
}
