//! The machine that this process runs on: its files and the virtual files.

mod addresses;
mod daemons;
mod device_nodes;
mod environment;
mod kernel;
mod kernel_log;
mod libraries;
mod root;
mod systemd;

pub use root::LiveRoot;

use std::cell::OnceCell;
use std::collections::BTreeMap;

use crate::source::{Absence, Datum, DatumExt, Source, virtual_path};

/// The files of a virtual directory by name.
type Directory = BTreeMap<String, Datum<Vec<u8>>>;

/// A virtual file, produced at most once.
struct File {
    give: Box<dyn Fn() -> Datum<Vec<u8>>>,
    given: OnceCell<Datum<Vec<u8>>>,
}

/// A virtual directory, produced at most once.
struct Files {
    give: Box<dyn Fn() -> Datum<Directory>>,
    given: OnceCell<Datum<Directory>>,
}

/// The machine that this process runs on: its files and the files of [`virtual_path`].
///
/// Virtual files that need a library (CUDA, NVML, verbs) are added with [`ThisNode::with`]; otherwise they are
/// [`Absence::NotCollected`]. Each virtual file is produced when first read, and cached.
///
/// ```
/// use gdr_node::{Absence, Source, ThisNode, virtual_path};
///
/// let node = ThisNode::new().with(virtual_path::CUDA_DEVICES, || Err(Absence::Missing));
/// assert_eq!(node.read(virtual_path::CUDA_DEVICES), Err(Absence::Missing));
/// assert_eq!(node.read(virtual_path::VERBS_DEVICES), Err(Absence::NotCollected));
/// assert!(node.text(virtual_path::UNAME).as_ref().unwrap().contains("release "));
/// ```
pub struct ThisNode {
    root: LiveRoot,
    files: BTreeMap<String, File>,
    directories: BTreeMap<String, Files>,
}

impl ThisNode {
    /// Returns this machine with the virtual files that need no library.
    #[must_use]
    pub fn new() -> Self {
        let node = Self {
            root: LiveRoot::new(),
            files: BTreeMap::new(),
            directories: BTreeMap::new(),
        };
        node.with(virtual_path::KERNEL_LOG, kernel_log::read)
            .with(virtual_path::UNAME, || kernel::uname(&LiveRoot::new()))
            .with(virtual_path::SYMBOLS, kernel::symbols)
            .with(virtual_path::MODULE_FILES, kernel::module_files)
            .with(virtual_path::KERNEL_CONFIG, kernel::configuration)
            .with(virtual_path::ENVIRONMENT, environment::read)
            .with(virtual_path::DEVICE_NODES, device_nodes::read)
            .with(virtual_path::SHARED_MEMORY, device_nodes::shared_memory)
            .with(virtual_path::LIBRARIES, libraries::read)
            .with(
                virtual_path::ADDRESSES,
                || addresses::read(&LiveRoot::new()),
            )
            .with_directory(virtual_path::LIMITS, daemons::limits)
            .with_directory(virtual_path::SYSTEMD, systemd::read)
    }

    /// Adds or replaces a virtual file, given the function that produces it.
    #[must_use]
    pub fn with(mut self, path: &str, give: impl Fn() -> Datum<Vec<u8>> + 'static) -> Self {
        let file = File {
            give: Box::new(give),
            given: OnceCell::new(),
        };
        self.files.insert(path.to_owned(), file);
        self
    }

    fn with_directory(mut self, path: &str, give: impl Fn() -> Datum<Directory> + 'static) -> Self {
        let files = Files {
            give: Box::new(give),
            given: OnceCell::new(),
        };
        self.directories.insert(path.to_owned(), files);
        self
    }

    fn directory(&self, path: &str) -> Option<&Datum<Directory>> {
        let files = self.directories.get(path)?;
        Some(files.given.get_or_init(|| (files.give)()))
    }

    fn read_virtual(&self, path: &str) -> Datum<Vec<u8>> {
        let path = path.trim_matches('/');
        if let Some(file) = self.files.get(path) {
            return file.given.get_or_init(|| (file.give)()).clone();
        }
        let inside = path
            .rsplit_once('/')
            .and_then(|(above, name)| Some((self.directory(above)?, name)));
        match inside {
            Some((files, name)) => files.by_ref().and_then(|files| match files.get(name) {
                Some(file) => file.clone(),
                None => Err(Absence::Missing),
            }),
            None => Err(Absence::NotCollected),
        }
    }
}

impl Default for ThisNode {
    fn default() -> Self {
        Self::new()
    }
}

impl Source for ThisNode {
    fn read(&self, path: &str) -> Datum<Vec<u8>> {
        if virtual_path::is_virtual(path) {
            return self.read_virtual(path);
        }
        self.root.read(path)
    }

    fn list(&self, path: &str) -> Datum<Vec<String>> {
        if virtual_path::is_virtual(path) {
            return match self.directory(path.trim_matches('/')) {
                Some(files) => files.by_ref().map(|files| files.keys().cloned().collect()),
                None => Err(Absence::NotCollected),
            };
        }
        self.root.list(path)
    }

    fn link(&self, path: &str) -> Datum<String> {
        if virtual_path::is_virtual(path) {
            return Err(Absence::Missing);
        }
        self.root.link(path)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use snapshot::assert_contains;

    use super::*;

    #[test]
    fn an_added_file_is_produced_once_by_its_first_read() {
        let asked = Rc::new(Cell::new(0));
        let counter = Rc::clone(&asked);
        let node = ThisNode::new().with(virtual_path::VERBS_DEVICES, move || {
            counter.set(counter.get() + 1);
            Ok(b"{}".to_vec())
        });
        assert_eq!(asked.get(), 0);
        for path in ["@verbs/devices.json", "/@verbs/devices.json"] {
            assert_eq!(node.text(path), Ok("{}".to_owned()));
        }
        assert_eq!(asked.get(), 1);
    }

    #[test]
    fn limits_and_uname_of_this_process_are_read() {
        let node = ThisNode::new();
        let limits = node.text(virtual_path::LIMITS_SELF).unwrap();
        assert_contains!(limits, "Max locked memory");
        let names = node.list(virtual_path::LIMITS).unwrap();
        assert!(names.contains(&"self".to_owned()));
        assert_eq!(node.read("@limits/no-such-daemon"), Err(Absence::Missing));
        assert_eq!(node.read("@no/such/thing"), Err(Absence::NotCollected));
        assert_eq!(node.list("@nothing"), Err(Absence::NotCollected));
        let uname = node.text(virtual_path::UNAME).unwrap();
        assert_eq!(uname.lines().count(), 5, "{uname}");
    }

    #[test]
    fn no_virtual_file_fails_on_this_machine() {
        let node = ThisNode::new();
        for path in node.files.keys() {
            assert!(
                !matches!(node.read(path), Err(Absence::Failed(_))),
                "{path}: {:?}",
                node.read(path)
            );
        }
        assert!(!matches!(
            node.list(virtual_path::SYSTEMD),
            Err(Absence::Failed(_))
        ));
    }
}
