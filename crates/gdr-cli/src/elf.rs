//! ELF files, as far as `gdr run` reads them: 64-bit little-endian programs and libraries.
//!
//! The layouts come from elf.h.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_VERDEF: u64 = 0x6fff_fffc;
const DT_VERDEFNUM: u64 = 0x6fff_fffd;
/// The sizes of `Elf64_Dyn` and `Elf64_Sym`.
const DYN: usize = 16;
const SYM: usize = 24;

/// The bytes of an ELF file.
pub(crate) struct Elf<'a> {
    bytes: &'a [u8],
}

/// A program header.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    len: u64,
}

impl<'a> Elf<'a> {
    /// `None` for another file, a script for example.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        // ELFCLASS64, ELFDATA2LSB.
        bytes
            .starts_with(b"\x7fELF\x02\x01")
            .then_some(Self { bytes })
    }

    /// Whether the loader runs it, which then reads `LD_PRELOAD`: statically linked programs run
    /// without a loader.
    pub(crate) fn has_loader(&self) -> bool {
        self.segments().any(|segment| segment.kind == PT_INTERP)
    }

    /// The bytes of an exported object.
    pub(crate) fn object(&self, name: &str) -> Option<&'a [u8]> {
        let symbols = self.file_offset(self.entry(DT_SYMTAB)?)?;
        // The table has no length; linkers put the strings after it.
        let end = self.file_offset(self.entry(DT_STRTAB)?)?;
        let symbols = self.bytes.get(symbols..end)?.chunks_exact(SYM);
        let mut named = symbols.filter(|symbol| {
            let at = number(symbol, 0, 4);
            at.and_then(|at| self.string(at)) == Some(name.as_bytes())
        });
        let symbol = named.next()?;
        let start = self.file_offset(number(symbol, 8, 8)?)?;
        let len = usize::try_from(number(symbol, 16, 8)?).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }

    /// The versions of symbols that it defines; the first is its own name.
    pub(crate) fn versions(&self) -> Vec<&'a [u8]> {
        let table = self.entry(DT_VERDEF).and_then(|at| self.file_offset(at));
        let count = self.entry(DT_VERDEFNUM).unwrap_or_default();
        let (mut next, mut versions) = (table, Vec::new());
        // More than a library has; the number comes from a file.
        for _ in 0..count.min(1000) {
            let Some(definition) = next else { break };
            let field = |at| number(self.bytes, definition.checked_add(at)?, 4);
            // `vd_aux` of `Elf64_Verdef` leads to its name, and `vd_next` to the next one.
            let name = field(12).and_then(|aux| {
                let entry = definition.checked_add(usize::try_from(aux).ok()?)?;
                self.string(number(self.bytes, entry, 4)?)
            });
            versions.extend(name);
            next = field(16)
                .filter(|step| *step != 0)
                .and_then(|step| definition.checked_add(usize::try_from(step).ok()?));
        }
        versions
    }

    fn segments(&self) -> impl Iterator<Item = Segment> {
        let header = |at, len| number(self.bytes, at, len).and_then(|it| usize::try_from(it).ok());
        let table = header(32, 8).and_then(|start| self.bytes.get(start..));
        let (len, count) = (header(54, 2), header(56, 2));
        table
            .unwrap_or_default()
            .chunks(len.unwrap_or_default().max(1))
            .take(count.unwrap_or_default())
            .filter_map(|entry| {
                Some(Segment {
                    kind: number(entry, 0, 4)?,
                    offset: number(entry, 8, 8)?,
                    address: number(entry, 16, 8)?,
                    len: number(entry, 32, 8)?,
                })
            })
    }

    /// The tags and values of the dynamic section.
    fn dynamic(&self) -> impl Iterator<Item = (u64, u64)> {
        let segment = self.segments().find(|it| it.kind == PT_DYNAMIC);
        let bytes = segment.and_then(|segment| {
            let start = usize::try_from(segment.offset).ok()?;
            let len = usize::try_from(segment.len).ok()?;
            self.bytes.get(start..start.checked_add(len)?)
        });
        bytes
            .unwrap_or_default()
            .chunks_exact(DYN)
            .filter_map(|entry| Some((number(entry, 0, 8)?, number(entry, 8, 8)?)))
    }

    fn entry(&self, tag: u64) -> Option<u64> {
        let mut entries = self.dynamic();
        entries.find(|entry| entry.0 == tag).map(|entry| entry.1)
    }

    /// The string at an offset of the string table.
    fn string(&self, offset: u64) -> Option<&'a [u8]> {
        let start = self.file_offset(self.entry(DT_STRTAB)?.checked_add(offset)?)?;
        self.bytes.get(start..)?.split(|byte| *byte == 0).next()
    }

    /// Where an address of the loaded file is in the file.
    fn file_offset(&self, address: u64) -> Option<usize> {
        let mut loaded = self.segments().filter(|it| it.kind == PT_LOAD);
        loaded.find_map(|segment| {
            let behind = address.checked_sub(segment.address)?;
            (behind < segment.len).then_some(())?;
            usize::try_from(segment.offset.checked_add(behind)?).ok()
        })
    }
}

/// A little-endian number of at most 8 bytes.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    Some(bytes.iter().rev().fold(0, add))
}

/// The path of a library in the loader's cache, `/etc/ld.so.cache`. It is the first one that exists.
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

    /// This test program: an ELF file with a loader.
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
