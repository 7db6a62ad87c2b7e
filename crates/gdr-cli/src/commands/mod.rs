//! The subcommands, one module each: options and presentation.

pub(crate) mod apiperf;
pub(crate) mod chaos;
pub(crate) mod check;
pub(crate) mod collect;
pub(crate) mod compare;
pub(crate) mod copybw;
pub(crate) mod copylat;
mod copysweep;
pub(crate) mod devices;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod env;
pub(crate) mod explain;
pub(crate) mod fix;
pub(crate) mod fleet;
mod gdrcopy_common;
pub(crate) mod generate;
pub(crate) mod get;
pub(crate) mod help;
pub(crate) mod info;
pub(crate) mod loopback;
pub(crate) mod ls;
mod measurement;
pub(crate) mod mesh;
pub(crate) mod net;
pub(crate) mod nics;
pub(crate) mod peermem;
pub(crate) mod perf;
pub(crate) mod plan;
pub(crate) mod pplat;
pub(crate) mod put;
pub(crate) mod run_program;
pub(crate) mod sanity;
pub(crate) mod serve;
pub(crate) mod sheet;
pub(crate) mod topo;
pub(crate) mod trace;
pub(crate) mod tune;
pub(crate) mod version;
pub(crate) mod watch;

use gdr_perf::report::Subject;

use crate::gpu_context::GpuContext;
use crate::output::Output;

/// Writes that the GPU is simulated, if it is.
fn say_simulated(gpu: &GpuContext, output: &mut Output) -> gdr_perf::Result<()> {
    match &gpu.simulated {
        Some(reason) => output.simulated(reason),
        None => Ok(()),
    }
}

/// The GPU and the mapping of a report, in one line.
fn describe(subject: &Subject) -> String {
    let mut line = format!(
        "{} ({}), backend {}",
        subject.gpu, subject.pci, subject.backend
    );
    if let Some(route) = &subject.route {
        line += &format!(" by {route}");
    }
    if let Some(driver) = &subject.driver {
        line += &format!(", NVIDIA driver {driver}, CUDA {}", subject.cuda);
    }
    if subject.simulated {
        format!("simulated: {line}")
    } else {
        line
    }
}
