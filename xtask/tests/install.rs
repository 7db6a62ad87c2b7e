//! `cargo xtask install`: one command for everything, which works where it is installed; and the commands of
//! README.md.

use std::path::Path;
use std::process::{Command, Output};

const README: &str = include_str!("../../README.md");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/install.sh");

fn install(prefix: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["install", "--profile", "dev", "--prefix"])
        .arg(prefix)
        .output()
        .expect("the program starts")
}

fn text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn one_command_installs_everything_and_its_removal_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().canonicalize().unwrap().join("gdr");
    let printed = text(&install(&prefix));
    assert!(printed.contains("gdr is installed below "), "{printed}");
    assert!(printed.contains("export PATH="), "{printed}");
    for file in [
        "bin/gdr",
        "bin/gdrcopy_copybw",
        "include/gdrapi.h",
        "lib/gdr/libgdr-verbs-trace.so",
        "lib/gdr/libgdr-verbs.so",
        "lib/gdr/shadow/libibverbs.so",
        "lib/libgdrapi.so",
        "lib/libgdrapi.so.2",
        "lib/pkgconfig/gdrapi.pc",
        "share/bash-completion/completions/gdr",
        "share/fish/vendor_completions.d/gdr.fish",
        "share/gdr/contrib/slurm/gdr-prolog.sh",
        "share/man/man1/gdr-loopback.1.gz",
        "share/zsh/site-functions/_gdr",
    ] {
        assert!(prefix.join(file).is_file(), "{file}");
    }
    // A program that looks for GDRCopy's library by the loader finds it.
    let loaded = Command::new(prefix.join("bin/gdrcopy_sanity"))
        .args(["-t", "attributes_sanity"])
        .env("GDR_BACKEND", "sim")
        .env("LD_LIBRARY_PATH", prefix.join("lib"))
        .output();
    assert!(text(&loaded.unwrap()).contains("Passed: 1"));

    let mut command = Command::new(prefix.join("bin/gdr"));
    command.args(["run", "--only-soft", "--print-env"]);
    for variable in ["GDR_VERBS_LIBRARY", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
        command.env_remove(variable);
    }
    let environment = text(&command.output().unwrap());
    let libraries = prefix.join("lib/gdr");
    let (preload, shadow) = (libraries.join("libgdr-verbs.so"), libraries.join("shadow"));
    let expected = format!(
        "export LD_PRELOAD='{}'\nexport LD_LIBRARY_PATH='{}'\n",
        preload.display(),
        shadow.display()
    );
    assert!(environment.starts_with(&expected), "{environment}");
    for library in [preload, prefix.join("lib/libgdrapi.so.2")] {
        // The loader says of a library that it cannot load, and ignores it.
        let loaded = Command::new("/bin/true")
            .env("LD_PRELOAD", &library)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&loaded.stderr), "");
    }

    let mut removal = Command::new("sh");
    removal
        .arg(SCRIPT)
        .arg("--prefix")
        .arg(&prefix)
        .arg("--uninstall");
    text(&removal.output().unwrap());
    assert!(!prefix.exists());
}

#[test]
fn a_relative_prefix_is_refused_and_the_refusal_says_why() {
    let output = install(Path::new("somewhere"));
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("somewhere is not absolute"), "{error}");
}

/// Tests of gdr-cli run the commands of `gdr`.
#[test]
fn the_commands_of_the_readme_exist() {
    let commands: Vec<&str> = README
        .split("```")
        .skip(1)
        .step_by(2)
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("cargo xtask "))
        .filter_map(|rest| rest.split_whitespace().next())
        .collect();
    for name in ["install", "test"] {
        assert!(commands.contains(&name), "{commands:?}");
    }
    for name in commands {
        let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args([name, "--help"])
            .output()
            .unwrap();
        assert!(output.status.success(), "cargo xtask {name}");
    }
}
