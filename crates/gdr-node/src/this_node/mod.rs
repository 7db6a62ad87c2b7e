//! The machine that this process runs on, with what of it is no file.

mod daemons;
mod device_nodes;
mod environment;
mod kernel;
mod kernel_log;
mod libraries;
mod systemd;

use std::cell::OnceCell;
use std::collections::BTreeMap;

use crate::source::{Datum, LiveRoot, Source, virtual_path};

/// Files of a directory that is none, by name.
type Directory = BTreeMap<String, Datum<Vec<u8>>>;

/// What gives the text of a virtual file, asked once at most.
struct File {
    give: Box<dyn Fn() -> Datum<Vec<u8>>>,
    given: OnceCell<Datum<Vec<u8>>>,
}

/// What gives the files of a virtual directory, asked once at most.
struct Files {
    give: Box<dyn Fn() -> Datum<Directory>>,
    given: OnceCell<Datum<Directory>>,
}

/// The machine that this process runs on: its files, and what [`virtual_path`] names.
///
/// What takes a library that this crate does not know (CUDA, verbs) is handed in with
/// [`ThisNode::with`]; without that it is [`Datum::NotCollected`]. Every virtual file is made when
/// it is asked for first, and stays the same.
///
/// ```
/// use gdr_node::{Datum, Source, ThisNode, virtual_path};
///
/// let node = ThisNode::new().with(virtual_path::CUDA_DEVICES, || Datum::Missing);
/// assert_eq!(node.read(virtual_path::CUDA_DEVICES), Datum::Missing);
/// assert_eq!(node.read(virtual_path::VERBS_DEVICES), Datum::NotCollected);
/// assert!(node.text(virtual_path::UNAME).present().unwrap().contains("release "));
/// ```
pub struct ThisNode {
    root: LiveRoot,
    files: BTreeMap<String, File>,
    directories: BTreeMap<String, Files>,
}

impl ThisNode {
    /// The machine, with all that takes no library.
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
            .with_directory(virtual_path::LIMITS, daemons::limits)
            .with_directory(virtual_path::SYSTEMD, systemd::read)
    }

    /// Adds what gives the text of a virtual file, or puts it in another's place.
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
            Some((files, name)) => files.as_ref().and_then(|files| match files.get(name) {
                Some(file) => file.clone(),
                None => Datum::Missing,
            }),
            None => Datum::NotCollected,
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
                Some(files) => files.as_ref().map(|files| files.keys().cloned().collect()),
                None => Datum::NotCollected,
            };
        }
        self.root.list(path)
    }

    fn link(&self, path: &str) -> Datum<String> {
        if virtual_path::is_virtual(path) {
            return Datum::Missing;
        }
        self.root.link(path)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn what_was_handed_in_is_asked_once_and_only_when_needed() {
        let asked = Rc::new(Cell::new(0));
        let counter = Rc::clone(&asked);
        let node = ThisNode::new().with(virtual_path::VERBS_DEVICES, move || {
            counter.set(counter.get() + 1);
            Datum::Present(b"{}".to_vec())
        });
        assert_eq!(asked.get(), 0);
        for path in ["@verbs/devices.json", "/@verbs/devices.json"] {
            assert_eq!(node.text(path), Datum::Present("{}".to_owned()));
        }
        assert_eq!(asked.get(), 1);
    }

    #[test]
    fn a_process_knows_its_own_limits_and_kernel() {
        let node = ThisNode::new();
        let limits = node.text(virtual_path::LIMITS_SELF).into_present().unwrap();
        assert!(limits.contains("Max locked memory"), "{limits}");
        let names = node.list(virtual_path::LIMITS).into_present().unwrap();
        assert!(names.contains(&"self".to_owned()));
        assert_eq!(node.read("@limits/no-such-daemon"), Datum::Missing);
        assert_eq!(node.read("@no/such/thing"), Datum::NotCollected);
        assert_eq!(node.list("@nothing"), Datum::NotCollected);
        let uname = node.text(virtual_path::UNAME).into_present().unwrap();
        assert_eq!(uname.lines().count(), 5, "{uname}");
    }

    #[test]
    fn nothing_here_fails_on_any_machine() {
        let node = ThisNode::new();
        for path in node.files.keys() {
            assert!(
                !matches!(node.read(path), Datum::Failed(_)),
                "{path}: {:?}",
                node.read(path)
            );
        }
        assert!(!matches!(
            node.list(virtual_path::SYSTEMD),
            Datum::Failed(_)
        ));
    }
}
