//! `cargo xtask verbs-programs`: Debian's programs of libibverbs, unmodified, with gdr's verbs library.
//!
//! perftest and the examples of libibverbs come from Debian's packages, which are unpacked into the
//! cache folder. Each case runs a program twice under `gdr run`, as server and client on one loopback
//! address, and passes if both exit with 0.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::packages::{Apt, cache, once};
use crate::results::{Outcome, Results, Unavailable};
use crate::verbs_library;
use crate::workspace::{cargo, succeed, target};

/// Debian's packages of the programs and of the libraries that perftest is linked with.
const PACKAGES: [&str; 3] = ["perftest", "ibverbs-utils", "ibverbs-providers"];
/// The address of both ends.
const ADDRESS: &str = "127.0.0.1";
/// After this a case failed. The longest takes some seconds.
const LIMIT: Duration = Duration::from_secs(40);
/// How often it is looked whether a server listens, which nothing announces.
const LISTEN_INTERVAL: Duration = Duration::from_millis(5);

/// The command lines. Those without a port run alone, the others as server and client.
const CASES: [&str; 36] = [
    "ibv_devices",
    "ibv_devinfo -v",
    "ibv_rc_pingpong -g 0 -c",
    "ibv_rc_pingpong -g 0 -c -e",
    "ibv_rc_pingpong -g 0 -c -s 1000000 -n 50",
    "ibv_srq_pingpong -g 0",
    "ibv_srq_pingpong -g 0 -e",
    "ibv_ud_pingpong -g 0 -s 1024",
    "ibv_uc_pingpong -g 0",
    "ibv_xsrq_pingpong -g 0",
    "ib_write_bw -F -a -n 5",
    "ib_write_bw -F -b -n 500",
    "ib_write_bw -F -q 4 -x 0 -n 500",
    "ib_write_bw -F -I 64 -s 64 -n 1000",
    "ib_write_bw -F -c UC -n 500",
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
    "ib_send_lat -F -s 65536 -n 200",
    "ib_send_lat -F -e -I 64 -s 64 -n 200",
    "ib_send_lat -F --use-srq -n 200",
    "ib_send_lat -F -c UD -s 64 -n 200",
    "ib_atomic_bw -F -n 500",
    "ib_atomic_bw -F -A CMP_AND_SWAP -q 4 -n 500",
    "ib_atomic_bw -F -b -n 500",
    "ib_atomic_lat -F -n 200",
    "ib_atomic_lat -F -e -A CMP_AND_SWAP -n 200",
];

/// What the library does not support yet: command lines that begin with this fail. One that passes is
/// an error, so that this list stays true.
const GAPS: [(&str, &str); 3] = [
    ("ibv_uc_pingpong", "unreliable connections"),
    ("ib_write_bw -F -c UC", "unreliable connections"),
    ("ibv_xsrq_pingpong", "extended reliable connections (XRC)"),
];

/// Which command lines to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only command lines that contain one of these.
    filters: Vec<String>,
}

impl Options {
    /// All command lines.
    pub(crate) const fn all() -> Self {
        Self {
            filters: Vec::new(),
        }
    }

    fn cases(&self) -> impl Iterator<Item = &'static str> {
        CASES.into_iter().filter(|line| {
            self.filters.is_empty() || self.filters.iter().any(|it| line.contains(it.as_str()))
        })
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    record(&mut results, options);
    Ok(results.close())
}

/// Runs the programs and records the outcome of each. Without them each is skipped.
pub(crate) fn record(results: &mut Results, options: &Options) {
    println!("\n== verbs programs");
    let prepared = Setup::prepare();
    for line in options.cases() {
        let name = format!("verbs program {line}");
        let outcome = match &prepared {
            Ok(setup) => judge(line, setup.passes(line)),
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

/// The outcome of a case that passed, or not.
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

/// The programs, the library and the `gdr` command.
struct Setup {
    /// Where the packages are unpacked.
    root: PathBuf,
    gdr: PathBuf,
    library: PathBuf,
    /// Where the programs' output goes.
    output: PathBuf,
}

impl Setup {
    fn prepare() -> anyhow::Result<Self> {
        let cache = cache();
        fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
        let lock = File::create(cache.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let folder = cache.join("verbs-programs");
        let root = once(&folder, &format!("{PACKAGES:?}"), |root| {
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
        let library = target().join("verbs-programs");
        // In the profile in which `cargo xtask test` has built the rest.
        verbs_library::build("dev", &library)?;
        succeed(cargo(&["build", "--package", "gdr-cli"]))?;
        Ok(Self {
            root,
            gdr: target().join("debug/gdr"),
            output: library.clone(),
            library,
        })
    }

    /// Runs a case; prints the output of one that fails.
    fn passes(&self, line: &str) -> anyhow::Result<bool> {
        for end in ["server", "client"] {
            // The output of the case before, of which this case may have none.
            File::create(self.file(end)).context("the output of a program")?;
        }
        let start = Instant::now();
        let deadline = start + LIMIT;
        let is_alone = line.starts_with("ibv_dev");
        let failure = if is_alone {
            let mut program = Running::start(self.command(line), self.file("client"))?;
            program.failure(deadline)?
        } else {
            self.serve(line, deadline)?
        };
        let seconds = start.elapsed().as_secs_f32();
        match failure {
            None => {
                println!("{line}: passed in {seconds:.1} s");
                Ok(true)
            }
            Some(failure) => {
                println!("{line}: {failure} after {seconds:.1} s");
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
    fn serve(&self, line: &str, deadline: Instant) -> anyhow::Result<Option<String>> {
        let port = free_port()?;
        let with_port = || {
            let mut command = self.command(line);
            command.args(["-p", &port.to_string()]);
            command
        };
        let mut server = Running::start(with_port(), self.file("server"))?;
        while !is_listening(port)? {
            if server.has_ended(Instant::now() + LISTEN_INTERVAL)? || Instant::now() > deadline {
                return Ok(Some("the server did not listen".to_owned()));
            }
        }
        let mut command = with_port();
        command.arg(ADDRESS);
        let mut client = Running::start(command, self.file("client"))?;
        if let Some(failure) = client.failure(deadline)? {
            return Ok(Some(format!("the client {failure}")));
        }
        let failure = server.failure(deadline)?;
        Ok(failure.map(|failure| format!("the server {failure}")))
    }

    /// The program of a command line and its arguments, under `gdr run`.
    fn command(&self, line: &str) -> Command {
        let mut words = line.split(' ');
        let program = self
            .root
            .join("usr/bin")
            .join(words.next().unwrap_or_default());
        let libraries = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let mut command = Command::new(&self.gdr);
        command
            .args(["run", "--nic", ADDRESS, "--"])
            .arg(program)
            .args(words)
            .env("GDR_VERBS_LIBRARY", &self.library)
            .env("LD_LIBRARY_PATH", self.root.join(libraries))
            .env_remove("LD_PRELOAD");
        command
    }

    fn file(&self, end: &str) -> PathBuf {
        self.output.join(end).with_extension("log")
    }
}

/// A program, which is killed when this is dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command, output: PathBuf) -> anyhow::Result<Self> {
        let file = File::create(&output).with_context(|| output.display().to_string())?;
        let child = command
            .stdin(Stdio::null())
            .stderr(file.try_clone()?)
            .stdout(file)
            .spawn()
            .context("gdr cannot be started")?;
        Ok(Self(child))
    }

    /// Waits until it ended; `false` if it runs at the deadline.
    fn has_ended(&mut self, deadline: Instant) -> anyhow::Result<bool> {
        let id = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        let process = pidfd_open(id.context("no process id")?, PidfdFlags::empty())?;
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::try_from(left)?))?;
        Ok(self.0.try_wait()?.is_some())
    }

    /// Waits until it ended; returns what is wrong with that.
    fn failure(&mut self, deadline: Instant) -> anyhow::Result<Option<String>> {
        if !self.has_ended(deadline)? {
            return Ok(Some("did not end".to_owned()));
        }
        let status = self.0.wait()?;
        Ok((!status.success()).then(|| format!("failed ({status})")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A TCP port that no socket has. Another process may take it meanwhile.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((ADDRESS, 0))?.local_addr()?.port())
}

/// Whether a socket listens at a TCP port. Connecting would take the place of the client.
fn is_listening(port: u16) -> anyhow::Result<bool> {
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        // Without IPv6 there is no second file.
        let table = fs::read_to_string(file).unwrap_or_default();
        if lists_listener(&table, port) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the kernel's table of TCP sockets: number, local address, remote address, state.
fn lists_listener(table: &str, port: u16) -> bool {
    /// `TCP_LISTEN` of include/net/tcp_states.h.
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some(LISTEN)
    })
}

/// Prints the last lines of a program's output.
fn print_end(end: &str, file: &Path) {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(8)..] {
        println!("    {end}: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_listening_socket_is_found_in_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
             0: 0100007F:4855 00000000:0000 0A 00000000\n\
             1: 0100007F:1234 0100007F:4856 01 00000000\n";
        assert!(lists_listener(table, 0x4855));
        assert!(!lists_listener(table, 0x1234));
        assert!(!lists_listener(table, 0x4856));
    }
}
