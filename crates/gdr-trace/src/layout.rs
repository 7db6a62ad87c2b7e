//! Layout of a trace file, version 1.
//!
//! A file consists of a header and four tables. Numbers are little-endian, with 8 bytes unless stated otherwise. A row
//! of a table is valid once its first field, 4 bytes, is [`READY`]. When the rows of a table are used up, further
//! objects are counted in its first row, which exists from the start and stands for "other".

use crate::{MemoryKind, Operation};

/// First bytes of a file.
pub const MAGIC: [u8; 8] = *b"gdrtrace";
/// Version of the layout that this crate writes and reads: 4 bytes after the magic number.
pub const VERSION: u32 = 1;
/// First field of a complete row.
pub const READY: u32 = 1;
/// GPU of a row whose memory does not belong to a known GPU.
pub const NO_GPU: u32 = u32::MAX;

/// Offsets in the header.
pub mod header {
    /// The version, 4 bytes.
    pub const VERSION: usize = 8;
    /// The process, 4 bytes.
    pub const PID: usize = 12;
    /// When the file was created, in nanoseconds since 1970.
    pub const STARTED: usize = 16;
    /// Bits of [`super::flag`].
    pub const FLAGS: usize = 24;
    /// Number of rows in use in each table, 4 bytes each: NICs, regions, queue pairs, errors.
    pub const USED: usize = 32;
    /// The command line, with a zero byte after each word.
    pub const PROGRAM: usize = 64;
    /// The end of the command line, and of the header.
    pub const END: usize = 512;
}

/// Bits of the header's flags.
pub mod flag {
    /// The process called `mlx5dv_init_obj`, with which it posts to queues by itself.
    pub const MLX5_INIT_OBJ: u64 = 1;
    /// The process created objects with `mlx5dv_devx_obj_create`.
    pub const MLX5_DEVX: u64 = 1 << 1;
    /// A table has run out of rows.
    pub const TABLE_FULL: u64 = 1 << 2;
    /// A peer-memory or dma-buf registration may belong to memory of another driver, because CUDA could not be queried.
    pub const NO_CUDA: u64 = 1 << 3;
}

/// A table: its offset in the file, and its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its number in [`header::USED`].
    pub number: usize,
    /// Where its first row is.
    pub offset: usize,
    /// The bytes of a row.
    pub row: usize,
    /// How many rows there are.
    pub rows: usize,
}

impl Table {
    const fn after(self, row: usize, rows: usize) -> Self {
        Self {
            number: self.number + 1,
            offset: self.end(),
            row,
            rows,
        }
    }

    /// Returns where the table ends.
    pub const fn end(self) -> usize {
        self.offset + self.row * self.rows
    }
}

/// Devices that were opened.
pub const NICS: Table = Table {
    number: 0,
    offset: header::END,
    row: 128,
    rows: 64,
};
/// Registrations, by NIC, kind, GPU and result.
pub const REGIONS: Table = NICS.after(64, 1024);
/// Queue pairs.
pub const QUEUE_PAIRS: Table = REGIONS.after(512, 4096);
/// Completions with errors, by queue pair and status.
pub const ERRORS: Table = QUEUE_PAIRS.after(32, 1024);
/// The bytes of a file.
pub const FILE_LEN: usize = ERRORS.end();

/// Offsets in a row of [`NICS`].
pub mod nic {
    /// Name, terminated by a zero byte.
    pub const NAME: usize = 16;
    /// The end of the name.
    pub const NAME_END: usize = 80;
    /// How often it was opened.
    pub const OPENED: usize = 80;
}

/// Offsets in a row of [`REGIONS`].
pub mod region {
    /// The row of its NIC, 4 bytes.
    pub const NIC: usize = 4;
    /// The number of its [`crate::MemoryKind`], 4 bytes.
    pub const KIND: usize = 8;
    /// The ordinal of its GPU, 4 bytes; [`super::NO_GPU`] for host memory.
    pub const GPU: usize = 12;
    /// Error number of refused registrations, 4 bytes; 0 for successful ones.
    pub const ERRNO: usize = 16;
    /// How many registrations.
    pub const COUNT: usize = 24;
    /// Their bytes.
    pub const BYTES: usize = 32;
    /// How many exist now.
    pub const LIVE: usize = 40;
}

/// Offsets in a row of [`QUEUE_PAIRS`].
pub mod queue_pair {
    /// The row of its NIC, 4 bytes.
    pub const NIC: usize = 4;
    /// Its number, 4 bytes.
    pub const QPN: usize = 8;
    /// Its type, an `ibv_qp_type`, 4 bytes.
    pub const TYPE: usize = 12;
    /// Requests that a post refused.
    pub const REFUSED: usize = 16;
    /// Operations and bytes, 8 bytes each, for each operation and kind of memory: see [`super::cell`].
    pub const CELLS: usize = 32;
}

/// Offsets in a row of [`ERRORS`].
pub mod error {
    /// The row of its queue pair, 4 bytes.
    pub const QUEUE_PAIR: usize = 4;
    /// The status, an `ibv_wc_status`, 4 bytes.
    pub const STATUS: usize = 8;
    /// How many completions.
    pub const COUNT: usize = 16;
}

/// The number of cells of a queue pair.
pub const CELLS: usize = Operation::ALL.len() * MemoryKind::ALL.len();

/// Returns the number of a cell of a queue pair.
pub const fn cell(operation: Operation, kind: MemoryKind) -> usize {
    operation.number() * MemoryKind::ALL.len() + kind.number()
}

const _: () = {
    assert!(queue_pair::CELLS + 16 * CELLS <= QUEUE_PAIRS.row);
    assert!(NICS.offset.is_multiple_of(64) && REGIONS.offset.is_multiple_of(64));
    assert!(QUEUE_PAIRS.offset.is_multiple_of(64));
    assert!(header::USED + 4 * 4 <= header::PROGRAM);
};
