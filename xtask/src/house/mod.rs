//! `cargo xtask house`: rules about names, words and the shape of the source.
//!
//! Each rule has a ceiling in `xtask/house.toml`: how many findings the tree may have. A rule
//! fails when there are more.

mod circles;
mod file_lengths;
mod finding;
mod homonyms;
mod module_graph;
mod settings;
mod source_tree;
mod words;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use self::circles::Circle;
use self::finding::{Finding, Rule};
use self::homonyms::{Place, Types};
use self::module_graph::{ModuleGraph, TypeVisibility};
use self::settings::Settings;
use self::source_tree::{SourceTree, TargetKind};
use self::words::Words;
use crate::results::Outcome;
use crate::workspace::root;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only findings in these files and folders; prints them and does not fail.
    paths: Vec<PathBuf>,
    /// Print every finding, and what is allowed beside them, and do not fail.
    #[arg(long)]
    report: bool,
    /// Print the lines of Rust by crate instead.
    #[arg(long)]
    lines: bool,
    /// The workspace to look at [default: the one that the current folder is in].
    #[arg(long, value_name = "FOLDER")]
    root: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let current = std::env::current_dir()?;
    let workspace = match &options.root {
        Some(root) => root.clone(),
        None => workspace_of(&current).unwrap_or_else(|| root().to_owned()),
    };
    let tree = SourceTree::read(&workspace)?;
    if options.lines {
        print!("{}", lines_by_crate(&tree));
        return Ok(ExitCode::SUCCESS);
    }
    let house = House::inspect(&workspace, &tree)?;
    if options.report || !options.paths.is_empty() {
        let paths: Vec<_> = options
            .paths
            .iter()
            .map(|path| relative(&current.join(path), &workspace))
            .collect();
        house.print_report(&paths);
        return Ok(ExitCode::SUCCESS);
    }
    Ok(match house.verdict() {
        Outcome::Passed => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The step of `cargo xtask test`.
pub(crate) fn check() -> anyhow::Result<Outcome> {
    let tree = SourceTree::read(root())?;
    Ok(House::inspect(root(), &tree)?.verdict())
}

/// The workspace around a folder: the nearest one with an xtask.
fn workspace_of(folder: &Path) -> Option<PathBuf> {
    folder
        .ancestors()
        .find(|folder| folder.join("xtask/Cargo.toml").is_file())
        .map(Path::to_owned)
}

fn relative(path: &Path, workspace: &Path) -> PathBuf {
    let plain = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let path = plain(path);
    path.strip_prefix(plain(workspace))
        .map_or_else(|_| path.clone(), Path::to_owned)
}

/// A file of the rules: of the workspace that is looked at, else of the one that this program was
/// built in, so that a tree without rules can be compared.
fn rules_file(workspace: &Path, name: &str) -> anyhow::Result<String> {
    let own = workspace.join(name);
    let path = if own.is_file() {
        own
    } else {
        root().join(name)
    };
    std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))
}

/// What the rules found in a tree.
struct House {
    settings: Settings,
    findings: Vec<Finding>,
    /// Circles that are small enough.
    small_circles: Vec<Circle>,
    types: Types,
    /// The name of the package of each file.
    packages: BTreeMap<PathBuf, String>,
}

impl House {
    fn inspect(workspace: &Path, tree: &SourceTree) -> anyhow::Result<Self> {
        let settings = Settings::parse(&rules_file(workspace, settings::FILE)?)?;
        let words = Words::parse(&rules_file(workspace, words::FILE)?)?;
        let mut house = Self {
            settings,
            findings: Vec::new(),
            small_circles: Vec::new(),
            types: Types::default(),
            packages: BTreeMap::new(),
        };
        for path in tree.files.keys() {
            if let Some(package) = tree.package_of(path) {
                house.packages.insert(path.clone(), package.name.clone());
            }
        }
        for package in tree.packages() {
            for target in &package.targets {
                let graph = ModuleGraph::read(tree, &target.root)?;
                house.add_imports(&graph);
                if target.kind == TargetKind::Product {
                    house.add_types(&graph, &package.name);
                }
            }
        }
        let settings = &house.settings;
        let files = tree.files.iter().map(|(path, text)| (&**path, &**text));
        let found = [
            file_lengths::check(tree.rust_files(), settings),
            house.types.check(settings),
            words.check(files, settings),
            settings.unused(),
        ];
        house.findings.extend(found.into_iter().flatten());
        house
            .findings
            .sort_by(|a, b| (a.rule, &a.path, a.line).cmp(&(b.rule, &b.path, b.line)));
        house.findings.dedup();
        Ok(house)
    }

    fn add_imports(&mut self, graph: &ModuleGraph) {
        let imports = graph.imports();
        for circle in circles::circles(&imports) {
            if circle.is_too_large() {
                self.findings.push(circle.finding());
            } else if !self.small_circles.contains(&circle) {
                self.small_circles.push(circle);
            }
        }
        self.findings.extend(circles::provider_imports(&imports));
    }

    fn add_types(&mut self, graph: &ModuleGraph, package: &str) {
        for (path, found) in graph.types() {
            let place = Place {
                package: package.to_owned(),
                path: path.to_owned(),
                line: found.line,
            };
            match found.visibility {
                TypeVisibility::Public => self.types.add_public(&found.name, place),
                TypeVisibility::Internal => self.types.add_internal(&found.name, place),
                TypeVisibility::Private => {}
            }
        }
    }

    fn count(&self, rule: Rule) -> usize {
        let of_rule = self.findings.iter().filter(|finding| finding.rule == rule);
        of_rule.map(|finding| finding.weight).sum()
    }

    /// Prints the findings of each rule that exceeds its ceiling, and the counts.
    fn verdict(&self) -> Outcome {
        let mut outcome = Outcome::Passed;
        let mut lower = Vec::new();
        for rule in Rule::ALL {
            let (count, ceiling) = (self.count(rule), self.settings.ceiling(rule));
            if count > ceiling {
                for finding in self.findings.iter().filter(|finding| finding.rule == rule) {
                    println!("{finding}");
                }
                outcome = Outcome::Failed;
            } else if count < ceiling {
                lower.push(format!("{} = {count}", rule.name()));
            }
        }
        self.print_counts();
        if !lower.is_empty() {
            let (file, lower) = (settings::FILE, lower.join(", "));
            println!("lower the ceilings in {file}: {lower}");
        }
        outcome
    }

    /// Prints all findings below `paths`, or all there are, and what is only listed.
    fn print_report(&self, paths: &[PathBuf]) {
        let is_wanted =
            |path: &Path| paths.is_empty() || paths.iter().any(|wanted| path.starts_with(wanted));
        let mut counts: BTreeMap<Rule, usize> = BTreeMap::new();
        for finding in self.findings.iter().filter(|found| is_wanted(&found.path)) {
            println!("{finding}");
            *counts.entry(finding.rule).or_default() += finding.weight;
        }
        self.print_allowed(is_wanted);
        println!();
        if paths.is_empty() {
            self.print_shared_names();
            self.print_counts();
        } else {
            for (rule, count) in counts {
                println!("{count:>6} {}", rule.unit());
            }
        }
    }

    /// Prints small circles, and names that a crate has often.
    fn print_allowed(&self, is_wanted: impl Fn(&Path) -> bool) {
        let circles: Vec<_> = self
            .small_circles
            .iter()
            .filter(|circle| circle.files.iter().any(|file| is_wanted(file)))
            .collect();
        if !circles.is_empty() {
            println!("\ncircles of up to {} files (allowed):", circles::LARGEST);
        }
        for circle in circles {
            let files: Vec<_> = circle
                .files
                .iter()
                .map(|file| file.display().to_string())
                .collect();
            println!("  {}", files.join(" "));
        }
        let types: Vec<_> = self
            .types
            .frequent()
            .into_iter()
            .filter(|(_, places)| places.iter().any(|place| is_wanted(&place.path)))
            .collect();
        if !types.is_empty() {
            println!(
                "\ntype names that a crate has three times or more (pub(crate) ones included):"
            );
        }
        for (name, places) in types {
            println!("  {name}");
            for place in places {
                println!("    {}:{}", place.path.display(), place.line);
            }
        }
    }

    fn print_shared_names(&self) {
        println!("public type names that several crates have:");
        for (name, packages) in self.types.across_crates() {
            println!("  {name}: {}", packages.join(", "));
        }
        println!("\nfindings by crate:");
        let mut counts: BTreeMap<(&str, Rule), usize> = BTreeMap::new();
        for finding in &self.findings {
            let package = self
                .packages
                .get(&finding.path)
                .map_or("(no crate)", |name| name);
            *counts.entry((package, finding.rule)).or_default() += finding.weight;
        }
        for ((package, rule), count) in counts {
            println!("  {package:<16}{count:>6} {}", rule.name());
        }
        println!();
    }

    fn print_counts(&self) {
        for rule in Rule::ALL {
            let (count, ceiling) = (self.count(rule), self.settings.ceiling(rule));
            println!("{count:>6} {} (at most {ceiling})", rule.unit());
        }
    }
}

/// A table of files and lines by package: all, and those outside of `src`.
fn lines_by_crate(tree: &SourceTree) -> String {
    #[derive(Default)]
    struct Row {
        files: usize,
        lines: usize,
        outside: usize,
    }
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for (path, text) in tree.rust_files() {
        let package = tree.package_of(path);
        let name = package.map_or("(no package)", |package| &package.name);
        let lines = text.lines().count();
        let is_inside = package.is_some_and(|package| path.starts_with(package.folder.join("src")));
        for name in [name, "sum"] {
            let row = rows.entry(name).or_default();
            row.files += 1;
            row.lines += lines;
            row.outside += if is_inside { 0 } else { lines };
        }
    }
    let sum = rows.remove("sum").unwrap_or_default();
    let line = |name: &str, row: &Row| {
        let Row {
            files,
            lines,
            outside,
        } = row;
        format!("{name:<16}{files:>6}{lines:>9}{outside:>16}\n")
    };
    let mut text = format!(
        "{:<16}{:>6}{:>9}{:>16}\n",
        "crate", "files", "lines", "outside of src"
    );
    for (name, row) in &rows {
        text += &line(name, row);
    }
    text + &line("all", &sum)
}

#[cfg(test)]
mod tests {
    use super::source_tree::fixture;
    use super::*;

    #[test]
    fn lines_are_counted_by_crate() {
        let tree = fixture(&[
            ("a/Cargo.toml", "[package]\nname = \"a\""),
            ("a/src/lib.rs", "1\n2\n"),
            ("a/tests/t.rs", "1\n"),
        ]);
        let text = lines_by_crate(&tree);
        let cells =
            |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
        let rows: Vec<_> = text.lines().map(cells).collect();
        assert_eq!(rows[1], ["a", "2", "3", "1"]);
        assert_eq!(rows[2], ["all", "2", "3", "1"]);
    }

    /// A crate with two short files, a homonym and a word.
    const CRATE: [(&str, &str); 4] = [
        ("a/Cargo.toml", "[package]\nname = \"a\""),
        ("a/src/lib.rs", "mod x;\nmod y;\n// zorch"),
        ("a/src/x.rs", "pub struct Engine;"),
        (
            "a/src/y.rs",
            "pub struct Engine;\n#[cfg(test)] mod tests { pub struct Engine; }",
        ),
    ];

    /// The outcome for [`CRATE`] with these settings, and the number of findings.
    fn judge(files: &[(&str, &str)], settings: &str) -> (Outcome, usize) {
        let workspace = tempfile::tempdir().unwrap();
        for folder in ["xtask", "docs"] {
            std::fs::create_dir(workspace.path().join(folder)).unwrap();
        }
        std::fs::write(workspace.path().join(settings::FILE), settings).unwrap();
        let glossary = "## Words that are not used\n- zorch: send\n";
        std::fs::write(workspace.path().join(words::FILE), glossary).unwrap();
        let house = House::inspect(workspace.path(), &fixture(files)).unwrap();
        (house.verdict(), house.findings.len())
    }

    #[test]
    fn counts_at_their_ceilings_pass_and_one_more_of_any_rule_fails() {
        let rules = ["short-file = 2", "homonyms = 1", "words = 1"];
        let ceilings = |rules: &[&str]| format!("[ceilings]\n{}", rules.join("\n"));
        assert_eq!(judge(&CRATE, &ceilings(&rules)), (Outcome::Passed, 4));
        for left_out in 0..rules.len() {
            let mut fewer = rules.to_vec();
            fewer.remove(left_out);
            assert_eq!(judge(&CRATE, &ceilings(&fewer)).0, Outcome::Failed);
        }
    }

    #[test]
    fn a_large_circle_counts_its_files() {
        let mut files = vec![("a/Cargo.toml", "[package]\nname = \"a\"")];
        let long = "\n".repeat(40);
        let lib = "mod a; mod b; mod c; mod d; mod e;";
        let text = |next: &str| format!("use crate::{next}::f as g;\npub fn f() {{}}{long}");
        let texts = ["b", "c", "d", "e", "a"].map(text);
        files.push(("a/src/lib.rs", lib));
        let paths = ["a", "b", "c", "d", "e"].map(|name| format!("a/src/{name}.rs"));
        for (path, text) in paths.iter().zip(&texts) {
            files.push((path, text));
        }
        assert_eq!(
            judge(&files, "[ceilings]\ncircles = 5"),
            (Outcome::Passed, 1)
        );
        assert_eq!(judge(&files, "[ceilings]\ncircles = 4").0, Outcome::Failed);
    }

    #[test]
    fn an_exception_without_a_finding_fails() {
        let settings = "[[allow]]\nrule = \"words\"\npath = \"a/src/x.rs\"\nreason = \"x\"\n\
             [ceilings]\nshort-file = 2\nhomonyms = 1\nwords = 1";
        assert_eq!(judge(&CRATE, settings), (Outcome::Failed, 5));
    }

    #[test]
    fn the_workspace_is_found_from_a_folder_in_it() {
        let workspace = tempfile::tempdir().unwrap();
        let inner = workspace.path().join("crates/a/src");
        std::fs::create_dir_all(&inner).unwrap();
        assert_eq!(workspace_of(&inner), None);
        std::fs::create_dir(workspace.path().join("xtask")).unwrap();
        std::fs::write(workspace.path().join("xtask/Cargo.toml"), "").unwrap();
        assert_eq!(workspace_of(&inner).as_deref(), Some(workspace.path()));
    }
}
