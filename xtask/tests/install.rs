//! `cargo xtask install`, and what `gdr run` of the installation finds.

use std::path::Path;
use std::process::{Command, Output};

fn install(arguments: &[&str], prefix: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["install", "--profile", "dev", "--prefix"])
        .arg(prefix)
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn gdr_run_of_an_installation_finds_its_libraries() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().canonicalize().unwrap();
    for libdir in ["lib64", "lib", "lib"] {
        let printed = text(&install(&["--libdir", libdir], &prefix));
        assert_eq!(printed.lines().count(), 4, "{printed}");
        for path in printed.lines() {
            assert!(Path::new(path).is_file(), "{path}");
        }
        let libraries = prefix.join(libdir).join("gdr");
        let link = libraries.join("shadow/libibverbs.so").read_link().unwrap();
        assert_eq!(link, Path::new("libibverbs.so.1"));
        let mut command = Command::new(prefix.join("bin/gdr"));
        command.args(["run", "--only-soft", "--print-env"]);
        for variable in ["GDR_VERBS_LIBRARY", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
            command.env_remove(variable);
        }
        let environment = text(&command.output().unwrap());
        let preload = libraries.join("libgdr-verbs.so");
        let shadow = libraries.join("shadow");
        let expected = format!(
            "export LD_PRELOAD='{}'\nexport LD_LIBRARY_PATH='{}'\n",
            preload.display(),
            shadow.display()
        );
        assert!(environment.starts_with(&expected), "{environment}");
        // The loader says of a library that it cannot load, and ignores it.
        let loaded = Command::new("/bin/true")
            .env("LD_PRELOAD", &preload)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&loaded.stderr), "");
        std::fs::remove_dir_all(libraries).unwrap();
    }
}

#[test]
fn a_folder_that_gdr_run_does_not_search_is_refused() {
    let output = install(&["--libdir", "share"], Path::new("/opt/gdr"));
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("lib, lib64 and lib/"), "{error}");
}
