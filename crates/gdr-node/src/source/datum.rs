//! One fact about a node, or why it is not known.

use std::fmt;

/// An error number of Linux, kept so that it survives an archive of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

/// One fact about a node, or why it is not known.
///
/// "It is off" and "I may not see whether it is off" lead to different advice, so that no reader
/// here ever turns one into the other: config space beyond its first 64 bytes, for one, is
/// [`Datum::Denied`] to all but root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datum<T> {
    /// It was read.
    Present(T),
    /// The node has no such thing.
    Missing,
    /// It may be there; reading it needs more privilege.
    Denied,
    /// It may be there; this capture of the node does not hold it.
    NotCollected,
    /// Reading it failed for another reason.
    Failed(Errno),
}

impl<T> Datum<T> {
    /// The value, if it was read.
    pub fn present(&self) -> Option<&T> {
        match self {
            Self::Present(value) => Some(value),
            _ => None,
        }
    }

    /// The value, if it was read.
    pub fn into_present(self) -> Option<T> {
        match self {
            Self::Present(value) => Some(value),
            _ => None,
        }
    }

    /// Whether it was read.
    pub fn is_present(&self) -> bool {
        matches!(self, Self::Present(_))
    }

    /// Whether nothing can be said: neither read nor known to be absent.
    pub fn is_unknown(&self) -> bool {
        !matches!(self, Self::Present(_) | Self::Missing)
    }

    /// The same fact, borrowed.
    pub fn as_ref(&self) -> Datum<&T> {
        match self {
            Self::Present(value) => Datum::Present(value),
            Self::Missing => Datum::Missing,
            Self::Denied => Datum::Denied,
            Self::NotCollected => Datum::NotCollected,
            Self::Failed(errno) => Datum::Failed(*errno),
        }
    }

    /// Turns the value into another; an absence stays what it is.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Datum<U> {
        self.and_then(|value| Datum::Present(f(value)))
    }

    /// Turns the value into another fact; an absence stays what it is.
    pub fn and_then<U>(self, f: impl FnOnce(T) -> Datum<U>) -> Datum<U> {
        match self {
            Self::Present(value) => f(value),
            Self::Missing => Datum::Missing,
            Self::Denied => Datum::Denied,
            Self::NotCollected => Datum::NotCollected,
            Self::Failed(errno) => Datum::Failed(errno),
        }
    }

    /// This fact, or the other where this one is not present.
    pub fn or_else(self, other: impl FnOnce() -> Datum<T>) -> Datum<T> {
        if self.is_present() { self } else { other() }
    }
}

impl<T> From<Option<T>> for Datum<T> {
    /// `None` is [`Datum::Missing`].
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing, Self::Present)
    }
}

impl<T: fmt::Display> fmt::Display for Datum<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present(value) => value.fmt(f),
            Self::Missing => f.write_str("none"),
            Self::Denied => f.write_str("unknown: no permission"),
            Self::NotCollected => f.write_str("unknown: not collected"),
            Self::Failed(errno) => write!(f, "unknown: {errno}"),
        }
    }
}
