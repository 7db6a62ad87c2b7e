//! Stores the user's copy profiles in files.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use gdr_cuda::Gpu;
use gdr_process::WholeFile;

use crate::backend_kind::BackendKind;
use crate::cpu::Caching;
use crate::machine::profile_key;
use crate::mapping::Mapping;
use crate::plan::{Calibration, Machine, ParseProfileError, Profile, ProfileKey};

/// A directory of profiles, with one file for each machine ([`ProfileKey::file_name`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileStore {
    folder: PathBuf,
}

/// Why a profile could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The user has no directory for state.
    #[error(
        "no directory for profiles is known: neither XDG_STATE_HOME nor HOME is an absolute path; set \
         one of them"
    )]
    NoFolder,
    /// The file could not be read or written.
    #[error("the profile {} cannot be {verb}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        verb: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The file is not a profile.
    #[error("the profile {} cannot be used: {source}; remove it, or measure it again", .path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ParseProfileError,
    },
}

impl ProfileStore {
    /// Opens this user's directory: `gdr/copy` in `$XDG_STATE_HOME`, or otherwise in `$HOME/.local/state`. Fails in a
    /// program with more rights than its caller.
    ///
    /// # Errors
    /// [`ProfileError::NoFolder`].
    pub fn of_user() -> Result<Self, ProfileError> {
        let absolute = |name: &str| {
            let path = gdr_process::variable(name).map(PathBuf::from);
            // The XDG specification requires that relative paths are ignored.
            path.filter(|path| path.is_absolute())
        };
        let state = absolute("XDG_STATE_HOME")
            .or_else(|| Some(absolute("HOME")?.join(".local/state")))
            .ok_or(ProfileError::NoFolder)?;
        Ok(Self::at(state.join("gdr/copy")))
    }

    /// Opens the profiles in `folder`.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// Returns the file for a machine's profile.
    pub fn path(&self, key: &ProfileKey) -> PathBuf {
        self.folder.join(key.file_name())
    }

    /// Loads a machine's profile: `None` if no profile is stored, or the stored one belongs to another machine.
    ///
    /// # Errors
    /// [`ProfileError::File`], [`ProfileError::Text`].
    pub fn load(&self, key: &ProfileKey) -> Result<Option<Profile>, ProfileError> {
        let path = self.path(key);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                let verb = "read";
                return Err(ProfileError::File { path, verb, source });
            }
        };
        let profile: Profile = text
            .parse()
            .map_err(|source| ProfileError::Text { path, source })?;
        // Two machines may share a file name, which contains only the first letters of each field.
        Ok((profile.key == *key).then_some(profile))
    }

    /// Writes a profile, replacing an earlier one for the same machine, and returns the file.
    ///
    /// # Errors
    /// [`ProfileError::File`], in which case the earlier profile stays.
    pub fn save(&self, profile: &Profile) -> Result<PathBuf, ProfileError> {
        let path = self.path(&profile.key);
        let write = |path: &Path| {
            fs::create_dir_all(&self.folder)?;
            // The file gets its name only when it is complete, because another process may read it at any time.
            let mut file = WholeFile::private(path)?;
            file.write_all(profile.to_string().as_bytes())?;
            file.finish()
        };
        match write(&path) {
            Ok(()) => Ok(path),
            Err(source) => {
                let verb = "written";
                Err(ProfileError::File { path, verb, source })
            }
        }
    }
}

/// The source of a calibration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CalibrationSource {
    /// The built-in costs.
    BuiltIn(Machine),
    /// A profile that was measured on this machine.
    Profile(PathBuf),
}

impl fmt::Display for CalibrationSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(machine) => write!(f, "built-in costs ({})", machine.name()),
            Self::Profile(path) => write!(f, "profile {}", path.display()),
        }
    }
}

/// Returns the built-in costs of copies between this process and `mapping`.
fn machine_of(mapping: &Mapping) -> Machine {
    match (mapping.backend(), mapping.caching()) {
        (BackendKind::Sim, _) => Machine::Simulated,
        (_, Caching::Cached) => Machine::Coherent,
        (_, Caching::WriteCombined | Caching::Device) => Machine::Pcie,
    }
}

/// Returns the costs of copies between this process and `mapping`, on `gpu`: the user's profile for this machine, or
/// the built-in costs for a machine without one. Measures nothing.
///
/// # Errors
/// [`ProfileError`] if a profile exists but cannot be used.
pub fn calibration_for(
    gpu: &Gpu,
    mapping: &Mapping,
) -> Result<(Calibration, CalibrationSource), ProfileError> {
    let key = profile_key(gpu, mapping);
    let profile = match ProfileStore::of_user() {
        Ok(store) => store.load(&key)?.map(|profile| {
            (
                profile.calibration,
                CalibrationSource::Profile(store.path(&key)),
            )
        }),
        // A program without a home directory has no profile.
        Err(_) => None,
    };
    Ok(profile.unwrap_or_else(|| built_in_calibration(mapping)))
}

/// Returns the built-in costs of copies between this process and `mapping`.
pub fn built_in_calibration(mapping: &Mapping) -> (Calibration, CalibrationSource) {
    let machine = machine_of(mapping);
    let calibration = Calibration::built_in(machine);
    (calibration, CalibrationSource::BuiltIn(machine))
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{MemoryKind, Ordinal, SimDriver};
    use snapshot::assert_contains;

    use super::*;
    use crate::context::Context;
    use crate::machine::default_threads;
    use crate::plan::{CopyDirection, CopyPath, CostCurve, CostPoint, HostMemory, Series};

    fn profile() -> Profile {
        let mut calibration = Calibration::new();
        let series = Series {
            direction: CopyDirection::ToGpu,
            host: HostMemory::Pageable,
            path: CopyPath::ONE_THREAD,
        };
        let point = CostPoint { len: 64, ns: 119.0 };
        calibration.set(series, CostCurve::new([point]).unwrap());
        Profile {
            key: ProfileKey {
                gpu: "H200".to_owned(),
                driver: "580.1".to_owned(),
                cpu: "Xeon".to_owned(),
                path_class: "rm, write-combined".to_owned(),
            },
            calibration,
        }
    }

    #[test]
    fn a_saved_profile_is_loaded_for_its_machine_only() {
        let folder = std::env::temp_dir().join(format!("gdr-profiles-{}", std::process::id()));
        let store = ProfileStore::at(&folder);
        let mut profile = profile();
        assert_eq!(store.load(&profile.key).unwrap(), None);
        let path = store.save(&profile).unwrap();
        assert_eq!(path, store.path(&profile.key));
        assert_eq!(store.load(&profile.key).unwrap(), Some(profile.clone()));
        // Another machine, whose file has the same name.
        let mut other = profile.key.clone();
        other.cpu = "XEON".to_owned();
        assert_eq!(store.path(&other), path);
        assert_eq!(store.load(&other).unwrap(), None);
        profile.calibration.set_queued_copy(5.0);
        store.save(&profile).unwrap();
        assert_eq!(store.load(&profile.key).unwrap(), Some(profile.clone()));
        fs::write(&path, "something else").unwrap();
        let error = store.load(&profile.key).unwrap_err().to_string();
        assert_contains!(error, "first line");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_simulated_mapping_has_the_costs_of_a_simulation() {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let buffer = gpu.allocate(MemoryKind::Plain, 4096).unwrap();
        let context = Context::open_for(&gpu).unwrap();
        let mapping = context.pin(buffer.ptr(), 4096).unwrap().map().unwrap();
        let key = profile_key(&gpu, &mapping);
        assert_eq!(
            (key.gpu, key.driver),
            (gpu.info().name.clone(), "none".to_owned())
        );
        let (calibration, source) = built_in_calibration(&mapping);
        assert_eq!(calibration, Calibration::built_in(Machine::Simulated));
        assert_eq!(source, CalibrationSource::BuiltIn(Machine::Simulated));
        assert!((1..=4).contains(&default_threads(&gpu).get()));
    }
}
