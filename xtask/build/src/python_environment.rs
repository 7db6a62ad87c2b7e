//! Virtual environments of Python in the target folder, with packages of PyPI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::packages::once;
use crate::results::Unavailable;
use crate::workspace::{root, target};

/// The oldest Python that the package of this workspace, and its tools, support.
const OLDEST: &str = "3.11";

/// A virtual environment.
#[derive(Debug)]
pub struct Environment(PathBuf);

impl Environment {
    /// Returns the environment of a name with these packages, fetched once.
    pub fn with(name: &str, packages: &[&str]) -> anyhow::Result<Self> {
        let version = Command::new("python3")
            .args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
            .output();
        let version = version
            .map_err(|error| Unavailable::new(format!("python3 cannot be started ({error})")))?;
        let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
        if !is_new_enough(&version) {
            let reason = format!("python3 is {version}: {OLDEST} or later is needed");
            return Err(Unavailable::new(reason).into());
        }
        let recipe = format!("{version} {packages:?}");
        let folder = target().join("python").join(name);
        let folder = once(&folder, &recipe, |partial| {
            let mut pip = Self::make(partial)?.python();
            pip.args(["-m", "pip", "install", "--quiet"]);
            pip.arg("--disable-pip-version-check");
            let installed = pip.args(packages).status()?;
            if !installed.success() {
                let reason = format!("pip cannot install {} (no network?)", packages.join(", "));
                return Err(Unavailable::new(reason).into());
            }
            Ok(())
        })?;
        Ok(Self(folder))
    }

    /// Makes an environment with pip alone, in place of what is there.
    pub fn make(folder: &Path) -> anyhow::Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let made = Command::new("python3")
            .args(["-m", "venv"])
            .arg(folder)
            .stdout(Stdio::null())
            .status()?;
        if !made.success() {
            let reason = "python3 makes no virtual environment: install python3-venv";
            return Err(Unavailable::new(reason).into());
        }
        Ok(Self(folder.to_owned()))
    }

    /// Returns its Python, in the root of the workspace.
    pub fn python(&self) -> Command {
        self.program("python")
    }

    /// Returns a program of one of its packages, in the root of the workspace.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.0.join("bin").join(name));
        command.current_dir(root());
        command
    }

    /// Returns the folder of its packages.
    pub fn packages(&self) -> anyhow::Result<String> {
        let program = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let output = self.python().args(["-c", program]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// Returns whether a version of Python is [`OLDEST`] or later.
fn is_new_enough(version: &str) -> bool {
    let parts = |text: &str| {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    parts(version) >= parts(OLDEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_that_is_too_old_or_unknown_is_refused() {
        for accepted in ["3.11", "3.12", "4.0"] {
            assert!(is_new_enough(accepted), "{accepted}");
        }
        for refused in ["3.9", "3.10", "2.7", "", "three"] {
            assert!(!is_new_enough(refused), "{refused}");
        }
    }
}
