//! `cargo xtask gpu-bundle`: a folder of programs and tests for a machine with a GPU and no cargo.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::bail;

use crate::gpu_steps::STEPS;
use xtask_build::install::{copy_program, install_headers, install_library};
use xtask_build::results::Unavailable;
use xtask_build::verbs_library;
use xtask_build::wheel;
use xtask_build::workspace::{self, PROFILE, cargo, root, succeed, target};

/// Examples that are steps of the GPU run, by package.
const EXAMPLES: [(&str, &str); 8] = [
    ("gdr-copy", "reads"),
    ("gdrapi", "overhead"),
    ("gdr-object", "measure"),
    ("gdr-rdma", "gpu_initiated"),
    ("gdr-rdma", "resident_kernel"),
    ("gdr-rdma", "posted_stores"),
    ("gdr-rdma", "shards"),
    ("gdr-verbs", "raw_packets"),
];

/// A rank of NCCL's allreduce operations.
const NCCL: &str = include_str!("../bundle/nccl.py");

/// Objects of one GPU that another process reads into a different GPU.
const OBJECTS: &str = include_str!("../bundle/objects.py");

/// Weights of a model, from one process to another.
const WEIGHTS: &str = include_str!("../bundle/weights.py");

/// NCCL's collectives, objects and weights on four GPUs.
const FOUR: &str = include_str!("../bundle/four.py");

/// Other programs between two processes of one host.
const ONE_HOST: &str = include_str!("../bundle/one_host.py");

/// The Python package beside PyTorch.
const WHEEL: &str = include_str!("../bundle/wheel.py");

/// The template of `run.sh`.
const SCRIPT: &str = include_str!("../bundle/run.sh");

pub fn run(out: &Path) -> anyhow::Result<ExitCode> {
    let out = root().join(out);
    make(&out)?;
    println!("{}", out.display());
    println!("on a machine with a GPU: {}/run.sh", out.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds the programs of the GPU run and puts them, with `run.sh`, into `out`.
pub fn make(out: &Path) -> anyhow::Result<()> {
    clear(out)?;
    for folder in ["bin", "lib", "include", "verbs"] {
        fs::create_dir_all(out.join(folder))?;
    }
    // Write this first, because `clear` recognizes a bundle by it, even an incomplete one.
    let script = out.join("run.sh");
    fs::write(&script, SCRIPT.replace("@STEPS@", &steps()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;

    let built = workspace::build(PROFILE, &["gdr-cli", "gdrapi"])?;
    copy_program(&built.join("gdr"), &out.join("bin/gdr"))?;
    install_library(&built.join("libgdrapi.so"), &out.join("lib"))?;
    let libraries = verbs_library::build(PROFILE, &target().join("verbs"))?;
    verbs_library::install(&libraries, &out.join("verbs"))?;
    // It compares reports of `gdr trace` with counters.
    copy_program(&env::current_exe()?, &out.join("bin/xtask"))?;
    fs::write(out.join("nccl.py"), NCCL)?;
    fs::write(out.join("objects.py"), OBJECTS)?;
    fs::write(out.join("weights.py"), WEIGHTS)?;
    fs::write(out.join("four.py"), FOUR)?;
    fs::write(out.join("one_host.py"), ONE_HOST)?;
    fs::write(out.join("wheel.py"), WHEEL)?;
    match wheel::build(PROFILE, &out.join("wheel")) {
        Ok(_) => {}
        // The steps that need it are then skipped.
        Err(error) if error.is::<Unavailable>() => println!("no Python wheel: {error}"),
        Err(error) => return Err(error),
    }
    for (package, example) in EXAMPLES {
        succeed(cargo(&[
            "build",
            "--profile",
            PROFILE,
            "--package",
            package,
            "--example",
            example,
        ]))?;
        let program = built.join("examples").join(example);
        copy_program(&program, &out.join("bin").join(example))?;
    }

    install_headers(&out.join("include"))?;
    compile_client(out)
}

/// Returns the calls of `step` in `run.sh`.
fn steps() -> String {
    let lines = STEPS.iter().map(|step| {
        let (name, command) = (quoted(step.name), quoted(step.command));
        let extension = step.prints.extension();
        format!(
            "step {name} {} {extension} {} {command}",
            step.file, step.limit_s
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Quotes a text as a single shell word.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Removes an old bundle. Any other nonempty folder is an error and stays unchanged.
fn clear(out: &Path) -> anyhow::Result<()> {
    let is_empty = fs::read_dir(out)
        .map(|mut entries| entries.next().is_none())
        .unwrap_or(true);
    if !is_empty && !out.join("run.sh").exists() {
        bail!(
            "{} is not a bundle and not empty: remove it yourself",
            out.display()
        );
    }
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    Ok(())
}

/// Compiles the C client against the library in `out`.
fn compile_client(out: &Path) -> anyhow::Result<()> {
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"])
        .arg(root().join("tests/suites/bundle/client.c"))
        .arg("-I")
        .arg(out.join("include"))
        .arg("-L")
        .arg(out.join("lib"))
        .args(["-lgdrapi", "-ldl", "-Wl,-rpath,$ORIGIN/../lib", "-o"])
        .arg(out.join("bin/client"));
    succeed(compiler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bash_accepts_the_script() {
        let script = SCRIPT.replace("@STEPS@", &steps());
        let folder = std::env::temp_dir().join(format!("gdr-run-{}.sh", std::process::id()));
        fs::write(&folder, script).unwrap();
        let status = Command::new("bash")
            .arg("-n")
            .arg(&folder)
            .status()
            .unwrap();
        fs::remove_file(&folder).unwrap();
        assert!(status.success());
    }

    #[test]
    fn a_quote_in_a_name_stays_one_word() {
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_folder_without_a_bundle_is_not_cleared() {
        let folder = std::env::temp_dir().join(format!("gdr-keep-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("thesis.tex"), "").unwrap();
        assert!(clear(&folder).is_err());
        assert!(folder.join("thesis.tex").exists());
        fs::remove_file(folder.join("thesis.tex")).unwrap();
        clear(&folder).unwrap();
    }
}
