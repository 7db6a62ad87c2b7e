//! Padding against false sharing.

/// A value in cache lines of its own: two, because processors prefetch pairs. A thread that writes it often does not
/// slow down threads that use adjacent values.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CacheLine<T>(pub(crate) T);
