//! Which gdr this is.

/// The commit that this was built from, where that was known.
pub(crate) const COMMIT: Option<&str> = option_env!("GDR_COMMIT_OF_BUILD");

/// The release, and the commit where it is known: `0.1.0 (1bdbda1c2d3e)`.
pub(crate) const VERSION: &str = env!("GDR_VERSION_OF_BUILD");
