//! Options and output shared by GDRCopy's measuring tools.

use clap::ValueEnum;
use gdr_copy::{Caching, MapOptions};
use gdr_cuda::MemoryKind;
use gdr_perf::baseline::{Baseline, Comparison};
use gdr_perf::mapped_buffer::{BufferOptions, Setup};

use super::say_simulated;
use crate::figures::FigureOptions;
use crate::global::{Called, Global};
use crate::gpu_context::GpuContext;
use crate::output::Output;

/// How to allocate and map, with the options of GDRCopy's tools.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct MemoryOptions {
    /// CUDA function that allocates the GPU memory
    #[arg(short = 'a', long = "alloc", value_enum, value_name = "FN", default_value_t = Alloc::Plain)]
    alloc: Alloc,

    /// Mapping type to request
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
    /// VMM memory, exportable as a POSIX file descriptor
    #[value(name = "cuMemCreate")]
    Vmm,
    /// From the stream-ordered memory pool
    #[value(name = "cuMemAllocAsync")]
    Pool,
}

/// A type of mapping, as GDRCopy names it.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum MappingType {
    Default,
    Wc,
    Cache,
    Device,
}

impl MemoryOptions {
    pub(crate) fn memory(self) -> BufferOptions {
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
        let mapping = asked.map_or_else(MapOptions::default, |c| MapOptions::new().with_caching(c));
        BufferOptions { kind, mapping }
    }

    /// Returns the line that names the function, as GDRCopy's scripts know it.
    pub(crate) fn alloc_line(self) -> String {
        let name = match self.alloc {
            Alloc::Plain => "cuMemAlloc",
            Alloc::Vmm => "cuMemCreate",
            Alloc::Pool => "cuMemAllocAsync",
        };
        format!("gpu alloc fn: {name}")
    }
}

/// The value of `--against`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Rival {
    /// cuMemcpy, to and from page-locked and pageable memory
    Cuda,
}

impl Rival {
    pub(crate) fn baseline(rival: Option<Self>) -> Baseline {
        match rival {
            Some(Self::Cuda) => Baseline::CuMemcpy,
            None => Baseline::None,
        }
    }
}

/// Text that a measuring tool prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Text {
    /// No text: `--json` prints a document.
    None,
    /// The figures as CSV.
    Csv,
    /// The lines of GDRCopy's tool.
    Tool,
    /// The same lines and a table of figures.
    Figures,
}

impl Text {
    /// Writes sentences of GDRCopy's tools: on one line under their own names, for scripts that compare lines,
    /// otherwise within the width of the terminal.
    pub(crate) fn say(self, text: &str, output: &mut Output) -> gdr_perf::Result<()> {
        match self {
            Self::Tool => output.line(text),
            _ => text
                .lines()
                .try_for_each(|line| output.paragraph("", "", line)),
        }
    }

    pub(crate) fn of(global: &Global, figures: FigureOptions) -> Self {
        match (global.json, figures.csv, global.called) {
            (true, ..) => Self::None,
            (_, true, _) => Self::Csv,
            (_, _, Called::Gdrcopy) if !figures.is_given() => Self::Tool,
            _ => Self::Figures,
        }
    }

    /// Returns whether the lines of GDRCopy's tool are printed.
    pub(crate) fn has_lines(self) -> bool {
        matches!(self, Self::Tool | Self::Figures)
    }

    /// Returns whether a table of figures is printed.
    pub(crate) fn has_figures(self) -> bool {
        matches!(self, Self::Csv | Self::Figures)
    }
}

/// Prints all GPUs and the chosen one, as GDRCopy's measuring tools do at the start.
pub(crate) fn introduce(gpu: &GpuContext, text: Text, output: &mut Output) -> gdr_perf::Result<()> {
    match (text, &gpu.simulated) {
        (Text::Csv, Some(reason)) => {
            Output::simulated_aside(reason);
            return Ok(());
        }
        (Text::None, _) | (Text::Csv, None) => return Ok(()),
        (Text::Tool | Text::Figures, _) => say_simulated(gpu, output)?,
    }
    for gpu in &gpu.gpus {
        let info = gpu.info();
        let bdf = info.bdf;
        output.line(format_args!(
            "GPU id:{}; name: {}; Bus id: {:04x}:{:02x}:{:02x}",
            info.ordinal, info.name, bdf.domain, bdf.bus, bdf.device
        ))?;
    }
    let chosen = gpu.target.gpu().info().ordinal;
    output.line(format_args!("selecting device {chosen}"))
}

/// Prints the lines about a mapping.
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

/// Prints the comparison with `cuMemcpy`.
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
            row.direction,
            row.mapping.median_us(),
            row.page_locked.median_us(),
            row.pageable.median_us()
        ))?;
    }
    Ok(())
}
