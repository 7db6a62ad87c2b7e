//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, Weak};

use gdr_nic as nic;
use gdr_nic::Access;
use gdr_verbs_sys::{ibv_access_flags, ibv_mr, ibv_pd, ibv_sge};

use crate::buffer::Buffer;
use crate::context::Context;
use crate::device::lock;
use crate::domain::{Domain, Use, next_handle};
use crate::errno::Errno;
use crate::gpu_memory::{self, Place};
use crate::host_memory::{self, Rights};
use crate::memory_window::Window;
use crate::ret::{pointer, status, status_and_errno};
use crate::slab::{CObject, is_own};
use crate::system::forward;
use crate::table::Table;

/// A memory region.
pub(crate) struct Region {
    _object: CObject<ibv_mr>,
    number: u32,
    context: Arc<Context>,
    region: nic::Region,
    registered: Mutex<Registered>,
    /// The memory windows that are bound to it, or will be, by key.
    windows: Mutex<Vec<(Weak<Window>, u32)>>,
}

/// What `ibv_rereg_mr` replaces.
struct Registered {
    /// `None` for memory that a program does not name by an address, and cannot register again.
    wanted: Option<Wanted>,
    keeps: Option<Keeps>,
    domain: Arc<Domain>,
    _use: Use,
}

/// What lives as long as the registration.
pub(crate) enum Keeps {
    /// The buffer that has its memory.
    Buffer(#[expect(dead_code, reason = "kept only to be dropped")] Arc<Buffer>),
    /// Device memory.
    Use(#[expect(dead_code, reason = "kept only to be dropped")] Use),
}

// SAFETY: the address that was registered is only passed on.
unsafe impl Send for Wanted {}

pub(crate) static REGIONS: Table<Region> = Table::new();

impl Region {
    pub(crate) fn has_key(&self, lkey: u32) -> bool {
        self.region.key() == lkey
    }

    /// The number by which programs import it.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Whether a domain is its own, or a handle of that.
    pub(crate) fn is_in(&self, domain: &Domain) -> bool {
        lock(&self.registered).domain.nic() == domain.nic()
    }

    pub(crate) fn nic(&self) -> &nic::Region {
        &self.region
    }

    /// Checks that a memory window of a domain may have these rights.
    pub(crate) fn check_window(&self, domain: &Domain, rights: Access) -> Result<(), Errno> {
        let registered = lock(&self.registered);
        let access = registered.wanted.ok_or(Errno::INVAL)?.access;
        let writes = rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let is_right = registered.domain.nic() == domain.nic()
            && has(access, ibv_access_flags::IBV_ACCESS_MW_BIND)
            && !has(access, ibv_access_flags::IBV_ACCESS_ZERO_BASED)
            && (!writes || has(access, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE));
        is_right.then_some(()).ok_or(Errno::INVAL)
    }

    pub(crate) fn add_window(&self, window: &Arc<Window>, key: u32) {
        lock(&self.windows).push((Arc::downgrade(window), key));
    }

    /// Lets no request bind a window to it any more; `EBUSY` while one is bound.
    fn cancel_windows(&self) -> Result<(), Errno> {
        let is_bound = |(window, key): &(Weak<Window>, u32)| {
            window.upgrade().is_some_and(|window| !window.cancel(*key))
        };
        let mut windows = lock(&self.windows);
        windows.retain(is_bound);
        windows.is_empty().then_some(()).ok_or(Errno::BUSY)
    }

    /// The address of a range of on-demand memory that is accessed with these rights.
    ///
    /// # Errors
    /// `EPERM` for a region of another domain, or that is not writable; `EINVAL` for one that is not
    /// on-demand; `EFAULT` for a range outside of it.
    pub(crate) fn on_demand_range(
        &self,
        domain: &Domain,
        range: &ibv_sge,
        rights: Option<Rights>,
    ) -> Result<usize, Errno> {
        let registered = lock(&self.registered);
        let wanted = registered.wanted.filter(Wanted::is_on_demand);
        let wanted = wanted.ok_or(Errno::INVAL)?;
        let writes = rights == Some(Rights::ReadWrite);
        let may_write = has(wanted.access, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE);
        if registered.domain.nic() != domain.nic() || writes && !may_write {
            return Err(Errno::PERM);
        }
        let offset = range.addr.checked_sub(wanted.iova).ok_or(Errno::FAULT)?;
        nic::check_range(offset, range.length.into(), wanted.len as u64)
            .map_err(|_| Errno::FAULT)?;
        Ok(wanted.address.addr() + offset as usize)
    }

    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

/// What a registration permits.
///
/// # Errors
/// `EINVAL` for rights of the peer that this side lacks; the errors of [`rights`]. `EOPNOTSUPP` for
/// persistent FLUSH, as Linux's `ib_check_mr_access` answers for a device without it: a region with such a
/// flag promises that its bytes outlast a loss of power.
pub(crate) fn access(flags: c_uint) -> Result<Access, Errno> {
    let access = rights(flags)?;
    let of_peer = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(of_peer) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Errno::INVAL);
    }
    if access.contains(Access::FLUSH_PERSISTENT) {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(access)
}

/// The rights among access flags. In a queue pair each known flag is right, as with rxe
/// (`RXE_ACCESS_SUPPORTED_QP`) and mlx5: programs set all that they may need, and what the device does
/// not have is refused when it is asked for.
///
/// # Errors
/// `EINVAL` for unknown flags that are not optional.
pub(crate) fn rights(flags: c_uint) -> Result<Access, Errno> {
    use ibv_access_flags as Flags;
    let flags = Flags(flags);
    let known = Flags::IBV_ACCESS_LOCAL_WRITE
        | Flags::IBV_ACCESS_REMOTE_WRITE
        | Flags::IBV_ACCESS_REMOTE_READ
        | Flags::IBV_ACCESS_REMOTE_ATOMIC
        | Flags::IBV_ACCESS_ZERO_BASED
        | Flags::IBV_ACCESS_HUGETLB
        | Flags::IBV_ACCESS_ON_DEMAND
        | Flags::IBV_ACCESS_MW_BIND
        | Flags::IBV_ACCESS_FLUSH_GLOBAL
        | Flags::IBV_ACCESS_FLUSH_PERSISTENT
        | Flags(OPTIONAL);
    if !known.contains(flags) {
        return Err(Errno::INVAL);
    }
    let mut rights = Access::empty();
    for (flag, right) in [
        (Flags::IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (Flags::IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (Flags::IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (Flags::IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (Flags::IBV_ACCESS_FLUSH_GLOBAL, Access::FLUSH_GLOBAL),
        (Flags::IBV_ACCESS_FLUSH_PERSISTENT, Access::FLUSH_PERSISTENT),
    ] {
        rights.set(right, flags.contains(flag));
    }
    Ok(rights)
}

/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a device may ignore, relaxed ordering among them.
const OPTIONAL: c_uint = 0x3ff0_0000;

/// Memory that a program names by its address.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) address: *mut c_void,
    pub(crate) len: usize,
    /// The address by which requests name the first byte.
    pub(crate) iova: u64,
    pub(crate) access: c_uint,
}

impl Wanted {
    /// Memory that requests name by its address, or from 0 on if the program wants that.
    pub(crate) fn at_its_address(address: *mut c_void, len: usize, access: c_uint) -> Self {
        let zero_based = has(access, ibv_access_flags::IBV_ACCESS_ZERO_BASED);
        Self {
            address,
            len,
            iova: if zero_based { 0 } else { address.addr() as u64 },
            access,
        }
    }

    /// Returns whether it is the whole address space: an implicit region, as ibv_reg_mr(3) names it.
    fn is_implicit(&self) -> bool {
        self.is_on_demand() && self.address.is_null() && self.len == usize::MAX
    }

    pub(crate) fn is_on_demand(&self) -> bool {
        has(self.access, ibv_access_flags::IBV_ACCESS_ON_DEMAND)
    }

    fn register(&self, domain: &Domain) -> Result<nic::Region, Errno> {
        let access = access(self.access)?;
        let engine = domain.context().engine()?;
        let address = self.address.expose_provenance();
        if self.is_implicit() {
            if self.iova != 0 || has(self.access, ibv_access_flags::IBV_ACCESS_ZERO_BASED) {
                return Err(Errno::INVAL);
            }
            return on_demand(domain, *self, access);
        }
        if self.len > 0
            && let Place::Gpu(ordinal) = gpu_memory::place(address)
        {
            let buffer = gpu_memory::map(ordinal, address, self.len)?;
            let all = (buffer, 0, self.len as u64);
            return Ok(engine.register_buffer(domain.nic(), all, self.iova, access)?);
        }
        if self.is_on_demand() && self.len > 0 {
            return on_demand(domain, *self, access);
        }
        let memory = nic::Memory {
            address,
            len: self.len,
            iova: self.iova,
        };
        if self.len > 0 {
            host_memory::check(memory, access)?;
        }
        // SAFETY: the program registers memory that stays mapped until it deregisters it, which is
        // what `ibv_reg_mr` asks of it; no Rust code refers to memory of a program of C.
        Ok(unsafe { engine.register(domain.nic(), memory, access) }?)
    }
}

fn has(access: c_uint, flag: ibv_access_flags) -> bool {
    ibv_access_flags(access).contains(flag)
}

/// Registers memory whose pages may come and go.
fn on_demand(domain: &Domain, wanted: Wanted, access: Access) -> Result<nic::Region, Errno> {
    let (address, len) = (wanted.address.addr() as u64, wanted.len as u64);
    // SAFETY: no Rust code refers to memory of a program of C.
    let buffer = unsafe { nic::Buffer::on_demand(address, len) }?;
    let engine = domain.context().engine()?;
    Ok(engine.register_buffer(domain.nic(), (buffer, 0, len), wanted.iova, access)?)
}

/// Makes a region, which keeps the buffer that has its memory.
pub(crate) fn register(
    domain: &Arc<Domain>,
    wanted: Wanted,
    buffer: Option<Arc<Buffer>>,
) -> Result<*mut ibv_mr, Errno> {
    let region = wanted.register(domain)?;
    let described = (wanted.address, wanted.len);
    Ok(insert(
        domain,
        region,
        described,
        Some(wanted),
        buffer.map(Keeps::Buffer),
    ))
}

/// Gives a program a registration, which it knows by this address and length.
pub(crate) fn insert(
    domain: &Arc<Domain>,
    region: nic::Region,
    (address, len): (*mut c_void, usize),
    wanted: Option<Wanted>,
    keeps: Option<Keeps>,
) -> *mut ibv_mr {
    let context = Arc::clone(domain.context());
    let number = next_handle();
    // SAFETY: pointers and numbers.
    let object = unsafe {
        CObject::<ibv_mr>::new(|mr| {
            mr.context = context.as_ptr();
            mr.pd = domain.as_ptr();
            mr.addr = address;
            mr.length = len;
            mr.handle = number;
            mr.lkey = region.key();
            mr.rkey = region.key();
        })
    };
    let handle = object.as_ptr();
    let registered = Region {
        _object: object,
        number,
        context,
        region,
        windows: Mutex::default(),
        registered: Mutex::new(Registered {
            wanted,
            keeps,
            _use: domain.users().add(),
            domain: Arc::clone(domain),
        }),
    };
    REGIONS.insert(handle, Arc::new(registered));
    handle
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    forward!(unless is_own(pd), ibv_reg_mr(pd, address, len, access));
    let wanted = Wanted::at_its_address(address, len, access.cast_unsigned());
    pointer(|| register(&Domain::of(pd)?, wanted, None))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    forward!(unless is_own(pd), ibv_reg_mr_iova(pd, address, len, iova, access));
    ibv_reg_mr_iova2(pd, address, len, iova, access.cast_unsigned())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    forward!(unless is_own(pd), ibv_reg_mr_iova2(pd, address, len, iova, access));
    let wanted = Wanted {
        address,
        len,
        iova,
        access,
    };
    pointer(|| register(&Domain::of(pd)?, wanted, None))
}

/// Memory that is exported by descriptor. Programs pass its CUDA address as `iova`, by which it is mapped;
/// the descriptor only proves that there is an export.
pub(crate) struct Exported {
    pub(crate) fd: c_int,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) iova: u64,
    pub(crate) access: c_uint,
}

impl Exported {
    /// Makes a region. A program that probes for support passes the descriptor -1, and expects `EBADF`
    /// where there is support.
    pub(crate) fn register(&self, domain: &Arc<Domain>) -> Result<*mut ibv_mr, Errno> {
        if !gpu_memory::is_supported() {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: asks for the flags of a descriptor, which need not exist.
        if unsafe { libc::fcntl(self.fd, libc::F_GETFD) } < 0 {
            return Err(Errno::BADF);
        }
        let address = usize::try_from(self.iova).map_err(|_| Errno::INVAL)?;
        let offset = usize::try_from(self.offset).map_err(|_| Errno::INVAL)?;
        if self.len == 0 {
            return Err(Errno::INVAL);
        }
        if matches!(gpu_memory::place(address), Place::Host) {
            return Err(Errno::OPNOTSUPP);
        }
        let wanted = Wanted {
            address: std::ptr::with_exposed_provenance_mut(address),
            len: self.len,
            iova: self.iova,
            access: self.access,
        };
        let mr = register(domain, wanted, None)?;
        // SAFETY: a region that was just made. As in libibverbs, its address is that in the export.
        unsafe { (*mr).addr = std::ptr::without_provenance_mut(offset) };
        Ok(mr)
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    forward!(unless is_own(pd), ibv_reg_dmabuf_mr(pd, offset, len, iova, fd, access));
    let exported = Exported {
        fd,
        offset,
        len,
        iova,
        access: access.cast_unsigned(),
    };
    pointer(|| exported.register(&Domain::of(pd)?))
}

/// Flags of `ibv_rereg_mr`, which the header declares as an enumeration.
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 2;
const CHANGE_ACCESS: c_int = 4;
/// `IBV_REREG_MR_ERR_INPUT`: the region is as it was. `IBV_REREG_MR_ERR_CMD`: the same.
const ERR_INPUT: c_int = -1;

/// Registers a region again, with other memory, rights or another domain, and the same keys: peers may
/// have them. If that fails, the region is as it was.
///
/// # Safety
/// `mr` is a region that is not deregistered meanwhile.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    access: c_int,
) -> c_int {
    let is_of_own = is_own(mr) || flags & CHANGE_PD != 0 && is_own(pd);
    forward!(unless is_of_own, ibv_rereg_mr(mr, flags, pd, address, len, access));
    let changed = status_and_errno(|| {
        let known = CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS;
        if flags & !known != 0 || flags == 0 {
            return Err(Errno::INVAL);
        }
        let region = REGIONS.get(mr)?;
        region.cancel_windows()?;
        let mut registered = lock(&region.registered);
        let mut wanted = registered.wanted.ok_or(Errno::OPNOTSUPP)?;
        if flags & CHANGE_ACCESS != 0 {
            wanted.access = access.cast_unsigned();
        }
        if flags & CHANGE_TRANSLATION != 0 {
            wanted.address = address;
            wanted.len = len;
            wanted.iova = Wanted::at_its_address(address, len, wanted.access).iova;
        }
        let domain = match flags & CHANGE_PD {
            0 => Arc::clone(&registered.domain),
            _ => Domain::of(pd)?,
        };
        if !domain.is_of(&region.context) {
            return Err(Errno::INVAL);
        }
        region.region.replace(wanted.register(&domain)?)?;
        // SAFETY: the contract of this function; the structure lives as long as the region.
        unsafe {
            (*mr).pd = domain.as_ptr();
            (*mr).addr = wanted.address;
            (*mr).length = wanted.len;
        }
        if flags & CHANGE_TRANSLATION != 0 {
            registered.keeps = None;
        }
        registered.wanted = Some(wanted);
        registered._use = domain.users().add();
        registered.domain = domain;
        Ok(())
    });
    if changed == 0 { 0 } else { ERR_INPUT }
}

/// Ends a region. Requests that are half done fail; when this returns, the engine does not touch its
/// memory any more. `EBUSY` while a memory window is bound to it.
#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    forward!(unless is_own(mr), ibv_dereg_mr(mr));
    status(|| {
        REGIONS.get(mr)?.cancel_windows()?;
        REGIONS.remove(mr).map(drop)
    })
}
