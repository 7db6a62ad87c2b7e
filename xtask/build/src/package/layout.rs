//! Which file goes where: one list for each part of gdr, from which the archive, the Debian packages
//! and the RPM packages are made.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::architecture::Architecture;
use super::archive::gzip;
use super::programs::Programs;
use crate::install::{HEADERS, LIBRARY, SONAME, UNVERSIONED, make_folder, pkg_config};
use crate::workspace::root;

const PROGRAM: u32 = 0o755;
const DATA: u32 = 0o644;

/// GDRCopy's programs, which are names of gdr.
const GDRCOPY_TOOLS: [&str; 5] = [
    "gdrcopy_apiperf",
    "gdrcopy_copybw",
    "gdrcopy_copylat",
    "gdrcopy_pplat",
    "gdrcopy_sanity",
];

/// A part that users install by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The gdr command and the libraries of `gdr run` and `gdr trace`.
    Command,
    /// libgdrapi.so.2.
    Library,
    /// What programs are compiled with that use the library.
    Development,
}

/// A file of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Below the root of the package.
    pub path: PathBuf,
    pub content: Content,
}

/// What a file of a package is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Bytes {
        bytes: Vec<u8>,
        mode: u32,
    },
    /// A symbolic link to this.
    Link(String),
}

/// The folders of a distribution.
#[derive(Clone, Debug)]
pub(crate) struct Folders {
    /// Where bin/ is, below the root of the package.
    below: &'static str,
    /// What units and scripts have in place of it.
    prefix: &'static str,
    /// What gdrapi.pc has in place of it.
    pkg_config_prefix: &'static str,
    /// Below the prefix.
    lib: PathBuf,
    zsh: &'static str,
    /// The name of the package for developers.
    development: &'static str,
    /// The mode of libraries: data to the loader, but RPM's tools look at programs only.
    library: u32,
}

impl Folders {
    /// Returns the folders of the archive. It is used where it is unpacked, or install.sh copies it
    /// and puts the prefix into units and scripts.
    pub(crate) fn archive() -> Self {
        Self {
            below: "",
            prefix: "@prefix@",
            pkg_config_prefix: "${pcfiledir}/../..",
            lib: "lib".into(),
            zsh: "share/zsh/site-functions",
            development: "gdr",
            library: DATA,
        }
    }

    /// Returns Debian's folders.
    pub(crate) fn debian(architecture: Architecture) -> Self {
        Self {
            below: "usr",
            prefix: "/usr",
            pkg_config_prefix: "/usr",
            lib: Path::new("lib").join(architecture.multiarch()),
            zsh: "share/zsh/vendor-completions",
            development: "libgdrapi-dev",
            library: DATA,
        }
    }

    /// Returns the folders of distributions with RPM.
    pub(crate) fn rpm() -> Self {
        Self {
            lib: "lib64".into(),
            zsh: "share/zsh/site-functions",
            development: "libgdrapi-devel",
            library: PROGRAM,
            ..Self::debian(Architecture::X86)
        }
    }
}

/// Returns the files of one part, in a distribution's folders.
pub(crate) fn files(
    part: Part,
    folders: &Folders,
    programs: &Programs,
) -> anyhow::Result<Vec<Item>> {
    let mut list = List {
        folders,
        items: Vec::new(),
    };
    match part {
        Part::Command => list.command(programs)?,
        Part::Library => {
            list.copy(&programs.gdrapi, folders.lib.join(LIBRARY), folders.library)?;
            list.link(LIBRARY, folders.lib.join(SONAME));
        }
        Part::Development => list.development()?,
    }
    list.items.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(list.items)
}

/// A list that is being made.
struct List<'a> {
    folders: &'a Folders,
    items: Vec<Item>,
}

impl List<'_> {
    fn command(&mut self, programs: &Programs) -> anyhow::Result<()> {
        self.copy(&programs.gdr, "bin/gdr", PROGRAM)?;
        for tool in GDRCOPY_TOOLS {
            self.link("gdr", Path::new("bin").join(tool));
        }
        let verbs = self.folders.lib.join("gdr");
        for (library, name) in programs.verbs.iter().zip([
            "libgdr-verbs.so",
            "shadow/libibverbs.so.1",
            "libgdr-verbs-trace.so",
        ]) {
            self.copy(library, verbs.join(name), self.folders.library)?;
        }
        self.link("libibverbs.so.1", verbs.join("shadow/libibverbs.so"));
        for page in &programs.pages {
            let name = page.file_name().context("a manual page has no name")?;
            let name = format!("{}.gz", name.to_string_lossy());
            let bytes = fs::read(page).with_context(|| page.display().to_string())?;
            self.bytes(gzip(&bytes)?, Path::new("share/man/man1").join(name), DATA);
        }
        self.completions()?;
        self.services()?;
        for page in pages_of_documentation()? {
            let path = Path::new("share/doc/gdr").join(&page);
            self.copy(&root().join(page), path, DATA)?;
        }
        Ok(())
    }

    fn completions(&mut self) -> anyhow::Result<()> {
        let source = Path::new("packaging/completions");
        let bash = Path::new("share/bash-completion/completions");
        let fish = Path::new("share/fish/vendor_completions.d");
        self.copy(
            &root().join(source).join("gdr.bash"),
            bash.join("gdr"),
            DATA,
        )?;
        self.copy(
            &root().join(source).join("gdr.fish"),
            fish.join("gdr.fish"),
            DATA,
        )?;
        for tool in GDRCOPY_TOOLS {
            self.link("gdr", bash.join(tool));
            self.link("gdr.fish", fish.join(format!("{tool}.fish")));
        }
        let zsh = Path::new(self.folders.zsh).join("_gdr");
        self.copy(&root().join(source).join("_gdr"), zsh, DATA)
    }

    /// Adds the units, all disabled, and drop-ins that administrators may copy to /etc.
    fn services(&mut self) -> anyhow::Result<()> {
        let units = Path::new("lib/systemd/system");
        for unit in [
            "gdr-doctor.service",
            "gdr-doctor.timer",
            "gdr-peermem.service",
        ] {
            self.template(&format!("systemd/{unit}"), units.join(unit), DATA)?;
        }
        self.template(
            "gdr-textfile",
            Path::new("libexec/gdr/gdr-textfile"),
            PROGRAM,
        )?;
        for file in contrib()? {
            let mode = match file.extension() {
                Some(extension) if extension == "sh" => PROGRAM,
                _ => DATA,
            };
            self.copy(
                &root().join(&file),
                Path::new("share/gdr").join(&file),
                mode,
            )?;
        }
        for (folder, name) in [
            ("modules-load.d", "nvidia-peermem.conf"),
            ("limits.d", "90-gdr-memlock.conf"),
        ] {
            let to = Path::new("share/gdr").join(folder).join(name);
            self.copy(&root().join("packaging/conf").join(name), to, DATA)?;
        }
        Ok(())
    }

    fn development(&mut self) -> anyhow::Result<()> {
        let lib = self.folders.lib.clone();
        self.link(LIBRARY, lib.join(UNVERSIONED));
        for header in HEADERS {
            let from = root().join("crates/gdrapi/include").join(header);
            self.copy(&from, Path::new("include").join(header), DATA)?;
        }
        let prefix = Path::new(self.folders.pkg_config_prefix);
        let text = pkg_config(prefix, &prefix.join(&lib), &prefix.join("include"))?;
        self.bytes(text.into_bytes(), lib.join("pkgconfig/gdrapi.pc"), DATA);
        let example = root().join("crates/gdrapi/examples/write_and_read.c");
        let documents = Path::new("share/doc").join(self.folders.development);
        self.copy(&example, documents.join("examples/write_and_read.c"), DATA)
    }

    fn bytes(&mut self, bytes: Vec<u8>, path: impl AsRef<Path>, mode: u32) {
        self.items.push(Item {
            path: Path::new(self.folders.below).join(path),
            content: Content::Bytes { bytes, mode },
        });
    }

    fn link(&mut self, target: &str, path: impl AsRef<Path>) {
        self.items.push(Item {
            path: Path::new(self.folders.below).join(path),
            content: Content::Link(target.to_owned()),
        });
    }

    fn copy(&mut self, from: &Path, path: impl AsRef<Path>, mode: u32) -> anyhow::Result<()> {
        let bytes = fs::read(from).with_context(|| from.display().to_string())?;
        self.bytes(bytes, path, mode);
        Ok(())
    }

    /// Adds a file of packaging/, with the prefix put in.
    fn template(&mut self, name: &str, path: impl AsRef<Path>, mode: u32) -> anyhow::Result<()> {
        let from = root().join("packaging").join(name);
        let text = fs::read_to_string(&from).with_context(|| from.display().to_string())?;
        let text = text.replace("@prefix@", self.folders.prefix);
        self.bytes(text.into_bytes(), path, mode);
        Ok(())
    }
}

/// Returns what the archive has in its own folder: how to install it, and the licences.
pub(crate) fn archive_root(programs: &Programs) -> anyhow::Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut add = |path: &str, bytes, mode| {
        items.push(Item {
            path: path.into(),
            content: Content::Bytes { bytes, mode },
        });
    };
    for (file, mode) in [
        ("packaging/install.sh", PROGRAM),
        ("packaging/Dockerfile", DATA),
        ("LICENSE-APACHE", DATA),
        ("LICENSE-MIT", DATA),
    ] {
        let from = root().join(file);
        let bytes = fs::read(&from).with_context(|| from.display().to_string())?;
        add(file.rsplit('/').next().unwrap_or(file), bytes, mode);
    }
    add(
        "third-party.md",
        programs.third_party.clone().into_bytes(),
        DATA,
    );
    Ok(items)
}

/// Returns the pages that are installed: the users' pages, and what they link to.
fn pages_of_documentation() -> anyhow::Result<Vec<PathBuf>> {
    let mut pages: Vec<PathBuf> = ["", "docs", "docs/h200"]
        .into_iter()
        .map(|folder| -> anyhow::Result<Vec<PathBuf>> {
            let entries = fs::read_dir(root().join(folder))?;
            let names = entries.map(|entry| Ok(Path::new(folder).join(entry?.file_name())));
            names.collect()
        })
        .collect::<anyhow::Result<Vec<_>>>()?
        .concat();
    // And the pictures, the figures and the program that pages show.
    pages.retain(|page| {
        let extension = page.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("md" | "svg" | "c" | "json"))
    });
    pages.sort();
    Ok(pages)
}

/// Returns the files for fleets, below the root of the workspace, sorted.
pub fn contrib() -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in fs::read_dir(root().join("contrib"))? {
        let name = Path::new("contrib").join(folder?.file_name());
        for file in fs::read_dir(root().join(&name))? {
            files.push(name.join(file?.file_name()));
        }
    }
    files.sort();
    Ok(files)
}

/// Writes the files below a folder.
pub(crate) fn stage(items: &[Item], folder: &Path) -> anyhow::Result<()> {
    for Item { path, content } in items {
        let path = folder.join(path);
        if let Some(parent) = path.parent() {
            make_folders(parent)?;
        }
        let written = match content {
            Content::Link(target) => symlink(target, &path),
            Content::Bytes { bytes, mode } => fs::write(&path, bytes)
                .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(*mode))),
        };
        written.with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(())
}

/// Makes folders with the mode of a package's, whatever the user's mask is.
fn make_folders(folder: &Path) -> anyhow::Result<()> {
    for ancestor in folder.ancestors().collect::<Vec<_>>().into_iter().rev() {
        if !ancestor.as_os_str().is_empty() && !ancestor.exists() {
            make_folder(ancestor)?;
            fs::set_permissions(ancestor, Permissions::from_mode(PROGRAM))
                .with_context(|| ancestor.display().to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_installed_page_shows_is_installed() {
        let installed = pages_of_documentation().unwrap();
        for page in &installed {
            if page.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let text = fs::read_to_string(root().join(page)).unwrap();
            for link in text
                .split("](")
                .skip(1)
                .filter_map(|it| it.split(')').next())
            {
                let shown = page.parent().unwrap().join(link);
                let is_picture = link.ends_with(".svg") || link.ends_with(".json");
                let is_here = !link.contains("://") && is_picture;
                assert!(
                    !is_here || installed.contains(&shown),
                    "{}: {link}",
                    page.display()
                );
            }
        }
    }
}
