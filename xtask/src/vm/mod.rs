//! `cargo xtask vm`: the tests that need the kernel's own RDMA, in a virtual machine.
//!
//! One boot of Debian's kernel runs them all. QEMU, the kernel and what runs beside the tests come
//! from Debian's packages, unpacked into a folder of the user's and kept there.

mod archive;
mod guest;
mod machine;
mod modules;
mod packages;
mod programs;

use std::fs::{self, File};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use rustix::fs::{FlockOperation, flock};

use self::guest::Guest;
use self::machine::{Accelerator, Boot, KVM_START_LIMIT, Machine, Qemu, START_LIMIT, Silence};
use self::programs::Program;
use crate::ledger::{Ledger, Outcome};
use crate::test::test_line;
use crate::workspace::target;

/// What to run in the guest.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only tests whose names contain one of these.
    filters: Vec<String>,
    /// Measure the soft provider against the kernel's rxe instead of testing.
    #[arg(long)]
    bench: bool,
    /// Seconds after which the guest is stopped, whatever it does.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    timeout: u64,
}

impl Options {
    /// All tests.
    pub(crate) const fn all() -> Self {
        Self {
            filters: Vec::new(),
            bench: false,
            timeout: 900,
        }
    }
}

/// Something that this machine lacks, so that there can be no guest: no fault of what is tested.
#[derive(Debug)]
pub(crate) struct Unavailable(String);

impl Unavailable {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut ledger = Ledger::default();
    record(&mut ledger, options);
    Ok(ledger.close())
}

/// Runs everything in one guest and enters each test into the ledger; where there can be no
/// guest, each as skipped.
pub(crate) fn record(ledger: &mut Ledger, options: &Options) {
    println!("\n== tests in the VM");
    if let Err(error) = boot_and_run(ledger, options) {
        eprintln!("{error:#}");
        ledger.record("the VM (see above)", Outcome::Failed);
    }
}

fn boot_and_run(ledger: &mut Ledger, options: &Options) -> anyhow::Result<()> {
    let program = if options.bench {
        programs::benchmark()?
    } else {
        programs::tests()?
    };
    let (qemu, guest) = match prepare() {
        Ok(parts) => parts,
        Err(error) => match error.downcast::<Unavailable>() {
            Ok(Unavailable(reason)) => {
                println!("NO VM, so its tests do not run: {reason}");
                for name in program.list(&options.filters)? {
                    let reason = format!("no VM: {reason}");
                    ledger.record(&name, Outcome::Skipped { reason });
                }
                return Ok(());
            }
            Err(error) => return Err(error),
        },
    };
    // One guest at a time in this folder; the next one waits.
    let folder = folder();
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let turn = File::create(folder.join("lock"))?;
    flock(&turn, FlockOperation::LockExclusive)?;
    let limit = Duration::from_secs(options.timeout);
    let (machine, accelerator) = start(&qemu, &guest, &program, options)?;
    println!(
        "Linux {} by {}",
        guest.version,
        match accelerator {
            Accelerator::Kvm => "KVM",
            Accelerator::Tcg => "TCG (every instruction is translated: slow)",
        }
    );
    let followed = follow(&machine, ledger, Instant::now() + limit);
    if followed.is_err() {
        print_console()?;
    }
    followed
}

/// What the kernel said last.
fn print_console() -> anyhow::Result<()> {
    let console = folder().join("console");
    let text = fs::read(&console).with_context(|| console.display().to_string())?;
    eprintln!("the guest's console ({}) ends with", console.display());
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(25)..] {
        eprintln!("    {line}");
    }
    Ok(())
}

/// Fetches and makes what is missing; one process at a time.
fn prepare() -> anyhow::Result<(Qemu, Guest)> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Unavailable::new("the guest is an x86-64 one").into());
    }
    let cache = guest::cache();
    fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    let lock = File::create(cache.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok((guest::qemu(&cache)?, guest::guest(&cache)?))
}

/// Where this run's own files are; `vm` is where cargo puts what it builds for the guest.
fn folder() -> std::path::PathBuf {
    target().join("vm-run")
}

/// Boots until the guest has said its first word: by KVM where that works, else by TCG.
fn start(
    qemu: &Qemu,
    guest: &Guest,
    program: &Program,
    options: &Options,
) -> anyhow::Result<(Machine, Accelerator)> {
    let folder = folder();
    let try_kvm = File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok();
    // What cannot run this kernel by KVM cannot next time either.
    let no_kvm = guest::cache().join("kvm-does-not-work");
    let kvm = (try_kvm && !no_kvm.exists()).then_some((Accelerator::Kvm, KVM_START_LIMIT));
    for (accelerator, limit) in kvm.into_iter().chain([(Accelerator::Tcg, START_LIMIT)]) {
        let initrd = folder.join("initrd");
        let script = program.script(accelerator.name(), &options.filters);
        guest::initrd(&guest.base, &program.files(), &script, &initrd)?;
        let console = folder.join("console");
        let boot = Boot {
            kernel: &guest.kernel,
            initrd: &initrd,
            console: &console,
        };
        let log = folder.join("qemu.log");
        let machine = Machine::start(qemu, accelerator, &boot, &log)?;
        match first_word(&machine, Instant::now() + limit) {
            Ok(()) => return Ok((machine, accelerator)),
            Err(silence) if accelerator == Accelerator::Kvm => {
                println!("KVM cannot run the guest ({silence:?}); from now on by TCG");
                fs::write(&no_kvm, "")?;
            }
            Err(silence) => {
                let said = fs::read_to_string(&log).unwrap_or_default();
                bail!("the guest does not start ({silence:?}); QEMU says: {said}");
            }
        }
    }
    bail!("no accelerator is left")
}

fn first_word(machine: &Machine, deadline: Instant) -> Result<(), Silence> {
    while machine.line(deadline)? != "gdr-vm: up" {}
    Ok(())
}

/// Prints what the guest prints and enters its tests, until it says that it is done.
fn follow(machine: &Machine, ledger: &mut Ledger, deadline: Instant) -> anyhow::Result<()> {
    let mut failed = false;
    let mut exit = None;
    loop {
        let line = machine.line(deadline).map_err(|silence| match silence {
            Silence::Ended => anyhow::anyhow!("the guest ended before its tests did"),
            Silence::Deadline => anyhow::anyhow!("the guest was stopped: its time is over"),
        })?;
        match line.strip_prefix("gdr-vm: ") {
            Some("done") => break,
            Some(said) => {
                println!("{line}");
                if let Some(code) = said.strip_prefix("exit ") {
                    exit = Some(code.to_owned());
                } else if said.starts_with("cannot: ") {
                    bail!("the guest {said}");
                }
            }
            None => println!("{line}"),
        }
        if let Some((name, outcome)) = test_line(&line) {
            failed |= outcome == Outcome::Failed;
            ledger.record(name, outcome);
        }
    }
    match exit.as_deref() {
        Some("0") => Ok(()),
        Some(_) if failed => Ok(()),
        Some(code) => bail!("the program in the guest failed outside of any test: exit {code}"),
        None => bail!("the guest ran nothing"),
    }
}
