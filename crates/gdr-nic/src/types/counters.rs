//! Counters of a device.

use std::ops::AddAssign;

/// What a device has sent, received and dropped since it was opened, in packets unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets passed to the kernel, or to a device on this host.
    pub packets_sent: u64,
    /// Bytes in packets that were sent, from the transport header to the end of the payload.
    pub bytes_sent: u64,
    /// Packets sent through shared memory to a device on this host; `packets_sent` includes them.
    pub sent_by_memory: u64,
    /// Packets sent through shared memory whose payload the receiver reads from the memory of this process.
    pub sent_by_reference: u64,
    /// Packets sent to multicast groups; `packets_sent` includes them.
    pub sent_to_groups: u64,
    /// Packets received from the kernel or through shared memory, valid or not.
    pub packets_received: u64,
    /// Bytes in received packets, counted like those that were sent.
    pub bytes_received: u64,
    /// Packets received through shared memory; `packets_received` includes them.
    pub received_by_memory: u64,
    /// Packets received for multicast groups, each counted once, however many queue pairs get it.
    pub received_by_groups: u64,
    /// Datagrams that are not packets of RoCEv2's reliable connections or datagrams.
    pub malformed: u64,
    /// Packets from the peer of a queue pair, but with a wrong ICRC.
    pub icrc_mismatches: u64,
    /// Packets for queue pairs that do not exist.
    pub unknown_queue_pair: u64,
    /// Packets for a queue pair whose peer has another address or port.
    pub wrong_source: u64,
    /// Packets for a datagram queue pair with a different queue key.
    pub wrong_qkey: u64,
    /// Packets for a datagram or raw packet queue pair that were dropped because no receive was posted.
    pub no_receive: u64,
    /// Frames that raw packet queue pairs sent.
    pub frames_sent: u64,
    /// Frames that raw packet queue pairs received.
    pub frames_received: u64,
    /// Packets that the kernel dropped at the UDP socket, because they came from an address that is not a peer's or
    /// because the receive buffer was full (`SO_MEMINFO`).
    pub kernel_drops: u64,
    /// NAKs sent because a packet of the peer was lost.
    pub sequence_naks_sent: u64,
    /// NAKs received because a packet to the peer was lost.
    pub sequence_naks_received: u64,
    /// System calls that failed to send (no route, no such interface).
    pub sends_failed: u64,
    /// Asynchronous events that were lost because 1024 others were waiting to be taken.
    pub events_lost: u64,
    /// Polls of the device, by its own threads and by threads of the program; about, as several may poll at once.
    pub looks: u64,
    /// Bytes in requests that were posted, and in receives that completed.
    pub payload: PayloadBytes,
}

/// Bytes in requests by operation, without headers and retransmissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PayloadBytes {
    /// Bytes in posted SEND requests.
    pub send: u64,
    /// Bytes in posted WRITE requests.
    pub write: u64,
    /// Bytes in posted READ requests.
    pub read: u64,
    /// Bytes in posted atomic requests, eight each.
    pub atomic: u64,
    /// Bytes in receives that completed successfully, including the header of a datagram.
    pub receive: u64,
    /// Bytes in such receives whose completions are never taken, because they were lost, their queue pair was reset,
    /// or the queue was destroyed.
    pub untaken: u64,
}

impl Counters {
    /// Counts a packet of this many bytes that is sent through shared memory.
    #[inline]
    pub(crate) fn count_sent_by_memory(&mut self, bytes: u64) {
        self.packets_sent += 1;
        self.bytes_sent += bytes;
        self.sent_by_memory += 1;
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            packets_sent,
            bytes_sent,
            sent_by_memory,
            sent_by_reference,
            sent_to_groups,
            packets_received,
            bytes_received,
            received_by_memory,
            received_by_groups,
            malformed,
            icrc_mismatches,
            unknown_queue_pair,
            wrong_source,
            wrong_qkey,
            no_receive,
            frames_sent,
            frames_received,
            kernel_drops,
            sequence_naks_sent,
            sequence_naks_received,
            sends_failed,
            events_lost,
            looks,
            payload,
        } = other;
        self.packets_sent += packets_sent;
        self.bytes_sent += bytes_sent;
        self.sent_by_memory += sent_by_memory;
        self.sent_by_reference += sent_by_reference;
        self.sent_to_groups += sent_to_groups;
        self.packets_received += packets_received;
        self.bytes_received += bytes_received;
        self.received_by_memory += received_by_memory;
        self.received_by_groups += received_by_groups;
        self.malformed += malformed;
        self.icrc_mismatches += icrc_mismatches;
        self.unknown_queue_pair += unknown_queue_pair;
        self.wrong_source += wrong_source;
        self.wrong_qkey += wrong_qkey;
        self.no_receive += no_receive;
        self.frames_sent += frames_sent;
        self.frames_received += frames_received;
        self.kernel_drops += kernel_drops;
        self.sequence_naks_sent += sequence_naks_sent;
        self.sequence_naks_received += sequence_naks_received;
        self.sends_failed += sends_failed;
        self.events_lost += events_lost;
        self.looks += looks;
        self.payload += payload;
    }
}

impl AddAssign for PayloadBytes {
    fn add_assign(&mut self, other: Self) {
        self.send += other.send;
        self.write += other.write;
        self.read += other.read;
        self.atomic += other.atomic;
        self.receive += other.receive;
        self.untaken += other.untaken;
    }
}
