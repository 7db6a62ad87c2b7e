//! Report as text of at most 100 columns.

use std::fmt;

use gdr_render::Table;
use gdr_verbs_sys::{Errno, ibv_qp_type, ibv_wc_status};

use crate::process_trace::UnseenPosts;
use crate::{Ended, MemoryKind, Operation, ProcessTrace, QueuePairTrace, Report};

/// Number of queue pairs to list, in descending order of bytes.
const MOST_QUEUE_PAIRS: usize = 16;
/// Number of characters to show of a name.
const NAME: usize = 16;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary(f)?;
        self.regions(f)?;
        self.traffic(f)?;
        self.queue_pairs(f)?;
        self.errors(f)?;
        self.ports(f)?;
        self.notes(f)
    }
}

impl Report {
    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: usize = self.processes.iter().map(|it| it.queue_pairs.len()).sum();
        let bytes = Bytes(self.total.bytes(|_| true));
        let moved = match self.total.direct_percent() {
            Some(percent) => format!("{bytes} moved, {percent:.1}% direct from or to GPU memory"),
            None => "no bytes moved".to_owned(),
        };
        let ended = match self.ended {
            Ended::Status(0) => String::new(),
            Ended::Status(status) => format!("the program ended with status {status}\n"),
            Ended::Signal(signal) => format!("the program was ended by signal {signal}\n"),
        };
        let processes = Count(self.processes.len(), "process", "processes");
        let pairs = Count(pairs, "queue pair", "queue pairs");
        write!(f, "gdr trace: {processes}, {pairs}: {moved}\n{ended}")?;
        if let Some(outcome) = &self.requirement {
            let met = if outcome.is_met { "met" } else { "NOT MET" };
            writeln!(f, "required: direct={}%: {met}", outcome.direct_percent)?;
        }
        Ok(())
    }

    fn regions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<Registered> = Vec::new();
        for region in self.processes.iter().flat_map(|it| &it.regions) {
            let key = (&*region.nic, region.memory, region.gpu, region.errno);
            match rows.iter_mut().find(|row| row.key == key) {
                Some(row) => {
                    row.count = row.count.saturating_add(region.count);
                    row.bytes = row.bytes.saturating_add(region.bytes);
                    row.live = row.live.saturating_add(region.live);
                }
                None => rows.push(Registered {
                    key,
                    count: region.count,
                    bytes: region.bytes,
                    live: region.live,
                }),
            }
        }
        rows.sort_by_key(|row| row.key);
        let heads = ["NIC", "memory", "GPU", "count", "bytes", "live", "result"];
        let mut table = Table::new(&heads).align_right(2..6);
        for row in &rows {
            let (nic, memory, gpu, errno) = row.key;
            table.row(vec![
                cut(nic),
                memory.to_string(),
                gpu.map_or_else(|| "-".to_owned(), |gpu| gpu.to_string()),
                row.count.to_string(),
                Bytes(row.bytes).to_string(),
                row.live.to_string(),
                match errno {
                    None => "registered".to_owned(),
                    Some(errno) => format!("refused: {}", Errno(errno.cast_signed())),
                },
            ]);
        }
        section(f, "Memory regions", rows.is_empty(), |f| show(&table, f))
    }

    fn traffic(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut nics = self.by_nic();
        nics.retain(|(_, traffic)| traffic.cells().next().is_some());
        let heads: Vec<&str> = ["NIC", "memory"]
            .into_iter()
            .chain(Operation::ALL.map(Operation::name))
            .collect();
        let mut table = Table::new(&heads).align_right(2..heads.len());
        for (nic, traffic) in &nics {
            for memory in MemoryKind::ALL {
                let cells: Vec<_> = traffic.cells().filter(|it| it.memory == memory).collect();
                if cells.is_empty() {
                    continue;
                }
                let of_operations = Operation::ALL.map(|operation| {
                    let cell = cells.iter().find(|cell| cell.operation == operation);
                    cell.map_or_else(
                        || "-".to_owned(),
                        |it| format!("{}\n({})", Bytes(it.bytes), it.operations),
                    )
                });
                let head = [cut(nic), memory.to_string()];
                table.row(head.into_iter().chain(of_operations).collect());
            }
        }
        let title = "Bytes (operations) by NIC and memory";
        section(f, title, nics.is_empty(), |f| show(&table, f))
    }

    fn queue_pairs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pairs: Vec<(&ProcessTrace, &QueuePairTrace)> = self
            .processes
            .iter()
            .flat_map(|process| process.queue_pairs.iter().map(move |pair| (process, pair)))
            .collect();
        pairs.sort_by_key(|(process, pair)| (u64::MAX - pair.bytes(), process.pid, pair.qpn));
        let others = pairs.len().saturating_sub(MOST_QUEUE_PAIRS);
        let heads = [
            "NIC", "process", "number", "type", "host", "GPU", "other", "refused",
        ];
        let mut table = Table::new(&heads).align_right([1, 2, 4, 5, 6, 7]);
        for (process, pair) in pairs.iter().take(MOST_QUEUE_PAIRS) {
            let sum = |of: fn(MemoryKind) -> bool| {
                let cells = pair.traffic.iter().filter(|cell| of(cell.memory));
                Bytes(cells.fold(0, |sum, cell| cell.bytes.saturating_add(sum))).to_string()
            };
            let kind = ibv_qp_type(pair.qp_type);
            let kind = kind.name().and_then(|name| name.strip_prefix("IBV_QPT_"));
            table.row(vec![
                cut(&pair.nic),
                process.pid.to_string(),
                number(pair.qpn),
                kind.unwrap_or("-").to_owned(),
                sum(|memory| memory == MemoryKind::Host),
                sum(MemoryKind::is_direct),
                sum(|memory| !memory.is_direct() && memory != MemoryKind::Host),
                pair.refused_requests.to_string(),
            ]);
        }
        section(f, "Queue pairs", pairs.is_empty(), |f| {
            show(&table, f)?;
            match others {
                0 => Ok(()),
                _ => writeln!(f, "  and {others} more, which JSON lists"),
            }
        })
    }

    fn errors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<_> = self.processes.iter().flat_map(|it| &it.errors).collect();
        section(f, "Completions with errors", errors.is_empty(), |f| {
            for error in &errors {
                let number = number(error.qpn);
                let status = ibv_wc_status(error.status);
                let (nic, count) = (cut(&error.nic), error.count);
                writeln!(
                    f,
                    "  {nic:<NAME$} queue pair {number:>9}  {count:>9} x {status}"
                )?;
            }
            Ok(())
        })
    }

    fn ports(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        section(
            f,
            "Ports of kernel devices, all processes",
            self.ports.is_empty(),
            |f| {
                for port in &self.ports {
                    let (nic, number) = (cut(&port.nic), port.port);
                    let (sent, received) = (Bytes(port.sent_bytes), Bytes(port.received_bytes));
                    writeln!(
                        f,
                        "  {nic:<NAME$} port {number}: {sent} sent, {received} received"
                    )?;
                }
                Ok(())
            },
        )
    }

    fn notes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for process in &self.processes {
            let pid = process.pid;
            for unseen in &process.unseen_posts {
                let by = match unseen {
                    UnseenPosts::Mlx5DirectVerbs => "mlx5dv_init_obj",
                    UnseenPosts::Mlx5Devx => "DEVX",
                };
                writeln!(
                    f,
                    "note: process {pid} posts by {by}: of that, only registrations and port \
                     counters are seen"
                )?;
            }
            if process.is_cuda_unknown {
                writeln!(
                    f,
                    "note: process {pid}: CUDA could not be queried; GPU memory may count as host \
                     memory"
                )?;
            }
            if process.is_table_full {
                writeln!(
                    f,
                    "note: process {pid} had more objects than a trace has rows; the last are \
                     counted as \"other\""
                )?;
            }
        }
        if self.processes.is_empty() {
            writeln!(
                f,
                "note: no process opened an RDMA device through libibverbs"
            )?;
        }
        for why in &self.unreadable {
            writeln!(f, "note: {why}")?;
        }
        Ok(())
    }
}

/// Registrations of one kind in all processes.
struct Registered<'a> {
    key: (&'a str, MemoryKind, Option<u32>, Option<u32>),
    count: u64,
    bytes: u64,
    live: u64,
}

/// Writes a part of the report, which is left out if it is empty.
fn section(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    is_empty: bool,
    content: impl FnOnce(&mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    if is_empty {
        return Ok(());
    }
    writeln!(f, "\n{title}")?;
    content(f)
}

/// Writes a table below its title.
fn show(table: &Table, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let lines = table.whole_lines();
    lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
}

/// Returns the number of a queue pair.
fn number(qpn: Option<u32>) -> String {
    qpn.map_or_else(|| "-".to_owned(), |qpn| qpn.to_string())
}

/// Returns the first characters of a name, without those that would control a terminal.
fn cut(name: &str) -> String {
    let shown = name.chars().filter(|it| !it.is_control());
    shown.take(NAME).collect()
}

/// A number of things.
struct Count(usize, &'static str, &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, one, many) = self;
        write!(f, "{count} {}", if *count == 1 { one } else { many })
    }
}

/// A number of bytes, shown with three or four digits.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = UNITS[0];
        for next in &UNITS[1..] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        write!(f, "{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn the_text_names_every_kind_of_memory_and_fits_100_columns() {
        let mut report = sample();
        report.require(&"direct=97%".parse().unwrap());
        let text = report.to_string();
        for expected in [
            "gdr trace: 1 process, 1 queue pair: 97.7 KiB moved, 96.0% direct",
            "required: direct=97%: NOT MET",
            "GPU (dma-buf)       0      2  1.0 MiB",
            "refused: EFAULT (14)",
            "93.8 KiB",
            "IBV_WC_RETRY_EXC_ERR (12)",
            "port 1: 98.1 KiB sent",
            "posts by DEVX",
        ] {
            assert_contains!(text, expected);
        }
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }

    #[test]
    fn an_empty_run_says_so() {
        let report = Report::new(vec!["true".to_owned()], Ended::Status(3), Vec::new());
        let text = report.to_string();
        assert!(text.starts_with(
            "gdr trace: 0 processes, 0 queue pairs: no bytes moved\nthe program ended with status 3\n"
        ));
        assert!(text.contains("no process opened an RDMA device"));
    }

    #[test]
    fn bytes_have_the_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (1 << 40, "1.0 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Bytes(u64::MAX).to_string(), "16.0 EiB");
    }
}
