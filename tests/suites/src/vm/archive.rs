//! Archives for the kernel's initramfs: cpio, format "newc" without a checksum
//! (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, bail};

const FOLDER: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const CHARACTERS: u32 = 0o020_600;

/// Whether a file is executable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Data,
    Program,
}

/// A writer of an archive. Root owns every entry.
pub(crate) struct Archive<W> {
    out: W,
    written: usize,
    entries: u32,
    folders: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self {
            out,
            written: 0,
            entries: 0,
            folders: BTreeSet::new(),
        }
    }

    /// Adds a folder and its parents.
    pub(crate) fn folder(&mut self, path: &str) -> io::Result<()> {
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above)?;
        }
        if self.folders.insert(path.to_owned()) {
            self.entry(path, FOLDER, (0, 0), &[])?;
        }
        Ok(())
    }

    pub(crate) fn file(&mut self, path: &str, kind: Kind, contents: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        let mode = match kind {
            Kind::Data => FILE,
            Kind::Program => PROGRAM,
        };
        self.entry(path, mode, (0, 0), contents)
    }

    pub(crate) fn link(&mut self, path: &str, to: &str) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, LINK, (0, 0), to.as_bytes())
    }

    pub(crate) fn character_device(&mut self, path: &str, number: (u32, u32)) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, CHARACTERS, number, &[])
    }

    /// Adds a copy of a file or of a symbolic link.
    pub(crate) fn copy(&mut self, path: &str, kind: Kind, from: &Path) -> anyhow::Result<()> {
        let at = || from.display().to_string();
        let found = fs::symlink_metadata(from).with_context(at)?;
        if found.is_symlink() {
            let to = fs::read_link(from).with_context(at)?;
            let Some(to) = to.to_str() else {
                bail!("{}: the link's target is not UTF-8", at());
            };
            self.link(path, to)?;
        } else {
            self.file(path, kind, &fs::read(from).with_context(at)?)?;
        }
        Ok(())
    }

    /// Ends the archive. The kernel accepts several archives, one after another.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        self.pad(512)?;
        Ok(self.out)
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        match path.rsplit_once('/') {
            Some((above, _)) => self.folder(above),
            None => Ok(()),
        }
    }

    fn entry(
        &mut self,
        path: &str,
        mode: u32,
        (major, minor): (u32, u32),
        contents: &[u8],
    ) -> io::Result<()> {
        let len = u32::try_from(contents.len())
            .map_err(|_| io::Error::other(format!("{path}: too long for the archive")))?;
        self.entries += 1;
        // Number, mode, user, group, links, time, length, the archive's device (2), the entry's
        // own (2), length of the name with its NUL, checksum.
        let name_len = path.len() as u32 + 1;
        let number = self.entries;
        let fields = [
            number, mode, 0, 0, 1, 0, len, 0, 0, major, minor, name_len, 0,
        ];
        self.put(b"070701")?;
        for field in fields {
            self.put(format!("{field:08x}").as_bytes())?;
        }
        self.put(Path::new(path).as_os_str().as_bytes())?;
        self.put(&[0])?;
        self.pad(4)?;
        self.put(contents)?;
        self.pad(4)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes)
    }

    fn pad(&mut self, to: usize) -> io::Result<()> {
        let missing = self.written.next_multiple_of(to) - self.written;
        self.put(&vec![0; missing])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses names, modes and contents.
    fn entries(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let (mut at, mut found) = (0, Vec::new());
        loop {
            let header = &bytes[at..at + 110];
            assert_eq!(&header[..6], b"070701");
            let field = |n: usize| {
                let text = std::str::from_utf8(&header[6 + 8 * n..][..8]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (mode, len, name_len) = (field(1), field(6) as usize, field(11) as usize);
            let name = &bytes[at + 110..][..name_len];
            assert_eq!(name.last(), Some(&0));
            let name = String::from_utf8(name[..name_len - 1].to_vec()).unwrap();
            let data = (at + 110 + name_len).next_multiple_of(4);
            if name == "TRAILER!!!" {
                return found;
            }
            found.push((name, mode, bytes[data..data + len].to_vec()));
            at = (data + len).next_multiple_of(4);
        }
    }

    #[test]
    fn entries_are_read_back_and_every_folder_is_there_once() {
        let mut archive = Archive::new(Vec::new());
        archive.file("usr/bin/a", Kind::Program, b"abc").unwrap();
        archive.file("usr/bin/b", Kind::Data, b"").unwrap();
        archive.link("bin", "usr/bin").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 512, 0);
        let expected: [(&str, u32, &[u8]); 5] = [
            ("usr", FOLDER, b""),
            ("usr/bin", FOLDER, b""),
            ("usr/bin/a", PROGRAM, b"abc"),
            ("usr/bin/b", FILE, b""),
            ("bin", LINK, b"usr/bin"),
        ];
        let found = entries(&bytes);
        let found: Vec<_> = found.iter().map(|(n, m, d)| (&**n, *m, &**d)).collect();
        assert_eq!(found, expected);
    }
}
