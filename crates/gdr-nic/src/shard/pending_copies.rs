//! Payloads in another process's memory that are not copied yet.

use gdr_roce::{Extent, Qpn};

use crate::buffer::{BounceBuffer, Buffer};
use crate::error::{Error, Result};
use crate::wire::memory::ProcessMemory;

/// A range of another process's memory, and its destination.
#[derive(Debug)]
struct PendingCopy {
    from: u64,
    to: Buffer,
    offset: u64,
    len: usize,
    qpn: Qpn,
}

/// Payloads of received packets that are still in their sender's memory. Each copy is a system call, so the packets of
/// a message share one.
#[derive(Debug, Default)]
pub(crate) struct PendingCopies(Vec<PendingCopy>);

impl PendingCopies {
    /// Adds the bytes at `from`, to be copied to `offset` in a buffer.
    pub(crate) fn add(&mut self, from: Extent, to: &Buffer, offset: u64, qpn: Qpn) {
        let len = from.len as usize;
        if let Some(last) = self.0.last_mut()
            && last.qpn == qpn
            && last.to.is_same(to)
            && last.offset + last.len as u64 == offset
            && last.from.wrapping_add(last.len as u64) == from.addr
        {
            last.len += len;
            return;
        }
        self.0.push(PendingCopy {
            from: from.addr,
            to: to.clone(),
            offset,
            len,
            qpn,
        });
    }

    /// Copies everything. Calls `failed` for each queue pair whose bytes were not copied.
    ///
    /// # Errors
    /// The last error.
    pub(crate) fn run(
        &mut self,
        memory: &ProcessMemory,
        bounce: &mut BounceBuffer,
        mut failed: impl FnMut(Qpn),
    ) -> Result<()> {
        let mut result = Ok(());
        if self.0.is_empty() {
            return result;
        }
        for copy in &self.0 {
            let to = &copy.to;
            let copied = to.copy_from(copy.offset, memory, copy.from, copy.len, bounce);
            if copied.is_err() {
                failed(copy.qpn);
                result = copied;
            }
        }
        if !memory.was_read() {
            // The process has ended, and its PID may belong to another one by now.
            self.0.iter().for_each(|copy| failed(copy.qpn));
            result = Err(Error::os("process_vm_readv", rustix::io::Errno::SRCH));
        }
        self.0.clear();
        result
    }
}
