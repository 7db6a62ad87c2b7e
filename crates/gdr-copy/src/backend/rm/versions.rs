//! Driver versions that are known to work, with the evidence.

/// The evidence for a driver series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// The backend ran on hardware with this library's checks.
    Measured,
    /// The source of the open kernel modules has the structures and rules in `abi`.
    Read,
    /// Neither: the backend uses such a version only if every call is accepted and the self-test passes.
    Unknown,
}

/// Prefixes of versions. A new one is added with its evidence.
const TABLE: [(&str, Trust); 3] = [
    // `gdr sanity` on an H200, open kernel modules, 580.159.04.
    ("580.159.", Trust::Measured),
    // NVIDIA/open-gpu-kernel-modules at these tags: sizes and offsets compiled and compared.
    ("580.", Trust::Read),
    ("595.45.", Trust::Read),
];

pub(super) fn trust(version: &str) -> Trust {
    TABLE
        .iter()
        .find(|(prefix, _)| version.starts_with(prefix))
        .map_or(Trust::Unknown, |row| row.1)
}

impl Trust {
    /// Returns the end of a sentence about the driver.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Measured => "measured to work",
            Self::Read => "whose source was read",
            Self::Unknown => "not known to this release: every route is tested before use",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_row_applies_and_other_versions_are_unknown() {
        assert_eq!(trust("580.159.04"), Trust::Measured);
        assert_eq!(trust("580.142"), Trust::Read);
        assert_eq!(trust("610.43.02"), Trust::Unknown);
        assert_eq!(trust(""), Trust::Unknown);
    }
}
