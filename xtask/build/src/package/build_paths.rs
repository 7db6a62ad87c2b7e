//! The folders of this machine in which packages are compiled. Programs have the same names in place of
//! them everywhere, so that the same sources make the same bytes in every folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::workspace::{root, target};

/// What programs have in place of cargo's folder, with the sources of other crates.
const CARGO: &str = "/cargo";
/// What programs have in place of the checkout.
const CHECKOUT: &str = "/gdr";
/// What programs have in place of the folder of what is built, where it is outside of the checkout.
const BUILT: &str = "/gdr/target";

/// The shortest folder that packages are searched for has this many names. The path of a shorter one, as
/// `/src`, is a part of other paths.
const LEAST_NAMES: usize = 2;

/// The folders, each with the name in place of it.
#[derive(Debug)]
pub struct BuildPaths(Vec<(PathBuf, &'static str)>);

impl BuildPaths {
    /// Returns the paths of packages that this process makes.
    pub fn of_this_machine() -> Self {
        let mut folders = vec![(root().to_owned(), CHECKOUT)];
        folders.extend((!target().starts_with(root())).then(|| (target(), BUILT)));
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let cargo = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
        folders.extend(cargo.map(|cargo| (cargo, CARGO)));
        Self::new(folders)
    }

    fn new(mut folders: Vec<(PathBuf, &'static str)>) -> Self {
        // The last of several flags that apply is the one that rustc takes.
        folders.sort_by_key(|(folder, _)| folder.components().count());
        Self(folders)
    }

    /// Returns the flags of rustc that put the names in place of the folders.
    pub fn flags(&self) -> String {
        let flags = self
            .0
            .iter()
            .map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display()));
        flags.collect::<Vec<_>>().join(" ")
    }

    /// Checks that no file below a path, or the file there, has one of the folders in it.
    ///
    /// # Errors
    ///
    /// Names the file and the folder.
    pub fn check(&self, path: &Path) -> anyhow::Result<()> {
        let at = || path.display().to_string();
        let found = fs::symlink_metadata(path).with_context(at)?;
        if found.is_dir() {
            for entry in fs::read_dir(path).with_context(at)? {
                self.check(&entry?.path())?;
            }
            return Ok(());
        }
        let bytes = if found.is_symlink() {
            fs::read_link(path)
                .with_context(at)?
                .into_os_string()
                .into_encoded_bytes()
        } else {
            fs::read(path).with_context(at)?
        };
        self.check_bytes(&bytes, path)
    }

    /// Like [`check`](Self::check), for the uncompressed contents of a file.
    pub fn check_bytes(&self, bytes: &[u8], file: &Path) -> anyhow::Result<()> {
        for (folder, name) in &self.0 {
            let searched = folder.components().count() > LEAST_NAMES && folder != Path::new(name);
            if searched && contains(bytes, folder.as_os_str().as_encoded_bytes()) {
                bail!(
                    "{} has the path {} of this machine: it would be another file if it was built \
                     in another folder",
                    file.display(),
                    folder.display()
                );
            }
        }
        Ok(())
    }
}

/// Returns whether `path` occurs in `bytes`, with nothing after it that makes it the name of another folder.
fn contains(bytes: &[u8], path: &[u8]) -> bool {
    let Some(first) = path.first() else {
        return false;
    };
    let starts = bytes.iter().enumerate().filter(|(_, byte)| *byte == first);
    let mut rests = starts.filter_map(|(at, _)| bytes[at..].strip_prefix(path));
    rests.any(|rest| {
        !rest
            .first()
            .is_some_and(|next| next.is_ascii_alphanumeric() || b"-_".contains(next))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> BuildPaths {
        BuildPaths::new(vec![
            ("/home/ann/.cargo".into(), CARGO),
            ("/home/ann/gdr".into(), CHECKOUT),
            ("/home".into(), BUILT),
        ])
    }

    #[test]
    fn a_file_with_a_folder_of_the_machine_is_refused_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("share/doc");
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join("README.md"), "in /gdr and /home/bob/gdr").unwrap();
        paths().check(folder.path()).unwrap();
        let library = below.join("library.so");
        fs::write(&library, b"\x7fELF\0x.rs/home/ann/.cargo/registry/y.rs").unwrap();
        let error = paths().check(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("library.so has the path /home/ann/.cargo"),
            "{error}"
        );
    }

    #[test]
    fn a_link_into_a_folder_of_the_machine_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/home/ann/gdr/LICENSE", &link).unwrap();
        assert!(paths().check(&link).is_err());
    }

    #[test]
    fn a_folder_whose_name_only_begins_the_same_is_another_one() {
        let file = Path::new("x");
        paths().check_bytes(b"/home/ann/gdr-2/x", file).unwrap();
        paths().check_bytes(b"/home/ann/gdr2", file).unwrap();
        assert!(
            paths()
                .check_bytes(b"/home/ann/gdr-2/home/ann/gdr", file)
                .is_err()
        );
        assert!(paths().check_bytes(b"/home/ann/gdr/x", file).is_err());
    }

    #[test]
    fn the_flag_of_the_innermost_folder_comes_last() {
        let paths = BuildPaths::new(vec![
            ("/home/ann/gdr/cargo".into(), CARGO),
            ("/home/ann/gdr".into(), CHECKOUT),
        ]);
        assert_eq!(
            paths.flags(),
            "--remap-path-prefix=/home/ann/gdr=/gdr --remap-path-prefix=/home/ann/gdr/cargo=/cargo"
        );
    }
}
