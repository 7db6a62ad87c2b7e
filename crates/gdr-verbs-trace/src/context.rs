//! Contexts that are traced.

use std::ptr;

use gdr_verbs_sys::{
    ibv_context, ibv_context_ops, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_qp, ibv_qp_init_attr_ex,
    ibv_srq, ibv_srq_init_attr_ex,
};

use crate::key_map::KeyMap;
use crate::recorder::Recorder;

/// An open context. It is never freed, because another thread may use it while it is closed.
pub(crate) struct Context {
    pub(crate) recorder: &'static Recorder,
    /// The row of its device.
    pub(crate) nic: u32,
    /// Number of the context, which is part of its objects' keys.
    pub(crate) id: u32,
    /// Functions of the real library.
    pub(crate) real: RealOperations,
}

pub(crate) type CreateQpEx =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
pub(crate) type CreateCqEx =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
pub(crate) type CreateSrqEx =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;

/// Operations that a context's tables held.
pub(crate) struct RealOperations {
    pub(crate) basic: ibv_context_ops,
    pub(crate) create_qp_ex: Option<CreateQpEx>,
    pub(crate) create_cq_ex: Option<CreateCqEx>,
    pub(crate) create_srq_ex: Option<CreateSrqEx>,
}

/// Open contexts, by the address of the structure.
pub(crate) static OPEN: KeyMap = KeyMap::new();
/// Open and closed contexts. Calls through the structure of a closed context must still reach the real library.
pub(crate) static REPLACED: KeyMap = KeyMap::new();
/// By their own number.
static NUMBERED: KeyMap = KeyMap::new();

fn at(address: u64) -> &'static Context {
    let record = ptr::with_exposed_provenance::<Context>(address as usize);
    // SAFETY: the maps hold only addresses of leaked values.
    unsafe { &*record }
}

impl Context {
    /// Stores a context that was opened.
    pub(crate) fn keep(self, context: *mut ibv_context) {
        let id = self.id;
        let record = Box::into_raw(Box::new(self)).expose_provenance() as u64;
        for (map, key) in [
            (&NUMBERED, id.into()),
            (&REPLACED, context.addr() as u64),
            (&OPEN, context.addr() as u64),
        ] {
            map.insert(key, record);
        }
    }

    /// Returns the context with an address, if it is open and traced.
    #[inline]
    pub(crate) fn of(context: *mut ibv_context) -> Option<&'static Self> {
        OPEN.get(context.addr() as u64).map(at)
    }

    /// Returns the context whose functions were replaced in this structure, whether or not it is still open.
    #[inline]
    pub(crate) fn behind(context: *mut ibv_context) -> Option<&'static Self> {
        REPLACED.get(context.addr() as u64).map(at)
    }

    /// Returns the context of an object with this key.
    pub(crate) fn of_key(key: u64) -> Option<&'static Self> {
        NUMBERED.get(key >> 32).map(at)
    }

    /// Returns the key of an object of this context that has a number.
    #[inline]
    pub(crate) fn key(&self, number: u32) -> u64 {
        u64::from(self.id) << 32 | u64::from(number)
    }
}
