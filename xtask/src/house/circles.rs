//! Import circles among the files of a crate, and imports of a facade by a provider.
//!
//! A file imports another one of its target when its code names something that the other defines.
//! Re-exports are followed to the definition, so `pub use` in a `mod.rs` is neither an import nor
//! in the path of one, and `mod name;` is no import. Code under `#[cfg(test)]` is left out.
//!
//! A circle is a strongly connected component of that graph. Up to [`LARGEST`] files it is
//! allowed: a type with its constructor, an enum with its parts. A module and the modules below
//! it are one unit, in which the parts use what the module defines and the module lists or calls
//! its parts: in a circle that lies within one module, imports of its parts by the module itself
//! do not count. In one that leaves the module they do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::finding::{Finding, Rule};
use super::module_graph::Import;

/// The most files that may import each other in a circle.
pub(crate) const LARGEST: usize = 4;

/// The source folder of the crate whose providers are checked.
const RDMA: &str = "crates/gdr-rdma/src";

/// Where its providers are.
const PROVIDERS: [&str; 3] = ["provider", "soft", "verbs"];

/// What a provider may import besides providers: modules, by file or folder without the
/// extension, that do not import the facade either.
const LEAVES: [&str; 14] = [
    "bounded_queue",
    "buffer",
    "deadline",
    "error",
    "int_map",
    "lock",
    "memory_region",
    "os",
    "outstanding",
    "peer_user",
    "process_bound",
    "reaper",
    "types",
    "work_request",
];

/// The files of one circle with the first import of each file by another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Circle {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) imports: Vec<Import>,
}

/// All circles of a target, the largest first.
pub(crate) fn circles(imports: &[Import]) -> Vec<Circle> {
    let mut edges = Edges::new();
    for import in imports {
        edges.entry(&import.from).or_default().insert(&import.to);
        edges.entry(&import.to).or_default();
    }
    let mut found = Vec::new();
    collect(&edges, &mut found);
    let mut circles: Vec<_> = found
        .iter()
        .map(|edges| {
            let mut seen = BTreeSet::new();
            let within = imports.iter().filter(|import| {
                let is_edge = edges
                    .get(&*import.from)
                    .is_some_and(|to| to.contains(&*import.to));
                is_edge && seen.insert((&import.from, &import.to))
            });
            Circle {
                imports: within.cloned().collect(),
                files: edges.keys().map(|file| file.to_path_buf()).collect(),
            }
        })
        .collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.files.len()));
    circles
}

/// The files that each file imports.
type Edges<'a> = BTreeMap<&'a Path, BTreeSet<&'a Path>>;

/// Adds the circles among `edges` to `found`, each as its own edges.
fn collect<'a>(edges: &Edges<'a>, found: &mut Vec<Edges<'a>>) {
    for component in Components::of(edges) {
        if component.len() < 2 {
            continue;
        }
        let within = component.iter().map(|file| {
            let to = edges.get(file).into_iter().flatten();
            let to = to.filter(|to| component.contains(*to)).copied();
            (*file, to.collect())
        });
        let mut within: Edges<'a> = within.collect();
        let module = component.iter().find(|module| {
            let mut others = component.iter().filter(|file| file != module);
            others.all(|file| is_below(module, file))
        });
        match module {
            Some(module) if component.len() > LARGEST => {
                within.insert(module, BTreeSet::new());
                collect(&within, found);
            }
            _ => found.push(within),
        }
    }
}

/// Whether a file is a part of the module that another file is.
fn is_below(module: &Path, file: &Path) -> bool {
    let is_folder = ["mod.rs", "lib.rs", "main.rs"]
        .iter()
        .any(|name| module.ends_with(name));
    if is_folder {
        module
            .parent()
            .is_some_and(|folder| file.starts_with(folder))
    } else {
        file.starts_with(module.with_extension(""))
    }
}

impl Circle {
    pub(crate) fn is_too_large(&self) -> bool {
        self.files.len() > LARGEST
    }

    /// One finding for the whole circle, with every import in it.
    pub(crate) fn finding(&self) -> Finding {
        let count = self.files.len();
        let mut what = format!("{count} files import each other:");
        for import in &self.imports {
            let (from, to) = (import.from.display(), import.to.display());
            let _ = write!(
                what,
                "\n    {from}:{} imports {to} ({})",
                import.line, import.path
            );
        }
        let mut finding = Finding::new(Rule::Circles, &self.files[0], 1, what);
        finding.weight = count;
        finding
    }
}

/// Tarjan's algorithm.
struct Components<'e, 'a> {
    edges: &'e Edges<'a>,
    /// The order of discovery and the lowest number that is reached.
    numbers: BTreeMap<&'a Path, (usize, usize)>,
    stack: Vec<&'a Path>,
    found: Vec<BTreeSet<&'a Path>>,
}

impl<'e, 'a> Components<'e, 'a> {
    fn of(edges: &'e Edges<'a>) -> Vec<BTreeSet<&'a Path>> {
        let mut components = Self {
            edges,
            numbers: BTreeMap::new(),
            stack: Vec::new(),
            found: Vec::new(),
        };
        for file in edges.keys() {
            if !components.numbers.contains_key(file) {
                components.visit(file);
            }
        }
        components.found
    }

    /// Returns the lowest number that `file` reaches.
    fn visit(&mut self, file: &'a Path) -> usize {
        let number = self.numbers.len();
        let mut lowest = number;
        self.numbers.insert(file, (number, lowest));
        self.stack.push(file);
        for next in self.edges.get(file).into_iter().flatten() {
            match self.numbers.get(next) {
                None => lowest = lowest.min(self.visit(next)),
                Some((other, _)) if self.stack.contains(next) => lowest = lowest.min(*other),
                Some(_) => {}
            }
        }
        self.numbers.insert(file, (number, lowest));
        if lowest == number {
            let mut component = BTreeSet::new();
            while let Some(member) = self.stack.pop() {
                component.insert(member);
                if member == file {
                    break;
                }
            }
            self.found.push(component);
        }
        lowest
    }
}

/// Where a file of gdr-rdma stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Facade,
    Provider,
    Leaf,
}

fn layer(file: &Path) -> Option<Layer> {
    let inside = file.strip_prefix(RDMA).ok()?;
    let first = inside.components().next()?.as_os_str().to_str()?;
    let module = first.strip_suffix(".rs").unwrap_or(first);
    Some(if PROVIDERS.contains(&module) {
        Layer::Provider
    } else if LEAVES.contains(&module) {
        Layer::Leaf
    } else {
        Layer::Facade
    })
}

/// Imports of the facade by a provider, or by a leaf that providers import: one finding for each
/// two files.
pub(crate) fn provider_imports(imports: &[Import]) -> Vec<Finding> {
    let mut pairs: BTreeMap<(&Path, &Path), (usize, BTreeSet<&str>)> = BTreeMap::new();
    for import in imports {
        if matches!(layer(&import.from), Some(Layer::Provider | Layer::Leaf))
            && layer(&import.to) == Some(Layer::Facade)
        {
            let pair = pairs.entry((&import.from, &import.to)).or_default();
            // The imports come in the order of their lines.
            if pair.0 == 0 {
                pair.0 = import.line;
            }
            // The declaration names what is imported; its uses repeat it.
            if import.path.starts_with("crate::") || import.path.starts_with("super::") {
                pair.1.insert(&import.path);
            }
        }
    }
    pairs
        .into_iter()
        .map(|((from, to), (line, paths))| {
            let who = match layer(from) {
                Some(Layer::Leaf) => "a leaf module",
                _ => "a provider",
            };
            let paths: Vec<_> = paths.into_iter().collect();
            let (to, paths) = (to.display(), paths.join(", "));
            let what = format!("{who} imports {to} of the facade: {paths}");
            Finding::new(Rule::ProviderImports, from, line, what)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(from: &str, to: &str) -> Import {
        Import {
            from: from.into(),
            line: 3,
            to: to.into(),
            path: "crate::x".to_owned(),
        }
    }

    fn ring(count: usize) -> Vec<Import> {
        (0..count)
            .map(|n| import(&format!("f{n}"), &format!("f{}", (n + 1) % count)))
            .collect()
    }

    #[test]
    fn a_chain_is_no_circle() {
        let chain = [import("a", "b"), import("b", "c"), import("a", "c")];
        assert!(circles(&chain).is_empty());
    }

    #[test]
    fn four_files_may_import_each_other_and_five_may_not() {
        for (count, is_too_large) in [(2, false), (4, false), (5, true)] {
            let found = circles(&ring(count));
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].files.len(), count);
            assert_eq!(found[0].is_too_large(), is_too_large, "{count}");
        }
    }

    #[test]
    fn circles_that_share_a_file_are_one_and_separate_ones_are_two() {
        let joined = [
            import("a", "b"),
            import("b", "a"),
            import("b", "c"),
            import("c", "b"),
            import("x", "y"),
            import("y", "x"),
            import("y", "a"),
        ];
        let found = circles(&joined);
        let sizes: Vec<_> = found.iter().map(|circle| circle.files.len()).collect();
        assert_eq!(sizes, [3, 2]);
        let text = found[0].finding().to_string();
        assert!(text.contains("a:3 imports b (crate::x)"), "{text}");
        assert_eq!(found[0].finding().weight, 3);
    }

    #[test]
    fn a_module_may_list_its_parts_and_the_parts_may_not_use_each_other_in_a_circle() {
        let parts = ["a/p.rs", "a/q.rs", "a/r.rs", "a/s.rs", "a/t/mod.rs"];
        let mut imports: Vec<_> = parts
            .iter()
            .flat_map(|part| [import("a/mod.rs", part), import(part, "a/mod.rs")])
            .collect();
        assert!(circles(&imports).is_empty());

        for (from, to) in parts.iter().zip(parts.iter().cycle().skip(1)) {
            imports.push(import(from, to));
        }
        let found = circles(&imports);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].files.len(), 5);
    }

    #[test]
    fn a_circle_through_a_module_and_one_beside_it_counts_the_parts() {
        let mut imports = ring(3);
        imports.extend([
            import("f0", "a.rs"),
            import("a.rs", "a/p.rs"),
            import("a/p.rs", "f0"),
        ]);
        let found = circles(&imports);
        assert_eq!(found[0].files.len(), 5);
    }

    #[test]
    fn a_provider_imports_leaves_and_providers_but_no_facade() {
        let file = |name: &str| format!("crates/gdr-rdma/src/{name}");
        for (from, to, is_found) in [
            ("provider/soft/rx.rs", "device.rs", true),
            ("soft/socket.rs", "lib.rs", true),
            ("verbs/pair/post.rs", "queue_pair.rs", true),
            ("types.rs", "device.rs", true),
            ("verbs/mod.rs", "soft/mod.rs", false),
            ("soft/mod.rs", "types.rs", false),
            ("soft/mod.rs", "buffer/mod.rs", false),
            ("device.rs", "queue_pair.rs", false),
            ("device.rs", "soft/mod.rs", false),
        ] {
            let edge = import(&file(from), &file(to));
            let found = provider_imports(&[edge.clone(), edge]);
            assert_eq!(found.len(), usize::from(is_found), "{from} -> {to}");
        }
        let elsewhere = import("crates/a/src/soft/x.rs", "crates/a/src/y.rs");
        assert!(provider_imports(&[elsewhere]).is_empty());
    }
}
