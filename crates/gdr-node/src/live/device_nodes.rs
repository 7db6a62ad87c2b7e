//! The device nodes of GPUs, RDMA devices and GDRCopy, and `/dev/shm`.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD};

use crate::source::{Absence, Datum, MAX_ENTRIES};

/// Directories, and the prefixes of the names in them.
const PLACES: [(&str, &str); 4] = [
    ("/dev", "nvidia"),
    ("/dev", "gdrdrv"),
    ("/dev/infiniband", ""),
    ("/dev/nvidia-caps", ""),
];

pub(super) fn read() -> Datum<Vec<u8>> {
    let mut lines: Vec<(String, String)> = Vec::new();
    for (directory, prefix) in PLACES {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        for entry in entries.take(MAX_ENTRIES).flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{directory}/{name}");
            if name.starts_with(prefix)
                && let Some(line) = describe(Path::new(&path))
            {
                lines.push((path.clone(), format!("{line} {path}\n")));
            }
        }
    }
    lines.sort();
    let text: String = lines.into_iter().map(|(_, line)| line).collect();
    Ok(text.into_bytes())
}

/// Describes a device node by mode, number and this process's access rights; `None` if it is not a device.
fn describe(path: &Path) -> Option<String> {
    let about = fs::metadata(path).ok()?;
    let kind = about.file_type();
    if !kind.is_char_device() && !kind.is_block_device() {
        return None;
    }
    // Checked without opening: opening a GPU's node would wake the GPU.
    let may = |access| rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS).is_ok();
    let (read, write) = (may(Access::READ_OK), may(Access::WRITE_OK));
    let number = about.rdev();
    Some(format!(
        "{:04o} {}:{} {}{}",
        about.mode() & 0o7777,
        rustix::fs::major(number),
        rustix::fs::minor(number),
        if read { 'r' } else { '-' },
        if write { 'w' } else { '-' },
    ))
}

pub(super) fn shared_memory() -> Datum<Vec<u8>> {
    match rustix::fs::statvfs("/dev/shm") {
        Ok(about) => {
            let bytes = |blocks: u64| blocks.saturating_mul(about.f_frsize);
            let text = format!(
                "size {}\nfree {}\n",
                bytes(about.f_blocks),
                bytes(about.f_bavail)
            );
            Ok(text.into_bytes())
        }
        Err(rustix::io::Errno::NOENT) => Err(Absence::Missing),
        Err(rustix::io::Errno::ACCESS) => Err(Absence::Denied),
        Err(errno) => Err(Absence::Failed(crate::Errno(errno.raw_os_error()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_described_and_a_file_is_not() {
        let null = describe(Path::new("/dev/null")).unwrap();
        assert!(null.starts_with("0666 1:3 rw"), "{null}");
        assert_eq!(describe(Path::new("/proc/version")), None);
        assert_eq!(describe(Path::new("/dev/no/such")), None);
    }
}
