//! Log lines.

use std::fmt;

/// A log line.
///
/// The part before ` @ ` is the same whenever a seed is replayed. The process, its own numbers and the time follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A process opened a device under the scenario.
    Begun {
        /// The process.
        pid: u32,
        /// The device.
        device: String,
    },
    /// A fault struck.
    Struck(Strike),
}

/// A fault that struck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strike {
    /// The rule, from 0.
    pub rule: usize,
    /// The fault.
    pub fault: String,
    /// Where: `key=value`s that are the same in every run.
    pub place: String,
    /// The process.
    pub pid: u32,
    /// Other `key=value`s, which differ between runs.
    pub details: String,
}

const BEGUN: &str = "gdr-chaos: begun @ ";
const STRUCK: &str = "gdr-chaos: rule=";
const DETAILS: &str = " @ ";

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begun { pid, device } => write!(f, "{BEGUN}pid={pid} device={device}"),
            Self::Struck(Strike {
                rule,
                fault,
                place,
                pid,
                details,
            }) => write!(
                f,
                "{STRUCK}{rule} {fault} {place}{DETAILS}pid={pid} {details}"
            ),
        }
    }
}

impl Record {
    /// Parses a line. Returns `None` for any other text.
    pub fn parse(line: &str) -> Option<Self> {
        if let Some(rest) = line.strip_prefix(BEGUN) {
            let (pid, device) = rest.strip_prefix("pid=")?.split_once(" device=")?;
            return Some(Self::Begun {
                pid: pid.parse().ok()?,
                device: device.to_owned(),
            });
        }
        let (what, rest) = line.strip_prefix(STRUCK)?.split_once(DETAILS)?;
        let mut words = what.splitn(3, ' ');
        let (rule, fault) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        let place = words.next()?.to_owned();
        let (pid, details) = rest.strip_prefix("pid=")?.split_once(' ')?;
        Some(Self::Struck(Strike {
            rule,
            fault,
            place,
            pid: pid.parse().ok()?,
            details: details.to_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let records = [
            Record::Begun {
                pid: 7,
                device: "soft-127.0.0.1".to_owned(),
            },
            Record::Struck(Strike {
                rule: 2,
                fault: "drop".to_owned(),
                place: "qp=0 dir=out op=3 packet=9".to_owned(),
                pid: 7,
                details: "qpn=0x11 psn=12 t=0.5".to_owned(),
            }),
        ];
        for record in records {
            assert_eq!(Record::parse(&record.to_string()), Some(record));
        }
        for other in ["", "gdr-chaos: rule=x", "gdr-chaos: begun @ ", "other"] {
            assert_eq!(Record::parse(other), None, "{other}");
        }
    }
}
