//! What the engines of this process have moved, as files: the environment variable
//! `GDR_VERBS_COUNTERS`.

use std::fs;
use std::path::PathBuf;
use std::process;

use gdr_rdma::PayloadBytes;

/// Names the folder of the files. Each is called `PID-DEVICE.counters`.
const FOLDER: &str = "GDR_VERBS_COUNTERS";

/// Writes the bytes that an engine has moved since it was opened, if the user asks for that.
pub(crate) fn write(device: &str, payload: impl FnOnce() -> PayloadBytes) {
    let Some(folder) = std::env::var_os(FOLDER).filter(|folder| !folder.is_empty()) else {
        return;
    };
    let file = format!("{}-{device}.counters", process::id());
    let path = PathBuf::from(folder).join(file);
    if let Err(error) = fs::write(&path, text(&payload())) {
        tracing::error!(%error, path = %path.display(), "the counters cannot be written");
    }
}

/// A line with its name for each counter.
fn text(payload: &PayloadBytes) -> String {
    [
        ("send", payload.send),
        ("write", payload.write),
        ("read", payload.read),
        ("atomic", payload.atomic),
        ("receive", payload.receive),
        ("untaken", payload.untaken),
    ]
    .map(|(name, bytes)| format!("{name} {bytes}\n"))
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_line() {
        let mut payload = PayloadBytes::default();
        (payload.send, payload.write, payload.read) = (1, 2, 3);
        (payload.atomic, payload.receive, payload.untaken) = (8, 5, 4);
        assert_eq!(
            text(&payload),
            "send 1\nwrite 2\nread 3\natomic 8\nreceive 5\nuntaken 4\n"
        );
    }
}
