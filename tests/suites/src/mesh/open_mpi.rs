//! Debian's `mpirun` of Open MPI, unpacked into the cache folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::running::Running;
use xtask_build::packages::{Apt, cache, locked, once};
use xtask_build::results::Unavailable;

/// The program, and its texts and default settings.
const PACKAGES: [&str; 2] = ["openmpi-bin", "openmpi-common"];
/// How long running a program that does nothing may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Open MPI, outside the folders that it was built for.
pub(super) struct OpenMpi {
    root: PathBuf,
    components: PathBuf,
}

impl OpenMpi {
    /// Fetches it, and checks whether it runs here.
    pub(super) fn prepare() -> anyhow::Result<Self> {
        let cache = cache();
        let _lock = locked(&cache)?;
        let root = once(&cache.join("open-mpi"), &format!("{PACKAGES:?}"), |root| {
            let apt = Apt::fetch_lists(&cache.join("apt"))?;
            if !apt.has(PACKAGES[0])? {
                let reason = format!("apt's sources have no {} (no network?)", PACKAGES[0]);
                return Err(Unavailable::new(reason).into());
            }
            let mut names = apt.with_libraries(&PACKAGES)?;
            // The host's dynamic loader needs the host's libc.
            names.retain(|name| name != "libc6");
            apt.unpack(&names, root)
        })?;
        let libraries = libraries(&root).join("openmpi/lib");
        let components = components(&libraries)
            .with_context(|| format!("{} has no components", libraries.display()))?;
        let mpi = Self { root, components };
        let mut nothing = mpi.mpirun(1);
        nothing.arg("true");
        let mut nothing = Running::start_with(nothing, Stdio::null(), Stdio::null())?;
        match nothing.failure(Instant::now() + LIMIT)? {
            None => Ok(mpi),
            Some(failure) => {
                let reason =
                    format!("Debian's Open MPI does not run here: `mpirun true` {failure}");
                Err(Unavailable::new(reason).into())
            }
        }
    }

    /// Returns `mpirun` for this many ranks on this machine; the program must still be added.
    pub(super) fn mpirun(&self, ranks: usize) -> Command {
        let libraries = libraries(&self.root);
        let mut command = Command::new(self.root.join("usr/bin/mpirun.openmpi"));
        command
            .args(["--oversubscribe", "-n", &ranks.to_string()])
            .env("OPAL_PREFIX", self.root.join("usr"))
            .env("OMPI_MCA_mca_base_component_path", &self.components)
            .env("LD_LIBRARY_PATH", libraries)
            // Each confirms that the caller knows what root could break: nothing here.
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env_remove("LD_PRELOAD");
        command
    }
}

/// Returns the folder of Debian's libraries below a root.
fn libraries(root: &Path) -> PathBuf {
    root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH))
}

/// Returns the folder of the components, whose name has the version of their interface: `openmpi3`.
fn components(libraries: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(libraries).ok()?.flatten();
    entries.find_map(|entry| {
        let is_it = entry.file_name().to_string_lossy().starts_with("openmpi");
        (is_it && entry.path().is_dir()).then(|| entry.path())
    })
}
