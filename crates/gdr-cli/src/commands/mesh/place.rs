//! Place of a process among the ranks of `gdr mesh`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use gdr_perf::loopback::{HostPort, is_this_host};
use gdr_perf::mesh::{HostFile, Launch, MOST_RANKS};

use super::Options;
use crate::exit::UsageError;

/// Deadline of resolving a host name.
const RESOLVER: Duration = Duration::from_secs(10);

/// Place of this process among the ranks.
pub(super) struct Place {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) local_rank: Option<usize>,
    pub(super) meet: HostPort,
}

/// What is known about it without the options.
#[derive(Default)]
struct Known {
    rank: Option<usize>,
    ranks: Option<usize>,
    local_rank: Option<usize>,
    meet: Option<HostPort>,
}

impl Place {
    /// Finds the place of this rank: from the options first, then from the host file or, without one, the launcher's
    /// environment.
    pub(super) fn of(options: &Options) -> Result<Self> {
        let known = match (&options.host_file, options.rank) {
            (Some(path), _) => Known::by_host_file(path, options)?,
            (None, Some(_)) => Known {
                // All ranks are on this machine.
                meet: "127.0.0.1".parse().ok(),
                ..Known::default()
            },
            (None, None) => Known::by_launcher()?,
        };
        let missing = |what: &str| {
            UsageError(format!(
                "the {what} is unknown: start gdr with srun, mpirun or torchrun, or use --rank, \
                 --ranks and --meet, or --host-file"
            ))
        };
        let rank = options.rank.or(known.rank);
        let rank = rank.ok_or_else(|| missing("rank"))?;
        let ranks = options.ranks.or(known.ranks);
        let ranks = ranks.ok_or_else(|| missing("number of ranks"))?;
        if rank >= ranks {
            let what = format!(
                "--rank {rank} of --ranks {ranks}: ranks range from 0 to one less than their number"
            );
            return Err(UsageError(what).into());
        }
        if !(2..=MOST_RANKS).contains(&ranks) {
            let what = format!("a mesh has 2 to {MOST_RANKS} ranks, not {ranks} (--ranks)");
            return Err(UsageError(what).into());
        }
        let meet = options.meet.clone().or(known.meet);
        Ok(Self {
            rank,
            ranks,
            local_rank: options.local_rank.or(known.local_rank),
            meet: meet.ok_or_else(|| missing("host of rank 0"))?,
        })
    }
}

impl Known {
    fn by_launcher() -> Result<Self> {
        let launch = Launch::of(|name| std::env::var(name).ok());
        let launch = launch.map_err(|error| UsageError(error.to_string()))?;
        Ok(launch.map_or_else(Self::default, |launch| Self {
            rank: Some(launch.rank),
            ranks: launch.ranks,
            local_rank: launch.local_rank,
            // The launcher's own port is in use.
            meet: launch.first_host.and_then(|host| host.parse().ok()),
        }))
    }

    fn by_host_file(path: &Path, options: &Options) -> Result<Self> {
        let wrong = |why: String| UsageError(format!("the host file {}: {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let file: HostFile = text.parse().map_err(|error| wrong(format!("{error}")))?;
        let meet = file.first_host().parse();
        let known = Self {
            ranks: Some(file.ranks()),
            meet: Some(meet.map_err(|error| wrong(format!("{error}")))?),
            ..Self::default()
        };
        if options.rank.is_some() {
            return Ok(known);
        }
        let place = file
            .place(|host| is_this_host(host, RESOLVER))
            .map_err(|error| wrong(format!("{error} (--rank)")))?;
        let local_rank = match (options.local_rank, place.slots) {
            (Some(local), slots) if local < slots => local,
            (None, 1) => 0,
            (Some(local), slots) => {
                let why = format!("{slots} ranks run here, and --local-rank is {local}");
                return Err(wrong(format!("{why}: they are from 0 to {}", slots - 1)).into());
            }
            (None, slots) => {
                let why = format!("{slots} ranks run here");
                return Err(wrong(format!("{why}: give each --local-rank, from 0 on")).into());
            }
        };
        Ok(Self {
            rank: Some(place.first_rank + local_rank),
            local_rank: Some(local_rank),
            ..known
        })
    }
}
