//! Records the accesses to a window, in order, for tests: barriers cannot be observed in memory.

/// Records a step of this thread in tests; does nothing otherwise.
macro_rules! step {
    ($step:expr) => {
        #[cfg(test)]
        $crate::cpu::trace::note($step);
    };
}
pub(crate) use step;

/// A store to a window, by one copy or one word.
#[cfg(test)]
pub(crate) const STORE: &str = "store";
/// A load from a window.
#[cfg(test)]
pub(crate) const LOAD: &str = "load";

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::RefCell<Vec<&'static str>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Adds a step of this thread: a barrier by its instruction, [`STORE`] or [`LOAD`].
#[cfg(test)]
pub(crate) fn note(step: &'static str) {
    STEPS.with_borrow_mut(|steps| steps.push(step));
}

/// Returns the steps of `work` on this thread.
#[cfg(test)]
pub(crate) fn steps_of(work: impl FnOnce()) -> Vec<&'static str> {
    STEPS.with_borrow_mut(Vec::clear);
    work();
    STEPS.with_borrow_mut(std::mem::take)
}

/// The instructions of the fences on this CPU.
#[cfg(test)]
pub(crate) mod barrier {
    #[cfg(target_arch = "x86_64")]
    mod instruction {
        pub(crate) const STORE: &str = "sfence";
        pub(crate) const LOAD: &str = "lfence";
        pub(crate) const FRESH_LOAD: &str = "mfence";
        pub(crate) const FULL: &str = "mfence";
    }
    #[cfg(target_arch = "aarch64")]
    mod instruction {
        pub(crate) const STORE: &str = "dsb st";
        pub(crate) const LOAD: &str = "dmb ld";
        pub(crate) const FRESH_LOAD: &str = "dmb ld";
        pub(crate) const FULL: &str = "dsb sy";
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    mod instruction {
        pub(crate) const STORE: &str = "fence";
        pub(crate) const LOAD: &str = "fence";
        pub(crate) const FRESH_LOAD: &str = "fence";
        pub(crate) const FULL: &str = "fence";
    }
    pub(crate) use instruction::{FRESH_LOAD, FULL, LOAD, STORE};
}
