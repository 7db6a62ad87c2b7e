//! The one seam through which everything about a node is read.

mod datum;
mod live;
mod memory;
pub(crate) mod path;
pub mod virtual_path;

pub use datum::{Datum, Errno};
pub use live::LiveRoot;
pub use memory::MemorySource;

/// The longest file a [`Source`] gives, in bytes. Longer ones are cut.
pub const MAX_FILE: usize = 1 << 20;

/// The longest directory a [`Source`] lists. Longer ones are cut.
pub const MAX_ENTRIES: usize = 1 << 16;

/// Where the facts about a node come from: the running machine, a capture of one, a test.
///
/// Paths are absolute, separated by `/`, and spelled as on the node that is described
/// (`/sys/bus/pci/devices`). Implementations read only; nothing here changes a node.
pub trait Source {
    /// The file at `path`, its first [`MAX_FILE`] bytes. Links are followed. A directory is
    /// [`Datum::Missing`].
    fn read(&self, path: &str) -> Datum<Vec<u8>>;

    /// The names in the directory at `path`, sorted. Links are followed.
    fn list(&self, path: &str) -> Datum<Vec<String>>;

    /// Where the link at `path` leads, as it is written there. [`Datum::Missing`] where there is
    /// nothing or no link. Links in the directories above are followed.
    fn link(&self, path: &str) -> Datum<String>;

    /// The file at `path` as text, without the blanks and zero bytes around it, with which some
    /// files of the kernel end. Bytes that are no UTF-8 are replaced.
    fn text(&self, path: &str) -> Datum<String> {
        self.read(path).map(|bytes| {
            let text = String::from_utf8_lossy(&bytes);
            text.trim_matches(|c: char| c.is_whitespace() || c == '\0')
                .to_owned()
        })
    }

    /// `path` with every link in it followed. What does not exist stands for itself.
    fn resolve(&self, path: &str) -> Datum<String> {
        path::resolve(path, |at| self.link(at))
    }

    /// The last name of what the link at `path` leads to: a driver's name, a group's number.
    fn link_name(&self, path: &str) -> Datum<String> {
        self.link(path)
            .and_then(|target| path::last_name(&target).map(str::to_owned).into())
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
