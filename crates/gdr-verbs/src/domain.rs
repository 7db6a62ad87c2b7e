//! Protection domains.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gdr_nic as nic;
use gdr_verbs_sys::{ibv_context, ibv_pd};

use crate::context::Context;
use crate::errno::Errno;
use crate::ret::{pointer, status};
use crate::slab::{CObject, is_own};
use crate::system::forward;
use crate::table::Table;

/// A protection domain.
pub(crate) struct Domain {
    object: CObject<ibv_pd>,
    context: Arc<Context>,
    domain: nic::Domain,
    users: Users,
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

/// The next number of an object; programs only print it.
pub(crate) fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    forward!(unless is_own(context), ibv_alloc_pd(context));
    pointer(|| {
        let context = Context::of(context)?;
        // Fails here, rather than later, if the address is in use.
        context.engine()?;
        // SAFETY: a pointer and a number.
        let object = unsafe {
            CObject::<ibv_pd>::new(|pd| {
                pd.context = context.as_ptr();
                pd.handle = next_handle();
            })
        };
        let handle = object.as_ptr();
        let domain = Domain {
            object,
            context,
            domain: nic::Domain::new(),
            users: Users::default(),
        };
        DOMAINS.insert(handle, Arc::new(domain));
        Ok(handle)
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
