//! Which backend, and why.

use std::fmt;
use std::str::FromStr;

/// A way to give the CPU a window into GPU memory.
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
    /// Every backend, in the order they are tried: the module where somebody loaded it (its
    /// users know its semantics), then what CUDA supports officially, then the stock driver,
    /// then, where it is allowed at all, the simulation.
    pub const ORDER: [Self; 4] = [Self::Gdrdrv, Self::DmaBuf, Self::Rm, Self::Sim];

    /// The name, as `GDR_BACKEND` takes it.
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

/// The text names no backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no backend `{0}`: choose gdrdrv, dmabuf, rm or sim, or leave it unset")]
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

/// A backend that was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The backend.
    pub backend: BackendKind,
    /// Why.
    pub reason: String,
}

/// The backend in use and how it came to be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The backend in use.
    pub backend: BackendKind,
    /// Why this one.
    pub reason: String,
    /// The ones that were tried before it.
    pub rejected: Vec<Rejected>,
}

impl fmt::Display for Choice {
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
    fn a_choice_tells_what_was_passed_over() {
        let choice = Choice {
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
