//! NCCL lines about the transport between two ranks: `Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA`.

use serde::Serialize;

/// Precedes the transport.
pub(crate) const MARK: &[u8] = b" via ";

/// The path of a channel's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// An RDMA NIC reads or writes GPU memory.
    GpuDirect,
    /// An RDMA NIC, through buffers in host memory.
    HostMemory,
    /// TCP sockets.
    Socket,
    /// Within the node: NVLink, PCIe or shared memory.
    SameNode,
}

/// Which end of the channel wrote the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The sender.
    Send,
    /// The receiver.
    Receive,
}

/// A channel of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channel {
    /// The sending and the receiving rank, if the line has them.
    pub(crate) ranks: Option<(u32, u32)>,
    pub(crate) direction: Option<Direction>,
    pub(crate) transport: Transport,
    /// The line ends where `/GDRDMA` could follow, so the next line may contain it if the line was wrapped.
    pub(crate) open: bool,
}

/// Returns the channel that a line is about, and the offset at which its transport is named.
pub(crate) fn parse(line: &[u8]) -> Option<(Channel, usize)> {
    let at = (line.windows(MARK.len())).rposition(|window| window.eq_ignore_ascii_case(MARK))?;
    let (before, after) = (&line[..at], line[at + MARK.len()..].trim_ascii_start());
    let (transport, open) = transport(after)?;
    let direction = if ends_with(before, b"[send]") {
        Some(Direction::Send)
    } else if ends_with(before, b"[receive]") {
        Some(Direction::Receive)
    } else {
        None
    };
    let ranks = ranks(before);
    // Prose says "via", too.
    if ranks.is_none() && direction.is_none() {
        return None;
    }
    let channel = Channel {
        ranks,
        direction,
        transport,
        open,
    };
    Some((channel, at))
}

/// Returns the rest of a channel's line that was wrapped before `/GDRDMA`.
pub(crate) fn continues_with_gpudirect(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let line = line.strip_prefix(b"/").unwrap_or(line);
    starts_with(line, b"gdrdma")
}

fn transport(text: &[u8]) -> Option<(Transport, bool)> {
    if starts_with(text, b"p2p/") || starts_with(text, b"shm") {
        return Some((Transport::SameNode, false));
    }
    // `NET/IB/0`, `NET/AWS Libfabric/3(2)/GDRDMA/Shared`, `COLLNET/SHARP/0/GDRDMA(PCI)`.
    let rest = [b"net/".as_slice(), b"collnet/"]
        .into_iter()
        .find(|prefix| starts_with(text, prefix))
        .map(|prefix| &text[prefix.len()..])?;
    let name_end = rest.iter().take(48).position(|byte| *byte == b'/')?;
    let (name, device) = (&rest[..name_end], &rest[name_end + 1..]);
    if !device.first()?.is_ascii_digit() {
        return None;
    }
    // Quotation marks and escapes end it if a logger wrapped the message.
    let end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'\\' | b'`');
    let length = device.iter().position(end).unwrap_or(device.len());
    let flags = &device[..length];
    if contains(flags, b"/gdrdma") {
        return Some((Transport::GpuDirect, false));
    }
    if name.eq_ignore_ascii_case(b"socket") {
        return Some((Transport::Socket, false));
    }
    Some((Transport::HostMemory, length == device.len()))
}

/// Returns the ranks of `... : 0[0] -> 8[2] [send]`, or the single rank of `CollNet 00/0 : 3 [receive]`.
fn ranks(before: &[u8]) -> Option<(u32, u32)> {
    let colon = before.windows(2).rposition(|window| window == b": ")?;
    let text = before[colon + 2..].trim_ascii();
    let (first, rest) = number(text)?;
    let Some(arrow) = rest.windows(2).position(|window| window == b"->") else {
        return Some((first, first));
    };
    let (second, _) = number(rest[arrow + 2..].trim_ascii_start())?;
    Some((first, second))
}

fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let value = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    Some((value, &text[digits..]))
}

fn starts_with(text: &[u8], prefix: &[u8]) -> bool {
    (text.get(..prefix.len())).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

fn ends_with(text: &[u8], suffix: &[u8]) -> bool {
    let text = text.trim_ascii_end();
    text.len() >= suffix.len() && text[text.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    (text.windows(part.len())).any(|window| window.eq_ignore_ascii_case(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = (Transport, Option<(u32, u32)>, Option<Direction>);

    fn read(line: &str) -> Option<Read> {
        parse(line.as_bytes()).map(|(it, _)| (it.transport, it.ranks, it.direction))
    }

    #[test]
    fn every_form_of_nccl_is_read() {
        use Direction::{Receive, Send};
        use Transport::{GpuDirect, HostMemory, SameNode, Socket};
        let channel = "host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0]";
        for (line, expected) in [
            ("[send] via NET/IB/0/GDRDMA", (GpuDirect, Some(Send))),
            (
                "[receive] via NET/IB/0(8)/GDRDMA/Shared",
                (GpuDirect, Some(Receive)),
            ),
            ("[send] via NET/IB/3/GDRDMA(PCI)", (GpuDirect, Some(Send))),
            (
                "[send] via NET/AWS Libfabric/1/GDRDMA",
                (GpuDirect, Some(Send)),
            ),
            ("[send] via NET/IBext_v10/1", (HostMemory, Some(Send))),
            ("[send] via NET/IB/1/Shared", (HostMemory, Some(Send))),
            (
                "[send] via NET/IB/1\\n\",\"stream\":\"stdout\"}",
                (HostMemory, Some(Send)),
            ),
            ("[receive] via NET/Socket/0", (Socket, Some(Receive))),
            ("via P2P/CUMEM/read", (SameNode, None)),
            ("via P2P/direct pointer", (SameNode, None)),
            ("via SHM/direct/direct", (SameNode, None)),
        ] {
            let found = read(&format!("{channel} {line}"));
            let (transport, direction) = expected;
            assert_eq!(found, Some((transport, Some((0, 8)), direction)), "{line}");
        }
        assert_eq!(
            read("CollNet 00/0 : 3 [send] via COLLNET/SHARP/0/GDRDMA"),
            Some((GpuDirect, Some((3, 3)), Some(Send)))
        );
        assert_eq!(
            read("NCCL INFO Channel 00 : 12[b000] -> 3[b000] [receive] via NET/IB/0(8)"),
            Some((HostMemory, Some((12, 3)), Some(Receive)))
        );
    }

    #[test]
    fn prose_is_no_channel() {
        for line in [
            "connect via NET/IB/0 if you can",
            "0 -> 1 via the switch",
            "Channel 00/0 : 0[0] -> 1[0] [send] via NET/",
            "via",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
