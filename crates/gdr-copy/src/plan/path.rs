//! The paths that copies can take, and the kinds of copies.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyDirection {
    /// From the CPU to the GPU.
    ToGpu,
    /// From the GPU to the CPU.
    FromGpu,
}

impl CopyDirection {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::ToGpu, Self::FromGpu];

    /// Returns its name in reports and profiles.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToGpu => "to-gpu",
            Self::FromGpu => "from-gpu",
        }
    }
}

impl fmt::Display for CopyDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ToGpu => "to GPU",
            Self::FromGpu => "from GPU",
        })
    }
}

/// The host memory of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostMemory {
    /// Ordinary memory, which the copy engine can only access through a page-locked ring.
    Pageable,
    /// Memory that the GPU's driver has page-locked (`cuMemHostAlloc`, `cudaHostRegister`).
    PageLocked,
}

impl HostMemory {
    /// Both kinds of memory.
    pub const ALL: [Self; 2] = [Self::Pageable, Self::PageLocked];

    /// Returns its name in reports and profiles.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pageable => "pageable",
            Self::PageLocked => "page-locked",
        }
    }
}

impl fmt::Display for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How bytes are moved. Paths are ordered by their fixed cost: a later path has a higher one, and is chosen for longer
/// copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyPath {
    /// Stores or loads through the mapping by several threads, including the caller's.
    Cpu {
        /// The number of threads.
        threads: NonZeroU16,
    },
    /// A kernel that stays on the GPU for a while and pushes the bytes to the host. Only for copies from the GPU, and
    /// only on request.
    Resident,
    /// The GPU's copy engine, on a stream of this library.
    CopyEngine,
}

impl CopyPath {
    /// Stores or loads by the calling thread.
    pub const ONE_THREAD: Self = Self::Cpu {
        threads: NonZeroU16::MIN,
    };

    /// Stores or loads by `threads` threads.
    pub const fn cpu(threads: NonZeroU16) -> Self {
        Self::Cpu { threads }
    }
}

impl fmt::Display for CopyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            &Self::ONE_THREAD => f.pad("cpu"),
            Self::Cpu { threads } => f.pad(&format!("cpu-{threads}")),
            Self::Resident => f.pad("resident"),
            Self::CopyEngine => f.pad("copy-engine"),
        }
    }
}

/// The text is not the name of a direction, memory or path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ParsePathError {
    text: String,
    expected: &'static str,
}

impl ParsePathError {
    fn new(text: &str, expected: &'static str) -> Self {
        Self {
            text: text.to_owned(),
            expected,
        }
    }
}

impl FromStr for CopyDirection {
    type Err = ParsePathError;

    fn from_str(text: &str) -> Result<Self, ParsePathError> {
        let found = Self::ALL.into_iter().find(|known| known.name() == text);
        found.ok_or_else(|| ParsePathError::new(text, "to-gpu or from-gpu"))
    }
}

impl FromStr for HostMemory {
    type Err = ParsePathError;

    fn from_str(text: &str) -> Result<Self, ParsePathError> {
        let found = Self::ALL.into_iter().find(|known| known.name() == text);
        found.ok_or_else(|| ParsePathError::new(text, "pageable or page-locked"))
    }
}

impl FromStr for CopyPath {
    type Err = ParsePathError;

    fn from_str(text: &str) -> Result<Self, ParsePathError> {
        match text {
            "cpu" => return Ok(Self::ONE_THREAD),
            "resident" => return Ok(Self::Resident),
            "copy-engine" => return Ok(Self::CopyEngine),
            _ => {}
        }
        let threads = text.strip_prefix("cpu-").and_then(|n| n.parse().ok());
        threads
            .map(Self::cpu)
            .ok_or_else(|| ParsePathError::new(text, "cpu, cpu-THREADS, resident or copy-engine"))
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    #[test]
    fn a_name_is_parsed_as_what_it_names() {
        for direction in CopyDirection::ALL {
            assert_eq!(direction.name().parse(), Ok(direction));
        }
        for host in HostMemory::ALL {
            assert_eq!(host.name().parse(), Ok(host));
        }
        let four = NonZeroU16::new(4).unwrap();
        for (path, name) in [
            (CopyPath::ONE_THREAD, "cpu"),
            (CopyPath::cpu(four), "cpu-4"),
            (CopyPath::Resident, "resident"),
            (CopyPath::CopyEngine, "copy-engine"),
        ] {
            assert_eq!(path.to_string(), name);
            assert_eq!(name.parse(), Ok(path));
        }
        for text in ["", "cpu-", "cpu-0", "cpu-70000", "gpu"] {
            let error = text.parse::<CopyPath>().unwrap_err().to_string();
            assert_contains!(error, "copy-engine");
        }
    }
}
