//! `cargo xtask wheel`: the Python package `gdr` with the command and the libraries, as a wheel.
//!
//! maturin and pytest come from PyPI into a virtual environment in the target folder. The tests of
//! `cargo xtask test` run on a folder of the same files, which takes no build of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::install::{copy_program, make_folder};
use crate::python_environment::Environment;
use crate::results::{Outcome, Results};
use crate::verbs_library;
use crate::workspace::{self, root, succeed, target};

/// The packages of PyPI that build and test a wheel.
const TOOLS: [&str; 2] = ["maturin==1.16.0", "pytest==9.2.0"];
/// The most bytes of a wheel.
const MOST_BYTES: u64 = 10_000_000;

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
        Err(error) => return Outcome::of_error(error),
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
    let mut maturin = tools.python();
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
fn test_wheel(tools: &Environment, wheel: &Path) -> anyhow::Result<()> {
    let environment = Environment::make(&folder().join("venv"))?;
    let mut pip = environment.python();
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]);
    pip.arg(wheel);
    succeed(pip)?;
    let mut tests = pytest(&environment);
    // pytest alone comes from outside of the environment.
    tests
        .env("PYTHONPATH", tools.packages()?)
        .env("GDR_WHEEL", wheel);
    succeed(tests)
}

/// The tests of the package, on the simulated GPU.
fn pytest(environment: &Environment) -> Command {
    let mut command = environment.python();
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
    let installed = verbs_library::install(&libraries, &python.join("lib/gdr"))?;
    strip(&python.join("bin/gdr"));
    strip(&python.join("lib/libgdrapi.so.2"));
    installed.iter().for_each(|library| strip(library));
    Ok(package)
}

/// Removes the symbols that nothing needs at run time. Without strip the wheel is larger.
fn strip(file: &Path) {
    let _larger = Command::new("strip")
        .arg("--strip-unneeded")
        .arg(file)
        .status();
}

fn tools() -> anyhow::Result<Environment> {
    Environment::with("wheel", &TOOLS)
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
