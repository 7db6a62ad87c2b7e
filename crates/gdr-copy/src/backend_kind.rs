//! The backends, and the choice among them.

use std::fmt;
use std::str::FromStr;

/// A backend: how GPU memory is mapped for the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// The stock NVIDIA driver's own memory-mapping calls.
    Rm,
    /// mmap of a dma-buf that CUDA exported.
    DmaBuf,
    /// NVIDIA's GDRCopy kernel module.
    Gdrdrv,
    /// The simulated GPU.
    Sim,
}

impl BackendKind {
    /// Every backend, in the order in which they are tried: first the module, if it is loaded (its users know its
    /// semantics), then what CUDA supports officially, then the stock driver and, if allowed, the simulation.
    pub const ORDER: [Self; 4] = [Self::Gdrdrv, Self::DmaBuf, Self::Rm, Self::Sim];

    /// Returns the name, as used in `GDR_BACKEND`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rm => "rm",
            Self::DmaBuf => "dmabuf",
            Self::Gdrdrv => "gdrdrv",
            Self::Sim => "sim",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not the name of a backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a backend: choose gdrdrv, dmabuf, rm or sim, or leave it unset")]
pub struct ParseBackendError(String);

impl FromStr for BackendKind {
    type Err = ParseBackendError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ORDER
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| ParseBackendError(text.to_owned()))
    }
}

/// A backend that was tried and not chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The backend.
    pub backend: BackendKind,
    /// Why it was not chosen.
    pub reason: String,
}

/// The backend in use, and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendChoice {
    /// The backend in use.
    pub backend: BackendKind,
    /// Why it was chosen.
    pub reason: String,
    /// The backends that were tried before it.
    pub rejected: Vec<Rejected>,
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend {}: {}", self.backend, self.reason)?;
        for Rejected { backend, reason } in &self.rejected {
            write!(f, "; not {backend}: {reason}")?;
        }
        Ok(())
    }
}

pub(crate) fn list(tried: &[Rejected]) -> String {
    tried
        .iter()
        .map(|r| format!("\n  {}: {}", r.backend, r.reason))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for kind in BackendKind::ORDER {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let error = "gdr".parse::<BackendKind>().unwrap_err().to_string();
        assert!(
            error.contains("`gdr`") && error.contains("gdrdrv, dmabuf, rm or sim"),
            "{error}"
        );
    }

    #[test]
    fn a_choice_lists_the_rejected_backends_with_their_reasons() {
        let choice = BackendChoice {
            backend: BackendKind::Rm,
            reason: "the stock driver accepts the calls".into(),
            rejected: vec![Rejected {
                backend: BackendKind::Gdrdrv,
                reason: "no module".into(),
            }],
        };
        assert_eq!(
            choice.to_string(),
            "backend rm: the stock driver accepts the calls; not gdrdrv: no module"
        );
    }
}
