//! The commands, one module each: options, statuses, help and presentation.

mod apiperf;
mod chaos;
mod check;
mod collect;
mod compare;
mod completions;
mod copybw;
mod copylat;
mod copysweep;
mod devices;
mod diff;
mod doctor;
pub(crate) mod env;
mod explain;
mod fix;
mod fleet;
mod gdrcopy_common;
mod get;
mod help;
mod info;
mod layout;
mod loopback;
mod ls;
mod man;
mod measurement;
mod mesh;
pub(crate) mod net;
mod nics;
mod peermem;
mod perf;
mod plan;
mod pplat;
mod put;
pub(crate) mod run;
mod sanity;
mod serve;
mod topo;
pub(crate) mod trace;
mod tune;
pub(crate) mod version;
mod watch;

use gdr_perf::report::Subject;

use crate::command::Command;
use crate::gpu_context::GpuContext;
use crate::output::Output;

/// Lists the commands of these modules.
macro_rules! commands {
    ($($name:ident)*) => {
        [$(Command::of::<$name::Options>(stringify!($name))),*]
    };
}

/// All commands, in the order of the help.
pub(crate) static ALL: &[Command] = &commands![
    loopback sanity
    doctor explain topo nics devices info collect diff fleet
    perf compare mesh copybw copylat apiperf pplat plan tune
    serve ls get put watch
    run net check chaos trace env
    fix peermem
    help version completions man
];

/// Writes that the GPU is simulated, if it is.
fn say_simulated(gpu: &GpuContext, output: &mut Output) -> gdr_perf::Result<()> {
    match &gpu.simulated {
        Some(reason) => output.simulated(reason),
        None => Ok(()),
    }
}

/// Returns the GPU and the mapping of a report, in one line.
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
