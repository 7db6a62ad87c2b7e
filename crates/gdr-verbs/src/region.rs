//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex};

use gdr_nic as nic;
use gdr_nic::Access;
use gdr_verbs_sys::{ibv_access_flags, ibv_mr, ibv_pd};

use crate::buffer::Buffer;
use crate::context::Context;
use crate::device::lock;
use crate::domain::{Domain, Use, next_handle};
use crate::errno::Errno;
use crate::gpu_memory::{self, Place};
use crate::host_memory;
use crate::ret::{pointer, status, status_and_errno};
use crate::slab::{CObject, is_own};
use crate::system::forward;
use crate::table::Table;

/// A memory region.
pub(crate) struct Region {
    _object: CObject<ibv_mr>,
    context: Arc<Context>,
    region: nic::Region,
    registered: Mutex<Registered>,
}

/// What `ibv_rereg_mr` replaces.
struct Registered {
    wanted: Wanted,
    /// The buffer that its memory is of.
    buffer: Option<Arc<Buffer>>,
    domain: Arc<Domain>,
    _use: Use,
}

// SAFETY: the address that was registered is only passed on.
unsafe impl Send for Wanted {}

pub(crate) static REGIONS: Table<Region> = Table::new();

impl Region {
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

/// What a registration permits.
///
/// # Errors
/// `EINVAL` for rights of the peer that this side lacks; the errors of [`rights`]. `EOPNOTSUPP` for
/// memory windows, on-demand paging and FLUSH, as Linux's `ib_check_mr_access` answers for a device
/// without them: a region with such a flag promises that its operation works.
fn access(flags: c_uint) -> Result<Access, Errno> {
    let access = rights(flags)?;
    let of_peer = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(of_peer) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Errno::INVAL);
    }
    if flags & ABSENT.0 != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(access)
}

/// The flags of operations that the device does not have.
const ABSENT: ibv_access_flags = ibv_access_flags(
    ibv_access_flags::IBV_ACCESS_MW_BIND.0
        | ibv_access_flags::IBV_ACCESS_ON_DEMAND.0
        | ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0
        | ibv_access_flags::IBV_ACCESS_FLUSH_PERSISTENT.0,
);

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
        | ABSENT
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
        let zero_based = ibv_access_flags(access).contains(ibv_access_flags::IBV_ACCESS_ZERO_BASED);
        Self {
            address,
            len,
            iova: if zero_based { 0 } else { address.addr() as u64 },
            access,
        }
    }

    fn register(&self, domain: &Domain) -> Result<nic::Region, Errno> {
        let access = access(self.access)?;
        let engine = domain.context().engine()?;
        let address = self.address.expose_provenance();
        if self.len > 0
            && let Place::Gpu(ordinal) = gpu_memory::place(address)
        {
            let buffer = gpu_memory::map(ordinal, address, self.len)?;
            let all = (buffer, 0, self.len as u64);
            return Ok(engine.register_buffer(domain.nic(), all, self.iova, access)?);
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

/// Makes a region, which keeps the buffer that its memory is of.
pub(crate) fn register(
    domain: &Arc<Domain>,
    wanted: Wanted,
    buffer: Option<Arc<Buffer>>,
) -> Result<*mut ibv_mr, Errno> {
    let region = wanted.register(domain)?;
    let context = Arc::clone(domain.context());
    // SAFETY: pointers and numbers.
    let object = unsafe {
        CObject::<ibv_mr>::new(|mr| {
            mr.context = context.as_ptr();
            mr.pd = domain.as_ptr();
            mr.addr = wanted.address;
            mr.length = wanted.len;
            mr.handle = next_handle();
            mr.lkey = region.key();
            mr.rkey = region.key();
        })
    };
    let handle = object.as_ptr();
    let registered = Region {
        _object: object,
        context,
        region,
        registered: Mutex::new(Registered {
            wanted,
            buffer,
            _use: domain.users().add(),
            domain: Arc::clone(domain),
        }),
    };
    REGIONS.insert(handle, Arc::new(registered));
    Ok(handle)
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
        let mut registered = lock(&region.registered);
        let mut wanted = registered.wanted;
        let mut buffer = registered.buffer.clone();
        if flags & CHANGE_ACCESS != 0 {
            wanted.access = access.cast_unsigned();
        }
        if flags & CHANGE_TRANSLATION != 0 {
            wanted.address = address;
            wanted.len = len;
            wanted.iova = Wanted::at_its_address(address, len, wanted.access).iova;
            buffer = None;
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
        *registered = Registered {
            wanted,
            buffer,
            _use: domain.users().add(),
            domain,
        };
        Ok(())
    });
    if changed == 0 { 0 } else { ERR_INPUT }
}

/// Ends a region. Requests that are half done fail; when this returns, the engine does not touch its
/// memory any more.
#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    forward!(unless is_own(mr), ibv_dereg_mr(mr));
    status(|| REGIONS.remove(mr).map(drop))
}
