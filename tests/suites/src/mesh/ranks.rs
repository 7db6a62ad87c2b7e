//! Processes that are the ranks of one `gdr mesh`, and the report of rank 0.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::running::{Running, print_end};

/// How often to check whether rank 0 has written a line, which nothing announces.
const LINE_INTERVAL: Duration = Duration::from_millis(5);

/// The ranks, killed when this is dropped.
pub(super) struct Ranks {
    folder: PathBuf,
    all: Vec<Running>,
}

/// The judged parts of rank 0's report.
#[derive(Debug, Deserialize)]
pub(super) struct Report {
    pub(super) passed: bool,
    pub(super) ranks: usize,
    pub(super) members: Vec<Member>,
    pub(super) cells: Vec<Cell>,
    pub(super) outliers: Vec<Outlier>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Member {
    pub(super) rank: usize,
}

#[derive(Debug, Deserialize)]
pub(super) struct Cell {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) gb_per_s: Option<f64>,
}

/// An outlier. `rank` is set if a whole rank is the outlier.
#[derive(Debug, Deserialize)]
pub(super) struct Outlier {
    pub(super) rank: Option<usize>,
    pub(super) reason: Option<String>,
}

impl Ranks {
    /// Starts a process for each command, with its output going to files in a folder.
    pub(super) fn start(
        folder: &Path,
        commands: impl IntoIterator<Item = Command>,
    ) -> anyhow::Result<Self> {
        let mut ranks = Self {
            folder: folder.to_owned(),
            all: Vec::new(),
        };
        for (rank, mut command) in commands.into_iter().enumerate() {
            command.env("GDR_LOG", "gdr=info");
            let output = ranks.file(rank, "json");
            let output = File::create(&output).with_context(|| output.display().to_string())?;
            let messages = ranks.file(rank, "log");
            let messages =
                File::create(&messages).with_context(|| messages.display().to_string())?;
            ranks
                .all
                .push(Running::start_with(command, output, messages)?);
        }
        Ok(ranks)
    }

    /// Returns what a rank prints: its report, or its messages.
    fn file(&self, rank: usize, extension: &str) -> PathBuf {
        self.folder.join(format!("rank{rank}.{extension}"))
    }

    /// Waits until rank 0 has written a message with these words.
    pub(super) fn wait_for(&mut self, words: &str, deadline: Instant) -> anyhow::Result<()> {
        let file = self.file(0, "log");
        loop {
            let text = fs::read(&file).with_context(|| file.display().to_string())?;
            if String::from_utf8_lossy(&text).contains(words) {
                return Ok(());
            }
            let next = Instant::now() + LINE_INTERVAL;
            if self.all[0].has_ended(next)? || next > deadline {
                bail!("rank 0 did not write `{words}`");
            }
        }
    }

    /// Kills a rank.
    pub(super) fn kill(&mut self, rank: usize) -> anyhow::Result<()> {
        self.all[rank].kill()
    }

    /// Waits until every rank has ended; returns their exit statuses, `None` for a killed rank.
    pub(super) fn statuses(&mut self, deadline: Instant) -> anyhow::Result<Vec<Option<i32>>> {
        let ranks = self.all.iter_mut().enumerate();
        ranks
            .map(|(number, rank)| match rank.status(deadline)? {
                Some(status) => Ok(status.code()),
                None => bail!("rank {number} did not end"),
            })
            .collect()
    }

    /// Waits until rank 0 has ended; returns its report.
    pub(super) fn report(&self) -> anyhow::Result<Report> {
        report(&self.file(0, "json"))
    }

    /// Prints the last lines of some ranks.
    pub(super) fn print_ends(&self) {
        /// More are useless.
        const MOST: usize = 3;
        for rank in 0..self.all.len().min(MOST) {
            print_end(&format!("rank {rank}"), &self.file(rank, "log"));
        }
    }
}

/// Reads the report in a file.
pub(super) fn report(file: &Path) -> anyhow::Result<Report> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    serde_json::from_str(&text).with_context(|| format!("{} has no report", file.display()))
}

impl Report {
    /// Returns what is wrong with a report in which every direction between `ranks` ranks should be measured.
    pub(super) fn gap(&self, ranks: usize) -> Option<String> {
        let joined: Vec<usize> = self.members.iter().map(|member| member.rank).collect();
        if self.ranks != ranks || joined != (0..ranks).collect::<Vec<_>>() {
            return Some(format!("of {} ranks {} joined", self.ranks, joined.len()));
        }
        let directions = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
        let mut missing = directions.filter(|(from, to)| {
            let is_it = |cell: &Cell| (cell.from, cell.to) == (*from, *to);
            let measured = |cell: &Cell| cell.gb_per_s.is_some_and(|rate| rate > 0.0);
            from != to && !self.cells.iter().any(|cell| is_it(cell) && measured(cell))
        });
        missing
            .next()
            .map(|(from, to)| format!("rank {from} to rank {to} was not measured"))
    }

    /// Returns the ranks that are outliers as a whole.
    pub(super) fn named(&self) -> Vec<usize> {
        self.outliers.iter().filter_map(|it| it.rank).collect()
    }
}
