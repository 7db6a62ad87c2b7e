//! `cargo xtask peers`: the tests of other projects under `gdr run`, compared with the list `peers.toml`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use regex::Regex;
use serde::Deserialize;
use xtask_build::results::{Outcome, Results, Unavailable};
use xtask_build::workspace::target;

use crate::running::{Running, print_end};
use crate::verbs_programs::{Profile, Setup};

const LIST: &str = include_str!("peers.toml");
/// Start of the last line of `gdr trace --require-rdma` if a command line moved nothing through a device.
const NOT_MET: &str = "error: --require-rdma is not met";
/// A suite fails after this time.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// A suite within `cargo xtask test` fails after this time. It takes seconds.
const LIMIT_OF_STEP: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub struct Options {
    /// A suite of tests/suites/src/peers.toml; without it, the suites of Debian's packages.
    suite: Option<String>,
    /// Where you have built the project.
    #[arg(
        long,
        value_name = "DIR",
        requires = "suite",
        conflicts_with = "results"
    )]
    folder: Option<PathBuf>,
    /// What the suite has printed; it does not run then.
    #[arg(long, value_name = "FILE", requires = "suite")]
    results: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    suite: Vec<Suite>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Suite {
    name: String,
    title: String,
    source: Source,
    command: String,
    #[serde(default)]
    device: Place,
    #[serde(default)]
    ran: Option<Pattern>,
    #[serde(default)]
    passed: Option<Pattern>,
    failed: Pattern,
    #[serde(default)]
    skipped: Option<Pattern>,
    least: usize,
    #[serde(default)]
    gap: Vec<Gap>,
    #[serde(default)]
    skip: Vec<Skip>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Source {
    /// From the packages of `cargo xtask verbs-programs`.
    Debian,
    /// From where the user has built it.
    Folder,
}

/// Where the device of a suite is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Place {
    #[default]
    Loopback,
    /// On the interface of the route to other hosts, because libfabric leaves out the loopback interface.
    Interface,
}

impl Place {
    fn address(self) -> anyhow::Result<IpAddr> {
        /// An address for documentation (RFC 5737). Nothing is sent to it.
        const ELSEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(198, 51, 100, 1), 9);
        if self == Self::Loopback {
            return Ok(Ipv4Addr::LOCALHOST.into());
        }
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket
            .connect(ELSEWHERE)
            .context("no interface has a route to other hosts")?;
        Ok(socket.local_addr()?.ip())
    }
}

/// Tests that fail.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gap {
    test: Pattern,
    why: String,
    #[serde(default)]
    sometimes: bool,
}

/// Tests that skip themselves.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Skip {
    reason: Pattern,
    tests: usize,
    why: String,
    #[serde(default)]
    sometimes: bool,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Pattern(Regex);

impl TryFrom<String> for Pattern {
    type Error = regex::Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Regex::new(&text).map(Self)
    }
}

impl Pattern {
    /// Returns the first group that each match has.
    fn all<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let found = self.0.captures_iter(text);
        let groups = found.filter_map(|it| it.iter().skip(1).flatten().next());
        groups.map(|group| group.as_str()).collect()
    }
}

impl Suite {
    /// Returns what is not as the list has it.
    fn differences(&self, output: &str) -> anyhow::Result<Vec<String>> {
        let skipped = self.skipped.iter().flat_map(|it| it.all(output));
        let (mut failed, skipped) = (self.failed.all(output), skipped.collect::<Vec<_>>());
        failed.sort_unstable();
        failed.dedup();
        let passed = match (&self.ran, &self.passed) {
            (Some(ran), _) => {
                let ran = ran.all(output);
                let ran: usize = ran.last().context("its end is missing")?.parse()?;
                ran.saturating_sub(failed.len() + skipped.len())
            }
            (None, Some(passed)) => passed.all(output).len(),
            (None, None) => bail!("{} has no pattern of what passed", self.name),
        };
        let (failures, skips) = (failed.len(), skipped.len());
        println!("{}", self.title);
        println!("{passed} passed, {failures} failed, {skips} skipped");
        let mut differences = Vec::new();
        if output.contains(NOT_MET) {
            differences.push("it moved no bytes by its device".to_owned());
        }
        for test in &failed {
            match self.gap.iter().find(|gap| gap.test.0.is_match(test)) {
                Some(gap) => println!("known gap: {test}: {}", gap.why),
                None => differences.push(format!("{test} failed, which is not in the list")),
            }
        }
        for gap in self.gap.iter().filter(|gap| !gap.sometimes) {
            if !failed.iter().any(|test| gap.test.0.is_match(test)) {
                let test = gap.test.0.as_str();
                differences.push(format!("{test} did not fail: remove it from the list"));
            }
        }
        for reason in &skipped {
            let is_known = |skip: &Skip| skip.reason.0.is_match(reason);
            if !self.skip.is_empty() && !self.skip.iter().any(is_known) {
                differences.push(format!("skipped, which is not in the list: {reason}"));
            }
        }
        for skip in &self.skip {
            let found = skipped.iter().filter(|it| skip.reason.0.is_match(it));
            let (found, expected) = (found.count(), skip.tests);
            println!("{found} skipped: {}", skip.why);
            if found > expected || found < expected && !skip.sometimes {
                let reason = skip.reason.0.as_str();
                differences.push(format!("{reason}: {found} skipped, {expected} in the list"));
            }
        }
        if passed < self.least {
            differences.push(format!("{passed} passed, {} in the list", self.least));
        }
        Ok(differences)
    }

    fn judge(&self, output: &Path) -> anyhow::Result<Outcome> {
        let bytes = fs::read(output).with_context(|| output.display().to_string())?;
        let differences = self.differences(&String::from_utf8_lossy(&bytes))?;
        for difference in &differences {
            println!("{}: {difference}", self.name);
        }
        Ok(match differences.is_empty() {
            true => Outcome::Passed,
            false => Outcome::Failed,
        })
    }

    /// Runs it in a folder under `gdr run`.
    fn run(&self, mut shell: Command, folder: &Path, limit: Duration) -> anyhow::Result<Outcome> {
        let output = target().join(format!("{}.log", self.name));
        shell.current_dir(folder);
        let mut running = Running::start(shell, output.clone())?;
        // Its status says whether any test failed, which the list already covers.
        if running.status(Instant::now() + limit)?.is_none() {
            println!("{}: did not end in {} s", self.name, limit.as_secs());
            print_end(&self.name, &output);
            return Ok(Outcome::Failed);
        }
        let outcome = self.judge(&output)?;
        if outcome == Outcome::Failed {
            println!("{}: its output is in {}", self.name, output.display());
        }
        Ok(outcome)
    }

    fn line(&self, setup: &Setup) -> String {
        self.command.replace("ADDRESS", &setup.address.to_string())
    }
}

fn list() -> anyhow::Result<List> {
    toml::from_str(LIST).context("tests/suites/src/peers.toml")
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    let Some(name) = &options.suite else {
        record(&mut results);
        return Ok(results.close());
    };
    let list = list()?;
    let suite = list.suite.iter().find(|suite| suite.name == *name);
    let suite = suite.with_context(|| format!("the list has no suite {name}"))?;
    results.check(&suite.name, || match (&options.results, &options.folder) {
        (Some(output), _) => suite.judge(output),
        (None, Some(folder)) => {
            let setup = Setup::prepare(Profile::Dev, suite.device.address()?)?;
            let mut shell = setup.shell(&suite.line(&setup));
            shell.env_remove("LD_LIBRARY_PATH").env("GDR", &setup.gdr);
            suite.run(shell, folder, LIMIT)
        }
        (None, None) if suite.source == Source::Debian => debian(suite),
        (None, None) => bail!("--folder or --results is needed for {name}"),
    });
    Ok(results.close())
}

/// Runs the suites of Debian's packages, or names them.
pub fn record(results: &mut Results) {
    results.check("tests of other projects", || {
        for suite in list()?
            .suite
            .iter()
            .filter(|it| it.source == Source::Debian)
        {
            match debian(suite) {
                Ok(Outcome::Passed) => {}
                Ok(other) => return Ok(other),
                Err(error) => return Outcome::of_error(error),
            }
        }
        Ok(Outcome::Passed)
    });
}

/// Runs rdma-core's Python tests as Debian has them: their documentation, partly compressed.
fn debian(suite: &Suite) -> anyhow::Result<Outcome> {
    if !rustix::process::geteuid().is_root() {
        return Err(Unavailable::new("its raw packets are root's").into());
    }
    let setup = Setup::prepare_at_loopback(Profile::Dev)?;
    let folder = target().join("peers");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
    let packages = setup.packages();
    let unpacked = Command::new("sh")
        .args(["-c", "cp -r \"$0\" . && gzip -d -r ."])
        .arg(packages.join("usr/share/doc/rdma-core/tests"))
        .current_dir(&folder)
        .status()?;
    if !unpacked.success() {
        bail!("the tests of {} cannot be unpacked", suite.name);
    }
    let modules = packages.join("usr/lib/python3/dist-packages");
    let mut import = setup.shell("python3 -c 'import pyverbs.device'");
    let imported = import.env("PYTHONPATH", &modules).output()?;
    if !imported.status.success() {
        let reason = "python3 does not load Debian's pyverbs, which is for Python 3.11";
        return Err(Unavailable::new(reason).into());
    }
    let mut shell = setup.shell(&suite.line(&setup));
    shell.env("PYTHONPATH", &modules);
    suite.run(shell, &folder, LIMIT_OF_STEP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page;

    fn suite(gap: &str, skip: &str) -> Suite {
        let text = format!(
            "[[suite]]\nname = 'a'\ntitle = 'A'\nsource = 'folder'\ncommand = 'a'\nleast = 1\n\
             passed = '(?m)^ok (\\S+)'\nfailed = '(?m)^no (\\S+)'\nskipped = '(?m)^skipped (.+)'\n{gap}\n{skip}"
        );
        let mut list: List = toml::from_str(&text).unwrap();
        list.suite.remove(0)
    }

    #[test]
    fn a_gap_that_opens_or_closes_is_a_difference() {
        let none = suite("", "");
        let gap = "[[suite.gap]]\ntest = '^b$'\nwhy = 'it does'";
        let skip = "[[suite.skip]]\nreason = 'no GPU'\ntests = 1\nwhy = 'it has none'";
        let [one, sometimes] = ["", "\nsometimes = true"]
            .map(|often| suite(&format!("{gap}{often}"), &format!("{skip}{often}")));
        let as_expected = |suite: &Suite, output| suite.differences(output).unwrap().is_empty();
        assert!(as_expected(&none, "ok a\nok b\n"));
        assert!(!as_expected(&none, "ok a\nno b\n"));
        assert!(!as_expected(
            &none,
            "ok a\nerror: --require-rdma is not met: process 1 moved nothing\n"
        ));
        // Fewer tests than before.
        assert!(!as_expected(&none, ""));
        assert!(as_expected(&one, "ok a\nno b\nskipped no GPU\n"));
        assert!(!as_expected(&one, "ok a\nno bb\nno b\nskipped no GPU\n"));
        assert!(!as_expected(&one, "ok a\nok b\nskipped no GPU\n"));
        assert!(!as_expected(&one, "ok a\nno b\n"));
        assert!(!as_expected(
            &one,
            "ok a\nno b\nskipped no GPU\nskipped no GPU\n"
        ));
        assert!(!as_expected(
            &one,
            "ok a\nno b\nskipped no GPU\nskipped no NIC\n"
        ));
        assert!(as_expected(&sometimes, "ok a\nok b\n"));
    }

    #[test]
    fn results_are_read_as_each_suite_prints_them() {
        let list = list().unwrap();
        let found = |name: &str| list.suite.iter().find(|it| it.name == name).unwrap();
        let names = |pattern: &Option<Pattern>, text: &str| {
            let found = pattern.as_ref().unwrap().all(text);
            found.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let fabtests = "- name:   fi_cm_data -s A\n  timestamp: 20261128-1\n  result: Pass\n  time:   1\n\
                        - name:   fi_msg_sockets\n  result: Fail\n  time:   1\n";
        assert_eq!(
            names(&found("fabtests").passed, fabtests),
            ["fi_cm_data -s A"]
        );
        assert_eq!(found("fabtests").failed.all(fabtests), ["fi_msg_sockets"]);
        let gtest = "[==========] Running 3 tests from 2 test suites.\n[  FAILED  ] rc_verbs/test.b/0, where x (4 ms)\n\
                     [     SKIP ] (no IB)\n[       OK ] ud_verbs/test.a/0 (3 ms)\n\
                     [==========] 3 tests from 2 test suites ran. (9 ms total)\n[  FAILED  ] 1 test, listed below:\n";
        let ucx = found("ucx");
        assert_eq!(ucx.failed.all(gtest), ["rc_verbs/test.b/0"]);
        assert_eq!(names(&ucx.skipped, gtest), ["(no IB)"]);
        assert_eq!(names(&ucx.ran, gtest), ["3"]);
        let unittest =
            "FAIL: test_a (tests.test_x.Y)\ntest_b (tests.c) ... skipped 'no'\nRan 9 tests in 1s\n";
        let pyverbs = found("pyverbs");
        assert_eq!(pyverbs.failed.all(unittest), ["test_a"]);
        assert_eq!(names(&pyverbs.skipped, unittest), ["no"]);
        assert_eq!(names(&pyverbs.ran, unittest), ["9"]);
    }

    #[test]
    fn the_page_lists_every_suite() {
        let row = |suite: &Suite| {
            let gaps = suite.gap.iter().map(|gap| {
                let often = if gap.sometimes { "sometimes " } else { "" };
                format!("{often}`{}`: {}", gap.test.0, gap.why)
            });
            let skips = suite
                .skip
                .iter()
                .map(|it| format!("{} {}", it.tests, it.why));
            let cells = [gaps.collect::<Vec<_>>(), skips.collect()];
            let [gaps, skips] = cells.map(|cell| cell.join("; ").replace('|', "\\|"));
            let Suite {
                name, title, least, ..
            } = suite;
            format!("| `{name}` | {title} | {least} | {gaps} | {skips} |\n")
        };
        let rows: String = list().unwrap().suite.iter().map(row).collect();
        let head =
            "| suite | tests | pass, at least | fail | skip themselves |\n|---|---|---|---|---|\n";
        page::check_or_write("peers", &format!("{head}{rows}"));
    }
}
