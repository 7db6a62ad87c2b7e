//! Options and lines that the measuring tools share.

use clap::ValueEnum;
use gdr_copy::{Caching, MapOptions};
use gdr_cuda::MemoryKind;
use gdr_perf::against::{Against, Comparison};
use gdr_perf::target::{Memory, Setup};

use super::say_simulated;
use crate::args::Global;
use crate::machine::Machine;
use crate::output::Output;

/// How to allocate and map, with the options of GDRCopy's tools.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct MemoryOptions {
    /// CUDA function that allocates the GPU memory
    #[arg(short = 'a', long = "alloc", value_enum, value_name = "FN", default_value_t = Alloc::Plain)]
    alloc: Alloc,

    /// Type of mapping to ask for
    #[arg(
        short = 'M',
        long = "mapping-type",
        value_enum,
        value_name = "TYPE",
        default_value_t = MappingType::Default
    )]
    mapping_type: MappingType,
}

/// A CUDA function that allocates.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Alloc {
    #[value(name = "cuMemAlloc")]
    Plain,
    /// With a POSIX file descriptor as handle type
    #[value(name = "cuMemCreate")]
    Vmm,
    /// From the stream-ordered pool
    #[value(name = "cuMemAllocAsync")]
    Pool,
}

/// A type of mapping, in GDRCopy's words.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum MappingType {
    Default,
    Wc,
    Cache,
    Device,
}

impl MemoryOptions {
    pub(crate) fn memory(self) -> Memory {
        let kind = match self.alloc {
            Alloc::Plain => MemoryKind::Plain,
            Alloc::Vmm => MemoryKind::VmmPosixFd,
            Alloc::Pool => MemoryKind::Pool,
        };
        let asked = match self.mapping_type {
            MappingType::Default => None,
            MappingType::Wc => Some(Caching::WriteCombined),
            MappingType::Cache => Some(Caching::Cached),
            MappingType::Device => Some(Caching::Device),
        };
        let mapping = asked.map_or_else(MapOptions::default, |c| MapOptions::default().caching(c));
        Memory { kind, mapping }
    }

    /// The line that names the function, as GDRCopy's scripts know it.
    pub(crate) fn alloc_line(self) -> String {
        let name = match self.alloc {
            Alloc::Plain => "cuMemAlloc",
            Alloc::Vmm => "cuMemCreate",
            Alloc::Pool => "cuMemAllocAsync",
        };
        format!("gpu alloc fn: {name}")
    }
}

/// What to compare with.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Rival {
    /// cuMemcpy, from and to page-locked and pageable memory
    Cuda,
}

impl Rival {
    pub(crate) fn against(rival: Option<Self>) -> Against {
        match rival {
            Some(Self::Cuda) => Against::Cuda,
            None => Against::Nothing,
        }
    }
}

/// The GPUs that there are and the one in use, as all of GDRCopy's measuring tools begin.
pub(crate) fn introduce(
    machine: &Machine,
    global: &Global,
    output: &mut Output,
) -> gdr_perf::Result<()> {
    say_simulated(machine, output)?;
    for gpu in &machine.gpus {
        let info = gpu.info();
        let bdf = info.bdf;
        output.line(format_args!(
            "GPU id:{}; name: {}; Bus id: {:04x}:{:02x}:{:02x}",
            info.ordinal, info.name, bdf.domain, bdf.bus, bdf.device
        ))?;
    }
    output.line(format_args!("selecting device {}", global.gpu))
}

/// The lines about a mapping.
pub(crate) fn show_mapping(setup: &Setup, output: &mut Output) -> gdr_perf::Result<()> {
    output.line(format_args!("map_d_ptr: {:#x}", setup.map_ptr))?;
    output.line(format_args!("info.va: {:x}", setup.va))?;
    output.line(format_args!("info.mapped_size: {}", setup.mapped_bytes))?;
    output.line(format_args!("info.page_size: {}", setup.page_bytes))?;
    output.line("info.mapped: 1")?;
    output.line(format_args!(
        "info.wc_mapping: {}",
        u8::from(setup.write_combined)
    ))?;
    output.line(format_args!("page offset: {}", setup.page_offset))
}

/// The comparison with `cuMemcpy`, the ratio first.
pub(crate) fn show_comparison(rows: &[Comparison], output: &mut Output) -> gdr_perf::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    output.line("\nagainst cuMemcpy (ratio above 1: the mapping is faster; medians in us)")?;
    output.line(format_args!(
        "{:>9} {:>10} {:>9} {:>12} {:>12} {:>12}",
        "ratio", "Size(B)", "way", "mapping", "page-locked", "pageable"
    ))?;
    for row in rows {
        output.line(format_args!(
            "{:>9} {:>10} {:>9} {:>12.4} {:>12.4} {:>12.4}",
            format!("{:.2}x", row.ratio),
            row.size,
            row.way,
            row.mapping.median_us(),
            row.page_locked.median_us(),
            row.pageable.median_us()
        ))?;
    }
    Ok(())
}
