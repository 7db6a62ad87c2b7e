//! Memory regions and the protection domains that hold them together.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use gdr_roce::{Access, Lkey, Remote, Rkey};

use crate::buffer::Buffer;
use crate::device::{Device, Engine};
use crate::error::{Error, Result};
use crate::number_map::NumberMap;
use crate::random;
use crate::verbs::{self, FlushPolicy, VerbsError};

/// The number of a protection domain, unique within its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DomainId(pub(crate) u32);

/// What may be used together: regions and queue pairs of one domain.
///
/// A queue pair reaches, for its own requests and for its peer's, the regions of its own domain
/// and no others. A clone is the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    device: Device,
    id: DomainId,
    /// Of a device of the kernel.
    verbs: Option<Arc<verbs::Domain>>,
}

impl ProtectionDomain {
    pub(crate) fn soft(device: Device, id: DomainId) -> Self {
        let verbs = None;
        Self { device, id, verbs }
    }

    pub(crate) fn verbs(device: Device, domain: Arc<verbs::Domain>) -> Self {
        let id = DomainId(verbs::Domain::number(domain.context()));
        let verbs = Some(domain);
        Self { device, id, verbs }
    }

    /// What it is to a device of the kernel.
    pub(crate) fn of_kernel(&self) -> Option<&Arc<verbs::Domain>> {
        self.verbs.as_ref()
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn id(&self) -> DomainId {
        self.id
    }

    /// Registers all of `buffer` (`ibv_reg_mr`): this side's requests may then use it, and the
    /// peer's as far as `access` permits.
    ///
    /// With a device of the kernel, GPU memory is registered by dma-buf, else by a peer-memory
    /// module, and the way is trusted only after the device has moved the first 64 bytes out of it
    /// and, where the peer may write, others into it. They are then put back; until this returns
    /// nobody else may use them. [`VerbsOptions::without_proof`](crate::VerbsOptions::without_proof)
    /// leaves that out.
    ///
    /// # Errors
    /// [`Error::LocalWriteMissing`]; [`Error::Os`] when no random number is to be had.
    pub fn register(&self, buffer: &Buffer, access: Access) -> Result<MemoryRegion> {
        self.register_range(buffer, 0, buffer.len(), access)
    }

    /// Registers `len` bytes of `buffer` from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::EmptyBuffer`]; as [`ProtectionDomain::register`].
    pub fn register_range(
        &self,
        buffer: &Buffer,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        if len == 0 {
            return Err(Error::EmptyBuffer);
        }
        crate::buffer::check_range(offset, len, buffer.len())?;
        let changed_by_peer = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(changed_by_peer) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::LocalWriteMissing);
        }
        let region = Arc::new(Region {
            domain: self.id,
            addr: buffer.address() + offset,
            len,
            skip: offset,
            access,
            buffer: buffer.clone(),
        });
        let entry = match (&self.verbs, self.device.engine()) {
            (Some(domain), _) => return self.register_with_kernel(domain, region),
            (None, Engine::Soft(soft)) => {
                let table = Arc::clone(soft.regions());
                let key = table.insert(Arc::clone(&region))?;
                Entry::Soft(TableEntry { key, table })
            }
            (None, Engine::Verbs(_)) => {
                return Err(Error::Foreign {
                    what: "the protection domain",
                    owner: "provider",
                });
            }
        };
        Ok(MemoryRegion::new(entry, region, None))
    }

    /// GPU memory in such a way that what completions tell of is there.
    fn register_with_kernel(
        &self,
        domain: &Arc<verbs::Domain>,
        region: Arc<Region>,
    ) -> Result<MemoryRegion> {
        let whole = self.register_proved(domain, region)?;
        let Some((memory, _)) = whole.buffer().device_memory() else {
            return Ok(whole);
        };
        let gpu = memory.gpu().info();
        let (mut policy, mut why) = FlushPolicy::of(gpu);
        if policy == FlushPolicy::Driver
            && let Err(error) = memory.flush_remote_writes()
        {
            (policy, why) = (FlushPolicy::ReadBack, error.to_string());
        }
        let how = match policy {
            FlushPolicy::Ordered => None,
            FlushPolicy::Driver => Some(verbs::How::Driver(Arc::downgrade(memory))),
            FlushPolicy::ReadBack => match verbs::ReadBack::new(self, &whole) {
                Ok(read) => Some(verbs::How::ReadBack(Box::new(read))),
                Err(error) => {
                    let mut refusals = whole.refusals().to_vec();
                    let route = whole.route();
                    refusals.push(format!(
                        "{route}: {why}, and the device cannot read it back either: {error}"
                    ));
                    return Err(VerbsError::GpuRegistration(refusals).into());
                }
            },
        };
        let listed = how.map(|how| verbs::Listed::new(domain.context(), gpu, how));
        // Nobody else has it yet, so that the place is free.
        let _ = whole.0.flush.set(Flush {
            policy,
            why,
            _listed: listed,
        });
        Ok(whole)
    }

    /// On the first way that the device takes and that a checked transfer does not refute.
    fn register_proved(
        &self,
        domain: &Arc<verbs::Domain>,
        region: Arc<Region>,
    ) -> Result<MemoryRegion> {
        let Region {
            buffer,
            skip,
            len,
            access,
            ..
        } = &*region;
        let mut refused = verbs::Refused::default();
        loop {
            let made = verbs::Region::new(domain, buffer, *skip, *len, *access, &refused)?;
            let mut whole = MemoryRegion::new(Entry::Verbs(made), Arc::clone(&region), None);
            let Some((gpu, start)) = buffer.device_memory().filter(|_| domain.context().proves())
            else {
                return Ok(whole);
            };
            match verbs::prove(self, &whole, gpu, start + skip)? {
                verbs::Proof::Holds => return Ok(whole),
                verbs::Proof::Impossible(why) => {
                    // Nobody else has it yet.
                    if let Some(registration) = Arc::get_mut(&mut whole.0) {
                        registration.doubt = Some(why);
                    }
                    return Ok(whole);
                }
                verbs::Proof::Refuted(why) => {
                    if let Entry::Verbs(made) = &whole.0.entry {
                        refused.add(made, &why);
                    }
                }
            }
        }
    }
}

/// Registered memory; it keeps its buffer alive. A clone is the same region.
///
/// The region ends, and its key with it, when the last clone is gone and no posted request uses it
/// any more: a request holds the regions it names until it has completed (one that is not
/// signalled, until a later one has). Once it has ended, nothing reaches the buffer through it,
/// not even a request of the peer that is half done: that one fails.
///
/// Its key is 32 random bits, drawn anew for each registration, and the same for local and remote
/// use.
#[derive(Clone, Debug)]
pub struct MemoryRegion(Arc<Registration>);

impl MemoryRegion {
    fn new(entry: Entry, region: Arc<Region>, doubt: Option<String>) -> Self {
        Self(Arc::new(Registration {
            entry,
            region,
            doubt,
            flush: OnceLock::new(),
        }))
    }

    pub(crate) fn downgrade(&self) -> WeakRegion {
        WeakRegion(Arc::downgrade(&self.0))
    }

    /// Why the way to GPU memory could not be proved by a transfer, where it could not: it may
    /// work all the same.
    pub fn doubt(&self) -> Option<&str> {
        self.0.doubt.as_deref()
    }

    /// Address of the first byte, as requests of this side and of the peer name it.
    pub fn addr(&self) -> u64 {
        self.0.region.addr
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> u64 {
        self.0.region.len
    }

    /// What may be done to it.
    pub fn access(&self) -> Access {
        self.0.region.access
    }

    /// The key for this side's requests.
    pub fn lkey(&self) -> Lkey {
        Lkey(match &self.0.entry {
            Entry::Soft(entry) => entry.key,
            Entry::Verbs(region) => region.lkey(),
        })
    }

    /// The key for the peer's requests.
    pub fn rkey(&self) -> Rkey {
        Rkey(match &self.0.entry {
            Entry::Soft(entry) => entry.key,
            Entry::Verbs(region) => region.rkey(),
        })
    }

    /// How the device reaches the memory.
    pub fn route(&self) -> crate::Registration {
        match &self.0.entry {
            Entry::Soft(_) => crate::Registration::Engine,
            Entry::Verbs(region) => region.route(),
        }
    }

    /// The ways to GPU memory that were tried before and refused, a sentence each.
    pub fn refusals(&self) -> &[String] {
        match &self.0.entry {
            Entry::Soft(_) => &[],
            Entry::Verbs(region) => region.refusals(),
        }
    }

    /// How it is seen to that bytes which a device of the kernel wrote into GPU memory are there
    /// when their completion is polled, and why so. `None` where no device writes into GPU memory.
    pub fn flush_policy(&self) -> Option<(FlushPolicy, &str)> {
        let flush = self.0.flush.get()?;
        Some((flush.policy, &flush.why))
    }

    /// The memory itself.
    pub fn buffer(&self) -> &Buffer {
        &self.0.region.buffer
    }

    /// What a peer must know to reach all of it.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            rkey: self.rkey(),
            addr: self.addr(),
            len: self.len(),
        }
    }

    /// `len` bytes at `offset`, for a request.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], also for more than 4 GiB in one segment.
    pub fn segment(&self, offset: u64, len: u64) -> Result<Segment> {
        crate::buffer::check_range(offset, len, self.len())?;
        let short = u32::try_from(len).map_err(|_| Error::OutOfRange {
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

    fn domain(&self) -> DomainId {
        self.0.region.domain
    }

    /// Whether it was registered in this domain.
    pub(crate) fn is_of(&self, domain: &ProtectionDomain) -> bool {
        match (&self.0.entry, &domain.verbs, domain.device.engine()) {
            (Entry::Verbs(region), Some(domain), _) => region.is_of(domain),
            (Entry::Soft(entry), None, Engine::Soft(soft)) => {
                Arc::ptr_eq(&entry.table, soft.regions()) && self.domain() == domain.id
            }
            _ => false,
        }
    }
}

/// Part of a region, for a request; it keeps the region alive.
#[derive(Clone, Debug)]
pub struct Segment {
    region: MemoryRegion,
    addr: u64,
    len: u32,
}

impl Segment {
    /// The region it is part of.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn raw(&self) -> gdr_roce::Segment {
        gdr_roce::Segment {
            lkey: self.region.lkey(),
            addr: self.addr,
            len: self.len,
        }
    }
}

/// A region of the peer, as the peer told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Its key.
    pub rkey: Rkey,
    /// Address of its first byte, in the peer's terms.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

impl RemoteMemory {
    /// The place at `offset`. Whether it exists is the peer's to say; here the addition wraps.
    pub fn at(&self, offset: u64) -> Remote {
        Remote {
            rkey: self.rkey,
            addr: self.addr.wrapping_add(offset),
        }
    }
}

/// A region as the engine sees it.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) domain: DomainId,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// Where in the buffer it starts.
    pub(crate) skip: u64,
    pub(crate) access: Access,
    pub(crate) buffer: Buffer,
}

/// A region that may be gone.
pub(crate) struct WeakRegion(Weak<Registration>);

impl WeakRegion {
    pub(crate) fn upgrade(&self) -> Option<MemoryRegion> {
        self.0.upgrade().map(MemoryRegion)
    }
}

/// How GPU memory is flushed, as long as this lives.
struct Flush {
    policy: FlushPolicy,
    why: String,
    _listed: Option<verbs::Listed>,
}

/// A key that is in force as long as this lives. The entry goes before the buffer does.
struct Registration {
    flush: OnceLock<Flush>,
    entry: Entry,
    region: Arc<Region>,
    /// Why no transfer proved it, where one should have.
    doubt: Option<String>,
}

/// Where it is in force.
enum Entry {
    /// In a device of this process.
    Soft(TableEntry),
    /// In a device of the kernel.
    Verbs(verbs::Region),
}

/// A key in a device's table.
struct TableEntry {
    key: u32,
    table: Arc<RegionTable>,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        // Waits for the engine to put its guard away: from here on it does not find the buffer.
        drop(self.table.write().remove(&self.key));
    }
}

/// All regions of a device, by key.
#[derive(Debug, Default)]
pub(crate) struct RegionTable(RwLock<Regions>);

/// What the table holds.
pub(crate) type Regions = NumberMap<Arc<Region>>;

impl RegionTable {
    /// The regions, none of which ends while the guard lives.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Regions> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Regions> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a region under a key of its own.
    fn insert(&self, region: Arc<Region>) -> Result<u32> {
        loop {
            let key = random::number()?;
            let mut regions = self.write();
            // Zero is what uninitialized fields hold.
            if key != 0 && !regions.contains_key(&key) {
                regions.insert(key, region);
                return Ok(key);
            }
        }
    }
}
