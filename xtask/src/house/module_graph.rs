//! The modules of one cargo target, and the file that each path in them leads to.
//!
//! This is name resolution without types: `use` declarations, re-exports and globs are followed,
//! method calls and trait implementations are not seen. Modules and items under `#[cfg(test)]`
//! are left out.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::Context;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Visibility};

use super::source_tree::SourceTree;

/// The modules of one target. The first is its root.
#[derive(Debug, Default)]
pub(crate) struct ModuleGraph {
    modules: Vec<Module>,
}

/// A module: a file, or a part of one.
#[derive(Debug)]
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    scope: HashMap<String, Vec<Meaning>>,
    globs: Vec<Vec<String>>,
    mentions: Vec<Mention>,
    types: Vec<TypeDefinition>,
}

/// What a name stands for in a module.
#[derive(Clone, Debug)]
enum Meaning {
    /// An item of this module.
    Item,
    Module(usize),
    /// A `use` declaration with this path.
    Import(Vec<String>),
}

/// A path that the code of a module names.
#[derive(Clone, Debug)]
struct Mention {
    segments: Vec<String>,
    line: usize,
}

/// A struct, enum, union, trait or type alias.
#[derive(Clone, Debug)]
pub(crate) struct TypeDefinition {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) visibility: TypeVisibility,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TypeVisibility {
    Public,
    /// `pub(crate)` or `pub(super)`.
    Internal,
    Private,
}

/// One file that uses what another one of the same target defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) from: PathBuf,
    pub(crate) line: usize,
    pub(crate) to: PathBuf,
    /// The path as it is written.
    pub(crate) path: String,
}

/// The lookups of one resolution that have begun. One that comes again goes in a circle or has
/// found nothing.
type Seen = HashSet<(usize, Vec<String>)>;

/// Where a path leads.
enum Found {
    Item(usize),
    Module(usize),
    /// Another crate.
    External,
    Missing,
}

impl ModuleGraph {
    /// Reads the modules below a target's root file.
    pub(crate) fn read(tree: &SourceTree, root: &Path) -> anyhow::Result<Self> {
        let mut graph = Self::default();
        let children = root.parent().unwrap_or(Path::new("")).to_owned();
        graph.read_file(tree, root, &children, None)?;
        Ok(graph)
    }

    /// Every use of another file, in the order of files and lines.
    pub(crate) fn imports(&self) -> Vec<Import> {
        let mut imports = Vec::new();
        for (from, module) in self.modules.iter().enumerate() {
            for mention in &module.mentions {
                let Found::Item(to) = self.resolve(from, &mention.segments, &mut Seen::new())
                else {
                    continue;
                };
                let to = &self.modules[to].file;
                if *to != module.file {
                    imports.push(Import {
                        from: module.file.clone(),
                        line: mention.line,
                        to: to.clone(),
                        path: mention.segments.join("::"),
                    });
                }
            }
        }
        imports.sort_by(|a, b| (&a.from, a.line, &a.to).cmp(&(&b.from, b.line, &b.to)));
        imports
    }

    /// Every type with the file that defines it.
    pub(crate) fn types(&self) -> impl Iterator<Item = (&Path, &TypeDefinition)> {
        self.modules
            .iter()
            .flat_map(|module| module.types.iter().map(|found| (&*module.file, found)))
    }

    fn resolve(&self, from: usize, segments: &[String], seen: &mut Seen) -> Found {
        let mut rest = segments;
        let mut module = from;
        let mut is_relative = true;
        while let [first, after @ ..] = rest {
            match first.as_str() {
                "crate" => module = 0,
                "self" => {}
                "super" => match self.modules[module].parent {
                    Some(parent) => module = parent,
                    None => return Found::Missing,
                },
                _ => break,
            }
            is_relative = false;
            rest = after;
        }
        match self.descend(module, rest, seen) {
            // What starts with a keyword is in this crate: a macro has made it.
            Found::Missing if !is_relative => Found::Item(module),
            found => found,
        }
    }

    /// Follows a path from a module down.
    fn descend(&self, module: usize, segments: &[String], seen: &mut Seen) -> Found {
        let [name, rest @ ..] = segments else {
            return Found::Module(module);
        };
        if !seen.insert((module, segments.to_vec())) {
            return Found::Missing;
        }
        let meanings = self.modules[module].scope.get(name);
        for meaning in meanings.into_iter().flatten() {
            let found = match meaning {
                Meaning::Item => return Found::Item(module),
                Meaning::Module(child) => self.inside(*child, rest, seen),
                Meaning::Import(path) => match self.resolve_import(module, name, path, seen) {
                    Found::Module(target) => self.inside(target, rest, seen),
                    Found::Missing => Found::External,
                    found => found,
                },
            };
            if !matches!(found, Found::Missing) {
                return found;
            }
        }
        for glob in &self.modules[module].globs {
            if let Found::Module(target) = self.resolve(module, glob, seen)
                && target != module
            {
                match self.descend(target, segments, seen) {
                    Found::Missing => {}
                    found => return found,
                }
            }
        }
        Found::Missing
    }

    /// Follows the rest of a path in a module that exists: what is not found there was made by a
    /// macro of it.
    fn inside(&self, module: usize, rest: &[String], seen: &mut Seen) -> Found {
        match self.descend(module, rest, seen) {
            Found::Missing => Found::Item(module),
            found => found,
        }
    }

    /// Follows a `use` declaration. One that starts with its own name (`use log::log`) means
    /// another crate, unless a module of that name is here.
    fn resolve_import(&self, module: usize, name: &str, path: &[String], seen: &mut Seen) -> Found {
        if path.first().is_some_and(|first| first == name) {
            let child = self.modules[module].scope.get(name).and_then(|meanings| {
                meanings.iter().find_map(|meaning| match meaning {
                    Meaning::Module(child) => Some(*child),
                    _ => None,
                })
            });
            return match child {
                Some(child) => self.inside(child, &path[1..], seen),
                None => Found::External,
            };
        }
        self.resolve(module, path, seen)
    }

    fn read_file(
        &mut self,
        tree: &SourceTree,
        path: &Path,
        children: &Path,
        parent: Option<usize>,
    ) -> anyhow::Result<Option<usize>> {
        let Some(text) = tree.files.get(path) else {
            return Ok(None);
        };
        let file = syn::parse_file(text).with_context(|| path.display().to_string())?;
        self.read_items(tree, path, children, parent, &file.items)
            .map(Some)
    }

    fn read_items(
        &mut self,
        tree: &SourceTree,
        path: &Path,
        children: &Path,
        parent: Option<usize>,
        items: &[Item],
    ) -> anyhow::Result<usize> {
        let number = self.modules.len();
        self.modules.push(Module {
            file: path.to_owned(),
            parent,
            scope: HashMap::new(),
            globs: Vec::new(),
            mentions: Vec::new(),
            types: Vec::new(),
        });
        for item in items {
            let Item::Mod(module) = item else {
                self.modules[number].visit_item(item);
                continue;
            };
            if is_test_only(&module.attrs) {
                continue;
            }
            let name = module.ident.to_string();
            let below = children.join(&name);
            let child = match &module.content {
                Some((_, items)) => {
                    Some(self.read_items(tree, path, &below, Some(number), items)?)
                }
                None => {
                    let (file, below) = match declared_path(&module.attrs) {
                        Some(declared) => {
                            let folder = path.parent().unwrap_or(Path::new(""));
                            let file = normalized(&folder.join(declared));
                            let below = file.parent().unwrap_or(Path::new("")).to_owned();
                            (file, below)
                        }
                        None => {
                            let plain = below.with_extension("rs");
                            if tree.files.contains_key(&plain) {
                                (plain, below)
                            } else {
                                (below.join("mod.rs"), below)
                            }
                        }
                    };
                    self.read_file(tree, &file, &below, Some(number))?
                }
            };
            if let Some(child) = child {
                self.modules[number].define(name, Meaning::Module(child));
            }
        }
        Ok(number)
    }
}

impl Module {
    fn define(&mut self, name: String, meaning: Meaning) {
        self.scope.entry(name).or_default().push(meaning);
    }

    fn define_item(&mut self, ident: &proc_macro2::Ident) {
        self.define(ident.to_string(), Meaning::Item);
    }

    fn define_type(&mut self, ident: &proc_macro2::Ident, visibility: &Visibility) {
        self.define_item(ident);
        self.types.push(TypeDefinition {
            name: ident.to_string(),
            line: ident.span().start().line,
            visibility: match visibility {
                Visibility::Public(_) => TypeVisibility::Public,
                Visibility::Restricted(_) => TypeVisibility::Internal,
                Visibility::Inherited => TypeVisibility::Private,
            },
        });
    }

    fn mention(&mut self, segments: Vec<String>, line: usize) {
        self.mentions.push(Mention { segments, line });
    }

    /// A `use` tree: its names, and for a private one the paths that it mentions. A re-export
    /// alone makes no file depend on another.
    fn import(&mut self, prefix: &[String], tree: &syn::UseTree, is_private: bool) {
        match tree {
            syn::UseTree::Path(path) => {
                let mut prefix = prefix.to_vec();
                prefix.push(path.ident.to_string());
                self.import(&prefix, &path.tree, is_private);
            }
            syn::UseTree::Name(name) => {
                let ident = name.ident.to_string();
                let line = name.ident.span().start().line;
                self.import_name(prefix, &ident, &ident, line, is_private);
            }
            syn::UseTree::Rename(rename) => {
                let (ident, name) = (rename.ident.to_string(), rename.rename.to_string());
                let line = rename.ident.span().start().line;
                self.import_name(prefix, &ident, &name, line, is_private);
            }
            syn::UseTree::Glob(_) => self.globs.push(prefix.to_vec()),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(prefix, tree, is_private);
                }
            }
        }
    }

    fn import_name(
        &mut self,
        prefix: &[String],
        ident: &str,
        name: &str,
        line: usize,
        is_private: bool,
    ) {
        let mut path = prefix.to_vec();
        let mut name = name.to_owned();
        if ident == "self" {
            // `use a::b::{self}` imports b.
            if name == "self"
                && let Some(last) = path.last()
            {
                name = last.clone();
            }
        } else {
            path.push(ident.to_owned());
        }
        if is_private {
            self.mention(path.clone(), line);
        }
        self.define(name, Meaning::Import(path));
    }

    /// Paths among the tokens of a macro call or definition, and the items that it defines.
    fn scan_tokens(&mut self, tokens: TokenStream) {
        const ITEMS: [&str; 8] = [
            "struct", "enum", "union", "trait", "type", "const", "static", "fn",
        ];
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let ident = |at: usize| match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => Some(ident),
            _ => None,
        };
        let is_separator = |at: usize| {
            let colon = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
            colon(at) && colon(at + 1)
        };
        let mut at = 0;
        while at < tokens.len() {
            if let TokenTree::Group(group) = &tokens[at] {
                self.scan_tokens(group.stream());
            }
            let Some(first) = ident(at) else {
                at += 1;
                continue;
            };
            if ITEMS.contains(&first.to_string().as_str())
                && let Some(name) = ident(at + 1)
            {
                self.define_item(name);
                at += 2;
                continue;
            }
            let line = first.span().start().line;
            let mut segments = vec![first.to_string()];
            while is_separator(at + 1)
                && let Some(next) = ident(at + 3)
            {
                segments.push(next.to_string());
                at += 3;
            }
            at += 1;
            let is_call = matches!(tokens.get(at), Some(TokenTree::Group(group))
                if group.delimiter() == proc_macro2::Delimiter::Parenthesis);
            if segments.len() > 1 || is_call || is_type_name(&segments[0]) {
                self.mention(segments, line);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test_only(attributes(item)) {
            return;
        }
        match item {
            Item::Const(item) => self.define_item(&item.ident),
            Item::Enum(item) => self.define_type(&item.ident, &item.vis),
            Item::Fn(item) => self.define_item(&item.sig.ident),
            Item::Macro(item) => {
                if let Some(ident) = &item.ident {
                    self.define_item(ident);
                }
            }
            Item::Static(item) => self.define_item(&item.ident),
            Item::Struct(item) => self.define_type(&item.ident, &item.vis),
            Item::Trait(item) => self.define_type(&item.ident, &item.vis),
            Item::Type(item) => self.define_type(&item.ident, &item.vis),
            Item::Union(item) => self.define_type(&item.ident, &item.vis),
            Item::ForeignMod(item) => {
                for item in &item.items {
                    match item {
                        syn::ForeignItem::Fn(item) => self.define_item(&item.sig.ident),
                        syn::ForeignItem::Static(item) => self.define_item(&item.ident),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_private = matches!(item.vis, Visibility::Inherited);
        if item.leading_colon.is_none() {
            self.import(&[], &item.tree, is_private);
        }
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func
            && let Some(ident) = path.path.get_ident()
        {
            self.mention(vec![ident.to_string()], ident.span().start().line);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        // A lone lower-case name is a local variable, or a function, which is mentioned by its
        // call.
        let is_known = segments.len() > 1 || is_type_name(&segments[0]);
        if path.leading_colon.is_none() && is_known {
            let line = path.segments[0].ident.span().start().line;
            self.mention(segments, line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.scan_tokens(call.tokens.clone());
    }
}

fn is_type_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_uppercase())
}

/// The file of `#[path = "…"]`.
fn declared_path(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        match &pair.value {
            syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(path),
                ..
            }) if pair.path.is_ident("path") => Some(path.value()),
            _ => None,
        }
    })
}

/// A path without `..`.
fn normalized(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        if component.as_os_str() == ".." {
            plain.pop();
        } else {
            plain.push(component);
        }
    }
    plain
}

/// Whether an item is compiled for unit tests only: `#[test]`, `#[cfg(test)]` or
/// `#[cfg(all(test, …))]`.
fn is_test_only(attributes: &[Attribute]) -> bool {
    fn requires_test(meta: &syn::Meta) -> bool {
        match meta {
            syn::Meta::Path(path) => path.is_ident("test"),
            syn::Meta::List(list) if list.path.is_ident("all") => list
                .parse_args_with(
                    syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated,
                )
                .is_ok_and(|parts| parts.iter().any(requires_test)),
            _ => false,
        }
    }
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<syn::Meta>()
                    .is_ok_and(|meta| requires_test(&meta)))
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::super::source_tree::fixture;
    use super::*;

    /// `FROM:LINE TO` of every import, without the folder and the extension.
    fn imports(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (format!("src/{path}"), *text))
            .collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        let graph = ModuleGraph::read(&fixture(&files), Path::new("src/lib.rs")).unwrap();
        let short = |path: &Path| path.strip_prefix("src").unwrap().with_extension("");
        let mut lines: Vec<_> = graph
            .imports()
            .iter()
            .map(|import| {
                let (from, to) = (short(&import.from), short(&import.to));
                format!("{}:{} {}", from.display(), import.line, to.display())
            })
            .collect();
        lines.dedup();
        lines
    }

    #[test]
    fn a_reexport_leads_to_the_definition() {
        let found = imports(&[
            ("lib.rs", "mod a;\nmod b;\npub use a::A;"),
            ("a.rs", "pub struct A;"),
            ("b.rs", "use crate::A;"),
        ]);
        assert_eq!(found, ["b:1 a"]);
    }

    #[test]
    fn a_reexport_that_the_file_itself_uses_is_an_import() {
        let found = imports(&[
            ("lib.rs", "mod a;\npub use a::A;\nfn f(a: A) {}"),
            ("a.rs", "pub struct A;"),
        ]);
        assert_eq!(found, ["lib:3 a"]);
    }

    #[test]
    fn globs_super_and_paths_in_macros_are_followed() {
        let found = imports(&[
            (
                "lib.rs",
                "mod a;\nmod b;\nmod c { pub mod d; }\npub struct Root;",
            ),
            ("a.rs", "pub struct A; pub fn f() {}"),
            ("b.rs", "use crate::a::*;\nfn g() {\n vec![f(), A] }"),
            ("c/d.rs", "fn h() -> super::super::Root {\n crate::a::f() }"),
        ]);
        assert_eq!(found, ["b:3 a", "c/d:1 lib", "c/d:2 a"]);
    }

    #[test]
    fn test_modules_and_other_crates_are_not_seen() {
        let found = imports(&[
            ("lib.rs", "mod a;\nmod b;\npub use std::fmt::Debug;"),
            ("a.rs", "pub struct A;"),
            (
                "b.rs",
                "use crate::Debug;\n#[cfg(test)] mod tests { use crate::a::A; }\n\
                 #[cfg(all(test, unix))] use crate::a::A;",
            ),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_file_is_found_by_its_path_attribute() {
        let found = imports(&[
            ("lib.rs", "#[path = \"x/y.rs\"] mod a;\nfn f() { a::g() }"),
            ("x/y.rs", "pub fn g() {}"),
        ]);
        assert_eq!(found, ["lib:2 x/y"]);
    }

    #[test]
    fn an_import_that_leads_to_itself_ends() {
        imports(&[
            ("lib.rs", "mod a;\nmod b;\nuse a::X;\nfn f(x: X) {}"),
            ("a.rs", "pub use crate::b::X;"),
            ("b.rs", "pub use crate::a::X;"),
        ]);
    }
}
