//! Contexts that are traced.

use std::ptr;

use gdr_verbs_sys::{
    ibv_context, ibv_context_ops, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_qp, ibv_qp_init_attr_ex,
    ibv_srq, ibv_srq_init_attr_ex,
};

use crate::key_map::KeyMap;
use crate::recorder::Recorder;

/// An open context. It is never freed, as another thread may look at it while it is closed.
pub(crate) struct Context {
    pub(crate) recorder: &'static Recorder,
    /// The row of its device.
    pub(crate) nic: u32,
    /// Its number, which keys of this context's objects begin with.
    pub(crate) id: u32,
    /// The functions of the real library.
    pub(crate) real: RealOperations,
}

pub(crate) type CreateQpEx =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
pub(crate) type CreateCqEx =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
pub(crate) type CreateSrqEx =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;

/// The operations that were in the tables of a context.
pub(crate) struct RealOperations {
    pub(crate) basic: ibv_context_ops,
    pub(crate) create_qp_ex: Option<CreateQpEx>,
    pub(crate) create_cq_ex: Option<CreateCqEx>,
    pub(crate) create_srq_ex: Option<CreateSrqEx>,
}

/// The contexts that are open, by the address of the structure.
pub(crate) static OPEN: KeyMap = KeyMap::new();
/// The contexts that were open, too: what a program calls through the structure of one that was closed goes
/// to the real library all the same.
pub(crate) static REPLACED: KeyMap = KeyMap::new();
/// By their own number.
static NUMBERED: KeyMap = KeyMap::new();

fn at(address: u64) -> &'static Context {
    let record = ptr::with_exposed_provenance::<Context>(address as usize);
    // SAFETY: the maps have addresses of leaked values only.
    unsafe { &*record }
}

impl Context {
    /// Keeps a context that was opened.
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

    /// The context with an address, if it is open and traced.
    #[inline]
    pub(crate) fn of(context: *mut ibv_context) -> Option<&'static Self> {
        OPEN.get(context.addr() as u64).map(at)
    }

    /// The context whose functions were replaced in the structure with an address, open or not.
    #[inline]
    pub(crate) fn behind(context: *mut ibv_context) -> Option<&'static Self> {
        REPLACED.get(context.addr() as u64).map(at)
    }

    /// The context of an object with this key.
    pub(crate) fn of_key(key: u64) -> Option<&'static Self> {
        NUMBERED.get(key >> 32).map(at)
    }

    /// The key of an object of this context that has a number.
    #[inline]
    pub(crate) fn key(&self, number: u32) -> u64 {
        u64::from(self.id) << 32 | u64::from(number)
    }
}
