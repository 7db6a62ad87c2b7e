//! Protection domains.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gdr_nic as nic;
use gdr_verbs_sys::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};

use crate::context::Context;
use crate::errno::Errno;
use crate::ret::{pointer, status};
use crate::slab::{CObject, is_own};
use crate::system::forward;
use crate::table::Table;

/// A protection domain.
pub(crate) struct Domain {
    object: CObject<ibv_pd>,
    number: u32,
    context: Arc<Context>,
    domain: nic::Domain,
    users: Users,
    /// The domain under a parent domain, or the one that was imported.
    _parent: Option<Use>,
    _threads: Option<Use>,
}

/// How many objects use another one, which cannot be destroyed meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Users(Arc<AtomicU32>);

/// One use of an object.
#[derive(Debug)]
pub(crate) struct Use(Arc<AtomicU32>);

impl Users {
    pub(crate) fn add(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(Arc::clone(&self.0))
    }

    /// `EBUSY` while there is a user.
    pub(crate) fn check_unused(&self) -> Result<(), Errno> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(Errno::BUSY),
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(crate) static DOMAINS: Table<Domain> = Table::new();

impl Domain {
    pub(crate) fn of(pd: *mut ibv_pd) -> Result<Arc<Self>, Errno> {
        DOMAINS.get(pd)
    }

    /// The number by which programs import it.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.object.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(crate) fn nic(&self) -> nic::Domain {
        self.domain
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }
}

/// The next number of an object.
pub(crate) fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    forward!(unless is_own(context), ibv_alloc_pd(context));
    pointer(|| {
        let context = Context::of(context)?;
        // If the address is in use, fail here rather than later.
        context.engine()?;
        Ok(insert(context, nic::Domain::new(), None, None))
    })
}

/// Makes a handle of a domain.
pub(crate) fn insert(
    context: Arc<Context>,
    domain: nic::Domain,
    parent: Option<Use>,
    threads: Option<Use>,
) -> *mut ibv_pd {
    let number = next_handle();
    // SAFETY: a pointer and a number.
    let object = unsafe {
        CObject::<ibv_pd>::new(|pd| {
            pd.context = context.as_ptr();
            pd.handle = number;
        })
    };
    let handle = object.as_ptr();
    let domain = Domain {
        object,
        number,
        context,
        domain,
        users: Users::default(),
        _parent: parent,
        _threads: threads,
    };
    DOMAINS.insert(handle, Arc::new(domain));
    handle
}

/// Makes a parent domain: another handle of a protection domain, whose objects may be used together. Its
/// functions that allocate memory are never called: a provider calls them for queues that its device
/// reads, and there are none.
///
/// # Safety
/// `attr` is readable.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(|| {
        let context = Context::of(context)?;
        // SAFETY: the contract of this function: these fields are always there.
        let (pd, td, mask) = unsafe { ((*attr).pd, (*attr).td, (*attr).comp_mask) };
        if mask & !(PARENT_DOMAIN_ALLOCATORS | PARENT_DOMAIN_CONTEXT) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let parent = Domain::of(pd)?;
        let threads = match td.is_null() {
            true => None,
            false => Some(THREAD_DOMAINS.get(td)?),
        };
        let is_of_device = threads
            .as_ref()
            .is_none_or(|threads| Arc::ptr_eq(&threads.context, &context));
        if !parent.is_of(&context) || !is_of_device {
            return Err(Errno::INVAL);
        }
        let threads = threads.map(|threads| threads.users.add());
        Ok(insert(
            context,
            parent.nic(),
            Some(parent.users().add()),
            threads,
        ))
    })
}

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`.
const PARENT_DOMAIN_ALLOCATORS: u32 = 1;
const PARENT_DOMAIN_CONTEXT: u32 = 1 << 1;

/// A thread domain: a promise of the program that one thread uses the objects in it. Nothing is done
/// with it.
pub(crate) struct ThreadDomain {
    _object: CObject<ibv_td>,
    context: Arc<Context>,
    users: Users,
}

pub(crate) static THREAD_DOMAINS: Table<ThreadDomain> = Table::new();

impl ThreadDomain {
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

/// # Safety
/// `attr` is readable.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    pointer(|| {
        let context = Context::of(context)?;
        // SAFETY: the contract of this function.
        if unsafe { (*attr).comp_mask } != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: a pointer.
        let object = unsafe { CObject::<ibv_td>::new(|td| td.context = context.as_ptr()) };
        let handle = object.as_ptr();
        let domain = ThreadDomain {
            _object: object,
            context,
            users: Users::default(),
        };
        THREAD_DOMAINS.insert(handle, Arc::new(domain));
        Ok(handle)
    })
}

pub(crate) extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    status(|| {
        THREAD_DOMAINS.get(td)?.users.check_unused()?;
        THREAD_DOMAINS.remove(td).map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    forward!(unless is_own(pd), ibv_dealloc_pd(pd));
    status(|| {
        Domain::of(pd)?.users.check_unused()?;
        DOMAINS.remove(pd).map(drop)
    })
}
