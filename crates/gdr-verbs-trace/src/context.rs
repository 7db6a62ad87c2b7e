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
    /// The functions of the library behind.
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

/// By the address of the structure.
pub(crate) static CONTEXTS: KeyMap = KeyMap::new();

impl Context {
    /// The context with an address, if it is traced.
    #[inline]
    pub(crate) fn of(context: *mut ibv_context) -> Option<&'static Self> {
        let address = CONTEXTS.get(context.addr() as u64)?;
        let record = ptr::with_exposed_provenance::<Self>(address as usize);
        // SAFETY: the map has addresses of leaked values only.
        Some(unsafe { &*record })
    }

    /// The key of an object of this context that has a number.
    #[inline]
    pub(crate) fn key(&self, number: u32) -> u64 {
        u64::from(self.id) << 32 | u64::from(number)
    }
}
