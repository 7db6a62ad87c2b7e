//! The routines that this CPU can run, and the choice among them.

use core::fmt;
use std::ffi::{OsStr, OsString};

use gdr_process::Inherited;

#[cfg(target_arch = "aarch64")]
use super::aarch64::ROUTINES as NATIVE;
use super::scalar;
#[cfg(target_arch = "x86_64")]
use super::x86::ROUTINES as NATIVE;

/// No vector routine exists for this architecture.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static NATIVE: [Routine; 0] = [];

/// The environment variable that names the routine to use.
const VARIABLE: &str = "GDR_COPY";

/// Values of the variable that are not names of routines: they select whether the C library uses only the CPU.
const MODES: [&str; 2] = ["cpu", "auto"];

/// Copies a range; the arguments are destination, source and length.
type Move = unsafe fn(*mut u8, *const u8, usize);

/// How a routine loads from the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loads {
    /// By instructions that always cause a bus transaction in write-combined memory.
    Plain,
    /// By instructions that may be answered from a buffer of an earlier line fetch
    /// ([`fresh_load_fence`](super::fence::fresh_load_fence)).
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // Only x86-64 has such loads.
    Streaming,
}

/// The memory that a routine may be used on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MappingRequirement {
    /// Any.
    Any,
    /// Only non-cacheable memory; the routine faults on other memory.
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code))]
    // Only aarch64 has such a routine.
    Uncached,
}

/// The parts of a [`Routine`].
pub(super) struct Parts {
    pub(super) name: &'static str,
    pub(super) store: Move,
    pub(super) load: Move,
    pub(super) loads: Loads,
    pub(super) requires: MappingRequirement,
    pub(super) detect: fn() -> bool,
}

/// The store and load code for one CPU feature level.
///
/// A `&'static Routine` exists only for a level that this CPU supports: from [`Routine::best`], [`Routine::supported`]
/// or [`Routine::by_name`].
pub struct Routine(pub(super) Parts);

impl Routine {
    pub(super) const fn new(parts: Parts) -> Self {
        Self(parts)
    }

    /// Returns the default routine: the fastest supported one, or the one that the environment variable `GDR_COPY`
    /// names. Decides at the first call; later calls are an atomic load. [`choice`] returns the reason.
    #[inline]
    pub fn best() -> &'static Self {
        choice().routine
    }

    /// Returns all routines that this CPU can run, best first; the last is always `portable`.
    pub fn supported() -> &'static [&'static Self] {
        static SUPPORTED: Inherited<Vec<&'static Routine>> = Inherited::new();
        SUPPORTED.get_or_init(|| all().filter(|routine| (routine.0.detect)()).collect())
    }

    /// Returns the supported routine with this name, if there is one.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        Self::supported()
            .iter()
            .copied()
            .find(|routine| routine.name() == name)
    }

    /// Returns the routine for cached windows. Its accesses are neither streaming nor non-temporal, because those
    /// bypass the cache. Like all routines, it uses assembly or volatile accesses, because the GPU writes to the window
    /// while it is copied.
    #[inline]
    pub(super) fn for_cached() -> &'static Self {
        #[cfg(target_arch = "aarch64")]
        return super::aarch64::neon();
        #[cfg(not(target_arch = "aarch64"))]
        return &PORTABLE;
    }

    /// Returns the name, as accepted in `GDR_COPY`.
    pub const fn name(&self) -> &'static str {
        self.0.name
    }

    /// Returns whether its load instructions may be served from a buffer, so that data no older than the call needs
    /// [`fresh_load_fence`](super::fence::fresh_load_fence) first.
    pub const fn has_streaming_loads(&self) -> bool {
        matches!(self.0.loads, Loads::Streaming)
    }

    /// Returns whether its instructions fault on ordinary (cacheable) memory, so that it can be used only on a real
    /// window.
    pub const fn needs_uncached_mapping(&self) -> bool {
        matches!(self.0.requires, MappingRequirement::Uncached)
    }

    /// Returns whether it stores 16 bytes at once by the vector register that every x86-64 CPU has, as
    /// [`copy_few_to`](super::copy_few_to) does.
    pub fn has_store_of_16(&self) -> bool {
        cfg!(target_arch = "x86_64") && self != &PORTABLE
    }

    /// Copies `len` bytes from host memory into the window, without any fence.
    ///
    /// Stores each byte once, in ascending order, and nothing outside the range. A range that is one naturally aligned
    /// word of 1, 2, 4 or 8 bytes is one store of that width.
    ///
    /// # Safety
    /// - `window` is valid for writing `len` bytes and stays mapped; the window consists of whole
    ///   64-byte lines and no reference into it exists.
    /// - `host` is valid for reading `len` bytes, at any alignment.
    /// - The two do not overlap.
    /// - If [`needs_uncached_mapping`](Self::needs_uncached_mapping), the window is mapped uncached.
    #[inline]
    pub unsafe fn store(&self, window: *mut u8, host: *const u8, len: usize) {
        // One store with every routine, because flags and doorbells must not be seen in parts.
        if scalar::is_word(window.addr(), len) {
            // SAFETY: the caller's promise, and the range is one word.
            unsafe { scalar::store_one(window, host, len) }
        } else {
            // SAFETY: the caller's promise; a `&'static Routine` exists only if the CPU supports it.
            unsafe { (self.0.store)(window, host, len) }
        }
    }

    /// Copies `len` bytes from the window into host memory, without any fence.
    ///
    /// A range that lies in one 64-byte line is one access (as far as the routine's registers permit), and a longer one
    /// reads each line once; adjacent bytes in these lines may be read, too. A range that is one naturally aligned word
    /// of 1, 2, 4 or 8 bytes is one load of that width.
    ///
    /// # Safety
    /// - The 64-byte lines that contain the `len` bytes at `window` are mapped and stay mapped; no `&mut` into them
    ///   exists.
    /// - `host` is valid for writing `len` bytes, at any alignment.
    /// - The two do not overlap.
    /// - If [`needs_uncached_mapping`](Self::needs_uncached_mapping), the window is mapped uncached.
    #[inline]
    pub unsafe fn load(&self, host: *mut u8, window: *const u8, len: usize) {
        if scalar::is_word(window.addr(), len) {
            // SAFETY: the caller's promise, and the range is one word.
            unsafe { scalar::load_one(host, window, len) }
        } else {
            // SAFETY: the caller's promise; a `&'static Routine` exists only if the CPU supports it.
            unsafe { self.load_any(host, window, len) }
        }
    }

    /// Does [`load`](Self::load) for a range that is not one aligned word.
    ///
    /// # Safety
    /// Same as [`load`](Self::load).
    #[inline(always)]
    unsafe fn load_any(&self, host: *mut u8, window: *const u8, len: usize) {
        if scalar::is_within_word(window.addr(), len) {
            // SAFETY: the caller's promise; the word that contains the range is in its line.
            unsafe { scalar::load_within_word(host, window, len) }
        } else {
            // SAFETY: the caller's promise; a `&'static Routine` exists only if the CPU supports it.
            unsafe { (self.0.load)(host, window, len) }
        }
    }

    /// Returns whether [`load`](Self::load) of this range may return older data from a buffer.
    #[inline(always)]
    pub(super) fn may_load_stale(&self, window: *const u8, len: usize) -> bool {
        self.has_streaming_loads() && !scalar::is_within_word(window.addr(), len)
    }
}

impl fmt::Debug for Routine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("Routine")
            .field(&self.name())
            .finish()
    }
}

impl PartialEq for Routine {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Routine {}

/// Copies 8-byte words in general registers, on any CPU.
static PORTABLE: Routine = Routine::new(Parts {
    name: "portable",
    store: scalar::store,
    load: scalar::load_words,
    loads: Loads::Plain,
    requires: MappingRequirement::Any,
    detect: || true,
});

/// A routine that must never be used on ordinary memory, like `ls64` on aarch64.
#[cfg(test)]
pub(crate) static FOR_UNCACHED_ONLY: Routine = Routine::new(Parts {
    name: "for-uncached-only",
    store: scalar::store,
    load: scalar::load_words,
    loads: Loads::Plain,
    requires: MappingRequirement::Uncached,
    detect: || true,
});

/// Returns every compiled routine, best first, whether this CPU supports it or not.
fn all() -> impl Iterator<Item = &'static Routine> {
    NATIVE.iter().chain([&PORTABLE])
}

/// The routine that [`Routine::best`] returns, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutineChoice {
    /// The routine.
    pub routine: &'static Routine,
    /// Why it was chosen.
    pub reason: ChoiceReason,
}

/// Why a routine was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChoiceReason {
    /// It is the best one that the CPU supports; none was requested.
    BestSupported,
    /// `GDR_COPY` names it.
    Asked,
    /// The value of `GDR_COPY` is not the name of a routine; the best supported one is used.
    UnknownName(OsString),
    /// `GDR_COPY` names a routine that this CPU cannot run; the best supported one is used.
    Unsupported(&'static str),
}

impl fmt::Display for ChoiceReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BestSupported => formatter.write_str("best supported by this CPU"),
            Self::Asked => write!(formatter, "asked for by {VARIABLE}"),
            Self::UnknownName(name) => write!(
                formatter,
                "{VARIABLE} ignored: no routine is called {name:?}; the best supported one is used"
            ),
            Self::Unsupported(name) => write!(
                formatter,
                "{VARIABLE} ignored: this CPU cannot run {name}; the best supported one is used"
            ),
        }
    }
}

/// Returns the choice of [`Routine::best`], for reports. Never fails: a name in `GDR_COPY` that cannot be used is a
/// [`ChoiceReason`], not an error. The variable is read once, at the first call.
#[inline]
pub fn choice() -> &'static RoutineChoice {
    static CHOICE: Inherited<RoutineChoice> = Inherited::new();
    CHOICE.get_or_init(|| RoutineChoice::of(gdr_process::variable(VARIABLE).as_deref()))
}

impl RoutineChoice {
    /// Returns the choice for a value of the environment variable; an empty value counts as unset.
    fn of(asked: Option<&OsStr>) -> Self {
        // `portable` is compiled in and runs everywhere, so the list is never empty.
        let best = Routine::supported().first().copied().unwrap_or(&PORTABLE);
        let asked =
            asked.filter(|asked| !asked.is_empty() && !MODES.iter().any(|mode| asked == mode));
        let Some(asked) = asked else {
            return Self {
                routine: best,
                reason: ChoiceReason::BestSupported,
            };
        };
        // Searches all compiled routines, so that one that this CPU cannot run gets a reason of its own.
        match all().find(|routine| asked == routine.name()) {
            Some(routine) if (routine.0.detect)() => Self {
                routine,
                reason: ChoiceReason::Asked,
            },
            Some(routine) => Self {
                routine: best,
                reason: ChoiceReason::Unsupported(routine.name()),
            },
            None => Self {
                routine: best,
                reason: ChoiceReason::UnknownName(asked.to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_portable_is_always_there_and_last() {
        let names: HashSet<_> = all().map(Routine::name).collect();
        assert_eq!(names.len(), all().count());
        assert_eq!(
            Routine::supported().last().map(|last| last.name()),
            Some("portable")
        );
    }

    #[test]
    fn nothing_asked_chooses_the_first_supported() {
        for asked in [None, Some(""), Some("cpu"), Some("auto")] {
            let asked = asked.map(OsStr::new);
            let choice = RoutineChoice::of(asked);
            assert_eq!(choice.routine, Routine::supported()[0]);
            assert_eq!(choice.reason, ChoiceReason::BestSupported);
        }
    }

    #[test]
    fn every_supported_routine_can_be_asked_for() {
        for routine in Routine::supported() {
            let choice = RoutineChoice::of(Some(OsStr::new(routine.name())));
            assert_eq!(
                choice,
                RoutineChoice {
                    routine,
                    reason: ChoiceReason::Asked
                }
            );
            assert_eq!(Routine::by_name(routine.name()), Some(*routine));
        }
    }

    #[test]
    fn a_name_that_cannot_be_used_falls_back_and_says_so() {
        let choice = RoutineChoice::of(Some(OsStr::new("abacus")));
        assert_eq!(choice.routine, Routine::supported()[0]);
        assert_eq!(choice.reason, ChoiceReason::UnknownName("abacus".into()));
        assert!(choice.reason.to_string().contains("\"abacus\""));
        assert_eq!(Routine::by_name("abacus"), None);

        for routine in all().filter(|routine| !(routine.0.detect)()) {
            let choice = RoutineChoice::of(Some(OsStr::new(routine.name())));
            assert_eq!(choice.routine, Routine::supported()[0]);
            assert_eq!(choice.reason, ChoiceReason::Unsupported(routine.name()));
            assert_eq!(Routine::by_name(routine.name()), None);
        }
    }

    #[test]
    fn the_choice_is_made_once() {
        assert!(std::ptr::eq(choice(), choice()));
        assert!(std::ptr::eq(Routine::best(), choice().routine));
    }
}
