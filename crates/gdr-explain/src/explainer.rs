//! Reads a text and ranks the causes that it speaks of.

use std::io::{self, Read};

use crate::lines::Lines;
use crate::reader::Reader;
use crate::table::{Table, table};
use crate::{Explanation, GpuDirect};

/// Number of bytes of a text to read at once.
const CHUNK: usize = 1 << 16;

/// What a text says.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Causes that it indicates, likeliest first.
    pub causes: Vec<Explanation>,
    /// Whether it shows GPUDirect RDMA at work.
    pub gpudirect: GpuDirect,
}

/// Returns the causes that a text speaks of, likeliest first: see [`Explainer`].
pub fn explain(text: &str) -> Vec<Explanation> {
    let mut explainer = Explainer::new();
    explainer.push(text.as_bytes());
    explainer.finish().causes
}

/// Reads a text of any length in bounded memory; returns what it says.
pub fn read(mut text: impl Read) -> io::Result<Answer> {
    let mut explainer = Explainer::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match text.read(&mut chunk) {
            Ok(0) => return Ok(explainer.finish()),
            Ok(length) => explainer.push(&chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads a text piece by piece.
///
/// On one line, only the surest causes count. A cause with a surer line comes first; among equals, the cause mentioned
/// first, because later errors often follow from earlier ones. Consequences of other errors, and harmless causes, come
/// last.
#[derive(Debug)]
pub struct Explainer {
    lines: Lines,
    reader: Reader,
}

impl Default for Explainer {
    fn default() -> Self {
        Self::new()
    }
}

impl Explainer {
    /// Nothing is read yet.
    pub fn new() -> Self {
        Self::with_table(table())
    }

    fn with_table(table: &'static Table) -> Self {
        Self {
            lines: Lines::new(),
            reader: Reader::new(table),
        }
    }

    /// Returns an explainer that tries every expression on every line.
    #[cfg(test)]
    pub(crate) fn unfiltered() -> Self {
        static TABLE: std::sync::OnceLock<Table> = std::sync::OnceLock::new();
        Self::with_table(TABLE.get_or_init(|| {
            let mut table = Table::new();
            table.matcher.try_all();
            table
        }))
    }

    /// Reads on.
    pub fn push(&mut self, text: &[u8]) {
        let reader = &mut self.reader;
        self.lines.push(text, &mut |line| reader.line(line));
    }

    /// Returns what all of it says.
    pub fn finish(self) -> Answer {
        let Self { lines, mut reader } = self;
        lines.finish(&mut |line| reader.line(line));
        reader.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_LINE;

    fn ids(text: &str) -> Vec<&'static str> {
        explain(text).iter().map(|it| it.cause.id).collect()
    }

    #[test]
    fn a_record_of_the_kernel_is_one_text_however_its_lines_are_printed() {
        const REST: [&str; 2] = [
            "(PCI ID: 10de:26b5) installed in this system has",
            "fallen off the bus and is not responding to commands.",
        ];
        // None of its lines says what happened to which device.
        let first = "NVRM: The NVIDIA GPU 0000:b3:00.0";
        let of_driver = format!("{first}\nNVRM: {}\nNVRM: {}", REST[0], REST[1]);
        let timed = of_driver.replace("NVRM", "[ 43.308145] NVRM");
        let indented = format!("[ 43.308145] {first}\n    {}\n    {}", REST[0], REST[1]);
        let escaped = format!("3,9,43308145,-;{first}\\x0a{}\\x0a{}", REST[0], REST[1]);
        for text in [of_driver, timed, indented, escaped] {
            let found = explain(&text);
            assert_eq!(found[0].cause.id, "gpu-lost", "{text}");
            // The doctor sees the same record.
            let records: Vec<_> = gdr_node::kernel_log::records(&text).collect();
            assert_eq!(records.len(), 1, "{text}: {records:?}");
        }
    }

    #[test]
    fn flushed_work_comes_after_what_failed() {
        let found = ids(
            "NET/IB : Got completion from peer 10.0.0.2<4791> with status=5 opcode=0 len=0 vendor err 249\n\
             NET/IB : Got completion from peer 10.0.0.2<4791> with status=12 opcode=1 len=0 vendor err 129\n",
        );
        assert_eq!(found, ["transport-timeout", "flush-error"]);
    }

    #[test]
    fn a_log_of_nothing_in_particular_is_not_explained() {
        assert_eq!(ids("all is well\n\n12345 GB/s"), [""; 0]);
    }

    #[test]
    fn the_end_of_a_long_line_is_read_and_a_storm_is_counted() {
        let storm = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context\n";
        let text = format!("{} {storm}{}", "x".repeat(MAX_LINE * 4), storm.repeat(999));
        let found = explain(&text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].lines, 1000);
        assert_eq!(found[0].matches.len(), Explanation::MAX_MATCHES);
        assert_eq!(found[0].matches[0].line, 1);
        assert!(found[0].matches[0].text.len() < 1000);
    }

    #[test]
    fn text_in_pieces_says_what_it_says_in_one() {
        let text = "NCCL WARN Call to ibv_reg_mr failed with error Bad address\n".repeat(3);
        let whole = explain(&text);
        let mut explainer = Explainer::new();
        for byte in text.as_bytes() {
            explainer.push(&[*byte]);
        }
        let pieces = explainer.finish().causes;
        assert_eq!(whole.len(), pieces.len());
        assert_eq!(whole[0].matches, pieces[0].matches);
        assert_eq!(
            read(text.as_bytes()).unwrap().causes[0].matches,
            whole[0].matches
        );
    }
}
