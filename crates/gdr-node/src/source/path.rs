//! Resolving links textually, so that a capture's links stay inside the capture.

use std::collections::VecDeque;

use super::{Absence, Datum, Errno};

/// The number of links that Linux follows in one path (`path_resolution(7)`).
const MOST_LINKS: u32 = 40;

/// `ELOOP` of Linux.
const TOO_MANY_LINKS: Errno = Errno(40);

/// Returns `path` with every link resolved. `link` is called only for paths whose parent directories are resolved.
pub(crate) fn resolve(path: &str, link: impl Fn(&str) -> Datum<String>) -> Datum<String> {
    let mut ahead: VecDeque<String> = path.split('/').map(str::to_owned).collect();
    let mut resolved: Vec<String> = Vec::new();
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        match name.as_str() {
            "" | "." => continue,
            ".." => {
                resolved.pop();
                continue;
            }
            _ => resolved.push(name),
        }
        match link(&join(&resolved)) {
            Ok(target) => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Absence::Failed(TOO_MANY_LINKS));
                }
                if target.starts_with('/') {
                    resolved.clear();
                } else {
                    resolved.pop();
                }
                for part in target.rsplit('/') {
                    ahead.push_front(part.to_owned());
                }
            }
            // Not a link, or nonexistent: the name stays.
            Err(Absence::Missing) | Err(Absence::NotCollected) => {}
            Err(Absence::Denied) => return Err(Absence::Denied),
            Err(Absence::Failed(errno)) => return Err(Absence::Failed(errno)),
        }
    }
    Ok(join(&resolved))
}

/// Returns `path` with everything but its last name resolved.
pub(crate) fn resolve_parent(path: &str, link: impl Fn(&str) -> Datum<String>) -> Datum<String> {
    let trimmed = path.trim_end_matches('/');
    let Some((parent, name)) = trimmed.rsplit_once('/') else {
        return resolve(path, link);
    };
    if matches!(name, "." | "..") {
        return resolve(path, link);
    }
    resolve(parent, link).map(|parent| {
        if parent == "/" {
            format!("/{name}")
        } else {
            format!("{parent}/{name}")
        }
    })
}

/// Returns the last name in `path`.
pub(crate) fn last_name(path: &str) -> Option<&str> {
    path.rsplit('/').find(|name| !name.is_empty())
}

fn join(names: &[String]) -> String {
    format!("/{}", names.join("/"))
}
