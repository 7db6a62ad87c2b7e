//! Whether this machine has a usable NVIDIA GPU.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use gdr_cuda::Error;

/// Library of the driver.
const LIBRARY: &str = "libcuda.so.1";
/// NVIDIA's PCI vendor ID, as sysfs writes it.
const NVIDIA: &str = "0x10de";

/// The result of a search for a GPU.
#[derive(Debug)]
pub(crate) enum Found<G> {
    /// GPUs that the driver shows to this process.
    Gpus(G),
    /// No GPU, no driver and no device node.
    Nothing,
    /// Some trace of a GPU, but no usable one, for this reason.
    Unusable(String),
}

/// Searches for a GPU. `load` loads the driver library and returns `None` if it shows no GPU. Device nodes and PCI
/// functions are searched below `root`.
pub(crate) fn look<G>(root: &Path, load: impl FnOnce() -> Result<Option<G>, Error>) -> Found<G> {
    let error = match load() {
        Ok(Some(gpus)) => return Found::Gpus(gpus),
        Ok(None) => {
            return Found::Unusable(
                "the NVIDIA driver reports no GPU to this process; check CUDA_VISIBLE_DEVICES and, \
                 in a container, whether a GPU was passed in"
                    .to_owned(),
            );
        }
        Err(error) => error,
    };
    let signs = signs(root);
    match (is_absent(&error), signs.is_empty()) {
        (true, true) => Found::Nothing,
        (_, true) => Found::Unusable(error.to_string()),
        (_, false) => Found::Unusable(format!("{}, but {error}", signs.join(", "))),
    }
}

/// Returns whether the driver library is missing. A library that `GDR_LIBCUDA` names, and one that exists but cannot be
/// loaded, count as a driver.
fn is_absent(error: &Error) -> bool {
    match error {
        Error::Library { library, reason } => {
            // The loader names the missing file, which may be a dependency of the library.
            library == LIBRARY && reason.contains(LIBRARY) && reason.contains("No such file")
        }
        _ => false,
    }
}

/// Lists traces of an NVIDIA GPU or its driver in the file systems below `root`.
fn signs(root: &Path) -> Vec<String> {
    let functions = entries(root, "sys/bus/pci/devices", |name| {
        let vendor = root.join("sys/bus/pci/devices").join(name).join("vendor");
        fs::read_to_string(vendor).is_ok_and(|text| text.trim() == NVIDIA)
    });
    let nodes = entries(root, "dev", |name| name.starts_with("nvidia"));
    let driver = entries(root, "proc/driver", |name| name == "nvidia");
    [
        (functions, "the PCI bus has an NVIDIA function"),
        (nodes, "/dev has"),
        (driver, "/proc/driver has"),
    ]
    .into_iter()
    .filter_map(|(found, what)| match found {
        Ok(names) => names.first().map(|name| match names.len() {
            1 => format!("{what} {name}"),
            more => format!("{what} {name} and {} more", more - 1),
        }),
        Err(unreadable) => Some(unreadable),
    })
    .collect()
}

/// Returns the `wanted` names in a directory, sorted. A missing directory has none; a directory that cannot be read is
/// an error.
fn entries(
    root: &Path,
    directory: &str,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<String>, String> {
    let listed =
        fs::read_dir(root.join(directory)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match listed {
        Ok(listed) => {
            let names = listed
                .iter()
                .map(|entry| entry.file_name().to_string_lossy().into_owned());
            let mut names: Vec<String> = names.filter(|name| wanted(name)).collect();
            names.sort_unstable();
            Ok(names)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(format!("/{directory} cannot be read ({error})")),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn missing() -> Error {
        Error::Library {
            library: LIBRARY.to_owned(),
            reason: format!("{LIBRARY}: cannot open shared object file: No such file or directory"),
        }
    }

    fn found(root: &TempDir, error: Error) -> Found<()> {
        look(root.path(), || Err(error))
    }

    /// Returns a root with these files.
    fn root(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_machine_without_function_library_and_node_has_no_gpu() {
        let bare = root(&[]);
        assert!(matches!(found(&bare, missing()), Found::Nothing));
        let laptop = root(&[
            ("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n"),
            ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x15b3\n"),
            ("dev/null", ""),
            ("dev/dri/card0", ""),
            ("proc/driver/rtc", ""),
        ]);
        assert!(matches!(found(&laptop, missing()), Found::Nothing));
    }

    #[test]
    fn any_sign_of_a_gpu_makes_it_unusable_instead_of_absent() {
        for (path, text, words) in [
            (
                "sys/bus/pci/devices/0000:18:00.0/vendor",
                "0x10de\n",
                "NVIDIA function 0000:18:00.0",
            ),
            ("dev/nvidia0", "", "/dev has nvidia0"),
            ("dev/nvidiactl", "", "/dev has nvidiactl"),
            ("proc/driver/nvidia/version", "", "/proc/driver has nvidia"),
        ] {
            match found(&root(&[(path, text)]), missing()) {
                Found::Unusable(why) => {
                    assert!(
                        why.contains(words) && why.contains(LIBRARY),
                        "{path}: {why}"
                    );
                }
                other => panic!("{path}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_library_that_is_there_and_does_not_work_is_no_absence() {
        let bare = root(&[]);
        let with = |library: &str, reason: &str| Error::Library {
            library: library.to_owned(),
            reason: reason.to_owned(),
        };
        for error in [
            with(LIBRARY, "libcuda.so.1: file too short"),
            with(
                LIBRARY,
                "libnvidia-ml.so.1: cannot open shared object file: No such file or directory",
            ),
            with(
                LIBRARY,
                "libcuda.so.1: cannot open shared object file: Permission denied",
            ),
            with(
                "/opt/libcuda.so.1",
                "/opt/libcuda.so.1: No such file or directory",
            ),
            Error::Symbol { symbol: "cuInit" },
            Error::Call {
                call: "cuInit",
                result: gdr_cuda::CuResult::NO_DEVICE,
            },
        ] {
            let words = error.to_string();
            assert!(matches!(found(&bare, error), Found::Unusable(_)), "{words}");
        }
        let none: Found<()> = look(bare.path(), || Ok(None));
        assert!(matches!(none, Found::Unusable(why) if why.contains("CUDA_VISIBLE_DEVICES")));
        assert!(matches!(look(bare.path(), || Ok(Some(7))), Found::Gpus(7)));
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_no_absence() {
        // A file in place of the directory fails for every user, including root.
        let odd = root(&[("sys/bus/pci/devices", "")]);
        assert!(
            matches!(found(&odd, missing()), Found::Unusable(why) if why.contains("cannot be read"))
        );
    }
}
