//! The tasks of this workspace, in place of scripts.
//!
//! `cargo xtask test` runs every check that this machine can run and lists those that it cannot;
//! `cargo xtask gpu-bundle` makes a folder that runs the rest on a machine with a GPU.

mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use suites::{
    api, examples, files_bench, fleet_files, fuzz, gpu_bundle, habits, instructions, mesh, models,
    msrv, mutants, package_check, peers, verbs_bench, verbs_programs, vm, words,
};
use xtask_build::{
    bindings, documentation, install, install_command, package, picture, release, verbs_library,
    wheel,
};

/// The tasks of this workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Run all checks: formatting, lints, tests, documentation, licences, and the GPU if there is one.
    Test(test::Options),
    /// Build the documentation and check every link in it.
    Docs,
    /// Check the pages of the guide, and build it as a book.
    Guide,
    /// Run the examples that need no hardware and check the last line of each.
    Examples,
    /// Check that sources and pages use none of the words of tests/suites/words.txt.
    Words,
    /// Check subjects of commits, actions of workflows, licences of crates, and the tests on the page of guards.
    Habits,
    /// Generate the declarations of gdr-verbs-sys from libibverbs' header.
    Bindings(bindings::Source),
    /// Run the tests that need the kernel's RDMA stack, in a virtual machine.
    Vm(vm::Options),
    /// Run Debian's verbs programs with gdr's verbs library.
    VerbsPrograms(verbs_programs::Options),
    /// Compare the tests of other projects with the list of what is expected of them.
    Peers(peers::Options),
    /// Compare the reports of `gdr trace --json` in a folder with the counters of gdr's engine there.
    Traced {
        /// The folder of `gdr trace -o FOLDER/%p.json` and `GDR_VERBS_COUNTERS`.
        folder: PathBuf,
    },
    /// Run `gdr mesh` with 64 ranks, by real launchers, and with a throttled and a dead rank.
    Mesh(mesh::Options),
    /// Measure Debian's perftest with gdr's verbs library beside `gdr perf`.
    VerbsBench(verbs_bench::Options),
    /// Measure what calls about files cost a program that uses no RDMA, with gdr's verbs library and without.
    FilesBench(files_bench::Options),
    /// Run the models of hazard pointers, locks and rings under every interleaving of their threads.
    Loom,
    /// Run the tests that use no file, socket or GPU under Miri.
    Miri,
    /// Compare the public API of the library crates with docs/api.
    Api(api::Options),
    /// Count the instructions of copies, packets and the doctor with Valgrind.
    Instructions(instructions::Options),
    /// Run every fuzz target for a short time.
    Fuzz(fuzz::Options),
    /// Compile with the oldest Rust that is supported.
    Msrv,
    /// Run the tests on mutations of the code; each must fail. Takes an hour.
    Mutants(mutants::Options),
    /// Install the command, libgdrapi, the verbs libraries, manual pages and completions.
    Install(install_command::Options),
    /// Install libgdrapi.so.2, its headers and its pkg-config file alone.
    InstallGdrapi(install::Options),
    /// Make libibverbs.so.1 of gdr-verbs, for LD_PRELOAD and LD_LIBRARY_PATH, and the library of gdr trace.
    VerbsLibrary(verbs_library::Options),
    /// Make the archive, the Debian packages and the RPM packages.
    Package(package::Options),
    /// Draw the terminal of README.md.
    Picture(picture::Options),
    /// Make everything that a release publishes, in one folder, and publish nothing.
    Release(release::Options),
    /// Make the Python wheel with the command and the libraries, and test it.
    Wheel(wheel::Options),
    /// Check the files for fleets in contrib by their linters.
    FleetFiles,
    /// Make a folder that tests and measures on a machine with a GPU, without cargo.
    GpuBundle {
        /// The folder to make. An older bundle there is replaced.
        #[arg(long, value_name = "FOLDER", default_value = "dist/gpu-bundle")]
        out: PathBuf,
    },
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::Test(options) => test::run(&options),
        Task::Docs => documentation::run(),
        Task::Guide => documentation::guide(),
        Task::Examples => examples::run(),
        Task::Words => words::run(),
        Task::Habits => habits::run(),
        Task::Bindings(source) => bindings::run(&source),
        Task::Vm(options) => vm::run(&options),
        Task::VerbsPrograms(options) => verbs_programs::run(&options),
        Task::Peers(options) => peers::run(&options),
        Task::Traced { folder } => verbs_programs::traced(&folder),
        Task::Mesh(options) => mesh::run(&options),
        Task::VerbsBench(options) => verbs_bench::run(&options),
        Task::FilesBench(options) => files_bench::run(&options),
        Task::Loom => models::run_loom(),
        Task::Miri => models::run_miri(),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Msrv => msrv::run(),
        Task::Mutants(options) => mutants::run(&options),
        Task::Api(options) => api::run(&options),
        Task::Instructions(options) => instructions::run(&options),
        Task::Install(options) => install_command::run(&options),
        Task::InstallGdrapi(options) => install::run(&options),
        Task::VerbsLibrary(options) => verbs_library::run(&options),
        Task::Package(options) => packages(&options),
        Task::Picture(options) => picture::run(&options),
        Task::Release(options) => release::run(&options),
        Task::Wheel(options) => wheel::run(&options),
        Task::FleetFiles => fleet_files::run(),
        Task::GpuBundle { out } => gpu_bundle::run(&out),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn packages(options: &package::Options) -> anyhow::Result<ExitCode> {
    let packages = package::run(options)?;
    if options.check {
        return package_check::run(&packages);
    }
    Ok(ExitCode::SUCCESS)
}
