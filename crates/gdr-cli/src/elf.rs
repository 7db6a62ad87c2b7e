//! ELF files, as far as `gdr run` reads them: 64-bit little-endian programs and libraries.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{ElfFile, ProgramHeader};
use object::{LittleEndian, Object, ObjectSegment, ObjectSymbol};

/// An ELF file.
pub(crate) struct Elf<'a>(ElfFile<'a, FileHeader64<LittleEndian>>);

impl<'a> Elf<'a> {
    /// Returns `None` for other files, such as scripts.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        ElfFile::parse(bytes).ok().map(Self)
    }

    /// Returns whether the loader runs it, which then reads `LD_PRELOAD`. Statically linked programs run without a
    /// loader.
    pub(crate) fn has_loader(&self) -> bool {
        let mut headers = self.0.elf_program_headers().iter();
        headers.any(|header| header.p_type(LittleEndian) == PT_INTERP)
    }

    /// Returns the bytes of an exported object.
    pub(crate) fn object(&self, name: &str) -> Option<&'a [u8]> {
        let mut symbols = self.0.dynamic_symbols();
        let symbol = symbols.find(|symbol| symbol.name() == Ok(name))?;
        let mut segments = self.0.segments();
        segments.find_map(|segment| {
            let range = segment.data_range(symbol.address(), symbol.size());
            range.ok().flatten()
        })
    }

    /// Returns the versions of symbols that it defines; the first is its own name.
    pub(crate) fn versions(&self) -> Vec<&'a [u8]> {
        let (sections, data) = (self.0.elf_section_table(), self.0.data());
        let defined = sections.gnu_verdef(LittleEndian, data).ok().flatten();
        let Some((definitions, link)) = defined else {
            return Vec::new();
        };
        let strings = sections.strings(LittleEndian, data, link);
        let Ok(strings) = strings else {
            return Vec::new();
        };
        definitions
            .filter_map(|definition| {
                let (_, mut names) = definition.ok()?;
                names.next().ok()??.name(LittleEndian, strings).ok()
            })
            .collect()
    }
}

/// Returns the path of a library in the loader's cache, `/etc/ld.so.cache`, if it exists; the first match.
pub(crate) fn cached<'a>(cache: &'a [u8], library: &str) -> Option<&'a Path> {
    let paths = cache
        .split(|byte| *byte == 0)
        .filter(|text| text.starts_with(b"/"))
        .map(|text| Path::new(OsStr::from_bytes(text)));
    let mut named = paths.filter(|path| path.file_name() == Some(OsStr::new(library)));
    named.find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns this test program: an ELF file with a loader.
    fn own() -> Vec<u8> {
        fs::read("/proc/self/exe").unwrap()
    }

    #[test]
    fn a_program_names_its_loader() {
        let bytes = own();
        let elf = Elf::new(&bytes).unwrap();
        assert!(elf.has_loader());
        assert!(Elf::new(b"#!/bin/sh\n").is_none());
    }

    #[test]
    fn the_bytes_of_an_exported_object_are_found() {
        let libc = fs::read_to_string("/proc/self/maps").unwrap();
        let path = libc
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .find(|path| path.ends_with("/libc.so.6"))
            .unwrap();
        let bytes = fs::read(path).unwrap();
        let elf = Elf::new(&bytes).unwrap();
        assert_eq!(elf.object("_libc_intl_domainname"), Some(&b"libc\0"[..]));
        assert_eq!(elf.object("no_such_object"), None);
        let versions = elf.versions();
        assert!(versions.contains(&&b"GLIBC_2.34"[..]), "{versions:?}");
        assert!(!versions.contains(&&b"GLIBC_"[..]));
    }

    #[test]
    fn damaged_files_are_no_more_than_unreadable() {
        let bytes = own();
        let read = |bytes: &[u8]| {
            if let Some(elf) = Elf::new(bytes) {
                let _ = (elf.has_loader(), elf.object("x"));
                let _ = elf.versions();
            }
        };
        for len in (0..2048).chain([bytes.len() - 1]) {
            read(&bytes[..len]);
        }
        let mut head = bytes[..bytes.len().min(1 << 16)].to_vec();
        for at in 0..1024 {
            let byte = std::mem::replace(&mut head[at], 0xff);
            read(&head);
            head[at] = byte;
        }
    }

    #[test]
    fn the_cache_is_searched_for_files_that_exist() {
        let cache = b"ld.so-1.7.0\0\0libx.so.1\0/no/such/libx.so.1\0/proc/self/exe\0";
        assert_eq!(cached(cache, "libx.so.1"), None);
        assert_eq!(cached(cache, "exe"), Some(Path::new("/proc/self/exe")));
        assert_eq!(cached(cache, "self"), None);
    }
}
