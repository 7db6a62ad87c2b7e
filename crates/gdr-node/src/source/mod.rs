//! The trait through which all facts about a node are read, and its in-memory implementations.

mod datum;
mod memory;
mod overlay;
pub(crate) mod path;
pub mod virtual_path;

pub use datum::{Absence, Datum, DatumExt, Errno};
pub use memory::MemorySource;
pub use overlay::Overlay;

/// The longest file that a [`Source`] returns, in bytes. Longer ones are truncated.
pub const MAX_FILE: usize = 1 << 20;

/// The longest directory that a [`Source`] lists, in entries. Longer ones are truncated.
pub const MAX_ENTRIES: usize = 1 << 16;

/// A source of facts about a node: the running machine, a capture, or a test fixture.
///
/// Paths are absolute, separated by `/`, and spelled as on the node that is described
/// (`/sys/bus/pci/devices`). Implementations never change a node.
pub trait Source {
    /// Returns the first [`MAX_FILE`] bytes of the file at `path`. Links are followed. A directory is
    /// [`Absence::Missing`].
    fn read(&self, path: &str) -> Datum<Vec<u8>>;

    /// Returns the names in the directory at `path`, sorted. Links are followed.
    fn list(&self, path: &str) -> Datum<Vec<String>>;

    /// Returns the target text of the symbolic link at `path`; [`Absence::Missing`] if `path` does not exist or is not
    /// a link. Links in the directories above are followed.
    fn link(&self, path: &str) -> Datum<String>;

    /// Returns the file at `path` as text, without surrounding whitespace and the zero bytes that some sysfs files end
    /// with. Invalid UTF-8 is replaced.
    fn text(&self, path: &str) -> Datum<String> {
        self.read(path).map(|bytes| {
            let text = String::from_utf8_lossy(&bytes);
            text.trim_matches(|c: char| c.is_whitespace() || c == '\0')
                .to_owned()
        })
    }

    /// Returns `path` with every link resolved. Names that do not exist stay as they are.
    fn resolve(&self, path: &str) -> Datum<String> {
        path::resolve(path, |at| self.link(at))
    }

    /// Returns the last name in the target of the link at `path`: a driver's name, a group's number.
    fn link_name(&self, path: &str) -> Datum<String> {
        self.link(path).and_then(|target| {
            path::last_name(&target)
                .map(str::to_owned)
                .ok_or(Absence::Missing)
        })
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn read(&self, path: &str) -> Datum<Vec<u8>> {
        (**self).read(path)
    }

    fn list(&self, path: &str) -> Datum<Vec<String>> {
        (**self).list(path)
    }

    fn link(&self, path: &str) -> Datum<String> {
        (**self).link(path)
    }

    fn resolve(&self, path: &str) -> Datum<String> {
        (**self).resolve(path)
    }
}
