//! A tree of files that are not in any file system: what is at a path.
//!
//! It knows nothing of the kernel's files beside it. A path that leaves the tree, by a name that it does not
//! have, is [`Found::Elsewhere`]: the kernel may have it there.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// How many symbolic links a path may go through, as in the kernel (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;

/// What is at a path; `C` is what a file has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Node<C> {
    Folder,
    File(C),
    /// A symbolic link and its target.
    Link(String),
    /// A character device and its number.
    Device(DeviceNumber),
}

/// The major and the minor number of a character device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceNumber {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
}

/// The answer for a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a, C> {
    /// It is in the tree, at this path without links.
    Here(&'a str, &'a Node<C>),
    /// The tree has nothing at this path, where the path that was looked up leads.
    Elsewhere(Vec<u8>),
    /// It goes through something that is not a folder.
    NotAFolder,
    /// It goes through too many links.
    TooManyLinks,
}

/// Files by their absolute paths, which go through no links. Every folder on the way is there.
#[derive(Debug)]
pub(crate) struct Tree<C>(BTreeMap<String, Node<C>>);

impl<C> Tree<C> {
    pub(crate) fn new() -> Self {
        Self(BTreeMap::from([(String::new(), Node::Folder)]))
    }

    /// Adds a file, and the folders above it. What was added first stays.
    pub(crate) fn add(&mut self, path: &str, node: Node<C>) {
        let mut above = path;
        while let Some((folder, _)) = above.rsplit_once('/') {
            self.0.entry(folder.to_owned()).or_insert(Node::Folder);
            above = folder;
        }
        if let Entry::Vacant(place) = self.0.entry(path.to_owned()) {
            place.insert(node);
        }
    }

    /// The names in a folder of the tree, given by its path without links, and what they are.
    pub(crate) fn entries(&self, folder: &str) -> impl Iterator<Item = (&str, &Node<C>)> {
        let start = format!("{folder}/");
        let below = self.0.range(start.clone()..);
        below
            .map_while(move |(path, node)| {
                let name = path.strip_prefix(&start)?;
                Some((name, node))
            })
            .filter(|(name, _)| !name.contains('/'))
    }

    /// What is at a path without links.
    pub(crate) fn at(&self, path: &str) -> Option<(&str, &Node<C>)> {
        self.0
            .get_key_value(path)
            .map(|(path, node)| (path.as_str(), node))
    }

    /// Finds what is at an absolute path of any bytes.
    pub(crate) fn look_up(&self, path: &[u8], last: LastLink) -> Found<'_, C> {
        let mut rest: Vec<&[u8]> = path.split(|byte| *byte == b'/').rev().collect();
        let mut at = String::new();
        let mut links = 0;
        while let Some(name) = rest.pop() {
            match name {
                b"" | b"." => continue,
                b".." => {
                    at.truncate(at.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => {}
            }
            let next = std::str::from_utf8(name)
                .ok()
                .map(|name| format!("{at}/{name}"));
            let found = next.and_then(|next| self.0.get_key_value(&next));
            match found {
                None => {
                    let names = std::iter::once(name).chain(rest.into_iter().rev());
                    let start = at.into_bytes();
                    return Found::Elsewhere(names.fold(start, |mut path, name| {
                        path.push(b'/');
                        path.extend(name);
                        path
                    }));
                }
                Some((_, Node::Link(target))) if !rest.is_empty() || last == LastLink::Follow => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Found::TooManyLinks;
                    }
                    if target.starts_with('/') {
                        at.clear();
                    }
                    rest.extend(target.as_bytes().split(|byte| *byte == b'/').rev());
                }
                Some((path, Node::Folder)) => at.clone_from(path),
                Some((path, node)) if rest.is_empty() => return Found::Here(path, node),
                Some(_) => return Found::NotAFolder,
            }
        }
        match self.0.get_key_value(&at) {
            Some((path, node)) => Found::Here(path, node),
            // A directory has only directories above it.
            None => Found::Elsewhere(at.into_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tree() -> Tree<&'static str> {
        let mut tree = Tree::new();
        tree.add(
            "/sys/class/ib/gdr0",
            Node::Link("../../devices/pci/ib/gdr0".to_owned()),
        );
        tree.add(
            "/sys/devices/pci/ib/gdr0/device",
            Node::Link("../../../pci".to_owned()),
        );
        tree.add("/sys/devices/pci/ib/gdr0/guid", Node::File("0002"));
        tree.add("/sys/loop", Node::Link("loop".to_owned()));
        tree.add("/sys/absolute", Node::Link("/sys/class".to_owned()));
        let number = DeviceNumber {
            major: 231,
            minor: 192,
        };
        tree.add("/dev/ib/uverbs0", Node::Device(number));
        tree
    }

    fn place(path: &str, last: LastLink) -> String {
        let tree = tree();
        match tree.look_up(path.as_bytes(), last) {
            Found::Here(path, _) => format!("at {path}"),
            Found::Elsewhere(path) => format!("not at {}", String::from_utf8_lossy(&path)),
            Found::NotAFolder => "not a folder".to_owned(),
            Found::TooManyLinks => "too many links".to_owned(),
        }
    }

    #[test]
    fn paths_are_followed_as_the_kernel_does() {
        use LastLink::{Follow, Keep};
        for (path, last, expected) in [
            ("/sys/class/ib", Follow, "at /sys/class/ib"),
            ("//sys/./class/../class//ib/", Follow, "at /sys/class/ib"),
            ("/sys/class/ib/gdr0", Keep, "at /sys/class/ib/gdr0"),
            ("/sys/class/ib/gdr0", Follow, "at /sys/devices/pci/ib/gdr0"),
            ("/sys/class/ib/gdr0/", Keep, "at /sys/devices/pci/ib/gdr0"),
            (
                "/sys/class/ib/gdr0/guid",
                Keep,
                "at /sys/devices/pci/ib/gdr0/guid",
            ),
            ("/sys/class/ib/gdr0/guid/", Keep, "not a folder"),
            ("/sys/class/ib/gdr0/guid/..", Keep, "not a folder"),
            ("/sys/class/ib/gdr0/..", Keep, "at /sys/devices/pci/ib"),
            ("/sys/class/ib/gdr0/device", Follow, "at /sys/devices/pci"),
            (
                "/sys/class/ib/gdr0/device/numa_node",
                Follow,
                "not at /sys/devices/pci/numa_node",
            ),
            (
                "/sys/class/ib/gdr0/none/../x/",
                Follow,
                "not at /sys/devices/pci/ib/gdr0/none/../x/",
            ),
            ("/sys/absolute/ib", Follow, "at /sys/class/ib"),
            ("/sys/loop", Keep, "at /sys/loop"),
            ("/sys/loop", Follow, "too many links"),
            ("/sys/loop/x", Keep, "too many links"),
            ("/dev/ib/uverbs0", Follow, "at /dev/ib/uverbs0"),
            ("/dev/ib/uverbs0/x", Follow, "not a folder"),
            ("/../../dev/..", Follow, "at "),
            ("/", Follow, "at "),
            ("", Follow, "at "),
            ("/sys/class/ib/gdr00", Follow, "not at /sys/class/ib/gdr00"),
        ] {
            assert_eq!(place(path, last), expected, "{path}");
        }
    }

    #[test]
    fn a_folder_has_the_names_in_it_and_no_others() {
        let tree = tree();
        let names = |folder| {
            tree.entries(folder)
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(""), ["dev", "sys"]);
        assert_eq!(names("/sys"), ["absolute", "class", "devices", "loop"]);
        assert_eq!(names("/sys/devices/pci/ib/gdr0"), ["device", "guid"]);
        assert_eq!(names("/sys/cl"), [""; 0]);
    }

    #[test]
    fn bytes_that_are_not_text_are_elsewhere() {
        let tree = tree();
        let path = b"/sys/class/\xff/x";
        assert_eq!(
            tree.look_up(path, LastLink::Follow),
            Found::Elsewhere(path.to_vec())
        );
        let long = [b"/sys/".as_slice(), &[b'a'; 5000]].concat();
        assert_eq!(tree.look_up(&long, LastLink::Keep), Found::Elsewhere(long));
    }

    #[test]
    fn what_was_added_first_stays() {
        let mut tree = tree();
        tree.add("/sys/class/ib", Node::File("other"));
        assert_eq!(
            tree.look_up(b"/sys/class/ib", LastLink::Keep),
            Found::Here("/sys/class/ib", &Node::Folder)
        );
    }

    proptest! {
        /// A path of any names, doubled slashes and dots ends, in the tree or not, and what it ends at
        /// is at its own path.
        #[test]
        fn any_path_ends(
            names in prop::collection::vec(
                prop::sample::select(vec![
                    "", ".", "..", "sys", "class", "ib", "gdr0", "device", "guid", "dev", "uverbs0",
                    "loop", "absolute", "devices", "pci", "\u{e9}", "x",
                ]),
                0..24,
            ),
            keep in any::<bool>(),
        ) {
            let tree = tree();
            let last = if keep { LastLink::Keep } else { LastLink::Follow };
            let path = format!("/{}", names.join("/"));
            match tree.look_up(path.as_bytes(), last) {
                Found::Here(at, node) => {
                    prop_assert_eq!(
                        tree.look_up(at.as_bytes(), LastLink::Keep),
                        Found::Here(at, node)
                    );
                    let end = keep && !path.ends_with('/');
                    prop_assert!(end || !matches!(node, Node::Link(_)), "{} at {}", path, at);
                }
                Found::Elsewhere(at) => prop_assert!(at.starts_with(b"/")),
                Found::NotAFolder | Found::TooManyLinks => {}
            }
        }
    }
}
