//! A virtual machine in QEMU. It ends with this process at the latest.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Signal, set_parent_process_death_signal};

use xtask_build::package::Architecture;

/// The program, and the folder of its parts if it is not installed.
#[derive(Clone, Debug)]
pub(crate) struct Qemu {
    /// The guests' architecture.
    pub(crate) architecture: Architecture,
    pub(crate) program: PathBuf,
    /// The folder that its packages are unpacked in.
    pub(crate) root: Option<PathBuf>,
}

/// How QEMU executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    Kvm,
    /// QEMU's translator, ten or more times slower than KVM.
    Tcg,
}

impl Accelerator {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// Returns how long the guest may take for its first line. Starting QEMU, the firmware and unpacking the initramfs
    /// take 5 s under TCG on an idle machine. A guest that needs longer under KVM does not work there, or is too slow.
    pub(crate) fn start_limit(self) -> Duration {
        match self {
            Self::Kvm => Duration::from_secs(20),
            Self::Tcg => Duration::from_secs(90),
        }
    }
}

/// The files of a boot.
pub(crate) struct Boot<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initrd: &'a Path,
    /// Arguments of the kernel for what runs in the guest.
    pub(crate) arguments: &'a str,
    /// The file for the kernel's console.
    pub(crate) console: &'a Path,
}

/// A running guest, killed on drop.
pub(crate) struct Machine {
    child: Child,
    output: Receiver<Vec<u8>>,
    /// What was received after the last line.
    begun: Vec<u8>,
}

/// Why there are no further lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLine {
    /// The guest has ended.
    Ended,
    Deadline,
}

impl Machine {
    pub(crate) fn start(
        qemu: &Qemu,
        accelerator: Accelerator,
        boot: &Boot<'_>,
        log: &Path,
    ) -> anyhow::Result<Self> {
        let mut command = command(qemu);
        let board = Board::of(qemu.architecture);
        let cpu = match accelerator {
            Accelerator::Kvm => "host",
            Accelerator::Tcg => board.translated_cpu,
        };
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-machine", board.machine, "-smp", "2"])
            .args(["-m", board.megabytes, "-accel", accelerator.name()])
            // Without a network card, the guest cannot send to any network.
            .args(["-cpu", cpu, "-nic", "none", "-append"])
            .arg(format!("{} {}", board.kernel_arguments(), boot.arguments))
            .arg("-kernel")
            .arg(boot.kernel)
            .arg("-initrd")
            .arg(boot.initrd)
            .arg("-serial")
            .arg(format!("file:{}", boot.console.display()))
            .args(["-chardev", "stdio,id=tests,signal=off"])
            .args(board.tests_line)
            // Must stay open: at its end, QEMU closes the serial line.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log).with_context(|| log.display().to_string())?);
        // SAFETY: between fork and exec, only this system call is made.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let child = command
            .spawn()
            .with_context(|| format!("{} cannot be started", qemu.program.display()))?;
        Self::of(child)
    }

    /// Returns the guest whose tests print to the output of a program.
    fn of(mut child: Child) -> anyhow::Result<Self> {
        let mut stdout = child.stdout.take().context("QEMU has no output")?;
        let (sender, output) = channel();
        // The thread ends with QEMU, whose output it reads.
        thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(len @ 1..) = stdout.read(&mut part) {
                if sender.send(part[..len].to_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            output,
            begun: Vec::new(),
        })
    }

    /// Waits for the next line that the guest prints.
    pub(crate) fn line(&mut self, deadline: Instant) -> Result<String, NoLine> {
        loop {
            if let Some(end) = self.begun.iter().position(|&byte| byte == b'\n') {
                let line: Vec<_> = self.begun.drain(..=end).collect();
                return Ok(text(&line));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let part = self
                .output
                .recv_timeout(left)
                .map_err(|error| match error {
                    RecvTimeoutError::Timeout => NoLine::Deadline,
                    RecvTimeoutError::Disconnected => NoLine::Ended,
                })?;
            self.begun.extend(part);
        }
    }

    /// Returns what the guest has printed of a line that it has not ended.
    pub(crate) fn begun_line(&self) -> String {
        text(&self.begun)
    }

    /// Ends QEMU if it still runs, and returns how it ended.
    pub(crate) fn end(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.kill().context("QEMU cannot be killed")?;
        self.child.wait().context("QEMU cannot be waited for")
    }
}

/// Returns a line without its end.
fn text(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    line.trim_end_matches(['\r', '\n']).to_owned()
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Neither fails for a child that was not waited for.
        if let Err(error) = self.child.kill() {
            eprintln!("QEMU cannot be killed: {error}");
        }
        if let Err(error) = self.child.wait() {
            eprintln!("QEMU cannot be waited for: {error}");
        }
    }
}

/// What QEMU emulates for an architecture.
struct Board {
    machine: &'static str,
    /// The CPU that is translated.
    translated_cpu: &'static str,
    megabytes: &'static str,
    /// The kernel's names of the two serial lines: its console's, and the tests'.
    console: &'static str,
    tests: &'static str,
    /// The second line.
    tests_line: [&'static str; 2],
    /// Arguments of the kernel for this architecture only.
    arguments: &'static str,
}

impl Board {
    const fn of(architecture: Architecture) -> Self {
        match architecture {
            Architecture::X86 => Self {
                machine: "q35",
                // On a CPU with ERMS Linux copies by `rep movsb`, which TCG executes byte by byte:
                // six times slower than copies by words.
                translated_cpu: "max,-erms",
                megabytes: "1536",
                console: "ttyS0",
                tests: "ttyS1",
                tests_line: ["-serial", "chardev:tests"],
                // TCG's clock is steady, but the kernel's watchdog marks it as unstable. The kernel counts
                // timer interrupts for ten ticks, and panics if a loaded host has delivered too few.
                arguments: "tsc=nowatchdog no_timer_check",
            },
            Architecture::Arm => Self {
                machine: "virt",
                // The cipher of the architecture for signed pointers takes half of the time.
                translated_cpu: "max,pauth-impdef=on",
                // The programs of all unit tests are in memory.
                megabytes: "2048",
                console: "ttyAMA0",
                tests: "ttyS0",
                // The board has only one serial line of its own.
                tests_line: ["-device", "pci-serial,chardev=tests"],
                arguments: "",
            },
        }
    }

    /// Returns the kernel's arguments. A panic ends the guest at once, and the kernel hands `tests_line` to init as a
    /// variable.
    fn kernel_arguments(&self) -> String {
        let Self {
            console,
            tests,
            arguments,
            ..
        } = self;
        format!(
            "console={console} tests_line={tests} loglevel=6 panic=-1 oops=panic mitigations=off \
             nokaslr {arguments}"
        )
    }
}

fn command(qemu: &Qemu) -> Command {
    let mut command = Command::new(&qemu.program);
    if let Some(root) = &qemu.root {
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let also = root.join("lib/x86_64-linux-gnu");
        let path = format!("{}:{}", libraries.display(), also.display());
        command
            .env("LD_LIBRARY_PATH", path)
            .env("QEMU_MODULE_DIR", libraries.join("qemu"))
            .arg("-L")
            .arg(root.join("usr/share/qemu"))
            .arg("-L")
            .arg(root.join("usr/share/seabios"));
    }
    command
}

/// Returns whether this QEMU starts.
pub(crate) fn works(qemu: &Qemu) -> bool {
    command(qemu)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Number of boots to try under TCG: a guest was seen to end before its first line, and to start the next time. Tests
/// are not repeated.
pub(crate) const TCG_BOOTS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_in_which_a_guest_ended_is_kept() {
        let child = Command::new("printf")
            .arg("one\\r\\n\\ntest two ... ")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut machine = Machine::of(child).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        assert_eq!(machine.line(deadline), Ok("one".to_owned()));
        assert_eq!(machine.line(deadline), Ok(String::new()));
        assert_eq!(machine.line(deadline), Err(NoLine::Ended));
        assert_eq!(machine.begun_line(), "test two ... ");
    }
}
