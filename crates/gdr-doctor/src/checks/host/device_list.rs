//! The device nodes that the collecting process sees.

use gdr_node::{Datum, virtual_path};

use crate::context::Context;

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceNode {
    pub(super) path: String,
    /// Permissions, as `chmod` takes them.
    pub(super) mode: u32,
    pub(super) major: u32,
    /// Whether this process may read and write it.
    pub(super) open: bool,
    /// The line of the list.
    pub(super) line: String,
}

/// Reads the nodes of RDMA devices and GPUs.
pub(super) fn read(context: &Context<'_>) -> Datum<Vec<DeviceNode>> {
    context
        .text(virtual_path::DEVICE_NODES)
        .map(|text| text.lines().filter_map(parse).collect())
}

/// `0666 231:192 rw /dev/infiniband/uverbs0`.
fn parse(line: &str) -> Option<DeviceNode> {
    let mut words = line.split_whitespace();
    let mode = u32::from_str_radix(words.next()?, 8).ok()?;
    let (major, _minor) = words.next()?.split_once(':')?;
    let access = words.next()?;
    Some(DeviceNode {
        mode,
        major: major.parse().ok()?,
        open: access == "rw",
        path: words.next()?.to_owned(),
        line: line.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_and_garbage_is_not() {
        let node = parse("0660 231:192 r- /dev/infiniband/uverbs0").unwrap();
        assert_eq!((node.mode, node.major, node.open), (0o660, 231, false));
        assert_eq!(node.path, "/dev/infiniband/uverbs0");
        for bad in [
            "",
            "x",
            "0660 231 rw /dev/x",
            "0999 1:2 rw /dev/x",
            "0666 1:2 rw",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
