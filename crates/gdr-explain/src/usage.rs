//! Whether a log shows GPUDirect RDMA at work.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::channel::{Channel, Direction, Transport};
use crate::clean::excerpt;

/// Ranks that are distinguished.
const RANKS: usize = 1 << 16;
/// Connections without GPUDirect RDMA that are listed.
const LISTED: usize = 32;
/// Lines that are kept of each kind.
const EVIDENCE: usize = 3;

/// Whether GPUDirect RDMA is in use, as far as a log shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InUse {
    /// On all connections between nodes.
    Yes,
    /// On some of them.
    Partly,
    /// On none of them.
    No,
    /// The libraries found that it works; which way data takes does not show.
    Usable,
    /// No connection leaves the node.
    SameNode,
    /// The log does not say.
    Unknown,
}

/// What a line proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Data went between NIC and GPU.
    InUse,
    /// It would.
    Usable,
    /// It would not, though the line that was taken for it said so.
    NotUsable,
}

/// How many lines name each transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Connections {
    /// An RDMA NIC and GPU memory.
    pub gpudirect: usize,
    /// An RDMA NIC, through host memory.
    pub host_memory: usize,
    /// TCP sockets.
    pub socket: usize,
    /// Within a node.
    pub same_node: usize,
}

/// A connection of two ranks that does not use GPUDirect RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Connection {
    /// The rank that sends.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// Which of them wrote it, where the line says.
    pub direction: Option<Direction>,
    /// What is used instead.
    pub transport: Transport,
}

/// A line that shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UsageEvidence {
    /// From 1.
    pub line: usize,
    /// What stands there.
    pub text: String,
}

/// Whether a log shows GPUDirect RDMA at work, and what of it does not use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuDirect {
    /// The answer.
    pub in_use: InUse,
    /// The first lines that the answer rests on.
    pub evidence: Vec<UsageEvidence>,
    /// By transport.
    pub connections: Connections,
    /// Connections without it, in order: at most [`GpuDirect::LISTED`].
    pub without: Vec<Connection>,
    /// Whether there are more than those that are listed.
    pub more_without: bool,
    /// Every rank that has a connection without it, as `0-3,8`.
    pub ranks_without: String,
    /// Whether all that is received uses it and nothing that is sent does: reads from GPU memory
    /// are switched off.
    pub receives_only: bool,
}

impl GpuDirect {
    /// The most connections that are listed.
    pub const LISTED: usize = LISTED;
}

/// Gathers what lines say.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    connections: Connections,
    without: BTreeSet<Connection>,
    more_without: bool,
    ranks_without: BTreeSet<u32>,
    sends_direct: bool,
    receives_staged: bool,
    positive: Vec<UsageEvidence>,
    negative: Vec<UsageEvidence>,
    local: Vec<UsageEvidence>,
    in_use: Vec<UsageEvidence>,
    usable: Vec<UsageEvidence>,
}

impl Usage {
    pub(crate) fn channel(&mut self, channel: Channel, number: usize, line: &[u8], at: usize) {
        let connections = &mut self.connections;
        let (count, evidence) = match channel.transport {
            Transport::GpuDirect => (&mut connections.gpudirect, &mut self.positive),
            Transport::HostMemory => (&mut connections.host_memory, &mut self.negative),
            Transport::Socket => (&mut connections.socket, &mut self.negative),
            Transport::SameNode => (&mut connections.same_node, &mut self.local),
        };
        *count += 1;
        keep(evidence, number, line, at);
        match (channel.transport, channel.direction) {
            (Transport::GpuDirect, Some(Direction::Send) | None) => self.sends_direct = true,
            (Transport::HostMemory | Transport::Socket, Some(Direction::Receive) | None) => {
                self.receives_staged = true;
            }
            _ => {}
        }
        let is_without = matches!(channel.transport, Transport::HostMemory | Transport::Socket);
        if let Some((from, to)) = channel.ranks.filter(|_| is_without) {
            self.without_of(channel, from, to);
        }
    }

    fn without_of(&mut self, channel: Channel, from: u32, to: u32) {
        let connection = Connection {
            from,
            to,
            direction: channel.direction,
            transport: channel.transport,
        };
        self.without.insert(connection);
        if self.without.len() > LISTED {
            self.without.pop_last();
            self.more_without = true;
        }
        let own = match channel.direction {
            Some(Direction::Send) => [from, from],
            Some(Direction::Receive) => [to, to],
            None => [from, to],
        };
        if self.ranks_without.len() < RANKS {
            self.ranks_without.extend(own);
        }
    }

    pub(crate) fn sign(&mut self, proof: Proof, number: usize, line: &[u8], at: usize) {
        let evidence = match proof {
            Proof::InUse => &mut self.in_use,
            Proof::Usable => &mut self.usable,
            Proof::NotUsable => {
                self.usable.pop();
                return;
            }
        };
        keep(evidence, number, line, at);
    }

    pub(crate) fn finish(self) -> GpuDirect {
        let Connections {
            gpudirect,
            host_memory,
            socket,
            same_node,
        } = self.connections;
        let staged = host_memory + socket;
        let in_use = match (gpudirect > 0 || !self.in_use.is_empty(), staged > 0) {
            (true, true) => InUse::Partly,
            (true, false) => InUse::Yes,
            (false, true) => InUse::No,
            (false, false) if !self.usable.is_empty() => InUse::Usable,
            (false, false) if same_node > 0 => InUse::SameNode,
            (false, false) => InUse::Unknown,
        };
        let kinds = match in_use {
            InUse::Yes => vec![self.positive, self.in_use, self.usable],
            InUse::Partly => vec![self.positive, self.in_use, self.negative],
            InUse::No => vec![self.negative],
            InUse::Usable => vec![self.usable],
            InUse::SameNode => vec![self.local],
            InUse::Unknown => Vec::new(),
        };
        GpuDirect {
            in_use,
            evidence: kinds.into_iter().flatten().collect(),
            connections: self.connections,
            without: self.without.into_iter().collect(),
            more_without: self.more_without,
            ranks_without: ranges(&self.ranks_without),
            receives_only: gpudirect > 0
                && staged > 0
                && !self.sends_direct
                && !self.receives_staged,
        }
    }
}

fn keep(evidence: &mut Vec<UsageEvidence>, number: usize, line: &[u8], at: usize) {
    if evidence.len() < EVIDENCE && evidence.last().is_none_or(|last| last.line != number) {
        evidence.push(UsageEvidence {
            line: number,
            text: excerpt(line, at),
        });
    }
}

/// Numbers as `0-3,8`.
fn ranges(numbers: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let texts: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_row_are_one_range() {
        let of = |numbers: &[u32]| ranges(&numbers.iter().copied().collect());
        assert_eq!(of(&[]), "");
        assert_eq!(of(&[3]), "3");
        assert_eq!(of(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(of(&[u32::MAX - 1, u32::MAX]), "4294967294-4294967295");
    }
}
