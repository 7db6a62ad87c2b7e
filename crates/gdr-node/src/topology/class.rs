//! The distance classes of nvidia-smi and NCCL.

use std::fmt;
use std::str::FromStr;

/// The text is not the name of a class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a class of {vocabulary}: expected one of {expected}")]
pub struct ParseClassError {
    text: String,
    vocabulary: &'static str,
    expected: &'static str,
}

/// A class in the terms of `nvidia-smi topo -m`, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SmiClass {
    /// `X`: the same device.
    Same,
    /// `NV#`: a bonded set of this many NVLinks.
    Nv(u8),
    /// `PIX`: at most one PCIe bridge.
    Pix,
    /// `PXB`: several PCIe bridges, but no host bridge.
    Pxb,
    /// `PHB`: the host bridge.
    Phb,
    /// `NODE`: several host bridges of one NUMA node.
    Node,
    /// `SYS`: the interconnect between NUMA nodes.
    Sys,
}

impl fmt::Display for SmiClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Same => "X",
            Self::Nv(links) => return f.pad(&format!("NV{links}")),
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        })
    }
}

impl FromStr for SmiClass {
    type Err = ParseClassError;

    /// Also accepts `SOC`, which drivers before 390 print for `SYS`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "X" => Self::Same,
            "PIX" => Self::Pix,
            "PXB" => Self::Pxb,
            "PHB" => Self::Phb,
            "NODE" => Self::Node,
            "SYS" | "SOC" => Self::Sys,
            _ => match text.strip_prefix("NV").map(str::parse) {
                Some(Ok(links)) => Self::Nv(links),
                _ => {
                    return Err(ParseClassError {
                        text: text.to_owned(),
                        vocabulary: "nvidia-smi",
                        expected: "X, NV#, PIX, PXB, PHB, NODE, SYS",
                    });
                }
            },
        })
    }
}

/// A class in the terms of NCCL, nearest first (NCCL `src/graph/graph.h`).
///
/// The numeric values differ between versions of NCCL, so only the names are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum NcclClass {
    /// The same device.
    Loc,
    /// NVLink.
    Nvl,
    /// NVLink through another GPU.
    Nvb,
    /// A chip-to-chip link to the CPU.
    C2c,
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, but not the CPU.
    Pxb,
    /// A chip-to-chip link to the CPU, then PCIe.
    P2c,
    /// NVLink to a nearby GPU, then PCIe.
    Pxn,
    /// The CPU; NCCL merges the host bridges of a NUMA node.
    Phb,
    /// The interconnect between NUMA nodes.
    Sys,
    /// The network.
    Net,
    /// Not connected.
    Dis,
}

impl NcclClass {
    const WORDS: [(&str, Self); 12] = [
        ("LOC", Self::Loc),
        ("NVL", Self::Nvl),
        ("NVB", Self::Nvb),
        ("C2C", Self::C2c),
        ("PIX", Self::Pix),
        ("PXB", Self::Pxb),
        ("P2C", Self::P2c),
        ("PXN", Self::Pxn),
        ("PHB", Self::Phb),
        ("SYS", Self::Sys),
        ("NET", Self::Net),
        ("DIS", Self::Dis),
    ];

    /// Returns whether NCCL by default lets the network access a GPU's memory at this distance (`NCCL_NET_GDR_LEVEL`
    /// overrides it). For a relay through another GPU (PXN), the distance of that GPU counts, which is never more than
    /// this.
    pub fn is_gdr_by_default(self) -> bool {
        self <= Self::Pxn
    }
}

impl fmt::Display for NcclClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|(_, class)| class == self);
        f.pad(word.map_or("DIS", |(word, _)| word))
    }
}

impl FromStr for NcclClass {
    type Err = ParseClassError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let word = Self::WORDS.iter().find(|(word, _)| *word == text);
        word.map(|(_, class)| *class)
            .ok_or_else(|| ParseClassError {
                text: text.to_owned(),
                vocabulary: "NCCL",
                expected: "LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, NET, DIS",
            })
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    #[test]
    fn words_survive_the_round_trip() {
        for word in ["X", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"] {
            assert_eq!(word.parse::<SmiClass>().unwrap().to_string(), word);
        }
        for (word, class) in NcclClass::WORDS {
            assert_eq!(
                (word.parse(), class.to_string().as_str()),
                (Ok(class), word)
            );
        }
    }

    #[test]
    fn other_words_are_refused_with_those_that_are_known() {
        for word in ["", "NV", "NV999", "pix", "OK"] {
            let error = word.parse::<SmiClass>().unwrap_err().to_string();
            assert_contains!(error, "NODE");
        }
        assert!("NODE".parse::<NcclClass>().is_err());
    }

    #[test]
    fn nearer_is_less() {
        assert!(SmiClass::Pix < SmiClass::Pxb && SmiClass::Nv(1) < SmiClass::Pix);
        assert!(NcclClass::Pxb.is_gdr_by_default() && !NcclClass::Phb.is_gdr_by_default());
    }
}
