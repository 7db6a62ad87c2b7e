//! Root folders of distributions, in which packages are installed and used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use xtask_build::packages;
use xtask_build::results::Unavailable;
use xtask_build::tools::is_installed;
use xtask_build::workspace::{succeed, target};

/// How long a script in a root may take.
const LIMIT: &str = "900";

/// A root folder, removed on drop.
#[derive(Debug)]
pub(super) struct Root {
    folder: PathBuf,
}

impl Root {
    /// Creates a release of Debian with these packages and no other than the essential ones.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] without root's rights, debootstrap, or the network at the first time.
    pub(super) fn debian(suite: &str, packages: &[&str]) -> anyhow::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(Unavailable::new("only root can make and enter a root folder").into());
        }
        if !is_installed("debootstrap") {
            let reason = "debootstrap is not installed: apt-get install debootstrap";
            return Err(Unavailable::new(reason).into());
        }
        let list = packages.join(",");
        let name = match packages.is_empty() {
            true => suite.to_owned(),
            false => format!("{suite}-with-tools"),
        };
        let kept = packages::cache().join("roots").join(&name);
        let kept = packages::once(&kept, &list, |folder| {
            let mut command = Command::new("debootstrap");
            command.args(["--variant=minbase", "--merged-usr"]);
            if !packages.is_empty() {
                command.arg(format!("--include={list}"));
            }
            command
                .arg(suite)
                .arg(folder.join("root"))
                .stdout(Stdio::null());
            if !command.status().is_ok_and(|status| status.success()) {
                let reason = format!("debootstrap cannot make {suite} (no network?)");
                return Err(Unavailable::new(reason).into());
            }
            Ok(())
        })?;
        let folder = target().join("packaging/roots").join(&name);
        remove(&folder)?;
        fs::create_dir_all(folder.parent().context("no folder above")?)?;
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(kept.join("root")).arg(&folder);
        succeed(copy)?;
        Ok(Self { folder })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Copies files to /tmp of the root.
    pub(super) fn add(&self, files: &[&Path]) -> anyhow::Result<()> {
        for file in files {
            let name = file.file_name().context("a file without a name")?;
            fs::copy(file, self.folder.join("tmp").join(name))
                .with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    /// Runs a script in the root, with /proc and /sys; returns what it prints.
    ///
    /// # Errors
    ///
    /// If its exit status is not 0, with the end of what it printed.
    pub(super) fn run(&self, script: &str) -> anyhow::Result<String> {
        // Mounted in a mount namespace of its own, so nothing is left behind.
        let mounts = "mount -t proc proc /proc\nmount -t sysfs -o ro sysfs /sys";
        let script = format!("set -eu\n{mounts}\nexec 2>&1\n{script}\n");
        let output = Command::new("timeout")
            .args(["--kill-after=10", LIMIT])
            .args([
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--",
            ])
            .arg("chroot")
            .arg(&self.folder)
            .args(["/bin/sh", "-c", &script])
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("HOME", "/root")
            .env("LC_ALL", "C.UTF-8")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output()
            .context("timeout cannot be started")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!("{text}{errors}the script failed ({})", output.status);
        }
        Ok(text)
    }

    /// Returns every file of the root, except those that the package manager and caches keep.
    pub(super) fn files(&self) -> anyhow::Result<String> {
        self.run(
            "find / -xdev \\( -path /proc -o -path /sys -o -path /tmp -o -path /var/lib/dpkg -o -path /var/cache \
             -o -path /var/log -o -path /var/lib/rpm -o -path /var/lib/dnf -o -path /root \\) -prune \
             -o ! -name ld.so.cache -print | LC_ALL=C sort",
        )
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // The next run replaces what remains.
        let _ = remove(&self.folder);
    }
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}
