//! Memory regions: registered memory, and the parts of it that requests name.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use gdr_roce::{Access, Lkey, Remote, Rkey};

use crate::error::{NicError, Result};
use crate::reaper;
use crate::types::{Domain, FlushPolicy, RegistrationMethod};
use gdr_nic::{Buffer, Retained, check_range};

/// Part of a buffer to register.
#[derive(Clone, Debug)]
pub(crate) struct MemoryRange {
    pub(crate) buffer: Buffer,
    /// The offset of its first byte in the buffer.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
}

impl MemoryRange {
    /// Returns the address of its first byte, as requests name it.
    pub(crate) fn address(&self) -> u64 {
        self.buffer.address() + self.offset
    }
}

/// What a provider returns for a memory range.
pub(crate) struct Registration {
    pub(crate) lkey: Lkey,
    pub(crate) rkey: Rkey,
    pub(crate) method: RegistrationMethod,
    /// Ends the registration when it is dropped.
    pub(crate) _guard: Box<dyn Any + Send + Sync>,
}

/// Methods that do not work for a range of GPU memory, with the reasons.
#[derive(Debug, Default)]
pub(crate) struct RejectedMethods {
    methods: Vec<RegistrationMethod>,
    reasons: Vec<String>,
}

impl RejectedMethods {
    pub(crate) fn add(&mut self, method: RegistrationMethod, why: &dyn fmt::Display) {
        self.methods.push(method);
        self.reasons.push(format!("{method}: {why}"));
    }

    pub(crate) fn contains(&self, method: RegistrationMethod) -> bool {
        self.methods.contains(&method)
    }

    /// Returns the reasons, a sentence for each method.
    pub(crate) fn reasons(&self) -> &[String] {
        &self.reasons
    }

    pub(crate) fn into_reasons(self) -> Vec<String> {
        self.reasons
    }
}

/// How a device's writes to a region of GPU memory are flushed.
pub(crate) struct Flush {
    pub(crate) policy: FlushPolicy,
    pub(crate) why: String,
    /// Stops the flushes when it is dropped.
    pub(crate) _guard: Option<Box<dyn Any + Send + Sync>>,
}

/// Registered memory, which keeps its buffer alive. A clone refers to the same region.
///
/// The region and its key become invalid when the last clone has been dropped and no posted request uses
/// the region any more. A request holds its regions until it has completed (an unsignalled request, until
/// a later one has completed; one of several that were posted together, until the last of them that uses
/// the region has completed). From then on nothing can access the buffer through the region; a request
/// of the peer that is in progress fails.
///
/// The key consists of 32 random bits, which are new for each registration, and the same for local and
/// remote use.
#[derive(Clone, Debug)]
pub struct MemoryRegion(Arc<Registered>);

/// A region, with everything that ends with it.
pub(crate) struct Registered {
    // Field order is drop order: the flushes stop first, and the registration ends before the
    // buffer is freed.
    flush: OnceLock<Flush>,
    registration: Registration,
    domain: Domain,
    range: MemoryRange,
    rejected_methods: Vec<String>,
    unverified_reason: OnceLock<String>,
}

impl MemoryRegion {
    pub(crate) fn new(
        domain: Domain,
        range: MemoryRange,
        registration: Registration,
        rejected_methods: Vec<String>,
    ) -> Self {
        Self(Arc::new(Registered {
            flush: OnceLock::new(),
            registration,
            domain,
            range,
            rejected_methods,
            unverified_reason: OnceLock::new(),
        }))
    }

    /// Converts the region into what a request retains.
    pub(crate) fn into_retained(self) -> Arc<dyn Retained> {
        self.0
    }

    /// Returns whether both are clones of one region.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn downgrade(&self) -> WeakMemoryRegion {
        WeakMemoryRegion(Arc::downgrade(&self.0))
    }

    /// Records that the registration was not verified. The first reason counts.
    pub(crate) fn set_unverified(&self, why: String) {
        let _ = self.0.unverified_reason.set(why);
    }

    /// Records how writes of the device are flushed. The first record counts.
    pub(crate) fn set_flush(&self, flush: Flush) {
        let _ = self.0.flush.set(flush);
    }

    /// Returns why the loopback verification of this registration could not run; the registration may
    /// still work. `None` if it was verified, or needs no verification.
    pub fn unverified_reason(&self) -> Option<&str> {
        self.0.unverified_reason.get().map(String::as_str)
    }

    /// Returns the address of the first byte, as used in requests of both sides.
    pub fn addr(&self) -> u64 {
        self.0.range.address()
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> u64 {
        self.0.range.len
    }

    /// Returns the permitted access.
    pub fn access(&self) -> Access {
        self.0.range.access
    }

    /// Returns the key for this side's requests.
    pub fn lkey(&self) -> Lkey {
        self.0.registration.lkey
    }

    /// Returns the key for the peer's requests.
    pub fn rkey(&self) -> Rkey {
        self.0.registration.rkey
    }

    /// Returns how the device accesses the memory.
    pub fn route(&self) -> RegistrationMethod {
        self.0.registration.method
    }

    /// Returns the methods for GPU memory that were tried first and rejected, with a sentence for each.
    pub fn rejected_methods(&self) -> &[String] {
        &self.0.rejected_methods
    }

    /// Returns how bytes that a kernel device wrote to GPU memory become visible before their completion
    /// is polled, and why it is done this way. `None` for memory that no device writes to directly.
    pub fn flush_policy(&self) -> Option<(FlushPolicy, &str)> {
        let flush = self.0.flush.get()?;
        Some((flush.policy, &flush.why))
    }

    /// Returns the memory itself.
    pub fn buffer(&self) -> &Buffer {
        &self.0.range.buffer
    }

    /// Returns what a peer needs to know to access the whole region.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            rkey: self.rkey(),
            addr: self.addr(),
            len: self.len(),
        }
    }

    /// Returns a segment of `len` bytes at `offset`, for use in a request.
    ///
    /// # Errors
    /// [`NicError::OutOfRange`](crate::NicError::OutOfRange), also if the segment exceeds 4 GiB.
    #[inline]
    pub fn segment(&self, offset: u64, len: u64) -> Result<Segment> {
        check_range(offset, len, self.len())?;
        let short = u32::try_from(len).map_err(|_| NicError::OutOfRange {
            offset,
            wanted: len,
            len: u64::from(u32::MAX),
        })?;
        Ok(Segment {
            region: self.clone(),
            addr: self.addr() + offset,
            len: short,
        })
    }

    /// Returns the domain in which it is registered.
    #[inline]
    pub(crate) fn domain(&self) -> Domain {
        self.0.domain
    }
}

/// Part of a region, for use in a request. It keeps the region alive.
#[derive(Clone, Debug)]
pub struct Segment {
    region: MemoryRegion,
    addr: u64,
    len: u32,
}

impl Segment {
    /// Returns the region that the segment is part of.
    #[inline]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn into_region(self) -> MemoryRegion {
        self.region
    }

    /// Returns the segment as the protocol and the kernel name it.
    pub(crate) fn raw(&self) -> gdr_roce::Segment {
        gdr_roce::Segment {
            lkey: self.region.lkey(),
            addr: self.addr,
            len: self.len,
        }
    }
}

/// A region of the peer, as announced by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Its key.
    pub rkey: Rkey,
    /// The address of its first byte, as the peer names it.
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
}

impl RemoteMemory {
    /// Returns the address at `offset`. The addition wraps, because the peer checks the range.
    #[inline]
    pub fn at(&self, offset: u64) -> Remote {
        Remote {
            rkey: self.rkey,
            addr: self.addr.wrapping_add(offset),
        }
    }
}

/// A region that may have ended.
pub(crate) struct WeakMemoryRegion(Weak<Registered>);

impl WeakMemoryRegion {
    pub(crate) fn upgrade(&self) -> Option<MemoryRegion> {
        self.0.upgrade().map(MemoryRegion)
    }
}

impl Registered {
    /// Arranges for the GPU memory to be freed without waiting for kernels, if this is the last owner and the driver
    /// supports that.
    pub(crate) fn free_unwaited(&self) {
        if let Some((memory, _)) = self.range.buffer.device_memory()
            && Arc::strong_count(memory) == 1
        {
            memory.free_unwaited();
        }
    }

    /// Returns whether dropping it may wait for a GPU's work.
    pub(crate) fn frees_gpu_memory(&self) -> bool {
        self.range.buffer.is_of_driver()
    }
}

impl Retained for Registered {
    /// Dropping the last owner of a region may free GPU memory, which may wait for kernels, so another thread does it.
    fn release(self: Arc<Self>) {
        if let Some(last) = Arc::into_inner(self)
            && last.frees_gpu_memory()
        {
            last.free_unwaited();
            reaper::drop_later(last);
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("range", &self.range)
            .field("method", &self.registration.method)
            .finish_non_exhaustive()
    }
}
