//! `cargo xtask vm`: runs tests in a virtual machine: the tests that need the kernel's RDMA stack, or the unit tests
//! and the archive of another architecture.
//!
//! One boot of Debian's kernel runs all of them. QEMU, the kernel and the programs besides the tests come from Debian's
//! packages, which are unpacked into the user's cache folder.

mod archive;
mod guest;
mod modules;
mod programs;
mod qemu;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;

use self::guest::Guest;
use self::programs::{Benchmark, Program};
use self::qemu::{Accelerator, Boot, Machine, NoLine, Qemu, TCG_BOOTS};
use xtask_build::package::Architecture;
use xtask_build::packages;
use xtask_build::results::{Outcome, Outcomes, Results, Unavailable};

/// Which tests to run in the guest, and for how long.
#[derive(Args, Debug)]
pub struct Options {
    /// Run only tests whose names contain one of these.
    filters: Vec<String>,
    /// Measure instead of testing: the soft provider against the kernel's rxe, `gdr perf` against
    /// perftest on rxe, or the soft provider beside the kernel's TCP on bad links.
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        num_args = 0..=1,
        default_missing_value = "rxe"
    )]
    bench: Option<Benchmark>,
    /// The architecture of the guest. A guest of 64-bit Arm runs unit tests of the crates and the programs
    /// of the archive, cross-compiled, instead of the tests on rxe.
    #[arg(
        long,
        value_enum,
        value_name = "NAME",
        default_value = "x86_64",
        conflicts_with = "bench"
    )]
    arch: Architecture,
    /// Seconds without a line after which the guest is stopped [default: 300, and 900 for benchmarks and
    /// unit tests].
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
}

impl Options {
    /// Returns all tests on rxe.
    pub const fn all() -> Self {
        Self {
            filters: Vec::new(),
            bench: None,
            arch: Architecture::X86,
            timeout: None,
        }
    }
}

/// Returns the command that builds the tests on rxe.
pub fn build_command() -> Command {
    programs::tests_command()
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    record(&mut results, options);
    Ok(results.close())
}

/// Runs the tests in one guest and records the outcome of each. Without a guest, all are skipped. Failed tests run once
/// more, in a new guest.
pub fn record(results: &mut Results, options: &Options) {
    results.section("tests in the VM", |results| {
        if let Err(error) = boot_and_run(results, options) {
            eprintln!("{error:#}");
            results.record("the VM (see above)", Outcome::Failed);
        }
    });
}

fn boot_and_run(results: &mut Results, options: &Options) -> anyhow::Result<()> {
    let program = match (options.bench, options.arch) {
        (Some(benchmark), _) => programs::benchmark(benchmark)?,
        (None, Architecture::X86) => programs::tests()?,
        (None, Architecture::Arm) => programs::foreign(options.arch)?,
    };
    // Only one guest at a time may use this folder; other processes wait here.
    let folder = guest::run_folder();
    let _lock = packages::locked(&folder)?;
    let first = in_a_guest(&program, options, &options.filters)?;
    let mut tests = match first {
        Ok(tests) => tests,
        Err(unavailable) => {
            println!("no VM, so its tests do not run: {unavailable}");
            for name in program.list(&options.filters)? {
                let reason = format!("no VM: {unavailable}");
                results.record(&name, Outcome::Skipped { reason });
            }
            return Ok(());
        }
    };
    let mut left: Vec<_> = tests.outcomes.failed().into_iter().collect();
    let few_failed = left.len() <= MOST_REPEATED;
    // A kernel that crashed in a test has kept later tests from running.
    if let Some(cause) = &tests.cause {
        println!("\n{cause}");
        let all = program.list(&options.filters)?;
        left.extend(
            all.into_iter()
                .filter(|name| !tests.outcomes.has_ended(name)),
        );
    }
    if few_failed && !left.is_empty() {
        println!("\nonce more, in a new guest: {}", left.join(", "));
        // Without a second guest, the first result stands.
        if let Ok(again) = in_a_guest(&program, options, &left)? {
            for name in tests.outcomes.replace(again.outcomes) {
                results.passed_again(&name);
            }
            tests.cause = again.cause;
        }
    }
    tests.outcomes.record(results);
    tests.cause.map_or(Ok(()), Err)
}

/// If more tests than this fail, none is repeated.
const MOST_REPEATED: usize = 12;

/// The tests of one guest.
#[derive(Default)]
struct GuestTests {
    outcomes: Outcomes,
    /// Why the guest, or the program in it, failed outside of any test.
    cause: Option<anyhow::Error>,
}

/// Boots a guest and runs the tests whose names contain one of `filters`. The inner error says why this machine has no
/// guest.
fn in_a_guest(
    program: &Program,
    options: &Options,
    filters: &[String],
) -> anyhow::Result<Result<GuestTests, Unavailable>> {
    // How long all tests take depends on the host's load. If none ends for this long, the guest hangs. The longest test
    // on rxe takes half a minute under TCG on an idle host.
    let seconds = match (options.bench, options.arch) {
        (None, Architecture::X86) => 300,
        (Some(_), _) | (None, Architecture::Arm) => 900,
    };
    let silence = Duration::from_secs(options.timeout.unwrap_or(seconds));
    let started = prepare(options.arch).and_then(|(qemu, guest)| {
        let (machine, accelerator) = start(&qemu, &guest, program, filters)?;
        Ok((machine, accelerator, guest.version))
    });
    let (mut machine, accelerator, version) = match started {
        Ok(started) => started,
        Err(error) => return error.downcast::<Unavailable>().map(Err),
    };
    println!(
        "Linux {version} for {} under {}",
        options.arch.name(),
        match accelerator {
            Accelerator::Kvm => "KVM",
            Accelerator::Tcg => "TCG (every instruction is translated: slow)",
        }
    );
    let mut tests = GuestTests::default();
    let followed = follow(&mut machine, &mut tests.outcomes, silence);
    if let Err(cause) = followed {
        print_console(&guest::run_folder().join("console"))?;
        tests.cause = Some(cause);
    }
    Ok(Ok(tests))
}

/// Prints the end of the kernel's console.
fn print_console(console: &Path) -> anyhow::Result<()> {
    let text = fs::read(console).with_context(|| console.display().to_string())?;
    eprintln!("the guest's console ({}) ends with", console.display());
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(25)..] {
        eprintln!("    {line}");
    }
    Ok(())
}

/// Fetches and builds missing parts, one process at a time.
fn prepare(architecture: Architecture) -> anyhow::Result<(Qemu, Guest)> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Unavailable::new("the guests need an x86-64 host").into());
    }
    let cache = packages::cache();
    let _lock = packages::locked(&cache)?;
    Ok((
        guest::qemu(&cache, architecture)?,
        guest::guest(&cache, architecture)?,
    ))
}

/// Boots the guest up to its first line: under KVM if that works, otherwise under TCG.
///
/// If QEMU ends before the kernel prints anything, the host has no guest. If the kernel starts but does not reach the
/// first line, that is a failure.
fn start(
    qemu: &Qemu,
    guest: &Guest,
    program: &Program,
    filters: &[String],
) -> anyhow::Result<(Machine, Accelerator)> {
    let folder = guest::run_folder();
    let is_of_host = Architecture::of_this_machine() == Some(qemu.architecture);
    let kvm = File::options().read(true).write(true).open("/dev/kvm");
    let try_kvm = is_of_host && kvm.is_ok();
    // If a host's KVM cannot run this kernel, do not try it again.
    let no_kvm = packages::cache().join("kvm-does-not-work");
    let kvm = (try_kvm && !no_kvm.exists()).then_some(Accelerator::Kvm);
    let tcg = [Accelerator::Tcg; TCG_BOOTS];
    let initrd = folder.join("initrd");
    let console = folder.join("console");
    let log = folder.join("qemu.log");
    let boot = Boot {
        kernel: &guest.kernel,
        initrd: &initrd,
        arguments: program.kernel_arguments(),
        console: &console,
    };
    let mut host_fails = None;
    for accelerator in kvm.into_iter().chain(tcg) {
        let script = program.script(accelerator.name(), filters);
        guest::initrd(&guest.base, program.files(), &script, &initrd)?;
        // Output of an earlier boot says nothing about this one.
        fs::write(&console, "").with_context(|| console.display().to_string())?;
        let mut machine = Machine::start(qemu, accelerator, &boot, &log)?;
        let Err(reason) = wait_until_up(&mut machine, Instant::now() + accelerator.start_limit())
        else {
            return Ok((machine, accelerator));
        };
        match accelerator {
            Accelerator::Kvm => {
                println!("KVM cannot run the guest ({reason:?}); TCG is used from now on");
                fs::write(&no_kvm, "")?;
            }
            Accelerator::Tcg => {
                let ended = machine.end()?;
                let size = fs::metadata(&initrd)?.len();
                eprintln!("the guest does not start ({reason:?}; QEMU: {ended});");
                eprintln!("its initramfs has {size} bytes; QEMU prints:");
                eprint!("{}", fs::read_to_string(&log).unwrap_or_default());
                print_console(&console)?;
                let kernel_started = fs::metadata(&console).is_ok_and(|file| file.len() > 0);
                host_fails = (reason == NoLine::Ended && !kernel_started).then_some(ended);
            }
        }
    }
    if let Some(ended) = host_fails {
        let reason = format!("QEMU ends before the kernel prints a line ({ended})");
        return Err(Unavailable::new(reason).into());
    }
    bail!("the guest did not start in {TCG_BOOTS} boots (see above)")
}

fn wait_until_up(machine: &mut Machine, deadline: Instant) -> Result<(), NoLine> {
    while machine.line(deadline)? != "gdr-vm: up" {}
    Ok(())
}

/// Prints the guest's lines and records its tests until its last line. Fails if there is no line for `silence`.
fn follow(machine: &mut Machine, outcomes: &mut Outcomes, silence: Duration) -> anyhow::Result<()> {
    let mut exit = None;
    loop {
        let line = match machine.line(Instant::now() + silence) {
            Ok(line) => line,
            Err(reason) => {
                // The harness prints the name of a test before it runs.
                let begun = machine.begun_line();
                println!("{begun}");
                outcomes.read(&format!("{begun}FAILED"));
                bail!(match reason {
                    NoLine::Ended => "the guest ended before its tests did",
                    NoLine::Deadline => "the guest was stopped: it hangs",
                });
            }
        };
        match line.strip_prefix("gdr-vm: ") {
            Some("done") => break,
            Some(message) => {
                println!("{line}");
                if let Some(code) = message.strip_prefix("exit ") {
                    exit = Some(code.to_owned());
                } else if message.starts_with("cannot: ") {
                    bail!("the guest {message}");
                }
            }
            None => println!("{line}"),
        }
        outcomes.read(&line);
    }
    match exit.as_deref() {
        Some("0") => Ok(()),
        Some(_) if outcomes.has_failed() => Ok(()),
        Some(code) => bail!("the program in the guest failed outside of any test: exit {code}"),
        None => bail!("the guest ran nothing"),
    }
}
