//! Links between the Markdown pages of the repository.

use std::path::{Path, PathBuf};

use crate::ledger::Outcome;
use crate::workspace::root;

/// Follows every relative link of the README and of `docs/`.
pub(crate) fn check() -> anyhow::Result<Outcome> {
    let mut pages = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    for entry in std::fs::read_dir(root().join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    let mut outcome = Outcome::Passed;
    for page in pages {
        let text = std::fs::read_to_string(&page)?;
        for target in targets(&text).filter_map(|target| file(&page, target)) {
            if !target.exists() {
                println!("{}: {} does not exist", page.display(), target.display());
                outcome = Outcome::Failed;
            }
        }
    }
    Ok(outcome)
}

/// What stands between `](` and `)`.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
}

/// The file that a link names, unless it leads elsewhere.
fn file(page: &Path, target: &str) -> Option<PathBuf> {
    let path = target.split('#').next().unwrap_or(target);
    let is_outside = path.is_empty() || path.contains("://") || path.starts_with("mailto:");
    if is_outside {
        return None;
    }
    Some(page.parent().unwrap_or(root()).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_to_files_are_followed() {
        let text = "[a](docs/a.md#part) [b](https://example.org/b) [c](#here) `x](y`";
        let files: Vec<_> = targets(text)
            .filter_map(|target| file(Path::new("/r/README.md"), target))
            .collect();
        assert_eq!(files, [Path::new("/r/docs/a.md")]);
    }
}
