//! Files that appear completely or not at all.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// A file being written next to its destination, under an unpredictable name.
///
/// [`WholeFile::finish`] moves it into place atomically: a reader sees either the old or the new contents. If it is
/// dropped earlier, the new file is removed and the old one stays.
#[derive(Debug)]
pub struct WholeFile {
    file: File,
    method: Method,
}

/// Where the bytes go.
#[derive(Debug)]
enum Method {
    /// To a temporary file, which then replaces the destination.
    Beside { part: PathBuf, place: PathBuf },
    /// Directly to the existing destination.
    Within,
}

/// The permissions of a file that only its owner may read.
const PRIVATE: u32 = 0o600;
/// The permissions of a new file, before the umask applies.
const NEW: u32 = 0o666;
/// The number of names to try. Random 64-bit names do not collide by chance.
const ATTEMPTS: usize = 16;

impl WholeFile {
    /// Starts a file at a path chosen by the program's user, as a shell's `>` would. A replacement keeps the
    /// permissions, owner and group of the old file; a new file gets its permissions from the umask. A symbolic link
    /// stays, and its target is replaced.
    ///
    /// Destinations that cannot be replaced are overwritten instead, which is not atomic: a pipe or device, a file with
    /// several links, and a file in a directory where the user may not create files.
    ///
    /// # Errors
    /// The system's errors.
    pub fn replacing(path: &Path) -> io::Result<Self> {
        let before = match fs::metadata(path) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if before.as_ref().is_some_and(|found| !found.is_file()) {
            return Self::within(OpenOptions::new().write(true), path);
        }
        let place = target_of(path)?;
        if place.starts_with("/proc") {
            // An open file of this process, for example /dev/stdout.
            return Self::within(OpenOptions::new().append(true), path);
        }
        let in_place = || Self::within(OpenOptions::new().write(true).truncate(true), path);
        let Some(before) = before else {
            return Self::beside(place, NEW);
        };
        if before.nlink() > 1 {
            return in_place();
        }
        // Checks access as if writing into the file itself, since renaming would depend only on its directory.
        OpenOptions::new().append(true).open(path)?;
        // Private at first: no other user may read it before it has the old file's permissions.
        match Self::beside(place, PRIVATE) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => in_place(),
            begun => {
                let begun = begun?;
                begun.take_over(&before)?;
                Ok(begun)
            }
        }
    }

    /// Writes a file like [`WholeFile::replacing`].
    ///
    /// # Errors
    /// The system's errors.
    pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
        let mut whole = Self::replacing(path)?;
        whole.file.write_all(content)?;
        whole.finish()
    }

    /// Starts a file that only its owner may read, at a path chosen by a library. A symbolic link is replaced, so
    /// no other user who may write to the directory can choose which file is written.
    ///
    /// # Errors
    /// The system's errors.
    pub fn private(path: &Path) -> io::Result<Self> {
        Self::beside(path.to_owned(), PRIVATE)
    }

    fn within(how: &OpenOptions, path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: how.open(path)?,
            method: Method::Within,
        })
    }

    fn beside(place: PathBuf, mode: u32) -> io::Result<Self> {
        let folder = match place.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let (file, part) = create_unforeseen(folder, mode)?;
        Ok(Self {
            file,
            method: Method::Beside { part, place },
        })
    }

    /// Copies the old file's attributes to the new one. If this user may not assign the owner or group, they become
    /// this user's, and bits that would raise privileges are not copied.
    fn take_over(&self, before: &Metadata) -> io::Result<()> {
        let now = self.file.metadata()?;
        let mut mode = before.mode() & 0o7777;
        if (now.uid(), now.gid()) != (before.uid(), before.gid())
            && fchown(&self.file, Some(before.uid()), Some(before.gid())).is_err()
        {
            mode &= 0o777;
            // This may succeed alone, for one of this user's groups.
            let _ = fchown(&self.file, None, Some(before.gid()));
        }
        self.file.set_permissions(Permissions::from_mode(mode))
    }

    /// Returns the file.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Moves the file into place.
    ///
    /// # Errors
    /// The system's errors. The old file then stays, unless it could not be replaced atomically.
    pub fn finish(mut self) -> io::Result<()> {
        let Method::Beside { part, place } = &self.method else {
            return Ok(());
        };
        match fs::rename(part, place) {
            Ok(()) => {
                self.method = Method::Within;
                Ok(())
            }
            // The destination is a mount point, for example in a container.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                let mut to = OpenOptions::new().write(true).truncate(true).open(place)?;
                self.file.rewind()?;
                io::copy(&mut self.file, &mut to).map(drop)
            }
            Err(error) => Err(error),
        }
    }
}

impl io::Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if let Method::Beside { part, .. } = &self.method {
            // The file may have disappeared with its directory.
            let _ = fs::remove_file(part);
        }
    }
}

/// Creates a new file with its final permissions, following no link.
///
/// # Errors
/// `AlreadyExists` if anything has that name, even a symbolic link; otherwise the system's errors.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // O_CREAT with O_EXCL already follows no link; O_NOFOLLOW states it for readers and for unusual file systems.
    options
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .mode(mode)
        .open(path)
}

fn create_unforeseen(folder: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
    for _ in 0..ATTEMPTS {
        let part = folder.join(format!(".gdr-{:016x}.part", random()?));
        match create_new(&part, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return Ok((other?, part)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn random() -> io::Result<u64> {
    let mut bytes = [0_u8; 8];
    // SAFETY: `bytes` has room for the stated number of bytes.
    let found = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match usize::try_from(found) {
        Ok(len) if len == bytes.len() => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The most symbolic links to follow, the same limit as the kernel's.
const MOST_LINKS: usize = 40;

/// Resolves symbolic links, whether or not the file exists.
fn target_of(path: &Path) -> io::Result<PathBuf> {
    let mut place = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&place) {
            // Links in /proc may not be paths.
            Ok(_) if place.starts_with("/proc") => return Ok(place),
            Ok(target) => {
                let folder = place.parent().unwrap_or(Path::new(""));
                place = folder.join(target);
            }
            // Not a link, or nonexistent.
            Err(_) => return Ok(place),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn write(whole: io::Result<WholeFile>, text: &str) {
        let mut whole = whole.unwrap();
        whole.write_all(text.as_bytes()).unwrap();
        whole.finish().unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_file_that_replaces_another_has_its_permissions() {
        let folder = Folder::new("gdr-whole-mode");
        let path = folder.0.join("file");
        for wanted in [0o644, 0o600, 0o664, 0o755] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(wanted)).unwrap();
            write(WholeFile::replacing(&path), "new");
            assert_eq!(mode(&path), wanted);
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_new_file_has_the_permissions_of_the_umask_and_a_private_one_is_its_owners() {
        let folder = Folder::new("gdr-whole-new");
        let (ordinary, new, own) = (
            folder.0.join("ordinary"),
            folder.0.join("new"),
            folder.0.join("own"),
        );
        fs::write(&ordinary, "").unwrap();
        write(WholeFile::replacing(&new), "x");
        write(WholeFile::private(&own), "x");
        assert_eq!((mode(&new), mode(&own)), (mode(&ordinary), 0o600));
    }

    #[test]
    fn a_link_stays_and_what_it_names_is_replaced_also_if_it_is_not_there_yet() {
        let folder = Folder::new("gdr-whole-link");
        let (first, second, path) = (
            folder.0.join("first"),
            folder.0.join("second"),
            folder.0.join("file"),
        );
        symlink("second", &first).unwrap();
        symlink(&path, &second).unwrap();
        for text in ["one", "two"] {
            write(WholeFile::replacing(&first), text);
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert!(fs::symlink_metadata(&path).unwrap().is_file());
            assert!(fs::symlink_metadata(&first).unwrap().is_symlink());
        }
        symlink("circle", folder.0.join("circle")).unwrap();
        let circle = WholeFile::replacing(&folder.0.join("circle"));
        assert_eq!(circle.unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn a_library_replaces_a_link_and_does_not_write_what_it_names() {
        let folder = Folder::new("gdr-whole-private");
        let (victim, path) = (folder.0.join("victim"), folder.0.join("file"));
        fs::write(&victim, "theirs").unwrap();
        symlink(&victim, &path).unwrap();
        write(WholeFile::private(&path), "ours");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(&path).unwrap(), "ours");
        symlink(&victim, folder.0.join("new")).unwrap();
        let made = create_new(&folder.0.join("new"), 0o600);
        assert_eq!(made.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_file_that_is_not_finished_leaves_the_old_one_and_nothing_else() {
        let folder = Folder::new("gdr-whole-left");
        let path = folder.0.join("file");
        fs::write(&path, "old").unwrap();
        let mut whole = WholeFile::replacing(&path).unwrap();
        whole.write_all(b"new").unwrap();
        drop(whole);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(folder.files(), 1);
    }

    #[test]
    fn what_is_not_a_file_is_written_as_it_is() {
        let folder = Folder::new("gdr-whole-special");
        assert!(WholeFile::replacing(&folder.0).is_err());
        let null = folder.0.join("null");
        symlink("/dev/null", &null).unwrap();
        write(WholeFile::replacing(&null), "x");
        let open = File::create(folder.0.join("open")).unwrap();
        let by_number = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        write(WholeFile::replacing(&by_number), "one ");
        write(WholeFile::replacing(&by_number), "two");
        let text = fs::read_to_string(folder.0.join("open")).unwrap();
        assert_eq!((text.as_str(), folder.files()), ("one two", 2));
    }

    #[test]
    fn a_file_with_two_names_keeps_both() {
        let folder = Folder::new("gdr-whole-names");
        let (one, two) = (folder.0.join("one"), folder.0.join("two"));
        fs::write(&one, "a long old text").unwrap();
        fs::hard_link(&one, &two).unwrap();
        write(WholeFile::replacing(&one), "new");
        assert_eq!(fs::read_to_string(&two).unwrap(), "new");
    }

    #[test]
    fn a_file_that_root_replaces_keeps_its_owner_and_group() {
        let folder = Folder::new("gdr-whole-owner");
        let path = folder.0.join("file");
        fs::write(&path, "old").unwrap();
        if std::os::unix::fs::chown(&path, Some(4001), Some(4002)).is_err() {
            skip::skip("only root can give a file away");
            return;
        }
        write(WholeFile::replacing(&path), "new");
        let now = fs::metadata(&path).unwrap();
        assert_eq!((now.uid(), now.gid()), (4001, 4002));
    }
}
