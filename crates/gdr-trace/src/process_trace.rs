//! What a process registered and moved, according to its file.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::layout::{self, Table, flag, header};
use crate::{MemoryKind, Operation};

/// What a process registered and moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProcessTrace {
    /// The process.
    pub pid: u32,
    /// Its command line.
    pub program: Vec<String>,
    /// When it opened its first device, in nanoseconds since 1970.
    pub started_ns: u64,
    /// The devices that it opened.
    pub nics: Vec<NicTrace>,
    /// Its registrations.
    pub regions: Vec<RegionTrace>,
    /// Its queue pairs.
    pub queue_pairs: Vec<QueuePairTrace>,
    /// Its completions with errors.
    pub errors: Vec<CompletionErrors>,
    /// How it may have posted requests that the tracing library cannot count.
    pub unseen_posts: Vec<UnseenPosts>,
    /// A table of the file is full: the last objects are counted together.
    pub is_table_full: bool,
    /// GPU memory may be counted as host memory, because CUDA could not be queried.
    pub is_cuda_unknown: bool,
}

/// A device that was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NicTrace {
    /// Its name.
    pub name: String,
    /// How often it was opened.
    pub opened: u64,
}

/// Registrations of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RegionTrace {
    /// The device.
    pub nic: String,
    /// The memory.
    pub memory: MemoryKind,
    /// CUDA ordinal of the GPU; `None` for host memory, or if unknown.
    pub gpu: Option<u32>,
    /// Error of refused registrations.
    pub errno: Option<u32>,
    /// How many registrations.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many were still registered when the process ended.
    pub live: u64,
}

/// Traffic of one operation from or to one kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// The operation.
    pub operation: Operation,
    /// The local memory.
    pub memory: MemoryKind,
    /// How many operations.
    pub operations: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What was posted to one queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueuePairTrace {
    /// The device.
    pub nic: String,
    /// Its number; `None` for queue pairs that are counted together.
    pub qpn: Option<u32>,
    /// Its type, an `ibv_qp_type`.
    pub qp_type: u32,
    /// Requests that a post refused.
    pub refused_requests: u64,
    /// What moved; cells without operations are left out.
    pub traffic: Vec<Cell>,
}

impl QueuePairTrace {
    /// Returns the bytes of all operations.
    pub fn bytes(&self) -> u64 {
        let bytes = self.traffic.iter().map(|cell| cell.bytes);
        bytes.fold(0, u64::saturating_add)
    }
}

/// Completions with an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CompletionErrors {
    /// The device.
    pub nic: String,
    /// The queue pair; `None` for queue pairs that are counted together.
    pub qpn: Option<u32>,
    /// The status, an `ibv_wc_status`.
    pub status: u32,
    /// How many.
    pub count: u64,
}

/// How a process may post requests that the tracing library cannot count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnseenPosts {
    /// Through the queues that `mlx5dv_init_obj` returned.
    Mlx5DirectVerbs,
    /// To queues that it created with DEVX.
    Mlx5Devx,
}

/// Why a file is not a valid trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// It is too short, as left by a process that was killed early.
    #[error("a trace file of {0} bytes is incomplete: the process ended as it began")]
    Incomplete(usize),
    /// It is not a trace.
    #[error("this is not a trace file: remove it from the folder")]
    NotATrace,
    /// It has another version.
    #[error("the trace has version {0}, and this gdr reads version {ours}; use libraries and command \
             of one version", ours = layout::VERSION)]
    OtherVersion(u32),
}

impl ProcessTrace {
    /// Reads a file.
    ///
    /// # Errors
    /// What is not a file of this version. Rows that are damaged are left out.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let file = File(bytes);
        if bytes.len() < header::END {
            return Err(ParseError::Incomplete(bytes.len()));
        }
        if !bytes.starts_with(&layout::MAGIC) {
            // The magic number is written last.
            let is_unfinished = bytes
                .iter()
                .take(layout::MAGIC.len())
                .all(|byte| *byte == 0);
            return Err(match is_unfinished {
                true => ParseError::Incomplete(bytes.len()),
                false => ParseError::NotATrace,
            });
        }
        let version = file.word(header::VERSION).unwrap_or(0);
        if version != layout::VERSION {
            return Err(ParseError::OtherVersion(version));
        }
        let nics = file.nics();
        let queue_pairs = file.queue_pairs(&nics);
        let flags = file.number(header::FLAGS).unwrap_or(0);
        let unseen = [
            (flag::MLX5_INIT_OBJ, UnseenPosts::Mlx5DirectVerbs),
            (flag::MLX5_DEVX, UnseenPosts::Mlx5Devx),
        ];
        Ok(Self {
            pid: file.word(header::PID).unwrap_or(0),
            program: file.program(),
            started_ns: file.number(header::STARTED).unwrap_or(0),
            regions: file.regions(&nics),
            errors: file.errors(&queue_pairs),
            nics: nics.into_values().collect(),
            queue_pairs: queue_pairs
                .into_values()
                .filter(|pair| pair.qpn.is_some() || !pair.traffic.is_empty())
                .collect(),
            unseen_posts: unseen
                .into_iter()
                .filter(|(bit, _)| flags & bit != 0)
                .map(|(_, posts)| posts)
                .collect(),
            is_table_full: flags & flag::TABLE_FULL != 0,
            is_cuda_unknown: flags & flag::NO_CUDA != 0,
        })
    }
}

/// The bytes of a file.
#[derive(Clone, Copy)]
struct File<'a>(&'a [u8]);

/// A row of a table.
#[derive(Clone, Copy)]
struct Row<'a> {
    file: File<'a>,
    start: usize,
}

impl<'a> File<'a> {
    fn bytes(self, start: usize, end: usize) -> Option<&'a [u8]> {
        self.0.get(start..end)
    }

    fn number(self, at: usize) -> Option<u64> {
        let bytes = self.bytes(at, at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn word(self, at: usize) -> Option<u32> {
        let bytes = self.bytes(at, at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Returns the rows of a table that are complete, with their numbers.
    fn rows(self, table: Table) -> impl Iterator<Item = (u32, Row<'a>)> {
        let used = self.word(header::USED + 4 * table.number).unwrap_or(0);
        // One more than the rows in use, because the first row is not counted.
        let rows = (used as usize).saturating_add(1).min(table.rows);
        (0_u32..)
            .zip(0..rows)
            .map(move |(number, row)| {
                let start = table.offset + table.row * row;
                (number, Row { file: self, start })
            })
            .filter(|(number, row)| *number == 0 || row.word(0) == Some(layout::READY))
    }

    fn program(self) -> Vec<String> {
        let all = self.bytes(header::PROGRAM, header::END).unwrap_or_default();
        let end = all.iter().rposition(|byte| *byte != 0);
        let used = all.get(..end.map_or(0, |end| end + 1)).unwrap_or_default();
        used.split(|byte| *byte == 0)
            .filter(|word| !word.is_empty())
            .map(text)
            .collect()
    }

    /// Excludes the first row: every device has its own row, while there are rows left.
    fn nics(self) -> BTreeMap<u32, NicTrace> {
        let nic = |row: Row<'_>| {
            let name = row.bytes(layout::nic::NAME, layout::nic::NAME_END)?;
            Some(NicTrace {
                name: text(name.split(|byte| *byte == 0).next()?),
                opened: row.number(layout::nic::OPENED)?,
            })
        };
        self.rows(layout::NICS)
            .skip(1)
            .filter_map(|(number, row)| Some((number, nic(row)?)))
            .collect()
    }

    fn regions(self, nics: &BTreeMap<u32, NicTrace>) -> Vec<RegionTrace> {
        use layout::region as field;
        let region = |row: Row<'_>| {
            let kind = MemoryKind::from_number(row.word(field::KIND)? as usize)?;
            let count = row.number(field::COUNT)?;
            (count > 0).then_some(())?;
            Some(RegionTrace {
                nic: name_of(nics, row.word(field::NIC)?),
                memory: kind,
                gpu: row.word(field::GPU).filter(|gpu| *gpu != layout::NO_GPU),
                errno: row.word(field::ERRNO).filter(|errno| *errno != 0),
                count,
                bytes: row.number(field::BYTES)?,
                live: row.number(field::LIVE)?,
            })
        };
        self.rows(layout::REGIONS)
            .filter_map(|(_, row)| region(row))
            .collect()
    }

    fn queue_pairs(self, nics: &BTreeMap<u32, NicTrace>) -> BTreeMap<u32, QueuePairTrace> {
        use layout::queue_pair as field;
        let pair = |number: u32, row: Row<'_>| {
            Some(QueuePairTrace {
                nic: name_of(nics, row.word(field::NIC)?),
                qpn: row.word(field::QPN).filter(|_| number != 0),
                qp_type: row.word(field::TYPE)?,
                refused_requests: row.number(field::REFUSED)?,
                traffic: row.cells(field::CELLS),
            })
        };
        self.rows(layout::QUEUE_PAIRS)
            .filter_map(|(number, row)| Some((number, pair(number, row)?)))
            .collect()
    }

    fn errors(self, pairs: &BTreeMap<u32, QueuePairTrace>) -> Vec<CompletionErrors> {
        use layout::error as field;
        let errors = |row: Row<'_>| {
            let pair = pairs.get(&row.word(field::QUEUE_PAIR)?);
            let count = row.number(field::COUNT)?;
            (count > 0).then_some(())?;
            Some(CompletionErrors {
                nic: pair.map_or_else(|| OTHER.to_owned(), |pair| pair.nic.clone()),
                qpn: pair.and_then(|pair| pair.qpn),
                status: row.word(field::STATUS)?,
                count,
            })
        };
        self.rows(layout::ERRORS)
            .filter_map(|(_, row)| errors(row))
            .collect()
    }
}

/// Name of what the first rows count.
const OTHER: &str = "other";

fn name_of(nics: &BTreeMap<u32, NicTrace>, row: u32) -> String {
    let nic = nics.get(&row);
    nic.map_or_else(|| OTHER.to_owned(), |nic| nic.name.clone())
}

impl<'a> Row<'a> {
    fn bytes(self, from: usize, to: usize) -> Option<&'a [u8]> {
        self.file.bytes(self.start + from, self.start + to)
    }

    fn number(self, at: usize) -> Option<u64> {
        self.file.number(self.start + at)
    }

    fn word(self, at: usize) -> Option<u32> {
        self.file.word(self.start + at)
    }

    fn cells(self, at: usize) -> Vec<Cell> {
        let all = Operation::ALL
            .into_iter()
            .flat_map(|operation| MemoryKind::ALL.map(|memory| (operation, memory)));
        all.filter_map(|(operation, memory)| {
            let at = at + 16 * layout::cell(operation, memory);
            let operations = self.number(at)?;
            (operations > 0).then_some(())?;
            Some(Cell {
                operation,
                memory,
                operations,
                bytes: self.number(at + 8)?,
            })
        })
        .collect()
    }
}

/// Returns a text without control characters, which would change a terminal.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars()
        .map(|it| if it.is_control() { '\u{fffd}' } else { it })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes a row of a table, and marks it as complete.
    fn row(file: &mut [u8], table: Table, number: usize, fields: &[(usize, u64, usize)]) {
        let start = table.offset + number * table.row;
        put(file, start, &layout::READY.to_le_bytes());
        for (at, value, len) in fields {
            put(file, start + at, &value.to_le_bytes()[..*len]);
        }
    }

    fn sample() -> Vec<u8> {
        use layout::{ERRORS, NICS, QUEUE_PAIRS, REGIONS};
        let mut file = vec![0; layout::FILE_LEN];
        put(&mut file, 0, &layout::MAGIC);
        put(&mut file, header::VERSION, &1_u32.to_le_bytes());
        put(&mut file, header::PID, &77_u32.to_le_bytes());
        put(&mut file, header::FLAGS, &flag::MLX5_DEVX.to_le_bytes());
        for table in [NICS, REGIONS, QUEUE_PAIRS, ERRORS] {
            let at = header::USED + 4 * table.number;
            put(&mut file, at, &1_u32.to_le_bytes());
        }
        put(&mut file, header::PROGRAM, b"prog\0-x\0a\x1b[2J");
        row(&mut file, NICS, 1, &[(layout::nic::OPENED, 2, 8)]);
        put(
            &mut file,
            NICS.offset + NICS.row + layout::nic::NAME,
            b"mlx5_0",
        );
        let region = [(4, 1, 4), (8, 2, 4), (12, 3, 4), (24, 5, 8), (32, 4096, 8)];
        row(&mut file, REGIONS, 1, &region);
        let cell =
            layout::queue_pair::CELLS + 16 * layout::cell(Operation::Write, MemoryKind::DmaBuf);
        let pair = [
            (4, 1, 4),
            (8, 99, 4),
            (12, 2, 4),
            (cell, 7, 8),
            (cell + 8, 7000, 8),
        ];
        row(&mut file, QUEUE_PAIRS, 1, &pair);
        row(&mut file, ERRORS, 1, &[(4, 1, 4), (8, 12, 4), (16, 3, 8)]);
        file
    }

    #[test]
    fn every_field_of_a_file_is_read() {
        let trace = ProcessTrace::parse(&sample()).unwrap();
        assert_eq!(
            (trace.pid, &*trace.nics[0].name, trace.nics[0].opened),
            (77, "mlx5_0", 2)
        );
        assert_eq!(trace.program, ["prog", "-x", "a\u{fffd}[2J"]);
        let [region] = &*trace.regions else {
            panic!("{:?}", trace.regions);
        };
        let expected = ("mlx5_0", MemoryKind::DmaBuf, Some(3), None, 5, 4096);
        let RegionTrace {
            nic,
            memory,
            gpu,
            errno,
            count,
            bytes,
            ..
        } = region;
        assert_eq!((&**nic, *memory, *gpu, *errno, *count, *bytes), expected);
        let [pair] = &*trace.queue_pairs else {
            panic!("{:?}", trace.queue_pairs);
        };
        let cell = Cell {
            operation: Operation::Write,
            memory: MemoryKind::DmaBuf,
            operations: 7,
            bytes: 7000,
        };
        assert_eq!(
            (pair.qpn, &*pair.traffic, pair.bytes()),
            (Some(99), &[cell][..], 7000)
        );
        let errors = &trace.errors[0];
        assert_eq!((errors.qpn, errors.status, errors.count), (Some(99), 12, 3));
        assert_eq!(trace.unseen_posts, [UnseenPosts::Mlx5Devx]);
    }

    #[test]
    fn what_is_not_a_trace_of_this_version_is_refused() {
        let mut file = sample();
        assert_eq!(
            ProcessTrace::parse(&file[..100]),
            Err(ParseError::Incomplete(100))
        );
        put(&mut file, header::VERSION, &2_u32.to_le_bytes());
        assert_eq!(ProcessTrace::parse(&file), Err(ParseError::OtherVersion(2)));
        put(&mut file, 0, b"ELF");
        assert_eq!(ProcessTrace::parse(&file), Err(ParseError::NotATrace));
        put(&mut file, 0, &[0; 8]);
        let incomplete = ParseError::Incomplete(layout::FILE_LEN);
        assert_eq!(ProcessTrace::parse(&file), Err(incomplete));
    }

    #[test]
    fn a_row_that_is_not_complete_is_left_out() {
        let mut file = sample();
        let start = layout::QUEUE_PAIRS.offset + layout::QUEUE_PAIRS.row;
        put(&mut file, start, &[0; 4]);
        let trace = ProcessTrace::parse(&file).unwrap();
        assert!(trace.queue_pairs.is_empty());
        assert_eq!(trace.errors[0].qpn, None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            len in 0..layout::FILE_LEN,
            changes in prop::collection::vec((0..layout::FILE_LEN, any::<u8>()), 0..64),
        ) {
            let mut file = sample();
            for (at, byte) in changes {
                file[at] = byte;
            }
            file.truncate(len);
            let _ = ProcessTrace::parse(&file);
        }
    }
}
