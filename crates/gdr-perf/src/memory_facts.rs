//! What a report says about memory, and how bytes get into it.

use serde::{Deserialize, Serialize};

use crate::error::SettingsError;
use crate::report::Subject;

/// GPU memory, and how bytes get into it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The GPU, the backend and its route.
    #[serde(flatten)]
    pub subject: Subject,
    /// The CUDA function that allocated it.
    pub allocated_by: String,
    /// How received bytes get into it.
    pub reached: TransferMode,
    /// Why this mode is used.
    pub why: String,
    /// Registration methods that a kernel device rejected, with a sentence for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
    /// The copy engine makes single READs of this many bytes and more, even where others use the mapping.
    #[serde(default)]
    pub long_reads_from: Option<u64>,
}

/// How received bytes get into GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferMode {
    /// By CPU stores into a mapping of it.
    Direct,
    /// By the kernel device itself, with which the memory is registered.
    Device,
    /// Through host memory, by the GPU's copy engine.
    Staged,
}

/// The memory of an end in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFacts {
    /// `host` or `gpu`.
    pub kind: String,
    /// The GPU and the backend, with `simulated`.
    pub gpu: Option<Subject>,
    /// The CUDA function that allocated it.
    pub allocated_by: Option<String>,
    /// How bytes get into GPU memory.
    pub reached: Option<TransferMode>,
    /// Why it is reached in this way, and how it was registered.
    pub why: Option<String>,
    /// Registration methods that a kernel device rejected, with a sentence for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
    /// The copy engine makes single transfers out of it of this many bytes and more, even where others use the mapping.
    #[serde(default)]
    pub long_reads_from: Option<u64>,
}

impl MemoryFacts {
    /// Host memory.
    pub fn host() -> Self {
        Self {
            kind: "host".to_owned(),
            gpu: None,
            allocated_by: None,
            reached: None,
            why: None,
            refusals: Vec::new(),
            long_reads_from: None,
        }
    }

    /// Refuses a run between this memory and `other`'s if exactly one of the two GPUs is simulated, because the result
    /// would describe neither.
    pub(crate) fn check_beside(&self, other: &Subject) -> Result<(), SettingsError> {
        match &self.gpu {
            Some(gpu) if gpu.simulated != other.simulated => Err(SettingsError::MixedSimulation),
            _ => Ok(()),
        }
    }

    /// Returns whether figures with this memory describe no hardware.
    pub fn is_simulated(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.simulated)
    }
}

impl From<Memory> for MemoryFacts {
    fn from(memory: Memory) -> Self {
        Self {
            kind: "gpu".to_owned(),
            gpu: Some(memory.subject),
            allocated_by: Some(memory.allocated_by),
            reached: Some(memory.reached),
            why: Some(memory.why),
            refusals: memory.refusals,
            long_reads_from: memory.long_reads_from,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(simulated: bool) -> Subject {
        Subject {
            simulated,
            backend: "sim".to_owned(),
            route: None,
            gpu: "a GPU".to_owned(),
            pci: "0000:01:00.0".to_owned(),
            cuda: "13.0".to_owned(),
            driver: None,
        }
    }

    #[test]
    fn a_simulated_gpu_and_a_real_one_are_not_compared_and_host_memory_goes_with_either() {
        for other in [true, false].map(subject) {
            MemoryFacts::host().check_beside(&other).unwrap();
            for simulated in [true, false] {
                let facts = MemoryFacts {
                    gpu: Some(subject(simulated)),
                    ..MemoryFacts::host()
                };
                let refused = facts.check_beside(&other).is_err();
                assert_eq!(refused, simulated != other.simulated);
            }
        }
    }
}
