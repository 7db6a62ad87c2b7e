//! XRC domains.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use gdr_nic as nic;
use gdr_verbs_sys::{ibv_context, ibv_xrcd, ibv_xrcd_init_attr};

use crate::context::Context;
use crate::domain::Users;
use crate::errno::Errno;
use crate::ret::{pointer, status};
use crate::slab::CObject;
use crate::table::Table;

/// `struct ibv_xrcd`.
#[repr(C)]
struct CDomain {
    context: *mut ibv_context,
}

/// `struct ibv_xrcd_init_attr`.
#[repr(C)]
struct CInit {
    comp_mask: u32,
    fd: c_int,
    oflags: c_int,
}

/// `IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS`, which are both required.
const KNOWN: u32 = 3;

/// The device and the inode of a file.
type File = (u64, u64);

/// A handle of an XRC domain. All that were opened by the same file are one domain: in this process, as another
/// one has an engine of its own.
pub(crate) struct XrcDomain {
    _object: CObject<CDomain>,
    context: Arc<Context>,
    domain: nic::XrcDomain,
    file: Option<File>,
    users: Users,
}

pub(crate) static XRC_DOMAINS: Table<XrcDomain> = Table::new();

impl XrcDomain {
    pub(crate) fn of(xrcd: *mut ibv_xrcd) -> Result<Arc<Self>, Errno> {
        XRC_DOMAINS.get(xrcd)
    }

    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn nic(&self) -> &nic::XrcDomain {
        &self.domain
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }
}

/// The domain of a file, or a new one, as the flags want it.
fn domain_of(context: &Context, file: Option<File>, flags: c_int) -> Result<nic::XrcDomain, Errno> {
    let is_same = |open: &XrcDomain| {
        file.is_some() && open.file == file && Arc::ptr_eq(open.context.device(), context.device())
    };
    match XRC_DOMAINS.find(is_same) {
        Some(_) if flags & libc::O_EXCL != 0 => Err(Errno::INVAL),
        Some(open) => Ok(open.domain.clone()),
        None if file.is_some() && flags & libc::O_CREAT == 0 => Err(Errno::AGAIN),
        None => Ok(context.engine()?.xrc_domain()?),
    }
}

/// # Safety
/// `init` is readable.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    pointer(|| {
        let context = Context::of(context)?;
        // SAFETY: the contract of this function: `struct ibv_xrcd_init_attr`.
        let CInit {
            comp_mask,
            fd,
            oflags,
        } = unsafe { init.cast::<CInit>().read() };
        if comp_mask != KNOWN || oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Errno::INVAL);
        }
        let file = match fd {
            -1 => None,
            ..0 => return Err(Errno::BADF),
            fd => {
                // SAFETY: not closed during this call unless the program does it, as with every system call.
                let status = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) })?;
                Some((status.st_dev, status.st_ino))
            }
        };
        let domain = domain_of(&context, file, oflags)?;
        // SAFETY: a pointer.
        let object = unsafe { CObject::<CDomain>::new(|xrcd| xrcd.context = context.as_ptr()) };
        let handle = object.as_ptr().cast::<ibv_xrcd>();
        let opened = XrcDomain {
            _object: object,
            context,
            domain,
            file,
            users: Users::default(),
        };
        XRC_DOMAINS.insert(handle, Arc::new(opened));
        Ok(handle)
    })
}

pub(crate) extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    status(|| {
        XrcDomain::of(xrcd)?.users.check_unused()?;
        XRC_DOMAINS.remove(xrcd).map(drop)
    })
}
