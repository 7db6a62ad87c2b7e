//! `cargo xtask verbs-programs`: Debian's unmodified libibverbs programs, with gdr's verbs library.
//!
//! perftest, the examples of libibverbs and librdmacm, and UCX come from Debian's packages, which are unpacked into the
//! cache folder. Each case runs a program twice under `gdr run`, as server and client on one loopback address, and
//! passes if both exit with 0. Some also run under `gdr trace`, whose report must match the counters of gdr's engine.

mod traced;

use std::fs::{self, File};
use std::iter::Peekable;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::str::Split;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::running::{Running, ServerEnd, free_port, print_end, serve};
use xtask_build::packages::{Apt, cache, locked, once};
use xtask_build::results::{Outcome, Results, Unavailable};
use xtask_build::verbs_library;
use xtask_build::workspace::{self, PROFILE, root, succeed, target};

/// Debian's packages of the programs, of the libraries that perftest and UCX are linked with, and of the tests that
/// `cargo xtask peers` runs.
const PACKAGES: [&str; 8] = [
    "busybox-static",
    "libibverbs-dev",
    "perftest",
    "ibverbs-utils",
    "ibverbs-providers",
    "rdmacm-utils",
    "ucx-utils",
    "python3-pyverbs",
];
/// The package without which there is nothing to run.
const PROGRAMS: &str = "perftest";
/// The program of docs/ten-minutes.md, compiled as on the page.
const PAGE: &str = "ten-minutes";
/// Address of both ends.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// A case fails after this time. The longest takes some seconds.
const LIMIT: Duration = Duration::from_secs(40);

/// perftest's local ACK timeout: one second. With its default of 67 ms, a connection ends if its peer gets no CPU for
/// half a second, as happens on two CPUs with other load.
const ACK_TIMEOUT: &str = "18";

/// It has no option for the port.
const PORT_OF_UDADDY: u16 = 7174;
/// RoCE's.
const UDP_PORT: u16 = 4791;

/// Command lines, preceded by environment variables and an option of `gdr run`. Lines without a port run alone, the
/// others as server and client; if these have different options, they are the two halves of a line. `ADDRESS`, `PORT`
/// and `FILE` are replaced.
const CASES: &[&str] = &[
    PAGE,
    "ibv_devices",
    "ibv_devinfo -v",
    "ibv_rc_pingpong -g 0 -c",
    "ibv_rc_pingpong -g 0 -c -e",
    "ibv_rc_pingpong -g 0 -c -s 1000000 -n 50",
    "ibv_srq_pingpong -g 0",
    "ibv_srq_pingpong -g 0 -e",
    "ibv_ud_pingpong -g 0 -s 1024",
    "ibv_uc_pingpong -g 1",
    "ibv_xsrq_pingpong -g 0",
    "ib_write_bw -F -a -n 5",
    "ib_write_bw -F -b -n 500",
    "ib_write_bw -F -q 4 -x 0 -n 500",
    "ib_write_bw -F -x 3 -n 500",
    "ib_write_bw -F -I 64 -s 64 -n 1000",
    "ib_write_bw -F -c UC -n 500",
    "ib_write_lat -F -c UC -s 64 -n 200",
    "ib_write_lat -F -s 65536 -n 200",
    "ib_write_lat -F -I 64 -s 64 -n 500",
    "ib_read_bw -F -a -n 5",
    "ib_read_bw -F -b -q 4 -n 500",
    "ib_read_bw -F -e -n 500",
    "ib_read_lat -F -a -n 5",
    "ib_read_lat -F -e -n 200",
    "ib_send_bw -F -a -n 5",
    "ib_send_bw -F -b -q 4 -n 500",
    "ib_send_bw -F -e -n 500",
    "ib_send_bw -F --use-srq -q 2 -n 500",
    "ib_send_bw -F -c UD -s 1024 -n 500",
    "ib_send_bw -F -c UC -s 1024 -n 500",
    "ib_send_lat -F -s 65536 -n 200",
    "ib_send_lat -F -e -I 64 -s 64 -n 200",
    "ib_send_lat -F --use-srq -n 200",
    "ib_send_lat -F -c UC -s 64 -n 200",
    "ib_send_lat -F -c UD -x 1 -s 64 -n 200",
    "ib_atomic_bw -F -n 500",
    "ib_atomic_bw -F -A CMP_AND_SWAP -q 4 -n 500",
    "ib_atomic_bw -F -b -n 500",
    "ib_atomic_lat -F -n 200",
    "ib_atomic_lat -F -e -A CMP_AND_SWAP -n 200",
    // Without the installed libibverbs, whose private functions other libraries need.
    "--only-soft ibv_devinfo -v",
    // Statically linked.
    "--mount busybox ls /sys/class/infiniband/gdr0/ports",
    "--only-soft ibv_rc_pingpong -g 0 -c -e",
    "--only-soft ib_write_bw -F -q 4 -n 500",
    "--only-soft ib_send_lat -F --use-srq -n 200",
    "ib_write_bw -F -R -q 4 -n 500",
    "ib_read_bw -F -z -n 500",
    "ib_send_bw -F -R -c UD -s 1024 -n 500",
    "ib_send_lat -F -R -n 200",
    "ib_atomic_bw -F -R -n 500",
    "--only-soft rping -s -a ADDRESS -p PORT -V -C 20 -S 4000 | --only-soft rping -c -a ADDRESS -p PORT -V -C 20 -S 4000",
    "ucmatose -b ADDRESS -p PORT -c 4 -C 10 -S 3000 | ucmatose -s ADDRESS -p PORT -c 4 -C 10 -S 3000",
    "udaddy -b ADDRESS -c 4 -C 10 -S 1000 | udaddy -s ADDRESS -c 4 -C 10 -S 1000",
    "rdma_server -p PORT | rdma_client -p PORT -s ADDRESS",
    "rdma_xserver -p PORT | rdma_xclient -p PORT -s ADDRESS",
    "rdma_xserver -c x -p PORT | rdma_xclient -c x -p PORT -s ADDRESS",
    "rstream -b ADDRESS -p PORT -T v -S 64 -C 10 -I 100 | rstream -s ADDRESS -p PORT -T v -S 64 -C 10 -I 100",
    "rstream -b ADDRESS -p PORT -T b -S 200000 -C 10 -I 10 | rstream -s ADDRESS -p PORT -T b -S 200000 -C 10 -I 10",
    "riostream -b ADDRESS -p PORT -S 1000 -C 10 -I 10 | riostream -s ADDRESS -p PORT -S 1000 -C 10 -I 10",
    "rcopy -p PORT | rcopy /etc/passwd ADDRESS:FILE -p PORT",
    "cmtime -b ADDRESS -p PORT -c 20 | cmtime -s ADDRESS -p PORT -c 20",
    "mckey -m 239.1.1.1 -b ADDRESS -C 5 | mckey -m 239.1.1.1 -b ADDRESS -s -C 5",
    "ucx_info -d",
    "UCX_TLS=rc_v ucx_perftest -t tag_lat -s 8 -n 200 -w 10",
    "UCX_TLS=rc_v ucx_perftest -t tag_bw -s 300000 -n 100 -w 10",
    "UCX_TLS=rc_v ucx_perftest -t ucp_put_lat -s 8 -n 200 -w 10",
    "UCX_TLS=rc_v ucx_perftest -t ucp_put_bw -s 300000 -n 100 -w 10",
    "UCX_TLS=rc_v ucx_perftest -t ucp_get -s 300000 -n 100 -w 10",
    "UCX_TLS=rc_v ucx_perftest -t ucp_fadd -s 8 -n 100 -w 10",
    "UCX_TLS=rc_v ucx_perftest -t ucp_cswap -s 8 -n 100 -w 10",
    "UCX_TLS=rc_v ucx_perftest -t ucp_am_bw -s 300000 -n 100 -w 10",
    "UCX_TLS=rc_v ucx_perftest -t stream_bw -s 300000 -n 100 -w 10",
    "UCX_TLS=ud_v ucx_perftest -t tag_lat -s 8 -n 200 -w 10",
    "UCX_TLS=ud_v ucx_perftest -t tag_bw -s 300000 -n 50 -w 10",
    "UCX_TLS=ud_v ucx_perftest -t ucp_put_bw -s 4096 -n 100 -w 10",
    "UCX_TLS=ud_v ucx_perftest -t ucp_am_bw -s 4096 -n 100 -w 10",
    "UCX_TLS=ud_v ucx_perftest -t stream_bw -s 4096 -n 100 -w 10",
];

/// Command lines that also run under `gdr trace`.
const TRACED: &[&str] = &[
    "ibv_rc_pingpong -g 0 -c",
    "ibv_srq_pingpong -g 0",
    "ibv_ud_pingpong -g 0 -s 1024",
    "ib_write_bw -F -q 4 -n 500",
    "ib_write_bw -F -c UC -n 500",
    "ib_read_bw -F -b -q 4 -n 500",
    "ib_send_bw -F -a -n 5",
    "ib_send_bw -F --use-srq -q 2 -n 500",
    "ib_send_lat -F -e -I 64 -s 64 -n 200",
    "ib_atomic_bw -F -n 500",
    "--only-soft ib_write_bw -F -q 4 -n 500",
    "UCX_TLS=rc_v ucx_perftest -t ucp_put_bw -s 300000 -n 100 -w 10",
];

/// A command line, and whether it runs under `gdr trace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case<'a> {
    Plain(&'a str),
    Traced(&'a str),
}

impl<'a> Case<'a> {
    const fn line(self) -> &'a str {
        match self {
            Self::Plain(line) | Self::Traced(line) => line,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Plain(line) => format!("verbs program {line}"),
            Self::Traced(line) => format!("traced verbs program {line}"),
        }
    }
}

/// Text that programs must print, besides exiting with 0: UCX leaves out devices that it cannot use.
const EXPECTED: [(&str, [&str; 3]); 2] = [
    (
        "ucx_info -d",
        [
            "Transport: rc_verbs",
            "Transport: ud_verbs",
            "Device: gdr0:1",
        ],
    ),
    (
        PAGE,
        [
            "with the key:  success",
            "these bytes went through a queue pair",
            "with another:  remote access error",
        ],
    ),
];

/// What the library does not support yet: command lines that begin with this fail. If one passes, that is an error, so
/// that this list stays true.
const GAPS: [(&str, &str); 0] = [];

/// Programs that run alone.
const ALONE: [&str; 5] = ["busybox", "ibv_devices", "ibv_devinfo", "ucx_info", PAGE];
/// Servers that do not end with their client.
const SERVING_ON: [&str; 2] = ["cmtime", "rcopy"];

/// Which command lines to run.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Run only cases whose name contains one of these, such as `traced` or a part of a command line.
    filters: Vec<String>,
}

impl Options {
    /// Returns all command lines.
    pub const fn all() -> Self {
        Self {
            filters: Vec::new(),
        }
    }

    fn cases(&self) -> impl Iterator<Item = Case<'static>> {
        let plain = CASES.iter().copied().map(Case::Plain);
        let traced = TRACED.iter().copied().map(Case::Traced);
        plain.chain(traced).filter(|case| {
            let name = case.name();
            self.filters.is_empty() || self.filters.iter().any(|it| name.contains(it.as_str()))
        })
    }
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    record(&mut results, options);
    Ok(results.close())
}

/// Compares the reports and counters in a folder.
pub fn traced(folder: &Path) -> anyhow::Result<ExitCode> {
    match traced::difference(folder)? {
        None => println!("gdr trace reported what the engine counted"),
        Some(difference) => anyhow::bail!(difference),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the programs and records the outcome of each. Without them each is skipped.
pub fn record(results: &mut Results, options: &Options) {
    results.section("verbs programs", |results| cases(results, options));
}

fn cases(results: &mut Results, options: &Options) {
    let prepared = Setup::prepare_at_loopback(Profile::Dev);
    for case in options.cases() {
        let name = case.name();
        let outcome = match &prepared {
            Ok(setup) => match judge(case.line(), setup.passes(case)) {
                // Its two processes share the cores with everything else that runs.
                Outcome::Failed => {
                    println!("once more: {name}");
                    let again = judge(case.line(), setup.passes(case));
                    if again == Outcome::Passed {
                        results.passed_again(&name);
                    }
                    again
                }
                outcome => outcome,
            },
            Err(error) => match error.downcast_ref::<Unavailable>() {
                Some(unavailable) => Outcome::Skipped {
                    reason: unavailable.to_string(),
                },
                None => {
                    println!("{name}: {error:#}");
                    Outcome::Failed
                }
            },
        };
        results.record(&name, outcome);
    }
}

/// Returns the outcome of a case that passed, or not.
fn judge(line: &str, passed: anyhow::Result<bool>) -> Outcome {
    let gap = GAPS.iter().find(|(start, _)| line.starts_with(start));
    match (passed, gap) {
        (Ok(true), None) => Outcome::Passed,
        (Ok(true), Some((start, _))) => {
            println!("`{line}` passes: remove `{start}` from the list of gaps");
            Outcome::Failed
        }
        (Ok(false), Some((_, gap))) => Outcome::Skipped {
            reason: format!("known gap: {gap}"),
        },
        (Ok(false), None) => Outcome::Failed,
        (Err(error), _) => {
            println!("{line}: {error:#}");
            Outcome::Failed
        }
    }
}

/// A profile of cargo.
#[derive(Clone, Copy, Debug)]
pub enum Profile {
    /// The profile in which `cargo xtask test` builds everything else.
    Dev,
    /// The one to measure.
    Release,
}

/// The programs, the library and the `gdr` command.
pub struct Setup {
    /// Where the packages are unpacked.
    root: PathBuf,
    pub gdr: PathBuf,
    /// Where the library is, and where the programs' output goes.
    folder: PathBuf,
    /// Of the device of both ends.
    pub address: IpAddr,
}

impl Setup {
    /// Like [`Setup::prepare`], for devices at 127.0.0.1.
    pub fn prepare_at_loopback(profile: Profile) -> anyhow::Result<Self> {
        Self::prepare(profile, ADDRESS)
    }

    /// Fetches the programs, and builds the library and the command in a profile of cargo.
    pub fn prepare(profile: Profile, address: IpAddr) -> anyhow::Result<Self> {
        let cache = cache();
        let _lock = locked(&cache)?;
        let folder = cache.join("programs");
        let root = once(&folder, &format!("{PACKAGES:?}"), |root| {
            let apt = Apt::fetch_lists(&cache.join("apt"))?;
            if !apt.has(PROGRAMS)? {
                let reason = format!("apt's sources have no {PROGRAMS} (no network?)");
                return Err(Unavailable::new(reason).into());
            }
            let mut names = apt.with_libraries(&PACKAGES)?;
            // The host's dynamic loader needs the host's libc.
            names.retain(|name| name != "libc6");
            apt.unpack(&names, root)
        })?;
        let (profile, folder) = match profile {
            Profile::Dev => ("dev", "verbs-programs"),
            Profile::Release => (PROFILE, "verbs-bench"),
        };
        let folder = target().join(folder);
        compile_page(&root)?;
        verbs_library::build(profile, &folder)?;
        let gdr = workspace::build(profile, &["gdr-cli"])?.join("gdr");
        Ok(Self {
            root,
            gdr,
            folder,
            address,
        })
    }

    /// Runs a case; prints the output of one that fails.
    fn passes(&self, case: Case<'_>) -> anyhow::Result<bool> {
        let line = case.line();
        let counts = self.counts();
        if counts.exists() {
            fs::remove_dir_all(&counts).with_context(|| counts.display().to_string())?;
        }
        fs::create_dir(&counts).with_context(|| counts.display().to_string())?;
        for end in ["server", "client"] {
            // Discard the output of the previous case.
            File::create(self.file(end)).context("the output of a program")?;
        }
        let start = Instant::now();
        let deadline = start + LIMIT;
        let is_alone = ALONE.contains(&program(line));
        let failure = if is_alone {
            let command = self.case_command(case, &self.completed(line, 0));
            let mut program = Running::start(command, self.file("client"))?;
            program.failure(deadline)?
        } else {
            self.serve(case, deadline)?
        };
        let failure = match failure {
            Some(failure) => Some(failure),
            None if matches!(case, Case::Traced(_)) => traced::difference(&counts)?,
            None => missing(line, &self.file("client"))?,
        };
        let seconds = start.elapsed().as_secs_f32();
        match failure {
            None => {
                println!("{}: passed in {seconds:.1} s", case.name());
                Ok(true)
            }
            Some(failure) => {
                println!("{}: {failure} after {seconds:.1} s", case.name());
                for end in ["server", "client"] {
                    if end == "client" || !is_alone {
                        print_end(end, &self.file(end));
                    }
                }
                Ok(false)
            }
        }
    }

    /// Runs a case as server and client; returns what failed.
    fn serve(&self, case: Case<'_>, deadline: Instant) -> anyhow::Result<Option<String>> {
        let line = case.line();
        let port = match program(line) {
            "udaddy" => PORT_OF_UDADDY,
            // It does not listen at a port, but receives from a group.
            "mckey" => UDP_PORT,
            _ => free_port(self.address)?,
        };
        let ends = if let Some((server, client)) = line.split_once(" | ") {
            [server, client].map(|end| self.case_command(case, &self.completed(end, port)))
        } else {
            let mut ends = [(); 2].map(|()| self.case_command(case, line));
            for end in &mut ends {
                end.args(["-p", &port.to_string()]);
                if line.split(' ').any(|word| word.starts_with("ib_")) {
                    end.args(["-u", ACK_TIMEOUT]);
                }
            }
            ends[1].arg(self.address.to_string());
            ends
        };
        let end = match SERVING_ON.contains(&program(line)) {
            true => ServerEnd::Killed,
            false => ServerEnd::ByItself,
        };
        let files = [self.file("server"), self.file("client")];
        serve(port, end, ends, files, deadline)
    }

    /// Returns a command line of this address, and of this port.
    fn completed(&self, line: &str, port: u16) -> String {
        let copy = self.file("copy").display().to_string();
        let line = line.replace("ADDRESS", &self.address.to_string());
        line.replace("PORT", &port.to_string())
            .replace("FILE", &copy)
    }

    /// Returns the program of a command line and its arguments, under `gdr run`.
    pub fn command(&self, line: &str) -> Command {
        self.case_command(Case::Plain(line), line)
    }

    /// Returns where the packages are unpacked.
    pub fn packages(&self) -> &Path {
        &self.root
    }

    /// Returns a shell command line, under `gdr run` with the libraries of the packages.
    pub fn shell(&self, line: &str) -> Command {
        let mut command = self.gdr_run(None);
        command.args(["sh", "-c", line]);
        command
    }

    /// Returns `gdr run` up to the program.
    fn gdr_run(&self, option: Option<&str>) -> Command {
        // Older packages have their files in /lib, which a host's root folder links to /usr/lib.
        let folders = ["usr/lib", "lib"].map(|lib| {
            let folder = format!("{lib}/{}-linux-gnu", std::env::consts::ARCH);
            self.root.join(folder).display().to_string()
        });
        let mut command = Command::new(&self.gdr);
        command
            .args(["run", "--nic", &self.address.to_string()])
            .args(option)
            .arg("--")
            .env("GDR_VERBS_LIBRARY", &self.folder)
            .env("LD_LIBRARY_PATH", folders.join(":"))
            .env_remove("LD_PRELOAD");
        command
    }

    /// Returns the program of one end of a case.
    fn case_command(&self, case: Case<'_>, line: &str) -> Command {
        let (variables, mut words) = words(line);
        let option = words.next_if(|word| word.starts_with("--"));
        let name = words.next().unwrap_or_default();
        // Some packages have their programs in /bin.
        let [first, other] = ["bin", "usr/bin"].map(|folder| self.root.join(folder).join(name));
        let program = if first.exists() { first } else { other };
        let mut command = self.gdr_run(option);
        if let Case::Traced(_) = case {
            let report = self.counts().join("%p").with_extension(traced::REPORT);
            command
                .arg(&self.gdr)
                .args(["trace", "--json", "--output"])
                .arg(report)
                .arg("--")
                .env("GDR_VERBS_COUNTERS", self.counts());
        }
        command.arg(program).args(words).envs(variables);
        command
    }

    /// Returns where the reports of `gdr trace` and the counters of the engine go.
    fn counts(&self) -> PathBuf {
        self.folder.join("counts")
    }

    /// Returns where the output of an end goes.
    pub fn file(&self, end: &str) -> PathBuf {
        self.folder.join(end).with_extension("log")
    }
}

/// Compiles the program of the page, next to the other programs.
fn compile_page(packages: &Path) -> anyhow::Result<()> {
    let libraries = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror"])
        .arg(root().join("docs").join(PAGE).with_extension("c"))
        .arg("-I")
        .arg(packages.join("usr/include"))
        .arg("-L")
        .arg(packages.join(libraries))
        // Its own libraries are in that folder too, and are found at run time.
        .args(["-libverbs", "-Wl,--allow-shlib-undefined", "-o"])
        .arg(packages.join("usr/bin").join(PAGE));
    succeed(compiler)
}

/// Returns the variables in front of a command line, and its words.
fn words(line: &str) -> (Vec<(&str, &str)>, Peekable<Split<'_, char>>) {
    let mut words = line.split(' ').peekable();
    let mut variables = Vec::new();
    while let Some(variable) = words.peek().and_then(|word| word.split_once('=')) {
        variables.push(variable);
        words.next();
    }
    (variables, words)
}

/// Returns the program of a command line; of a server, where there are two.
fn program(line: &str) -> &str {
    let (_, mut words) = words(line);
    words.next_if(|word| word.starts_with("--"));
    words.next().unwrap_or_default()
}

/// Returns what a program should have printed and did not.
fn missing(line: &str, output: &Path) -> anyhow::Result<Option<String>> {
    let Some((_, texts)) = EXPECTED.iter().find(|(start, _)| line.starts_with(start)) else {
        return Ok(None);
    };
    let output = fs::read(output).with_context(|| output.display().to_string())?;
    let output = String::from_utf8_lossy(&output);
    let missing = texts.iter().find(|text| !output.contains(**text));
    Ok(missing.map(|text| format!("did not print `{text}`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page;

    /// Returns the table of the page: a row for each program, with the options of its command lines.
    fn table() -> String {
        let mut rows: Vec<(&str, Vec<String>)> = Vec::new();
        for line in CASES.iter().filter(|line| **line != PAGE) {
            let options = match line.split_once(" | ") {
                Some((server, client)) if program(server) != program(client) => {
                    let with = format!("with {} {}", program(client), options(client));
                    with.trim_end().to_owned()
                }
                Some((_, client)) => options(client),
                None => options(line),
            };
            match rows.iter_mut().find(|(name, _)| *name == program(line)) {
                Some((_, all)) => all.push(options),
                None => rows.push((program(line), vec![options])),
            }
        }
        let rows = rows.into_iter().map(|(name, mut options)| {
            options.retain(|options| !options.is_empty());
            let options = options.join(", ");
            let gap = GAPS.iter().find(|(start, _)| name.starts_with(start));
            let result = gap.map_or_else(|| "works".to_owned(), |(_, what)| format!("gap: {what}"));
            format!("| `{name}` | {options} | {result} |\n")
        });
        format!(
            "| program | with | |\n|---|---|---|\n{}",
            rows.collect::<String>()
        )
    }

    /// Returns the variables and options of a command line, except those that every command line of its program needs.
    fn options(line: &str) -> String {
        let (variables, words) = words(line);
        let variables = variables
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let words = words.map(str::to_owned);
        let mut shown: Vec<_> = variables.chain(words).collect();
        shown.retain(|word| word != "-F" && word != program(line));
        for place in ["ADDRESS", "PORT"] {
            if let Some(at) = shown.iter().position(|word| word == place) {
                shown.drain(at.saturating_sub(1)..=at);
            }
        }
        match shown.is_empty() {
            true => String::new(),
            false => format!("`{}`", shown.join(" ")),
        }
    }

    #[test]
    fn the_page_lists_every_program() {
        page::check_or_write("programs", &table());
    }

    #[test]
    fn a_gap_is_skipped_by_name_and_fails_when_it_passes() {
        assert_eq!(judge("a", Ok(true)), Outcome::Passed);
        assert_eq!(judge("a", Ok(false)), Outcome::Failed);
        assert_eq!(judge("a", Err(anyhow::anyhow!("no"))), Outcome::Failed);
        for (gap, what) in GAPS {
            let reason = format!("known gap: {what}");
            assert_eq!(judge(gap, Ok(false)), Outcome::Skipped { reason });
            assert_eq!(judge(gap, Ok(true)), Outcome::Failed);
            assert!(CASES.iter().any(|line| line.starts_with(gap)), "{gap}");
        }
    }

    #[test]
    fn variables_are_in_front_of_a_command_line() {
        let (variables, program) = words("A=1 B=c=d run -x y=z");
        assert_eq!(variables, [("A", "1"), ("B", "c=d")]);
        assert_eq!(program.collect::<Vec<_>>(), ["run", "-x", "y=z"]);
        let (variables, program) = words("run");
        assert_eq!((variables.len(), program.count()), (0, 1));
    }

    #[test]
    fn a_program_fails_that_does_not_print_what_is_expected_of_it() {
        let file = std::env::temp_dir().join(format!("gdr-printed-{}", std::process::id()));
        let (line, texts) = EXPECTED[0];
        fs::write(&file, texts.join("\n")).unwrap();
        assert_eq!(missing(line, &file).unwrap(), None);
        fs::write(&file, texts[1..].join("\n")).unwrap();
        let wanted = format!("did not print `{}`", texts[0]);
        assert_eq!(missing(line, &file).unwrap(), Some(wanted));
        assert_eq!(missing("ibv_devices", &file).unwrap(), None);
        fs::remove_file(file).unwrap();
    }
}
