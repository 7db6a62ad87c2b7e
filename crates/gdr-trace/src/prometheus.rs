//! Report in Prometheus' text format, for node_exporter's textfile collector.

use std::collections::BTreeMap;

use gdr_render::prometheus::{Kind, Metrics, labels};

use crate::Report;

impl Report {
    /// Renders the metrics: `gdr_trace_bytes` and `gdr_trace_operations` by NIC, operation and memory,
    /// `gdr_trace_regions` and `gdr_trace_region_bytes` by NIC, memory and error number, `gdr_trace_completion_errors`
    /// by NIC and status, and `gdr_trace_direct_ratio`.
    pub fn prometheus(&self) -> String {
        let (mut bytes, mut operations) = (Sums::default(), Sums::default());
        for (nic, traffic) in self.by_nic() {
            for cell in traffic.cells() {
                let labels = labels(&[
                    ("nic", &nic),
                    ("operation", &cell.operation.name()),
                    ("memory", &cell.memory.name()),
                ]);
                bytes.add(labels.clone(), cell.bytes);
                operations.add(labels, cell.operations);
            }
        }
        let (mut regions, mut region_bytes) = (Sums::default(), Sums::default());
        for region in self.processes.iter().flat_map(|it| &it.regions) {
            let labels = labels(&[
                ("nic", &region.nic),
                ("memory", &region.memory.name()),
                ("errno", &region.errno.unwrap_or(0)),
            ]);
            regions.add(labels.clone(), region.count);
            region_bytes.add(labels, region.bytes);
        }
        let mut errors = Sums::default();
        for error in self.processes.iter().flat_map(|it| &it.errors) {
            let labels = labels(&[("nic", &error.nic), ("status", &error.status)]);
            errors.add(labels, error.count);
        }
        let mut metrics = Metrics::default();
        for (name, help, sums) in [
            ("gdr_trace_bytes", "Bytes moved.", bytes),
            ("gdr_trace_operations", "Operations.", operations),
            ("gdr_trace_regions", "Registrations.", regions),
            (
                "gdr_trace_region_bytes",
                "Bytes of registrations.",
                region_bytes,
            ),
            (
                "gdr_trace_completion_errors",
                "Completions with errors.",
                errors,
            ),
        ] {
            let family = metrics.family(name, Kind::Gauge, help);
            for (labels, sum) in &sums.0 {
                family.sample(labels, sum);
            }
        }
        if let Some(percent) = self.total.direct_percent() {
            let help = "Share of bytes from or to GPU memory.";
            metrics.single("gdr_trace_direct_ratio", Kind::Gauge, help, percent / 100.0);
        }
        metrics.to_string()
    }
}

/// Values of one metric by labels. Processes that used the same NIC add to the same series.
#[derive(Default)]
struct Sums(BTreeMap<String, u64>);

impl Sums {
    fn add(&mut self, labels: String, value: u64) {
        let sum = self.0.entry(labels).or_default();
        *sum = sum.saturating_add(value);
    }
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
