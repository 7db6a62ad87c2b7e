//! `cargo xtask wheel`: the Python package `gdr` with the command and the libraries, as a wheel.
//!
//! maturin and pytest come from PyPI into a virtual environment in the target folder. The tests of
//! `cargo xtask test` run on a folder of the same files, which takes no build of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};

use crate::install::{copy_program, make_folder};
use crate::packages::once;
use crate::results::{Outcome, Results, Unavailable};
use crate::verbs_library;
use crate::workspace::{self, root, succeed, target};

/// The packages of PyPI that build and test a wheel.
const TOOLS: [&str; 2] = ["maturin==1.16.0", "pytest==9.2.0"];
/// The most bytes of a wheel.
const MOST_BYTES: u64 = 10_000_000;
/// The oldest Python that the package supports.
const OLDEST: &str = "3.11";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Folder for the wheel; target/wheel/dist unless given.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The profile of cargo to build with.
    #[arg(long, value_name = "PROFILE", default_value = "release")]
    profile: String,
    /// Run the tests on a folder of the files, and make no wheel.
    #[arg(long, conflicts_with_all = ["out", "profile"])]
    check: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if options.check {
        let mut results = Results::default();
        results.check("Python package", check);
        return Ok(results.close());
    }
    let out = match &options.out {
        Some(out) => out.clone(),
        None => folder().join("dist"),
    };
    let wheel = build(&options.profile, &out)?;
    let bytes = fs::metadata(&wheel)?.len();
    println!("{} ({} kB)", wheel.display(), bytes / 1000);
    test_wheel(&tools()?, &wheel)?;
    Ok(ExitCode::SUCCESS)
}

/// The step of `cargo xtask test`: the tests of the package, on a folder instead of a wheel.
pub(crate) fn check() -> anyhow::Result<Outcome> {
    let tools = match tools() {
        Ok(tools) => tools,
        Err(error) => match error.downcast::<Unavailable>() {
            Ok(reason) => {
                let reason = reason.to_string();
                return Ok(Outcome::Skipped { reason });
            }
            Err(error) => return Err(error),
        },
    };
    let package = stage("dev", "check")?;
    let built = workspace::build("dev", &["gdr-python"])?;
    let module = package.join("python/gdr/_gdr.abi3.so");
    copy_program(&built.join("lib_gdr.so"), &module)?;
    let mut tests = pytest(&tools);
    tests.env("PYTHONPATH", package.join("python"));
    Outcome::of(tests)
}

/// Builds the wheel in `out` and returns its file.
pub(crate) fn build(profile: &str, out: &Path) -> anyhow::Result<PathBuf> {
    let tools = tools()?;
    let package = stage(profile, "package")?;
    make_folder(out)?;
    for old in wheels(out)? {
        fs::remove_file(&old).with_context(|| old.display().to_string())?;
    }
    let mut maturin = python(&tools);
    maturin
        .args(["-m", "maturin", "build", "--quiet", "--locked"])
        .args(["--profile", profile, "--interpreter", "python3", "--out"])
        .arg(fs::canonicalize(out)?)
        .current_dir(&package)
        .env("CARGO_TARGET_DIR", target());
    succeed(maturin)?;
    let built = wheels(out)?;
    let [wheel] = built.as_slice() else {
        bail!("maturin made {} wheels in {}", built.len(), out.display());
    };
    let bytes = fs::metadata(wheel)?.len();
    if bytes > MOST_BYTES {
        bail!(
            "{} has {bytes} bytes: a wheel has at most {MOST_BYTES}",
            wheel.display()
        );
    }
    Ok(wheel.clone())
}

/// Installs the wheel in a new virtual environment, without any other package, and runs its tests.
fn test_wheel(tools: &Path, wheel: &Path) -> anyhow::Result<()> {
    let environment = folder().join("venv");
    if environment.exists() {
        fs::remove_dir_all(&environment).with_context(|| environment.display().to_string())?;
    }
    make_environment(&environment)?;
    let mut pip = python(&environment);
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]);
    pip.arg(wheel);
    succeed(pip)?;
    let mut tests = pytest(&environment);
    // pytest alone comes from outside of the environment.
    tests
        .env("PYTHONPATH", site_packages(tools)?)
        .env("GDR_WHEEL", wheel);
    succeed(tests)
}

/// The tests of the package, on the simulated GPU.
fn pytest(environment: &Path) -> Command {
    let mut command = python(environment);
    command
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(root().join("crates/gdr-python/tests"))
        .env("GDR_BACKEND", "sim")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Copies the files of the Python package to a folder, with the command and the libraries.
fn stage(profile: &str, name: &str) -> anyhow::Result<PathBuf> {
    let built = workspace::build(profile, &["gdr-cli", "gdrapi"])?;
    let libraries = verbs_library::build(profile, &folder().join("verbs").join(profile))?;
    let package = folder().join(name);
    if package.exists() {
        fs::remove_dir_all(&package).with_context(|| package.display().to_string())?;
    }
    let source = root().join("crates/gdr-python");
    let python = package.join("python/gdr");
    // The layout below it is that of an installation, by which `gdr run` finds its libraries.
    for part in ["bin", "lib"] {
        make_folder(&python.join(part))?;
    }
    for entry in fs::read_dir(source.join("python/gdr"))? {
        let entry = entry?;
        let is_source = entry.file_type()?.is_file();
        if is_source {
            fs::copy(entry.path(), python.join(entry.file_name()))?;
        }
    }
    fs::copy(source.join("README.md"), package.join("README.md"))?;
    let project = fs::read_to_string(source.join("pyproject.toml"))?;
    let manifest = source.join("Cargo.toml");
    let project = format!(
        "{project}manifest-path = {:?}\n",
        manifest.display().to_string()
    );
    fs::write(package.join("pyproject.toml"), project)?;
    copy_program(&built.join("gdr"), &python.join("bin/gdr"))?;
    copy_program(
        &built.join("libgdrapi.so"),
        &python.join("lib/libgdrapi.so.2"),
    )?;
    verbs_library::install(&libraries, &python.join("lib/gdr"))?;
    Ok(package)
}

/// The virtual environment with [`TOOLS`], fetched once.
fn tools() -> anyhow::Result<PathBuf> {
    let version = Command::new("python3")
        .args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        .output();
    let version = version
        .map_err(|error| Unavailable::new(format!("python3 cannot be started ({error})")))?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    if !is_new_enough(&version) {
        let reason = format!("python3 is {version}: the package is for {OLDEST} and later");
        return Err(Unavailable::new(reason).into());
    }
    let recipe = format!("{version} {TOOLS:?}");
    once(&folder().join("tools"), &recipe, |partial| {
        make_environment(partial)?;
        let mut pip = python(partial);
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]);
        let installed = pip.args(TOOLS).status()?;
        if !installed.success() {
            let reason = format!("pip cannot install {} (no network?)", TOOLS.join(" and "));
            return Err(Unavailable::new(reason).into());
        }
        Ok(())
    })
}

/// Whether a version of Python is [`OLDEST`] or later.
fn is_new_enough(version: &str) -> bool {
    let parts = |text: &str| {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    parts(version) >= parts(OLDEST)
}

/// Makes a virtual environment with pip alone.
fn make_environment(folder: &Path) -> anyhow::Result<()> {
    let made = Command::new("python3")
        .args(["-m", "venv"])
        .arg(folder)
        .stdout(Stdio::null())
        .status()?;
    if !made.success() {
        let reason = "python3 makes no virtual environment: install python3-venv";
        return Err(Unavailable::new(reason).into());
    }
    Ok(())
}

fn site_packages(environment: &Path) -> anyhow::Result<String> {
    let program = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let output = python(environment).args(["-c", program]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The Python of a virtual environment, in the root.
fn python(environment: &Path) -> Command {
    let mut command = Command::new(environment.join("bin/python"));
    command.current_dir(root());
    command
}

fn wheels(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut wheels = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            wheels.push(path);
        }
    }
    Ok(wheels)
}

fn folder() -> PathBuf {
    target().join("wheel")
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
