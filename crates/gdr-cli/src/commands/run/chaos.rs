//! `--chaos`: runs a program with misbehaving devices, and reports what struck it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use gdr_chaos::{Record, Scenario, ScenarioError, Strike};
use tempfile::TempDir;

use crate::exit::{Exit, UsageError};
use crate::progress;

/// The variables of the library.
const SCENARIO: &str = "GDR_CHAOS";
const LOG: &str = "GDR_CHAOS_LOG";
/// Extension of scenario files.
const TOML: &str = "toml";
/// Maximum number of strikes to print, unless they go to a file.
const PRINTED: usize = 50;

/// A scenario, and where to report its faults.
#[derive(Debug)]
pub(crate) struct ChaosRun {
    scenario: Scenario,
    log: PathBuf,
    /// Holds the log, unless the user named a file.
    folder: Option<TempDir>,
}

/// Why the scenario was not applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChaosError {
    /// The file of the scenario cannot be read.
    #[error("--chaos {}: {source}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The scenario file is invalid.
    #[error("--chaos {}: {error}", .path.display())]
    File {
        path: PathBuf,
        error: Box<ScenarioError>,
    },
    /// The scenario on the command line is invalid.
    #[error("--chaos: {0}")]
    Inline(Box<ScenarioError>),
    /// The log cannot be written or read.
    #[error("--chaos-log {}: {source}", .path.display())]
    Log { path: PathBuf, source: io::Error },
    /// No process opened one of gdr's devices.
    #[error(
        "the scenario was not applied, because no process opened one of gdr's devices; `gdr run --require-rdma` \
         shows how far each process got"
    )]
    NoDevice,
    /// Rules that select where to strike, but never did.
    #[error("the scenario was not fully applied: {} never struck, because nothing matched", .0.join(", "))]
    NeverStruck(Vec<String>),
}

impl ChaosError {
    /// Returns the status of `gdr run`.
    pub(crate) const fn exit(&self) -> Exit {
        match self {
            Self::Unreadable { .. } | Self::File { .. } | Self::Inline(_) => Exit::Usage,
            Self::Log { .. } => Exit::Launcher,
            Self::NoDevice | Self::NeverStruck(_) => Exit::NotMet,
        }
    }
}

/// Reads a scenario: a file whose name ends in `.toml`, or the inline form.
pub(crate) fn scenario(text: &str, seed: Option<u64>) -> Result<Scenario, ChaosError> {
    let path = Path::new(text);
    let mut scenario = if path.extension().is_some_and(|end| end == TOML) {
        let path = path.to_owned();
        let text = fs::read_to_string(&path).map_err(|source| ChaosError::Unreadable {
            path: path.clone(),
            source,
        })?;
        Scenario::parse_toml(&text).map_err(|error| ChaosError::File {
            path,
            error: Box::new(error),
        })?
    } else {
        Scenario::parse(text).map_err(|error| ChaosError::Inline(Box::new(error)))?
    };
    scenario.seed = seed.unwrap_or(scenario.seed);
    Ok(scenario)
}

/// What struck.
#[derive(Debug, Default)]
pub(crate) struct Strikes {
    pub(crate) devices: usize,
    pub(crate) all: Vec<Strike>,
}

impl ChaosRun {
    /// Prepares a run. `log` is the file that the user named.
    pub(crate) fn new(scenario: Scenario, log: Option<&Path>) -> Result<Self> {
        let (log, folder) = match log {
            Some(log) => (std::path::absolute(log)?, None),
            None => {
                let folder = tempfile::Builder::new().prefix("gdr-chaos-").tempdir()?;
                (folder.path().join("log"), Some(folder))
            }
        };
        File::create(&log).map_err(|source| ChaosError::Log {
            path: log.clone(),
            source,
        })?;
        if log.to_str().is_none() {
            return Err(
                UsageError("--chaos-log: the file name is not valid UTF-8".to_owned()).into(),
            );
        }
        Ok(Self {
            scenario,
            log,
            folder,
        })
    }

    /// Returns what the library has to know.
    pub(crate) fn variables(&self) -> [(&'static str, OsString); 2] {
        [
            (SCENARIO, self.scenario.to_string().into()),
            (LOG, self.log.clone().into()),
        ]
    }

    /// Reads what has struck so far.
    pub(crate) fn strikes(&self) -> Result<Strikes, ChaosError> {
        let bytes = fs::read(&self.log).map_err(|source| ChaosError::Log {
            path: self.log.clone(),
            source,
        })?;
        let mut strikes = Strikes::default();
        for line in String::from_utf8_lossy(&bytes).lines() {
            match Record::parse(line) {
                Some(Record::Begun { .. }) => strikes.devices += 1,
                Some(Record::Struck(strike)) => strikes.all.push(strike),
                None => {}
            }
        }
        Ok(strikes)
    }

    /// Prints what struck, after all processes have ended. Fails if the scenario was not applied.
    pub(crate) fn finish(&self) -> Result<(), ChaosError> {
        let strikes = self.strikes()?;
        let count = strikes.all.len();
        if self.folder.is_some() {
            for strike in strikes.all.iter().take(PRINTED) {
                progress::print_to_stderr(Record::Struck(strike.clone()));
            }
            if count > PRINTED {
                let more = count - PRINTED;
                progress::print_to_stderr(format_args!(
                    "gdr-chaos: {more} more; use --chaos-log FILE to keep all of them"
                ));
            }
        }
        let (s, devices) = (&self.scenario, strikes.devices);
        progress::print_to_stderr(format_args!(
            "gdr-chaos: {count} faults struck in {devices} devices; replay: --chaos '{s}'"
        ));
        let mut missing = Vec::new();
        for (number, rule) in self.scenario.rules.iter().enumerate() {
            let of_rule = strikes.all.iter().filter(|strike| strike.rule == number);
            let count = of_rule.count();
            progress::print_to_stderr(format_args!(
                "gdr-chaos: {count:>8} x rule {}: {rule}",
                number + 1
            ));
            if count == 0 && !rule.is_random() {
                missing.push(format!("rule {} ({})", number + 1, rule.fault));
            }
        }
        match (strikes.devices, missing.is_empty()) {
            (0, _) => Err(ChaosError::NoDevice),
            (_, false) => Err(ChaosError::NeverStruck(missing)),
            (_, true) => Ok(()),
        }
    }
}
