//! The end that owns host memory, and makes the requests.

use std::time::{Duration, Instant};

use gdr_rdma::{
    Access, Buffer, Device, Endpoint, Immediate, MemoryRegion, Mtu, RemoteMemory, SendRequest,
    StripedPart, StripedRange, WrId,
};

use super::compare::{CHUNK, Comparison, fill, pieces};
use super::connection::Connection;
use super::event::Observer;
use super::report::{Ended, Outcome};
use super::settings::{MESSAGE, Settings};
use crate::error::{Result, SettingsError};

/// Host memory, registered with a device.
pub(super) struct HostSide {
    connection: Connection,
    source: MemoryRegion,
    sink: MemoryRegion,
    size: u64,
    limit: Duration,
    give_up_after: Duration,
    chunk: Vec<u8>,
}

/// A transfer and its direction.
#[derive(Clone, Copy)]
enum Transfer {
    Write(u32),
    Read,
}

impl HostSide {
    pub(super) fn new(device: &Device, settings: &Settings, queue_pairs: usize) -> Result<Self> {
        let bytes = usize::try_from(settings.size).map_err(|_| SettingsError::TooLarge {
            bytes: settings.size,
        })?;
        let domain = device.protection_domain();
        let source = Buffer::host(bytes)?;
        let sink = Buffer::host(bytes)?;
        Ok(Self {
            connection: Connection::over(&domain, queue_pairs)?,
            source: domain.register(&source, Access::empty())?,
            sink: domain.register(&sink, Access::LOCAL_WRITE)?,
            size: settings.size,
            limit: settings.limit(),
            give_up_after: settings.give_up_after(),
            chunk: vec![0; CHUNK],
        })
    }

    pub(super) fn endpoints(&self) -> Vec<Endpoint> {
        self.connection.endpoints()
    }

    pub(super) fn connect(&self, peers: &[Endpoint], mtu: Mtu) -> Result<()> {
        self.connection.connect_all(peers, mtu, self.give_up_after)
    }

    /// Fills host memory with the pattern of `seed`.
    pub(super) fn load(&mut self, seed: u32) -> Result<()> {
        for (offset, len) in pieces(self.size, CHUNK as u64) {
            let chunk = &mut self.chunk[..len as usize];
            fill(chunk, seed, offset / 4);
            self.source.buffer().write_at(offset, chunk)?;
        }
        Ok(())
    }

    /// Writes all host memory to `remote`; the last message carries `number` as its immediate. Over
    /// several queue pairs, whose messages have no order, it is one without bytes after all others.
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
        let range = |local| StripedRange {
            local,
            offset: 0,
            remote: remote.at(0),
            len: self.size,
        };
        let parts = match (transfer, queue_pairs) {
            (_, 1) => self.messages(transfer, remote)?,
            (Transfer::Write(_), _) => range(&self.source).writes(queue_pairs)?,
            (Transfer::Read, _) => range(&self.sink).reads(queue_pairs)?,
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

    /// The messages of a transfer over one queue pair.
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
    pub(super) fn compare(&mut self, seed: u32, before: u32) -> Outcome {
        Outcome::of(self.try_compare(seed, before))
    }

    fn try_compare(&mut self, seed: u32, before: u32) -> Result<Outcome> {
        let mut comparison = Comparison::new(seed, Some(before));
        for (offset, len) in pieces(self.size, CHUNK as u64) {
            let chunk = &mut self.chunk[..len as usize];
            self.sink.buffer().read_at(offset, chunk)?;
            comparison.add(chunk);
        }
        Ok(comparison.outcome())
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

    fn host(device: &Device, timeout: Duration, queue_pairs: usize) -> HostSide {
        let settings = Settings {
            size: 4096,
            timeout,
            ..Settings::default()
        };
        HostSide::new(device, &settings, queue_pairs).unwrap()
    }

    fn write(from: &HostSide, to: &HostSide) -> Ended {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let domain = to.connection.pair().domain();
        let target = domain.register(to.sink.buffer(), access).unwrap();
        let mut observe = |_: Event<'_>| std::ops::ControlFlow::Continue(());
        let mut observer = Observer::new(&mut observe);
        from.write(1, &target.remote(), &mut observer).unwrap()
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_completion_with_a_remedy() {
        let (here, there) = (device(), device());
        let limit = Duration::from_secs(1);
        let (from, to) = (host(&here, limit, 1), host(&there, limit, 1));
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
        let (from, to) = (host(&here, limit, 1), host(&there, limit, 1));
        from.connect(&to.endpoints(), Mtu::B1024).unwrap();
        to.connect(&from.endpoints(), Mtu::B1024).unwrap();
        // No receive is posted for the immediate, so the sender retries until the deadline.
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
