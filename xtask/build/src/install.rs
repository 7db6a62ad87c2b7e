//! `cargo xtask install-gdrapi`: installs the C library, its headers and its pkg-config file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;

use crate::workspace::{self, PROFILE, root};

/// File of the library, and the links to it that the loader and the linker look for.
pub const LIBRARY: &str = "libgdrapi.so.2.6";
pub const SONAME: &str = "libgdrapi.so.2";
pub const UNVERSIONED: &str = "libgdrapi.so";
pub const HEADERS: [&str; 2] = ["gdrapi.h", "gdrconfig.h"];

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Absolute path below which the library is used; gdrapi.pc names it.
    #[arg(long, value_name = "FOLDER", value_parser = absolute)]
    prefix: PathBuf,
    /// Folder of the library and of pkgconfig/, below the prefix unless absolute.
    #[arg(long, value_name = "FOLDER", default_value = "lib")]
    libdir: PathBuf,
    /// Folder of the headers, below the prefix unless absolute.
    #[arg(long, value_name = "FOLDER", default_value = "include")]
    includedir: PathBuf,
    /// Install below this folder, to make a package; gdrapi.pc does not name it.
    #[arg(long, value_name = "FOLDER")]
    destdir: Option<PathBuf>,
    /// Install this library instead of building one.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

pub fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if !path.is_absolute() {
        return Err(format!(
            "{text} is not absolute: give a path that starts with /"
        ));
    }
    if text.contains(['\n', '$', '#', '\\', '"', '\'']) {
        return Err(format!(
            "{text:?} has characters that a pkg-config file cannot contain: choose another folder"
        ));
    }
    Ok(path)
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let library = match &options.library {
        Some(library) => library.clone(),
        None => build()?,
    };
    let place = |folder: &Path| placed(options.destdir.as_deref(), folder);
    let lib = options.prefix.join(&options.libdir);
    let include = options.prefix.join(&options.includedir);
    install_library(&library, &place(&lib))?;
    install_headers(&place(&include))?;
    let pkgconfig = place(&lib).join("pkgconfig");
    make_folder(&pkgconfig)?;
    let path = pkgconfig.join("gdrapi.pc");
    fs::write(&path, pkg_config(&options.prefix, &lib, &include)?)
        .with_context(|| format!("{} cannot be written", path.display()))?;
    println!("{}", place(&lib).join(LIBRARY).display());
    for header in HEADERS {
        println!("{}", place(&include).join(header).display());
    }
    println!("{}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Returns where a folder is while a package is made below `destdir`.
pub fn placed(destdir: Option<&Path>, folder: &Path) -> PathBuf {
    match destdir {
        Some(destdir) => destdir.join(folder.strip_prefix("/").unwrap_or(folder)),
        None => folder.to_owned(),
    }
}

fn build() -> anyhow::Result<PathBuf> {
    Ok(workspace::build(PROFILE, &["gdrapi"])?.join("libgdrapi.so"))
}

/// Copies the library to `folder` and links it under the names that the loader and the linker look
/// for.
pub fn install_library(library: &Path, folder: &Path) -> anyhow::Result<()> {
    make_folder(folder)?;
    copy_program(library, &folder.join(LIBRARY))?;
    for link in [SONAME, UNVERSIONED] {
        replace_link(LIBRARY, &folder.join(link))?;
    }
    Ok(())
}

/// Creates a link to a name in its folder, replacing what is there. A program that opens the link at the same time
/// finds either the old one or the new one.
pub fn replace_link(name: &str, link: &Path) -> anyhow::Result<()> {
    let new = link.with_extension(format!("new-{}", std::process::id()));
    symlink(name, &new).with_context(|| format!("{} cannot be linked", new.display()))?;
    fs::rename(&new, link).with_context(|| format!("{} cannot be replaced", link.display()))
}

/// Copies the headers to `folder`.
pub fn install_headers(folder: &Path) -> anyhow::Result<()> {
    make_folder(folder)?;
    for header in HEADERS {
        let from = root().join("crates/gdrapi/include").join(header);
        let to = folder.join(header);
        fs::copy(from, &to).with_context(|| format!("{} cannot be written", to.display()))?;
    }
    Ok(())
}

/// Copies a program or a library without its debug information.
pub fn copy_program(from: &Path, to: &Path) -> anyhow::Result<()> {
    // Renamed over the old file, whose contents a running process may have mapped. Several processes may do this at
    // once.
    let new = to.with_extension(format!("new-{}", std::process::id()));
    fs::copy(from, &new)
        .with_context(|| format!("{} cannot be copied to {}", from.display(), new.display()))?;
    let mut strip = Command::new("strip");
    // Without strip, the file is larger.
    let _larger = strip.arg("--strip-debug").arg(&new).status();
    fs::rename(&new, to).with_context(|| format!("{} cannot be replaced", to.display()))
}

pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("{} cannot be created", folder.display()))
}

/// Returns the text of gdrapi.pc.
pub fn pkg_config(prefix: &Path, lib: &Path, include: &Path) -> anyhow::Result<String> {
    let template = root().join("crates/gdrapi/gdrapi.pc.in");
    let template = fs::read_to_string(&template)
        .with_context(|| format!("{} cannot be read", template.display()))?;
    // Relative to the prefix variable, so that pkg-config can define another prefix.
    let below = |folder: &Path| match folder.strip_prefix(prefix) {
        Ok(rest) => escaped(&Path::new("${prefix}").join(rest)),
        Err(_) => escaped(folder),
    };
    Ok(template
        .replace("@prefix@", &escaped(prefix))
        .replace("@libdir@", &below(lib))
        .replace("@includedir@", &below(include)))
}

/// Escapes a path for pkg-config.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(' ', "\\ ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pkg_config_file_names_the_folders() {
        let text = pkg_config(
            Path::new("/opt/gdr"),
            Path::new("/opt/gdr/lib64"),
            Path::new("/usr/include"),
        );
        let text = text.unwrap();
        assert!(
            text.starts_with("prefix=/opt/gdr\nlibdir=${prefix}/lib64\nincludedir=/usr/include\n")
        );
        assert!(!text.contains('@'), "{text}");
    }

    #[test]
    fn a_prefix_must_be_absolute_and_without_special_characters() {
        assert!(absolute("/opt/gdr").is_ok());
        for refused in ["gdr", "./gdr", "/opt/$gdr", "/opt/g\ndr"] {
            assert!(absolute(refused).is_err(), "{refused}");
        }
    }
}
