//! Traces of the processes of one run.

use serde::Serialize;

use crate::{Cell, MemoryKind, Operation, ProcessTrace, Requirement, layout};

/// What a run registered and moved.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The command line.
    pub command: Vec<String>,
    /// How it ended.
    pub ended: Ended,
    /// The sum of all queue pairs of all processes.
    pub total: Traffic,
    /// The requirement, and whether it was met.
    pub requirement: Option<Outcome>,
    /// Why the processes did not move the required bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmet_rdma: Option<String>,
    /// The processes that opened a device.
    pub processes: Vec<ProcessTrace>,
    /// What the ports of kernel devices moved in this time, for any process.
    pub ports: Vec<PortTraffic>,
    /// Trace files that cannot be read, and why.
    pub unreadable: Vec<String>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// With this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

/// The requirement, and whether it was met.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    /// Required share of direct bytes, in percent.
    pub direct_percent: f64,
    /// Whether it was reached.
    pub is_met: bool,
}

/// Increases of a kernel port's counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortTraffic {
    /// The device.
    pub nic: String,
    /// The port.
    pub port: u32,
    /// Bytes that it sent.
    pub sent_bytes: u64,
    /// Bytes that it received.
    pub received_bytes: u64,
}

/// Operations and bytes by operation and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic([(u64, u64); layout::CELLS]);

impl Traffic {
    /// Adds what a queue pair moved.
    pub fn add(&mut self, cell: &Cell) {
        let (operations, bytes) = &mut self.0[layout::cell(cell.operation, cell.memory)];
        *operations = operations.saturating_add(cell.operations);
        *bytes = bytes.saturating_add(cell.bytes);
    }

    /// Returns what moved; cells without operations are left out.
    pub fn cells(&self) -> impl Iterator<Item = Cell> {
        let all = Operation::ALL
            .into_iter()
            .flat_map(|operation| MemoryKind::ALL.map(|memory| (operation, memory)));
        all.filter_map(|(operation, memory)| {
            let (operations, bytes) = self.0[layout::cell(operation, memory)];
            let moved = Cell {
                operation,
                memory,
                operations,
                bytes,
            };
            (operations > 0).then_some(moved)
        })
    }

    /// Returns the bytes that `of` selects.
    pub fn bytes(&self, of: impl Fn(&Cell) -> bool) -> u64 {
        let bytes = self.cells().filter(of).map(|cell| cell.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the share of bytes, in percent, that a NIC itself read from or wrote to GPU memory; `None` without
    /// bytes.
    pub fn direct_percent(&self) -> Option<f64> {
        let all = self.bytes(|_| true);
        let direct = self.bytes(|cell| cell.memory.is_direct());
        (all > 0).then(|| direct as f64 / all as f64 * 100.0)
    }
}

impl Serialize for Traffic {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields {
            bytes: u64,
            direct_bytes: u64,
            direct_percent: Option<f64>,
            cells: Vec<Cell>,
        }
        Fields {
            bytes: self.bytes(|_| true),
            direct_bytes: self.bytes(|cell| cell.memory.is_direct()),
            direct_percent: self.direct_percent(),
            cells: self.cells().collect(),
        }
        .serialize(serializer)
    }
}

impl Report {
    /// Puts processes together.
    pub fn new(command: Vec<String>, ended: Ended, mut processes: Vec<ProcessTrace>) -> Self {
        processes.sort_by_key(|process| (process.started_ns, process.pid));
        let mut total = Traffic::default();
        for pair in processes.iter().flat_map(|process| &process.queue_pairs) {
            pair.traffic.iter().for_each(|cell| total.add(cell));
        }
        Self {
            command,
            ended,
            total,
            requirement: None,
            unmet_rdma: None,
            processes,
            ports: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    /// Compares the run with a requirement; returns whether it is met.
    pub fn require(&mut self, requirement: &Requirement) -> bool {
        let is_met = requirement.is_met(&self.total);
        self.requirement = Some(Outcome {
            direct_percent: requirement.least_percent(),
            is_met,
        });
        is_met
    }

    /// Returns the traffic of each NIC, by name.
    pub fn by_nic(&self) -> Vec<(&str, Traffic)> {
        let mut nics: Vec<(&str, Traffic)> = Vec::new();
        for pair in self.processes.iter().flat_map(|it| &it.queue_pairs) {
            let at = match nics.iter().position(|(name, _)| *name == pair.nic) {
                Some(at) => at,
                None => {
                    nics.push((&pair.nic, Traffic::default()));
                    nics.len() - 1
                }
            };
            if let Some((_, traffic)) = nics.get_mut(at) {
                pair.traffic.iter().for_each(|cell| traffic.add(cell));
            }
        }
        nics.sort_by_key(|(name, _)| *name);
        nics
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{CompletionErrors, NicTrace, QueuePairTrace, RegionTrace, UnseenPosts};

    fn cell(operation: Operation, memory: MemoryKind, bytes: u64) -> Cell {
        Cell {
            operation,
            memory,
            operations: bytes / 1000,
            bytes,
        }
    }

    /// Returns a run with something of everything.
    pub(crate) fn sample() -> Report {
        let region = |memory, gpu, errno| RegionTrace {
            nic: "mlx5_0".to_owned(),
            memory,
            gpu,
            errno,
            count: 2,
            bytes: 1 << 20,
            live: 1,
        };
        let process = ProcessTrace {
            pid: 42,
            program: vec!["all_reduce".to_owned(), "-b".to_owned()],
            started_ns: 1,
            nics: vec![NicTrace {
                name: "mlx5_0".to_owned(),
                opened: 1,
            }],
            regions: vec![
                region(MemoryKind::Host, None, None),
                region(MemoryKind::DmaBuf, Some(0), None),
                region(MemoryKind::GpuByAddress, Some(0), Some(14)),
            ],
            queue_pairs: vec![QueuePairTrace {
                nic: "mlx5_0".to_owned(),
                qpn: Some(291),
                qp_type: 2,
                refused_requests: 0,
                traffic: vec![
                    cell(Operation::Send, MemoryKind::Host, 4_000),
                    cell(Operation::Write, MemoryKind::DmaBuf, 96_000),
                ],
            }],
            errors: vec![CompletionErrors {
                nic: "mlx5_0".to_owned(),
                qpn: Some(291),
                status: 12,
                count: 1,
            }],
            unseen_posts: vec![UnseenPosts::Mlx5Devx],
            ..ProcessTrace::default()
        };
        let command = vec!["all_reduce".to_owned(), "-b".to_owned()];
        let mut report = Report::new(command, Ended::Status(0), vec![process]);
        report.ports.push(PortTraffic {
            nic: "mlx5_0".to_owned(),
            port: 1,
            sent_bytes: 100_500,
            received_bytes: 900,
        });
        report
    }

    #[test]
    fn a_report_sums_its_queue_pairs_by_nic_and_in_all() {
        let mut report = sample();
        assert_eq!(report.total.bytes(|_| true), 100_000);
        assert_eq!(report.total.direct_percent(), Some(96.0));
        let nics = report.by_nic();
        assert_eq!(nics.len(), 1);
        assert_eq!((nics[0].0, &nics[0].1), ("mlx5_0", &report.total));
        assert!(report.require(&"direct=96%".parse().unwrap()));
        assert!(!report.require(&"direct=97%".parse().unwrap()));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["requirement"]["is_met"], false);
        assert_eq!(json["total"]["direct_bytes"], 96_000);
        assert_eq!(json["ended"]["status"], 0);
        assert_eq!(json["processes"][0]["regions"][2]["errno"], 14);
    }
}
