//! The requesting end, with host or GPU memory.

use std::time::{Duration, Instant};

use gdr_rdma::{
    Access, Device, Endpoint, Immediate, Mtu, RemoteMemory, SendRequest, Stripe, StripedPart, WrId,
};

use super::compare::pieces;
use super::connection::Connection;
use super::event::Observer;
use super::report::{Ended, Outcome};
use super::settings::{MESSAGE, Settings};
use crate::error::Result;
use crate::memory_facts::MemoryFacts;
use crate::registered_buffer::{RegisteredBuffer, StandIn, TransferMemory};

/// The memory to send and the memory to read back into, registered with a device.
pub(super) struct Requester {
    // Fields drop in order: the connection before the memory.
    connection: Connection,
    source: RegisteredBuffer,
    sink: RegisteredBuffer,
    facts: MemoryFacts,
    size: u64,
    limit: Duration,
    give_up_after: Duration,
}

/// A transfer and its direction.
#[derive(Clone, Copy)]
enum Transfer {
    Write(u32),
    Read,
}

impl Requester {
    /// Returns the number of queue pairs over which a device sends `bytes` between these memories: one per shard if the
    /// transfer is long and neither end is staged. Staged bytes are gathered in the order of one queue pair: with
    /// eight, the copies become short and take four times as long on an H100.
    pub(super) fn queue_pairs(
        device: &Device,
        bytes: u64,
        memories: &[TransferMemory<'_>],
    ) -> usize {
        let is_long = bytes >= Stripe::LONG_TRANSFER;
        match is_long && !memories.iter().any(TransferMemory::is_staged) {
            true => device.shards(),
            false => 1,
        }
    }

    pub(super) fn new(
        device: &Device,
        memory: TransferMemory<'_>,
        settings: &Settings,
        queue_pairs: usize,
    ) -> Result<Self> {
        let size = settings.size;
        let domain = device.protection_domain();
        // The peer may access neither buffer.
        let registered =
            |access| RegisteredBuffer::new(&domain, memory, size, access, StandIn::Allowed);
        let (source, facts) = registered(Access::empty())?;
        let (sink, _) = registered(Access::LOCAL_WRITE)?;
        Ok(Self {
            connection: Connection::over(&domain, queue_pairs)?,
            source,
            sink,
            facts,
            size,
            limit: settings.limit(),
            give_up_after: settings.give_up_after(),
        })
    }

    /// Returns its memory, for the report.
    pub(super) fn facts(&self) -> &MemoryFacts {
        &self.facts
    }

    pub(super) fn endpoints(&self) -> Vec<Endpoint> {
        self.connection.endpoints()
    }

    pub(super) fn connect(&self, peers: &[Endpoint], mtu: Mtu) -> Result<()> {
        self.connection.connect_all(peers, mtu, self.give_up_after)
    }

    /// Fills the memory that is sent with the pattern of `seed`.
    pub(super) fn load(&self, seed: u32) -> Result<()> {
        self.source.fill(0, self.size, seed)?;
        self.source.before_sending()
    }

    /// Writes all of it to `remote`. The last message carries `number` as its immediate. Queue pairs are not ordered
    /// among each other, so with several the immediate is in an empty message after all others.
    pub(super) fn write(
        &self,
        number: u32,
        remote: &RemoteMemory,
        observer: &mut Observer<'_>,
    ) -> Result<Ended> {
        self.transfer(Transfer::Write(number), remote, observer)
    }

    /// Reads all of `remote` back.
    pub(super) fn read(&self, remote: &RemoteMemory, observer: &mut Observer<'_>) -> Result<Ended> {
        self.transfer(Transfer::Read, remote, observer)
    }

    fn transfer(
        &self,
        transfer: Transfer,
        remote: &RemoteMemory,
        observer: &mut Observer<'_>,
    ) -> Result<Ended> {
        let start = Instant::now();
        let queue_pairs = self.connection.pairs().len();
        let (whole, size) = (remote.at(0), self.size);
        let parts = match (transfer, queue_pairs) {
            (_, 1) => self.messages(transfer, remote)?,
            (Transfer::Write(_), _) => self.source.range(0, whole, size).writes(queue_pairs)?,
            (Transfer::Read, _) => self.sink.range(0, whole, size).reads(queue_pairs)?,
        };
        let ended = self
            .connection
            .execute(parts, start, self.limit, observer)?;
        match transfer {
            Transfer::Write(number) if queue_pairs > 1 && ended.is_done() => {
                let write = SendRequest::write(WrId(0), remote.at(0));
                let last = StripedPart {
                    request: write.immediate(Immediate(number)),
                    bytes: 0,
                };
                let connection = &self.connection;
                connection.execute(vec![last], start, self.limit, observer)
            }
            _ => Ok(ended),
        }
    }

    /// Returns the messages of a transfer over one queue pair.
    fn messages(&self, transfer: Transfer, remote: &RemoteMemory) -> Result<Vec<StripedPart>> {
        let messages = pieces(self.size, MESSAGE).map(|(offset, bytes)| {
            let (id, remote) = (WrId(0), remote.at(offset));
            let request = match transfer {
                Transfer::Write(number) => {
                    let is_last = offset + bytes == self.size;
                    let write = SendRequest::write(id, remote);
                    let write = match is_last {
                        true => write.immediate(Immediate(number)),
                        false => write,
                    };
                    write.segment(self.source.segment(offset, bytes)?)
                }
                Transfer::Read => {
                    SendRequest::read(id, remote).segment(self.sink.segment(offset, bytes)?)
                }
            };
            Ok(StripedPart { request, bytes })
        });
        messages.collect()
    }

    /// Compares the bytes that were read back with the pattern of `seed`.
    pub(super) fn compare(&self, seed: u32, before: u32) -> Outcome {
        let arrived = self.sink.after_receiving();
        Outcome::of(arrived.and_then(|()| self.sink.outcome(self.size, seed, before)))
    }
}

#[cfg(test)]
mod tests {
    use gdr_rdma::{Device, SoftOptions};

    use super::super::Event;
    use super::*;

    fn device() -> Device {
        Device::soft_with(SoftOptions::default().port(0)).unwrap()
    }

    fn requester(device: &Device, timeout: Duration, queue_pairs: usize) -> Requester {
        let settings = Settings {
            size: 4096,
            timeout,
            ..Settings::default()
        };
        Requester::new(device, TransferMemory::Host, &settings, queue_pairs).unwrap()
    }

    fn write(from: &Requester, to: &Requester) -> Ended {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let domain = to.connection.pair().domain();
        let target = domain
            .register(to.sink.host_buffer().unwrap(), access)
            .unwrap();
        let mut observe = |_: Event<'_>| std::ops::ControlFlow::Continue(());
        let mut observer = Observer::new(&mut observe);
        from.write(1, &target.remote(), &mut observer).unwrap()
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_completion_with_a_remedy() {
        let (here, there) = (device(), device());
        let limit = Duration::from_secs(1);
        let (from, to) = (requester(&here, limit, 1), requester(&there, limit, 1));
        from.connect(&to.endpoints(), Mtu::B1024).unwrap();
        let Ended::Error { status, remedy, .. } = write(&from, &to) else {
            panic!("it did not fail with a completion");
        };
        assert_eq!(status, "RETRY_EXC_ERR");
        assert!(remedy.contains("firewall"), "{remedy}");
    }

    #[test]
    fn a_peer_that_never_takes_the_message_is_a_missed_deadline() {
        let (here, there) = (device(), device());
        let limit = Duration::from_millis(300);
        let (from, to) = (requester(&here, limit, 1), requester(&there, limit, 1));
        from.connect(&to.endpoints(), Mtu::B1024).unwrap();
        to.connect(&from.endpoints(), Mtu::B1024).unwrap();
        // Without a receive for the immediate, the sender retries until the deadline.
        let ended = write(&from, &to);
        assert_eq!(
            ended,
            Ended::Late {
                waited_ms: 300,
                completions: 0,
                due: 1
            }
        );
    }
}
