//! `cargo xtask gpu-bundle`: one folder for a machine with a GPU and no cargo.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::gpu_steps::STEPS;
use crate::workspace::{cargo, root, target};

/// What the loader and the linker look for; all lead to the file itself.
const LIBRARY: &str = "libgdrapi.so.2.6";
const LIBRARY_LINKS: [&str; 2] = ["libgdrapi.so.2", "libgdrapi.so"];

/// `run.sh` without its steps.
const SCRIPT: &str = include_str!("../bundle/run.sh");

pub(crate) fn run(out: &Path) -> anyhow::Result<ExitCode> {
    let out = root().join(out);
    make(&out)?;
    println!("{}", out.display());
    println!("on a machine with a GPU: {}/run.sh", out.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds everything that runs on a GPU and puts it, with `run.sh`, into `out`.
pub(crate) fn make(out: &Path) -> anyhow::Result<()> {
    clear(out)?;
    for folder in ["bin", "lib", "include"] {
        fs::create_dir_all(out.join(folder))?;
    }
    // First, because a folder with it is known as a bundle.
    let script = out.join("run.sh");
    fs::write(&script, SCRIPT.replace("@STEPS@", &steps()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;

    let release = target().join("release");
    succeed(cargo(&[
        "build",
        "--release",
        "--package",
        "gdr-cli",
        "--package",
        "gdrapi",
    ]))?;
    copy(&release.join("gdr"), &out.join("bin/gdr"))?;
    copy(
        &release.join("libgdrapi.so"),
        &out.join("lib").join(LIBRARY),
    )?;
    for link in LIBRARY_LINKS {
        symlink(LIBRARY, out.join("lib").join(link))?;
    }
    succeed(cargo(&[
        "build",
        "--release",
        "--package",
        "gdrapi",
        "--example",
        "overhead",
    ]))?;
    copy(
        &release.join("examples/overhead"),
        &out.join("bin/overhead"),
    )?;

    let header = root().join("crates/gdrapi/include/gdrapi.h");
    fs::copy(&header, out.join("include/gdrapi.h"))?;
    compile_client(out)?;
    Ok(())
}

/// The calls of `step` in `run.sh`.
fn steps() -> String {
    let lines = STEPS.map(|step| {
        let (name, command) = (quoted(step.name), quoted(step.command));
        let extension = step.prints.extension();
        format!(
            "step {name} {} {extension} {} {command}",
            step.file, step.limit_s
        )
    });
    lines.join("\n")
}

/// As one word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Empties `out`, which is there for this alone: anything but an old bundle is left alone.
fn clear(out: &Path) -> anyhow::Result<()> {
    let is_empty = fs::read_dir(out)
        .map(|mut entries| entries.next().is_none())
        .unwrap_or(true);
    if !is_empty && !out.join("run.sh").exists() {
        bail!(
            "{} holds something other than a bundle: remove it yourself",
            out.display()
        );
    }
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    Ok(())
}

/// Copies a program, without what only a debugger reads.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
    let mut strip = Command::new("strip");
    // A machine without strip gets larger files.
    let _larger = strip.arg("--strip-debug").arg(to).status();
    Ok(())
}

/// Compiles the C client against what is in `out`.
fn compile_client(out: &Path) -> anyhow::Result<()> {
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"])
        .arg(root().join("xtask/bundle/client.c"))
        .arg("-I")
        .arg(out.join("include"))
        .arg("-L")
        .arg(out.join("lib"))
        .args(["-lgdrapi", "-ldl", "-Wl,-rpath,$ORIGIN/../lib", "-o"])
        .arg(out.join("bin/client"));
    succeed(compiler)
}

fn succeed(mut command: Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("{name} cannot be started"))?;
    if !status.success() {
        bail!("{name} failed ({status})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_one_that_bash_accepts() {
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
    fn a_folder_that_is_no_bundle_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("gdr-keep-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("thesis.tex"), "").unwrap();
        assert!(clear(&folder).is_err());
        assert!(folder.join("thesis.tex").exists());
        fs::remove_file(folder.join("thesis.tex")).unwrap();
        clear(&folder).unwrap();
    }
}
