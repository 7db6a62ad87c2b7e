//! Values that share no cache line with others.

/// A value in cache lines of its own: two, as processors fetch pairs of them. A thread that writes it often does not slow
/// down those that use what is beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CacheLine<T>(pub(crate) T);
