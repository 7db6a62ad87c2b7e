//! Memory windows.

use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Mutex};

use gdr_nic::{self as nic, Operation, Rkey, SendRequest, WindowRange, WrId};
use gdr_verbs_sys::{
    ibv_access_flags as Flags, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_pd, ibv_qp,
};

use crate::context::Context;
use crate::device::lock;
use crate::domain::{Domain, Use, next_handle};
use crate::errno::Errno;
use crate::queue_pair::{NicPair, Pair};
use crate::region::{self, REGIONS, Region};
use crate::request::flags;
use crate::ret::{pointer, status};
use crate::slab::CObject;
use crate::table::Table;

/// A memory window.
pub(crate) struct Window {
    object: CObject<ibv_mw>,
    kind: ibv_mw_type,
    domain: Arc<Domain>,
    window: Mutex<nic::MemoryWindow>,
    _use: Use,
}

pub(crate) static WINDOWS: Table<Window> = Table::new();

/// The bits of a key that the owner of a window of type 2 chooses.
const CHOSEN: u32 = 0xff;

impl Window {
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        self.domain.is_of(context)
    }

    /// Lets no request bind it under this key any more; returns whether it is not bound under it already.
    pub(crate) fn cancel(&self, key: u32) -> bool {
        lock(&self.window).cancel(key)
    }
}

/// A window that a request will bind. Unless that was posted, nothing has happened when this is dropped.
pub(crate) struct Prepared {
    window: Arc<Window>,
    key: u32,
    is_posted: bool,
}

impl Prepared {
    /// Checks what a request of type 2 binds. The key is the window's, with other bits of those that are chosen.
    pub(crate) fn of_type_2(
        pair: &Pair,
        mw: *mut ibv_mw,
        key: u32,
        info: &ibv_mw_bind_info,
    ) -> Result<Self, Errno> {
        let window = WINDOWS.get(mw)?;
        let own = lock(&window.window).key();
        if window.kind != ibv_mw_type::IBV_MW_TYPE_2
            || (own ^ key) & !CHOSEN != 0
            || info.length == 0
        {
            return Err(Errno::INVAL);
        }
        Self::new(window, key, info, pair)
    }

    fn new(
        window: Arc<Window>,
        key: u32,
        info: &ibv_mw_bind_info,
        pair: &Pair,
    ) -> Result<Self, Errno> {
        // Programs set the right of this side, which means nothing for a window.
        let rights = Flags::IBV_ACCESS_LOCAL_WRITE
            | Flags::IBV_ACCESS_REMOTE_WRITE
            | Flags::IBV_ACCESS_REMOTE_READ
            | Flags::IBV_ACCESS_REMOTE_ATOMIC;
        if !rights.contains(Flags(info.mw_access_flags)) {
            return Err(Errno::INVAL);
        }
        let NicPair::Connection(nic) = pair.nic() else {
            return Err(Errno::INVAL);
        };
        let is_type_2 = window.kind == ibv_mw_type::IBV_MW_TYPE_2;
        let range = WindowRange {
            addr: info.addr,
            len: info.length,
            access: region::rights(info.mw_access_flags)?,
            queue_pair: is_type_2.then(|| nic.qpn()),
        };
        let region = match info.length {
            0 => None,
            _ => Some(REGIONS.get(info.mr)?),
        };
        if let Some(region) = &region {
            region.check_window(&window.domain, range.access)?;
        }
        let of_nic = region.as_deref().map(Region::nic);
        // SAFETY: a region ends only after it has cancelled its windows, and this one is added to them below; both belong to
        // one domain, and so to one device.
        unsafe { lock(&window.window).prepare(key, of_nic, range) }?;
        if let Some(region) = &region {
            region.add_window(&window, key);
        }
        Ok(Self {
            window,
            key,
            is_posted: false,
        })
    }

    pub(crate) fn operation(&self) -> Operation {
        Operation::Bind {
            rkey: Rkey(self.key),
        }
    }

    /// The request was posted: the program finds the key in the window.
    pub(crate) fn posted(mut self) {
        self.is_posted = true;
        // SAFETY: the structure lives as long as the window.
        unsafe { (*self.window.object.as_ptr()).rkey = self.key };
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if !self.is_posted {
            self.window.cancel(self.key);
        }
    }
}

pub(crate) extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    pointer(|| {
        let domain = Domain::of(pd)?;
        if ![ibv_mw_type::IBV_MW_TYPE_1, ibv_mw_type::IBV_MW_TYPE_2].contains(&kind) {
            return Err(Errno::INVAL);
        }
        let window = domain.context().engine()?.memory_window(domain.nic())?;
        // SAFETY: pointers and numbers.
        let object = unsafe {
            CObject::<ibv_mw>::new(|mw| {
                mw.context = domain.context().as_ptr();
                mw.pd = pd;
                mw.rkey = window.key();
                mw.handle = next_handle();
                mw.type_ = kind;
            })
        };
        let handle = object.as_ptr();
        let window = Window {
            object,
            kind,
            window: Mutex::new(window),
            _use: domain.users().add(),
            domain,
        };
        WINDOWS.insert(handle, Arc::new(window));
        Ok(handle)
    })
}

/// Ends a window, whether it is bound or not.
pub(crate) extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    status(|| WINDOWS.remove(mw).map(drop))
}

/// Posts a request that binds a window of type 1 under the next key, or to nothing if it has no length.
///
/// # Safety
/// `wanted` is readable.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    wanted: *mut ibv_mw_bind,
) -> c_int {
    status(|| {
        let (pair, window) = (Pair::of(qp)?, WINDOWS.get(mw)?);
        // SAFETY: the contract of this function.
        let wanted = unsafe { *wanted };
        if window.kind != ibv_mw_type::IBV_MW_TYPE_1 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the structure lives as long as the window.
        let last = unsafe { (*window.object.as_ptr()).rkey };
        let key = (last & !CHOSEN) | (last.wrapping_add(1) & CHOSEN);
        let prepared = Prepared::new(window, key, &wanted.bind_info, &pair)?;
        post(&pair, prepared, wanted.wr_id, wanted.send_flags)
    })
}

fn post(pair: &Pair, prepared: Prepared, id: u64, send_flags: c_uint) -> Result<(), Errno> {
    let NicPair::Connection(nic) = pair.nic() else {
        return Err(Errno::INVAL);
    };
    let request = SendRequest {
        id: WrId(id),
        operation: prepared.operation(),
        data: nic::Data::Segments(&[]),
        flags: flags(send_flags, pair.init().signals_all),
    };
    nic.post_sends(|queue| queue.push(&request))??;
    prepared.posted();
    Ok(())
}
