//! Snapshots: a program's output, compared with a file in the repository.
//!
//! A snapshot pins an interface (symbols, JSON keys, options) as a whole, so that changes to it are visible in review.
//! [`assert_snapshot!`] fails with the differing lines; with `UPDATE_SNAPSHOTS=1` in the environment, it writes the
//! file instead. [`assert_contains!`] checks for a part of a text.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Environment variable that makes comparisons write the files.
pub const UPDATE: &str = "UPDATE_SNAPSHOTS";

/// Compares `text` with `tests/snapshots/NAME` of the crate that uses the macro, and panics with the difference.
#[macro_export]
macro_rules! assert_snapshot {
    ($name:expr, $text:expr) => {
        $crate::Folder::of_crate(env!("CARGO_MANIFEST_DIR")).assert($name, $text)
    };
}

/// Panics with the text unless it contains a part.
#[macro_export]
macro_rules! assert_contains {
    ($text:expr, $part:expr $(, $($context:tt)+)?) => {{
        let (text, part) = (($text).to_string(), ($part).to_string());
        let context: &[String] = &[$(format!($($context)+) + ": ")?];
        assert!(text.contains(&part), "{}{part:?} is not in\n{text}", context.concat());
    }};
}

/// A folder of snapshots.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    update: bool,
}

/// How a text and its snapshot differ.
#[derive(Debug)]
pub enum Mismatch {
    /// There is no snapshot.
    Missing(PathBuf),
    /// The lines that differ, with some around them.
    Differs(PathBuf, String),
    /// The file cannot be read or written.
    Io(PathBuf, io::Error),
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing(path) => write!(f, "{} does not exist", path.display())?,
            Self::Differs(path, lines) => write!(
                f,
                "{} differs (- snapshot, + now):\n{lines}",
                path.display()
            )?,
            Self::Io(path, error) => return write!(f, "{}: {error}", path.display()),
        }
        write!(f, "\nif the change is intended, run again with {UPDATE}=1")
    }
}

impl std::error::Error for Mismatch {}

impl Folder {
    /// Returns the folder `tests/snapshots` of the crate whose manifest is in `manifest`.
    pub fn of_crate(manifest: impl AsRef<Path>) -> Self {
        Self::new(manifest.as_ref().join("tests/snapshots"))
    }

    /// Returns the folder at `path`, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let update = std::env::var_os(UPDATE).is_some_and(|value| !value.is_empty());
        Self {
            path: path.into(),
            update,
        }
    }

    /// Returns the same folder, in update mode if `update` or the environment says so.
    #[must_use]
    pub fn updating(mut self, update: bool) -> Self {
        self.update |= update;
        self
    }

    /// Like [`Folder::compare`].
    ///
    /// # Panics
    ///
    /// Panics with the difference, unless the text equals its snapshot.
    #[track_caller]
    pub fn assert(&self, name: &str, text: &str) {
        if let Err(mismatch) = self.compare(name, text) {
            panic!("{mismatch}");
        }
    }

    /// Compares `text` with the file `name`, or writes the file in update mode.
    ///
    /// # Errors
    ///
    /// The difference, or the error of the file.
    pub fn compare(&self, name: &str, text: &str) -> Result<(), Mismatch> {
        let path = self.path.join(name);
        let kept = match fs::read_to_string(&path) {
            Ok(kept) => Some(kept),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Mismatch::Io(path, error)),
        };
        if kept.as_deref() == Some(text) {
            return Ok(());
        }
        if self.update {
            let folder = path.parent().unwrap_or(&self.path);
            let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, text));
            return written.map_err(|error| Mismatch::Io(path, error));
        }
        Err(match kept {
            None => Mismatch::Missing(path),
            Some(kept) => Mismatch::Differs(path, difference(&kept, text)),
        })
    }
}

/// Number of equal lines to show around a difference.
const CONTEXT: usize = 3;

/// Returns the lines by which `new` differs from `old`, as a unified diff without line numbers.
#[must_use]
pub fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let pairs = || old.iter().zip(&new);
    let start = pairs().take_while(|(a, b)| a == b).count();
    let reversed = old[start..].iter().rev().zip(new[start..].iter().rev());
    let end = reversed.take_while(|(a, b)| a == b).count();
    let (a, b) = (&old[start..old.len() - end], &new[start..new.len() - end]);

    // `common[i][j]` is the length of a longest common subsequence of lines of `a[i..]` and `b[j..]`.
    let mut common = vec![vec![0_usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] = if a[i] == b[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let mut lines: Vec<(char, &str)> = old[..start].iter().map(|line| (' ', *line)).collect();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            lines.push((' ', a[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', a[i]));
            i += 1;
        } else {
            lines.push(('+', b[j]));
            j += 1;
        }
    }
    lines.extend(old[old.len() - end..].iter().map(|line| (' ', *line)));

    let changed: Vec<_> = (0..lines.len()).filter(|n| lines[*n].0 != ' ').collect();
    let mut text = String::new();
    let mut shown = 0;
    for (n, (sign, line)) in lines.iter().enumerate() {
        let next = changed.partition_point(|change| change + CONTEXT < n);
        if changed.get(next).is_none_or(|change| *change > n + CONTEXT) {
            continue;
        }
        if shown < n {
            text.push_str("...\n");
        }
        shown = n + 1;
        // Writing to a String does not fail.
        let _ = writeln!(text, "{sign} {line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(path: &Path, update: bool) -> Folder {
        Folder {
            path: path.to_owned(),
            update,
        }
    }

    #[test]
    fn a_difference_shows_the_lines_that_changed_and_some_around_them() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\n";
        let new = "a\nb\nc\nd\nE\nf\ng\nh\ni\n";
        assert_eq!(
            difference(old, new),
            "...\n  b\n  c\n  d\n- e\n+ E\n  f\n  g\n  h\n+ i\n"
        );
        assert_eq!(difference(old, old), "");
        assert_eq!(difference("", "a\n"), "+ a\n");
        assert_eq!(difference("a\n", ""), "- a\n");
        let long: String = (0..20).map(|n| format!("{n}\n")).collect();
        let changed = long.replace("\n2\n", "\n").replace("\n17\n", "\n!\n");
        assert_eq!(
            difference(&long, &changed),
            "  0\n  1\n- 2\n  3\n  4\n  5\n...\n  14\n  15\n  16\n- 17\n+ !\n  18\n  19\n"
        );
    }

    #[test]
    fn a_snapshot_is_written_in_update_mode_only() {
        let path = std::env::temp_dir().join(format!("snapshot-{}", std::process::id()));
        let name = "below/one.txt";
        let missing = folder(&path, false).compare(name, "a\n");
        assert!(matches!(missing, Err(Mismatch::Missing(_))), "{missing:?}");
        assert!(folder(&path, true).compare(name, "a\n").is_ok());
        assert!(folder(&path, false).compare(name, "a\n").is_ok());
        let other = folder(&path, false).compare(name, "b\n");
        let text = other.map_err(|mismatch| mismatch.to_string()).unwrap_err();
        assert!(text.contains("- a\n+ b\n"), "{text}");
        assert!(
            text.ends_with("run again with UPDATE_SNAPSHOTS=1"),
            "{text}"
        );
        fs::remove_dir_all(&path).expect("the folder can be removed");
    }
}
