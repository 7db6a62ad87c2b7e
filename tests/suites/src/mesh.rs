//! `cargo xtask mesh`: `gdr mesh` between many processes of this machine.
//!
//! The ranks have soft devices and host memory. They are started by the distribution's Open MPI, by a host file, and
//! with the variables of Slurm and torchrun. The kernel throttles one rank in its own network namespace, and one rank
//! is killed: each must be named, and all others must end.

mod namespaces;
mod open_mpi;
mod ranks;

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use self::namespaces::Namespaces;
use self::open_mpi::OpenMpi;
use self::ranks::{Ranks, report};
use crate::running::{Running, free_port, print_end};
use xtask_build::results::{Outcome, Results, Unavailable};
use xtask_build::workspace::{self, target};

/// A case fails after this time. The longest takes half a minute on two idle CPUs.
const LIMIT: Duration = Duration::from_secs(300);
/// Host memory, and deadlines that even a busy machine meets.
const COMMON: &str = "--host-memory --provider soft --json --size 1K --wait 200 --timeout 30";
/// Rates are not judged if processes share CPUs.
const ANY_RATE: &str = "--duration 10 --least 0";

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Many,
    Slurm,
    Torchrun,
    HostFile,
    OpenMpi,
    Throttled,
    Killed,
}

impl Case {
    const ALL: [Self; 7] = [
        Self::Many,
        Self::Slurm,
        Self::Torchrun,
        Self::HostFile,
        Self::OpenMpi,
        Self::Throttled,
        Self::Killed,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Many => "mesh of 64 ranks",
            Self::Slurm => "mesh by the variables of Slurm",
            Self::Torchrun => "mesh by the variables of torchrun",
            Self::HostFile => "mesh by a host file",
            Self::OpenMpi => "mesh by Open MPI",
            Self::Throttled => "mesh with a throttled rank",
            Self::Killed => "mesh with a killed rank",
        }
    }
}

/// Which cases to run.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Run only cases whose name contains one of these, such as `64` or `Open MPI`.
    filters: Vec<String>,
}

impl Options {
    /// Returns all cases.
    pub const fn all() -> Self {
        Self {
            filters: Vec::new(),
        }
    }

    fn cases(&self) -> impl Iterator<Item = Case> {
        Case::ALL.into_iter().filter(|case| {
            let is_in_name = |filter: &String| case.name().contains(filter.as_str());
            self.filters.is_empty() || self.filters.iter().any(is_in_name)
        })
    }
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    record(&mut results, options);
    Ok(results.close())
}

/// Runs the cases and records the outcome of each.
pub fn record(results: &mut Results, options: &Options) {
    results.section("mesh", |results| {
        let gdr = workspace::build("dev", &["gdr-cli"]).map(|folder| folder.join("gdr"));
        for case in options.cases() {
            let outcome = match &gdr {
                Ok(gdr) => match outcome(case, gdr) {
                    // Its processes share the CPUs with everything else that runs.
                    Outcome::Failed => {
                        println!("once more: {}", case.name());
                        let again = outcome(case, gdr);
                        if again == Outcome::Passed {
                            results.passed_again(case.name());
                        }
                        again
                    }
                    outcome => outcome,
                },
                Err(error) => {
                    println!("{}: {error:#}", case.name());
                    Outcome::Failed
                }
            };
            results.record(case.name(), outcome);
        }
    });
}

fn outcome(case: Case, gdr: &Path) -> Outcome {
    let start = Instant::now();
    let ended = Mesh::new(case, gdr).and_then(|mesh| mesh.run(case));
    let seconds = start.elapsed().as_secs_f32();
    match ended {
        Ok(()) => {
            println!("{}: passed in {seconds:.1} s", case.name());
            Outcome::Passed
        }
        Err(error) => match error.downcast_ref::<Unavailable>() {
            Some(unavailable) => Outcome::Skipped {
                reason: unavailable.to_string(),
            },
            None => {
                println!("{}: {error:#} after {seconds:.1} s", case.name());
                Outcome::Failed
            }
        },
    }
}

/// The command, and what all ranks of a case share.
struct Mesh {
    gdr: PathBuf,
    /// Where the output of the ranks goes.
    folder: PathBuf,
    /// Port of the meeting point and of the devices.
    port: u16,
    deadline: Instant,
}

impl Mesh {
    fn new(case: Case, gdr: &Path) -> anyhow::Result<Self> {
        let folder = target().join("mesh").join(case.name().replace(' ', "-"));
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self {
            gdr: gdr.to_owned(),
            folder,
            port: free_port(IpAddr::V4(Ipv4Addr::LOCALHOST))?,
            deadline: Instant::now() + LIMIT,
        })
    }

    fn run(&self, case: Case) -> anyhow::Result<()> {
        match case {
            Case::Many => self.launched(64, torchrun),
            Case::Slurm => self.launched(3, slurm),
            Case::Torchrun => self.launched(3, torchrun),
            Case::HostFile => self.by_host_file(3),
            Case::OpenMpi => self.by_open_mpi(4),
            Case::Throttled => self.throttled(),
            Case::Killed => self.killed(),
        }
    }

    /// Appends the program and the options of one rank to a command that starts programs.
    fn rank(&self, mut command: Command, options: &str) -> Command {
        command
            .args(options.split_whitespace())
            .args(COMMON.split_whitespace())
            .args(["--udp-port", &self.port.to_string()])
            // Independent of this machine's devices.
            .env("GDR_LIBIBVERBS", "/nonexistent/libibverbs.so.1");
        for variable in LAUNCHERS.iter().flat_map(|names| names.iter()) {
            command.env_remove(variable);
        }
        command
    }

    /// Returns `gdr mesh` as it runs on this host.
    fn gdr(&self) -> Command {
        let mut command = Command::new(&self.gdr);
        command.arg("mesh");
        command
    }

    /// Starts ranks with a launcher's variables, all of which should succeed.
    fn launched(&self, ranks: usize, variables: Variables) -> anyhow::Result<()> {
        let options = format!("{ANY_RATE} --meet localhost:{}", self.port);
        let commands = (0..ranks).map(|rank| {
            let mut command = self.rank(self.gdr(), &options);
            command.envs(variables(rank, ranks));
            command
        });
        self.passes(ranks, commands)
    }

    fn by_host_file(&self, ranks: usize) -> anyhow::Result<()> {
        let hosts = self.folder.join("hosts");
        fs::write(&hosts, format!("# this machine\nlocalhost slots={ranks}\n"))?;
        let commands = (0..ranks).map(|local| {
            let options = format!(
                "{ANY_RATE} --local-rank {local} --meet localhost:{}",
                self.port
            );
            let mut command = self.rank(self.gdr(), &options);
            command.arg("--host-file").arg(&hosts);
            command
        });
        self.passes(ranks, commands)
    }

    /// Checks that all ranks end with 0, and every direction is measured.
    fn passes(&self, count: usize, commands: impl Iterator<Item = Command>) -> anyhow::Result<()> {
        let mut ranks = Ranks::start(&self.folder, commands)?;
        let judged = ranks.statuses(self.deadline).and_then(|statuses| {
            if let Some(rank) = statuses.iter().position(|status| *status != Some(0)) {
                bail!("rank {rank} ended with {:?}", statuses[rank]);
            }
            whole(&ranks.report()?, count)
        });
        self.shown(judged, &ranks)
    }

    fn by_open_mpi(&self, ranks: usize) -> anyhow::Result<()> {
        let mpi = OpenMpi::prepare()?;
        let mut command = mpi.mpirun(ranks);
        command.arg(&self.gdr).arg("mesh");
        let options = format!("{ANY_RATE} --meet localhost:{}", self.port);
        let command = self.rank(command, &options);
        let [output, messages] =
            ["json", "log"].map(|kind| self.folder.join("mpirun").with_extension(kind));
        let file = |path: &Path| File::create(path).with_context(|| path.display().to_string());
        let mut mpirun = Running::start_with(command, file(&output)?, file(&messages)?)?;
        let judged = match mpirun.failure(self.deadline)? {
            Some(failure) => Err(anyhow::anyhow!("mpirun {failure}")),
            None => report(&output).and_then(|report| whole(&report, ranks)),
        };
        if judged.is_err() {
            print_end("mpirun", &messages);
        }
        judged
    }

    /// Runs six hosts, one of which sends so slowly that it is far below the others on any machine.
    fn throttled(&self) -> anyhow::Result<()> {
        const RANKS: usize = 6;
        const SLOW: usize = 2;
        let hosts = Namespaces::new(RANKS)?;
        hosts.throttle(SLOW, "400kbit")?;
        let options = format!(
            "--duration 200 --least 3 --insecure --meet {}:{}",
            hosts.address(0),
            self.port
        );
        let commands = (0..RANKS).map(|rank| {
            let mut command = hosts.command(rank);
            command.arg(&self.gdr).arg("mesh");
            let mut command = self.rank(command, &options);
            command.envs(torchrun(rank, RANKS));
            command
        });
        let mut ranks = Ranks::start(&self.folder, commands)?;
        let judged = ranks.statuses(self.deadline).and_then(|statuses| {
            if statuses != [Some(2); RANKS] {
                bail!("the ranks ended with {statuses:?}");
            }
            let report = ranks.report()?;
            match (report.gap(RANKS), report.named()[..] == [SLOW]) {
                (Some(gap), _) => bail!("{gap}"),
                (None, true) => Ok(()),
                (None, false) => bail!("rank {SLOW} is not the outlier: {:?}", report.outliers),
            }
        });
        self.shown(judged, &ranks)
    }

    /// Runs a mesh in which a rank is killed between two rounds, or in one.
    fn killed(&self) -> anyhow::Result<()> {
        const RANKS: usize = 6;
        const VICTIM: usize = 3;
        let options = format!("--duration 1000 --least 0 --meet localhost:{}", self.port);
        let commands = (0..RANKS).map(|rank| {
            let mut command = self.rank(self.gdr(), &options);
            command.envs(torchrun(rank, RANKS));
            command
        });
        let mut ranks = Ranks::start(&self.folder, commands)?;
        let judged = self.after_kill(&mut ranks, VICTIM);
        self.shown(judged, &ranks)
    }

    fn after_kill(&self, ranks: &mut Ranks, victim: usize) -> anyhow::Result<()> {
        ranks.wait_for("half round 1 of", self.deadline)?;
        ranks.kill(victim)?;
        let statuses = ranks.statuses(self.deadline)?;
        for (rank, status) in statuses.iter().enumerate() {
            let expected = if rank == victim { None } else { Some(2) };
            if *status != expected {
                bail!("rank {rank} ended with {status:?}");
            }
        }
        let report = ranks.report()?;
        let name = format!("rank {victim} on ");
        let is_named =
            |reason: &Option<String>| reason.as_ref().is_some_and(|it| it.contains(&name));
        if report.passed || !report.outliers.iter().any(|it| is_named(&it.reason)) {
            bail!("rank {victim} is not named: {:?}", report.outliers);
        }
        // The others have measured with each other.
        let lost = report
            .cells
            .iter()
            .find(|cell| ![cell.from, cell.to].contains(&victim) && cell.gb_per_s.is_none());
        match lost {
            Some(cell) => bail!("rank {} to rank {} was not measured", cell.from, cell.to),
            None => Ok(()),
        }
    }

    fn shown(&self, judged: anyhow::Result<()>, ranks: &Ranks) -> anyhow::Result<()> {
        if judged.is_err() {
            ranks.print_ends();
        }
        judged
    }
}

/// Checks that every direction is measured, and nothing is an outlier.
fn whole(report: &ranks::Report, ranks: usize) -> anyhow::Result<()> {
    if let Some(gap) = report.gap(ranks) {
        bail!("{gap}");
    }
    if !report.passed {
        bail!("it did not pass: {:?}", report.outliers);
    }
    Ok(())
}

/// The variables that a launcher gives to a rank.
type Variables = fn(rank: usize, ranks: usize) -> Vec<(&'static str, String)>;

/// Variables that this machine may have set for this process.
const LAUNCHERS: [[&str; 4]; 3] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"],
    [
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        "SLURM_JOB_NODELIST",
    ],
    [
        "PMI_RANK",
        "PMI_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "JOB_COMPLETION_INDEX",
    ],
];

fn torchrun(rank: usize, ranks: usize) -> Vec<(&'static str, String)> {
    let [own, all, local, address] = LAUNCHERS[0];
    vec![
        (own, rank.to_string()),
        (all, ranks.to_string()),
        (local, rank.to_string()),
        (address, "127.0.0.1".to_owned()),
    ]
}

fn slurm(rank: usize, ranks: usize) -> Vec<(&'static str, String)> {
    let [own, all, local, hosts] = LAUNCHERS[1];
    vec![
        (own, rank.to_string()),
        (all, ranks.to_string()),
        (local, rank.to_string()),
        (hosts, "localhost".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(json: &str) -> ranks::Report {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_case_is_chosen_by_a_part_of_its_name() {
        let options = Options {
            filters: vec!["64".to_owned(), "Open MPI".to_owned()],
        };
        let cases: Vec<_> = options.cases().collect();
        assert_eq!(cases, [Case::Many, Case::OpenMpi]);
        assert_eq!(Options::all().cases().count(), Case::ALL.len());
    }

    #[test]
    fn a_report_is_whole_only_with_every_rank_and_direction() {
        let text = r#"{"passed": true, "ranks": 2, "members": [{"rank": 0}, {"rank": 1}],
            "cells": [{"from": 0, "to": 1, "gb_per_s": 1.5}, {"from": 1, "to": 0, "gb_per_s": 2.0}],
            "outliers": []}"#;
        whole(&report(text), 2).unwrap();
        for (part, other, words) in [
            (r#"{"rank": 1}"#, r#"{"rank": 2}"#, "of 2 ranks 2 joined"),
            ("2.0", "null", "rank 1 to rank 0 was not measured"),
            (r#""passed": true"#, r#""passed": false"#, "did not pass"),
        ] {
            let error = whole(&report(&text.replace(part, other)), 2).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        assert!(whole(&report(text), 3).is_err());
    }

    #[test]
    fn outliers_that_are_ranks_are_named() {
        let text = r#"{"passed": false, "ranks": 3, "members": [], "cells": [], "outliers": [
            {"outlier": "rank", "rank": 2, "side": "outgoing", "reason": null},
            {"outlier": "direction", "from": 0, "to": 1, "reason": null}]}"#;
        assert_eq!(report(text).named(), [2]);
    }
}
