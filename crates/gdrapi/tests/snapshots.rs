//! The binary and source interface of the library as a whole: what the loader sees of the shared library, and what a
//! compiler sees of the headers.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p gdrapi --test snapshots` writes the files.

mod library;

use std::fmt::Write as _;
use std::path::Path;

use library::shared_library;
use object::Endianness;
use object::elf::{DT_SONAME, FileHeader64, SHT_DYNSYM, STB_GLOBAL, STT_FUNC};
use object::read::elf::{Dyn as _, FileHeader as _, Sym as _};
use snapshot::assert_snapshot;

#[test]
fn the_symbols_of_the_shared_library_stay() {
    let bytes = std::fs::read(shared_library()).expect("the library can be read");
    let header = FileHeader64::<Endianness>::parse(&*bytes).expect("an ELF file");
    let endian = header.endian().expect("an endianness");
    let sections = header.sections(endian, &*bytes).expect("sections");
    let mut text = String::new();

    let (entries, link) = sections
        .dynamic(endian, &*bytes)
        .expect("a readable dynamic section")
        .expect("a dynamic section");
    let strings = sections
        .strings(endian, &*bytes, link)
        .expect("its strings");
    for entry in entries {
        let value = entry.d_val(endian);
        // Writing to a String does not fail.
        let _ = match entry.tag32(endian) {
            Some(DT_SONAME) => {
                let name = strings.get(value as u32).expect("a string");
                writeln!(text, "SONAME {}", String::from_utf8_lossy(name))
            }
            _ => Ok(()),
        };
    }

    let table = sections
        .symbols(endian, &*bytes, SHT_DYNSYM)
        .expect("dynamic symbols");
    let versions = sections.versions(endian, &*bytes).expect("versions");
    let mut lines: Vec<String> = Vec::new();
    for (index, symbol) in table.enumerate() {
        if !symbol.is_definition(endian) && symbol.st_shndx(endian) == 0 {
            continue;
        }
        let name = table
            .symbol_name(endian, symbol)
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .expect("a name");
        let kind = match symbol.st_type() {
            STT_FUNC => "function".to_owned(),
            other => format!("type {other}"),
        };
        let binding = match symbol.st_bind() {
            STB_GLOBAL => "global".to_owned(),
            other => format!("binding {other}"),
        };
        let version = versions
            .as_ref()
            .and_then(|versions| {
                let index = versions.version_index(endian, index);
                versions.version(index).ok().flatten()
            })
            .map_or("no version".to_owned(), |version| {
                String::from_utf8_lossy(version.name()).into_owned()
            });
        lines.push(format!("{name}: {binding} {kind}, {version}\n"));
    }
    lines.sort();
    text.extend(lines);
    assert_snapshot!("symbols.txt", &text);
}

/// Returns a header without its comments and empty lines, each statement on one line.
fn declarations(header: &str) -> String {
    let mut code = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").expect("the end of a comment").1;
    }
    code.push_str(rest);
    let code = code.replace("\\\n", " ");
    let mut text = String::new();
    let mut open = false;
    for line in code.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let line = words.join(" ");
        if open {
            text.push(' ');
        }
        text.push_str(&line);
        // A declaration ends with `;`. A type's declaration is on one line up to it.
        open = !line.starts_with('#')
            && !line.ends_with(';')
            && line != "extern \"C\" {"
            && line != "}";
        if !open {
            text.push('\n');
        }
    }
    text
}

#[test]
fn the_declarations_of_the_headers_stay() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    for name in ["gdrapi.h", "gdrconfig.h"] {
        let header = std::fs::read_to_string(folder.join(name)).expect("a header");
        assert_snapshot!(&format!("{name}.txt"), &declarations(&header));
    }
}
