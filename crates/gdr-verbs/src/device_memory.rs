//! Device memory: memory of the library, which programs reach by copies and by its regions only.

use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use std::sync::Arc;

use gdr_nic as nic;
use gdr_verbs_sys::{ibv_access_flags, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};

use crate::context::Context;
use crate::domain::{Domain, Users, next_handle};
use crate::errno::Errno;
use crate::region::{self, Keeps};
use crate::ret::{pointer, status};
use crate::slab::CObject;
use crate::table::Table;

/// The most bytes of an allocation.
pub(crate) const MOST_BYTES: u64 = 1 << 20;
/// What offsets and lengths are multiples of, as with NVIDIA's cards: a program that works here works there.
const UNIT: u64 = 4;
/// The greatest alignment: a page.
const MOST_ALIGNED: u32 = 12;

/// Device memory.
pub(crate) struct DeviceMemory {
    _object: CObject<ibv_dm>,
    /// By which programs import it.
    number: u32,
    context: *mut ibv_context,
    memory: nic::Buffer,
    users: Users,
}

// SAFETY: the address is only compared.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

pub(crate) static MEMORIES: Table<DeviceMemory> = Table::new();

impl DeviceMemory {
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        self.context == context.as_ptr()
    }

    /// Checks a copy.
    ///
    /// # Errors
    /// `EINVAL` unless offset and length are multiples of four; `EFAULT` outside of the memory.
    fn check(&self, offset: u64, len: usize) -> Result<(), Errno> {
        if !offset.is_multiple_of(UNIT) || !(len as u64).is_multiple_of(UNIT) {
            return Err(Errno::INVAL);
        }
        nic::check_range(offset, len as u64, self.memory.len()).map_err(|_| Errno::FAULT)
    }
}

/// Allocates zeroed memory. A forked child may do so with a context of its parent, as with hardware.
///
/// # Safety
/// `attr` is readable.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    pointer(|| {
        Context::device_of(context)?;
        // SAFETY: the contract of this function.
        let attr = unsafe { *attr };
        if attr.comp_mask != 0 || attr.log_align_req > MOST_ALIGNED || attr.length == 0 {
            return Err(Errno::INVAL);
        }
        if attr.length as u64 > MOST_BYTES {
            return Err(Errno::NOMEM);
        }
        let memory = nic::Buffer::host(attr.length)?;
        Ok(insert(context, memory))
    })
}

/// Makes a handle of memory.
fn insert(context: *mut ibv_context, memory: nic::Buffer) -> *mut ibv_dm {
    let number = next_handle();
    // SAFETY: pointers, numbers and functions that may be null.
    let object = unsafe {
        CObject::<ibv_dm>::new(|dm| {
            dm.context = context;
            dm.memcpy_to_dm = Some(memcpy_to_dm);
            dm.memcpy_from_dm = Some(memcpy_from_dm);
            dm.handle = number;
        })
    };
    let handle = object.as_ptr();
    let allocated = DeviceMemory {
        _object: object,
        number,
        context,
        memory,
        users: Users::default(),
    };
    MEMORIES.insert(handle, Arc::new(allocated));
    handle
}

/// Makes a further handle of the memory of this number, of the same device.
pub(crate) fn import(context: &Context, number: u32) -> Result<*mut ibv_dm, Errno> {
    let is_of_device = |memory: &DeviceMemory| {
        Context::device_of(memory.context).is_ok_and(|it| Arc::ptr_eq(&it, context.device()))
    };
    let original = MEMORIES.find(|memory| memory.number == number && is_of_device(memory));
    let memory = original.ok_or(Errno::NOENT)?.memory.clone();
    Ok(insert(context.as_ptr(), memory))
}

/// `EBUSY` while there is a region of it.
pub(crate) extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    status(|| {
        MEMORIES.get(dm)?.users.check_unused()?;
        MEMORIES.remove(dm).map(drop)
    })
}

/// # Safety
/// `len` bytes at `from` are readable.
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    len: usize,
) -> c_int {
    status(|| {
        let dm = MEMORIES.get(dm)?;
        dm.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the contract of this function; the program does not change them meanwhile.
        let bytes = unsafe { slice::from_raw_parts(from.cast(), len) };
        Ok(dm.memory.write_at(offset, bytes)?)
    })
}

/// # Safety
/// `len` bytes at `to` are writable.
unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    len: usize,
) -> c_int {
    status(|| {
        let dm = MEMORIES.get(dm)?;
        dm.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the contract of this function; the program does not use them meanwhile.
        let bytes = unsafe { slice::from_raw_parts_mut(to.cast(), len) };
        Ok(dm.memory.read_at(offset, bytes)?)
    })
}

/// Registers device memory, which requests name by addresses from 0 on.
pub(crate) extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    len: usize,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        let domain = Domain::of(pd)?;
        let dm = MEMORIES.get(dm)?;
        let zero_based = ibv_access_flags(access).contains(ibv_access_flags::IBV_ACCESS_ZERO_BASED);
        if !dm.is_of(domain.context()) || !zero_based {
            return Err(Errno::INVAL);
        }
        let access = region::access(access)?;
        let all = (dm.memory.clone(), offset, len as u64);
        let engine = domain.context().engine()?;
        let region = engine.register_buffer(domain.nic(), all, 0, access)?;
        let described = (std::ptr::null_mut(), len);
        let keeps = Some(Keeps::Use(dm.users.add()));
        Ok(region::insert(&domain, region, described, None, keeps))
    })
}

/// Makes a region of every address, whose bytes read as zeros and are not kept when they are written.
pub(crate) extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    pointer(|| {
        let domain = Domain::of(pd)?;
        let all = (nic::Buffer::null(), 0, u64::MAX);
        let engine = domain.context().engine()?;
        // A null region is only for this side, see ibv_alloc_null_mr(3).
        let access = nic::Access::LOCAL_WRITE;
        let region = engine.register_buffer(domain.nic(), all, 0, access)?;
        let described = (std::ptr::null_mut(), usize::MAX);
        Ok(region::insert(&domain, region, described, None, None))
    })
}
