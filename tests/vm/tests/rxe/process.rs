//! Debian's unmodified programs: in the environment of `gdr run` on one host, with rxe on the other.

use std::net::IpAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gdr_vm_tests::near::{self, in_near};

use crate::fixture::{Family, Host};

/// Number of seconds after which a program counts as hung. Each takes about one under TCG on an idle host, and was seen
/// to take 12 on a busy one; a lost packet costs it two.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// How often to check whether a server listens.
const LISTEN_INTERVAL: Duration = Duration::from_millis(5);

impl Host {
    pub(crate) fn address(self, family: Family) -> IpAddr {
        match self {
            Self::Soft => family.near(),
            Self::Rxe => family.far(),
        }
    }

    /// Calls `work` in the network of this host.
    pub(crate) fn enter<T: Send>(
        self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        match self {
            Self::Soft => in_near(work),
            Self::Rxe => work(),
        }
    }

    /// Returns a program with these arguments. It is ended after a limit.
    pub(crate) fn command<'a>(
        self,
        limit: Duration,
        program: &str,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<Command> {
        let mut command = Command::new("/usr/bin/busybox");
        let limit = limit.as_secs().to_string();
        command.args(["timeout", "-s", "KILL", &limit, "/usr/bin/busybox", "env"]);
        if self == Self::Soft {
            // Only for the program, not for busybox.
            command.args(environment()?);
        }
        command.arg(format!("/usr/bin/{program}")).args(arguments);
        Ok(command)
    }

    /// Waits until `listens` returns true on this host; returns whether it does before the deadline. Connecting would
    /// take the place of the client.
    pub(crate) fn waits(
        self,
        deadline: Instant,
        mut listens: impl FnMut() -> anyhow::Result<bool> + Send,
    ) -> anyhow::Result<bool> {
        self.enter(move || {
            while !listens()? {
                if Instant::now() > deadline {
                    return Ok(false);
                }
                // Nothing announces it, and the server needs the CPU.
                thread::sleep(LISTEN_INTERVAL);
            }
            Ok(true)
        })
    }
}

/// Returns the environment that `gdr run` gives to programs, as words `NAME=value`. Starting it takes half a second
/// under TCG, so it is asked only once.
fn environment() -> anyhow::Result<&'static [String]> {
    static WORDS: OnceLock<Vec<String>> = OnceLock::new();
    if let Some(words) = WORDS.get() {
        return Ok(words);
    }
    let output = in_near(|| {
        let mut command = Command::new("/gdr/gdr");
        let nics = format!("{},{}", near::V4, near::V6);
        command.args(["run", "--nic", &nics, "--print-env"]);
        command.env("GDR_VERBS_LIBRARY", "/gdr");
        Ok(command.stderr(Stdio::inherit()).output()?)
    })?;
    // `export NAME='value'`
    let text = String::from_utf8_lossy(&output.stdout).replace('\'', "");
    let words: Vec<_> = text
        .lines()
        .filter_map(|line| Some(line.strip_prefix("export ")?.to_owned()))
        .collect();
    let preloads = words.iter().any(|word| word.starts_with("LD_PRELOAD="));
    if !output.status.success() || !preloads {
        bail!("gdr run --print-env: {}: {text}", output.status);
    }
    Ok(WORDS.get_or_init(|| words))
}

/// A started program, killed on drop.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(host: Host, mut command: Command) -> anyhow::Result<Self> {
        host.enter(|| {
            let child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .with_context(|| format!("{command:?}"))?;
            Ok(Self(Some(child)))
        })
    }

    /// Waits for its end, at most for the limit; returns its status, and what it printed.
    fn output(mut self) -> anyhow::Result<(ExitStatus, String)> {
        let child = self.0.take().context("it has ended")?;
        let output = child.wait_with_output()?;
        let printed = [output.stdout, output.stderr].concat();
        Ok((
            output.status,
            String::from_utf8_lossy(&printed).into_owned(),
        ))
    }

    /// Like [`Running::output`]. Fails unless it succeeds.
    pub(crate) fn end(self, role: &str) -> anyhow::Result<String> {
        let (status, printed) = self.output()?;
        if !status.success() {
            bail!("the {role} failed ({status}):\n{printed}");
        }
        Ok(printed)
    }

    /// Like [`Running::output`], for a program that may fail. Fails if the limit ends it.
    pub(crate) fn end_somehow(self, role: &str) -> anyhow::Result<String> {
        let (status, printed) = self.output()?;
        if status.code().is_none() {
            bail!("the {role} did not end by itself ({status}):\n{printed}");
        }
        Ok(printed)
    }

    /// Kills it; returns how it ended, and what it printed.
    pub(crate) fn kill(mut self) -> anyhow::Result<String> {
        if let Some(child) = &mut self.0 {
            child.kill()?;
        }
        let (status, printed) = self.output()?;
        Ok(format!("{status}: {printed}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // An error means that it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
