//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use gdr_rdma::Access;
use gdr_rdma::raw;
use gdr_verbs_sys::{ibv_access_flags, ibv_mr, ibv_pd};

use crate::c_object::CObject;
use crate::context::Context;
use crate::domain::{Domain, Use, next_handle};
use crate::errno::Errno;
use crate::host_memory;
use crate::ret::{pointer, status};
use crate::table::Table;

/// A memory region.
pub(crate) struct Region {
    _object: CObject<ibv_mr>,
    context: Arc<Context>,
    _region: raw::Region,
    _domain: Use,
}

pub(crate) static REGIONS: Table<Region> = Table::new();

impl Region {
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

/// What a registration permits.
///
/// # Errors
/// `EINVAL` for rights of the peer that this side lacks, and for unknown flags that are not optional.
fn access(flags: c_uint) -> Result<Access, Errno> {
    let access = rights(flags)?;
    let of_peer = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(of_peer) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Errno::INVAL);
    }
    Ok(access)
}

/// The rights among access flags, of a region or a queue pair.
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
struct Wanted {
    address: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
}

fn register(pd: *mut ibv_pd, wanted: &Wanted) -> Result<*mut ibv_mr, Errno> {
    let domain = Domain::of(pd)?;
    let access = access(wanted.access)?;
    let memory = raw::Memory {
        address: wanted.address.expose_provenance(),
        len: wanted.len,
        iova: wanted.iova,
    };
    host_memory::check(memory, access)?;
    let engine = domain.context().engine()?;
    // SAFETY: the program registers memory that stays mapped until it deregisters it, which is what
    // `ibv_reg_mr` asks of it; Rust code has no references to memory of a program of C.
    let region = unsafe { engine.register(domain.raw(), memory, access) }?;
    Ok(publish(&domain, region, wanted))
}

/// Makes the structure of C for a registration.
fn publish(domain: &Arc<Domain>, region: raw::Region, wanted: &Wanted) -> *mut ibv_mr {
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
        _region: region,
        _domain: domain.users().add(),
    };
    REGIONS.insert(handle, Arc::new(registered));
    handle
}

/// The address by which requests name the first byte, unless the program chooses one.
fn default_iova(address: *mut c_void, access: c_uint) -> u64 {
    let zero_based = ibv_access_flags(access).contains(ibv_access_flags::IBV_ACCESS_ZERO_BASED);
    if zero_based { 0 } else { address.addr() as u64 }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    let access = access as c_uint;
    let iova = default_iova(address, access);
    ibv_reg_mr_iova2(pd, address, len, iova, access)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    ibv_reg_mr_iova2(pd, address, len, iova, access as c_uint)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let wanted = Wanted {
        address,
        len,
        iova,
        access,
    };
    pointer(|| register(pd, &wanted))
}

/// No GPU memory is taken by descriptor.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    _offset: u64,
    _len: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    pointer(|| {
        Domain::of(pd)?;
        Err(Errno::OPNOTSUPP)
    })
}

/// Ends a region. Requests that are half done fail; when this returns, the engine does not touch its
/// memory any more.
#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    status(|| REGIONS.remove(mr).map(drop))
}
