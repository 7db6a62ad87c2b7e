//! `cargo xtask mutants`: mutation testing.
//!
//! Each entry of `tests/suites/mutations/*.toml` is a change that breaks a guarantee, with the tests that
//! must fail because of it. It is applied to a copy of the tree, never to the tree itself.
//! `--generated` runs the program `cargo-mutants`, which generates mutations.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;

use xtask_build::results::Outcome;
use xtask_build::workspace::{cargo, has_subcommand, root, succeed, target};

/// How long one command may take. A mutation whose tests take longer counts as killed.
const LIMIT: Duration = Duration::from_secs(600);

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Lists (file names without .toml) or names of entries to run; all if not given.
    only: Vec<String>,
    /// Only check that every entry still matches the tree.
    #[arg(long)]
    check: bool,
    /// Run cargo-mutants instead, with the settings of .cargo/mutants.toml.
    #[arg(long, conflicts_with = "check")]
    generated: bool,
    /// Arguments for cargo-mutants, after `--`.
    #[arg(last = true, requires = "generated", value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// A file of entries.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutation: Vec<Mutation>,
}

/// A change, and the tests that must fail because of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutation {
    name: String,
    /// What the mutated code does wrong.
    what: String,
    file: PathBuf,
    /// A text that occurs once in the file.
    old: String,
    new: String,
    /// Arguments of the `cargo test` that must fail.
    test: Vec<String>,
    /// A `--cfg` for the compiler: `loom` for the models.
    cfg: Option<String>,
    /// Why no test can fail because of it. Without a reason, a mutation that survives is a failure.
    survives: Option<String>,
}

impl Mutation {
    /// Returns the file's text with the change.
    fn apply(&self, tree: &Path) -> Result<String, Stale> {
        let text = fs::read_to_string(tree.join(&self.file)).map_err(|_| Stale::NoFile)?;
        match text.matches(&self.old).count() {
            1 => Ok(text.replacen(&self.old, &self.new, 1)),
            0 => Err(Stale::NoMatch),
            times => Err(Stale::Matches(times)),
        }
    }
}

/// Why an entry does not match the tree.
#[derive(Debug, PartialEq, Eq)]
enum Stale {
    NoFile,
    NoMatch,
    Matches(usize),
}

impl std::fmt::Display for Stale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoFile => write!(f, "the file does not exist"),
            Self::NoMatch => write!(f, "its old text does not occur in the file"),
            Self::Matches(times) => write!(f, "its old text occurs in the file {times} times"),
        }
    }
}

/// The result of a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MutantResult {
    /// A test failed.
    Killed,
    /// The tests did not end within [`LIMIT`].
    Hung,
    Survived,
    /// It survived, and the list has a reason.
    Allowed,
    /// It does not compile, which is a mistake in the list.
    Unviable,
}

/// Reads the lists, by name.
fn lists() -> anyhow::Result<BTreeMap<String, Vec<Mutation>>> {
    let folder = root().join("tests/suites/mutations");
    let mut lists = BTreeMap::new();
    for entry in fs::read_dir(&folder).context("tests/suites/mutations cannot be read")? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(&path)?;
        let list: List = toml::from_str(&text)
            .with_context(|| format!("{} is not a list of mutations", path.display()))?;
        lists.insert(name.into_owned(), list.mutation);
    }
    Ok(lists)
}

/// Checks that every entry matches the tree and that names are unique.
pub fn check() -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::Passed;
    let mut names = HashSet::new();
    for mutation in lists()?.into_values().flatten() {
        if let Err(stale) = mutation.apply(root()) {
            println!(
                "stale: {} ({}): {stale}",
                mutation.name,
                mutation.file.display()
            );
            outcome = Outcome::Failed;
        }
        if !names.insert(mutation.name.clone()) {
            println!("stale: there are two entries named {}", mutation.name);
            outcome = Outcome::Failed;
        }
    }
    Ok(outcome)
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if options.generated {
        return generated(&options.arguments);
    }
    if options.check {
        return Ok(match check()? {
            Outcome::Passed => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        });
    }
    let wanted = |list: &str, mutation: &Mutation| {
        let mut only = options.only.iter();
        options.only.is_empty() || only.any(|name| name == list || *name == mutation.name)
    };
    let mut chosen = lists()?;
    for (list, mutations) in &mut chosen {
        mutations.retain(|mutation| wanted(list, mutation));
    }
    chosen.retain(|_, mutations| !mutations.is_empty());
    if chosen.is_empty() {
        bail!("no list or entry has this name; the lists are in tests/suites/mutations");
    }
    let scratch = Scratch::new()?;
    let mut table = Table::default();
    // Run all of these before the first mutation, so that one build without changes serves them.
    let mut baselines = HashSet::new();
    for mutation in chosen.values().flatten() {
        if !baselines.insert((&mutation.test, &mutation.cfg)) {
            continue;
        }
        let ended = scratch.test("baseline", mutation, Phase::Run)?;
        let (arguments, log) = (mutation.test.join(" "), scratch.log("baseline"));
        if ended != Ended::Passed {
            let log = log.display();
            bail!("cargo test {arguments} fails without any mutation: {log}");
        }
        if !ran_any(&fs::read_to_string(&log)?) {
            bail!("cargo test {arguments} runs no test, so it would pass with every mutation");
        }
    }
    for (list, mutations) in &chosen {
        for mutation in mutations {
            let outcome = scratch.run(mutation)?;
            table.record(list, mutation, outcome);
        }
    }
    println!("\n{}", table.text());
    Ok(if table.failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns whether cargo's output shows at least one test.
fn ran_any(output: &str) -> bool {
    let run = |line: &str| line.starts_with("running ") && !line.starts_with("running 0 ");
    output.lines().any(run)
}

fn generated(arguments: &[String]) -> anyhow::Result<ExitCode> {
    if !has_subcommand("mutants") {
        bail!("cargo-mutants is not installed: cargo install cargo-mutants --locked");
    }
    let output = target().join("mutants/generated");
    fs::create_dir_all(&output)?;
    let mut command = cargo(&["mutants", "--workspace", "--output"]);
    command.arg(output).args(arguments);
    succeed(command)?;
    Ok(ExitCode::SUCCESS)
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Passed,
    Failed,
    Hung,
}

/// A copy of the tree, and its target folder. Both are kept for the next run.
struct Scratch {
    tree: PathBuf,
    target: PathBuf,
    logs: PathBuf,
}

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let folder = target().join("mutants");
        let scratch = Self {
            tree: folder.join("tree"),
            target: folder.join("target"),
            logs: folder.join("log"),
        };
        fs::create_dir_all(&scratch.tree)?;
        fs::create_dir_all(&scratch.logs)?;
        scratch.synchronize()?;
        Ok(scratch)
    }

    /// Updates the copy. Unchanged files keep their times, so that cargo builds only what changed.
    fn synchronize(&self) -> anyhow::Result<()> {
        let listed = files(
            root(),
            &[
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ],
        )?;
        for file in &listed {
            let (from, to) = (root().join(file), self.tree.join(file));
            // git lists a file that was deleted without `git rm`.
            let Ok(bytes) = fs::read(&from) else { continue };
            if fs::read(&to).is_ok_and(|old| old == bytes) {
                continue;
            }
            fs::create_dir_all(to.parent().unwrap_or(&self.tree))?;
            fs::write(&to, bytes)?;
            fs::set_permissions(&to, fs::metadata(&from)?.permissions())?;
        }
        let kept: HashSet<_> = listed
            .into_iter()
            .filter(|file| root().join(file).exists())
            .collect();
        remove_others(&self.tree, &self.tree, &kept)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.txt"))
    }

    /// Runs the tests of a mutation in the copy. Their output goes to the log of `name`.
    fn test(&self, name: &str, mutation: &Mutation, phase: Phase) -> anyhow::Result<Ended> {
        let log = fs::File::create(self.log(name))?;
        let mut command = cargo(&["test"]);
        if phase == Phase::Compile {
            command.arg("--no-run");
        }
        let mut target = self.target.clone();
        if let Some(cfg) = &mutation.cfg {
            command.env("RUSTFLAGS", format!("--cfg {cfg}"));
            target.push(cfg);
        }
        if !mutation.file.starts_with("crates/gdr-nic/src/wire/memory") {
            // The engine's behaviour over UDP only shows if no packet goes through shared memory.
            command.env("GDR_WIRE", "udp");
        }
        command
            .args(&mutation.test)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", target)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A process group, so that `wait` can end the processes that the tests start.
            .process_group(0);
        wait(command, LIMIT)
    }

    /// Applies a mutation, runs its tests and restores the file.
    fn run(&self, mutation: &Mutation) -> anyhow::Result<Result<MutantResult, Stale>> {
        let path = self.tree.join(&mutation.file);
        let mutated = match mutation.apply(&self.tree) {
            Ok(mutated) => mutated,
            Err(stale) => return Ok(Err(stale)),
        };
        let original = fs::read(&path)?;
        fs::write(&path, mutated)?;
        let ended = self.compile_and_run(mutation);
        fs::write(&path, original)?;
        Ok(Ok(match ended? {
            None => MutantResult::Unviable,
            Some(Ended::Failed) => MutantResult::Killed,
            Some(Ended::Hung) => MutantResult::Hung,
            Some(Ended::Passed) if mutation.survives.is_some() => MutantResult::Allowed,
            Some(Ended::Passed) => MutantResult::Survived,
        }))
    }

    /// Returns `None` if the mutation does not compile.
    fn compile_and_run(&self, mutation: &Mutation) -> anyhow::Result<Option<Ended>> {
        if self.test(&mutation.name, mutation, Phase::Compile)? != Ended::Passed {
            return Ok(None);
        }
        self.test(&mutation.name, mutation, Phase::Run).map(Some)
    }
}

/// How far tests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Compile,
    Run,
}

/// Waits for a command that leads a process group. After `limit` the whole group is killed.
fn wait(mut command: Command, limit: Duration) -> anyhow::Result<Ended> {
    let mut child = command.spawn().context("cargo cannot be started")?;
    let end = Instant::now() + limit;
    let status: ExitStatus = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= end {
            let group = rustix::process::Pid::from_child(&child);
            // Fails if the group has ended in the meantime.
            let _ended = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            child.wait()?;
            return Ok(Ended::Hung);
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    Ok(if status.success() {
        Ended::Passed
    } else {
        Ended::Failed
    })
}

/// Returns the files that a git command lists, each terminated by a NUL.
fn files(folder: &Path, arguments: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(folder)
        .output()
        .context("git cannot be started")?;
    if !output.status.success() {
        bail!("git: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(text.split_terminator('\0').map(PathBuf::from).collect())
}

fn remove_others(folder: &Path, tree: &Path, kept: &HashSet<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, tree, kept)?;
        } else if !path
            .strip_prefix(tree)
            .is_ok_and(|file| kept.contains(file))
        {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The results, by list.
#[derive(Debug, Default)]
struct Table {
    rows: BTreeMap<String, Row>,
    failures: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    killed: usize,
    survived: usize,
    allowed: usize,
    unviable: usize,
    stale: usize,
}

impl Table {
    fn record(&mut self, list: &str, mutation: &Mutation, outcome: Result<MutantResult, Stale>) {
        let row = self.rows.entry(list.to_owned()).or_default();
        let (word, count, failure) = match &outcome {
            Ok(MutantResult::Killed) => ("killed", &mut row.killed, false),
            Ok(MutantResult::Hung) => ("killed (it hung)", &mut row.killed, false),
            Ok(MutantResult::Survived) => ("SURVIVED", &mut row.survived, true),
            Ok(MutantResult::Allowed) => ("survived, as allowed", &mut row.allowed, false),
            Ok(MutantResult::Unviable) => {
                ("UNVIABLE: it does not compile", &mut row.unviable, true)
            }
            Err(_) => ("STALE", &mut row.stale, true),
        };
        *count += 1;
        self.failures += usize::from(failure);
        print!("{list:<10} {:<28} {word}", mutation.name);
        match (&outcome, &mutation.survives) {
            (Err(stale), _) => println!(": {stale}"),
            (Ok(MutantResult::Survived), _) => println!(": {}", mutation.what),
            (Ok(MutantResult::Allowed), Some(reason)) => println!(": {reason}"),
            (Ok(MutantResult::Killed | MutantResult::Hung), Some(_)) => {
                println!(": it does not survive: remove its reason")
            }
            _ => println!(),
        }
    }

    fn text(&self) -> String {
        let line = |name: &str, row: [String; 5]| {
            let [killed, survived, allowed, unviable, stale] = row;
            format!("{name:<12}{killed:>8}{survived:>10}{allowed:>9}{unviable:>10}{stale:>7}\n")
        };
        let head = ["killed", "survived", "allowed", "unviable", "stale"];
        let mut text = line("crate", head.map(str::to_owned));
        let mut sum = Row::default();
        for (name, row) in &self.rows {
            text += &line(name, row.cells());
            sum.killed += row.killed;
            sum.survived += row.survived;
            sum.allowed += row.allowed;
            sum.unviable += row.unviable;
            sum.stale += row.stale;
        }
        text + &line("all", sum.cells())
    }
}

impl Row {
    fn cells(&self) -> [String; 5] {
        [
            self.killed,
            self.survived,
            self.allowed,
            self.unviable,
            self.stale,
        ]
        .map(|count| count.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutation_of_the_lists_matches_the_tree() {
        assert_eq!(
            check().unwrap(),
            Outcome::Passed,
            "the entries printed are stale"
        );
    }

    fn mutation(old: &str) -> Mutation {
        Mutation {
            name: "test".to_owned(),
            what: "nothing".to_owned(),
            file: "file.rs".into(),
            old: old.to_owned(),
            new: "b".to_owned(),
            test: Vec::new(),
            cfg: None,
            survives: None,
        }
    }

    #[test]
    fn a_text_that_is_absent_or_ambiguous_is_stale() {
        let tree = tempfile::tempdir().unwrap();
        assert_eq!(mutation("a").apply(tree.path()), Err(Stale::NoFile));
        fs::write(tree.path().join("file.rs"), "a a c").unwrap();
        assert_eq!(mutation("a").apply(tree.path()), Err(Stale::Matches(2)));
        assert_eq!(mutation("d").apply(tree.path()), Err(Stale::NoMatch));
        assert_eq!(mutation("c").apply(tree.path()), Ok("a a b".to_owned()));
    }

    #[test]
    fn survivors_without_a_reason_and_stale_entries_are_failures() {
        let mut table = Table::default();
        for outcome in [
            Ok(MutantResult::Killed),
            Ok(MutantResult::Hung),
            Ok(MutantResult::Allowed),
        ] {
            table.record("one", &mutation("a"), outcome);
        }
        assert_eq!(table.failures, 0);
        for outcome in [
            Ok(MutantResult::Survived),
            Ok(MutantResult::Unviable),
            Err(Stale::NoMatch),
        ] {
            table.record("two", &mutation("a"), outcome);
        }
        assert_eq!(table.failures, 3);
        let text = table.text();
        let last: Vec<_> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["all", "2", "1", "1", "1", "1"]);
    }

    #[test]
    fn arguments_that_name_no_test_are_noticed() {
        let nothing = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed\n";
        assert!(!ran_any(nothing));
        assert!(ran_any(&format!("{nothing}running 1 test\n")));
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & wait"]).process_group(0);
        assert_eq!(wait(command, Duration::ZERO).unwrap(), Ended::Hung);
        assert_eq!(wait(Command::new("true"), LIMIT).unwrap(), Ended::Passed);
        assert_eq!(wait(Command::new("false"), LIMIT).unwrap(), Ended::Failed);
    }
}
