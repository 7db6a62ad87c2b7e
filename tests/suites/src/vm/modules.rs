//! Kernel modules in the order of their dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// A module, decompressed.
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) contents: Vec<u8>,
}

/// Returns the modules in `folder` that `wanted` names, with their dependencies, in an order in which they can be
/// loaded. Names without a module are left out, because they may be built in. A busybox that runs here unpacks them,
/// otherwise the installed `xz`.
pub(crate) fn with_dependencies(
    folder: &Path,
    wanted: &[&str],
    busybox: Option<&Path>,
) -> anyhow::Result<Vec<Module>> {
    let mut files = BTreeMap::new();
    find(folder, &mut files)?;
    let mut loader = Loader {
        files,
        busybox,
        seen: BTreeSet::new(),
        order: Vec::new(),
    };
    for name in wanted {
        loader.add(name)?;
    }
    Ok(loader.order)
}

struct Loader<'a> {
    files: BTreeMap<String, PathBuf>,
    busybox: Option<&'a Path>,
    seen: BTreeSet<String>,
    order: Vec<Module>,
}

impl Loader<'_> {
    fn add(&mut self, name: &str) -> anyhow::Result<()> {
        let name = name.replace('-', "_");
        let Some(file) = self.files.get(&name).cloned() else {
            return Ok(());
        };
        if !self.seen.insert(name.clone()) {
            return Ok(());
        }
        let contents = read(&file, self.busybox)?;
        for needed in dependencies(&contents) {
            self.add(&needed)?;
        }
        self.order.push(Module { name, contents });
        Ok(())
    }
}

/// Finds all modules below `folder`, by the kernel's name for them.
fn find(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> anyhow::Result<()> {
    let at = || folder.display().to_string();
    for entry in fs::read_dir(folder).with_context(at)? {
        let entry = entry.with_context(at)?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            find(&path, files)?;
        } else if let Some(name) = entry.file_name().to_str()
            && let Some((stem, "ko" | "ko.xz" | "ko.zst")) = name.split_once('.')
        {
            files.insert(stem.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn read(file: &Path, busybox: Option<&Path>) -> anyhow::Result<Vec<u8>> {
    let mut command = match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => {
            let mut command = Command::new(busybox.unwrap_or(Path::new("xz")));
            command.args(busybox.map(|_| "xz"));
            command
        }
        Some("zst") => Command::new("zstd"),
        _ => return fs::read(file).with_context(|| file.display().to_string()),
    };
    let output = command
        .arg("-dc")
        .arg(file)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("unpacking {}", file.display()))?;
    if !output.status.success() {
        bail!("unpacking {}: {}", file.display(), output.status);
    }
    Ok(output.stdout)
}

/// Returns a module's dependencies: `depends=NAME,NAME` in its section of NUL-terminated strings.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = &module[at + KEY.len()..];
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&value[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_the_modules_strings() {
        let module = b"\x7fELF..\0license=GPL\0depends=ib_core,ib_uverbs\0name=x\0";
        assert_eq!(dependencies(module), ["ib_core", "ib_uverbs"]);
        assert!(dependencies(b"..\0depends=\0name=y\0").is_empty());
        assert!(dependencies(b"no such string").is_empty());
    }

    #[test]
    fn dependencies_come_before_the_module_and_once() {
        let folder = std::env::temp_dir().join(format!("gdr-modules-{}", std::process::id()));
        let net = folder.join("kernel/net");
        fs::create_dir_all(&net).unwrap();
        let write = |name: &str, needs: &str| {
            fs::write(net.join(name), format!("ELF\0depends={needs}\0")).unwrap();
        };
        write("ib-core.ko", "");
        write("udp_tunnel.ko", "");
        write("rdma_rxe.ko", "ib-core,udp_tunnel");
        let wanted = ["rdma_rxe", "built_in", "ib_core"];
        let order = with_dependencies(&folder, &wanted, None).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let names: Vec<_> = order.iter().map(|module| &*module.name).collect();
        assert_eq!(names, ["ib_core", "udp_tunnel", "rdma_rxe"]);
    }
}
