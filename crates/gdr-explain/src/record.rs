//! A record of the kernel that is printed in several lines.

use std::sync::LazyLock;

use gdr_node::kernel_log::Growing;
use memchr::memchr;
use memchr::memmem::{self, Finder};

/// The lines of a record of the kernel, which may go on in the next one.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The number of its first line.
    number: usize,
    lines: Vec<Vec<u8>>,
}

/// What a line is to the record before it.
#[derive(Debug)]
pub(crate) enum Continuation {
    /// Begins another one.
    None,
    /// Begins another one, which has several lines in one, with this text.
    Escaped(String),
    /// Goes on with it to this text.
    Rest(String),
}

impl Record {
    /// Returns the number of its first line.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Ends it: the next line begins another one.
    pub(crate) fn end(&mut self) {
        self.lines.clear();
    }

    /// Adds a line, as it is printed.
    pub(crate) fn push(&mut self, number: usize, printed: &[u8]) -> Continuation {
        let is_escaped =
            memchr(b'\\', printed).is_some() && memmem::find(printed, br"\x0a").is_some();
        let may_go_on = printed.starts_with(b" ")
            || printed.starts_with(b"\t")
            || printed.starts_with(b"NVRM:")
            || self.is_of_gpu() && names_driver(printed);
        if !may_go_on && !is_escaped {
            self.begin(number, printed);
            return Continuation::None;
        }
        let next = String::from_utf8_lossy(printed);
        let lines: Vec<_> = (self.lines.iter())
            .map(|line| String::from_utf8_lossy(line))
            .collect();
        let mut record = Growing::new(lines.first().map_or("", |line| &**line));
        for line in lines.iter().skip(1) {
            record.push(line);
        }
        if record.push(&next) {
            let text = record.text().to_owned();
            self.lines.push(printed.to_vec());
            return Continuation::Rest(text);
        }
        self.begin(number, printed);
        if is_escaped {
            Continuation::Escaped(Growing::new(&next).text().to_owned())
        } else {
            Continuation::None
        }
    }

    /// Returns whether it is one that NVIDIA's driver prints in several lines.
    fn is_of_gpu(&self) -> bool {
        static OPENING: LazyLock<Finder<'static>> =
            LazyLock::new(|| Finder::new("NVRM: The NVIDIA"));
        let first = self.lines.first();
        first.is_some_and(|line| OPENING.find(line).is_some())
    }

    fn begin(&mut self, number: usize, line: &[u8]) {
        self.number = number;
        self.lines.truncate(1);
        match self.lines.first_mut() {
            Some(first) => {
                first.clear();
                first.extend_from_slice(line);
            }
            None => self.lines.push(line.to_vec()),
        }
    }
}

/// Returns whether NVIDIA's driver is named, as before the lines that it prints.
fn names_driver(line: &[u8]) -> bool {
    line.split(|byte| *byte == b':')
        .any(|part| part.ends_with(b"NVRM"))
}
