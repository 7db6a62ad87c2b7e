//! Handles that all threads share. Handles of destroyed objects are kept for a while.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use gdr_verbs_sys::*;

use crate::random::Random;

/// Slots for handles of one kind.
pub(crate) struct Handles<T: 'static>([AtomicPtr<T>; 16]);

impl<T> Handles<T> {
    const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; 16])
    }

    pub(crate) fn place(&self, random: &mut Random) -> &AtomicPtr<T> {
        &self.0[random.below(16) as usize]
    }

    /// Returns a random handle; null if its slot is empty.
    pub(crate) fn any(&self, random: &mut Random) -> *mut T {
        self.place(random).load(Ordering::Relaxed)
    }
}

macro_rules! handles {
    ($($name:ident: $type:ty;)*) => {$(
        pub(crate) static $name: Handles<$type> = Handles::new();
    )*};
}

handles! {
    CONTEXTS: ibv_context;
    DOMAINS: ibv_pd;
    REGIONS: ibv_mr;
    CHANNELS: ibv_comp_channel;
    QUEUES: ibv_cq;
    EXTENDED: ibv_cq_ex;
    PAIRS: ibv_qp;
    SHARED: ibv_srq;
    ADDRESSES: ibv_ah;
}
