//! Table of `gdr compare`.

use gdr_perf::Result;
use gdr_perf::loopback::TransferMode;
use gdr_perf::loopback::pipeline::{
    CostModel, Crossing, FrameFigures, PipelineEvent, PipelineReport, PipelineRow, Published,
};
use gdr_perf::transfer::{MemoryFacts, Role};

use crate::commands::describe;
use crate::figures::{
    Cell, Column, DURATION, FigureOptions, Figures, RATE, SIMULATED, duration, rate,
};
use crate::output::Output;

const ROW: [Column; 2] = [
    Column::new("bytes", "size", 10),
    Column::new("mode", "mode", 7),
];
const RECEIVE: [Column; 1] = [Column::new("receive us", "receive_median_us", 10)];
const RATIO: [Column; 2] = [
    Column::new("ratio", "times_faster_than_staged", 7),
    SIMULATED,
];

/// A table, written row by row.
pub(super) struct Table {
    options: FigureOptions,
    figures: Figures,
    is_simulated: bool,
    simulation_is_known: bool,
}

impl Table {
    pub(super) fn new(options: FigureOptions) -> Self {
        Self {
            options,
            figures: Figures::new(options, &[&ROW, &DURATION, &RECEIVE, &RATE, &RATIO]),
            is_simulated: false,
            simulation_is_known: false,
        }
    }

    /// Records that the output has said whether this process's GPU is simulated.
    pub(super) fn simulation_is_known(&mut self) {
        self.simulation_is_known = true;
    }

    pub(super) fn event(&mut self, event: &PipelineEvent<'_>, output: &mut Output) -> Result<()> {
        match event {
            PipelineEvent::Listening(address) if !self.options.csv => {
                output.line(format_args!("waiting   for a client at {address}"))
            }
            PipelineEvent::Ready(report) => {
                self.is_simulated = report.subject.simulated;
                let role = report.processes.as_ref().map(|both| both.role);
                if self.is_simulated && !self.simulation_is_known && role == Some(Role::Server) {
                    let why = "the GPU of the client";
                    match self.options.csv {
                        true => Output::simulated_aside(why),
                        false => output.simulated(why)?,
                    }
                }
                if !self.options.csv {
                    introduce(report, output)?;
                }
                output.line(self.figures.head())
            }
            PipelineEvent::Measured(row) => self.lines(row).try_for_each(|line| output.line(line)),
            _ => Ok(()),
        }
    }

    /// Returns the lines of a size: one for each mode.
    fn lines(&self, row: &PipelineRow) -> impl Iterator<Item = String> {
        let staged = self.cells(row, "staged", &row.staged, None);
        let direct = row.direct.as_ref();
        let direct = direct.map(|figures| self.cells(row, "direct", figures, row.ratio));
        let modes = [Some(staged), direct].into_iter().flatten();
        modes.map(|cells| self.figures.row(&cells))
    }

    fn cells(
        &self,
        row: &PipelineRow,
        name: &str,
        figures: &FrameFigures,
        ratio: Option<f64>,
    ) -> Vec<Cell> {
        let mut cells = vec![Cell::Count(row.size), Cell::text(name)];
        cells.extend(duration(&figures.total));
        cells.push(Cell::Figure(figures.receive.median_ns / 1000.0));
        cells.extend(rate(row.size, figures.gb_per_s));
        cells.extend([Cell::Ratio(ratio), Cell::text(self.is_simulated)]);
        cells
    }

    /// Writes the lines below the table.
    pub(super) fn end(&self, report: &PipelineReport, output: &mut Output) -> Result<()> {
        if self.options.csv {
            return Ok(());
        }
        output.line("")?;
        for (name, model) in [
            ("staged", &report.staged_model),
            ("direct", &report.direct_model),
        ] {
            if let Some(model) = model {
                output.line(format_args!("{name}    {}", cost(model)))?;
            }
        }
        if let Some(crossing) = report.crossing {
            output.line(format_args!("by these  {}", sentence(crossing)))?;
        }
        if let Some(published) = &report.published {
            let Published {
                staged_gbit_per_s: staged,
                direct_gbit_per_s: direct,
                hardware,
            } = published;
            output.line(format_args!(
                "published staged {staged} Gb/s, direct {direct} Gb/s, ratio {:.2}x",
                direct / staged
            ))?;
            output.paragraph("          ", "          ", &format!("({hardware})"))?;
        }
        output.line("every word of the results was compared, before and after each size")
    }
}

fn introduce(report: &PipelineReport, output: &mut Output) -> Result<()> {
    for (what, words) in device_in_words(report) {
        output.paragraph(&format!("{what:<10}"), "          ", &words)?;
    }
    output.paragraph("frames    ", "          ", &frames_in_words(&report.source))?;
    output.line(format_args!(
        "GPU       {}, {}",
        describe(&report.subject),
        report.allocated_by
    ))?;
    output.line(format_args!("path MTU  {}", report.path.mtu))?;
    if let Some(reason) = &report.direct_missing {
        output.paragraph(
            "direct    ",
            "          ",
            &format!("not measured: {reason}"),
        )?;
    }
    if let Some(method) = &report.direct {
        output.paragraph("direct    ", "          ", method)?;
    }
    output.line(
        "\nfrom the post of the READ until the kernel's result is in host memory; `receive` until the \
         READ",
    )?;
    output.line("is complete; ratio: how many times faster the direct mode is than the staged one")
}

/// Returns the devices, with their hosts if there are two processes. Texts from a peer were escaped on arrival.
pub(super) fn device_in_words(report: &PipelineReport) -> [(&'static str, String); 2] {
    let processes = report.processes.as_ref();
    let path = &report.path;
    [
        ("from", &path.from, processes.map(|both| &both.from)),
        ("to", &path.to, processes.map(|both| &both.to)),
    ]
    .map(|(what, end, process)| {
        let host = process.and_then(|process| process.host.as_deref());
        let host = host.map_or_else(String::new, |host| format!("{host}: "));
        let words = format!(
            "{host}{}, UDP {}, {}",
            end.device, end.address, end.provider
        );
        (what, words)
    })
}

/// Returns where the frames are, and how GPU memory is reached.
pub(super) fn frames_in_words(source: &MemoryFacts) -> String {
    let Some(gpu) = &source.gpu else {
        return "in host memory".to_owned();
    };
    let how = match source.reached {
        Some(TransferMode::Direct) => "read through a mapping of it",
        Some(TransferMode::Device) => "read by the device itself",
        Some(TransferMode::Staged) | None => "staged through host memory",
    };
    let mut words = format!("in memory of {}", describe(gpu));
    if let Some(function) = &source.allocated_by {
        words += &format!(", {function}");
    }
    words += &format!("; {how}");
    if let Some(why) = &source.why {
        words += &format!(" ({why})");
    }
    words
}

/// Returns the cost of a frame by its size.
fn cost(model: &CostModel) -> String {
    let rate = match model.ns_per_byte > 0.0 {
        true => format!(
            "1 byte each {:.4} ns ({:.3} GB/s)",
            model.ns_per_byte,
            1.0 / model.ns_per_byte
        ),
        false => "nothing for each byte".to_owned(),
    };
    format!(
        "{:.1} us a frame and {rate}; off by {:.0} % at most",
        model.fixed_ns / 1000.0,
        model.worst_error * 100.0
    )
}

pub(super) fn sentence(crossing: Crossing) -> String {
    match crossing {
        Crossing::Direct => "direct is faster at every measured size".to_owned(),
        Crossing::Staged => "staged is faster at every measured size".to_owned(),
        Crossing::DirectBelow(bytes) => format!("direct is faster below {}", about(bytes)),
        Crossing::Unclear => {
            "there is no clear difference: the modes differ by less than the model is wrong by"
                .to_owned()
        }
        Crossing::DirectFrom(bytes) => format!("direct is faster from {} on", about(bytes)),
    }
}

/// Rounds a size to two digits, which is as precise as the fit.
fn about(bytes: u64) -> String {
    let unit = 10u64.pow(bytes.max(1).ilog10().saturating_sub(1));
    format!("about {} bytes", (bytes + unit / 2) / unit * unit)
}

#[cfg(test)]
pub(super) mod tests {
    use gdr_perf::loopback::pipeline::PipelineProcesses;
    use gdr_perf::loopback::{End, Path};
    use gdr_perf::report::{ProcessFacts, Schema, Subject};
    use gdr_perf::stats::Summary;
    use serde_json::Value;
    use snapshot::assert_contains;

    use super::super::picture;
    use super::*;
    use crate::units::figure;

    fn figures(size: u64, base: f64) -> FrameFigures {
        let summary = |base: f64| Summary {
            samples: size,
            min_ns: base + 101.3,
            mean_ns: base + 301.7,
            median_ns: base + 201.1,
            p90_ns: base + 401.9,
            p99_ns: base + 501.3,
            p999_ns: base + 601.7,
            max_ns: base + 801.3,
            stddev_ns: base / 13.0,
        };
        FrameFigures {
            total: summary(base),
            receive: summary(base / 3.0),
            gb_per_s: base / 17.0,
        }
    }

    /// Returns a report with figures that all differ.
    fn report() -> PipelineReport {
        let process = || ProcessFacts {
            host: Some("node<1>".into()),
            gdr: "0.1.0".into(),
            cpus: None,
        };
        let end = |address: &str| End {
            device: "soft".into(),
            address: address.parse().unwrap(),
            provider: "soft".into(),
            integrity: "all".into(),
        };
        let rows = [64_u64, 4096, 65_536].map(|size| {
            let base = size as f64;
            PipelineRow {
                size,
                staged: figures(size, 40.0 * base),
                direct: Some(figures(size, 700.0 + 21.0 * base)),
                ratio: Some(base / 7.0),
            }
        });
        let model = |fixed_ns| CostModel {
            fixed_ns,
            ns_per_byte: 0.5,
            worst_error: 0.1,
        };
        PipelineReport {
            schema: Schema::first("gdr.compare"),
            subject: Subject {
                simulated: true,
                backend: "sim".into(),
                route: None,
                gpu: "a GPU".into(),
                pci: "0000:01:00.0".into(),
                cuda: "13.0".into(),
                driver: None,
            },
            allocated_by: "cuMemAlloc".into(),
            source: MemoryFacts::host(),
            path: Path {
                from: end("127.0.0.1:4791"),
                to: end("127.0.0.2:4791"),
                mtu: 4096,
                message: 65_536,
                queue_pairs: 1,
            },
            processes: Some(PipelineProcesses {
                role: Role::Client,
                from: process(),
                to: process(),
            }),
            direct: Some("mapped".into()),
            direct_missing: None,
            rows: rows.to_vec(),
            staged_model: Some(model(1.0)),
            direct_model: Some(model(2.0)),
            crossing: Some(Crossing::DirectFrom(777)),
            published: None,
        }
    }

    /// Returns the lines of a table, split into cells.
    fn table(report: &PipelineReport, options: FigureOptions, separator: char) -> Vec<Vec<String>> {
        let table = Table::new(options);
        let rows = report.rows.iter().flat_map(|row| table.lines(row));
        std::iter::once(table.figures.head())
            .chain(rows)
            .map(|line| {
                let cells = line
                    .split(separator)
                    .filter(|cell| separator == ',' || !cell.is_empty());
                cells.map(str::to_owned).collect()
            })
            .collect()
    }

    #[test]
    fn text_csv_json_and_picture_have_the_same_numbers() {
        let report = report();
        let json: Value = serde_json::to_value(&report).unwrap();
        let csv = table(&report, FigureOptions::csv(), ',');
        let text = table(&report, FigureOptions::default(), ' ');
        let picture = picture::svg(&report);
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(csv.len(), 1 + 2 * rows.len());
        for (at, (row, mode)) in rows
            .iter()
            .flat_map(|row| ["staged", "direct"].map(|mode| (row, mode)))
            .enumerate()
        {
            let cell = |name: &str| {
                let column = csv[0].iter().position(|title| title == name).unwrap();
                csv[at + 1][column].as_str()
            };
            let number = |name: &str| cell(name).parse::<f64>().unwrap();
            let figures = &row[mode];
            assert_eq!(cell("mode"), mode);
            assert_eq!(Some(number("size")), row["size"].as_f64());
            assert_eq!(Some(number("gb_per_s")), figures["gb_per_s"].as_f64());
            for name in ["min", "mean", "median", "p99", "max"] {
                let ns = figures["total"][format!("{name}_ns")].as_f64().unwrap();
                assert_eq!(number(&format!("{name}_us")), ns / 1000.0, "{name}");
            }
            let receive = figures["receive"]["median_ns"].as_f64().unwrap();
            assert_eq!(number("receive_median_us"), receive / 1000.0);
            // Text and picture round the same figures in the same way.
            let median = figure(number("median_us"));
            assert!(
                text[at + 1].contains(&median),
                "{:?}: {median}",
                text[at + 1]
            );
            let size = &row["size"];
            let title = format!("<title>{size} bytes: {median} us, {mode}</title>");
            assert!(picture.contains(&title), "{title}: {picture}");
            if mode == "direct" {
                let ratio = number("times_faster_than_staged");
                assert_eq!(Some(ratio), row["ratio"].as_f64());
                let shown = format!("{ratio:.2}x");
                assert_eq!(text[at + 1].last(), Some(&shown));
                let title = format!("<title>{size} bytes: {shown}, staged / direct</title>");
                assert!(picture.contains(&title), "{title}: {picture}");
            }
        }
        assert_eq!(picture.matches("<circle").count(), 9);
    }

    #[test]
    fn the_picture_has_the_crossing_and_nothing_that_a_peer_could_make_markup_of() {
        let picture = picture::svg(&report());
        assert_contains!(
            picture,
            ">by the fitted costs, direct is faster from about 780 bytes on<"
        );
        assert!(picture.contains("node&lt;1&gt;") && !picture.contains("node<1>"));
        assert!(picture.contains("SIMULATED"));
    }

    #[test]
    fn the_memory_of_the_frames_is_named_where_it_is_a_gpus() {
        let mut report = report();
        assert!(picture::svg(&report).contains("frames: in host memory"));
        report.source = MemoryFacts {
            gpu: Some(report.subject.clone()),
            allocated_by: Some("cuMemAlloc".into()),
            reached: Some(TransferMode::Staged),
            why: Some("requested".into()),
            ..MemoryFacts::host()
        };
        let words = "in memory of simulated: a GPU (0000:01:00.0), backend sim, cuMemAlloc; staged through \
                     host memory (requested)";
        assert_eq!(frames_in_words(&report.source), words);
        assert!(picture::svg(&report).contains(&format!("frames: {words}")));
    }

    #[test]
    fn without_a_direct_mode_there_is_one_curve_and_no_ratio() {
        let mut report = report();
        report.direct = None;
        report.crossing = None;
        for row in &mut report.rows {
            (row.direct, row.ratio) = (None, None);
        }
        let picture = picture::svg(&report);
        assert_eq!(picture.matches("<circle").count(), 3);
        assert!(!picture.contains("staged / direct"), "{picture}");
    }
}
