//! The end that owns host memory, and makes the requests.

use std::time::{Duration, Instant};

use gdr_rdma::{
    Access, Buffer, Device, Endpoint, Immediate, MemoryRegion, Mtu, RemoteMemory, SendRequest, WrId,
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
    pub(super) fn new(device: &Device, settings: &Settings) -> Result<Self> {
        let bytes = usize::try_from(settings.size).map_err(|_| SettingsError::TooLarge {
            bytes: settings.size,
        })?;
        let domain = device.protection_domain();
        let source = Buffer::host(bytes)?;
        let sink = Buffer::host(bytes)?;
        Ok(Self {
            connection: Connection::new(&domain)?,
            source: domain.register(&source, Access::empty())?,
            sink: domain.register(&sink, Access::LOCAL_WRITE)?,
            size: settings.size,
            limit: settings.limit(),
            give_up_after: settings.give_up_after(),
            chunk: vec![0; CHUNK],
        })
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.connection.pair().endpoint()
    }

    pub(super) fn connect(&self, peer: &Endpoint, mtu: Mtu) -> Result<()> {
        self.connection.connect(peer, mtu, self.give_up_after)
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

    /// Writes all host memory to `remote`; the last message carries `number` as its immediate.
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
        let mut due = 0;
        for (offset, len) in pieces(self.size, MESSAGE) {
            let id = WrId(offset);
            let request = match transfer {
                Transfer::Write(number) => {
                    let last = offset + len == self.size;
                    let write = SendRequest::write(id, remote.at(offset));
                    let write = if last {
                        write.immediate(Immediate(number))
                    } else {
                        write
                    };
                    write.segment(self.source.segment(offset, len)?)
                }
                Transfer::Read => SendRequest::read(id, remote.at(offset))
                    .segment(self.sink.segment(offset, len)?),
            };
            match self.connection.pair().post_send(request) {
                Ok(()) => due += 1,
                // The completions of earlier requests explain more than this error.
                Err(_) if due > 0 => break,
                Err(error) => {
                    let reason = error.to_string();
                    return Ok(Ended::Failed { reason });
                }
            }
        }
        let all = self.size.div_ceil(MESSAGE);
        let ended = self
            .connection
            .wait(start, self.limit, due, observer, |_| None)?;
        if ended.is_done() && u64::from(due) < all {
            let reason = format!("only {due} of {all} messages could be posted");
            return Ok(Ended::Failed { reason });
        }
        Ok(ended)
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

    fn host(device: &Device, timeout: Duration) -> HostSide {
        let settings = Settings {
            size: 4096,
            timeout,
            ..Settings::default()
        };
        HostSide::new(device, &settings).unwrap()
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
        let (from, to) = (host(&here, limit), host(&there, limit));
        from.connect(&to.endpoint(), Mtu::B1024).unwrap();
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
        let (from, to) = (host(&here, limit), host(&there, limit));
        from.connect(&to.endpoint(), Mtu::B1024).unwrap();
        to.connect(&from.endpoint(), Mtu::B1024).unwrap();
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
