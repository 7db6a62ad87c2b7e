//! Rank of this process, from the environment of the launcher that started it.
//!
//! Sources of the names: `srun(1)` (OUTPUT ENVIRONMENT VARIABLES), the Open MPI FAQ ("Running MPI jobs",
//! environment variables), torchrun's documentation, MPICH's Hydra, and the Kubernetes documentation of
//! indexed jobs.

use std::fmt;

/// A launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// `torchrun`.
    Torchrun,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `srun`.
    Slurm,
    /// `mpiexec` of MPICH and Intel MPI.
    Hydra,
    /// An indexed job of Kubernetes.
    Kubernetes,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Slurm => "Slurm",
            Self::Hydra => "MPICH",
            Self::Kubernetes => "Kubernetes",
        })
    }
}

/// What a launcher passes to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The launcher that started it.
    pub launcher: Launcher,
    /// From 0.
    pub rank: usize,
    /// The number of ranks; `None` if the launcher does not say.
    pub ranks: Option<usize>,
    /// The rank within this host, from 0.
    pub local_rank: Option<usize>,
    /// Where rank 0 runs, if the launcher says.
    pub first_host: Option<String>,
    /// A port that the launcher chose as the ranks' meeting point.
    pub port: Option<u16>,
}

/// Why a launcher's environment cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields' names say what they hold")]
pub enum LaunchError {
    /// A variable does not hold a number.
    #[error(
        "{launcher} set {variable} to `{value}`, which is not a number: unset it, or use --rank"
    )]
    NotANumber {
        launcher: Launcher,
        variable: &'static str,
        value: String,
    },
    /// One variable is set, but another of the same launcher is missing.
    #[error("{launcher} set {found} but not {missing}: set both, or use --rank and --ranks")]
    Incomplete {
        launcher: Launcher,
        found: &'static str,
        missing: &'static str,
    },
    /// A rank outside the range.
    #[error("{launcher} set rank {rank} of {ranks}: ranks range from 0 to {}", ranks.saturating_sub(1))]
    NoSuchRank {
        launcher: Launcher,
        rank: usize,
        ranks: usize,
    },
}

/// The variables of a launcher.
struct Variables {
    launcher: Launcher,
    rank: &'static str,
    ranks: Option<&'static str>,
    local_rank: Option<&'static str>,
}

/// A program that torchrun starts within a Slurm allocation has the variables of both. The launcher that started the
/// process itself comes first.
const LAUNCHERS: [Variables; 5] = [
    Variables {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        ranks: Some("WORLD_SIZE"),
        local_rank: Some("LOCAL_RANK"),
    },
    Variables {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: Some("OMPI_COMM_WORLD_SIZE"),
        local_rank: Some("OMPI_COMM_WORLD_LOCAL_RANK"),
    },
    Variables {
        launcher: Launcher::Hydra,
        rank: "PMI_RANK",
        ranks: Some("PMI_SIZE"),
        local_rank: Some("MPI_LOCALRANKID"),
    },
    Variables {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        ranks: Some("SLURM_NTASKS"),
        local_rank: Some("SLURM_LOCALID"),
    },
    Variables {
        launcher: Launcher::Kubernetes,
        rank: "JOB_COMPLETION_INDEX",
        ranks: None,
        local_rank: None,
    },
];

impl Launch {
    /// Reads the launcher's values from the variables of this process; `None` if no launcher started it.
    ///
    /// # Errors
    /// [`LaunchError`], if the variables of a launcher contradict each other.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, LaunchError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let Some(names) = LAUNCHERS
            .iter()
            .find(|names| variable(names.rank).is_some())
        else {
            return Ok(None);
        };
        let launcher = names.launcher;
        let number = |name: &'static str| {
            let parse = |value: String| {
                value.parse().map_err(|_| LaunchError::NotANumber {
                    launcher,
                    variable: name,
                    value,
                })
            };
            variable(name).map(parse).transpose()
        };
        let incomplete = |missing| LaunchError::Incomplete {
            launcher,
            found: names.rank,
            missing,
        };
        let rank = number(names.rank)?.ok_or(incomplete(names.rank))?;
        let ranks = match names.ranks {
            Some(name) => Some(number(name)?.ok_or(incomplete(name))?),
            None => None,
        };
        if let Some(ranks) = ranks
            && rank >= ranks
        {
            return Err(LaunchError::NoSuchRank {
                launcher,
                rank,
                ranks,
            });
        }
        let local_rank = names.local_rank.map(number).transpose()?.flatten();
        let (first_host, port) = match launcher {
            Launcher::Torchrun => (
                variable("MASTER_ADDR"),
                number("MASTER_PORT")?.and_then(|port| u16::try_from(port).ok()),
            ),
            Launcher::Slurm => (
                variable("SLURM_STEP_NODELIST")
                    .or_else(|| variable("SLURM_JOB_NODELIST"))
                    .and_then(|list| first_of(&list)),
                None,
            ),
            Launcher::OpenMpi => {
                let local = number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
                let is_one_host = local.is_some() && local == ranks;
                (is_one_host.then(|| "127.0.0.1".to_owned()), None)
            }
            Launcher::Hydra | Launcher::Kubernetes => (None, None),
        };
        Ok(Some(Self {
            launcher,
            rank,
            ranks,
            local_rank,
            first_host,
            port,
        }))
    }
}

/// Returns the first host of a list of Slurm, such as `gpu[01-04,07],login1`.
fn first_of(list: &str) -> Option<String> {
    let (mut name, mut rest) = (String::new(), list);
    loop {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        let Some(ranges) = rest[end..].strip_prefix('[') else {
            return (!name.is_empty()).then_some(name);
        };
        let (range, behind) = ranges.split_once(']')?;
        name.push_str(range.split([',', '-']).next()?);
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn launch(variables: &[(&str, &str)]) -> Result<Option<Launch>, LaunchError> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        Launch::of(|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn without_a_launcher_there_is_no_rank() {
        assert_eq!(launch(&[]), Ok(None));
        assert_eq!(launch(&[("RANK", ""), ("WORLD_SIZE", "4")]), Ok(None));
    }

    #[test]
    fn each_launcher_gives_rank_and_host() {
        let torchrun = launch(&[
            ("RANK", "3"),
            ("WORLD_SIZE", "16"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "gpu01"),
            ("MASTER_PORT", "29500"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "2"),
        ]);
        let expected = Launch {
            launcher: Launcher::Torchrun,
            rank: 3,
            ranks: Some(16),
            local_rank: Some(1),
            first_host: Some("gpu01".to_owned()),
            port: Some(29500),
        };
        assert_eq!(torchrun, Ok(Some(expected)));
        let slurm = launch(&[
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_JOB_NODELIST", "gpu[01-04,07]"),
        ]);
        let slurm = slurm.unwrap().unwrap();
        assert_eq!((slurm.rank, slurm.ranks), (5, Some(8)));
        assert_eq!(slurm.first_host.as_deref(), Some("gpu01"));
        let one_host = launch(&[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ]);
        let one_host = one_host.unwrap().unwrap();
        assert_eq!(one_host.first_host.as_deref(), Some("127.0.0.1"));
        let two_hosts = launch(&[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ]);
        assert_eq!(two_hosts.unwrap().unwrap().first_host, None);
        let pod = launch(&[("JOB_COMPLETION_INDEX", "2")]).unwrap().unwrap();
        assert_eq!((pod.rank, pod.ranks), (2, None));
    }

    #[test]
    fn variables_that_contradict_each_other_are_named() {
        let text = |variables: &[(&str, &str)]| launch(variables).unwrap_err().to_string();
        let word = text(&[("PMI_RANK", "one"), ("PMI_SIZE", "2")]);
        assert!(word.contains("PMI_RANK to `one`"), "{word}");
        let half = text(&[("SLURM_PROCID", "0")]);
        assert!(half.contains("SLURM_PROCID but not SLURM_NTASKS"), "{half}");
        let beyond = text(&[("RANK", "4"), ("WORLD_SIZE", "4")]);
        assert!(beyond.contains("rank 4 of 4"), "{beyond}");
    }

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, first) in [
            ("gpu01", Some("gpu01")),
            ("gpu01,gpu02", Some("gpu01")),
            ("gpu[01-04]", Some("gpu01")),
            ("gpu[7]", Some("gpu7")),
            ("rack[1,3]-gpu", Some("rack1-gpu")),
            ("a[1-2]b[3-4]", Some("a1b3")),
            ("", None),
            ("gpu[01", None),
            (",gpu", None),
        ] {
            assert_eq!(first_of(list).as_deref(), first, "{list}");
        }
    }

    proptest! {
        #[test]
        fn any_list_is_judged(list: String) {
            let _ = first_of(&list);
        }
    }
}
