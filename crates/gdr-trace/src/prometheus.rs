//! A report in Prometheus' text format, for node_exporter's textfile collector.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Report;

impl Report {
    /// The metrics: `gdr_trace_bytes` and `gdr_trace_operations` by NIC, operation and memory,
    /// `gdr_trace_regions` and `gdr_trace_region_bytes` by NIC, memory and error number,
    /// `gdr_trace_completion_errors` by NIC and status, and `gdr_trace_direct_ratio`.
    pub fn prometheus(&self) -> String {
        let mut bytes = Series::new("gdr_trace_bytes", "Bytes moved.");
        let mut operations = Series::new("gdr_trace_operations", "Operations.");
        for (nic, traffic) in self.by_nic() {
            for cell in traffic.cells() {
                let labels = format!(
                    "nic=\"{}\",operation=\"{}\",memory=\"{}\"",
                    label(nic),
                    cell.operation.name(),
                    cell.memory.name()
                );
                bytes.add(labels.clone(), cell.bytes);
                operations.add(labels, cell.operations);
            }
        }
        let mut regions = Series::new("gdr_trace_regions", "Registrations.");
        let mut region_bytes = Series::new("gdr_trace_region_bytes", "Bytes of registrations.");
        for region in self.processes.iter().flat_map(|it| &it.regions) {
            let labels = format!(
                "nic=\"{}\",memory=\"{}\",errno=\"{}\"",
                label(&region.nic),
                region.memory.name(),
                region.errno.unwrap_or(0)
            );
            regions.add(labels.clone(), region.count);
            region_bytes.add(labels, region.bytes);
        }
        let mut errors = Series::new("gdr_trace_completion_errors", "Completions with errors.");
        for error in self.processes.iter().flat_map(|it| &it.errors) {
            let labels = format!("nic=\"{}\",status=\"{}\"", label(&error.nic), error.status);
            errors.add(labels, error.count);
        }
        let mut out = String::new();
        for series in [bytes, operations, regions, region_bytes, errors] {
            series.render(&mut out);
        }
        if let Some(percent) = self.total.direct_percent() {
            // Writing to a string never fails.
            let _ = writeln!(
                out,
                "# HELP gdr_trace_direct_ratio Share of bytes from or to GPU memory.\n\
                 # TYPE gdr_trace_direct_ratio gauge\ngdr_trace_direct_ratio {}",
                percent / 100.0
            );
        }
        out
    }
}

/// The values of one metric, each set of labels once.
struct Series {
    name: &'static str,
    help: &'static str,
    values: BTreeMap<String, u64>,
}

impl Series {
    const fn new(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            values: BTreeMap::new(),
        }
    }

    fn add(&mut self, labels: String, value: u64) {
        let sum = self.values.entry(labels).or_default();
        *sum = sum.saturating_add(value);
    }

    fn render(&self, out: &mut String) {
        if self.values.is_empty() {
            return;
        }
        let Self { name, help, .. } = self;
        // Writing to a string never fails.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (labels, value) in &self.values {
            let _ = writeln!(out, "{name}{{{labels}}} {value}");
        }
    }
}

/// Writes a label's value, with the three characters escaped that Prometheus escapes.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use crate::report::tests::sample;

    #[test]
    fn every_kind_of_memory_is_a_series() {
        let mut report = sample();
        report.processes.push(report.processes[0].clone());
        let text = report.prometheus();
        for line in [
            "# TYPE gdr_trace_bytes gauge",
            "gdr_trace_bytes{nic=\"mlx5_0\",operation=\"write\",memory=\"dma_buf\"} 192000",
            "gdr_trace_regions{nic=\"mlx5_0\",memory=\"gpu_by_address\",errno=\"14\"} 4",
            "gdr_trace_completion_errors{nic=\"mlx5_0\",status=\"12\"} 2",
            "gdr_trace_direct_ratio 0.96",
        ] {
            assert!(
                text.lines().any(|it| it == line),
                "{line} is not in\n{text}"
            );
        }
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), text.lines().count());
    }
}
