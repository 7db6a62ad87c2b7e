//! `cargo xtask install`: installs the `gdr` command, and the verbs library where `gdr run` finds it.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::install::{absolute, copy_program, make_folder, placed};
use crate::verbs_library;
use crate::workspace::{self, target};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Absolute path below which bin/gdr and the libraries are used.
    #[arg(long, value_name = "FOLDER", value_parser = absolute)]
    prefix: PathBuf,
    /// Folder below the prefix that gets gdr/ with the libraries: one of those that `gdr run` searches.
    #[arg(long, value_name = "FOLDER", default_value = "lib", value_parser = searched)]
    libdir: PathBuf,
    /// Install below this folder, to make a package.
    #[arg(long, value_name = "FOLDER")]
    destdir: Option<PathBuf>,
    /// The profile of cargo to build with.
    #[arg(long, value_name = "PROFILE", default_value = "release")]
    profile: String,
}

/// A folder in which `gdr run` looks for `gdr/libgdr-verbs.so`, below the folder above that of `gdr`.
fn searched(text: &str) -> Result<PathBuf, String> {
    let of_debian = format!("lib/{ARCH}-linux-gnu");
    if ["lib", "lib64", &of_debian].contains(&text) {
        return Ok(text.into());
    }
    Err(format!(
        "`gdr run` looks for its library in lib, lib64 and {of_debian} only: choose one of them"
    ))
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let profile = &options.profile;
    let built = workspace::build(profile, &["gdr-cli"])?.join("gdr");
    // Other profiles do not replace what `gdr` in the target folder uses.
    let out = target().join("install").join(profile);
    let libraries = verbs_library::build(profile, &out)?;
    let place = |folder: &Path| placed(options.destdir.as_deref(), &options.prefix.join(folder));
    let bin = place(Path::new("bin"));
    make_folder(&bin)?;
    let command = bin.join("gdr");
    copy_program(&built, &command)?;
    println!("{}", command.display());
    let folder = place(&options.libdir).join("gdr");
    for library in verbs_library::install(&libraries, &folder)? {
        println!("{}", library.display());
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_that_gdr_run_searches_are_accepted() {
        for accepted in ["lib", "lib64"] {
            assert_eq!(searched(accepted), Ok(PathBuf::from(accepted)));
        }
        let refusal = searched("share").unwrap_err();
        assert!(refusal.contains("lib, lib64 and lib/"), "{refusal}");
    }
}
