//! The text form of a calibration.

use std::fmt;
use std::str::FromStr;

use super::calibration::{Calibration, Series};
use super::curve::{CostCurve, CostPoint, InvalidCurve};
use super::path::ParsePathError;

/// The first line: the name and version of the format.
const FORMAT: &str = "gdr copy profile 1";
/// The maximum number of lines in a profile.
const MOST_LINES: usize = 20_000;

/// The machine of a calibration, which does not apply if one of these fields differs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProfileKey {
    /// The GPU's name.
    pub gpu: String,
    /// The version of the GPU's driver.
    pub driver: String,
    /// The CPU's name.
    pub cpu: String,
    /// How GPU memory is mapped: backend and kind of mapping.
    pub path_class: String,
}

impl ProfileKey {
    /// Returns the fields with their names, in the order of the file.
    fn fields(&self) -> [(&'static str, &str); 4] {
        [
            ("gpu", &self.gpu),
            ("driver", &self.driver),
            ("cpu", &self.cpu),
            ("path class", &self.path_class),
        ]
    }

    /// Returns the name of the file, which consists of letters, digits and hyphens from the fields, in lower case.
    pub fn file_name(&self) -> String {
        let mut name = String::new();
        for (_, field) in self.fields() {
            if !name.is_empty() {
                name.push('_');
            }
            let mut words = field.split(|c: char| !c.is_ascii_alphanumeric());
            let words: Vec<_> = words.by_ref().filter(|word| !word.is_empty()).collect();
            // File systems limit names to 255 bytes.
            name.extend(words.join("-").to_ascii_lowercase().chars().take(50));
        }
        name + ".profile"
    }
}

impl fmt::Display for ProfileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gpu,
            driver,
            cpu,
            path_class,
        } = self;
        write!(f, "{gpu}, driver {driver}, {cpu}, {path_class}")
    }
}

/// A calibration, and the machine on which it was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The machine.
    pub key: ProfileKey,
    /// The cost of copies on that machine.
    pub calibration: Calibration,
}

/// The text is not a profile.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseProfileError {
    /// The first line is not the name and version of the format.
    #[error(
        "the first line is not `{FORMAT}`: the file has a different version, or is not a profile"
    )]
    Format,
    /// A field of the key is missing.
    #[error("line {line} is not `{name}: ...`")]
    Field {
        /// The line's number, from 1.
        line: usize,
        /// The field.
        name: &'static str,
    },
    /// A line is not a point of a cost curve.
    #[error("line {line} is not `DIRECTION MEMORY PATH BYTES NANOSECONDS`")]
    Point {
        /// The line's number, from 1.
        line: usize,
    },
    /// A line has an unknown direction, memory or path.
    #[error("line {line}: {source}")]
    Name {
        /// The line's number, from 1.
        line: usize,
        /// The unknown name.
        source: ParsePathError,
    },
    /// The points do not form a curve.
    #[error(transparent)]
    Curve(#[from] InvalidCurve),
    /// The file has more lines than a profile can have.
    #[error("the file has more than {MOST_LINES} lines")]
    TooLong,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FORMAT}")?;
        for (name, value) in self.key.fields() {
            // A line break would end the field.
            writeln!(f, "{name}: {}", value.replace(['\n', '\r'], " ").trim())?;
        }
        if let Some(ns) = self.calibration.queued_copy_ns() {
            writeln!(f, "queued copy: {ns:.1}")?;
        }
        for (series, curve) in self.calibration.curves() {
            let Series {
                direction,
                host,
                path,
            } = series;
            for CostPoint { len, ns } in curve.points() {
                writeln!(f, "{} {host} {path} {len} {ns:.3}", direction.name())?;
            }
        }
        Ok(())
    }
}

impl FromStr for Profile {
    type Err = ParseProfileError;

    fn from_str(text: &str) -> Result<Self, ParseProfileError> {
        // Checked before anything is parsed: the file may contain anything, and each point takes memory.
        if text.lines().nth(MOST_LINES).is_some() {
            return Err(ParseProfileError::TooLong);
        }
        let mut lines = (1..).zip(text.lines());
        if lines.next().is_none_or(|(_, first)| first != FORMAT) {
            return Err(ParseProfileError::Format);
        }
        let mut field = |line, name: &'static str| {
            let (_, text) = lines.next().unwrap_or((line, ""));
            let value = text.strip_prefix(name).and_then(|t| t.strip_prefix(':'));
            let value = value.map(|value| value.trim().to_owned());
            value.ok_or(ParseProfileError::Field { line, name })
        };
        let key = ProfileKey {
            gpu: field(2, "gpu")?,
            driver: field(3, "driver")?,
            cpu: field(4, "cpu")?,
            path_class: field(5, "path class")?,
        };
        let mut calibration = Calibration::new();
        let mut current: Option<(Series, Vec<CostPoint>)> = None;
        for (line, text) in lines {
            if let Some(ns) = text.strip_prefix("queued copy:") {
                let ns = ns.trim().parse().ok();
                calibration.set_queued_copy(ns.ok_or(ParseProfileError::Point { line })?);
                continue;
            }
            let (series, point) = parse_point(line, text)?;
            match &mut current {
                Some((same, points)) if *same == series => points.push(point),
                _ => {
                    // The points of a series are consecutive, so another series ends this one.
                    if let Some((series, points)) = current.replace((series, vec![point])) {
                        calibration.set(series, CostCurve::new(points)?);
                    }
                }
            }
        }
        if let Some((series, points)) = current {
            calibration.set(series, CostCurve::new(points)?);
        }
        Ok(Self { key, calibration })
    }
}

/// Parses a line `DIRECTION MEMORY PATH BYTES NANOSECONDS`.
fn parse_point(line: usize, text: &str) -> Result<(Series, CostPoint), ParseProfileError> {
    let wrong = ParseProfileError::Point { line };
    let words: Vec<_> = text.split(' ').collect();
    let [direction, host, path, len, ns] = words[..] else {
        return Err(wrong);
    };
    let named = |source| ParseProfileError::Name { line, source };
    let series = Series {
        direction: direction.parse().map_err(named)?,
        host: host.parse().map_err(named)?,
        path: path.parse().map_err(named)?,
    };
    match (len.parse(), ns.parse()) {
        (Ok(len), Ok(ns)) => Ok((series, CostPoint { len, ns })),
        _ => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::super::built_in::Machine;
    use super::*;

    fn key() -> ProfileKey {
        ProfileKey {
            gpu: "NVIDIA H200".to_owned(),
            driver: "580.159.04".to_owned(),
            cpu: "Intel(R) Xeon(R) Platinum 8480C".to_owned(),
            path_class: "rm, write-combined".to_owned(),
        }
    }

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        for machine in [Machine::Pcie, Machine::Coherent, Machine::Simulated] {
            let (key, calibration) = (key(), Calibration::built_in(machine));
            let profile = Profile { key, calibration };
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        let name = "nvidia-h200_580-159-04_intel-r-xeon-r-platinum-8480c_rm-write-combined.profile";
        assert_eq!(key().file_name(), name);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named() {
        let profile = Profile {
            key: key(),
            calibration: Calibration::new(),
        };
        let text = profile.to_string();
        let error = |more: &str| {
            let mut text = text.clone();
            text.push_str(more);
            text.parse::<Profile>().unwrap_err().to_string()
        };
        assert!(error("to-gpu pageable cpu 64").contains("line 6"));
        assert!(error("to-gpu pageable gpu 64 1").contains("`gpu` is not cpu"));
        assert!(error("to-gpu pageable cpu 64 -1").contains("must be positive"));
        assert!(error("to-gpu pageable cpu 64 NaN").contains("must be positive"));
        assert!(error("queued copy: soon").contains("line 6"));
        assert!(error(&"\n".repeat(MOST_LINES)).contains("more than"));
        let other = text.replace("profile 1", "profile 2");
        assert_eq!(other.parse::<Profile>(), Err(ParseProfileError::Format));
        let refused = text.replace("cpu:", "processor:").parse::<Profile>();
        let named = ParseProfileError::Field {
            line: 4,
            name: "cpu",
        };
        assert_eq!(refused, Err(named));
    }

    #[test]
    fn a_line_break_in_a_name_does_not_end_the_field() {
        let mut profile = Profile {
            key: key(),
            calibration: Calibration::new(),
        };
        profile.key.gpu = "one\ntwo".to_owned();
        let read: Profile = profile.to_string().parse().unwrap();
        assert_eq!(read.key.gpu, "one two");
    }

    proptest! {
        #[test]
        fn no_text_is_read_with_a_panic(text in "\\PC*", lines in prop::collection::vec("[a-z-]{0,9} [a-z-]{0,12} [a-z0-9-]{0,9} [0-9]{0,21} [0-9.e-]{0,9}", 0..5)) {
            let _ = text.parse::<Profile>();
            let profile = Profile { key: key(), calibration: Calibration::new() };
            let mut whole = profile.to_string();
            for line in lines {
                let _ = writeln!(whole, "{line}");
            }
            let _ = whole.parse::<Profile>();
        }
    }
}
