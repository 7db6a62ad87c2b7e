//! `cargo xtask fleet-files`: the scripts and manifests of `contrib/`, checked by their linters.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use xtask_build::package::contrib;
use xtask_build::python_environment::Environment;
use xtask_build::results::{Outcome, Results, Unavailable, is_missing};
use xtask_build::verbs_library;
use xtask_build::workspace::{self, root, target};

/// The linters of PyPI: the second has the schemas of Kubernetes with it.
const LINTERS: [&str; 2] = ["yamllint==1.38.0", "kubernetes-validate==1.37.0"];
/// The rules of yamllint: its own, with the width of this workspace.
const YAML_RULES: &str = "{extends: default, rules: {document-start: disable, \
                          line-length: {max: 110}, comments-indentation: disable}}";

pub fn run() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    record(&mut results);
    Ok(results.close())
}

/// Runs each linter.
pub fn record(results: &mut Results) {
    results.check("scripts for fleets", scripts);
    results.check("YAML for fleets", yaml);
    results.check("manifests of Kubernetes", manifests);
    results.check("tests of pytest with RDMA devices", pytest);
}

fn scripts() -> anyhow::Result<Outcome> {
    let scripts = files("sh")?;
    for script in &scripts {
        let mut bash = Command::new("bash");
        bash.arg("-n").arg(script);
        if Outcome::of(bash)? == Outcome::Failed {
            return Ok(Outcome::Failed);
        }
    }
    let mut shellcheck = Command::new("shellcheck");
    shellcheck.args(&scripts);
    match Outcome::of(shellcheck) {
        Ok(outcome) => Ok(outcome),
        Err(error) if is_missing(&error) => Outcome::of_error(
            Unavailable::new("shellcheck is not installed: apt-get install shellcheck").into(),
        ),
        Err(error) => Err(error),
    }
}

fn yaml() -> anyhow::Result<Outcome> {
    let linters = match Environment::with("linters", &LINTERS) {
        Ok(linters) => linters,
        Err(error) => return Outcome::of_error(error),
    };
    let mut yamllint = linters.python();
    yamllint.args(["-m", "yamllint", "--strict", "-d", YAML_RULES]);
    yamllint.args(files("yaml")?);
    Outcome::of(yamllint)
}

fn manifests() -> anyhow::Result<Outcome> {
    let linters = match Environment::with("linters", &LINTERS) {
        Ok(linters) => linters,
        Err(error) => return Outcome::of_error(error),
    };
    let of_kubernetes = |path: &PathBuf| path.parent().is_some_and(|it| it.ends_with("kubernetes"));
    let mut objects = files("yaml")?;
    objects.retain(of_kubernetes);
    let mut validate = linters.python();
    validate.args(["-m", "kubernetes_validate", "--strict", "--quiet"]);
    validate.args(objects);
    Outcome::of(validate)
}

/// Runs the example of `contrib/ci` as its page has it.
fn pytest() -> anyhow::Result<Outcome> {
    let environment = match Environment::with("pytest", &["pytest==9.2.0"]) {
        Ok(environment) => environment,
        Err(error) => return Outcome::of_error(error),
    };
    let library = target().join("verbs-programs");
    verbs_library::build("dev", &library)?;
    let folder = workspace::build("dev", &["gdr-cli"])?;
    let mut path = OsString::from(&folder);
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());
    let mut gdr = Command::new(folder.join("gdr"));
    gdr.args(["run", "--nic", "127.0.0.1", "--"])
        .arg(environment.python().get_program())
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(root().join("contrib/ci"))
        .env("PATH", path)
        .env("GDR_VERBS_LIBRARY", library)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("RDMA_REQUIRED", "1");
    Outcome::of(gdr)
}

/// Returns the files below `contrib/` with an extension.
fn files(extension: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = contrib()?;
    files.retain(|file| file.extension().is_some_and(|it| it == extension));
    Ok(files.iter().map(|file| root().join(file)).collect())
}
