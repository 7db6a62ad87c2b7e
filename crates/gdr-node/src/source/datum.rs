//! A fact about a node, or the reason why it is unknown.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A Linux error number, kept so that it survives archiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

/// A fact about a node, or the reason why it is absent.
pub type Datum<T> = Result<T, Absence>;

/// Why a fact about a node is absent.
///
/// "It is off" and "it could not be read" lead to different advice, so readers distinguish them. For example, config
/// space beyond its first 64 bytes is [`Absence::Denied`] for anyone but root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Absence {
    /// The node has no such thing.
    #[error("none")]
    Missing,
    /// It may exist, but reading it takes more privilege.
    #[error("unknown: no permission")]
    Denied,
    /// It may exist, but this capture lacks it.
    #[error("unknown: not collected")]
    NotCollected,
    /// Reading it failed for another reason.
    #[error("unknown: {0}")]
    Failed(Errno),
}

impl Absence {
    /// Returns whether the node may have it after all.
    pub const fn is_unknown(self) -> bool {
        !matches!(self, Self::Missing)
    }

    /// Returns its name in documents, without the error number.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Denied => "denied",
            Self::NotCollected => "not-collected",
            Self::Failed(_) => "failed",
        }
    }
}

/// Methods that [`Datum`] adds to [`Result`].
pub trait DatumExt<T> {
    /// Borrows the fact; an absence is copied.
    fn by_ref(&self) -> Datum<&T>;

    /// Returns whether the fact is neither read nor known to be absent.
    fn is_unknown(&self) -> bool;

    /// Returns the fact as text, or why it is absent.
    fn shown(&self) -> impl fmt::Display
    where
        T: fmt::Display;
}

impl<T> DatumExt<T> for Datum<T> {
    fn by_ref(&self) -> Datum<&T> {
        self.as_ref().map_err(|absence| *absence)
    }

    fn is_unknown(&self) -> bool {
        self.as_ref().is_err_and(|absence| absence.is_unknown())
    }

    fn shown(&self) -> impl fmt::Display
    where
        T: fmt::Display,
    {
        Shown(self)
    }
}

/// See [`DatumExt::shown`].
struct Shown<'a, T>(&'a Datum<T>);

impl<T: fmt::Display> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ok(value) => value.fmt(f),
            Err(absence) => absence.fmt(f),
        }
    }
}
