//! What a program needs of the machine that it runs on: libraries, and versions of glibc's symbols.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, SectionHeader as _};
use object::{Endianness, FileKind};

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glibc(pub u32, pub u32);

/// The parts of glibc. Up to 2.33 its threads and its loader of plug-ins were libraries of their own.
const PARTS_OF_GLIBC: [&str; 6] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux",
];

/// What an ELF file needs.
#[derive(Debug)]
pub(crate) struct Needs {
    libraries: BTreeSet<String>,
    glibc: Option<Glibc>,
}

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Glibc {
    /// Reads `GLIBC_2.28` and `GLIBC_2.2.5`.
    fn parse(symbol_version: &str) -> Option<Self> {
        let mut numbers = symbol_version.strip_prefix("GLIBC_")?.split('.');
        let mut number = || numbers.next()?.parse().ok();
        Some(Self(number()?, number()?))
    }
}

/// Checks that a program or a library starts with a glibc of this version and with nothing else.
///
/// # Errors
///
/// Names the library, or the version that is too new.
pub fn check(file: &Path, oldest: Glibc) -> anyhow::Result<()> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let needs = needs(&bytes).with_context(|| file.display().to_string())?;
    let others = needs
        .libraries
        .iter()
        .filter(|name| !PARTS_OF_GLIBC.iter().any(|part| name.starts_with(part)));
    let others: Vec<_> = others.map(String::as_str).collect();
    if !others.is_empty() {
        bail!(
            "{} needs {} beside glibc",
            file.display(),
            others.join(", ")
        );
    }
    match needs.glibc {
        Some(newest) if newest > oldest => {
            bail!("{} needs glibc {newest}, not {oldest}", file.display())
        }
        _ => Ok(()),
    }
}

/// Makes a library a filter of the file that it has as run path: the loader looks for a function of the library in that
/// file first, if it is there (`DT_AUXILIARY`). Zig's linker has no option for it.
///
/// # Errors
///
/// The file is not a library of 64 bits, or has no run path.
pub(crate) fn make_filter(file: &Path) -> anyhow::Result<()> {
    let name = || file.display().to_string();
    let mut bytes = std::fs::read(file).with_context(name)?;
    let (at, tag) = run_path(&bytes).with_context(name)?;
    let place = bytes.get_mut(at..at + tag.len()).with_context(name)?;
    place.copy_from_slice(&tag);
    std::fs::write(file, bytes).with_context(name)
}

/// Returns where the tag of the run path is, and the tag of a filter.
fn run_path(bytes: &[u8]) -> anyhow::Result<(usize, [u8; 8])> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    for section in sections.iter() {
        let Some((entries, _)) = section.dynamic(endian, bytes)? else {
            continue;
        };
        let is_run_path = |entry: &elf::Dyn64<Endianness>| {
            matches!(entry.tag32(endian), Some(elf::DT_RPATH | elf::DT_RUNPATH))
        };
        let index = entries.iter().position(is_run_path);
        let index = index.context("the linker has set no run path")?;
        let at = usize::try_from(section.sh_offset(endian))? + index * size_of_val(&entries[0]);
        let tag = u64::from(elf::DT_AUXILIARY);
        let tag = match endian {
            Endianness::Little => tag.to_le_bytes(),
            Endianness::Big => tag.to_be_bytes(),
        };
        return Ok((at, tag));
    }
    bail!("not a library")
}

fn needs(bytes: &[u8]) -> anyhow::Result<Needs> {
    if FileKind::parse(bytes)? != FileKind::Elf64 {
        bail!("not a 64-bit ELF file");
    }
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut libraries = BTreeSet::new();
    if let Some((entries, link)) = sections.dynamic(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        for entry in entries {
            if entry.tag32(endian) == Some(elf::DT_NEEDED) {
                libraries.insert(String::from_utf8(entry.string(endian, strings)?.to_vec())?);
            }
        }
    }
    let mut glibc = None;
    if let Some((mut needed, link)) = sections.gnu_verneed(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        while let Some((_, mut versions)) = needed.next()? {
            while let Some(version) = versions.next()? {
                let name = std::str::from_utf8(version.name(endian, strings)?)?;
                glibc = glibc.max(Glibc::parse(name));
            }
        }
    }
    Ok(Needs { libraries, glibc })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_symbols_are_compared_as_numbers() {
        let parse = |text| Glibc::parse(text).unwrap();
        assert!(parse("GLIBC_2.2.5") < parse("GLIBC_2.28"));
        assert!(parse("GLIBC_2.34") > parse("GLIBC_2.4"));
        assert_eq!(Glibc::parse("GCC_3.0"), None);
    }

    #[test]
    fn a_program_that_needs_a_newer_glibc_or_another_library_is_refused() {
        let this = std::env::current_exe().unwrap();
        let error = check(&this, Glibc(2, 1)).unwrap_err().to_string();
        assert!(
            error.contains("libgcc_s.so.1 beside glibc") || error.contains("not 2.1"),
            "{error}"
        );
        assert!(check(Path::new("/proc/self/cmdline"), Glibc(2, 28)).is_err());
    }
}
