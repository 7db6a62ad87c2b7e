//! `/etc/os-release`: the distribution of a node.

use crate::source::{Absence, Datum, Source};

/// The file.
const OS_RELEASE: &str = "/etc/os-release";

/// A distribution, as it identifies itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsRelease {
    /// The human-readable name and version.
    pub name: String,
    /// Its ID, and those of the distributions it is based on: `sles`, `suse`.
    ids: Vec<String>,
}

/// Distributions with the same commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DistributionFamily {
    /// Debian, Ubuntu.
    Debian,
    /// RHEL, Fedora, Rocky, Alma, Oracle.
    RedHat,
    /// SLES, openSUSE Leap.
    Suse,
}

impl OsRelease {
    /// Reads the file of a node.
    ///
    /// # Errors
    /// The reason why it cannot be read; [`Absence::Missing`] if it contains no name.
    pub fn read(source: &dyn Source) -> Datum<Self> {
        Self::parse(&source.text(OS_RELEASE)?).ok_or(Absence::Missing)
    }

    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            value.map(|value| value.trim().trim_matches(['"', '\'']))
        };
        let ids = [value("ID"), value("ID_LIKE")];
        Some(Self {
            name: value("PRETTY_NAME").or(value("NAME"))?.to_owned(),
            ids: ids
                .into_iter()
                .flatten()
                .flat_map(str::split_whitespace)
                .map(str::to_ascii_lowercase)
                .collect(),
        })
    }

    /// Returns the family, if it is a known one.
    pub fn family(&self) -> Option<DistributionFamily> {
        self.ids.iter().find_map(|id| match id.as_str() {
            "debian" | "ubuntu" => Some(DistributionFamily::Debian),
            "rhel" | "fedora" | "centos" => Some(DistributionFamily::RedHat),
            "sles" | "sle_hpc" | "suse" | "opensuse" | "opensuse-leap" => {
                Some(DistributionFamily::Suse)
            }
            _ => None,
        })
    }
}

impl DistributionFamily {
    /// Returns the command that installs NVIDIA's driver with the open kernel modules, from NVIDIA's repository.
    pub const fn driver_command(self) -> &'static str {
        match self {
            Self::Debian => "sudo apt install nvidia-open",
            Self::RedHat => "sudo dnf module install nvidia-driver:open-dkms",
            Self::Suse => "sudo zypper install nvidia-open",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn distributions_have_their_name_and_the_family_of_their_commands() {
        use DistributionFamily::{Debian, RedHat, Suse};
        for (text, name, family) in [
            (
                "PRETTY_NAME=\"Ubuntu 22.04.4 LTS\"\nNAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n",
                "Ubuntu 22.04.4 LTS",
                Some(Debian),
            ),
            (
                "NAME=\"Rocky Linux\"\nID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
                "Rocky Linux",
                Some(RedHat),
            ),
            (
                "ID=\"sles\"\nPRETTY_NAME=\"SUSE Linux Enterprise Server 15 SP5\"\n",
                "SUSE Linux Enterprise Server 15 SP5",
                Some(Suse),
            ),
            ("ID=void\nPRETTY_NAME='Void Linux'\n", "Void Linux", None),
        ] {
            let found = OsRelease::parse(text).unwrap();
            assert_eq!((found.name.as_str(), found.family()), (name, family));
        }
        assert_eq!(OsRelease::parse("ID=void\n"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "(ID|NAME|PRETTY_NAME|\\PC)(=|\"|'|\\PC)*\n?") {
            let _ = OsRelease::parse(&text).map(|found| found.family());
        }
    }
}
