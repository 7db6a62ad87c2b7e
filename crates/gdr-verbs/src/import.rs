//! Objects of this process under further handles: `ibv_import_device` and what follows from it.
//!
//! A program duplicates the command descriptor of a context, and makes a context of the copy. The kernel shares the
//! objects of both, which programs name by their `handle`. In this library the context is another one of the same device,
//! and imported objects are handles of what they were imported from. Objects of other processes are
//! not reached: `EOPNOTSUPP`.

use std::ffi::c_int;
use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use gdr_verbs_sys::{ibv_context, ibv_dm, ibv_mr, ibv_pd};

use crate::context::{CONTEXTS, Context};
use crate::device_memory;
use crate::domain::{self, DOMAINS, Domain, Use};
use crate::errno::Errno;
use crate::open;
use crate::region::REGIONS;
use crate::ret::{plain, pointer, unsupported_pointer};
use crate::slab::{CObject, is_own};
use crate::system::{self, call_system, forward};
use crate::table::Table;

#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    if let Some(context) = with_descriptor(cmd_fd) {
        return pointer(|| {
            // Otherwise two contexts would close the descriptor.
            if CONTEXTS.find(|it| it.has_descriptor(cmd_fd)).is_some() {
                return Err(Errno::INVAL);
            }
            // SAFETY: an open descriptor, which belongs to the new context from here on (ibv_import_device(3)).
            let descriptor = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
            open::open(Arc::clone(context.device()), Some(descriptor))
        });
    }
    if is_of_no_device(cmd_fd) {
        return unsupported_pointer();
    }
    match call_system!(ibv_import_device(cmd_fd)) {
        Some(context) => {
            system::found_devices();
            context
        }
        None => unsupported_pointer(),
    }
}

/// The context whose command descriptor this is a copy of. The kernel shows what such a descriptor waits for, and the
/// value by which it does.
fn with_descriptor(fd: c_int) -> Option<Arc<Context>> {
    let shown = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let value = shown.lines().find_map(|line| line.split_once("data:"))?.1;
    let value = u64::from_str_radix(value.split_whitespace().next()?, 16).ok()?;
    CONTEXTS.find(|context| context.number() == value)
}

/// Returns whether a descriptor is open and not of a character device.
fn is_of_no_device(fd: c_int) -> bool {
    // SAFETY: numbers; all zeros are valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is writable; the descriptor need not exist.
    let is_open = unsafe { libc::fstat(fd, &mut stat) } == 0;
    is_open && stat.st_mode & libc::S_IFMT != libc::S_IFCHR
}

/// The original cannot be deallocated while it is imported.
#[unsafe(no_mangle)]
extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    forward!(unless is_own(context), ibv_import_pd(context, handle));
    pointer(|| {
        let context = Context::of(context)?;
        let original = DOMAINS
            .find(|domain| domain.number() == handle && domain.context().is_of_device(&context))
            .ok_or(Errno::NOENT)?;
        context.engine()?;
        let of_original = Some(original.users().add());
        Ok(domain::insert(context, original.nic(), of_original, None))
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    forward!(unless is_own(pd), ibv_unimport_pd(pd));
    plain((), || DOMAINS.remove(pd).map(drop));
}

/// A further handle of a region, whose keys end with the original.
pub(crate) struct ImportedRegion {
    _object: CObject<ibv_mr>,
    domain: Arc<Domain>,
    _use: Use,
}

pub(crate) static IMPORTED_REGIONS: Table<ImportedRegion> = Table::new();

impl ImportedRegion {
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        self.domain.is_of(context)
    }
}

/// The address of an imported region is not known (ibv_import_mr(3)).
#[unsafe(no_mangle)]
extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    forward!(unless is_own(pd), ibv_import_mr(pd, handle));
    pointer(|| {
        let domain = Domain::of(pd)?;
        let original = REGIONS.find(|region| region.number() == handle && region.is_in(&domain));
        let key = original.ok_or(Errno::NOENT)?.nic().key();
        // SAFETY: pointers and numbers.
        let object = unsafe {
            CObject::<ibv_mr>::new(|mr| {
                mr.context = domain.context().as_ptr();
                mr.pd = domain.as_ptr();
                mr.addr = ptr::null_mut();
                mr.handle = handle;
                mr.lkey = key;
                mr.rkey = key;
            })
        };
        let imported = object.as_ptr();
        let region = ImportedRegion {
            _object: object,
            _use: domain.users().add(),
            domain,
        };
        IMPORTED_REGIONS.insert(imported, Arc::new(region));
        Ok(imported)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    forward!(unless is_own(mr), ibv_unimport_mr(mr));
    plain((), || IMPORTED_REGIONS.remove(mr).map(drop));
}

/// The memory stays until the last handle is gone.
#[unsafe(no_mangle)]
extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    forward!(unless is_own(context), ibv_import_dm(context, handle));
    pointer(|| device_memory::import(&*Context::of(context)?, handle))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    forward!(unless is_own(dm), ibv_unimport_dm(dm));
    plain((), || device_memory::MEMORIES.remove(dm).map(drop));
}
