//! Hosts of a mesh that is not started by a launcher, from a file as `mpirun` takes it.
//!
//! Each line names a host, by name or address, and how many ranks run there: `gpu01`, `gpu01 slots=8` (Open MPI) or
//! `gpu01:8` (MPICH). The default is 1. A comment starts with `#`. Ranks are numbered in the order of the lines.

use std::str::FromStr;

use super::coordinator::MOST_RANKS;

/// Hosts of a file, in its order; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFile {
    hosts: Vec<Host>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    slots: usize,
}

/// Position of a host among the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPlace {
    /// The first rank that runs there.
    pub first_rank: usize,
    /// How many ranks run there.
    pub slots: usize,
}

/// Why a host file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields' names say what they hold")]
pub enum HostFileError {
    /// A line other than a host and a number of ranks.
    #[error(
        "line {line}, `{text}`, is not a host: use a name or an address, then slots=N if N ranks run \
         there"
    )]
    Line { line: usize, text: String },
    /// An invalid number of ranks.
    #[error("line {line} has `{text}` ranks: use a number from 1 to {MOST_RANKS}")]
    Slots { line: usize, text: String },
    /// No host.
    #[error("the file names no host: write one host per line")]
    Empty,
    /// More ranks than a mesh allows.
    #[error("the file has more than {MOST_RANKS} ranks: remove some hosts")]
    TooMany,
    /// This host is not in the file.
    #[error("none of the file's hosts ({}) is this one: add this host, or set the rank", .hosts.join(", "))]
    NotListed { hosts: Vec<String> },
    /// Several lines name this host.
    #[error("{one} and {other} are both this host: set the rank, or write one line per host")]
    Ambiguous { one: String, other: String },
}

impl FromStr for HostFile {
    type Err = HostFileError;

    fn from_str(text: &str) -> Result<Self, HostFileError> {
        let mut hosts = Vec::new();
        for (at, text) in text.lines().enumerate() {
            let content = text.split('#').next().unwrap_or_default().trim();
            if !content.is_empty() {
                hosts.push(host(at + 1, content)?);
            }
        }
        let file = Self { hosts };
        match file.ranks() {
            0 => Err(HostFileError::Empty),
            ranks if ranks > MOST_RANKS => Err(HostFileError::TooMany),
            _ => Ok(file),
        }
    }
}

/// Parses a line without its comment.
fn host(line: usize, text: &str) -> Result<Host, HostFileError> {
    let wrong = || HostFileError::Line {
        line,
        text: text.to_owned(),
    };
    let mut words = text.split_whitespace();
    let name = words.next().ok_or_else(wrong)?;
    let (name, slots) = match (name.split_once(':'), words.next()) {
        // Several colons belong to an IPv6 address.
        (Some((name, slots)), None) if !slots.contains(':') => (name, Some(slots)),
        (_, Some(word)) => (name, Some(word.strip_prefix("slots=").ok_or_else(wrong)?)),
        (_, None) => (name, None),
    };
    // Open MPI allows `max_slots=N` after it, a limit on what other jobs may start there.
    let is_known = |word: &str| word.starts_with("max_slots=") || word.starts_with("max-slots=");
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if name.is_empty() || !name.chars().all(is_name) || !words.all(is_known) {
        return Err(wrong());
    }
    let slots = match slots {
        None => 1,
        Some(text) => text
            .parse()
            .ok()
            .filter(|slots| (1..=MOST_RANKS).contains(slots))
            .ok_or_else(|| HostFileError::Slots {
                line,
                text: text.to_owned(),
            })?,
    };
    Ok(Host {
        name: name.to_owned(),
        slots,
    })
}

impl HostFile {
    /// Returns the number of ranks on all hosts.
    pub fn ranks(&self) -> usize {
        self.hosts.iter().map(|host| host.slots).sum()
    }

    /// Returns the host of rank 0.
    pub fn first_host(&self) -> &str {
        self.hosts.first().map_or("", |host| &host.name)
    }

    /// Returns the place of this host, by its names and addresses, which `is_this_host` knows.
    ///
    /// # Errors
    /// [`HostFileError::NotListed`] and [`HostFileError::Ambiguous`].
    pub fn place(
        &self,
        mut is_this_host: impl FnMut(&str) -> bool,
    ) -> Result<HostPlace, HostFileError> {
        let mut found: Option<(&Host, HostPlace)> = None;
        let mut first_rank = 0;
        for host in &self.hosts {
            let slots = host.slots;
            if is_this_host(&host.name) {
                if let Some((one, _)) = found {
                    return Err(HostFileError::Ambiguous {
                        one: one.name.clone(),
                        other: host.name.clone(),
                    });
                }
                found = Some((host, HostPlace { first_rank, slots }));
            }
            first_rank += slots;
        }
        match found {
            Some((_, place)) => Ok(place),
            None => Err(HostFileError::NotListed {
                hosts: self.hosts.iter().map(|host| host.name.clone()).collect(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: &str = "\
# two racks
gpu01 slots=8 max_slots=8   # the first
gpu02:4

10.0.0.3
2001:db8::4 slots=2
";

    #[test]
    fn ranks_are_numbered_in_the_order_of_the_lines() {
        let file: HostFile = FILE.parse().unwrap();
        assert_eq!((file.ranks(), file.first_host()), (15, "gpu01"));
        for (host, first_rank, slots) in [
            ("gpu01", 0, 8),
            ("gpu02", 8, 4),
            ("10.0.0.3", 12, 1),
            ("2001:db8::4", 13, 2),
        ] {
            let place = file.place(|name| name == host).unwrap();
            assert_eq!(place, HostPlace { first_rank, slots }, "{host}");
        }
    }

    #[test]
    fn a_host_that_is_not_there_or_there_twice_is_named() {
        let file: HostFile = "a\nb".parse().unwrap();
        let none = file.place(|_| false).unwrap_err().to_string();
        assert!(none.contains("(a, b) is this one"), "{none}");
        let both = file.place(|_| true).unwrap_err().to_string();
        assert!(both.contains("a and b are both this host"), "{both}");
    }

    #[test]
    fn lines_that_are_no_hosts_are_named_with_their_number() {
        for (text, words) in [
            ("", "names no host"),
            ("# only a comment\n\n", "names no host"),
            ("a\nb slots=0", "line 2 has `0` ranks"),
            ("a:x", "line 1 has `x` ranks"),
            ("a slots=5000", "line 1 has `5000` ranks"),
            ("a 8", "line 1, `a 8`, is not a host"),
            ("a slots=2 fast", "is not a host"),
            ("\n\u{e9}", "line 2"),
            (":8", "is not a host"),
            ("a:4096\nb", "more than 4096 ranks"),
        ] {
            let error = text.parse::<HostFile>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_judged(text: String) {
            if let Ok(file) = text.parse::<HostFile>() {
                prop_assert!((1..=MOST_RANKS).contains(&file.ranks()));
            }
        }
    }
}
