//! `cargo xtask wheel`: the Python package `gdr` with the command and the libraries, as a wheel.
//!
//! maturin and pytest come from PyPI into a virtual environment in the target folder. The tests of
//! `cargo xtask test` run on a folder of the same files, which takes no build of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::dependencies::Dependencies;
use crate::install::{copy_program, make_folder};
use crate::package::{self, Architecture, BuildPaths, OLDEST_GLIBC, PUBLISHED, Programs, VERSION};
use crate::python_environment::Environment;
use crate::results::{Outcome, Results};
use crate::workspace::{self, PROFILE, root, succeed, target};
use crate::{sbom, third_party, verbs_library};

/// The packages of PyPI that build and test a wheel.
const TOOLS: [&str; 2] = ["maturin==1.16.0", "pytest==9.2.0"];
/// PyTorch for CPUs, of its own index: PyPI's has 3 GB of CUDA.
const PYTORCH: [&str; 5] = [
    "--retries=1",
    "--index-url=https://download.pytorch.org/whl/cpu",
    "torch==2.9.1",
    "numpy",
    "pytest",
];
/// The most bytes of a wheel that is published. One for this machine alone is compiled for speed only.
const MOST_BYTES: u64 = 10_000_000;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Folder for the wheel; target/wheel/dist unless given.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The profile of cargo to build with.
    #[arg(long, value_name = "PROFILE", default_value = PROFILE)]
    profile: String,
    /// Build for this architecture and glibc 2.28, as packages are (manylinux_2_28); repeat it for both
    /// [default: for this machine alone].
    #[arg(long, value_name = "NAME", conflicts_with = "profile")]
    arch: Vec<Architecture>,
    /// Run the tests on a folder of the files, and make no wheel.
    #[arg(long, conflicts_with_all = ["out", "profile", "arch"])]
    check: bool,
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if options.check {
        let mut results = Results::default();
        results.check("Python package", check);
        results.check("gdr.torch", check_torch);
        return Ok(results.close());
    }
    let out = match &options.out {
        Some(out) => out.clone(),
        None => folder().join("dist"),
    };
    if options.arch.is_empty() {
        let wheel = build(&options.profile, &out)?;
        describe(&wheel)?;
        test_wheel(&tools()?, &wheel)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (architecture, wheel) in build_portable(&options.arch, &out)? {
        describe(&wheel)?;
        if Architecture::of_this_machine() == Some(architecture) {
            test_wheel(&tools()?, &wheel)?;
        } else {
            println!("its tests need a machine of its architecture, and did not run");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what was built.
fn describe(wheel: &Path) -> anyhow::Result<()> {
    let bytes = fs::metadata(wheel)?.len();
    println!("{} ({} kB)", wheel.display(), bytes / 1000);
    Ok(())
}

/// Runs the step of `cargo xtask test`: the tests of the package, on a folder instead of a wheel.
pub fn check() -> anyhow::Result<Outcome> {
    let tools = match tools() {
        Ok(tools) => tools,
        Err(error) => return Outcome::of_error(error),
    };
    let mut tests = pytest(&tools, "");
    tests.env("PYTHONPATH", folder_of_files()?);
    Outcome::of(tests)
}

/// Runs the tests of `gdr.torch` on such a folder, which need PyTorch.
pub fn check_torch() -> anyhow::Result<Outcome> {
    let environment = match Environment::with("torch", &PYTORCH) {
        Ok(environment) => environment,
        Err(error) => return Outcome::of_error(error),
    };
    let mut tests = pytest(&environment, "test_torch.py");
    tests.env("PYTHONPATH", folder_of_files()?);
    Outcome::of(tests)
}

/// Returns the folder with the files of a wheel, built without optimization.
fn folder_of_files() -> anyhow::Result<PathBuf> {
    let package = stage(&Carried::of_host("dev")?, "check")?.join("python");
    let built = workspace::build("dev", &["gdr-python"])?;
    copy_program(&built.join("lib_gdr.so"), &package.join("gdr/_gdr.abi3.so"))?;
    Ok(package)
}

/// Builds the wheel in `out` and returns its file.
pub fn build(profile: &str, out: &Path) -> anyhow::Result<PathBuf> {
    let package = stage(&Carried::of_host(profile)?, "package")?;
    add_documents(&package, &[])?;
    remove_wheels(out)?;
    let mut maturin = maturin(&tools()?, &package, out)?;
    maturin
        .args(["--profile", profile, "--interpreter", "python3"])
        .env("CARGO_TARGET_DIR", target());
    succeed(maturin)?;
    built_wheel(out, "")
}

/// Builds wheels in `out` for the oldest glibc of packages, and returns them.
pub fn build_portable(
    architectures: &[Architecture],
    out: &Path,
) -> anyhow::Result<Vec<(Architecture, PathBuf)>> {
    let python = tools()?;
    let time = package::source_time()?;
    let (zig, programs) = package::programs_for(architectures, &[], time)?;
    remove_wheels(out)?;
    let mut built = Vec::new();
    for (&architecture, programs) in architectures.iter().zip(&programs) {
        let package = stage(&Carried::of_packages(programs), "package")?;
        add_documents(&package, &[architecture.target()])?;
        let mut maturin = maturin(&python, &package, out)?;
        let platform = format!("manylinux_{}_{}", OLDEST_GLIBC.0, OLDEST_GLIBC.1);
        maturin
            .args(["--profile", PROFILE, "--interpreter", "python3.11", "--zig"])
            .args(["--target", &architecture.target()])
            .args(["--compatibility", &platform])
            .args(["--compression-level", "9"])
            .env("CARGO_TARGET_DIR", target().join("packaging"));
        package::release_flags(&mut maturin, time);
        zig.lend_zig(&mut maturin);
        succeed(maturin)?;
        let wheel = built_wheel(out, &format!("{platform}_{}", architecture.name()))?;
        let bytes = fs::metadata(&wheel)?.len();
        if bytes > MOST_BYTES {
            let wheel = wheel.display();
            bail!("{wheel} has {bytes} bytes: a published wheel has at most {MOST_BYTES}");
        }
        check_files(&python, &wheel)?;
        built.push((architecture, wheel));
    }
    Ok(built)
}

/// Checks that every program and library of a wheel starts with the oldest glibc and nothing else, and
/// that no file has a path of this machine.
fn check_files(python: &Environment, wheel: &Path) -> anyhow::Result<()> {
    const FILES: [&str; 6] = [
        "_gdr.abi3.so",
        "bin/gdr",
        "lib/libgdrapi.so.2",
        "lib/gdr/libgdr-verbs.so",
        "lib/gdr/libgdr-verbs-trace.so",
        "lib/gdr/shadow/libibverbs.so.1",
    ];
    let unpacked = folder().join("unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked).with_context(|| unpacked.display().to_string())?;
    }
    let mut unpack = python.python();
    unpack
        .args(["-m", "zipfile", "-e"])
        .arg(wheel)
        .arg(&unpacked);
    succeed(unpack)?;
    for file in FILES {
        package::check_needs(&unpacked.join("gdr").join(file), OLDEST_GLIBC)?;
    }
    BuildPaths::of_this_machine().check(&unpacked)
}

/// maturin, without the arguments for a target.
fn maturin(python: &Environment, package: &Path, out: &Path) -> anyhow::Result<Command> {
    let mut maturin = python.python();
    maturin
        .args(["-m", "maturin", "build", "--quiet", "--locked", "--out"])
        .arg(fs::canonicalize(out)?)
        .current_dir(package);
    Ok(maturin)
}

/// Makes a folder without wheels.
fn remove_wheels(out: &Path) -> anyhow::Result<()> {
    make_folder(out)?;
    for old in wheels(out)? {
        fs::remove_file(&old).with_context(|| old.display().to_string())?;
    }
    Ok(())
}

/// Returns the wheel in `out` whose name has `tag`.
fn built_wheel(out: &Path, tag: &str) -> anyhow::Result<PathBuf> {
    let mut built = wheels(out)?;
    built.retain(|wheel| wheel.to_string_lossy().contains(tag));
    let [wheel] = built.as_slice() else {
        bail!("maturin made {} wheels in {}", built.len(), out.display());
    };
    Ok(wheel.clone())
}

/// Installs the wheel in a new virtual environment, without any other package, and runs its tests.
fn test_wheel(tools: &Environment, wheel: &Path) -> anyhow::Result<()> {
    let environment = Environment::make(&folder().join("venv"))?;
    let mut pip = environment.python();
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]);
    pip.arg(wheel);
    succeed(pip)?;
    let mut tests = pytest(&environment, "");
    // pytest alone comes from outside of the environment.
    tests
        .env("PYTHONPATH", tools.packages()?)
        .env("GDR_WHEEL", wheel);
    succeed(tests)
}

/// Returns the tests of the package in a file, in all with an empty name, on the simulated GPU.
fn pytest(environment: &Environment, file: &str) -> Command {
    let mut command = environment.python();
    command
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(root().join("crates/gdr-python/tests").join(file))
        .env("GDR_BACKEND", "sim")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The programs and libraries that a wheel carries beside its module.
#[derive(Debug)]
struct Carried {
    gdr: PathBuf,
    gdrapi: PathBuf,
    /// As `verbs_library::build` returns them.
    verbs: [PathBuf; 3],
    symbols: Symbols,
}

/// Whether programs have symbols that nothing needs at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbols {
    Present,
    Stripped,
}

impl Carried {
    /// Those for this machine.
    fn of_host(profile: &str) -> anyhow::Result<Self> {
        let built = workspace::build(profile, &["gdr-cli", "gdrapi"])?;
        Ok(Self {
            gdr: built.join("gdr"),
            gdrapi: built.join("libgdrapi.so"),
            verbs: verbs_library::build(profile, &folder().join("verbs").join(profile))?,
            symbols: Symbols::Present,
        })
    }

    /// Takes the programs of packages.
    fn of_packages(programs: &Programs) -> Self {
        Self {
            gdr: programs.gdr.clone(),
            gdrapi: programs.gdrapi.clone(),
            verbs: programs.verbs.clone(),
            symbols: Symbols::Stripped,
        }
    }
}

/// Copies the files of the Python package to a folder, with the command and the libraries.
fn stage(carried: &Carried, name: &str) -> anyhow::Result<PathBuf> {
    let package = folder().join(name);
    if package.exists() {
        fs::remove_dir_all(&package).with_context(|| package.display().to_string())?;
    }
    let source = root().join("crates/gdr-python");
    let python = package.join("python/gdr");
    // Below it, files lie as in an installation, so `gdr run` finds its libraries.
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
    let (gdr, gdrapi) = (python.join("bin/gdr"), python.join("lib/libgdrapi.so.2"));
    copy_program(&carried.gdr, &gdr)?;
    copy_program(&carried.gdrapi, &gdrapi)?;
    for file in package::contrib()? {
        let to = python.join("share").join(&file);
        make_folder(to.parent().unwrap_or(&to))?;
        fs::copy(root().join(&file), to).with_context(|| file.display().to_string())?;
    }
    let installed = verbs_library::install(&carried.verbs, &python.join("lib/gdr"))?;
    if carried.symbols == Symbols::Present {
        [gdr, gdrapi]
            .iter()
            .chain(&installed)
            .for_each(|file| strip(file));
    }
    Ok(package)
}

/// Adds the licences of everything in a wheel, which maturin finds by these names, and the bill of
/// materials that pyproject.toml names.
fn add_documents(package: &Path, targets: &[String]) -> anyhow::Result<()> {
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        fs::copy(root().join(name), package.join(name)).context(name)?;
    }
    let dependencies = Dependencies::of(&PUBLISHED, targets)?;
    let licences = third_party::licences(&dependencies)?;
    fs::write(package.join("LICENSE-third-party.md"), licences)?;
    let document = sbom::document(&dependencies, "gdr", VERSION);
    let text = serde_json::to_string_pretty(&document)? + "\n";
    fs::write(package.join("gdr.cdx.json"), text)?;
    Ok(())
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
