//! A unique name for a process in a shared directory.

use std::process;

/// Returns a name that is unique across this and other hosts: `PID-NAMESPACE-HOST`. NAMESPACE is the kernel's number
/// for the PID namespace (0 without `/proc`); slashes in the host name become underscores.
///
/// Containers and hosts that share a directory may use the same process ids.
#[must_use]
pub fn process_name() -> String {
    let namespace = rustix::fs::readlink("/proc/self/ns/pid", Vec::new()).ok();
    let namespace = namespace.as_deref().and_then(|link| {
        let text = link.to_str().ok()?;
        text.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
    });
    let namespace: u64 = namespace.unwrap_or(0);
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().replace('/', "_");
    format!("{}-{namespace}-{host}", process::id())
}

#[cfg(test)]
mod tests {
    use forked::{check, in_child, status_of};

    use super::*;
    use crate::NewNamespaces;

    #[test]
    fn the_first_processes_of_two_pid_namespaces_have_names_of_their_own() {
        let place = |name: &str| name.split_once('-').unwrap().1.to_owned();
        let outer = place(&process_name());
        let status = status_of(|| {
            let made = NewNamespaces::User.enter();
            let made = made.and_then(|()| NewNamespaces::Host.enter());
            made.map_err(|_| "namespaces are refused")?;
            in_child(|| {
                let inner = process_name();
                check(inner.starts_with("1-"), "not the first process")?;
                check(place(&inner) != outer, "the name of the other namespace")
            });
            Ok(())
        });
        // A panic of the child is another status.
        match libc::WEXITSTATUS(status) {
            1 => skip::skip("the kernel refuses namespaces"),
            _ => assert_eq!(status, 0),
        }
    }
}
